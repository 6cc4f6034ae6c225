"""Use the free memory of a new virtual machine once, so that its pages are there before a measurement."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

#: The files with the limits of a container, as it sees them itself.
CGROUP = Path("/sys/fs/cgroup")
#: Bytes that :func:`touch` allocates at once.
_PIECE = 1 << 28


def free_memory(cgroup: Path = CGROUP) -> int:
    """Return how many bytes a program can allocate without swapping; in a container, its limit may make them fewer.

    :param cgroup: the directory with the limits of this container
    """
    words = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(words["MemAvailable"].split()[0]) << 10
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max": no limit
        limit = int((cgroup / "memory.max").read_text())
        free = min(free, limit - int((cgroup / "memory.current").read_text()))
    return max(0, free)


def touch(size: int) -> int:
    """Allocate *size* bytes of memory, write to all of it, and free it; return the number of bytes.

    A new virtual machine gets each page of its memory when it is first used.  Until then, filling the page cache takes
    several times as long.
    """
    pieces = [np.ones(min(_PIECE, size - at), dtype=np.uint8) for at in range(0, size, _PIECE)]
    return sum(piece.nbytes for piece in pieces)
