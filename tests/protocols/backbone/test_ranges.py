"""Sets of sequences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fyrehose.protocols.backbone.ranges import Ranges
from fyrehose.records import Run

PAIRS = st.tuples(st.integers(1, 40), st.integers(0, 9)).map(lambda pair: (pair[0], sum(pair)))


def sequences(ranges: Ranges) -> set[int]:
    return {seq for first, last in ranges for seq in range(first, last + 1)}


@given(st.lists(PAIRS), st.integers(0, 60), st.lists(st.integers(1, 5), min_size=1, max_size=9))
def test_ranges_behave_as_a_set(pairs: list[tuple[int, int]], seq: int, sizes: list[int]) -> None:
    ranges, expected = Ranges(), set()
    for first, last in pairs:
        assert ranges.add(first, last, most=100)
        expected |= set(range(first, last + 1))
    assert sequences(ranges) == expected
    assert ranges.sequences == len(expected)
    assert all(before[1] + 1 < after[0] for before, after in zip(ranges, list(ranges)[1:], strict=False))
    assert sequences(ranges.after(seq)) == {each for each in expected if each > seq}
    assert list(ranges.first(2)) == list(ranges)[:2]
    runs, at = [], 3
    for size in sizes:
        runs.append(Run.of("s", [b"%d" % number for number in range(at, at + size)], source="x").numbered(at, 0))
        at += size + size % 2
    kept = {n for run in runs for n in range(run.first_seq, run.last_seq + 1)}
    selected = ranges.select(runs)
    assert [seq for run in selected for seq in range(run.first_seq, run.last_seq + 1)] == sorted(expected & kept)
    assert all(bytes(data) == b"%d" % seq for run in selected for seq, data in enumerate(run.payloads(), run.first_seq))


def test_number_of_ranges_is_bounded() -> None:
    ranges = Ranges()
    assert ranges.add(1, 1, most=2)
    assert ranges.add(9, 9, most=2)
    assert not ranges.add(5, 5, most=2)
    assert ranges.add(2, 8, most=2), "it joins both"
    assert list(ranges) == [(1, 9)]
