"""File operations that fail when a test says so, or that a test counts."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import attrs

from fyrehose.journal.files import Files, SteppedFiles
from fyrehose.records import Buffer


def flip(path: Path, at: int) -> None:
    """Change a bit of the byte at offset *at* of a file; a negative offset counts from its end."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@attrs.define(slots=False)
class FaultyFiles(SteppedFiles):
    """Files on which the ``nth`` call of ``name`` (from 1) and the ``times - 1`` calls after it fail with ``error``.

    :ivar short: how many bytes a failing write still writes
    :ivar room: the value that :meth:`free` returns, in bytes; None for the real one
    """

    name: str = ""
    nth: int = 0
    error: int = errno.EIO
    times: int = 1
    short: int = 0
    room: int | None = None
    calls: Counter[str] = attrs.field(factory=Counter)
    log: list[str] = attrs.field(factory=list)

    def _count(self, name: str) -> bool:
        self.calls[name] += 1
        self.log.append(name)
        return name == self.name and self.nth <= self.calls[name] < self.nth + self.times

    def _fail(self, name: str) -> None:
        if self._count(name):
            raise OSError(self.error, os.strerror(self.error))

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_RDWR or flags & os.O_WRONLY:
            self._fail("open")
        return super().open(path, flags)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        if self.name == "read":  # otherwise reads are not recorded
            self._fail("read")
        return super().read(fd, size, offset)

    def write(self, fd: int, data: Buffer, offset: int) -> None:
        if self._count("write"):
            super().write(fd, data[: self.short], offset)
            raise OSError(self.error, os.strerror(self.error))
        super().write(fd, data, offset)

    def sync(self, fd: int) -> None:
        self._fail("sync")
        super().sync(fd)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        self._fail("allocate")
        super().allocate(fd, offset, size)

    def truncate(self, fd: int, size: int) -> None:
        self._fail("truncate")
        super().truncate(fd, size)

    def rename(self, old: Path, new: Path) -> None:
        self._fail("rename")
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._fail("unlink")
        super().unlink(path)

    def sync_directory(self, directory: Path) -> None:
        self._fail("sync_directory")
        super().sync_directory(directory)

    def free(self, directory: Path) -> int:
        if self.name == "free":  # otherwise looks at the free space are not recorded
            self._fail("free")
        return super().free(directory) if self.room is None else self.room


class CountedFiles(Files):
    """Files that record what is opened and read.

    :ivar opened_names: the names of the files that were opened, in order
    :ivar reads: name of the file, offset and size of each read, in order
    """

    def __init__(self) -> None:
        self.opened_names: list[str] = []
        self.reads: list[tuple[str, int, int]] = []
        self._names: dict[int, str] = {}

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        self._names[fd] = path.name
        self.opened_names.append(path.name)
        return fd

    def read(self, fd: int, size: int, offset: int) -> bytes:
        self.reads.append((self._names[fd], offset, size))
        return super().read(fd, size, offset)

    def opened_of(self, suffix: str) -> list[str]:
        """Return the names with *suffix* of the files that were opened, in order."""
        return [name for name in self.opened_names if name.endswith(suffix)]

    def reads_of(self, suffix: str) -> list[tuple[str, int]]:
        """Return the name and the offset of each read of a file whose name has *suffix*, in order."""
        return [(name, offset) for name, offset, _ in self.reads if name.endswith(suffix)]

    def forget(self) -> None:
        """Forget what was opened and read so far."""
        self.opened_names.clear()
        self.reads.clear()
