"""``fyrehose bench``: words, and what is missing."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from fyrehose.cli.bench import bench
from fyrehose.cli.command import main


def test_cases_are_named_and_none_is_run() -> None:
    said = CliRunner().invoke(main, ["bench", "--list", "relink/live/[14]"])
    assert said.exit_code == 0
    assert [line.split()[0] for line in said.output.splitlines()[1:]] == ["relink/live/1", "relink/live/4"]


def test_a_case_that_there_is_none_of() -> None:
    said = CliRunner().invoke(main, ["bench", "nothing"])
    assert (said.exit_code, "no case is called 'nothing'" in said.output) == (1, True)


def test_without_numpy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "numpy", None)
    said = CliRunner().invoke(main, ["bench", "--list"])
    assert said.exit_code != 0
    assert "fyrehose[bench]" in said.output
    assert bench.name == "bench"
