"""Offsets as texts and objects (with journals: tests/spark/test_offsets.py)."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.offline.offsets import Offset


def test_an_offset_survives_a_round_trip_through_json() -> None:
    for chain in (None, 0, (1 << 32) - 1):
        offset = Offset(77, bytes(range(16)), chain)
        assert Offset.parse(offset.fields) == offset


@pytest.mark.parametrize(
    "fields",
    [
        *(None, [], "x", {}, {"position": 1}),
        {"position": -1, "identity": "00", "chain": 1},
        {"position": "1", "identity": "00", "chain": 1},
        {"position": 1, "identity": "0", "chain": 1},
        {"position": 1, "identity": 5, "chain": 1},
        {"position": 1, "identity": "00", "chain": "1"},
    ],
    ids=repr,
)
def test_other_json_values_are_refused_as_an_offset(fields: Any) -> None:
    with pytest.raises(ValueError, match=r"invalid offset|hex"):
        Offset.parse(fields)
