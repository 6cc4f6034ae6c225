"""Read a journal, written from docs/journal-format.md alone: this shares no code with the package.

The programs that kill Spark compare a lake with what this reader finds.  If the package's own readers missed a record,
the lake would miss it, too, and they would agree.

    records(directory) -> the records up to the durable mark; raises Wrong if a file does not follow the page
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import unpack_from
from typing import NamedTuple

from crc32c import crc32c

HEADER = 64
RECORDS = 0
#: How often the mark is read again, because a server may be writing it.
TRIES = 20
#: The optional parts that are columns: their bits, and the bytes of each record (producers' numbers, ids, times).
COLUMNS = ((16, 8), (32, 16), (64, 8))


class Wrong(Exception):
    """A file does not follow the page about the format."""


class Record(NamedTuple):
    """A record of the journal."""

    stream: str
    seq: int
    payload: bytes


def records(journal: Path) -> Iterator[Record]:
    """Yield every durable record, in the order of the log.

    :raises Wrong: a segment is missing, or its bytes are damaged
    """
    mark = _mark(journal / "MARK")
    bases = sorted(int(path.stem, 16) for path in journal.glob("*.segment") if int(path.stem, 16) < mark)
    for base, end in zip(bases, [*bases[1:], mark], strict=True):
        segment = (journal / f"{base:016x}.segment").read_bytes()[: end - base]
        if len(segment) != end - base:
            raise Wrong(f"the segment at {base} ends before {end}")
        yield from _of_segment(segment, base)


def _mark(path: Path) -> int:
    for _ in range(TRIES):
        data = path.read_bytes()
        mark, checksum = unpack_from("<QI", data)
        if crc32c(data[:8]) == checksum:
            return int(mark)
    raise Wrong("the checksum of MARK is wrong")


def _of_segment(segment: bytes, base: int) -> Iterator[Record]:
    magic, position, chain, checksum = (
        segment[:8],
        *unpack_from("<Q", segment, 16),
        *unpack_from("<I", segment, 32),
        *unpack_from("<I", segment, 60),
    )
    if magic != b"FYREHOSE" or position != base or crc32c(segment[:60]) != checksum:
        raise Wrong(f"the header of the segment at {base} is wrong")
    at, any_chain = HEADER, False
    while at < len(segment):
        header = segment[at : at + HEADER]
        length, _, count, before, position = unpack_from("<IIIIQ", header, 8)
        checksum, of_header = unpack_from("<II", header, 56)
        body = segment[at + HEADER : at + HEADER + length]
        if header[:3] != b"FYB" or crc32c(header[:60]) != of_header or position != base + at:
            raise Wrong(f"the header of the batch at {base + at} is wrong")
        if (before != chain and not any_chain) or len(body) != length or crc32c(body, before) != checksum:
            raise Wrong(f"the checksum of the batch at {base + at} is wrong")
        if header[4] == RECORDS:
            found = list(_of_body(body))
            if len(found) != count:
                raise Wrong(f"the batch at {base + at} has {len(found)} records, not {count}")
            yield from found
        chain, any_chain = checksum, header[5] == 1
        at += HEADER + length


def _of_body(body: bytes) -> Iterator[Record]:
    at = 0
    while at < len(body):
        length, count, first = unpack_from("<IIQ", body, at)
        (parts,) = unpack_from("<H", body, at + 28)
        names = *unpack_from("<HHH", body, at + 30), body[at + 36], body[at + 37]
        strings = at + 40
        stream = body[strings : strings + names[3]].decode()
        lengths = _aligned(strings + sum(names)) + sum(count * size for bit, size in COLUMNS if parts & bit)
        payload = _aligned(lengths + 4 * count)
        for number, size in enumerate(unpack_from(f"<{count}I", body, lengths)):
            yield Record(stream, first + number, body[payload : payload + size])
            payload += size
        at += length


def _aligned(offset: int) -> int:
    """Return the next multiple of 8; a body begins at such a position, so offsets within it can be aligned."""
    return offset + -offset % 8
