"""The history of rates: its means, and its limits."""

from __future__ import annotations

import pytest

from fyrehose.admin.history import SPANS, History, Sample, mean


def sample(time: float, rate: float, lag: float = 0.0, protocol: str = "figg") -> Sample:
    return Sample(time=time, published={protocol: (rate, 10 * rate)}, delivered={}, written=rate, lag=lag)


def test_a_mean_has_the_mean_rates_the_largest_lag_and_the_last_time() -> None:
    found = mean([sample(1, 2, 0.5), sample(2, 4), sample(3, 3, protocol="http")])
    assert found.published == {"figg": (2, 20), "http": (1, 10)}
    assert (found.time, found.written, found.lag) == (3, 3, 0.5)


@pytest.mark.slow
def test_every_span_covers_its_time_with_a_bounded_number_of_samples() -> None:
    history = History()
    for second in range(100_000):
        history.add(sample(second, second))
    for span, (step, most) in SPANS.items():
        samples = history.samples(span)
        assert most <= len(samples) <= most + 1
        assert samples[-1].time == 99_999
        assert samples[1].time - samples[0].time == step
    assert SPANS["24h"][0] * SPANS["24h"][1] == 86_400
    assert SPANS["1h"][0] * SPANS["1h"][1] == 3_600


def test_an_incomplete_step_is_shown_as_the_mean_of_its_samples() -> None:
    history = History()
    for second in range(10, 25):
        history.add(sample(second, second))
    first, last = history.samples("1h")
    assert (first.time, first.written) == (19, 14.5)
    assert (last.time, last.written) == (24, 22)
    assert [len(history.samples(span)) for span in SPANS] == [15, 2, 1]


def test_a_wall_clock_that_is_set_back_ends_a_step() -> None:
    history = History()
    for time in (1_000.0, 1_001.0, 500.0):
        history.add(sample(time, 1))
    assert [found.time for found in history.samples("1h")] == [1_001, 500]
