"""Columns of record batches, where reading whole journals does not show it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fyrehose.errors import ConfigError
from fyrehose.spark.columns import COLUMNS, Kind, Pieces, arrow_schema


def pieces(columns: tuple[str, ...], *kinds: Kind) -> Pieces:
    made = Pieces(columns, list(kinds))
    for i in range(len(kinds)):
        made.runs.append((i, 2, 1 + 2 * i, i, 0, bytes([1, 0, 0, 0, 0, 0, 0, 0]), b"x"))
        made.rows += 2
    return made


def test_a_schema_is_that_of_the_columns_in_their_order() -> None:
    schema = arrow_schema(("payload", "seq"))
    assert schema.names == ["payload", "seq"]
    assert not schema.field("seq").nullable
    with pytest.raises(ConfigError, match="unknown column 'offset': expected one of stream, seq"):
        arrow_schema(("offset",))


def test_a_single_large_run_is_passed_on_where_it_is() -> None:
    one = pieces(("payload",), Kind(0, "s", "src", None, None, None))
    payload = bytearray(b"x")
    one.runs = [(*one.runs[0][:6], payload)]
    batch = one.batch(arrow_schema(("payload",)))
    payload[0] = ord("y")
    assert batch.to_pylist() == [{"payload": b"y"}, {"payload": b""}]


def test_constants_that_some_runs_lack() -> None:
    made = pieces(("topic", "source"), Kind(0, "s", "src", None, None, None), Kind(2, "s", "src", None, "", None))
    batch = made.batch(arrow_schema(("topic", "source")))
    assert batch.column("topic").to_pylist() == [None, None, "", ""]
    assert batch.column("source").to_pylist() == ["src"] * 4
    batch.validate(full=True)


def test_every_column_has_its_type() -> None:
    batch = pieces(tuple(COLUMNS), Kind(0, "s", "src", None, None, None)).batch(arrow_schema(tuple(COLUMNS)))
    assert {field.name: field.type for field in batch.schema} == COLUMNS
    assert isinstance(batch, pa.RecordBatch)
    batch.validate(full=True)
