"""Indexes: the packed and the unpacked form give the same answers, and a reader that follows one misses no record."""

from __future__ import annotations

from itertools import pairwise

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.journal import format as fmt
from fyrehose.journal.index import SPACING, Index, PackedIndex, SegmentIndex

BASE, STREAMS = 4096, ("a", "ab", "b", "é", "z" * 255)


@st.composite
def histories(draw: st.DrawFn) -> tuple[SegmentIndex, dict[str, list[tuple[int, int, int]]]]:
    """Build an index; return it, and (position, first, last) of the batches of each stream."""
    index = SegmentIndex(BASE, floor=draw(st.integers(0, 3)))
    told: dict[str, list[tuple[int, int, int]]] = {}
    index.set_before(
        [fmt.Entry(stream, 0, draw(st.integers(0, 9))) for stream in draw(st.sets(st.sampled_from(STREAMS)))]
    )
    position = BASE
    for _ in range(draw(st.integers(0, 25))):
        for stream in draw(st.sets(st.sampled_from(STREAMS), min_size=1)):
            first = (told[stream][-1][2] if stream in told else index.last_before(stream)) + draw(st.integers(1, 3))
            last = first + draw(st.integers(0, 4))
            index.add_run(position, stream, first, last)
            told.setdefault(stream, []).append((position, first, last))
        position += draw(st.sampled_from([8, 1000, SPACING - 8, SPACING, SPACING + 8, 5 * SPACING]))
    index.end = position
    return index, told


def both(index: SegmentIndex) -> tuple[Index, Index]:
    packed = PackedIndex.unpack(index.pack(), BASE, index.end)
    assert packed is not None
    return index, packed


@given(histories())
@settings(max_examples=150, deadline=None)
def test_following_the_index_finds_every_record(
    history: tuple[SegmentIndex, dict[str, list[tuple[int, int, int]]]],
) -> None:
    whole, told = history
    ends = sorted({at for batches in told.values() for at, _, _ in batches} | {whole.end})
    behind = dict(pairwise(ends))
    for index in both(whole):
        for stream in (*STREAMS, "nobody", ""):
            batches = told.get(stream, [])
            assert index.last_before(stream) == whole.last_before(stream)
            assert index.last(stream) == (batches[-1][2] if batches else 0)
            for seq in range(index.last(stream) + 3):
                wanted = [at for at, _, last in batches if last >= seq]
                position = index.find(stream, seq)
                if not wanted:
                    assert position is None
                    continue
                assert position is not None
                assert position <= wanted[0]
                pairs = index.pairs(stream)
                assert position == max((at for first, at in pairs if first <= seq), default=pairs[0][1]), "no sooner"
                seen = []
                while position is not None and position < index.end:
                    seen.append(position)
                    place = behind[position]
                    near = any(at <= place < at + SPACING for _, at in pairs)
                    position = index.following(stream, place)
                    assert position == (place if near else min((at for _, at in pairs if at > place), default=None))
                assert set(wanted) <= set(seen)


def test_pairs_are_64_kib_apart() -> None:
    """Other processes and versions read index files, so the distance of the pairs is fixed."""
    index = SegmentIndex(0)
    for position in (64, 64 + 65528, 64 + 65536, 64 + 65536 + 65528, 64 + 65536 + 65544):
        index.add_run(position, "s", position, position)
    pairs = [(position, position) for position in (64, 65600, 131144)]
    for each in (index, PackedIndex.unpack(index.pack(), 0, 0)):
        assert each is not None
        assert each.pairs("s") == pairs
        assert each.find("s", 131144) == 131144, "no batch before it is read"
        assert each.pairs("nobody") == []
        assert each.following("s", 64 + 65528) == 64 + 65528
        assert each.following("s", 65600 + 65536) == 131144


def test_an_index_has_the_specified_bytes() -> None:
    index = SegmentIndex(4096, end=9000)
    index.set_before([fmt.Entry("b", 0, 7), fmt.Entry("old", 0, 6, fmt.StreamState.RETIRED), fmt.Entry("", 2048, 3)])
    index.add_run(5000, "b", 8, 9)
    data = index.pack()
    assert data[:8] == b"FYREIDX3"
    assert int.from_bytes(data[48:52], "little") == crc32c(data[56:], crc32c(data[:48] + bytes(8)))
    assert data[52:] == bytes.fromhex(
        "00000000"
        "01000000 01000000 0700000000000000 0900000000000000"
        "04000000 01000000 0600000000000000 0000000000000000"
        "62 6f6c64 00000000 0800000000000000 8813000000000000"
    )
    packed = PackedIndex.unpack(data, 4096, 9000)
    assert packed is not None
    assert list(packed.streams()) == ["b"]
    assert (packed.end, packed.floor, packed.snapshot) == (9000, 3, 2048)
    for each in (index, packed):
        assert [each.last_before(stream) for stream in ("b", "old", "of the snapshot")] == [7, 6, None]


@pytest.mark.parametrize(("size", "base", "end"), [(0, 0, 0), (-3, 0, 0), (None, 8, 0), (None, 0, 8)])
def test_truncated_index_or_one_of_another_segment_is_ignored(size: int | None, base: int, end: int) -> None:
    index = SegmentIndex(BASE, end=9000)
    index.add_run(5000, "s", 1, 2)
    assert PackedIndex.unpack(index.pack()[:size], BASE + base, 9000 + end) is None


def test_every_flipped_bit_of_an_index_is_detected() -> None:
    index = SegmentIndex(BASE, end=9000, floor=3)
    index.add_run(5000, "s", 1, 2)
    index.set_before([fmt.Entry("old", 0, 77)])
    data = index.pack()
    assert PackedIndex.unpack(data, BASE, 9000) is not None
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert PackedIndex.unpack(bytes(changed), BASE, 9000) is None, f"bit {bit}"


@given(histories(), st.integers(0, 40 * SPACING))
@settings(max_examples=100, deadline=None)
def test_positions_of_an_index_are_the_pairs_of_all_streams_in_order(
    made: tuple[SegmentIndex, dict[str, list[tuple[int, int, int]]]], position: int
) -> None:
    positions = {at for stream in STREAMS for _, at in made[0].pairs(stream) if at >= position}
    for index in both(made[0]):
        assert index.positions(position) == sorted(positions)
