"""The arithmetic of samples."""

from __future__ import annotations

import pytest

from fyrehose.bench.results import Spread, latency


def test_a_spread_is_the_median_and_both_ends() -> None:
    assert Spread.of([3.0, 1.0, 9.0]) == Spread(3.0, 1.0, 9.0)
    assert Spread.of([1.0, 2.0]).median == pytest.approx(1.5)


def test_percentiles_are_figures_of_their_own() -> None:
    assert latency("arrived", [0.1, 0.2, 0.3]) == {"arrived.50": 0.1, "arrived.99": 0.2, "arrived.99.9": 0.3}
