"""Tell the C library how much freed memory this process keeps; do nothing if the library is not glibc.

glibc asks the system for a large buffer of its own mapping, which it returns when the buffer is freed, and takes the
others from a heap, of which only what is free at its end can be returned.  By default the size from which on a buffer
has its own mapping grows to 32 MiB with the buffers that are freed.
"""

from __future__ import annotations

import ctypes
from functools import cache

#: The defaults of glibc, in bytes and mappings.
TRIM_THRESHOLD, MMAP_MAX = 128 << 10, 65536
#: Numbers of parameters of ``mallopt``.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4


def keep(free: int, mappings: int = MMAP_MAX) -> None:
    """Keep up to *free* bytes at the end of the heap, and let at most *mappings* buffers have mappings of their own."""
    if (libc := glibc()) is not None:
        libc.mallopt(_TRIM_THRESHOLD, free)
        libc.mallopt(_MMAP_MAX, mappings)


def map_from(size: int) -> None:
    """Give each buffer of *size* bytes or more a mapping of its own, from now on and always."""
    if (libc := glibc()) is not None:
        libc.mallopt(_MMAP_THRESHOLD, size)


def trim() -> None:
    """Return to the system what is free."""
    if (libc := glibc()) is not None:
        libc.malloc_trim(0)


@cache
def glibc() -> ctypes.CDLL | None:
    """Return the C library if it is glibc; None for another library, because its allocator lacks these parameters."""
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None
