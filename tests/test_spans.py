"""Maps from ranges of numbers to states, and sets of numbers."""

from __future__ import annotations

import random

import pytest

from fyrehose.spans import NumberSet, Spans


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_agree_with_a_map_of_single_numbers(seed: int) -> None:
    dice = random.Random(seed)
    spans: Spans[str] = Spans()
    known: dict[int, str] = {}
    for _ in range(60):
        first = dice.randint(1, 40)
        last = first + dice.choice((0, 0, 1, 5))
        numbers = range(first, last + 1)
        if dice.random() < 0.7:
            state = dice.choice("abc")
            replaced = spans.set(first, last, state)
            known |= dict.fromkeys(numbers, state)
        else:
            replaced = spans.remove(first, last)
            known = {number: state for number, state in known.items() if number not in numbers}
        assert all(first <= span.first <= span.last <= last for span in replaced)
        assert {number: spans.find(number).state for number in range(60) if spans.find(number)} == known  # type: ignore[union-attr]
        found = {number: state for low, high, state in spans.within(5, 30) for number in range(low, high + 1)}
        assert found == {number: state for number, state in known.items() if 5 <= number <= 30}
        all_ = {number: state for low, high, state in spans.over(5, 30, "none") for number in range(low, high + 1)}
        assert all_ == {number: known.get(number, "none") for number in range(5, 31)}
        ends = [(span.last, span.state) for span in spans]
        assert not any((span.first - 1, span.state) in ends for span in spans), "neighbours of one state are one span"


def test_a_range_splits_where_a_part_of_it_changes() -> None:
    spans: Spans[str] = Spans()
    spans.set(1, 9, "a")
    spans.set(4, 5, "b")
    assert spans.within(1, 9) == [(1, 3, "a"), (4, 5, "b"), (6, 9, "a")]
    spans.set(4, 5, "a")
    assert spans.within(0, 99) == [(1, 9, "a")]


def test_the_highest_number_of_a_set_may_be_above_its_floor() -> None:
    numbers = NumberSet(3)
    assert numbers.highest == 3
    numbers.add(7, 8)
    assert (numbers.floor, numbers.highest) == (3, 8)
