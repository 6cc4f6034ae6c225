"""Keep freed memory in the process for the next part of a journal, instead of returning it to the system.

glibc asks the system for each large buffer, and returns it when it is freed.  The system then has to clear all pages
again for the next part, which takes a fifth of the CPU time of a round.  With this module PyArrow, too, allocates by
glibc.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pyarrow as pa

from fyrehose import allocator

#: Free memory that a process keeps, in bytes: as much as a part of a journal needs.
_KEPT = 256 << 20

#: The memory pool of PyArrow that :func:`release` sets again; None if freed memory is not kept.
_pool: pa.MemoryPool | None = None


def keep() -> None:
    """Keep freed memory from now on, until :func:`release`."""
    global _pool
    if _pool is None:
        _pool = pa.default_memory_pool()
        pa.set_memory_pool(pa.system_memory_pool())
        allocator.keep(_KEPT, mappings=0)


def release() -> None:
    """Return freed memory to the system, now and from now on."""
    global _pool
    if _pool is not None:
        pa.set_memory_pool(_pool)
        _pool = None
        allocator.keep(allocator.TRIM_THRESHOLD)
        allocator.trim()


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch off Python's garbage collection during the context, whose objects must have no reference cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@cache
def prepare_worker() -> None:
    """Let a Python worker of Spark keep freed memory until it ends, which it does after a minute without tasks.

    Spark runs the garbage collection after each task, in which Python would examine every object of all imported
    modules, so these objects are exempted.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    allocator.keep(_KEPT, mappings=0)
    gc.freeze()
