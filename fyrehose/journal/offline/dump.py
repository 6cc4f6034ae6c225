"""What is in a journal's files: batches, runs or records one after the other, and sums of them.

Works while a server is writing.  Nothing is changed, and nothing beyond the durable mark is told unless it is asked
for.

    in: a directory, what of it is wanted      out: Batch, Run, Stats
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from fyrehose.journal import format as fmt
from fyrehose.journal.offline.walk import Batch, Began, Damaged, Extent, walk
from fyrehose.records import Run


def batches(directory: Path, everything: bool = False) -> Iterator[Batch]:
    """Every batch, in the order of the log.

    :param everything: go on behind the durable mark as far as it makes sense, too
    :raises JournalError: there is no journal
    :raises JournalCorrupt: it is damaged; what comes before that was told
    """
    for found in walk(Extent.of(directory), everything):
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
    """The records as they were accepted, in runs.

    :param stream: of this stream only; None: of all
    :param first: from this number on
    :param limit: so many records at the most
    :raises JournalError: there is no journal
    :raises JournalCorrupt: it is damaged; what comes before that was told
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
    """One stream.

    :ivar first: the first number that is there; 0 if none is
    :ivar last: the last number that was given out, there or not
    :ivar size: payloads, in bytes
    :ivar began: when its first record was accepted, us since 1970 UTC; 0 if there is none
    :ivar ended: the same of its last
    :ivar missing: how many numbers between ``first`` and ``last`` are not there
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
        """The next of its runs."""
        self.first = self.first or run.first_seq
        self.began = self.began or run.time
        self.last, self.ended = run.last_seq, run.time
        self.records += len(run)
        self.size += len(run.payload)


@attrs.define
class Stats:
    """A journal, in numbers.

    :ivar size: of the segment files, in bytes, what is allocated ahead included
    :ivar end: the position up to which was read
    :ivar closed: whether it was closed in order
    :ivar damaged: ranges that could not be read
    """

    mark: int = 0
    end: int = 0
    size: int = 0
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
    """Count what is in the journal.

    :param progress: is told how many bytes are done, and of how many
    :param everything: go on behind the durable mark as far as it makes sense, too
    :raises JournalError: there is no journal
    """
    extent = Extent.of(directory)
    found = Stats(mark=extent.mark, size=sum(segment.size for segment in extent.segments))
    for part in walk(extent, everything):
        if isinstance(part, Began):
            found.segments += 1
        elif isinstance(part, Damaged):
            found.damaged.append(part)
        else:
            _count(found, part)
            progress(part.header.end - extent.segments[0].base, found.size)
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
            if entry.stream and entry.state in (fmt.State.LIVE, fmt.State.RETIRED):
                of = stats.streams.setdefault(entry.stream, StreamStats())
                of.last = max(of.last, entry.last)
