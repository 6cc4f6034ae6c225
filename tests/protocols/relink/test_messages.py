"""Runs of messages: columns, pieces, and their records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.protocols.relink.messages import CONTENT_TYPE, MessageSequence, cut, join, parts_of, piece_of
from fyrehose.records import Column, Run, column_of


@given(st.lists(st.binary(max_size=9), max_size=6), st.integers(0, 7))
def test_columns_of_messages_can_be_sliced(payloads: list[bytes], count: int) -> None:
    column = column_of(payloads)
    assert [parts for (parts,) in parts_of(column)] == payloads
    first, rest = cut(column, count)
    assert (len(first), [*parts_of(first), *parts_of(rest)]) == (min(count, len(payloads)), [*parts_of(column)])


def test_equality_does_not_depend_on_pieces() -> None:
    whole = MessageSequence((column_of([b"a", b"b"]), ((b"c", b"d"),)))
    assert whole == MessageSequence.of((b"a",), (b"b",), (b"c", b"d"))
    assert whole != MessageSequence.of((b"a",), (b"b",))
    assert whole != [(b"a",), (b"b",), (b"c", b"d")]
    assert len(whole) == 3
    assert cut(((b"a",), (b"b", b"c")), 1) == (((b"a",),), ((b"b", b"c"),))


@pytest.mark.parametrize("columns", [False, True])
def test_runs_keep_order_and_numbers(columns: bool) -> None:
    begin = (column_of([b"a"]), column_of([b"b"])) if columns else (((b"a",), (b"b",)),)
    messages = MessageSequence((*begin, ((), (b"c", b"d")), ((b"e",),)))
    runs = messages.runs(10, "s", source="relink", producer="p", topic="t")
    assert [(run.producer_seq, run.content_type, [*map(bytes, run.payloads())]) for run in runs] == [
        (10, None, [b"a", b"b"]),
        (12, CONTENT_TYPE, [join(()), join((b"c", b"d"))]),
        (14, None, [b"e"]),
    ]
    assert {(run.stream, run.source, run.producer, run.topic) for run in runs} == {("s", "relink", "p", "t")}


def test_run_of_one_column_shares_its_bytes() -> None:
    column = column_of([b"a", b"b"])
    (run,) = MessageSequence((column,)).runs(0, "s", source="relink", producer="p", topic="t")
    assert run.payload is column.payload
    assert run.lengths is column.lengths


def test_records_are_converted_back_to_messages() -> None:
    plain = Run.of("s", [b"a", join((b"b", b"c"))], source="x")
    assert piece_of(plain, 4) == Column(plain.lengths, plain.payload)
    parts = Run.of("s", [join((b"b", b"c")), b"none"], source="x", content_type=CONTENT_TYPE)
    assert piece_of(parts, 4) == ((b"b", b"c"), (b"none",))
