"""The call tracer, with the real server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.calls import TRIPS, Count, Tracer
from tests.protocols.http.test_leasing import World

#: How many calls a leased and settled record takes at most, and in how many files.
CALLS, FILES = 169, 27


def test_tracer_counts_only_fyrehose_functions_during_a_round() -> None:
    tracer = Tracer()
    with tracer.round():
        tracer.entered += [("a", "f", 1), ("a", "g", 2), ("b", "f", 3), ("a", "f", 2)]
    assert tracer.count() == Count(functions=3, files=2, calls=4, moves=2)
    assert not tracer.on
    with tracer.round():
        pass
    assert tracer.count() == Count(0, 0, 0, 0)


def test_a_leased_and_settled_record_takes_few_calls() -> None:
    """Without the journal and the sockets, which the real server adds; see docs/architecture.md, "Measured"."""
    world, tracer = World(), Tracer()
    world.factory.now = lambda: 1.0  # In each second, the head of an answer is made again.
    world.create()
    peer = world.peer()

    def once() -> None:
        _, leased = peer.ask("POST /subscriptions/work/lease", {"consumer": "w"})
        (record,) = leased["records"]
        status, _ = peer.ask("POST /subscriptions/work/settle", {"done": [[record["seq"], record["token"]]]})
        assert status == 200

    once()
    before = sys.getprofile()
    sys.setprofile(tracer.profile)
    try:
        with tracer.round():
            once()
    finally:
        sys.setprofile(before)
    files = [file for file, _, _ in tracer.entered if "/testing/" not in file and "/kernels/" not in file]
    assert len(files) <= CALLS
    assert len(set(files)) <= FILES


@pytest.mark.live
@pytest.mark.slow
def test_every_trip_is_measured() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.calls", "--rounds", "3"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert len(rows) == len(TRIPS)
    for *_, functions, files, calls, moves in rows:
        assert float(calls) >= float(functions) > float(files) > 10
        assert float(moves) > 0
