"""Freed memory is used again by the next part, and returned to the system at the end."""

from __future__ import annotations

import resource
from pathlib import Path

import pyarrow as pa
import pytest

from fyrehose.allocator import glibc
from fyrehose.spark import memory

pytestmark = pytest.mark.skipif(glibc() is None, reason="needs glibc's allocator")

SIZE = 64 << 20
PAGES = SIZE // resource.getpagesize()


def faults_of_a_buffer() -> int:
    """Allocate a large buffer and free it; return how many pages the system had to clear for that."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(b"x") * SIZE
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def test_freed_memory_is_used_again_until_the_end() -> None:
    memory.keep()
    faults_of_a_buffer()
    assert [faults_of_a_buffer() < PAGES // 10 for _ in range(3)] == [True] * 3
    most = resident()
    memory.release()
    assert resident() < most - PAGES // 2


def test_memory_that_arrow_frees_stays_in_the_process_until_the_end() -> None:
    before = pa.default_memory_pool().backend_name
    memory.keep()
    memory.keep()
    assert pa.default_memory_pool().backend_name == "system"
    memory.release()
    assert pa.default_memory_pool().backend_name == before
