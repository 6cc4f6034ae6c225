"""The harnesses of tests/torture, for a moment: `make torture` runs them for long."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(300)]

TORTURE = Path(__file__).parents[1] / "torture"


def run(name: str, *words: str, status: int = 0) -> str:
    """What it printed."""
    command = [sys.executable, str(TORTURE / name), *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("durability", ["batch", "never"])
def test_kills_lose_nothing(durability: str, tmp_path: Path) -> None:
    words = ("--count", "4", "--seed", "11", "--durability", durability, "--directory", str(tmp_path))
    assert " 0 violations" in run("kill9.py", *words)
    assert not list(tmp_path.iterdir())


def test_it_would_be_noticed_if_they_did(tmp_path: Path) -> None:
    words = ("--count", "6", "--seed", "12", "--busy", "500", "--sabotage", "--directory", str(tmp_path))
    assert "VIOLATION" in run("kill9.py", *words, status=1)
    shutil.rmtree(tmp_path)


def test_bits_and_cuts() -> None:
    said = run("bits.py", "--count", "150", "--size", "8192")
    assert said.count(" 0 wrong") == 9


def test_a_full_disk_and_failed_syncs() -> None:
    said = run("faults.py", "--part", "limit", "--part", "syncs", "--count", "2")
    assert "syncs: skipped" in said or "ended the server with status 4" in said
    assert "after there was room again" in said
