"""A few simulations of each kind; `make torture` runs thousands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import simulation
from world import Violation

from fyrehose.protocols.figg.session import FiggServerSession

STEPS = 40


@pytest.mark.parametrize("protocol", sorted(simulation.PROTOCOLS))
def test_nothing_is_lost_doubled_or_out_of_order(protocol: str) -> None:
    outcomes = [simulation.simulate(seed, protocol, STEPS) for seed in range(12)]
    assert sum(outcome.stored for outcome in outcomes) > 300
    assert sum(outcome.crashes for outcome in outcomes) > 1


@pytest.mark.parametrize("protocol", sorted(simulation.PROTOCOLS))
def test_a_seed_replays_exactly(protocol: str) -> None:
    first, again = [], []
    assert simulation.simulate(7, protocol, STEPS, first) == simulation.simulate(7, protocol, STEPS, again)
    assert first == again


def violations(count: int = 20) -> list[str]:
    found = []
    for seed in range(count):
        try:
            simulation.simulate(seed, "figg", STEPS)
        except Violation as violation:
            found.append(str(violation))
    return found


def test_an_acknowledgement_too_many_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    said = FiggServerSession.send_ack
    monkeypatch.setattr(FiggServerSession, "send_ack", lambda session, number: said(session, number + 1))
    assert any("acknowledge" in violation or "ACK" in violation for violation in violations())


def test_a_sync_that_does_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.RecordingFiles.sync", lambda files, fd: None)
    assert any("the server failed: JournalCorrupt" in violation for violation in violations())
