"""Maps from ranges of numbers to states, and sets of numbers."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from fyrehose.spans import NumberSet, Spans, merged
from tests.doubles.awkward import RANGES


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


@pytest.mark.parametrize("seed", range(20))
def test_random_additions_agree_with_a_set_of_single_numbers(seed: int) -> None:
    dice = random.Random(seed)
    floor = dice.randint(0, 5)
    numbers, known = NumberSet(floor), set(range(1, floor + 1))
    for _ in range(15):
        first = dice.randint(1, 40)
        added = set(range(first, first + dice.choice((0, 1, 1, 2, 6))))
        assert numbers.add(first, first + len(added) - 1) == len(added - known), "another count of new numbers"
        known |= added
        assert {number for number in range(1, 60) if number in numbers} == known
        assert numbers.highest == max(known, default=0)
        assert numbers.floor == next(number for number in range(60) if number + 1 not in known)
        at = dice.randint(1, 50)
        missing = [number for low, high in numbers.gaps(at, 50) for number in range(low, high + 1)]
        assert missing == [number for number in range(at, 51) if number not in known]
        above = [number for low, high in numbers.above(at) for number in range(low, high + 1)]
        assert above == sorted(number for number in known if number > max(at, numbers.floor))


@pytest.mark.parametrize("ranges", RANGES)
def test_merged_ranges_have_the_same_numbers_and_do_not_touch(ranges: tuple[tuple[int, int], ...]) -> None:
    found = merged(ranges)
    assert {n for first, last in found for n in range(first, last + 1)} == {
        n for first, last in ranges for n in range(first, last + 1)
    }
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(found)), f"{found} could be fewer ranges"
