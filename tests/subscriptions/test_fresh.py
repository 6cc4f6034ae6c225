"""Ranges of records in their first lease are split where an action begins or ends."""

from __future__ import annotations

import random

from fyrehose.subscriptions.fresh import FreshLease, FreshRange, FreshRanges

LEASE = FreshLease(1, 100, 10.0, "w")


def ranges(*bounds: tuple[int, int]) -> FreshRanges:
    found = FreshRanges()
    for first, last in bounds:
        found.add(FreshRange(first, last, LEASE))
    return found


def bounds(found: list[FreshRange]) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in found]


def test_a_cut_splits_the_ranges_at_its_ends() -> None:
    found = ranges((1, 4), (5, 9), (20, 30))
    assert bounds(found.cut(3, 22)) == [(3, 4), (5, 9), (20, 22)]
    assert bounds(list(found)) == [(1, 2), (3, 4), (5, 9), (20, 22), (23, 30)]
    assert bounds(found.cut(10, 19)) == []


def test_parts_of_a_split_range_have_its_lease_and_its_state() -> None:
    found = ranges((1, 9))
    found.cut(1, 9)[0].closing = True
    assert [(each.lease, each.closing) for each in found.cut(4, 5)] == [(LEASE, True)]
    assert all(each.closing for each in found)


def test_removed_records_are_not_found_any_more() -> None:
    found = ranges((1, 9))
    assert bounds(found.remove(4, 5)) == [(4, 5)]
    assert [found.find(seq) is None for seq in (3, 4, 5, 6, 10)] == [False, True, True, False, True]


def test_random_actions_have_the_same_results_as_with_sets() -> None:
    dice = random.Random(1)
    for _ in range(300):
        found, truth, last = FreshRanges(), set[int](), 0
        for _ in range(20):
            first = dice.randint(1, last + 3)
            end = first + dice.randint(0, 5)
            if first > last:
                found.add(FreshRange(first, end, LEASE))
                truth |= set(range(first, end + 1))
                last = end
            elif dice.random() < 0.5:
                cut = {seq for each in found.cut(first, end) for seq in range(each.first, each.last + 1)}
                assert cut == truth & set(range(first, end + 1))
            else:
                found.remove(first, end)
                truth -= set(range(first, end + 1))
            assert [seq for each in found for seq in range(each.first, each.last + 1)] == sorted(truth)
            assert {seq for seq in range(1, last + 1) if found.find(seq)} == truth
