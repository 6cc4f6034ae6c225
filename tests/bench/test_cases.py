"""The table of cases, and choosing from it."""

from __future__ import annotations

import pytest

from fyrehose.bench.cases import CASES, Case, selected
from fyrehose.plugins import names


def test_names_are_unique_and_begin_with_the_protocol() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.name.startswith((f"{case.protocol}/", "start/", "growth/")) for case in CASES)
    assert {case.protocol for case in CASES} <= {*names(), "journal"}


@pytest.mark.parametrize("size", [128, 1_024, 16_384])
@pytest.mark.parametrize("protocol", ["figg", "relink", "backbone", "eventbus"])
def test_every_size_is_measured(protocol: str, size: int) -> None:
    assert [case for case in CASES if case.protocol == protocol and case.size == size]


def test_cases_are_chosen_by_pattern() -> None:
    assert [case.name for case in selected(["figg/live/1"])] == ["figg/live/1"]
    assert {case.protocol for case in selected(["figg*", "relink"])} == {"figg", "relink"}
    assert selected(["nothing"]) == []
    assert len(selected(["*", "figg"])) == len(CASES), "none comes twice"


def test_scaling_leaves_a_minimum_of_messages() -> None:
    case = Case(name="x/y", protocol="x", messages=1_000, publishers=10)
    assert case.scaled(0.5).messages == 500
    assert case.scaled(0.0001).messages == 200
