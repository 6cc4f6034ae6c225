"""The queue of ranges that the server replays."""

from __future__ import annotations

from itertools import count, islice, takewhile

import pytest

from fyrehose.protocols.backbone.ranges import LEAST_EACH, MOST, MOST_EACH, Replays

A, B = ("10.0.0.1", 1), ("10.0.0.2", 1)


def send(replays: Replays, to: int) -> tuple[object, tuple[int, int]]:
    """Send the next destination its ranges up to *to*; return it, and its first range before that."""
    destination, ranges = replays.take()
    replays.put(destination, ranges.after(to))
    return destination, ranges[0]


def test_destinations_take_turns_and_ranges_do_not_overtake() -> None:
    replays = Replays()
    assert replays.add(A, 200, 201)
    assert replays.add(A, 1, 100)
    assert replays.add(B, 5, 6)
    assert send(replays, 60) == (A, (1, 100))
    assert send(replays, 6) == (B, (5, 6))
    assert send(replays, 100) == (A, (61, 100))
    assert send(replays, 999) == (A, (200, 201))
    assert len(replays) == 0
    with pytest.raises(KeyError):
        replays.take()


def test_equal_ranges_are_queued_once() -> None:
    replays = Replays()
    assert replays.add(A, 1, 5)
    assert replays.add(A, 1, 5)
    send(replays, 5)
    assert len(replays) == 0


def test_number_of_ranges_is_bounded_for_each_destination() -> None:
    replays = Replays()
    assert sum(replays.add(A, seq, seq) for seq in range(1, 4_000, 2)) == MOST_EACH
    assert replays.add(A, 2, 2), "it joins two of them"
    assert replays.add(A, 5_001, 5_001)
    assert not replays.add(A, 6_001, 6_001)


def test_destinations_share_a_full_queue_and_each_keeps_a_minimum() -> None:
    replays = Replays()

    def fill(destination: tuple[str, int]) -> int:
        seqs = count(1, 2)
        added = sum(1 for _ in takewhile(lambda seq: replays.add(destination, seq, seq), seqs))
        assert not any(replays.add(destination, seq, seq) for seq in islice(seqs, 20)), "it stays full"
        return added

    added = [fill(("10.0.1.1", port)) for port in range(1, 2_049)]
    assert added[:16] == [MOST_EACH] * 16
    assert added[31] == MOST // 32
    assert added[-1] == LEAST_EACH == MOST // 2_048
    assert not replays.add(("10.0.1.1", 1), 9_001, 9_001), "its share has become smaller"
    assert replays.take()[0] == ("10.0.1.1", 1)
    assert len(replays) == 2_047
    replays.clear()
    assert len(replays) == 0
    assert replays.add(A, 1, 1)
