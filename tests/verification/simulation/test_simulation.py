"""Simulations of each protocol, and the bugs that they have to notice; `make torture` runs many more of both."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import globalLogBeginner

sys.path.insert(0, str(Path(__file__).parent))

import bugs
import herds
import run
import simulation


@pytest.fixture(scope="module", autouse=True)
def nothing_is_kept_for_a_log() -> None:
    """Drop the events that Twisted keeps until a log begins.

    A failure among them keeps the whole simulated world alive, whose objects would log errors while an unrelated test
    runs.
    """
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)


#: How many simulations of each protocol a test runs: one with workers takes long, because it lasts for many leases; the
#: backbone's clients also change their addresses, which leaves fewer draws for damage, so three need more runs.
COUNTS = {"workers": 40, "backbone": 100}


@pytest.mark.parametrize("protocol", sorted(simulation.PROTOCOLS))
def test_nothing_is_lost_doubled_or_out_of_order(protocol: str) -> None:
    outcomes = [simulation.simulate(seed, protocol) for seed in range(COUNTS.get(protocol, 60))]
    assert sum(outcome.stored for outcome in outcomes) > 600
    assert sum(outcome.crashes for outcome in outcomes) > 15
    assert sum(outcome.damages for outcome in outcomes) > 2
    assert sum(outcome.synced for outcome in outcomes) > 300


@pytest.mark.parametrize("protocol", sorted(simulation.PROTOCOLS.keys() - {"mixture"}))
def test_a_herd_is_back_after_a_restart_beside_hostile_peers(protocol: str, ladder: Callable[[int, int], int]) -> None:
    """Two herds in ``make test``; ``make torture`` has four here, and those of ``run.py --herd``."""
    sizes = [ladder(80, 250), 60, 60, 60][: ladder(2, 4)]
    outcomes = [herds.simulate(seed, protocol, clients) for seed, clients in enumerate(sizes, 1)]
    assert all(outcome.lives > 1 and outcome.stored for outcome in outcomes)


@pytest.mark.parametrize("protocol", ["figg", "eventbus"])
def test_the_seed_of_a_herd_replays_exactly(protocol: str) -> None:
    first: list[str] = []
    again: list[str] = []
    assert herds.simulate(5, protocol, 30, first) == herds.simulate(5, protocol, 30, again)
    assert first == again


@pytest.mark.parametrize("protocol", sorted(simulation.PROTOCOLS))
def test_a_seed_replays_exactly(protocol: str) -> None:
    first: list[str] = []
    again: list[str] = []
    assert simulation.simulate(7, protocol, 40, first) == simulation.simulate(7, protocol, 40, again)
    assert first == again


#: Bugs that simulations notice too seldom for a test; `run.py --bugs` looks for them, too.
RARE = {
    "every 1,000th sync does nothing",
    "every 10,000th sync does nothing",
    "bodies over 64 KiB are not checked",
    "clock: a large step is believed",
    "clock: a wrong one is believed at a start",
    "retention: where the log begins is not synced",
    "retention: deletes before it notes that",
    "quarantine: what it sets aside is not synced",
    "backbone: the silent are kept",
    "eventbus: what came meanwhile is not held",
    "eventbus: a client asks only once",
    "eventbus: a late answer is taken for the next",
    "workers: dead letters are published again twice",
    "workers: another subscription publishes earlier dead letters",
}


#: The first seeds of searches that would simulate for more than half a second from seed 0.
FIRST = {
    "lumberjack: a lost connection is not searched": 110,
    "relink: a link forgets what it had": 39,
    "workers: a lost answer is not repeated": 40,
    "workers: a pattern lacks later streams": 6,
    "workers: a start does not wait for earlier workers": 9,
    "workers: another subscription takes the tokens of the one before": 12,
    "workers: any token counts": 90,
    "workers: leased beyond what is noted": 18,
    "workers: results are not in the commit of their jobs": 10,
    "workers: retention does not wait for them": 11,
    "workers: tokens of before a rewind count": 110,
    "workers: what is being settled is settled again": 9,
    "workers: what retention has deleted does not expire": 10,
}


@pytest.mark.parametrize("name", sorted(bugs.BUGS.keys() - RARE))
def test_a_bug_is_noticed(name: str, logged_errors: Any) -> None:
    tally = run.hunt(name, FIRST.get(name, 0), 60)
    assert "seed" in tally.problems[0]
    logged_errors.take()  # the server and the clients log what they notice as errors
    gc.collect()  # what such an error kept alive would log errors of its own when a later test collects it
    logged_errors.take()


def test_a_process_that_dies_is_reported_with_its_seed_and_the_others_continue() -> None:
    class Dying(run.Kind):  # type: ignore[misc]
        def simulate(self, seed: int, protocol: str, trace: list[str] | None = None) -> Any:
            if seed == 3:
                os.abort()
            if seed == 5:
                raise ValueError("a mistake")
            return super().simulate(seed, protocol, trace)

    total = run.run("figg", 0, 8, 1, Dying())
    assert total.simulations == 8
    died, wrong = total.problems
    assert died == "seed 3 of figg: its process ended with -6"
    assert wrong == "seed 5 of figg: ValueError: a mistake"


def test_an_endless_simulation_is_reported_with_its_seed() -> None:
    class Forever(run.Kind):  # type: ignore[misc]
        def simulate(self, seed: int, protocol: str, trace: list[str] | None = None) -> Any:
            while True:
                """It does nothing else."""

    (problem,) = run.run("figg", 4, 1, 1, Forever(patience=0.05)).problems
    assert problem == "seed 4 of figg: it has taken 0.05 s of processor time"
