"""Offsets as texts and objects (with journals: tests/spark/test_offsets.py)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fyrehose.offline.offsets import Offset, Offsets
from fyrehose.offline.places import Directory
from fyrehose.offline.view import look


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


def test_offset_at_the_end_is_that_of_a_journal_that_was_put_back(
    open_journal: Callable[..., Any], tmp_path: Path
) -> None:
    bench = open_journal()
    bench.append(b"early")
    bench.close()
    early = tmp_path / "early"
    shutil.copytree(bench.directory, early)
    bench = open_journal()
    bench.append(b"late")
    offsets = Offsets(Directory(bench.directory))
    late = offsets.at(look(bench.directory).mark)
    bench.close()
    shutil.rmtree(bench.directory)
    shutil.copytree(early, bench.directory)
    position = look(bench.directory).mark
    assert position < late.position
    assert offsets.at(position) == Offsets(Directory(bench.directory)).at(position)
