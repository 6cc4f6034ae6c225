"""Walk through a journal's files: segments, batches and damaged ranges, in order.  The offline tools are built on this.

This works while a server is writing, because nothing beyond the durable mark is read unless requested.  This module
does
not import Twisted.

    in: a directory      out: SegmentStart, Batch and Damaged, in the order of their positions
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import attrs

from fyrehose.errors import JournalCorrupt, JournalError
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.ends import VouchedEnd, look_at_end
from fyrehose.journal.files import Files
from fyrehose.journal.recovery import damaged, durable_end, last_byte, newer_refused, next_whole
from fyrehose.offline.view import believed_mark, durable_by_batches
from fyrehose.records import Run


@attrs.frozen(slots=True)
class SegmentStart:
    """The start of a segment, before the segment's batches.

    :ivar header: None if it is damaged; then a :class:`Damaged` follows
    :ivar stop: the position up to which the segment is read
    :ivar sealed: whether another segment follows
    """

    segment: scan.Segment
    header: fmt.SegmentHeader | None
    stop: int
    sealed: bool


@attrs.frozen(slots=True)
class Batch:
    """An undamaged batch."""

    segment: scan.Segment
    header: fmt.BatchHeader
    body: memoryview

    def runs(self) -> list[Run]:
        """Return the runs of a batch of kind RECORDS; none for other kinds."""
        return fmt.runs(self.body, self.header.time) if self.header.kind is fmt.Kind.RECORDS else []

    def entries(self) -> list[fmt.Entry]:
        """Return the entries of the batch; none for kind RECORDS."""
        return [] if self.header.kind is fmt.Kind.RECORDS else fmt.entries(self.body, self.header.parts)


@attrs.frozen(slots=True)
class Damaged:
    """A damaged range of the durable log, from the position *start* to *stop*.

    If the two are equal, the bytes there are intact, but they do not continue the log.
    """

    segment: scan.Segment
    start: int
    stop: int
    reason: str

    def error(self) -> JournalCorrupt:
        """Return an error about this damage."""
        return damaged(self.segment.path, self.start, self.segment.base, self.reason)


@attrs.frozen(slots=True)
class Log:
    """The segments of a journal, and how far they are durable.

    :ivar mark: the end for which MARK or the file END vouches; 0: unknown
    :ivar durable: everything below this position was on disk, according to these or to the headers of batches
    :ivar begin: position of the oldest segment that retention has not deleted; None: unknown
    :ivar end: the content of the file END, if there is one; the segments were not compared with it
    :ivar copied: whether nobody vouches for the end of a copy, so that all of its intact batches are read
    :ivar noted: the end that the MARK of such a copy names
    """

    segments: tuple[scan.Segment, ...]
    mark: int
    durable: int
    begin: int | None = None
    end: VouchedEnd | None = None
    copied: bool = False
    noted: int = 0

    @classmethod
    def of(cls, directory: Path) -> Log:
        """Find the segments in *directory*.

        :raises JournalError: there is no journal
        :raises JournalCorrupt: all segments of the journal are missing, or the file END is damaged
        """
        files = Files()
        noted, end = scan.look_at_mark(directory, files), look_at_end(directory, files)
        trusted = believed_mark(directory)
        # Listed after MARK was read, so that the segments extend at least to the mark.
        found = tuple(scan.segments(directory))
        if end is not None and end.position > trusted.durable:
            trusted = scan.Mark(end.position, end.begin)
        if not found and (was := trusted.durable or noted.durable):
            raise JournalCorrupt(f"the journal {directory} has no segments, but {was} bytes were durable")
        if not found:
            raise JournalError(f"{directory} is no journal: it has no segment files; name a server's --data-dir")
        if trusted.durable:
            return cls(found, trusted.durable, max(trusted.durable, found[-1].base), trusted.begin, end)
        mark = durable_end(directory, found, noted, files)
        durable = max(mark or durable_by_batches(directory), found[-1].base)
        return cls(found, mark, durable, noted.begin, copied=noted.copied and not mark, noted=noted.durable)


def walk(log: Log, everything: bool = False) -> Iterator[SegmentStart | Batch | Damaged]:
    """Walk through the segments of *log*, except those that retention deletes during the walk.

    :param everything: also read intact batches beyond the durable mark
    :raises JournalCorrupt: a newer version has written to the journal
    """
    for segment, after in zip_longest(log.segments, log.segments[1:]):
        reach = segment.end if everything or log.copied else log.durable
        stop = reach if after is None else after.base
        if stop <= segment.base:
            return  # the segment was created a moment ago, and nothing of it is durable
        try:
            reader = scan.SegmentReader(segment.path, segment.base, limit=stop)
        except FileNotFoundError:
            continue
        with reader:
            with newer_refused(segment.path):
                yield from _walk_segment(reader, segment, min(stop, segment.end), log.durable, after is not None)
            if after is not None and last_byte(reader, stop, segment.end) > stop:
                yield Damaged(segment, stop, stop, f"the file continues behind the start of {after.path.name}")
        missing = log.durable if after is None else after.base
        if segment.end < missing:
            what = "the end of the log is missing" if after is None else "a segment is missing or truncated"
            yield Damaged(segment, segment.end, missing, what)


def _walk_segment(
    reader: scan.SegmentReader, segment: scan.Segment, stop: int, durable: int, sealed: bool
) -> Iterator[SegmentStart | Batch | Damaged]:
    position = segment.base + fmt.SEGMENT_HEADER.size
    chain: int | None = None
    try:
        try:
            header = reader.header()
        except fmt.Newer:
            raise
        except fmt.Damage as damage:
            yield SegmentStart(segment, None, stop, sealed)
            yield Damaged(segment, segment.base, position, str(damage))
        else:
            yield SegmentStart(segment, header, stop, sealed)
            chain = header.chain
        while position < stop:
            try:
                found, body = reader.batch(position)
            except fmt.Damage as damage:
                if position >= durable:
                    return  # the batch is being written, or was when the server stopped
                after = next_whole(reader, position, stop)
                yield Damaged(segment, position, after, str(damage))
                position, chain = after, None
                continue
            if chain is not None and found.chain != chain:
                yield Damaged(segment, position, position, "the batch does not continue from the previous one")
            yield Batch(segment, found, body)
            chain = None if found.mended else found.checksum
            position = found.end
    except OSError as error:
        yield Damaged(segment, position, stop, f"cannot be read: {error.strerror}")
