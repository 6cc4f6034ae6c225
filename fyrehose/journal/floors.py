"""Find the oldest record of a stream that is young enough to be served, if the configuration limits the age.

    in: a stream, its last number, the time      out: the first number that is served

Batch headers have times that never go back, so a binary search finds the record: first among the segments, by their
time of creation, then among the batches that the segment's index lists.  A result is kept until that record is too old
itself.  Records that are too old stay in their segments until retention deletes the segments.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import attrs

from fyrehose.journal.store import Store

#: Limit of the number of streams whose results are cached; streams that were retired since may be among them.
MOST = 200_000


@attrs.frozen(slots=True)
class Floor:
    """The first record of a stream that is young enough to be served: its number and its time.

    :ivar time: the time of that record, in microseconds since 1970 UTC; once the record is too old, a new search is due
    """

    seq: int
    time: int


@attrs.define(eq=False)
class Floors:
    """A search, with a cache, for the first record of a stream that is not too old.

    :ivar stream_age: returns the maximum age of a stream's records, in seconds; 0: no limit
    :ivar now: the current time, in microseconds since 1970 UTC; the journal sets it, unless its clock is in doubt
    :ivar most: limit of the number of streams whose results are cached
    """

    store: Store
    stream_age: Callable[[str], float]
    now: int = 0
    most: int = MOST
    _ages: dict[str, int] = attrs.field(factory=dict, init=False)
    _found: dict[str, Floor] = attrs.field(factory=dict, init=False)

    def expired(self, stream: str, time: int) -> bool:
        """Return whether a record of *stream* from *time*, in microseconds since 1970 UTC, is too old to be served."""
        age = self._age(stream)
        return age > 0 and time < self.now - age

    def floor(self, stream: str, last: int) -> int:
        """Return the first number of *stream* that is served.

        :param last: the last number of the stream
        :return: at most *last* + 1; 0 if the stream's age is not limited
        :raises JournalCorrupt: a segment that had to be read is damaged
        """
        age = self._age(stream)
        if not age:
            return 0
        limit = self.now - age
        found = self._found.get(stream)
        if found is None or found.time < limit:
            found = self._found[stream] = search(self.store, stream, last, limit)
        return found.seq

    def _age(self, stream: str) -> int:
        age = self._ages.get(stream)
        if age is None:
            if len(self._ages) >= self.most:
                self._ages.clear()
                self._found.clear()
            age = self._ages[stream] = int(self.stream_age(stream) * 1_000_000)
        return age


def search(store: Store, stream: str, last: int, limit: int) -> Floor:
    """Return the first record of *stream* that is of the time *limit*, in microseconds since 1970 UTC, or later.

    :param last: the last number of the stream; if all records are older, the result has the number behind it
    :raises JournalCorrupt: a segment that had to be read is damaged
    """
    bases = store.bases
    # A segment is created after the last record of the previous segment was written, so a segment created
    # before the limit is preceded only by older records.
    at = bisect_left(range(len(bases) - 1), limit, key=lambda i: store.created(bases[i + 1]))
    found = _search_segment(store, bases[at], stream, limit)
    if found is not None:
        return found
    if at + 1 < len(bases):
        return Floor(store.before(bases[at + 1], stream) + 1, store.created(bases[at + 1]))
    return Floor(last + 1, limit)


def _search_segment(store: Store, base: int, stream: str, limit: int) -> Floor | None:
    """Search the segment at *base*; return None if it has no record of *stream* of the time *limit* or later."""
    pairs = store.index(base).pairs(stream)
    at = bisect_left(pairs, limit, key=lambda pair: store.time_at(base, pair[1]))
    if not at:
        return Floor(pairs[0][0], store.time_at(base, pairs[0][1])) if pairs else None
    for batch in store.batches(base, stream, pairs[at - 1][0]):
        runs = batch.streams.get(stream)
        if runs and runs[0].time >= limit:
            return Floor(runs[0].first_seq, runs[0].time)
    return None
