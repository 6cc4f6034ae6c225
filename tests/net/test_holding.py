"""Refused connections are held for a while, within bounds."""

from __future__ import annotations

import attrs
from twisted.internet.task import Clock

from fyrehose.net.holding import FIRST, FORGOTTEN, LONGEST, MOST_ADDRESSES, MOST_OF_ONE, Holding
from tests.doubles.references import references


@attrs.define(eq=False)
class Held:
    """A connection that says how it was closed."""

    ended: str = ""

    def end_delay(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


def hold(holding: Holding, network: str = "n", seconds: float = 1.0, most: int = 1000) -> Held:
    held = Held()
    holding.hold(held, network, seconds, most)
    return held


def test_the_delay_doubles_for_each_refusal_of_an_address() -> None:
    holding = Holding(Clock())
    delays = [holding.refusals.count("a") for _ in range(2000)]
    assert delays[:7] == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, 16 * FIRST, LONGEST, LONGEST]
    assert set(delays[7:]) == {LONGEST}
    assert holding.refusals.count("b") == FIRST, "another address has done nothing"


def test_refusals_are_forgotten_after_a_while() -> None:
    clock = Clock()
    holding = Holding(clock)
    holding.refusals.count("a")
    clock.advance(FORGOTTEN - 1)
    assert holding.refusals.count("a") == 2 * FIRST
    clock.advance(FORGOTTEN)
    assert holding.refusals.count("a") == FIRST


def test_the_table_of_refused_addresses_is_bounded_and_forgets_the_oldest() -> None:
    holding = Holding(Clock())
    for number in range(MOST_ADDRESSES):
        holding.refusals.count(str(number))
    assert holding.refusals.count("0") == 2 * FIRST
    before = references(holding.refusals)
    holding.refusals.count("one more")
    assert references(holding.refusals) == before
    assert holding.refusals.count("1") == FIRST, "it was the oldest, and is forgotten"
    assert holding.refusals.count("0") == 4 * FIRST


def test_a_held_connection_is_closed_when_its_delay_is_over() -> None:
    clock = Clock()
    holding = Holding(clock)
    held = hold(holding, seconds=2.0)
    clock.advance(1.9)
    assert (held.ended, len(holding)) == ("", 1)
    clock.advance(0.1)
    assert (held.ended, len(holding)) == ("closed", 1)
    holding.lost(held)
    assert len(holding) == 0


def test_a_lost_connection_is_not_held_any_more() -> None:
    clock = Clock()
    holding = Holding(clock)
    held = hold(holding)
    holding.lost(held)
    assert (len(holding), clock.getDelayedCalls()) == (0, [])


def test_beyond_the_limit_the_oldest_connection_is_closed() -> None:
    holding = Holding(Clock())
    connections = [hold(holding, str(number), most=3) for number in range(4)]
    assert [held.ended for held in connections] == ["aborted", "", "", ""]


def test_beyond_the_limit_the_network_with_the_most_held_connections_loses_one() -> None:
    holding = Holding(Clock())
    other = hold(holding, "other", most=3)
    mine = [hold(holding, "n", most=3) for _ in range(3)]
    assert [held.ended for held in (other, *mine)] == ["", "aborted", "", ""]


def test_one_network_has_at_most_its_share_of_held_connections() -> None:
    holding = Holding(Clock())
    other = hold(holding, "other")
    mine = [hold(holding, "n") for _ in range(MOST_OF_ONE)]
    assert {held.ended for held in mine} == {""}
    hold(holding, "n")
    assert [held.ended for held in (other, mine[0], mine[1])] == ["", "aborted", ""]


def test_stop_closes_all_connections_and_holds_no_more() -> None:
    clock = Clock()
    holding = Holding(clock)
    before = hold(holding)
    holding.stop()
    after = hold(holding)
    assert (before.ended, after.ended, clock.getDelayedCalls()) == ("closed", "closed", [])


def test_with_a_delay_of_0_no_connection_is_held() -> None:
    holding = Holding(Clock(), 0.0)
    assert holding.refusals.count("a") == 0.0
    assert hold(holding, seconds=0.0).ended == "closed"


def test_a_changed_limit_holds_for_each_kind_of_delay() -> None:
    holding = Holding(Clock())
    holding.change(2 * FIRST)
    for delays in (holding.refusals, holding.handshakes):
        assert [delays.count("a") for _ in range(4)] == [FIRST, 2 * FIRST, 2 * FIRST, 2 * FIRST]
        assert delays.of("a") == 2 * FIRST
