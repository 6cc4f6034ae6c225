"""Choosing, who is there, and reports that are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import command, runner
from benchmarks.command import (
    NoSuchCase,
    Report,
    Wanted,
    available,
    choose,
    joined,
    machine,
    measure,
    show,
    show_list,
)
from benchmarks.results import Measurement
from fyrehose.bench.cases import CASES
from fyrehose.bench.servers import CannotStart


def test_all_cases_run_without_patterns() -> None:
    assert choose([]) == list(CASES)


def test_unknown_case_is_an_error() -> None:
    with pytest.raises(NoSuchCase, match="'figgy'"):
        choose(["figg", "figgy"])


def test_cases_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    show_list(choose(["figg/live/1"]))
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["figg/live/1", "128", "2000000"]


def test_every_contestant_of_a_case_exists() -> None:
    assert {name for case in CASES for name in case.against} <= set(command.EVERYBODY)


def test_missing_contestant_is_reported_and_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FIGG_SERVER", raising=False)
    there, missing = available(choose(["figg/live/1"]), Wanted())
    assert {"fyrehose", "fyrehose-later"} <= set(there)
    assert "figg-server: $FIGG_SERVER is not set" in missing
    there, missing = available(choose(["figg/publish/window-1"]), Wanted(alone=True))
    assert (set(there), missing) == ({"fyrehose", "disk"}, [])
    there, missing = available(choose(["relink/publish"]), Wanted(alone=True, metrics=True))
    assert (list(there), missing) == (["fyrehose", "fyrehose-metrics"], [])


def test_report_describes_machine_disk_and_load(tmp_path: Path) -> None:
    found = machine(tmp_path, Wanted(rounds=3), {"fyrehose": command.EVERYBODY["fyrehose"]})
    assert "cores" in found["machine"]
    assert "disk: unknown" not in found["machine"]
    assert found["rounds"] == "3, 1 times the messages, durability batch"
    assert float(found["load average before"]) >= 0


def test_results_are_kept_when_a_later_case_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers: list[list[Measurement] | BaseException] = [
        CannotStart("it is gone"),
        [Measurement(case="figg/live/4", contestant="fyrehose", samples=[{"micros": 1.0}])],
        KeyboardInterrupt(),
    ]

    def run(*_: object) -> list[Measurement]:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(runner, "run", run)
    cases = choose(["figg/live/1", "figg/live/4", "figg/live/16", "figg/catch-up"])
    report = measure(cases, tmp_path, Wanted(alone=True))
    assert [one.case for one in report.measured] == ["figg/live/4"]
    assert report.failed == ["figg/live/1: it is gone", "figg/live/16 and what follows: interrupted"]


def test_several_runs_are_shown_as_one() -> None:
    old, new = (
        Report(
            machine={"load": load},
            measured=[Measurement(case=case, contestant="fyrehose", samples=[{"micros": micros}]) for case in cases],
            failed=[],
        )
        for load, cases, micros in (("1", ("start/empty", "figg/publish"), 1.0), ("2", ("figg/publish",), 2.0))
    )
    found = joined([old, new])
    assert [(one.case, one.median("micros")) for one in found.measured] == [("figg/publish", 2.0), ("start/empty", 1.0)]
    assert found.machine == {"load": "1 | 2"}


def test_a_report_is_kept_and_shown_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    measured = [Measurement(case="start/empty", contestant="fyrehose", samples=[{"seconds": 0.5}])]
    report = Report(machine={"load average before": "1.00"}, measured=measured, failed=["x: [it] broke"])
    assert Report.loads(report.dumps()) == report
    show(report)
    said = capsys.readouterr().out
    assert "start/empty" in said
    assert "not measured: x: [it] broke" in said
