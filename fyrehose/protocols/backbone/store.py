"""Store the latest records that a client received, so that it can answer FORWARDs (rule 4 of the client)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from operator import attrgetter

import attrs

from fyrehose.records import Run

_first_seq = attrgetter("first_seq")


@attrs.define(eq=False)
class RecentRuns:
    """The latest runs, in order, not overlapping; the oldest are removed first.

    :ivar limit: maximum size, in bytes; 0: store nothing
    :ivar size: size of the stored runs, in bytes
    """

    limit: int
    size: int = attrs.field(default=0, init=False)
    _runs: list[Run] = attrs.field(factory=list, init=False)

    def add(self, run: Run) -> None:
        """Store *run*, which does not overlap the stored runs."""
        if run.size > self.limit:
            return
        insort(self._runs, run, key=_first_seq)
        self.size += run.size
        drop = 0
        while self.size > self.limit:
            self.size -= self._runs[drop].size
            drop += 1
        del self._runs[:drop]

    def read(self, first: int, last: int) -> Iterator[Run]:
        """Yield the stored records from *first* to *last*."""
        for run in self._runs:
            if run.first_seq > last:
                return
            if run.last_seq >= first:
                yield run.slice(max(0, first - run.first_seq), last - run.first_seq + 1)
