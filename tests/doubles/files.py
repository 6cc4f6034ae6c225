"""File operations that fail when a test says so."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import attrs

from fyrehose.journal.files import SteppedFiles
from fyrehose.records import Buffer


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
        return super().free(directory) if self.room is None else self.room
