"""Columns of record batches, in cases that the tests of whole journals do not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import ConfigError
from fyrehose.spark.columns import COLUMNS, Pieces, RunKind, arrow_schema, spread


def pieces(columns: tuple[str, ...], *kinds: RunKind) -> Pieces:
    made = Pieces(arrow_schema(columns), list(kinds))
    for i in range(len(kinds)):
        made.add(i, 1 + 2 * i, i, 0, b"", bytes([1, 0, 0, 0, 0, 0, 0, 0]), b"x")
    return made


def test_schema_has_the_requested_columns_in_their_order() -> None:
    schema = arrow_schema(("payload", "seq"))
    assert schema.names == ["payload", "seq"]
    assert not schema.field("seq").nullable
    with pytest.raises(ConfigError, match="unknown column 'offset': expected one of stream, seq"):
        arrow_schema(("offset",))


def test_single_large_run_is_passed_on_without_a_copy() -> None:
    one = pieces(("payload",), RunKind(0, "s", "src", None, None, None))
    payload = bytearray(10)
    one.chunks.append(payload)
    one.table[0, 5:] = 1, 0, 1, 9, 1
    payload[:] = bytes([0, 1, 0, 0, 0, 0, 0, 0, 0]) + b"x"
    batch = one.batch()
    payload[9] = ord("y")
    assert batch.to_pylist() == [{"payload": b"y"}, {"payload": b""}]


def test_constants_that_some_runs_lack_are_null() -> None:
    made = pieces(("topic", "source"), RunKind(0, "s", "src", None, None, None), RunKind(2, "s", "src", None, "", None))
    batch = made.batch()
    assert batch.column("topic").to_pylist() == [None, None, "", ""]
    assert batch.column("source").to_pylist() == ["src"] * 4
    batch.validate(full=True)


def test_every_column_has_its_type() -> None:
    batch = pieces(tuple(COLUMNS), RunKind(0, "s", "src", None, None, None)).batch()
    assert {field.name: field.type for field in batch.schema} == COLUMNS
    assert isinstance(batch, pa.RecordBatch)
    batch.validate(full=True)


def test_runs_of_each_day_are_sorted_by_stream_and_encoded() -> None:
    names = ("stream", "seq", "topic", "producer_seq", "payload")
    kinds = [RunKind(16, "b", "src", None, None, None), RunKind(2, "a", "src", None, "t", None)]
    made = Pieces(arrow_schema(names, encoded=True), kinds)
    day, numbers = 86_400_000_000, iter((7, 8, 9))
    for kind, first, time in ((0, 1, day - 1), (1, 1, day - 1), (0, 2, day - 1), (0, 3, day), (1, 2, day)):
        listed = next(numbers).to_bytes(8, "little") if kind == 0 else b""
        made.add(kind, first, time, 0, listed, bytes([1, 0, 0, 0]), b"%d" % first)
    days = dict(made.by_period(day))
    batch = days[0].batch()
    batch.validate(full=True)
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        ("a", 1, "t", None, b"1"),
        ("b", 1, None, 7, b"1"),
        ("b", 2, None, 8, b"2"),
    ]
    assert [tuple(row.values()) for row in days[1].batch().to_pylist()] == [
        ("a", 2, "t", None, b"2"),
        ("b", 3, None, 9, b"3"),
    ]
    assert pa.types.is_dictionary(batch.schema.field("stream").type)


KINDS = [
    (pa.string(), st.text(max_size=3)),
    (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.timestamp("us", "UTC"), st.integers(0, 1 << 50)),
]


@given(st.data())
def test_spread_values_are_at_their_rows_and_all_others_are_null(data: Any) -> None:
    kind, values = data.draw(st.sampled_from(KINDS))
    whole = data.draw(st.lists(st.none() | values, max_size=20))
    rows = data.draw(st.lists(st.integers(0, 30), min_size=len(whole), max_size=len(whole), unique=True).map(sorted))
    skip = data.draw(st.integers(0, len(whole)))
    some = pa.array(whole, kind).slice(skip)
    found = spread(some, np.array(rows[skip:], np.int64), 31)
    found.validate(full=True)
    expected = dict(zip(rows[skip:], some.to_pylist(), strict=True))
    assert found.to_pylist() == [expected.get(row) for row in range(31)]
    assert found.type == kind
