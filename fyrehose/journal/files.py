"""The journal's system calls, in one place, so that a test can make any of them fail."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fyrehose import kernels
from fyrehose.errors import JournalError, JournalFull, JournalLocked, JournalUnusable
from fyrehose.kernels.pure.commit import Calls, stepwise

if TYPE_CHECKING or not kernels.NATIVE:
    from fyrehose.kernels.pure.commit import commit, monotonic_clock, wall_clock
else:
    try:
        from fyrehose.kernels.native.commit import commit, monotonic_clock, wall_clock
    except ImportError:
        from fyrehose.kernels.pure.commit import commit, monotonic_clock, wall_clock

__all__ = ["Files", "SteppedFiles", "lock", "monotonic_clock", "owns_lock", "wall_clock"]

#: How many bytes are copied at once.
PIECE = 4 << 20
#: Error numbers of a full or read-only disk: the journal can still be read, and perhaps be written again later.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
#: FS_IOC_GETVERSION of Linux: on ext4, XFS and btrfs a file has a random generation number besides its inode number.
_GET_GENERATION = 0x80087601


class Files(Calls):
    """The system calls of the journal; each raises OSError only.

    :cvar piece: how many bytes :meth:`pieces` reads at once
    """

    piece: ClassVar[int] = PIECE

    def open(self, path: Path, flags: int) -> int:
        """Open a regular file, without following a link and without waiting for another process.

        The error for a link, a device, a pipe or a directory says so; *filename* of every error is the path.
        """
        try:
            fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o640)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):
                raise
            what = "it is a symbolic link" if error.errno == errno.ELOOP else "it is not a regular file"
            raise OSError(error.errno, what, str(path)) from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return fd

    def close(self, fd: int) -> None:
        os.close(fd)

    @contextmanager
    def opened(self, path: Path, flags: int) -> Iterator[int]:
        """Open *path* for the body of a ``with`` statement, and close it afterwards."""
        fd = self.open(path, flags)
        try:
            yield fd
        finally:
            self.close(fd)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Read *size* bytes at *offset*; return fewer only at the end of the file."""
        data = os.pread(fd, size, offset)
        while len(data) < size and (more := os.pread(fd, size - len(data), offset + len(data))):
            data += more
        return data

    def content(self, path: Path, most: int) -> bytes:
        """Return the content of the file at *path*, of which at most *most* bytes are expected."""
        with self.opened(path, os.O_RDONLY) as fd:
            data = self.read(fd, min(os.fstat(fd).st_size, most + 1), 0)
        if len(data) > most:
            raise OSError(errno.EINVAL, f"it is larger than {most} bytes", str(path))
        return data

    def extents(self, fd: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield where data begins and ends between two offsets; the rest are zeros that take no space on disk."""
        try:
            while start < stop and (start := os.lseek(fd, start, os.SEEK_DATA)) < stop:
                end = min(os.lseek(fd, start, os.SEEK_HOLE), stop)
                yield start, end
                start = end
        except OSError as error:
            if error.errno != errno.ENXIO:  # else there is no more data
                yield start, stop  # the file system does not tell

    def data_end(self, fd: int) -> int:
        """Return the offset behind the last data of the file."""
        return max((end for _, end in self.extents(fd, 0, os.fstat(fd).st_size)), default=0)

    #: Writes a small batch to a segment, syncs it, and writes MARK, in one call of the compiled function ``commit``.
    commit: Callable[..., tuple[int, int, int, float, int, int]] = staticmethod(commit)

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Refuse subclasses that override :meth:`write`, :meth:`sync` or :meth:`is_linked`, unused by commits."""
        super().__init_subclass__(**arguments)
        steps = (cls.write, cls.sync, cls.is_linked) != (Files.write, Files.sync, Files.is_linked)
        if steps and cls.commit is Files.commit:
            raise TypeError(
                f"{cls.__name__} overrides write, sync or is_linked, which no commit calls; derive it from SteppedFiles"
            )

    def identity(self, fd: int) -> tuple[int, int]:
        """Return the inode number and the generation number of the file, which differ in a copy of the file.

        The generation is 0 on file systems without generations.
        """
        generation = 0
        try:
            generation = int.from_bytes(fcntl.ioctl(fd, _GET_GENERATION, bytes(8))[:4], "little")
        except OSError:
            pass  # tmpfs and others have no generation, and hardly ever reuse inode numbers
        return os.fstat(fd).st_ino, generation

    def random(self, size: int) -> bytes:
        """Return *size* random bytes."""
        return os.urandom(size)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        """Reserve disk space for a range of the file, if the file system supports it."""
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
        """Make created, renamed and deleted names in *directory* durable."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free(self, directory: Path) -> int:
        """Return how many free bytes of the disk this process may use; 0 if the disk is mounted read-only."""
        disk = os.statvfs(directory)
        return 0 if disk.f_flag & os.ST_RDONLY else disk.f_bavail * disk.f_frsize

    def pieces(self, fd: int, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes between the offsets *start* and *stop* in pieces, up to the end of the file."""
        while start < stop and (piece := self.read(fd, min(self.piece, stop - start), start)):
            yield piece
            start += len(piece)

    def store(self, path: Path, data: bytes | Iterable[bytes]) -> None:
        """Replace the content of *path* by *data* (or its pieces), atomically and durably."""
        temporary = path.with_name(path.name + ".new")
        with self.opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
            at = 0
            for piece in (data,) if isinstance(data, bytes) else data:
                self.write(fd, piece, at)
                at += len(piece)
            self.sync(fd)
        self.rename(temporary, path)
        self.sync_directory(path.parent)


class SteppedFiles(Files):
    """Files that make each system call of a commit in a separate method, so that tests can count it or make it fail."""

    def commit(self, *batch: Any) -> tuple[int, int, int, float, int, int]:
        return stepwise(self, *batch)


def lock(directory: Path, files: Files | None = None) -> int:
    """Create *directory* if it is missing, and lock it for this process.

    :param files: the system calls that change it
    :return: a descriptor; the lock lasts until it is closed
    :raises JournalLocked: another process has locked it
    :raises JournalUnusable: this user may not create the directory, or not write to it
    :raises JournalFull: the disk has no space for the process id, which the lock file contains
    :raises JournalError: the file system failed
    """
    files = files or Files()
    try:
        _make(directory, files)
        fd = files.open(directory / "LOCK", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise _unusable(directory, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        raise JournalLocked(
            f"the journal {directory} is in use by another process{f' (pid {holder})' if holder else ''}: a server, or "
            "a command such as a backup into it; stop that process first, or use another directory"
        ) from error
    try:
        files.truncate(fd, 0)
        files.write(fd, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        os.close(fd)
        kind = JournalFull if error.errno in NO_ROOM else JournalError
        raise kind(
            f"the journal {directory} cannot be written: {error.strerror}; free some space, or use another directory"
        ) from error
    return fd


def _unusable(directory: Path, error: OSError) -> JournalError:
    """Return an error that says why *directory* cannot be used, and what to do."""
    found = next(path for path in (directory, *directory.parents) if path.exists())
    what = f"cannot use the journal's directory {directory}"
    if not found.is_dir():
        return JournalUnusable(f"{what}: {found} is a file, not a directory; choose another directory")
    if error.errno in (errno.EACCES, errno.EPERM):
        try:
            user = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:  # Containers run as users without a name.
            user = str(os.geteuid())
        return JournalUnusable(
            f"{what}: the user {user} may not write there; change the owner of {found}, or choose another directory"
        )
    if error.errno == errno.EROFS:
        return JournalUnusable(
            f"{what}: {found} is on a read-only file system; mount it for writing, or choose another directory"
        )
    if error.filename and Path(error.filename).name == "LOCK":
        return JournalUnusable(f"{what}: {error.filename} cannot be opened: {error.strerror}; delete it")
    return JournalError(f"{what}: {error.strerror}; check the file system of {found}")


def _make(directory: Path, files: Files) -> None:
    """Create *directory* and its missing parents durably, so that a power cut cannot remove the whole journal."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        files.sync_directory(path.parent)


def owns_lock(directory: Path, fd: int) -> bool:
    """Return whether the lock file in *directory* is still the one that :func:`lock` returned.

    If not, the directory was emptied or replaced, so files that are written there may be lost, and another process may
    write there at the same time.

    :param fd: the descriptor that :func:`lock` returned
    :raises OSError: the lock file cannot be examined
    """
    ours = os.fstat(fd)
    try:
        current = (directory / "LOCK").stat()
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (current.st_dev, current.st_ino)
