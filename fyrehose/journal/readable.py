"""What readers of a journal find: its streams and their records, up to the last commit that was released.

released commits, batches of the leader -> Readable -> bounds, records
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import attrs

from fyrehose.journal.floors import Floors, search
from fyrehose.journal.index import SegmentIndex
from fyrehose.journal.packing import batch_of, grouped
from fyrehose.journal.recovery import Recovered
from fyrehose.journal.store import Store
from fyrehose.journal.streams import Streams
from fyrehose.journal.writer import Applied, Committed, Rolled, Writer
from fyrehose.records import Run


@attrs.define(eq=False)
class Readable:
    """The streams and records that readers find; used in the reactor's thread.

    The last number of a stream and its records change together, so a number up to it always has a record, or was lost.
    Records in front of a stream's start (it was retired), and records that are too old, are not found, although the
    store still has them.

    :ivar store: reads the segments
    :ivar streams: the streams as of the last released commit; the writer's own also include commits that are under way
    """

    store: Store
    streams: Streams = attrs.field(factory=Streams, init=False)
    _floors: Floors | None = attrs.field(default=None, init=False)

    def open(self, writer: Writer, report: Recovered, now: int) -> Rolled | None:
        """Begin with what recovery found; return the segment that opening the log has sealed.

        :param now: the wall clock, in microseconds since 1970 UTC
        """
        self.streams = writer.streams.copy()
        rolled = writer.take_rolled()
        index = report.index or SegmentIndex(writer.base)
        index.end = writer.position if rolled is None else rolled.base
        self.store.open(report.sealed, index)
        # Use the earlier of the two times, because a wall clock that is ahead must not make records count as too old.
        self.judge_ages(min(now, report.time))
        return rolled

    def released(self, committed: Committed) -> dict[str, int]:
        """Add the records and retirements of a commit; return the last number of each stream with new records."""
        ends: dict[str, int] = {}
        streams = self.streams
        known = streams.ends
        for batch in committed.batches:
            self.store.wrote(batch)
            for stream, runs in batch.streams.items():
                ends[stream] = runs[-1].last_seq
                if stream not in known:
                    streams.wrote(stream, runs[0].first_seq, runs[-1].last_seq)
        known.update(ends)
        if committed.retired:
            streams.apply(committed.retired)
        return ends

    def applied(self, applied: Applied) -> dict[str, int]:
        """Add batches of the leader; return the last number of each stream with new records."""
        ends: dict[str, int] = {}
        for header, runs, entries in applied.batches:
            self.store.wrote(batch_of(header, grouped(runs)))
            for run in runs:
                self.streams.wrote(run.stream, run.first_seq, run.last_seq)
                ends[run.stream] = run.last_seq
            if entries:
                self.streams.replay(header.kind, entries)
        return ends

    # Ages.

    def limit_ages(self, stream_age: Callable[[str], float] | None) -> None:
        """Change the limits of the ages of records, from now on.

        :param stream_age: returns the maximum age of a stream's records, in seconds, 0: no limit; None: no stream has a
            limit
        """
        # Without earlier limits the time is not known yet; the journal's next check sets it.
        now = 0 if self._floors is None else self._floors.now
        self._floors = None if stream_age is None else Floors(self.store, stream_age, now)

    def judge_ages(self, now: int) -> None:
        """Judge ages by the time *now*, in microseconds since 1970 UTC, until the next call."""
        if self._floors is not None:
            self._floors.now = now

    def expired(self, stream: str, time: int) -> bool:
        """Return whether a record of *stream* from *time* is too old to be served."""
        return self._floors is not None and self._floors.expired(stream, time)

    # Reading.

    def bounds(self, stream: str) -> tuple[int, int]:
        """Return the numbers of the oldest and the last record of *stream* that readers find."""
        streams = self.streams
        last = streams.ends.get(stream)
        if last is None:
            last = streams.retired.get(stream, streams.floor)
            return last + 1, last
        oldest = max(self.store.oldest(stream), streams.starts.get(stream, 0) + 1)
        return (oldest if self._floors is None else max(oldest, self._floors.floor(stream, last))), last

    def first_since(self, stream: str, time: int) -> int:
        """Return the number of the first record of *stream* that readers find, and that is of *time* or later."""
        first, last = self.bounds(stream)
        return first if first > last else max(first, search(self.store, stream, last, time).seq)

    def ends(self) -> Mapping[str, int]:
        """Return the last number of each stream."""
        return self.streams.ends

    def retired(self) -> Mapping[str, int]:
        """Return the last number of each retired stream."""
        return self.streams.retired

    def read(self, stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        """Return durable records of *stream* from *start* on, without those that were retired or have expired."""
        last = self.streams.ends.get(stream, 0)
        if start > last:
            return ()
        runs = self.store.read(stream, max(start, self.streams.starts.get(stream, 0) + 1), max_bytes)
        if self._floors is None or not runs or not self._floors.expired(stream, runs[0].time):
            return runs
        floor = self._floors.floor(stream, last)
        return self.store.read(stream, floor, max_bytes) if floor <= last else ()

    def latest(self, size: int, source: str = "") -> Iterator[Run]:
        """Yield runs from the end of the log backwards, about *size* bytes; see :meth:`IJournal.latest`."""
        return self.store.latest(size, source)
