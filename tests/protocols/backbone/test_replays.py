"""The queue of ranges that the server replays."""

from __future__ import annotations

import pytest

from fyrehose.protocols.backbone.replays import MOST, Replays

A, B = ("10.0.0.1", 1), ("10.0.0.2", 1)


def test_destinations_take_turns_and_ranges_do_not_overtake() -> None:
    replays = Replays()
    assert replays.add(A, 1, 100)
    assert replays.add(A, 200, 201)
    assert replays.add(B, 5, 6)
    assert replays.next() == (A, 1, 100)
    replays.sent(A, 60)
    assert replays.next() == (B, 5, 6)
    replays.sent(B, 6)
    assert replays.next() == (A, 61, 100)
    replays.sent(A, 100)
    assert replays.next() == (A, 200, 201)
    replays.sent(A, 999)
    assert len(replays) == 0
    with pytest.raises(KeyError):
        replays.next()


def test_equal_ranges_are_queued_once() -> None:
    replays = Replays()
    assert replays.add(A, 1, 5)
    assert replays.add(A, 1, 5)
    replays.sent(A, 5)
    assert len(replays) == 0


def test_number_of_ranges_is_bounded() -> None:
    replays = Replays()
    assert sum(replays.add(A, i, i) for i in range(1, 100)) == 8
    assert sum(replays.add(("10.0.1.1", port), 1, 1) for port in range(5_000)) == MOST - 8
    assert len(replays) == MOST - 8 + 1
    assert not replays.add(("10.0.2.2", 1), 1, 1)
    replays.next()
    replays.sent(A, 1)
    assert replays.add(("10.0.2.2", 1), 1, 1)
    replays.clear()
    assert len(replays) == 0
    assert replays.add(A, 1, 1)
