"""Read and check the batches of a source, and find the end of a log: the reading half of a backup.

    in: a segment      out: the bytes of its checked batches, and a description of their end (a *tail*)

This module does not import Twisted.
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
class CheckedTail:
    """The end of the part of a log that was checked.

    :ivar index: of the last segment
    :ivar position: where the next batch goes
    :ivar chain: checksum from which the next batch or segment continues; None: unknown
    :ivar at: the position of the last batch
    :ivar last: the header of that batch, as it is in the file; empty if the segment has no batch yet
    :ivar identity: of the journal; zeros: unknown
    """

    index: SegmentIndex
    position: int
    chain: int | None
    at: int = 0
    last: bytes = b""
    identity: bytes = bytes(16)


def begin(reader: scan.SegmentReader, chain: int | None) -> tuple[bytes, CheckedTail]:
    """Read the header of a segment.

    :param chain: checksum from which it must continue; None: unknown
    :return: the header as it is in the file, and the tail behind it
    :raises Damage: it is damaged, or continues from another checksum
    """
    data = _read(reader, reader.base, fmt.SEGMENT_HEADER.size)
    header = fmt.SegmentHeader.unpack(data)
    if header.base != reader.base:
        raise fmt.Damage(f"the file contains the segment that begins at position {header.base}")
    continued = None if header.created == 0 else header.chain  # --quarantine has replaced a damaged header
    if None not in (chain, continued) and continued != chain:
        raise fmt.Damage("the segment does not continue from the previous one")
    tail = CheckedTail(SegmentIndex(reader.base), reader.base + len(data), continued, identity=header.identity)
    return bytes(data), tail


def batches(reader: scan.SegmentReader, tail: CheckedTail, stop: int) -> Iterator[tuple[fmt.BatchHeader, list[Buffer]]]:
    """Read and check the batches from *tail* up to the position *stop*; *tail* is moved behind each one.

    :return: the header of each batch, and its bytes
    :raises Damage: the next batch is damaged, or cannot be read; *tail* is in front of it
    """
    size = fmt.BATCH_HEADER.size
    while tail.position < stop:
        head = bytes(_read(reader, tail.position, size))
        header = fmt.BatchHeader.unpack(head, tail.position)
        body = _read(reader, tail.position, size + header.length)[size:]
        header.check(body)
        if tail.chain is not None and header.chain != tail.chain:
            raise fmt.Damage("the batch does not continue from the previous one")
        if header.end > stop:
            raise fmt.Damage(f"the batch reaches beyond position {stop}, where the segment or its durable part ends")
        tail.index.add(header, body)
        tail.at, tail.last, tail.position = header.position, head, header.end
        tail.chain = None if header.mended else header.checksum
        yield header, [head, body]


def _read(reader: scan.SegmentReader, position: int, size: int) -> memoryview:
    try:
        return reader.read(position, size)
    except OSError as error:
        raise fmt.Damage(f"cannot be read: {error.strerror}") from error


def tail_of(directory: Path) -> CheckedTail | None:
    """Find the end of the log in *directory*, which no other process writes; None if there is no log.

    :raises JournalCorrupt: the log ends before the durable mark, or the last segment is damaged
    """
    noted = believed_mark(directory)
    found = [segment for segment in scan.segments(directory) if not noted.durable or segment.base < noted.durable]
    if not found and noted.durable:
        raise JournalCorrupt(
            f"{directory} has no segments below position {noted.durable}, the durable mark in MARK; put its files "
            "back, or use an empty directory"
        )
    for segment in reversed(found):
        tail, damage = _whole(segment, noted.durable or segment.end)
        if damage is not None and noted.durable:
            raise JournalCorrupt(
                f"{segment.path} is damaged at byte {tail.position - segment.base} (position {tail.position}): "
                f"{damage}; delete this file and MARK beside it, and run the backup again"
            )
        if tail.last:
            return tail
    return None


def reach(source: Place) -> View:
    """Return the part of *source* that may be copied: the durable part or, of a copied journal, all intact batches.

    MARK in a directory that was copied file by file is ignored, and no process writes there.  So the log ends at the
    last intact batch, as it does when a server starts there.

    :raises JournalUnreachable: the source cannot be reached at present
    :raises JournalCorrupt: the source is a copy, and its end is damaged
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


def _whole(segment: scan.Segment, stop: int) -> tuple[CheckedTail, fmt.Damage | None]:
    """Read a segment up to *stop* or the first damaged batch; return the tail, and the damage or None."""
    tail = CheckedTail(SegmentIndex(segment.base), segment.base, None)
    with scan.SegmentReader(segment.path, segment.base) as reader:
        try:
            _, tail = begin(reader, None)
            for _ in batches(reader, tail, stop):
                pass
        except fmt.Damage as damage:
            return tail, damage
    return tail, None


def _check_end(segment: scan.Segment, position: int, damage: fmt.Damage) -> None:
    """Check, as recovery does, that nothing durable follows the last intact batch of a copied segment.

    :raises JournalCorrupt: durable batches follow, and a copy during a write does not explain the damage
    """
    with scan.SegmentReader(segment.path, segment.base) as reader:
        durable = durable_beyond(reader, position, segment.end)
        torn = written_while_copied(reader, position, next_whole(reader, position, segment.end))
    if position < durable and not torn:
        raise damaged(segment.path, position, segment.base, damage) from damage
