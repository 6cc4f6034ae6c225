"""Read segment files: find them, read MARK, and iterate over checked batches.

Recovery, the running journal, the offline tools and Spark all read with this module, which does not import Twisted.

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

_MARK = Struct("<QI")  # the durable mark and its CRC32C
_MARK_REST = Struct(
    "<"
    "Q"  # begin: position of the oldest segment that is kept
    "Q"  # inode number of this file ...
    "I"  # ... and its generation, if the file system has one; a copy of the file has other values
    "I"  # CRC32C of everything before
)
#: How many bytes are read ahead: a large read costs hardly more than a small one.
AHEAD = 256 << 10
#: A reader keeps at most this many bytes of its last read in memory, because many readers are open at once.
KEPT = 4 << 20
_NAME = re.compile(r"[0-9a-f]{16}\.segment")
_SNAPSHOT_NAME = re.compile(r"[0-9a-f]{16}\.streams")


@attrs.frozen(slots=True)
class Segment:
    """A segment file.

    :ivar base: the position of its first byte
    :ivar size: the size of the file, in bytes; includes space that is allocated ahead
    """

    path: Path
    base: int
    size: int

    @property
    def end(self) -> int:
        return self.base + self.size


def path_of(directory: Path, base: int) -> Path:
    """Return the path of the segment that begins at the position *base*."""
    return directory / f"{base:016x}{SUFFIX}"


def index_path_of(directory: Path, base: int) -> Path:
    """Return the path of the index of the segment that begins at the position *base*."""
    return directory / f"{base:016x}{INDEX_SUFFIX}"


def segments(directory: Path) -> list[Segment]:
    """Return the segments of a journal, in the order of their positions."""
    found = []
    for path in directory.glob("*" + SUFFIX):
        if not _NAME.fullmatch(path.name):
            continue
        try:
            size = path.lstat().st_size
        except FileNotFoundError:
            continue  # retention has just deleted it
        found.append(Segment(path, int(path.stem, 16), size))
    return sorted(found, key=lambda segment: segment.base)


def without_hole(segment: Segment, files: Files) -> Segment:
    """Return *segment* without the hole at the end of its file: zeros that were never written, perhaps many GiB."""
    with files.opened(segment.path, os.O_RDONLY) as fd:
        return attrs.evolve(segment, size=min(segment.size, files.data_end(fd)))


def snapshot_path_of(directory: Path, position: int) -> Path:
    """Return the path of the snapshot of all streams at *position*."""
    return directory / f"{position:016x}{SNAPSHOT_SUFFIX}"


def snapshots(directory: Path) -> list[int]:
    """Return the positions of a journal's snapshots of all streams, in order."""
    names = (path.name for path in directory.glob("*" + SNAPSHOT_SUFFIX))
    return sorted(int(name[:16], 16) for name in names if _SNAPSHOT_NAME.fullmatch(name))


@attrs.frozen(slots=True)
class Mark:
    """The content of the file MARK.

    :ivar durable: everything below this position is on disk; 0: unknown
    :ivar begin: the position of the oldest segment that retention has not deleted; None: unknown
    :ivar copied: whether the file is a copy, made at another moment than the segments beside it
    """

    durable: int = 0
    begin: int | None = None
    copied: bool = False

    @property
    def trusted(self) -> Mark:
        """Return this mark, or an empty mark if the file was copied from another directory."""
        return Mark(copied=True) if self.copied else self


def identity_of(found: Sequence[Segment]) -> bytes:
    """Return the journal's identity from the newest segment that has one; zeros if no segment has an identity.

    :raises Newer: a newer version has written a segment
    """
    for segment in reversed(found):
        with SegmentReader(segment.path, segment.base) as reader:
            header = reader.look_at_header()
        if header is not None and header.identity != fmt.UNKNOWN:
            return header.identity
    return fmt.UNKNOWN


def look_at_mark(directory: Path, files: Files) -> Mark:
    """Read MARK; return an empty :class:`Mark` if it is missing or damaged."""
    try:
        with files.opened(directory / MARK_NAME, os.O_RDONLY) as fd:
            return _mark(files.read(fd, _MARK.size + _MARK_REST.size + 1, 0), files.identity(fd))
    except FileNotFoundError:
        return Mark()


def _mark(data: bytes, identity: tuple[int, int]) -> Mark:
    """Decode MARK.

    :param identity: inode number and generation of the file that was read: see :meth:`Files.identity`
    """
    if len(data) not in (_MARK.size, _MARK.size + _MARK_REST.size):
        return Mark()
    durable, crc = _MARK.unpack_from(data)
    if crc32c(data[:8]) != crc:
        return Mark()
    if len(data) == _MARK.size:  # written by an older version
        return Mark(durable)
    begin, inode, generation, crc = _MARK_REST.unpack_from(data, _MARK.size)
    if crc32c(data[:-4]) != crc:
        return Mark()
    return Mark(durable, begin, copied=(inode, generation) not in ((0, 0), identity))


