"""Freed memory goes back to the system; tests/spark/test_memory.py tests that it is kept."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fyrehose.allocator import glibc

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


@pytest.mark.skipif(glibc() is None, reason="needs glibc's allocator")
def test_large_buffers_between_small_ones_are_returned_to_the_system() -> None:
    def resident(how: str) -> int:
        """Return how many MiB a process has in memory after it has freed 128 MiB."""
        return int(subprocess.check_output([sys.executable, "-c", LARGE_BUFFERS, how]))

    assert resident("default") - resident("server") > 100
