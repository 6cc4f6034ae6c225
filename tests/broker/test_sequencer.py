"""Test the allocation of numbers to streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import StreamFull
from fyrehose.records import LAST_SEQ, Run


@pytest.fixture
def sequencer() -> Sequencer:
    return Sequencer()


def reserve(sequencer: Sequencer, wanted: list[tuple[str, int]]) -> tuple[int, ...]:
    """Number a run for each stream and count of *wanted*; return the first numbers."""
    runs = [Run.of(stream, [b""] * count, source="test") for stream, count in wanted]
    sequencer.number(runs)
    assert all(run.last_seq == run.first_seq + count - 1 for run, (_, count) in zip(runs, wanted, strict=True))
    return tuple(run.first_seq for run in runs)


def test_sequencer_copies_the_given_ends(sequencer: Sequencer) -> None:
    ends = {"a": 1}
    sequencer.restore(ends)
    reserve(sequencer, [("a", 1)])
    assert ends == {"a": 1}


def test_the_largest_number_is_given_out_and_none_after_it(sequencer: Sequencer) -> None:
    sequencer.restore({"a": LAST_SEQ - 2})
    with pytest.raises(StreamFull, match=r"cannot take 3 more records: only 2 of its 2\^48 numbers are left"):
        reserve(sequencer, [("a", 3)])
    assert reserve(sequencer, [("a", 2)]) == (LAST_SEQ - 1,)
    with pytest.raises(StreamFull, match=r"cannot take 1 more records: only 0 of its 2\^48 numbers are left"):
        reserve(sequencer, [("a", 1)])


def test_numbers_are_reserved_in_all_streams_or_in_none(sequencer: Sequencer) -> None:
    sequencer.restore({"full": LAST_SEQ - 1})
    with pytest.raises(StreamFull):
        reserve(sequencer, [("a", 5), ("full", 1), ("full", 1)])
    assert reserve(sequencer, [("a", 1), ("full", 1)]) == (1, LAST_SEQ)


WANTED = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 1000)), max_size=5)
RESTORED = st.tuples(st.dictionaries(st.sampled_from("abc"), st.integers(1, 1000)), st.integers(0, 2000))


@given(st.lists(st.one_of(WANTED, RESTORED, st.integers(0, 3000)), max_size=20))
def test_no_number_is_given_twice_or_left_out_above_the_floor(
    steps: list[list[tuple[str, int]] | tuple[dict[str, int], int] | int],
) -> None:
    sequencer, ends, floor = Sequencer(), dict[str, int](), 0
    for step in steps:
        match step:
            case int():
                sequencer.raise_floor(step)
                floor = max(floor, step)
            case list():
                for (stream, count), first in zip(step, reserve(sequencer, step), strict=True):
                    assert first == ends.get(stream, floor) + 1, f"after {step} a number is used twice, or left out"
                    ends[stream] = first + count - 1
            case given, floor:
                sequencer.restore(given, floor)
                ends = dict(given)
        last = {stream: ends.get(stream, floor) for stream in "abc"}
        assert {stream: sequencer.last(stream) for stream in "abc"} == last, "wrong last number, above the floor"
