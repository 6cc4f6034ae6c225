"""The order in which shares take turns: by what each has paid."""

from __future__ import annotations

from collections import Counter

from fyrehose.fair_order import MOST_IDLE, FairOrder


def turns(order: FairOrder, costs: dict[str, float], count: int) -> list[str]:
    """Return whose turns the next *count* are, if each share pays its cost for a turn and then waits again."""
    taken = []
    for _ in range(count):
        share = order.next()
        assert share is not None
        taken.append(share)
        order.pay(share, costs[share])
        order.enter(share)
    return taken


def test_shares_get_turns_until_each_has_paid_as_much() -> None:
    order = FairOrder()
    for share in "abc":
        order.enter(share)
    assert turns(order, {"a": 1.0, "b": 1.0, "c": 4.0}, 3) == ["a", "b", "c"]
    assert Counter(turns(order, {"a": 1.0, "b": 1.0, "c": 4.0}, 90)) == {"a": 40, "b": 40, "c": 10}


def test_share_that_begins_to_wait_is_next_but_has_saved_up_nothing() -> None:
    order = FairOrder()
    order.enter("old")
    turns(order, {"old": 1.0}, 100)
    order.enter("new")
    assert turns(order, {"old": 1.0, "new": 1.0}, 6) == ["new", "old"] * 3


def test_debt_of_a_share_that_does_not_wait_is_remembered() -> None:
    order = FairOrder()
    order.enter("a")
    order.enter("b")
    order.pay("b", 3.5)
    assert turns(order, {"a": 1.0, "b": 1.0}, 5) == ["a", "a", "a", "a", "b"]


def test_share_whose_debt_is_paid_is_forgotten_and_one_that_waits_is_not() -> None:
    order = FairOrder()
    order.enter("waits")
    order.enter("works")
    for number in range(2 * MOST_IDLE):
        order.pay(str(number), 0.0)
    order.pay("debtor", 5.0)
    assert turns(order, {"waits": 1.0, "works": 1.0}, 2) == ["waits", "works"]
    order.enter("debtor")
    assert turns(order, {"waits": 1.0, "works": 1.0, "debtor": 1.0}, 8)[-4:].count("debtor") == 0


def test_nobody_has_a_turn_when_nobody_waits() -> None:
    order = FairOrder()
    order.enter("a")
    order.forget()
    assert (order.next(), len(order)) == (None, 0)
