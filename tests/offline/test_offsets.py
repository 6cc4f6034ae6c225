"""Offsets as texts and objects (with journals: tests/spark/test_offsets.py)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.offline.offsets import Offset, Offsets
from fyrehose.offline.places import Directory
from fyrehose.offline.view import look
from fyrehose.offline.walk import Batch, Log, SegmentStart, walk
from tests.offline.conftest import flip


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


def test_offsets_are_the_chains_in_the_files_and_stay_valid_when_damage_is_set_aside(
    open_journal: Callable[..., Any],
) -> None:
    bench = open_journal(segment_size=4096)
    for number in range(80):
        bench.append(b"%03d" % number * 100)
    bench.close()
    place, view, chains = Directory(bench.directory), look(bench.directory), dict[int, int]()
    for found in walk(Log.of(bench.directory)):
        if isinstance(found, SegmentStart) and found.header is not None:
            chains[found.segment.base] = found.header.chain
        elif isinstance(found, Batch):
            chains |= {found.header.position: found.header.chain, found.header.end: found.header.checksum}
    offsets = {position: Offsets(place).at(position) for position in chains}
    assert {position: offset.chain for position, offset in offsets.items()} == chains
    segments = scan.segments(bench.directory)
    assert len(segments) > 6
    last = [position for position in chains if segments[4].base < position < segments[5].base][-1] - segments[4].base
    end = sorted(chains)[-2] - segments[-1].base  # the last batch begins there
    damages = (1, 20), (3, 1000), (4, last + 20), (5, 20), (5, fmt.SEGMENT_HEADER.size + 20), (-1, end + 20)
    for number, at in damages:
        flip(segments[number].path, at)
    open_journal(segment_size=4096, quarantine=True).close()
    with segments[2].path.open("r+b") as file:  # an earlier version has replaced this header
        header = fmt.SegmentHeader.unpack(file.read(fmt.SEGMENT_HEADER.size))
        file.seek(0)
        file.write(attrs.evolve(header, created=0, chain=7).pack())
    for offset in offsets.values():
        for seen in (view, look(bench.directory)):
            Offsets(place).check(offset, seen, "read all of it again")
    offset = offsets[sorted(chains)[2]]
    with pytest.raises(JournalCorrupt, match=r"does not continue at position \d+ .*; read all of it again"):
        Offsets(place).check(attrs.evolve(offset, chain=7), view, "read all of it again")


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
