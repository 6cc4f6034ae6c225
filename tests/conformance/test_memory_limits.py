"""Test the limits of the memory of connections at their defaults: one below, at, one above."""

from __future__ import annotations

import pytest

from fyrehose.net.incoming import Reading
from fyrehose.net.inflight import Account, InFlight
from fyrehose.server.config import ServerSettings

DEFAULTS = ServerSettings()


def account(budget: InFlight) -> Account:
    """Return the memory account of a connection from an address of its own."""
    return budget.account(Reading(lambda: None, lambda: None))


def budget() -> InFlight:
    return InFlight(limit=DEFAULTS.memory, each=DEFAULTS.memory_per_connection)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_connection_may_have_publishes_in_flight_up_to_the_limit(more: int) -> None:
    mine = account(budget())
    mine.hold(DEFAULTS.memory_per_connection + more)
    assert mine.paused is (more > 0)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_publishes_in_flight_are_accepted_up_to_the_limit_of_all_connections(more: int) -> None:
    """A network may use twice what it leaves free, so the last one stops at two thirds of the rest."""
    shared = budget()
    others = [account(shared) for _ in range(shared.room // DEFAULTS.memory_per_connection - 1)]
    for other in others:
        other.hold(DEFAULTS.memory_per_connection)
    assert shared.room - shared.used == DEFAULTS.memory_per_connection
    last = account(shared)
    fits = DEFAULTS.memory_per_connection * 2 // 3
    last.hold(fits)
    last.hold(more + 1)
    assert last.paused is (more >= 0)
    last.release(more + 1)
    last.release(fits)
    assert not last.paused


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_lasting_state_may_use_exactly_half_of_the_memory(more: int) -> None:
    assert budget().keep(DEFAULTS.memory // 2 + more) is (more <= 0)
