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


def test_numbers_of_a_stream_begin_with_1_and_are_consecutive(sequencer: Sequencer) -> None:
    assert reserve(sequencer, [("a", 3)]) == (1,)
    assert reserve(sequencer, [("a", 2), ("b", 1)]) == (4, 1)
    assert reserve(sequencer, [("a", 1)]) == (6,)


def test_one_call_may_name_a_stream_twice(sequencer: Sequencer) -> None:
    assert reserve(sequencer, [("a", 2), ("b", 1), ("a", 3), ("a", 1)]) == (1, 1, 3, 6)
    assert reserve(sequencer, [("a", 1)]) == (7,)


def test_reserving_no_numbers_changes_nothing(sequencer: Sequencer) -> None:
    assert reserve(sequencer, []) == ()


def test_sequencer_continues_from_given_ends(sequencer: Sequencer) -> None:
    reserve(sequencer, [("a", 5), ("gone", 5)])
    sequencer.restore({"a": 2, "b": 40})
    assert reserve(sequencer, [("a", 1), ("b", 1), ("gone", 1)]) == (3, 41, 1)


def test_unknown_streams_begin_above_the_floor(sequencer: Sequencer) -> None:
    sequencer.restore({"a": 2000}, floor=1000)
    assert reserve(sequencer, [("a", 1), ("new", 2), ("new", 1)]) == (2001, 1001, 1003)


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


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 1000)), max_size=5), max_size=20))
def test_no_number_is_given_twice_or_left_out(calls: list[list[tuple[str, int]]]) -> None:
    sequencer, ends = Sequencer(), dict.fromkeys("abc", 0)
    for wanted in calls:
        for (stream, count), first in zip(wanted, reserve(sequencer, wanted), strict=True):
            assert first == ends[stream] + 1
            ends[stream] += count


def test_last_returns_the_last_reserved_number(sequencer: Sequencer) -> None:
    assert sequencer.last("a") == 0
    reserve(sequencer, [("a", 3)])
    assert (sequencer.last("a"), sequencer.last("b")) == (3, 0)


def test_the_floor_of_unknown_streams_rises_and_never_falls(sequencer: Sequencer) -> None:
    reserve(sequencer, [("a", 3)])
    sequencer.raise_floor(10)
    sequencer.raise_floor(5)
    assert reserve(sequencer, [("a", 1), ("b", 1)]) == (4, 11)
