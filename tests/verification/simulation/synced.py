"""Simulate a disk that knows at each moment which records would survive a power cut.

    SyncedFiles.ends()                        -> {stream: the last number that is synced}
    SyncedFiles.is_lost(stream, first, last)  -> whether the log says that these numbers are missing

After each sync of a segment its newly synced batches are read, by code that shares only the headers' format with the
journal.  Only a chain of segments counts: the name of each is synced, and it begins where the one before it ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import attrs
from crc32c import crc32c
from world import Violation

from fyrehose.journal import format as fmt
from fyrehose.journal.files import Files
from fyrehose.journal.scan import SUFFIX
from tests.doubles.disk import Kept, RecordingFiles, Synced

Read = Callable[[int, int], bytes]


@attrs.define(eq=False)
class Seen:
    """The synced part of a segment.

    :ivar end: the position behind the last batch
    :ivar ends: the last number of each stream in the segment
    :ivar gaps: (stream, first, last) of numbers that the segment says are missing; "" stands for every other stream
    """

    base: int = -1
    end: int = 0
    ends: dict[str, int] = attrs.field(factory=dict)
    gaps: list[tuple[str, int, int]] = attrs.field(factory=list)

    def go_on(self, read: Read) -> bool:
        """Read the batches that were synced since the last call; return whether they contain records.

        :param read: (size, offset) -> bytes of the file
        """
        records = False
        if self.base < 0:
            try:
                self.base = fmt.SegmentHeader.unpack(read(fmt.SEGMENT_HEADER.size, 0)).base
            except fmt.Damage:
                return False
            self.end = self.base + fmt.SEGMENT_HEADER.size
        while (found := batch_at(read, self.base, self.end)) is not None:
            header, body = found
            self._take(header, body)
            records = records or header.kind is fmt.Kind.RECORDS
        return records

    def _take(self, header: fmt.BatchHeader, body: bytes) -> None:
        self.end = header.end
        if header.kind is fmt.Kind.RECORDS:
            for stream, _, last in fmt.extents(body):
                self.ends[stream] = last
            return
        for entry in fmt.entries(body, header.parts):
            if header.kind is fmt.Kind.GAP or (header.kind is fmt.Kind.ENDS and not entry.stream):
                self.gaps.append((entry.stream, entry.first or 1, entry.last))
            if entry.stream and header.kind in (fmt.Kind.GAP, fmt.Kind.ENDS, fmt.Kind.STREAMS):
                self.ends[entry.stream] = max(entry.last, self.ends.get(entry.stream, 0))


def batch_at(read: Read, base: int, position: int) -> tuple[fmt.BatchHeader, bytes] | None:
    """Return the batch at *position* of the segment at *base*; None if there is no complete, valid one."""
    at = position - base
    try:
        header = fmt.BatchHeader.unpack(read(fmt.BATCH_HEADER.size, at), position)
    except fmt.Damage:
        return None
    body = read(header.length, at + fmt.BATCH_HEADER.size)
    if len(body) != header.length or crc32c(body, header.chain) != header.checksum:
        return None
    return header, body


class SyncedFiles(RecordingFiles):
    """The files of one journal.

    :param seconds: returns the time
    :ivar running: whether recovery is over; what recovery syncs is not new
    :param written: receives the time at which the last record of each segment was synced, by the segment's base
    :param on_unlink: called before a segment is deleted, with its synced part and the end of the log
    """

    def __init__(
        self,
        directory: Path,
        kept: Kept,
        seconds: Callable[[], float],
        written: dict[int, float],
        on_unlink: Callable[[Seen, int], None] = lambda seen, end: None,
    ) -> None:
        super().__init__(directory, kept)
        self.seconds, self.written, self.on_unlink = seconds, written, on_unlink
        self.running = False
        self._certain = dict(kept.synced.names)
        self._seen: dict[int, Seen] = {}
        self._ends: dict[str, int] | None = None
        #: The last number of each stream in the segments that retention deleted.
        self._deleted: dict[str, int] = {}
        for name, inode in self._names.items():
            if SUFFIX in name:
                content = kept.synced.contents.get(inode, bytearray())
                seen = self._seen[inode] = Seen()
                seen.go_on(lambda size, at, content=content: bytes(content[at : at + size]))

    def ends(self) -> dict[str, int]:
        """Return the last number of each stream that survives any power cut."""
        if self._ends is None:
            # A segment may name only the streams that changed since a snapshot, so the others come from earlier
            # segments.
            self._ends = dict(self._deleted)
            for seen in self._chain():
                self._ends.update(seen.ends)
        return self._ends

    def is_lost(self, stream: str, first: int, last: int) -> bool:
        """Return whether the log says that all numbers from *first* to *last* are missing."""
        gaps = [gap[1:] for seen in self._chain() for gap in seen.gaps if gap[0] in (stream, "")]
        for begin, end in sorted(gaps):
            if begin <= first <= end:
                first = end + 1
        return first > last

    def _chain(self) -> list[Seen]:
        found = []
        for name, inode in self._names.items():
            if name.endswith(SUFFIX):
                found.append((int(name.removesuffix(SUFFIX), 16), name, inode))
        chain: list[Seen] = []
        for base, name, inode in sorted(found):
            seen = self._seen.get(inode)
            if self._certain.get(name) != inode or seen is None or seen.base != base:
                break
            if chain and chain[-1].end != base:
                break
            chain.append(seen)
        return chain

    def sync(self, fd: int) -> None:
        super().sync(fd)
        inode = self._fds[fd]
        seen = self._seen.get(inode)
        if seen is not None and self.log[-1:] == [Synced(inode)]:  # false if a bug has skipped the sync
            self._ends = None
            new = seen.go_on(lambda size, at: Files.read(self, fd, size, at))
            if new and self.running:
                self.written[seen.base] = self.seconds()

    def sync_directory(self, directory: Path) -> None:
        super().sync_directory(directory)
        if self.log[-1:] == [Synced(None)]:
            self._certain = dict(self._names)
            self._ends = None

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        if flags & os.O_CREAT and SUFFIX in path.name:
            self._seen[self._fds[fd]] = Seen()
        return fd

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        inode = self._fds[fd]
        seen = self._seen.get(inode)
        if seen is not None and seen.end > max(seen.base, 0) + size:
            self._seen[inode], self._ends = Seen(), None  # the rest of the file is read when it is synced again

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self._ends = None

    def unlink(self, path: Path) -> None:
        if path.name.endswith(SUFFIX) and path.name in self._names:
            self._check_deletion(path.name)
        super().unlink(path)
        self._ends = None

    def _check_deletion(self, name: str) -> None:
        chain, seen = self._chain(), self._seen.get(self._names[name])
        if not chain or seen is not chain[0]:
            raise Violation(f"{name} is deleted before an older segment")
        self._deleted.update(seen.ends)
        self.on_unlink(seen, chain[-1].end)

    def close_all(self) -> None:
        """Close the files that a killed process had open."""
        for fd in list(self._fds):
            self.close(fd)
