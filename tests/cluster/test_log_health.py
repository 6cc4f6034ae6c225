"""Health of the NATS servers that store the shared log, and the remedies that are named."""

from __future__ import annotations

from random import Random

import attrs
import pytest

from fyrehose.cluster.log_health import LACKING_S, SILENT_S, LogHealth
from fyrehose.cluster.shared_log import EntryRange
from fyrehose.observe.meters import NatsStatus

LEADS = NatsStatus(name="n1", leads=True, current=True, offline=False, lag=0)
CURRENT = NatsStatus(name="n2", leads=False, current=True, offline=False, lag=0)
BEHIND = attrs.evolve(CURRENT, current=False, lag=1700)
OFFLINE = attrs.evolve(CURRENT, offline=True)


def report(*nodes: NatsStatus, replicas: int = 2) -> EntryRange:
    return EntryRange(1, 9, nodes=nodes, replicas=replicas)


@pytest.fixture
def health() -> LogHealth:
    made = LogHealth()
    made.begin(100.0)
    return made


@pytest.mark.parametrize(("node", "problem"), [(BEHIND, "n2 lacks 1,700 entries"), (OFFLINE, "n2 is offline")])
def test_server_that_stays_behind_is_named_with_what_helps(health: LogHealth, node: NatsStatus, problem: str) -> None:
    for now in (101.0, 106.0, 102.0 + LACKING_S):
        health.report(report(LEADS, node), now)
    status = health.status(102.0 + LACKING_S)
    assert status.copies == 1
    assert status.problem == f"stored on 1 of 2 NATS servers; {problem}"
    assert "`systemctl restart nats`" in status.remedy


def test_log_with_too_few_servers_needs_another_one(health: LogHealth) -> None:
    health.report(report(LEADS, replicas=3), 101.0)
    status = health.status(101.0)
    assert status.problem.startswith("stored on 1 of 3 NATS servers: ")
    assert "add a NATS server" in status.remedy


def test_log_mentions_a_problem_once_and_its_end(health: LogHealth, log_lines: list[str]) -> None:
    for now in (101.0, 106.0, 102.0 + LACKING_S, 103.0 + LACKING_S):
        health.report(report(LEADS, attrs.evolve(BEHIND, lag=int(now))), now)
        health.watch(now)
    health.report(report(LEADS, CURRENT), 120.0)
    for now in (120.0, 121.0):
        health.watch(now)
    said = [line for line in log_lines if "shared log" in line]
    assert len(said) == 2
    assert "n2 lacks 112 entries" in said[0]
    assert "stored on 2 NATS servers again" in said[1]


@pytest.mark.parametrize("seed", range(20))
def test_random_reports_name_the_servers_that_have_lacked_entries_for_long(seed: int) -> None:
    """A server that NATS does not list any more has no share in that, and begins anew when it is listed again."""
    dice, health, now = Random(seed), LogHealth(), 100.0
    health.begin(now)
    stored: dict[str, float] = {}
    heard, replicas = now, 0
    for _ in range(60):
        now += dice.choice([1.0, 4.0, LACKING_S / 2, LACKING_S + 1])
        if dice.random() < 0.8:
            names, heard = dice.sample(["n1", "n2", "n3", "n4"], dice.randint(0, 4)), now
            nodes = [attrs.evolve(dice.choice([CURRENT, BEHIND, OFFLINE]), name=name) for name in names]
            stored = {each.name: now if each.stores else stored.get(each.name, now) for each in nodes}
            replicas = dice.choice([1, 3])
            health.report(report(*nodes, replicas=replicas), now)
        status = health.status(now)
        assert status.replicas == replicas
        if now - heard > SILENT_S:
            assert status.copies == 0
            assert f"not answered for {now - heard:.0f} s: a majority of its servers is lost" in status.problem
            assert "`fyrehose cluster status`" in status.remedy
            continue
        whole = [name for name in stored if now - stored[name] <= LACKING_S]
        copies = len(whole) if stored else status.replicas
        assert status.copies == copies, f"whole on {whole} of {sorted(stored)}, says {status}"
        assert bool(status.problem) == bool(status.remedy) == (copies < replicas)
