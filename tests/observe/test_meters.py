"""Histograms count observations by bounds, and estimate quantiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.observe.meters import SECONDS, SIZES, Histogram, JournalMeters, Stalls


def test_an_empty_histogram_has_no_quantile() -> None:
    assert Histogram((1.0,)).quantile(0.5) is None
    assert Histogram((1.0,)).count == 0


@given(st.lists(st.floats(0, 1e9) | st.sampled_from(SECONDS + SIZES), min_size=1), st.integers(0, 8))
def test_every_observation_counts_for_its_bound_which_a_quantile_returns(values: list[float], eighths: int) -> None:
    for bounds in (SIZES, SECONDS):
        histogram = Histogram(bounds)
        for value in values:
            histogram.observe(value)
        assert histogram.count == len(values)
        below = [sum(value <= bound for value in values) for bound in bounds]
        assert [sum(histogram.counts[: i + 1]) for i in range(len(bounds))] == below
        assert histogram.total == pytest.approx(sum(values))
        reached = [bound for bound, n in zip(bounds, below, strict=True) if n >= max(1, eighths / 8 * len(values))]
        assert histogram.quantile(eighths / 8) == (reached or bounds[-1:])[0]


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
