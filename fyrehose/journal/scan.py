"""Reading segments: batches that were checked, one after the other.

Knows no Twisted and no server: recovery, the running journal, the offline tools and Spark all read through it.

    in: a directory, a position      out: (BatchHeader, body)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct

import attrs
from crc32c import crc32c

from fyrehose.journal import format as fmt
from fyrehose.journal.files import Files

SUFFIX = ".segment"
INDEX_SUFFIX = ".index"
SNAPSHOT_SUFFIX = ".streams"
MARK_NAME = "MARK"

_MARK = Struct("<QI")  # durable mark, CRC32C of it
_MARK_REST = Struct(
    "<"
    "Q"  # begin: position of the oldest segment that is kept
    "Q"  # inode of this very file ...
    "I"  # ... and its generation, where the file system tells: a copy has others
    "I"  # CRC32C of everything before
)
#: What is read ahead, in bytes: a large piece costs hardly more than a small one.
AHEAD = 256 << 10
#: More than this a reader does not keep for its next call, in bytes: many of them are open at once.
KEPT = 4 << 20
_NAME = re.compile(r"[0-9a-f]{16}\.segment")
_SNAPSHOT_NAME = re.compile(r"[0-9a-f]{16}\.streams")


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


def snapshot_path_of(directory: Path, position: int) -> Path:
    """Return the path of the snapshot of all streams that was made at ``position``."""
    return directory / f"{position:016x}{SNAPSHOT_SUFFIX}"


def snapshots(directory: Path) -> list[int]:
    """Return the positions of a journal's snapshots of all streams, in order."""
    names = (path.name for path in directory.glob("*" + SNAPSHOT_SUFFIX))
    return sorted(int(name[:16], 16) for name in names if _SNAPSHOT_NAME.fullmatch(name))


@attrs.frozen(slots=True)
class Mark:
    """The content of the file MARK.

    :ivar durable: everything below this position is on disk; 0 if that is not known
    :ivar begin: the position of the oldest segment that retention has kept; None if that is not known
    :ivar copied: whether the file is a copy, made at another moment than the segments beside it
    """

    durable: int = 0
    begin: int | None = None
    copied: bool = False


def identity_of(found: Sequence[Segment]) -> bytes:
    """Return the journal's identity as its newest segment that knows it says; zeros if none does.

    :raises Newer: a newer version has written one of them
    """
    for segment in reversed(found):
        reader = SegmentReader(segment.path, segment.base)
        try:
            header = reader.look_at_header()
        finally:
            reader.close()
        if header is not None and header.identity != fmt.UNKNOWN:
            return header.identity
    return fmt.UNKNOWN


def look_at_mark(directory: Path, files: Files) -> Mark:
    """Read MARK; where it is missing or damaged nothing is known."""
    try:
        fd = files.open(directory / MARK_NAME, os.O_RDONLY)
    except FileNotFoundError:
        return Mark()
    try:
        return _mark(files.read(fd, _MARK.size + _MARK_REST.size + 1, 0), files.identity(fd))
    finally:
        files.close(fd)


def _mark(data: bytes, identity: tuple[int, int]) -> Mark:
    """Return what a file MARK says that holds *data* and is the file *identity*."""
    if len(data) not in (_MARK.size, _MARK.size + _MARK_REST.size):
        return Mark()
    durable, crc = _MARK.unpack_from(data)
    if crc32c(data[:8]) != crc:
        return Mark()
    if len(data) == _MARK.size:  # as it was written before it knew where it stands
        return Mark(durable)
    begin, inode, generation, crc = _MARK_REST.unpack_from(data, _MARK.size)
    if crc32c(data[:-4]) != crc:
        return Mark()
    return Mark(durable, begin, copied=(inode, generation) not in ((0, 0), identity))


def read_mark(directory: Path) -> int:
    """The durable mark as last noted; never more than what is durable, 0 if it is not known."""
    return look_at_mark(directory, Files()).durable


def pack_mark(durable: int, begin: int | None = None, identity: tuple[int, int] = (0, 0)) -> bytes:
    """Return the content of the file MARK.

    :param begin: the position of the oldest segment that is kept; None leaves it and *identity* out
    :param identity: of the file that this is written to: see :meth:`Files.identity`
    """
    data = durable.to_bytes(8, "little")
    data = _MARK.pack(durable, crc32c(data))
    if begin is None:
        return data
    data += _MARK_REST.pack(begin, *identity, 0)
    return data[:-4] + crc32c(data[:-4]).to_bytes(4, "little")


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

    def look_at_header(self) -> fmt.SegmentHeader | None:
        """Return the header of this segment, or None if it is damaged.

        :raises Newer: a newer version has written it
        """
        try:
            return self.header()
        except fmt.Newer:
            raise
        except fmt.Damage:
            return None

    def batch_header(self, position: int) -> fmt.BatchHeader:
        """Return the header of the batch at *position*; nothing else is read.

        :raises Damage: there is none, or it is damaged
        """
        data = self.files.read(self._fd, fmt.BATCH_HEADER.size, position - self.base)
        return fmt.BatchHeader.unpack(data, position)

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
