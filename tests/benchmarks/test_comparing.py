"""Comparing two runs: a figure has changed if its rounds do not overlap, and the rest is noise."""

from __future__ import annotations

from benchmarks.comparing import compared
from benchmarks.results import Measurement, Results


def run(case: str = "figg/publish", contestant: str = "fyrehose", **figures: tuple[float, ...]) -> Results:
    rounds = [dict(zip(figures, values, strict=True)) for values in zip(*figures.values(), strict=True)]
    return Results([Measurement(case=case, contestant=contestant, samples=rounds)])


def test_a_figure_has_changed_if_the_ranges_do_not_overlap() -> None:
    found, figures = compared(run(micros=(1.0, 1.2, 1.1)), run(micros=(1.4, 1.3, 1.5)))
    (change,) = found
    assert (change.case, change.figure, figures) == ("figg/publish", "micros", 1)
    assert (round(change.times, 2), change.better) == (1.27, False)


def test_ranges_that_touch_are_noise() -> None:
    assert compared(run(micros=(1.0, 1.3)), run(micros=(1.3, 1.6))) == ([], 1)
    assert compared(run(micros=(1.3, 1.6)), run(micros=(1.0, 1.3))) == ([], 1)


def test_more_messages_a_second_are_better_and_less_cpu_is() -> None:
    (faster,) = compared(run(rate=(10.0, 11.0)), run(rate=(20.0, 21.0)))[0]
    (cheaper,) = compared(run(micros=(2.0, 2.1)), run(micros=(1.0, 1.1)))[0]
    (slower,) = compared(run(rate=(20.0, 21.0)), run(rate=(10.0, 11.0)))[0]
    assert (faster.better, cheaper.better, slower.better) == (True, True, False)


def test_runs_of_one_round_are_not_compared() -> None:
    assert compared(run(micros=(1.0,)), run(micros=(9.0, 9.0))) == ([], 0)


def test_only_the_same_server_in_the_same_case_is_compared() -> None:
    before = run(micros=(1.0, 1.0))
    assert compared(before, run(case="figg/live/1", micros=(9.0, 9.0))) == ([], 0)
    assert compared(before, run(contestant="redis-always", micros=(9.0, 9.0))) == ([], 0)


def test_what_load_makers_cost_is_not_compared() -> None:
    assert compared(run(maker=(1.0, 1.0)), run(maker=(9.0, 9.0))) == ([], 0)
