"""Repair: gaps, early records, duplicates, requests, lost ranges."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fyrehose.protocols.backbone.frames import MAX_SEQUENCES
from fyrehose.protocols.backbone.repair import PAUSES, STREAMING, RecordsSkipped, Repair
from fyrehose.records import LAST_SEQ, Run


def run(first: int, last: int) -> Run:
    """Return records whose payload is their sequence."""
    payloads = [str(seq).encode() for seq in range(first, last + 1)]
    return Run.of("backbone", payloads, source="backbone").numbered(first, 0)


def seqs(runs: list[Run]) -> list[int]:
    """Return the sequences of *runs*, after a check of their payloads."""
    found = []
    for each in runs:
        for i, payload in enumerate(each.payloads()):
            assert int(bytes(payload)) == each.first_seq + i
            found.append(each.first_seq + i)
    return found


def feed(order: Repair, *ranges: tuple[int, int], now: float = 0.0) -> list[int]:
    """Receive records; return the sequences that can be delivered."""
    return [seq for first, last in ranges for seq in seqs(order.received(run(first, last), now)[1])]


def test_gap_is_requested_after_the_reorder_delay() -> None:
    order = Repair(0, reorder=0.02, probe=99)
    feed(order, (2, 3), now=1.0)
    assert order.next_due() == 1.02
    assert order.due(1.01, 9) == []
    feed(order, (1, 1), now=1.015)  # it was only overtaken
    assert order.due(1.02, 9) == []


def test_gap_is_requested_repeatedly_and_then_given_up() -> None:
    order = Repair(0, reorder=0.0, pauses=(1.0, 2.0), probe=1e9)
    feed(order, (1, 1), (4, 4), (7, 7))
    asked = [(now, order.due(now, 9)) for now in (0.0, 0.5, 1.0, 2.9, 3.0, 99.0)]
    assert asked == [(0.0, [(2, 3), (5, 6)]), (0.5, []), (1.0, [(2, 3), (5, 6)]), (2.9, []), (3.0, []), (99.0, [])]
    assert order.give_up(2.9) == []
    passed = order.give_up(3.0)
    assert [each if isinstance(each, RecordsSkipped) else seqs([each]) for each in passed] == [
        RecordsSkipped(first=2, last=3),
        [4],
        RecordsSkipped(first=5, last=6),
        [7],
    ]
    assert (order.position, order.missing) == (7, [])
    # Records of a range that was given up are dropped, so that the order stays.
    assert feed(order, (2, 3)) == []


def test_gap_is_not_given_up_before_the_gaps_below_it() -> None:
    order = Repair(0, reorder=0.0, pauses=(1.0, 5.0), probe=1e9)
    feed(order, (5, 5), now=0.0)
    feed(order, (3, 3), now=0.1)  # (1, 2) and (4, 4): an answer came, so the rest is streaming
    for now in (1.0, 2.0, 7.0, 8.0):
        order.due(now, 9)
    assert order.missing == [(1, 2), (4, 4)]
    due = order.next_due()
    assert due is not None
    passed = order.give_up(20.0)
    assert [each for each in passed if isinstance(each, RecordsSkipped)] == [
        RecordsSkipped(first=1, last=2),
        RecordsSkipped(first=4, last=4),
    ]


def test_streaming_answer_is_not_requested_again() -> None:
    order = Repair(0, reorder=0.0, pauses=(1.0,) * 3, probe=1e9)
    feed(order, (50_000, 50_000), now=0.0)
    assert order.due(0.0, 1) == [(1, 49_999)]
    for i in range(100):
        now = 0.02 * (i + 1)
        feed(order, (1 + 100 * i, 100 + 100 * i), now=now)
        assert order.due(now, 1) == ([(10_001, 49_999)] if i == 99 else [])
    assert order.position == MAX_SEQUENCES


def test_incomplete_answer_is_waited_for_before_the_gap_is_requested_again() -> None:
    order = Repair(0, reorder=0.0, probe=1e9)
    feed(order, (50_000, 50_000))
    assert order.due(0.0, 1) == [(1, 49_999)]
    feed(order, (1, MAX_SEQUENCES - 1), now=0.1)
    assert order.due(0.1, 1) == []
    feed(order, (MAX_SEQUENCES, MAX_SEQUENCES), now=0.2)
    assert order.due(0.2, 1) == [(MAX_SEQUENCES + 1, 49_999)]


def test_tail_request_waits_while_gaps_take_all_requests() -> None:
    order = Repair(0, reorder=0.0, pauses=(1.0,) * 3, probe=0.5)
    feed(order, (1, 1), (3, 3), now=0.0)
    assert order.due(9.0, 1) == [(2, 2)]
    assert order.due(9.1, 1) == [(4, LAST_SEQ)]


def test_gap_is_requested_during_ten_seconds() -> None:
    assert max(PAUSES) == 0.5
    order = Repair(0, reorder=0.0, probe=1e9)
    feed(order, (2, 2))
    now, asked = 0.0, 0
    while not order.give_up(now):
        asked += len(order.due(now, 1))
        next_due = order.next_due()
        assert next_due is not None
        now = next_due
    assert (now, asked) == (pytest.approx(9.9), 21)


def test_more_gaps_than_requests_share_requests() -> None:
    order = Repair(0, reorder=0.0, probe=1e9)
    feed(order, (1, 1), (3, 3), (5, 20), (100, 100), (102, 150), (500, 500))
    assert order.missing == [(2, 2), (4, 4), (21, 99), (101, 101), (151, 499)]
    # Adjacent gaps are joined, so that few records arrive twice.
    assert order.due(0.0, 3) == [(2, 4), (21, 101), (151, 499)]
    assert order.due(0.0, 3) == []
    complete, short = Repair(0, reorder=0.0, probe=1e9), Repair(0, reorder=0.0, probe=1e9)
    feed(complete, (1, 1), (2, 2))
    feed(short, (1, 1), (3, 3))
    assert complete.due(0.0, 3) == short.due(0.0, 0) == []


def test_gap_beyond_an_answer_is_requested_later() -> None:
    order = Repair(0, reorder=0.0, probe=1e9)
    feed(order, (9_000, 9_000), (20_000, 20_000), (30_000, 30_000))
    assert order.due(0.0, 1) == [(1, 29_999)]
    assert order.due(0.0, 1) == [(20_001, 29_999)]
    assert order.due(0.0, 1) == []


def test_tail_is_requested_after_silence() -> None:
    order = Repair(probe=1.0)
    assert order.next_due() is None
    assert order.due(0.0, 9) == []  # nothing is known yet, so nothing can be missing
    feed(order, (5, 5), now=0.0)
    assert order.due(0.9, 9) == []
    feed(order, (6, 6), now=0.9)
    assert order.due(1.8, 9) == []
    assert order.due(1.9, 9) == [(7, LAST_SEQ)]
    # The first request is repeated soon, because the server itself answers a repetition; later ones are rare.
    assert order.due(2.0, 9) == []
    assert order.due(2.05, 9) == [(7, LAST_SEQ)]
    assert order.due(3.0, 9) == []
    assert order.due(3.05, 9) == [(7, LAST_SEQ)]
    feed(order, (7, 7), now=3.1)
    assert order.due(3.35, 9) == [(8, LAST_SEQ)]
    assert order.due(3.5, 9) == [(8, LAST_SEQ)]


def test_catch_up_continues_after_each_answer() -> None:
    order = Repair(0)
    assert order.due(0.0, 9) == [(1, LAST_SEQ)]
    feed(order, (1, 9_999), now=0.1)
    assert order.due(0.1, 9) == []
    feed(order, (10_000, 10_000), now=0.2)
    assert order.due(0.2, 9) == [(10_001, LAST_SEQ)]


def test_old_records_do_not_postpone_the_tail_request() -> None:
    order = Repair(0, probe=1.0)
    feed(order, (2, 2), now=0.0)
    assert feed(order, (1, 1), (2, 2), now=0.9) == [1, 2]
    assert order.due(1.0, 9) == [(3, LAST_SEQ)]


def test_next_due_is_the_earliest_of_all_gaps_with_requests_left() -> None:
    order = Repair(0, reorder=0.0, pauses=(5.0,), probe=1e9)
    feed(order, (2, 2), now=0.0)
    assert order.due(0.0, 9) == [(1, 1)]
    order.reorder = 1.0
    feed(order, (4, 4), now=0.5)
    assert order.next_due() == 1.5
    assert order.due(1.5, 9) == [(3, 3)]
    # No gap has requests left, and the first one is given up when it is due.
    assert order.next_due() == 5.0


def test_rest_of_an_answer_is_requested_as_often_as_any_gap() -> None:
    order = Repair(0, reorder=0.0, pauses=(1.0, 1.0), probe=1e9)
    feed(order, (11, 11), now=0.0)
    assert order.due(0.0, 9) == [(1, 10)]
    feed(order, (1, 5), now=0.1)
    assert order.give_up(0.35) == []
    assert order.due(0.35, 9) == [(6, 10)]
    assert order.due(1.35, 9) == []
    assert order.give_up(1.35)[0] == RecordsSkipped(first=6, last=10)


def test_gap_is_never_given_up_while_each_answer_brings_a_part_of_it() -> None:
    order = Repair(0, reorder=0.0, pauses=(1.0, 1.0), probe=1e9)
    feed(order, (41, 41), now=0.0)
    now, got = 0.0, list[int]()
    while len(got) < 41:
        assert order.due(now, 9) == [(len(got) + 1, 40)], f"at {now:g} s"
        got += feed(order, (len(got) + 1, len(got) + 1), now=now + 0.1)
        now += 0.101 + STREAMING
        assert order.give_up(now) == []
    assert got == [*range(1, 42)]


def test_gap_that_ends_within_the_size_of_an_answer_is_part_of_the_request() -> None:
    order = Repair(0, reorder=0.0, probe=1e9)
    feed(order, (2, MAX_SEQUENCES - 1), (MAX_SEQUENCES + 1, MAX_SEQUENCES + 1))
    assert order.due(0.0, 1) == [(1, MAX_SEQUENCES)]
    assert order.due(0.0, 1) == []


def test_gap_just_beyond_the_size_of_an_answer_gets_a_separate_request() -> None:
    order = Repair(0, reorder=0.0, probe=1e9)
    feed(order, (2, MAX_SEQUENCES), (MAX_SEQUENCES + 2, MAX_SEQUENCES + 2))
    assert order.due(0.0, 1) == [(1, MAX_SEQUENCES + 1)]
    assert order.due(0.0, 1) == [(MAX_SEQUENCES + 1, MAX_SEQUENCES + 1)]
    assert order.due(0.0, 1) == []


def test_nothing_is_requested_after_the_last_sequence() -> None:
    order = Repair(LAST_SEQ - 1)
    run_ = Run.of("s", [b"x"], source="s").numbered(LAST_SEQ, 0)
    assert order.received(run_, 0.0) == ([run_], [run_])
    assert order.due(99.0, 9) == []


def test_only_requested_records_count_as_requested() -> None:
    order = Repair(reorder=0.0, probe=1e9)
    assert not order.was_requested(1, 1)
    feed(order, (1, 5), (8, 9), (20, 20))
    assert not order.was_requested(6, 7)  # not asked for yet
    assert order.due(0.0, 1) == [(6, 19)]
    assert order.was_requested(6, 6)
    assert order.was_requested(1, 6)
    assert order.was_requested(7, 30)
    assert order.was_requested(10, 19)
    assert not order.was_requested(8, 9)
    assert not order.was_requested(20, 30)
    assert not order.was_requested(1, 5)
    quiet = Repair(5)
    quiet.due(0.0, 1)
    assert all(quiet.was_requested(*asked) for asked in [(6, 6), (1, 6), (5 + MAX_SEQUENCES, LAST_SEQ)])
    assert not any(quiet.was_requested(*none) for none in [(5, 5), (1, 5), (6 + MAX_SEQUENCES, 6 + MAX_SEQUENCES)])


def test_request_for_the_tail_is_postponed_when_new_records_arrive() -> None:
    order = Repair(0, probe=1.0)
    assert order.due(0.0, 9) == [(1, LAST_SEQ)]
    feed(order, (1, MAX_SEQUENCES), now=0.1)
    feed(order, (MAX_SEQUENCES + 1, MAX_SEQUENCES + 1), now=0.2)
    assert order.next_due() == 1.2


def test_request_for_the_tail_is_repeated_soon_at_the_start_and_after_a_restart() -> None:
    order = Repair(5, pauses=(0.25,), probe=1.0)
    assert order.due(0.0, 9) == order.due(0.25, 9) == [(6, LAST_SEQ)]
    assert order.next_due() == 1.25
    order.restart(3.0)
    assert order.due(3.0, 9) == [(6, LAST_SEQ)]
    assert order.next_due() == 3.25


def test_restart_repeats_all_requests() -> None:
    order = Repair(0, reorder=0.0, pauses=(1.0,), probe=1.0)
    feed(order, (2, 2), now=0.0)
    assert order.due(0.0, 9) == [(1, 1)]
    order.restart(7.0)
    assert order.give_up(7.0) == []
    assert order.due(7.0, 9) == [(1, 1), (3, LAST_SEQ)]


def test_memory_of_waiting_runs_is_bounded() -> None:
    order = Repair(0, most_waiting=3_000)
    for seq in range(3, 5_000, 2):
        feed(order, (seq, seq))
        assert order.waiting_size <= 3_000 + 600
    assert order.highest < 50
    top = order.highest
    # Records that can be delivered at once are always accepted.
    assert feed(order, *[(seq, seq) for seq in range(1, top + 1)]) == list(range(1, top + 1))
    assert order.waiting_size == 0
    assert feed(order, (top + 1, top + 2)) == [top + 1, top + 2]


def test_number_of_gaps_is_bounded() -> None:
    order = Repair(0, most_gaps=10)
    feed(order, (100, 100))
    for seq in range(2, 1_000, 2):
        feed(order, (seq, seq))
    assert len(order.missing) == 10
    assert feed(order, (1, 1_000)) == list(range(1, 1_001))


@pytest.mark.parametrize(
    ("come", "missing"),
    [
        ((12, 13), [(1, 10), (14, 20)]),
        ((18, 20), [(1, 10), (12, 17)]),
        ((12, 20), [(1, 10)]),
        ((15, 15), [(1, 10), (12, 20)]),
        ((30, 30), [(1, 10), (12, 20)]),
        ((22, 22), [(1, 10), (12, 20)]),
        ((1, 1), [(2, 10), (12, 20)]),
    ],
)
def test_only_a_run_that_would_exceed_the_limit_of_gaps_is_dropped(
    come: tuple[int, int], missing: list[tuple[int, int]]
) -> None:
    order = Repair(0, most_gaps=2)
    feed(order, (11, 11), (21, 21), come)
    assert order.missing == missing
    assert order.highest == (22 if come == (22, 22) else 21)


def test_record_with_a_very_high_sequence_takes_no_extra_memory() -> None:
    order = Repair(0)
    feed(order, (1, 1), (LAST_SEQ - 1, LAST_SEQ))
    assert order.missing == [(2, LAST_SEQ - 2)]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    total=st.integers(1, 120),
    after=st.none() | st.just(0),
    most=st.integers(1, 4),
)
def test_any_loss_reordering_and_repetition_is_repaired(seed: int, total: int, after: int | None, most: int) -> None:
    """The server answers three requests of four; datagrams arrive late, twice, or not at all."""
    random = Random(seed)
    order = Repair(after)
    delivered: list[int] = []

    def come(first: int, last: int) -> None:
        while first <= last:
            size = random.randrange(1, 9)
            if random.random() < 0.7:
                for _ in range(random.choice((1, 1, 2))):
                    arrivals.insert(random.randrange(len(arrivals) + 1), (first, min(last, first + size - 1)))
            first += size

    arrivals: list[tuple[int, int]] = []
    come(1, total)
    start = None if after is None else 1
    now = 0.0
    while now < 200 and not (order.position == total and not order.missing):
        for first, last in arrivals:
            _, ready = order.received(run(first, last), now)
            if start is None:
                start = first
            delivered += seqs(ready)
        arrivals = []
        now += 0.05
        for passed in order.give_up(now):
            assert not isinstance(passed, RecordsSkipped), "another request would have been answered"
        for first, last in order.due(now, most):
            if random.random() < 0.9:
                come(first, min(last, total))
        if order.position is None:
            come(1, total)
    assert delivered == list(range(start or 1, total + 1))


@example(after=1, arrivals=[(1, 0, True)])
@settings(max_examples=100, deadline=None)
@given(
    after=st.none() | st.integers(0, 3),
    arrivals=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 8), st.booleans()), max_size=25),
)
def test_repair_agrees_with_a_model_that_is_a_set_of_numbers(
    after: int | None, arrivals: list[tuple[int, int, bool]]
) -> None:
    """Compare new, delivered, missing and repeated records with those of a plain set, for any sequence of runs."""
    order = Repair(after, reorder=0.0, probe=1e9)
    seen: set[int] = set()
    position, repeated, now, tail = after, 0, 0.0, False
    for first, more, ask in arrivals:
        if position is None:
            position = first - 1
        begin, came = position, set(range(first, first + more + 1))
        fresh = {seq for seq in came - seen if seq > begin}
        repeated += len(came - fresh)
        seen |= fresh
        while position + 1 in seen:
            position += 1
        highest = max(seen, default=position)
        new, ready = order.received(run(first, first + more), now)
        assert sorted(seqs(new)) == sorted(fresh)
        assert seqs(ready) == list(range(begin + 1, position + 1))
        assert (order.position, order.highest, order.duplicates) == (position, max(highest, position), repeated)
        gone = [seq for seq in range(position + 1, highest) if seq not in seen]
        assert [seq for gap in order.missing for seq in range(gap[0], gap[1] + 1)] == gone
        assert all(low - 1 in seen or low - 1 == position for low, _ in order.missing), (
            "gaps next to each other are one"
        )
        now += 1.0
        if ask:
            due = order.due(now, 99)
            asked = [(low, high) for low, high in due if high < LAST_SEQ]
            tail = tail or asked != due  # all that follows the highest number was requested as well
            assert [seq for low, high in asked for seq in range(low, high + 1)] == gone
            for low in range(1, highest + 9):
                for high in (low, low + 1, low + 4, low + 20):
                    expected = any(low <= seq <= high for seq in gone) or (tail and high > highest)
                    assert order.was_requested(low, high) is expected
