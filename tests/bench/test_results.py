"""The arithmetic of samples."""

from __future__ import annotations

import json

import pytest

from fyrehose.bench.results import Measured, Sample, Spread, as_json


def sample(seconds: float = 2.0, cpu: float = 1.0) -> Sample:
    return Sample(
        messages=1_000_000, seconds=seconds, cpu=cpu, user=cpu * 0.6, system=cpu * 0.4, maker_cpu=0.5,
        received=0, lost=0, peak=50 << 20,
    )  # fmt: skip


def test_figures_of_a_sample() -> None:
    one = sample()
    assert (one.rate, one.micros, one.per_cpu) == (500_000, 1.0, 1_000_000)
    assert (one.maker_micros, one.busy) == (0.5, 0.25)


def test_a_spread_is_the_median_and_both_ends() -> None:
    assert Spread.of([3.0, 1.0, 9.0]) == Spread(3.0, 1.0, 9.0)
    assert Spread.of([1.0, 2.0]).median == pytest.approx(1.5)


def test_json_has_every_sample() -> None:
    measured = Measured(case="figg/publish", contestant="fyrehose", samples=(sample(cpu=1.0), sample(cpu=3.0)))
    (found,) = json.loads(json.dumps(as_json([measured])))
    assert found["micros"] == {"median": 2.0, "least": 1.0, "most": 3.0}
    assert [one["cpu"] for one in found["samples"]] == [1.0, 3.0]
