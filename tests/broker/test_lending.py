"""Memory for records that are half sent: bounded, shared, and taken back from peers that do not read."""

from __future__ import annotations

import attrs

from fyrehose.broker.budget import Budget

MIB = 1 << 20


@attrs.define(eq=False)
class Connection:
    network: str
    reclaimed: int = 0

    def reclaim(self) -> None:
        self.reclaimed += 1


def test_lent_memory_is_bounded_and_charged_to_the_budget() -> None:
    budget = Budget()
    connections = [Connection(f"network {n}") for n in range(250)]
    lent = [budget.lending.lend(connection, 5 * MIB) for connection in connections]
    assert (sum(lent), budget.lending.lent, budget.kept) == (6, 30 * MIB, 30 * MIB)
    for connection in connections:
        budget.lending.release(connection)
    assert (budget.lending.lent, budget.kept) == (0, 0)


def test_one_network_borrows_at_most_two_thirds() -> None:
    lending = Budget().lending
    assert [lending.lend(Connection("one"), 7 * MIB) for _ in range(4)] == [True, True, True, False]
    assert lending.lend(Connection("another"), 7 * MIB)


def test_memory_of_a_peer_that_does_not_read_goes_to_a_peer_that_reads() -> None:
    lending = Budget().lending
    deaf, reading = Connection("deaf"), Connection("reading")
    assert lending.lend(deaf, 20 * MIB)
    assert not lending.lend(reading, 20 * MIB)
    lending.leave(deaf)
    assert lending.lend(reading, 20 * MIB)
    assert (deaf.reclaimed, reading.reclaimed) == (1, 0)


def test_a_peer_that_reads_again_keeps_its_memory() -> None:
    lending = Budget().lending
    peer = Connection("peer")
    assert lending.lend(peer, 20 * MIB)
    lending.leave(peer)
    lending.use(peer)
    assert not lending.lend(Connection("another"), 20 * MIB)
    assert not peer.reclaimed


def test_nothing_is_lent_if_other_state_uses_up_the_budget() -> None:
    budget = Budget()
    assert budget.keep(budget.limit // 2)
    assert not budget.lending.lend(Connection("peer"), 1)
    assert not budget.lending.lent
