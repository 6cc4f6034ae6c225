"""``python -m benchmarks``: its arguments, and its errors."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main, run
from fyrehose.errors import MissingExtra


def test_cases_are_named_and_none_is_run() -> None:
    said = CliRunner().invoke(main, ["--list", "relink/live/[14]"])
    assert said.exit_code == 0
    assert [line.split()[0] for line in said.output.splitlines()[1:]] == ["relink/live/1", "relink/live/4"]


def test_an_unknown_case_is_an_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "nothing"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 1
    assert capsys.readouterr().err == ("benchmarks: no case is called 'nothing'; see `python -m benchmarks --list`\n")


def test_without_numpy_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtra, match=r"fyrehose\[bench\]"):
        main(["--list"], standalone_mode=False)
