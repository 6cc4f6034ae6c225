"""What the journal asks of the operating system, in one place, so that a test can say no to any of it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from fyrehose.errors import JournalError, JournalLocked
from fyrehose.records import Buffer

#: What is copied at once, in bytes.
PIECE = 4 << 20
#: No room, or no right to write: reading can go on, and writing when that has changed.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
#: FS_IOC_GETVERSION of Linux: ext4, XFS and btrfs give a file a random number besides its inode's.
_GET_GENERATION = 0x80087601


class Files:
    """The system calls.  Every one raises OSError and nothing else."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o640)

    def close(self, fd: int) -> None:
        os.close(fd)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """``size`` bytes from ``offset``, fewer only at the end of the file."""
        data = os.pread(fd, size, offset)
        while len(data) < size and (more := os.pread(fd, size - len(data), offset + len(data))):
            data += more
        return data

    def write(self, fd: int, data: Buffer, offset: int) -> None:
        """All of ``data``; after an error some of it may be there."""
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, offset)
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            view, offset = view[written:], offset + written

    def sync(self, fd: int) -> None:
        """On the disk: the data, and as much about the file as is needed to read it."""
        os.fdatasync(fd)

    def is_linked(self, fd: int) -> bool:
        """Return whether the open file still has a name: a deleted one goes with its last descriptor."""
        return os.fstat(fd).st_nlink > 0

    def identity(self, fd: int) -> tuple[int, int]:
        """Return the file's inode number and its generation, 0 where the file system has none: no copy has the same."""
        generation = 0
        try:
            generation = int.from_bytes(fcntl.ioctl(fd, _GET_GENERATION, bytes(8))[:4], "little")
        except OSError:
            pass  # tmpfs and others; their inode numbers are hardly ever used again
        return os.fstat(fd).st_ino, generation

    def random(self, size: int) -> bytes:
        """Return *size* bytes that nobody else has."""
        return os.urandom(size)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        """Room for what will be written, if the file system can promise it."""
        try:
            os.posix_fallocate(fd, offset, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_directory(self, directory: Path) -> None:
        """What was made, renamed or removed in it stays so."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free(self, directory: Path) -> int:
        """Bytes that we may still write; 0 where nothing may be written."""
        stat = os.statvfs(directory)
        return 0 if stat.f_flag & os.ST_RDONLY else stat.f_bavail * stat.f_frsize

    def pieces(self, fd: int, start: int, stop: int) -> Iterator[bytes]:
        """What lies between the offsets ``start`` and ``stop``, in pieces that end where the file does."""
        while start < stop and (piece := self.read(fd, min(PIECE, stop - start), start)):
            yield piece
            start += len(piece)

    def store(self, path: Path, data: bytes | Iterable[bytes]) -> None:
        """``path`` holds exactly ``data``, or its pieces, from now on; or what it held before."""
        temporary = path.with_name(path.name + ".new")
        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            at = 0
            for piece in (data,) if isinstance(data, bytes) else data:
                self.write(fd, piece, at)
                at += len(piece)
            self.sync(fd)
        finally:
            self.close(fd)
        self.rename(temporary, path)
        self.sync_directory(path.parent)


def lock(directory: Path) -> int:
    """Make the directory if need be, and lock it for this process; the lock lasts as long as the descriptor is open.

    :raises JournalLocked: another process has it
    :raises JournalError: the directory cannot be made or written
    :raises OSError: not even a pid can be written there
    """
    try:
        _make(directory)
        fd = os.open(directory / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise JournalError(
            f"the journal's directory {directory} cannot be used: {error.strerror}; check its owner and its file system"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        raise JournalLocked(
            f"the journal {directory} is in use by another process{f' (pid {holder})' if holder else ''}; "
            "stop that one first, or give this one a --data-dir of its own"
        ) from error
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        os.close(fd)
        raise
    return fd


def _make(directory: Path) -> None:
    """Make the directory and its missing parents, each durably: else a power cut takes the whole journal with it."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        Files().sync_directory(path.parent)


def owns_lock(directory: Path, held: int) -> bool:
    """Whether the lock in ``directory`` is still the one that :func:`lock` gave us: else what is written is not kept
    there, or another process writes, too.

    :raises OSError: that cannot be told
    """
    ours = os.fstat(held)
    try:
        there = (directory / "LOCK").stat()
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