def read_mark(directory: Path) -> int:
    """Return the durable mark from the file MARK: the log is on disk at least up to this position; 0: unknown."""
    return look_at_mark(directory, Files()).durable


def pack_mark(durable: int, begin: int | None = None, identity: tuple[int, int] = (0, 0)) -> bytes:
    """Return the content of the file MARK.

    :param begin: the position of the oldest segment that is kept; None leaves it and *identity* out
    :param identity: inode number and generation of the file that the content is written to: see :meth:`Files.identity`
    """
    data = durable.to_bytes(8, "little")
    data = _MARK.pack(durable, crc32c(data))
    if begin is None:
        return data
    data += _MARK_REST.pack(begin, *identity, 0)
    return data[:-4] + crc32c(data[:-4]).to_bytes(4, "little")


@attrs.define(eq=False)
class SegmentReader:
    """A reader of a segment file, which can also read after retention has deleted the file.

    :ivar limit: the end of the segment, or of its part that is known; no batch extends beyond this position, and
        nothing behind it is read ahead, because the server may still be writing there
    :ivar ahead: how many bytes are read ahead
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

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.files.close(self._fd)

    def header(self) -> fmt.SegmentHeader:
        """Return the header of the segment.

        :raises Damage: the header is damaged, or of another segment
        :raises Newer: a newer version has written it
        """
        header = fmt.SegmentHeader.unpack(self.files.read(self._fd, fmt.SEGMENT_HEADER.size, 0))
        if header.base != self.base:
            raise fmt.Damage(f"the file contains the segment that begins at position {header.base}")
        return header

    def look_at_header(self) -> fmt.SegmentHeader | None:
        """Return the header of the segment, or None if it is damaged.

        :raises Newer: a newer version has written it
        """
        try:
            return self.header()
        except fmt.Newer:
            raise
        except fmt.Damage:
            return None

    def batch_header(self, position: int) -> fmt.BatchHeader:
        """Read only the header of the batch at *position*, and return it.

        :raises Damage: there is no batch, or its header is damaged
        """
        data = self.files.read(self._fd, fmt.BATCH_HEADER.size, position - self.base)
        return fmt.BatchHeader.unpack(data, position)

    def header_ahead(self, position: int) -> fmt.BatchHeader:
        """Return the header of the batch at *position*; also read the bytes behind the header, for the next call.

        :raises Damage: there is no batch, or its header is damaged
        """
        return fmt.BatchHeader.unpack(self.read(position, fmt.BATCH_HEADER.size), position)

    def batch(self, position: int) -> tuple[fmt.BatchHeader, memoryview]:
        """Read and check the batch at *position*; return its header and its body.

        :raises Damage: there is no batch, or it is damaged, or it extends beyond the end of the segment
        """
        header = self.header_ahead(position)
        if header.end > self.limit:
            raise fmt.Damage(f"the batch ends at position {header.end}, beyond the end of its segment ({self.limit})")
        body = self.read(position + fmt.BATCH_HEADER.size, header.length)
        header.check(body)
        return header, body

    def batches(self, position: int, stop: int) -> Iterator[tuple[fmt.BatchHeader, memoryview]]:
        """Yield the header and the body of every batch from *position* up to *stop*, after checking the chain.

        :raises Damage: a batch is damaged, namely the one that begins where the last yielded batch ends
        """
        chain: int | None = None
        while position < stop:
            header, body = self.batch(position)
            if chain is not None and header.chain != chain:
                raise fmt.Damage("the batch does not continue from the previous one")
            yield header, body
            chain = None if header.mended else header.checksum
            position = header.end

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes between two positions in pieces, each with its position; holes of the file are left out."""
        for begin, end in self.files.extents(self._fd, start - self.base, stop - self.base):
            for piece in self.files.pieces(self._fd, begin, end):
                yield self.base + begin, piece
                begin += len(piece)

    def read(self, position: int, size: int) -> memoryview:
        """Read *size* bytes at *position*; return fewer only at the end of the file."""
        at, data = self._ahead
        if not at <= position <= position + size <= at + len(data):
            at = position
            # Read a large batch together with the header of the next one, so that the next read does not repeat these
            # bytes.
            ahead = max(self.ahead, size + fmt.BATCH_HEADER.size)
            wanted = max(size, min(ahead, self.limit - position))
            data = memoryview(self.files.read(self._fd, wanted, position - self.base))
            self._ahead = (at, data) if len(data) <= KEPT else (0, memoryview(b""))
        begin = position - at
        return data[begin : begin + size]
