"""Choosing, and what is said about the machine."""

from __future__ import annotations

import pytest

from fyrehose.bench.cases import CASES
from fyrehose.bench.command import NoSuchCase, choose, machine, report, show_list


def test_nothing_chosen_is_everything() -> None:
    assert choose([]) == list(CASES)


def test_a_name_that_is_none_is_said() -> None:
    with pytest.raises(NoSuchCase, match="'figgy'"):
        choose(["figg", "figgy"])


def test_cases_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    show_list(choose(["figg/live/1"]))
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["figg/live/1", "128", "2000000"]


def test_the_machine_and_its_load_are_told() -> None:
    assert "load average" in machine("batch")
    assert report([])["results"] == []
