"""Sequence numbers that wrap on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.protocols.relink.numbers import nearest

WRAP = 1 << 32


@pytest.mark.parametrize(
    ("number", "cursor", "meant"),
    [
        (0, -1, 0),
        (WRAP - 1, -1, -1),
        (5, 4, 5),
        (3, 4, 3),
        (0, WRAP - 1, WRAP),
        (WRAP - 1, WRAP, WRAP - 1),
        (7, 3 * WRAP + 6, 3 * WRAP + 7),
    ],
)
def test_nearest_number(number: int, cursor: int, meant: int) -> None:
    assert nearest(number, cursor) == meant


@given(st.integers(-1, 1 << 60), st.integers(-(1 << 31), (1 << 31) - 1))
def test_nearest_number_within_half_the_range(cursor: int, distance: int) -> None:
    assert nearest((cursor + distance) % WRAP, cursor) == cursor + distance
