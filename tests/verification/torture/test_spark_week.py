"""Run the simulated week of an archive for an hour and a half; ``make torture`` runs all of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.live
def test_files_are_merged_while_an_archive_makes_a_round_every_minute(tmp_path: Path) -> None:
    program = str(Path(__file__).with_name("spark_week.py"))
    words = ["--minutes", "90", "--records", "3", "--directory", str(tmp_path / "made")]
    ended = subprocess.run([sys.executable, program, *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rounds, records, files = (
        int(word.replace(",", "")) for word in ended.stdout.split("\n")[-2].split() if word[0].isdigit()
    )
    assert (rounds, records) == (90, 90 * 20 * 3)
    assert files < 60
