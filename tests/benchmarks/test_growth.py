"""Slopes of what grows, from the names and figures of the cases."""

from __future__ import annotations

import pytest

from benchmarks.growth import DIMENSIONS, fitted, growths
from benchmarks.results import Measurement, Results
from fyrehose.bench.cases import CASES


def measured(name: str, number: int, *micros: float) -> Measurement:
    samples = [{"micros": each} for each in micros]
    return Measurement(case=f"growth/{name}/{number}", contestant="fyrehose", samples=samples)


@pytest.mark.parametrize(
    ("costs", "slope"), [((3.0, 3.0, 3.0), 0.0), ((1.0, 10.0, 100.0), 1.0), ((1.0, 100.0, 10_000.0), 2.0)]
)
def test_slope_is_the_power_with_which_the_cost_grows(costs: tuple[float, ...], slope: float) -> None:
    assert fitted(list(zip((1, 10, 100), costs, strict=True))) == pytest.approx(slope)


def test_points_of_a_slope_are_sorted_by_their_numbers() -> None:
    found = [measured("streams", 10, 4.0, 8.0, 5.0), measured("streams", 1, 0.5), measured("streams", 2, 1.0)]
    (growth,) = growths(Results(found))
    assert [(number, cost.median) for number, cost in growth.points] == [(1, 0.5), (2, 1.0), (10, 5.0)]
    assert growth.slope == pytest.approx(1.0)
    assert growth.last_slope == pytest.approx(1.0)


def test_growth_needs_costs_at_two_numbers_or_more() -> None:
    assert list(growths(Results([measured("streams", 10, 4.0)]))) == []


def test_every_dimension_has_cases() -> None:
    there = {case.name.split("/")[1] for case in CASES if case.name.startswith("growth/")}
    assert there == set(DIMENSIONS)
