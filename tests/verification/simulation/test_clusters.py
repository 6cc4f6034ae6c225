"""Simulations of clusters, and rules that must not be removed unnoticed; `make torture` runs many more of both."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import globalLogBeginner

sys.path.insert(0, str(Path(__file__).parent))

import clusters
import rules
import run
import simulation
from world import Host, World

#: How many simulations of each kind a test runs; each takes about 0.1 s of processor time.
FEW = 5


@pytest.fixture(scope="module", autouse=True)
def nothing_is_kept_for_a_log() -> None:
    """Drop the events that Twisted keeps until a log begins; see test_simulation.py."""
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)


@pytest.mark.parametrize("protocol", sorted(simulation.PROTOCOLS))
def test_nothing_acknowledged_is_lost_when_servers_of_a_cluster_come_and_go(
    protocol: str, logged_errors: list[Any]
) -> None:
    outcomes = [clusters.simulate(seed, protocol, 3 if seed % 4 else 2) for seed in range(FEW)]
    assert any(outcome.stored for outcome in outcomes)
    assert sum(outcome.takeovers for outcome in outcomes) >= FEW
    logged_errors.clear()  # failed disks


def test_the_seed_of_a_cluster_replays_exactly(logged_errors: list[Any]) -> None:
    first: list[str] = []
    again: list[str] = []
    assert clusters.simulate(7, "mixture", 3, 30, first) == clusters.simulate(7, "mixture", 3, 30, again)
    assert first == again
    logged_errors.clear()


#: Bugs that simulations notice too seldom for a test; `run.py --servers 3 --bugs` looks for them, too.
RARE = {
    "cluster, rule 1: every entry counts",
    "cluster, rule 2: confirmed although the one before is unknown",
    "cluster, rule 4: takes over without having everything",
    "cluster, rule 6: nothing is cut at the start",
    "cluster, rule 8: accepts messages without an answer",
    "cluster, rule 10: copies what is not confirmed",
    "cluster, rule 10: fills itself with what is not confirmed",
    "cluster: links of servers that do not lead",
}


#: The first seeds of searches that would simulate for more than a second from seed 0.
FIRST = {
    "cluster, rule 5: a deposed leader keeps its position": 14,
}


@pytest.mark.parametrize("name", sorted(rules.BUGS.keys() - RARE))
def test_the_removal_of_a_rule_is_noticed(name: str, logged_errors: Any) -> None:
    tally = run.hunt(name, FIRST.get(name, 0), 150)
    assert "seed" in tally.problems[0]
    logged_errors.take()
    gc.collect()  # what an error kept alive would log errors of its own when a later test collects it
    logged_errors.take()


def test_a_frozen_server_runs_what_was_due_in_its_order_when_it_continues() -> None:
    world, ran = World(1), list[str]()
    host = Host(world)
    host.callLater(1, ran.append, "first")
    host.callLater(2, ran.append, "second")
    cancelled = host.callLater(3, ran.append, "cancelled")
    world.clock.callLater(1.5, ran.append, "of the world")
    host.freeze()
    world.clock.pass_time(10)
    assert ran == ["of the world"]
    cancelled.cancel()
    host.go_on()
    world.clock.pass_time(0)
    assert ran == ["of the world", "first", "second"]


def test_a_server_that_crashes_while_it_is_frozen_never_continues() -> None:
    world, ran = World(1), list[str]()
    host = Host(world)
    host.callLater(1, ran.append, "never")
    host.freeze()
    world.clock.pass_time(2)
    host.crash()
    host.go_on()
    world.clock.pass_time(10)
    assert ran == []
