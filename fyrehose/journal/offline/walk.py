"""Everything in a journal's files, in order and with what is damaged: what the offline tools go through.

Works while a server is writing, because nothing beyond the durable mark is looked at unless it is asked for.  Knows no
Twisted.

    in: a directory      out: Began, Batch and Damaged, in the order of their positions
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import attrs

from fyrehose.errors import JournalCorrupt, JournalError
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.offline.view import believed_mark, durable_by_batches
from fyrehose.journal.recovery import damaged, newer_refused, next_whole
from fyrehose.records import Run


@attrs.frozen(slots=True)
class Began:
    """A segment, before its batches.

    :ivar header: None if it is damaged, which is said next
    :ivar stop: it is walked up to this position
    :ivar sealed: whether another follows
    """

    segment: scan.Segment
    header: fmt.SegmentHeader | None
    stop: int
    sealed: bool


@attrs.frozen(slots=True)
class Batch:
    """A batch that is as it was written."""

    segment: scan.Segment
    header: fmt.BatchHeader
    body: memoryview

    def runs(self) -> list[Run]:
        """Its runs, if it is one of records."""
        return fmt.runs(self.body, self.header.time) if self.header.kind is fmt.Kind.RECORDS else []

    def entries(self) -> list[fmt.Entry]:
        """Its entries, if it is one of anything else."""
        return [] if self.header.kind is fmt.Kind.RECORDS else fmt.entries(self.body, self.header.parts)


@attrs.frozen(slots=True)
class Damaged:
    """Positions ``start`` to ``stop`` are not what was written, though they were durable.

    Of equal positions: the batch there is whole, but it is not the one that follows.
    """

    segment: scan.Segment
    start: int
    stop: int
    reason: str

    def error(self) -> JournalCorrupt:
        """The same, to be raised."""
        return damaged(self.segment.path, self.start, self.segment.base, self.reason)


@attrs.frozen(slots=True)
class Extent:
    """What there is of a journal.

    :ivar mark: the durable mark as last noted; 0 if it is not known
    :ivar durable: everything below this position was on disk: that mark, or what the batches say themselves
    :ivar begin: where the log begins, as retention has noted it; None if that is not known
    """

    segments: tuple[scan.Segment, ...]
    mark: int
    durable: int
    begin: int | None = None

    @classmethod
    def of(cls, directory: Path) -> Extent:
        """:raises JournalError: there is no journal in ``directory``
        :raises JournalCorrupt: there was one
        """
        noted = believed_mark(directory)
        found = tuple(scan.segments(directory))  # after the mark, so that they have what it says
        if not found and noted.durable:
            raise JournalCorrupt(f"the journal {directory} has no segments, though {noted.durable} bytes were durable")
        if not found:
            raise JournalError(f"{directory} is no journal: there is no segment in it")
        durable = max(noted.durable or durable_by_batches(directory), found[-1].base)
        return cls(found, noted.durable, durable, noted.begin)


def walk(extent: Extent, everything: bool = False) -> Iterator[Began | Batch | Damaged]:
    """Go through the segments of ``extent``; those that retention deletes meanwhile are left out.

    :param everything: go on behind the durable mark as far as it makes sense, too
    :raises JournalCorrupt: a newer version has written to it
    """
    for segment, after in zip_longest(extent.segments, extent.segments[1:]):
        reach = segment.end if everything else extent.durable
        stop = reach if after is None else after.base
        if stop <= segment.base:
            return  # begun a moment ago
        try:
            reader = scan.SegmentReader(segment.path, segment.base, limit=stop)
        except FileNotFoundError:
            continue
        try:
            with newer_refused(segment.path):
                yield from _walk_segment(reader, segment, min(stop, segment.end), extent.durable, after is not None)
        finally:
            reader.close()
        missing = extent.durable if after is None else after.base
        if segment.end < missing:
            what = "the end of the log is missing" if after is None else "a segment is missing or cut off"
            yield Damaged(segment, segment.end, missing, what)


def _walk_segment(
    reader: scan.SegmentReader, segment: scan.Segment, stop: int, durable: int, sealed: bool
) -> Iterator[Began | Batch | Damaged]:
    position = segment.base + fmt.SEGMENT_HEADER.size
    chain: int | None = None
    try:
        try:
            header = reader.header()
        except fmt.Newer:
            raise
        except fmt.Damage as damage:
            yield Began(segment, None, stop, sealed)
            yield Damaged(segment, segment.base, position, str(damage))
        else:
            yield Began(segment, header, stop, sealed)
            chain = header.chain
        while position < stop:
            try:
                found, body = reader.batch(position)
            except fmt.Damage as damage:
                if position >= durable:
                    return  # it is being written, or never was whole
                after = next_whole(reader, position, stop)
                yield Damaged(segment, position, after, str(damage))
                position, chain = after, None
                continue
            if chain is not None and found.chain != chain:
                yield Damaged(segment, position, position, "the batch does not continue from the one before")
            yield Batch(segment, found, body)
            chain = None if found.mended else found.checksum
            position = found.end
    except OSError as error:
        yield Damaged(segment, position, stop, f"it cannot be read: {error.strerror}")
