"""Measure a disk: its file system, and the least time of a durable message: write and fdatasync it in one file."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

#: Approximate overhead of a record in the journal, in bytes: a batch header and a run header.
AROUND = 200
#: File systems that keep nothing when the machine restarts.
VOLATILE = ("tmpfs", "ramfs", "devtmpfs")


@contextmanager
def allocated(path: Path, size: int) -> Iterator[int]:
    """Create the file at *path* with all of its blocks, because a sync that also allocates blocks takes longer.

    :return: its descriptor; the file is deleted at the end
    :raises FileExistsError: the path exists, as a file or a link that another user may have made
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, bytes(size))
        os.fsync(descriptor)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)
        path.unlink()


def write_and_sync(descriptor: int, record: bytes) -> tuple[float, float]:
    """Write *record* and sync it; return when the write began and the sync ended, on the monotonic clock."""
    began = time.monotonic()
    os.write(descriptor, record)
    os.fdatasync(descriptor)
    return began, time.monotonic()


def sync_times(path: Path, count: int) -> list[float]:
    """Return how long each of *count* messages of 128 bytes takes, in seconds, the shortest first.

    :param path: where a file for the measurement is created and deleted
    :raises OSError: it cannot be written
    """
    record = os.urandom(128 + AROUND)
    with allocated(path, len(record) * count) as descriptor:
        times = [write_and_sync(descriptor, record) for _ in range(count)]
    return sorted(ended - began for began, ended in times)


@attrs.frozen
class Mount:
    """A mounted file system: its type, and its options."""

    kind: str
    options: tuple[str, ...]


def mount_of(path: Path, table: Path = Path("/proc/self/mountinfo")) -> Mount:
    """Return the mount that *path* is on."""
    best, found = -1, Mount("unknown", ())
    for line in table.read_text(encoding="utf-8", errors="replace").splitlines():
        own, _, rest = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), own.split()[4])
        if path.is_relative_to(point) and len(point) >= best:  # the last mount on a point hides earlier ones
            kind, _, options = rest.split(" ", 2)
            best = len(point)
            found = Mount(kind, tuple({*own.split()[5].split(","), *options.split(",")}))
    return found
