"""Read the content of a journal's files: batches, runs or statistics, also while a server is writing.

Nothing is changed, and nothing beyond the durable mark is read unless requested.

    in: a directory, a selection      out: Batch, Run, Stats
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from fyrehose.journal import format as fmt
from fyrehose.offline.walk import Batch, Damaged, Log, SegmentStart, walk
from fyrehose.records import Run


def batches(directory: Path, everything: bool = False) -> Iterator[Batch]:
    """Yield every batch, in the order of the log.

    :param everything: also read intact batches beyond the durable mark
    :raises JournalError: there is no journal
    :raises JournalCorrupt: the journal is damaged; the batches before the damage were yielded
    """
    for found in walk(Log.of(directory), everything):
        if isinstance(found, Damaged):
            raise found.error()
        if isinstance(found, Batch):
            yield found


def runs(
    directory: Path,
    stream: str | None = None,
    first: int = 1,
    limit: int | None = None,
    everything: bool = False,
) -> Iterator[Run]:
    """Yield the records in runs, in the order of the log.

    :param stream: only records of this stream; None: of all streams
    :param first: only records from this number on
    :param limit: maximum number of records
    :param everything: also read intact batches beyond the durable mark
    :raises JournalError: there is no journal
    :raises JournalCorrupt: the journal is damaged; the records before the damage were yielded
    """
    if limit == 0:
        return
    for batch in batches(directory, everything):
        for run in batch.runs():
            if (stream is not None and run.stream != stream) or run.last_seq < first:
                continue
            part = run.slice(max(0, first - run.first_seq), len(run))
            if limit is not None:
                part = part.slice(0, limit)
                limit -= len(part)
            yield part
            if limit == 0:
                return


@attrs.define
class StreamStats:
    """Statistics of one stream.

    :ivar first: number of the first record; 0 if there is none
    :ivar last: the last number that was given out, even if its record is missing
    :ivar size: total size of the payloads, in bytes
    :ivar began: time of the first record, in microseconds since 1970 UTC; 0 if there is none
    :ivar ended: time of the last record
    :ivar missing: how many numbers between ``first`` and ``last`` have no record
    """

    records: int = 0
    first: int = 0
    last: int = 0
    size: int = 0
    began: int = 0
    ended: int = 0

    @property
    def missing(self) -> int:
        return self.last - self.first + 1 - self.records if self.first else 0

    def add(self, run: Run) -> None:
        """Add the next run of the stream."""
        self.first = self.first or run.first_seq
        self.began = self.began or run.time
        self.last, self.ended = run.last_seq, run.time
        self.records += len(run)
        self.size += len(run.payload)


@attrs.define
class Stats:
    """Statistics of a journal.

    :ivar mark: the durable mark; 0: unknown
    :ivar end: the position up to which the log was read
    :ivar size: total size of the segment files, in bytes, including space that is allocated ahead
    :ivar closed: whether the journal was closed in order
    :ivar damaged: the damaged ranges
    """

    mark: int
    size: int
    end: int = 0
    segments: int = 0
    batches: int = 0
    closed: bool = False
    damaged: list[Damaged] = attrs.field(factory=list)
    streams: dict[str, StreamStats] = attrs.field(factory=dict)

    @property
    def records(self) -> int:
        return sum(stream.records for stream in self.streams.values())


def stats(
    directory: Path, progress: Callable[[int, int], object] = lambda done, total: None, everything: bool = False
) -> Stats:
    """Count the records of the journal by stream.

    :param progress: called with the number of bytes that were read, and their total
    :param everything: also read intact batches beyond the durable mark
    :raises JournalError: there is no journal
    """
    log = Log.of(directory)
    found = Stats(mark=log.mark, size=sum(segment.size for segment in log.segments))
    for part in walk(log, everything):
        if isinstance(part, SegmentStart):
            found.segments += 1
        elif isinstance(part, Damaged):
            found.damaged.append(part)
        else:
            _count(found, part)
            progress(part.header.end - log.segments[0].base, found.size)
    progress(found.size, found.size)
    return found


def _count(stats: Stats, batch: Batch) -> None:
    stats.batches += 1
    stats.end = batch.header.end
    stats.closed = batch.header.kind is fmt.Kind.CLOSED
    for run in batch.runs():
        stats.streams.setdefault(run.stream, StreamStats()).add(run)
    if batch.header.kind in (fmt.Kind.ENDS, fmt.Kind.STREAMS, fmt.Kind.GAP):
        for entry in batch.entries():
            if entry.stream and entry.state in (fmt.StreamState.LIVE, fmt.StreamState.RETIRED):
                of = stats.streams.setdefault(entry.stream, StreamStats())
                of.last = max(of.last, entry.last)
