"""``fyrehose bench`` as people call it; tests/live runs it with real servers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fyrehose.bench import trial
from fyrehose.bench.cases import CASES
from fyrehose.bench.trial import NAMES, Trial, TrialReport
from fyrehose.cli import bench, main


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, words)], prog_name="fyrehose")


def report(busy: float = 0.5, lost: float = 0.0, load: float = 0.0) -> TrialReport:
    full, single = (next(case for case in CASES if case.name == name) for name in NAMES["figg"])
    made = Trial("figg", None, full, single)  # type: ignore[arg-type]
    for rate in (1000.0, 2000.0, 1500.0):
        made.samples.setdefault(full.name, []).append({"rate": rate, "micros": 2.0, "busy": busy, "lost": lost})
        made.samples.setdefault(single.name, []).append({"acknowledged.50": 0.001, "acknowledged.99": 0.004})
    times = [[0.001] * 98 + [0.005] * 2] * 3
    return TrialReport(trials=[made], syncs=times, load_before=load, load_after=load, seconds=60.0)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the measurement by a fixed report; return the arguments with which it is called."""
    asked: list[Any] = []

    def measure(*args: Any) -> TrialReport:
        asked.append(args)
        args[-1](1.0, "figg")
        return report()

    monkeypatch.setattr(trial, "measure", measure)
    return asked


def test_table_has_medians_and_their_spread(measured: list[Any], tmp_path: Path) -> None:
    result = run("--data-dir", tmp_path)
    assert result.exit_code == 0, result.output
    (row,) = [line.split() for line in result.stdout.splitlines() if line.startswith("figg ")]
    assert row == ["figg", "128", "1,500", "(1,000-2,000)", "2.00", "(2.00-2.00)", "500,000", "1", "4"]
    (disk,) = [line.split() for line in result.stdout.splitlines() if line.startswith("disk ")]
    assert disk == ["disk", "128", "1,000", "1", "5"]
    assert "load average 0.00 before, 0.00 after" in result.stdout
    assert "medians of 3 rounds" in result.stdout


def test_json_output_has_every_sample(measured: list[Any], tmp_path: Path) -> None:
    result = run("--data-dir", tmp_path, "--json")
    found = json.loads(result.stdout)
    assert [sample["rate"] for sample in found["protocols"]["figg"]["figg/publish"]] == [1000.0, 2000.0, 1500.0]
    assert found["disk"][0] == {"syncs": 100, "p50": 0.001, "p99": 0.005}


def test_servers_write_to_a_folder_on_the_disk_that_is_deleted_at_the_end(measured: list[Any], tmp_path: Path) -> None:
    run("--data-dir", tmp_path, "--seconds", "5", "--protocol", "figg", "--protocol", "http", "--durability", "never")
    ((folder, protocols, seconds, durability, _),) = measured
    assert (folder.parent, protocols, seconds, durability) == (tmp_path, ["figg", "http"], 5.0, "never")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"busy": 0.95}, "the load maker was the limit, and not the server: figg"),
        ({"lost": 7.0}, "figg: up to 7 messages of a round did not reach the subscriber"),
        ({"load": 500.0}, "other programs were running"),
    ],
)
def test_limits_of_the_figures_are_reported(changes: dict[str, float], words: str) -> None:
    assert any(words in line for line in bench.remarks(report(**changes)))
    assert not any(words in line for line in bench.remarks(report()))


def test_rate_that_the_load_maker_limits_is_marked() -> None:
    assert bench._cells(report(busy=0.95).trials[0])[0] == ">1,500 (1,000-2,000)"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--protocol", "fig"), "invalid --protocol 'fig': expected figg, "),
        (("--data-dir", "nowhere"), "there is no directory nowhere; pass --data-dir DIR"),
        (("--seconds", "36500d"), "free, and the measurement may need"),
    ],
)
def test_options_that_cannot_be_used_are_refused(words: tuple[str, ...], error: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert error in result.stderr


def test_missing_numpy_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    result = run()
    assert "fyrehose bench needs numpy: pip install 'fyrehose[bench]'" in result.stderr
