"""Keys of events: what is recognized as sent again, and what is forgotten."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import ConfigError
from fyrehose.spark.typed.keys import RecentKeys
from fyrehose.spark.typed.writing import DIGEST


def digest(number: int) -> bytes:
    return number.to_bytes(DIGEST, "big")


def add(keys: RecentKeys, events: list[tuple[int, int]]) -> list[bool]:
    times = np.array([time for _, time in events], np.int64)
    return list(map(bool, keys.add(b"".join(digest(key) for key, _ in events), times)))


def test_row_without_a_key_is_never_a_repetition() -> None:
    assert add(RecentKeys("t", 10), [(0, 0), (0, 0), (0, 1)]) == [True, True, True]


def test_repetition_is_found_although_the_clock_was_set_back() -> None:
    assert add(RecentKeys("t", 10), [(1, 100), (1, 50), (2, 50)]) == [True, False, True]


def test_old_keys_are_forgotten_and_too_many_are_an_error() -> None:
    keys = RecentKeys("t", 10, most=20)
    assert all(add(keys, [(number, number) for number in range(1, 1000)]))
    with pytest.raises(ConfigError, match=r"the table 't' has more than 20 keys"):
        add(keys, [(number, 1000) for number in range(2000, 2030)])


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), max_size=40), st.lists(st.integers(1, 5), max_size=40))
def test_kept_rows_do_not_depend_on_the_division_into_rounds(steps: list[tuple[int, int]], sizes: list[int]) -> None:
    """Compare with a model that forgets nothing, and allow no more keys than are still needed."""
    events, now, needed = [], 0, 0
    kept: list[bool] = []
    last: dict[int, int] = {}
    for key, pause in steps:
        now += pause
        events.append((key, now))
        kept.append(key not in last or last[key] < now - 7)
        if kept[-1]:
            last[key] = now
        needed = max(needed, sum(time >= now - 7 for time in last.values()))
    rounds, left, found = RecentKeys("t", 7, most=needed), events, []
    for size in [*sizes, len(events)]:
        found += add(rounds, left[:size]) if left[:size] else []
        left = left[size:]
    assert found == kept, "other rows stay than without rounds"
