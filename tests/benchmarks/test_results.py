"""Measurements of several contestants, and their JSON."""

from __future__ import annotations

import json

from benchmarks.results import Measurement, Results, as_json, from_json
from fyrehose.bench.results import Spread

MEASURED = [
    Measurement(case="figg/publish", contestant="fyrehose", samples=[{"micros": 1.0, "a": 1.0}, {"micros": 3.0}]),
    Measurement(case="figg/publish", contestant="redis-always", samples=[{"micros": 8.0}]),
    Measurement(case="start/empty", contestant="fyrehose", samples=[{"seconds": 0.5}]),
]


def test_only_figures_that_every_round_has_are_returned() -> None:
    assert MEASURED[0].figures == ["micros"]
    assert MEASURED[0].spread("micros") == Spread(2.0, 1.0, 3.0)


def test_results_are_found_by_case_and_contestant() -> None:
    results = Results(MEASURED)
    assert results.median("figg/publish", "micros") == 2.0
    assert results.median("figg/publish", "micros", "redis-always") == 8.0
    assert results.median("figg/publish", "rate") is None
    assert results.median("figg/live/1", "micros") is None


def test_other_servers_are_compared_with_fyrehose() -> None:
    results = Results(MEASURED)
    assert results.times(MEASURED[1], "fyrehose") == 4.0
    assert results.times(MEASURED[1], "fyrehose-later") is None
    assert results.times(MEASURED[1], "fyrehose", "rate") is None


def test_results_survive_json() -> None:
    found = json.loads(json.dumps(as_json(MEASURED)))
    assert found[0]["figures"] == {"micros": {"median": 2.0, "least": 1.0, "most": 3.0}}
    assert from_json(found) == MEASURED
