"""The check whether a backbone has another journal: what it requests, and what it concludes from the answers."""

from __future__ import annotations

from fyrehose.protocols.backbone.restarts import EVIDENCE, FIRST_ROUNDS, ROUND, ROUNDS, RestartCheck
from fyrehose.records import Run


def records(first: int, last: int) -> Run:
    return Run.of("backbone", [b"x"] * (last + 1 - first), source="", first_seq=first)


def begun() -> RestartCheck:
    check = RestartCheck()
    check.begin(20, 0.0)
    return check


def test_first_rounds_ask_only_for_the_highest_sequence() -> None:
    check = begun()
    asked = [check.due(number * ROUND) for number in range(ROUNDS)]
    assert asked == [[(20, 20)]] * FIRST_ROUNDS + [[(20, 20), (1, 20)]] * (ROUNDS - FIRST_ROUNDS)


def test_check_without_answers_ends_without_a_result() -> None:
    check = begun()
    for number in range(ROUNDS):
        check.due(number * ROUND)
    assert check.due(ROUNDS * ROUND) == []
    assert check.next_due() is None


def test_same_earlier_records_in_several_rounds_mean_another_journal() -> None:
    check = begun()
    found = []
    for number in range(FIRST_ROUNDS + EVIDENCE):
        check.due(number * ROUND)
        if number >= FIRST_ROUNDS:
            found.append(check.received(records(1, 5)))
    assert found == [False] * (EVIDENCE - 1) + [True]
    assert (check.highest, check.end) == (20, 5)


def test_answers_with_other_records_count_from_the_lowest_of_them() -> None:
    check = begun()
    found = []
    for number in range(FIRST_ROUNDS + 2 * EVIDENCE - 1):
        check.due(number * ROUND)
        if number >= FIRST_ROUNDS:
            found.append(check.received(records(1 if len(found) >= EVIDENCE - 1 else 2, 5)))
    assert found == [False] * (2 * EVIDENCE - 2) + [True]


def test_answer_with_the_highest_sequence_ends_the_check() -> None:
    check = begun()
    check.due(0.0)
    assert not check.received(records(18, 20))
    assert check.next_due() is None
    assert not check.suspects


def test_several_answers_in_one_round_count_once() -> None:
    check = begun()
    for number in range(FIRST_ROUNDS + 1):
        check.due(number * ROUND)
    assert not any(check.received(records(1, 5)) for _ in range(2 * EVIDENCE))


def test_records_that_differ_from_round_to_round_are_no_evidence() -> None:
    """They are those that a server delivers while it copies them, and not answers."""
    check = begun()
    found = []
    for number in range(ROUNDS):
        check.due(number * ROUND)
        found.append(check.received(records(number + 1, number + 1)))
    assert not any(found)
