"""Reading segments: batches that were checked, one after the other.

Knows no Twisted and no server: recovery, the running journal, the offline tools and Spark all read through it.

    in: a directory, a position      out: (BatchHeader, body)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

import attrs
from crc32c import crc32c

from fyrehose.journal import format as fmt
from fyrehose.journal.files import Files

SUFFIX = ".segment"
INDEX_SUFFIX = ".index"
MARK_NAME = "MARK"

_MARK = Struct("<QI")  # durable mark, CRC32C of it
#: What is read ahead, in bytes: a large piece costs hardly more than a small one.
AHEAD = 256 << 10
#: More than this a reader does not keep for its next call, in bytes: many of them are open at once.
KEPT = 4 << 20
_NAME = re.compile(r"[0-9a-f]{16}\.segment")


@attrs.frozen(slots=True)
class Segment:
    """A segment file.

    :ivar base: the position of its first byte
    :ivar size: its bytes, allocated ones included
    """

    path: Path
    base: int
    size: int

    @property
    def end(self) -> int:
        return self.base + self.size


def path_of(directory: Path, base: int) -> Path:
    """Where the segment that begins at ``base`` is."""
    return directory / f"{base:016x}{SUFFIX}"


def index_path_of(directory: Path, base: int) -> Path:
    """Where the index of the segment that begins at ``base`` is."""
    return directory / f"{base:016x}{INDEX_SUFFIX}"


def segments(directory: Path) -> list[Segment]:
    """The segments of a journal, in the order of their positions."""
    found = []
    for path in directory.glob("*" + SUFFIX):
        if not _NAME.fullmatch(path.name):
            continue
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            continue  # retention was faster than we are
        found.append(Segment(path, int(path.stem, 16), size))
    return sorted(found, key=lambda segment: segment.base)


def read_mark(directory: Path) -> int:
    """The durable mark as last noted; never more than what is durable, 0 if it is not known."""
    try:
        data = (directory / MARK_NAME).read_bytes()
    except FileNotFoundError:
        return 0
    if len(data) < _MARK.size:
        return 0
    mark, crc = _MARK.unpack_from(data)
    return int(mark) if crc32c(data[:8]) == crc else 0


def pack_mark(mark: int) -> bytes:
    """What the file MARK holds."""
    data = mark.to_bytes(8, "little")
    return _MARK.pack(mark, crc32c(data))


@attrs.define(eq=False)
class SegmentReader:
    """An open segment; it goes on reading a file that retention has deleted.

    :ivar limit: nothing from this position on is read ahead, because it may still be written
    :ivar ahead: how much is, in bytes
    """

    path: Path
    base: int
    files: Files = attrs.field(factory=Files)
    limit: int = 1 << 63
    ahead: int = AHEAD
    _fd: int = attrs.field(init=False)
    _ahead: tuple[int, memoryview] = attrs.field(default=(0, memoryview(b"")), init=False)

    def __attrs_post_init__(self) -> None:
        self._fd = self.files.open(self.path, os.O_RDONLY)

    def close(self) -> None:
        self.files.close(self._fd)

    def header(self) -> fmt.SegmentHeader:
        """:raises Damage: it is not the header of this segment"""
        header = fmt.SegmentHeader.unpack(self.files.read(self._fd, fmt.SEGMENT_HEADER.size, 0))
        if header.base != self.base:
            raise fmt.Damage(f"the file holds the segment that begins at position {header.base}")
        return header

    def batch(self, position: int) -> tuple[fmt.BatchHeader, memoryview]:
        """The batch at ``position``, checked.

        :raises Damage: there is none, or it is damaged
        """
        size = fmt.BATCH_HEADER.size
        header = fmt.BatchHeader.unpack(self.read(position, size), position)
        body = self.read(position + size, header.length)
        header.check(body)
        return header, body

    def batches(self, position: int, stop: int) -> Iterator[tuple[fmt.BatchHeader, memoryview]]:
        """Every batch from ``position`` up to ``stop``, checked, each continuing from the one before.

        :raises Damage: one is not as it was written; it begins where the last one ended
        """
        chain: int | None = None
        while position < stop:
            header, body = self.batch(position)
            if chain is not None and header.chain != chain:
                raise fmt.Damage("the batch does not continue from the one before")
            yield header, body
            chain = None if header.mended else header.checksum
            position = header.end

    def read(self, position: int, size: int) -> memoryview:
        """Bytes of the segment, fewer only at its end."""
        at, data = self._ahead
        if not at <= position <= position + size <= at + len(data):
            at = position
            # Of a large batch the header of the next comes along, or it would bring the same bytes a second time.
            ahead = max(self.ahead, size + fmt.BATCH_HEADER.size)
            wanted = max(size, min(ahead, self.limit - position))
            data = memoryview(self.files.read(self._fd, wanted, position - self.base))
            self._ahead = (at, data) if len(data) <= KEPT else (0, memoryview(b""))
        begin = position - at
        return data[begin : begin + size]
