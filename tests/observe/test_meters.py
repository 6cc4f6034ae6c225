"""Histograms count observations by bounds, and estimate quantiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.observe.meters import SECONDS, SIZES, Histogram, JournalMeters, Stalls


def test_an_observation_belongs_to_the_first_bound_that_is_not_smaller() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    for value in (0.5, 1.0, 1.5, 4.0, 4.1, 100.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1, 2]
    assert histogram.count == 6
    assert histogram.total == pytest.approx(111.1)


@pytest.mark.parametrize(
    ("share", "bound"), [(0.0, 1.0), (0.5, 1.0), (0.51, 2.0), (0.75, 2.0), (0.76, 4.0), (1.0, 4.0)]
)
def test_quantile_is_the_bound_that_the_share_does_not_exceed(share: float, bound: float) -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    for value in (0.1, 0.9, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.quantile(share) == bound


def test_an_empty_histogram_has_no_quantile() -> None:
    assert Histogram((1.0,)).quantile(0.5) is None
    assert Histogram((1.0,)).count == 0


def test_quantile_0_is_the_first_bound_with_an_observation() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.5)
    assert histogram.quantile(0.0) == 2.0


@given(st.lists(st.floats(0, 1e9), min_size=1))
def test_every_observation_is_counted_once(values: list[float]) -> None:
    for bounds in (SIZES, SECONDS):
        histogram = Histogram(bounds)
        for value in values:
            histogram.observe(value)
        assert histogram.count == len(values)
        below = [sum(value <= bound for value in values) for bound in bounds]
        assert [sum(histogram.counts[: i + 1]) for i in range(len(bounds))] == below


def test_bounds_ascend() -> None:
    for bounds in (SIZES, SECONDS):
        assert list(bounds) == sorted(set(bounds))


def test_stalls_are_counted_and_the_longest_is_kept() -> None:
    stalls = Stalls()
    for seconds in (3.0, 9.5, 2.1):
        stalls.add(seconds)
    assert (stalls.count, stalls.longest) == (3, 9.5)


def test_figures_of_commits_are_counted_when_they_are_read() -> None:
    meters = JournalMeters()
    meters.recent += [(300, 0.002, 0.001), (5000, 0.02, None)]
    assert (meters.commit_bytes.count, meters.recent) == (2, [])
    assert meters.commit_bytes.total == 5300
    meters.recent.append((300, 0.002, 0.001))
    assert meters.sync_seconds.count == 2
    assert (meters.commit_seconds.count, meters.commit_seconds.total) == (3, pytest.approx(0.024))
