"""What processes use, asked of the kernel."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fyrehose.bench import usage


def test_cpu_seconds_match_those_of_the_process_itself() -> None:
    before, own = usage.cpu(os.getpid()), time.process_time()
    while time.process_time() - own < 0.05:
        pass
    spent = usage.cpu(os.getpid()).since(before)
    assert 0.05 <= spent.total <= time.process_time() - own + 0.05
    assert spent.user >= 0
    assert spent.system >= 0


def test_present_and_peak_memory_are_measured() -> None:
    now, most = usage.memory(os.getpid())
    assert 1 << 20 < now <= most


def test_load_has_three_averages() -> None:
    assert len(usage.load()) == 3


def test_memory_is_touched_to_the_last_byte() -> None:
    assert usage.touch((1 << 28) + 5) == (1 << 28) + 5
    assert usage.memory(os.getpid())[1] >= 1 << 28


@pytest.mark.parametrize(("used", "free"), [("300", 700), ("2000", 0)])
def test_free_memory_is_bounded_by_the_limit_of_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: str, free: int
) -> None:
    monkeypatch.setattr(usage, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("1000")
    (tmp_path / "memory.current").write_text(used)
    assert usage.free_memory() == free


def test_free_memory_is_that_of_the_machine_without_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_CGROUP", tmp_path)
    assert usage.free_memory() > 1 << 20
    (tmp_path / "memory.max").write_text("max")
    assert usage.free_memory() > 1 << 20
