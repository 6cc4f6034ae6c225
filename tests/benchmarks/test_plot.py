"""A picture of what there is, even of little."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import PEERS
from benchmarks.plot import COLOURS, WORK, draw
from benchmarks.results import Measurement, Results
from fyrehose.bench.servers import OURS

LATENCY = {"acknowledged.50": 0.001, "acknowledged.99": 0.01}


def test_every_contestant_has_a_colour() -> None:
    assert set(COLOURS) == {*OURS, *PEERS} - {"disk"}


@pytest.mark.slow
def test_plot_shows_the_measured_contestants(tmp_path: Path) -> None:
    measured = [
        Measurement(case=case, contestant=name, samples=[{"micros": 2.0, **LATENCY}])
        for case in [*list(WORK)[1:], "figg/latency/5k"]
        for name in ("fyrehose", "redis-always")
    ]
    for number in (1, 10):
        more = Measurement(case=f"growth/streams/{number}", contestant="fyrehose", samples=[{"micros": 2.0 * number}])
        measured.append(more)
    for name, results in (("full.svg", Results(measured)), ("empty.svg", Results([]))):
        draw(results, tmp_path / name, "a machine")
    full, empty = (tmp_path.joinpath(name).read_text() for name in ("full.svg", "empty.svg"))
    assert "<!-- redis-always -->" in full
    assert "<!-- redis-always -->" not in empty
    assert "by streams, in turn: slope 1.00" in full
    assert "slope" not in empty
    assert "<!-- a machine -->" in empty
