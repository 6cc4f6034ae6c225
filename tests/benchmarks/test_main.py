"""``python -m benchmarks``: its arguments, and its errors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main, run
from benchmarks.command import Report
from benchmarks.results import Measurement
from fyrehose.errors import MissingExtra


def test_cases_are_named_and_none_is_run() -> None:
    said = CliRunner().invoke(main, ["--list", "relink/live/[14]"])
    assert said.exit_code == 0
    assert [line.split()[0] for line in said.output.splitlines()[1:]] == ["relink/live/1", "relink/live/4"]


def test_an_unknown_case_is_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["nothing"])
    assert ended.value.code == 1
    assert capsys.readouterr().err == ("benchmarks: no case is called 'nothing'; see `python -m benchmarks --list`\n")


def saved(tmp_path: Path, name: str, *micros: float) -> str:
    one = Measurement(case="figg/publish", contestant="fyrehose", samples=[{"micros": each} for each in micros])
    path = tmp_path / name
    path.write_text(Report(machine={"Python": name}, measured=[one], failed=[]).dumps(), encoding="utf-8")
    return str(path)


def test_two_runs_are_compared(tmp_path: Path) -> None:
    old, new = saved(tmp_path, "old", 1.0, 1.1), saved(tmp_path, "new", 2.0, 2.2)
    said = CliRunner().invoke(main, ["--compare", old, new])
    assert said.exit_code == 0
    assert "1 of 1 figures changed by more than the noise" in said.output
    assert said.output.split("times\n")[1].split()[:3] == ["figg/publish", "fyrehose", "micros"]
    assert "Python: old before, new after" in said.output
    same = CliRunner().invoke(main, ["--compare", old, old])
    assert "0 of 1 figures changed by more than the noise" in same.output


def test_without_numpy_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtra, match=r"fyrehose\[bench\]"):
        main(["--list"], standalone_mode=False)
