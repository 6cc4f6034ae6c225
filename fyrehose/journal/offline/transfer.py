"""The end of a log, found by reading it, and the batches behind it, each checked: what a backup is made of.

    in: a segment      out: the bytes of its batches as they were checked, and how far they go

Knows no Twisted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from fyrehose.errors import JournalCorrupt, JournalUnreachable
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.copies import written_while_copied
from fyrehose.journal.files import Files
from fyrehose.journal.index import SegmentIndex
from fyrehose.journal.offline.places import Directory, Place
from fyrehose.journal.offline.view import Extent, View, believed_mark
from fyrehose.journal.recovery import damaged, durable_beyond, next_whole
from fyrehose.records import Buffer


@attrs.define(eq=False)
class Tail:
    """The end of a log, as far as it was checked.

    :ivar index: of the last segment
    :ivar position: where the next batch goes
    :ivar chain: what the next batch or segment continues from; None if nothing tells
    :ivar at: the position of the last batch; -1 if the segment has none yet
    :ivar last: the header of that batch, as it is in the file
    :ivar identity: of the journal; zeros if it is not known
    """

    index: SegmentIndex
    position: int
    chain: int | None
    at: int = -1
    last: bytes = b""
    identity: bytes = bytes(16)


def begin(reader: scan.SegmentReader, chain: int | None) -> tuple[bytes, Tail]:
    """Read the header of a segment.

    :param chain: what it should continue from, if that is known
    :return: the header as it is in the file, and the tail behind it
    :raises Damage: it is damaged, or continues from something else
    """
    data = _read(reader, reader.base, fmt.SEGMENT_HEADER.size)
    header = fmt.SegmentHeader.unpack(data)
    if header.base != reader.base:
        raise fmt.Damage(f"the file holds the segment that begins at position {header.base}")
    continued = None if header.created == 0 else header.chain  # --quarantine replaces a damaged header by such
    if None not in (chain, continued) and continued != chain:
        raise fmt.Damage("the segment does not continue from the one before")
    tail = Tail(SegmentIndex(reader.base), reader.base + len(data), continued, identity=header.identity)
    return bytes(data), tail


def batches(reader: scan.SegmentReader, tail: Tail, stop: int) -> Iterator[tuple[fmt.BatchHeader, list[Buffer]]]:
    """Read each batch from *tail* up to the position *stop*; *tail* moves on behind each, before it is yielded.

    :return: headers, and the very bytes that were checked
    :raises Damage: the next batch is not what was written, or cannot be read; *tail* is in front of it
    """
    size = fmt.BATCH_HEADER.size
    while tail.position < stop:
        head = bytes(_read(reader, tail.position, size))
        header = fmt.BatchHeader.unpack(head, tail.position)
        body = _read(reader, tail.position, size + header.length)[size:]
        header.check(body)
        if tail.chain is not None and header.chain != tail.chain:
            raise fmt.Damage("the batch does not continue from the one before")
        if header.end > stop:
            raise fmt.Damage(f"the batch reaches beyond position {stop}, where the segment or what is durable ends")
        tail.index.add(header, body)
        tail.at, tail.last, tail.position = header.position, head, header.end
        tail.chain = None if header.mended else header.checksum
        yield header, [head, body]


def differ(first: bytes, second: bytes) -> bool:
    """Return whether two identities are known and are not the same."""
    return any(first) and any(second) and first != second


def _read(reader: scan.SegmentReader, position: int, size: int) -> memoryview:
    try:
        return reader.read(position, size)
    except OSError as error:
        raise fmt.Damage(f"it cannot be read: {error.strerror}") from error


def tail_of(directory: Path) -> Tail | None:
    """Find where the log in *directory* ends, which nobody is writing; None if there is no log.

    :raises JournalCorrupt: there is less than MARK says, or the last segment is damaged
    """
    noted = believed_mark(directory)
    found = [segment for segment in scan.segments(directory) if not noted.durable or segment.base < noted.durable]
    if not found and noted.durable:
        raise JournalCorrupt(
            f"{directory} has no segments below position {noted.durable}, up to which MARK says that it is complete; "
            "put its files back, or use an empty directory"
        )
    for segment in reversed(found):
        tail, damage = _whole(segment, noted.durable or segment.end)
        if damage is not None and noted.durable:
            raise JournalCorrupt(
                f"{segment.path} is damaged at byte {tail.position - segment.base} (position {tail.position}): "
                f"{damage}; delete this file and MARK beside it, and run the backup again"
            )
        if tail.at >= 0:
            return tail
    return None


def reach(source: Place) -> View:
    """Return what *source* has that may be copied: what is durable, or everything whole if it is a copy by itself.

    MARK of a directory that was copied file by file is not believed, and nobody writes there: as when a server is
    started there, everything up to the last whole batch counts.

    :raises JournalUnreachable: it is not there at present
    :raises JournalCorrupt: it is a copy whose end is damaged
    """
    try:
        view = source.view()
        if not isinstance(source, Directory) or not scan.look_at_mark(source.path, Files()).copied:
            return view
        found = scan.segments(source.path)
        tail, damage = _whole(found[-1], found[-1].end)
        if damage is not None:
            _check_end(found[-1], tail.position, damage)
    except OSError as error:
        raise JournalUnreachable(f"{source} cannot be read: {error.strerror}") from error
    ends = [segment.base for segment in found[1:]] + [tail.position]
    extents = tuple(Extent(s.base, min(s.end, end)) for s, end in zip(found, ends, strict=True))
    return attrs.evolve(view, mark=tail.position, segments=extents)


def _whole(segment: scan.Segment, stop: int) -> tuple[Tail, fmt.Damage | None]:
    """Read a segment up to *stop*, or to the first batch that is not whole; and what is the matter with that."""
    reader = scan.SegmentReader(segment.path, segment.base)
    tail = Tail(SegmentIndex(segment.base), segment.base, None)
    try:
        _, tail = begin(reader, None)
        for _ in batches(reader, tail, stop):
            pass
    except fmt.Damage as damage:
        return tail, damage
    finally:
        reader.close()
    return tail, None


def _check_end(segment: scan.Segment, position: int, damage: fmt.Damage) -> None:
    """See that nothing durable is behind the last whole batch of a copy, as its recovery would.

    :raises JournalCorrupt: there is, and copying while it was written does not explain it
    """
    reader = scan.SegmentReader(segment.path, segment.base)
    try:
        durable = durable_beyond(reader, position, segment.end)
        torn = written_while_copied(reader, position, next_whole(reader, position, segment.end))
    finally:
        reader.close()
    if position < durable and not torn:
        raise damaged(segment.path, position, segment.base, damage) from damage
