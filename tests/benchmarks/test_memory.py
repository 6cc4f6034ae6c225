"""Free memory, and its first use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import memory
from fyrehose.bench import usage


def test_memory_is_touched_to_the_last_byte() -> None:
    assert memory.touch((1 << 28) + 5) == (1 << 28) + 5
    assert usage.memory(os.getpid())[1] >= 1 << 28


@pytest.mark.parametrize(("used", "free"), [("300", 700), ("2000", 0)])
def test_free_memory_is_bounded_by_the_limit_of_a_container(tmp_path: Path, used: str, free: int) -> None:
    (tmp_path / "memory.max").write_text("1000")
    (tmp_path / "memory.current").write_text(used)
    assert memory.free_memory(tmp_path) == free


def test_free_memory_is_that_of_the_machine_without_a_limit(tmp_path: Path) -> None:
    assert memory.free_memory(tmp_path) > 1 << 20
    (tmp_path / "memory.max").write_text("max")
    assert memory.free_memory(tmp_path) > 1 << 20
