"""What a journal peer keeps: the latest records, up to a bound, to answer FORWARDs from (rule 4 of the client)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from operator import attrgetter

import attrs

from fyrehose.records import Run

_first_seq = attrgetter("first_seq")


@attrs.define(eq=False)
class Store:
    """The latest runs, in order, not overlapping; the oldest go first.

    :ivar limit: what may be kept, in bytes; 0: nothing, and the client is no journal
    """

    limit: int
    size: int = attrs.field(default=0, init=False)
    _runs: list[Run] = attrs.field(factory=list, init=False)

    def add(self, run: Run) -> None:
        """Keep ``run``, of which nothing is kept yet."""
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
        """What is kept of ``first`` to ``last``."""
        for run in self._runs:
            if run.first_seq > last:
                return
            if run.last_seq >= first:
                yield run.slice(max(0, first - run.first_seq), last - run.first_seq + 1)
