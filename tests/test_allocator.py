"""Freed memory goes back to the system; tests/spark/test_memory.py tests that it is kept."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from fyrehose.allocator import glibc

SMALLER_BUFFERS = """
import resource, sys
from fyrehose.server import process
if sys.argv[1] == "server":
    process.return_large_buffers()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [bytearray(b"x") * (1 << 20) for _ in range(16)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(min(faults() for _ in range(3)))
"""
LARGE_BUFFERS = """
import pathlib, resource, sys
from fyrehose.server import process
if sys.argv[1] == "server":
    process.return_large_buffers()
del (_ := [bytearray(30 << 20)])[:]  # glibc takes the next ones from its heap
between, large = [], []
for _ in range(64):
    large.append(bytearray(b"x") * (2 << 20))
    between.append(bytearray(b"x") * (64 << 10))
large.clear()
print(int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20)
"""


pytestmark = pytest.mark.skipif(glibc() is None, reason="needs glibc's allocator")


def measured(program: str, how: str) -> int:
    """Return what *program* prints in a process of its own, as a server or by default."""
    return int(subprocess.check_output([sys.executable, "-c", program, how]))


def test_large_buffers_between_small_ones_are_returned_to_the_system() -> None:
    assert measured(LARGE_BUFFERS, "default") - measured(LARGE_BUFFERS, "server") > 100, "MiB, of 128 that were freed"


def test_smaller_buffers_are_used_again() -> None:
    pages = (16 << 20) // resource.getpagesize()
    assert measured(SMALLER_BUFFERS, "server") < pages // 10
