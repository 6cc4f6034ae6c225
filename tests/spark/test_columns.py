"""Columns of record batches, in cases that the tests of whole journals do not have."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fyrehose.errors import ConfigError
from fyrehose.spark.columns import COLUMNS, Pieces, RunKind, arrow_schema


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
    days = dict(made.by_day())
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
