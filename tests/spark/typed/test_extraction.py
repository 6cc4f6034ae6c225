"""Extraction: each value of an event is in a column, or its payload is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.patterns import Pattern
from fyrehose.spark.typed import extraction
from fyrehose.spark.typed.config import TYPES, TypedColumn, TypedTable, parsed_path
from fyrehose.spark.typed.extraction import Extracted, Widened, extracted


def table(columns: Mapping[str, Any], new_fields: str = "columns", time: str | None = None) -> TypedTable:
    made = []
    for name, value in columns.items():
        path, kind, *more = value if isinstance(value, tuple) else (name, value)
        base, steps = parsed_path(path)
        default, unit = (*more, None, None)[:2]
        made.append(TypedColumn(name=name, path=base, steps=steps, type=kind, default=default, unit=unit))
    of_time = None if time is None else TypedColumn(name="event_time", path=time, type="timestamp")
    return TypedTable(name="t", streams=(Pattern("*"),), columns=tuple(made), new_fields=new_fields, time=of_time)


def run(events: Sequence[Any], of: TypedTable, known: Mapping[str, str] = {}, **more: Any) -> Extracted:
    payloads = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in events]
    return extracted(payloads, of, known, **more)


def rows(found: Extracted) -> list[dict[str, Any]]:
    return list(pa.table(found.columns).to_pylist())


def kept(found: Extracted) -> list[int]:
    return [row for row, misfit in enumerate(found.misfits) if misfit]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("string", "text", "text"),
        ("string", "", ""),
        ("string", 5, "5"),
        ("string", 2.50, "2.5"),
        ("string", True, "true"),
        ("string", ["a", {"b": 1}], '["a",{"b":1}]'),
        ("string", {"b": {"c": None}}, '{"b":{"c":null}}'),
        ("string", "é\x00", "é\x00"),
        ("long", 5, 5),
        ("long", 5.0, 5),
        ("long", -(1 << 63), -(1 << 63)),
        ("double", 2.5, 2.5),
        ("double", 5, 5.0),
        ("double", 1 << 53, float(1 << 53)),
        ("boolean", False, False),
        ("timestamp", "2026-01-31T12:00:00.5Z", datetime(2026, 1, 31, 12, 0, 0, 500_000, UTC)),
        ("timestamp", "2026-01-31T12:00:00.123456789+02:00", datetime(2026, 1, 31, 10, 0, 0, 123_456, UTC)),
        ("timestamp", "2026-01-31 12:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("date", "2026-01-31", date(2026, 1, 31)),
    ],
)
def test_value_that_fits_its_type_is_stored(kind: str, value: Any, expected: Any) -> None:
    found = run([{"x": value}, {"y": 1}, {"x": None}], table({"x": kind}, "ignore"))
    assert [row["x"] for row in rows(found)] == [expected, None, None]
    assert kept(found) == []
    assert found.columns["x"].type == TYPES[kind]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", "half \ud800 pair"),
        ("long", "5"),
        ("long", 2.5),
        ("long", True),
        ("long", 1 << 63),
        ("long", 1e300),
        ("double", "2.5"),
        ("double", False),
        ("double", (1 << 53) + 1),
        ("boolean", 1),
        ("boolean", "true"),
        ("timestamp", "yesterday"),
        ("timestamp", 1_700_000_000),
        ("timestamp", "0001-01-01T00:00:00+14:00" * 2),
        ("date", "2026-02-30"),
        ("date", "20260131"),
        ("date", "2026-01-31T12:00:00Z"),
        ("date", 5),
        ("long", [1]),
        ("long", {"a": 1}),
    ],
)
def test_value_that_does_not_fit_keeps_the_payload(kind: str, value: Any) -> None:
    good = {"string": "s", "long": 1, "double": 1.5, "boolean": True, "timestamp": "2026-01-01", "date": "2026-01-01"}
    found = run([{"x": good[kind]}, {"x": value}, {"x": good[kind]}], table({"x": (("x"), kind, None)}, "ignore"))
    values = [row["x"] for row in rows(found)]
    assert values[1] is None
    assert None not in (values[0], values[2])
    assert kept(found) == [1]


@pytest.mark.parametrize(
    "payload",
    [b"", b"text", b"\xff{}", b"17", b"[1]", b"null", b'{"x": 1', b'{"x": NaN}', b'{"x": Infinity}', b"[" * 100_000],
)
def test_payload_that_is_no_json_object_is_kept(payload: bytes) -> None:
    found = run([payload, {"x": 1}], table({"x": ("x", "long", 7)}))
    assert rows(found) == [{"x": 7}, {"x": 1}]
    assert kept(found) == [0]


def test_huge_numbers_are_kept() -> None:
    found = run([b'{"x": 1e999}', b'{"x": ' + b"9" * 5000 + b"}"], table({"x": "double"}))
    assert [row["x"] for row in rows(found)] == [None, None]
    assert kept(found) == [0, 1]


def test_numbers_are_times_only_with_a_unit() -> None:
    of = table({"s": ("s", "timestamp", None, 1_000_000), "ms": ("ms", "timestamp", None, 1000)}, "ignore")
    found = run([{"s": 1.5, "ms": 1500}, {"s": 1e300, "ms": True}, {"s": "1970-01-01", "ms": 10**20}], of)
    first, _, last = rows(found)
    assert first["s"] == first["ms"] == datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    assert last["s"] == datetime(1970, 1, 1, tzinfo=UTC)
    assert kept(found) == [1, 2]


def test_default_replaces_missing_and_null_values_but_not_misfits() -> None:
    found = run([{}, {"x": None}, {"x": "odd"}, {"x": 3}], table({"x": ("x", "long", 7)}))
    assert [row["x"] for row in rows(found)] == [7, 7, None, 3]
    assert kept(found) == [2]


def test_paths_reach_into_objects_and_arrays() -> None:
    of = table(
        {
            "host": ("host.name", "string"),
            "whole": ("user", "string"),
            "id": ("items[1].id", "long"),
            "deep": ("grid[0][1]", "long"),
        },
        "ignore",
    )
    events = [
        {"host": {"name": "a"}, "user": {"name": "eve"}, "items": [{}, {"id": 5}], "grid": [[1, 2]]},
        {"host.name": "b", "items": [1], "grid": 7},
    ]
    assert rows(run(events, of)) == [
        {"host": "a", "whole": '{"name":"eve"}', "id": 5, "deep": 2},
        {"host": "b", "whole": None, "id": None, "deep": None},
    ]


def test_payload_is_kept_if_only_a_part_of_an_array_is_declared() -> None:
    events = [{"items": [{"id": 5}, {"id": 6}]}, {"items": None}]
    found = run(events, table({"id": ("items[0].id", "long")}))
    assert rows(found) == [{"id": 5, "items": '[{"id":5},{"id":6}]'}, {"id": None, "items": None}]
    assert kept(found) == []
    assert kept(run(events, table({"id": ("items[0].id", "long")}, "rescue"))) == [0]


def test_same_path_twice_in_an_event_keeps_the_payload() -> None:
    found = run([{"a": {"b": 1}, "a.b": 2}, {"a.b": 3}], table({}))
    assert [row["a.b"] for row in rows(found)] == [2, 3]
    assert kept(found) == [0]


def test_new_fields_become_columns() -> None:
    events = [
        {"a": 1, "b": {"c": "x", "d": {}}, "tags": ["y"], "ok": True, "nothing": None},
        {"a": 2.5, "new": "z", "date": "d", "_SEQ": 5, "a b": 1},
    ]
    found = run(events, table({}))
    assert found.fields == {
        "a": "double",
        "b.c": "string",
        "tags": "string",
        "ok": "boolean",
        "new": "string",
        "date_": "string",
        "_SEQ_": "long",
        "a_b": "long",
    }
    assert rows(found)[0]["tags"] == '["y"]'
    assert [row["a"] for row in rows(found)] == [1.0, 2.5]
    assert kept(found) == []


def test_new_column_has_the_most_frequent_type() -> None:
    found = run([{"a": 200}, {"a": "odd"}, {"a": 404}], table({}))
    assert found.fields == {"a": "long"}
    assert [row["a"] for row in rows(found)] == [200, None, 404]
    assert kept(found) == [1]


def test_known_column_is_widened_unless_its_type_is_fixed() -> None:
    with pytest.raises(Widened) as raised:
        run([{"a": 1}, {"a": 2.5}], table({}), {"a": "long"})
    assert raised.value.name == "a"
    found = run([{"a": 1}, {"a": 2.5}], table({}), {"a": "long"}, fixed=frozenset({"a"}))
    assert [row["a"] for row in rows(found)] == [1, None]
    assert kept(found) == [1]
    assert rows(run([{"a": "text"}], table({}), {"a": "long"})) == [{"a": None}]


def test_fields_beyond_the_limit_and_of_other_case_keep_the_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "MOST", 2)
    events = [{"a": 1}, {"A": 2}, {"b": 3}, {"c": 4}, {"a": 5}, {"x" * 256: 1}, {"x\x07": 1}, {"": 1}]
    found = run(events, table({}))
    assert set(found.fields) == {"a", "b"}
    assert kept(found) == [1, 3, 5, 6, 7]
    found = run([{"Declared": 1}], table({"declared": "long"}))
    assert (found.fields, kept(found)) == ({"Declared_": "long"}, [])


def test_new_fields_are_kept_or_ignored_as_configured() -> None:
    events = [{"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": None}]
    assert kept(run(events, table({"a": "long"}, "rescue"))) == [1]
    assert kept(run(events, table({"a": "long"}, "ignore"))) == []
    assert run(events, table({"a": "long"}, "ignore")).fields == {}


def test_time_of_an_event_may_be_a_column_too() -> None:
    found = run([{"@timestamp": "2026-01-31T00:00:00Z"}, {"@timestamp": 5}, {}], table({}, time="@timestamp"))
    assert found.times is not None
    assert found.times.to_pylist() == [datetime(2026, 1, 31, tzinfo=UTC), None, None]
    assert kept(found) == [1]
    assert found.fields == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "A", "a.b", "_seq"]), inner),
    max_leaves=8,
)


def scalars(value: Any) -> int:
    """Return the number of values that are not null below objects."""
    return sum(map(scalars, value.values())) if isinstance(value, dict) else value is not None


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "c", "a.b"]), JSON), max_size=6))
def test_each_value_is_in_a_column_or_the_payload_is_kept(events: list[dict[str, Any]]) -> None:
    payloads = [json.dumps(event).encode() for event in events]
    found = extracted(payloads, table({"b": "long"}), {"c": "string"})
    assert len(found.misfits) == len(events)
    in_columns = [sum(value is not None for value in row.values()) for row in rows(found)] if found.columns else []
    for row, event in enumerate(events):
        if found.misfits[row] or not in_columns:
            continue
        assert isinstance(event.get("b"), dict) or in_columns[row] == scalars(event)
    for name, kind in found.fields.items():
        if name in found.columns:
            assert found.columns[name].type == TYPES[kind]


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_payload_of_any_bytes_is_kept_unless_it_is_a_json_object(payloads: list[bytes]) -> None:
    found = extracted(payloads, table({"a": "string"}), {})
    assert [bool(misfit) for misfit in found.misfits] == [payload.strip() != b"{}" for payload in payloads]


@given(st.lists(JSON, min_size=1, max_size=6), st.sampled_from(sorted(TYPES)))
def test_splitting_events_into_batches_changes_no_column(values: list[Any], kind: str) -> None:
    payloads = [json.dumps({"x": value}).encode() for value in values]
    whole = extracted(payloads, table({"x": kind}, "ignore"), {})
    parts = [extracted([payload], table({"x": kind}, "ignore"), {}) for payload in payloads]
    assert whole.columns["x"].to_pylist() == [part.columns["x"][0].as_py() for part in parts]
    assert whole.misfits.tolist() == [part.misfits[0] for part in parts]
