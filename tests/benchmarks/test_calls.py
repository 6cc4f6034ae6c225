"""The call tracer, with the real server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.calls import TRIPS, Count, Tracer


def test_tracer_counts_only_fyrehose_functions_during_a_round() -> None:
    tracer = Tracer()
    with tracer.round():
        tracer.entered += [("a", "f", 1), ("a", "g", 2), ("b", "f", 3), ("a", "f", 2)]
    assert tracer.count() == Count(functions=3, files=2, calls=4, moves=2)
    assert not tracer.on
    with tracer.round():
        pass
    assert tracer.count() == Count(0, 0, 0, 0)


@pytest.mark.live
@pytest.mark.slow
def test_every_trip_is_measured() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.calls", "--rounds", "3"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert len(rows) == len(TRIPS)
    for *_, functions, files, calls, moves in rows:
        assert float(calls) >= float(functions) > float(files) > 10
        assert float(moves) > 0
