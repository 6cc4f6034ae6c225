"""Extraction: each value of an event is in a column, or its payload is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fyrehose.patterns import Pattern
from fyrehose.spark.typed import extraction
from fyrehose.spark.typed.config import OTHERS, TYPES, UNITS, TypedColumn, TypedTable, parsed_path, type_of
from fyrehose.spark.typed.extraction import Cells, Extracted, Widened, extracted


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
    return list(pa.table(columns_of(found)).to_pylist())


def columns_of(found: Extracted) -> dict[str, pa.Array]:
    return found.columns | {name: cells.between(0, len(found.misfits)) for name, cells in found.cells.items()}


def kept(found: Extracted) -> list[int]:
    return [row for row, misfit in enumerate(found.misfits) if misfit]


#: Values of JSON, at the bounds of the types too, and beyond them.
_VALUES = """
null true false 0 5 -1 5.0 2.5 2.50 -0.0 1e2 1e999 -1e999 0.125 12.25 100.0
9007199254740992 -9007199254740992 9007199254740993 9007199254740992.0 9007199254740994.0
9223372036854775807 9223372036854775808 -9223372036854775808 -9223372036854775809 100000000000000000000
"" "5" "2.5" "2e0" "true" "null" "[1]" "NaN" "text" "\\u00e9\\u0000" "a\\ud800b"
"2026-01-31" "2026-02-30" "20260131" "2026-01-31T12:00:00Z" "2026-01-31T12:00:00.5Z" "2026-01-31\\u002012:00"
"2026-01-31T12:00:00.123456789+02:00" "yesterday"
[] [1] [1.5,{"b":"\\u00e9"}] {} {"a":1} {"a":{"b":null}} {"a":[1e999]}
"""
VALUES = _VALUES.split()
NOTHING = object()


def as_time(value: Any, unit: int | None) -> Any:
    """Return a time; a text without a zone is in UTC, and a number is one only with a unit."""
    if type(value) is str:
        try:
            found = datetime.fromisoformat(value)
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):
            return NOTHING
    if unit is None or type(value) not in (int, float) or not abs(value) < 62_135_596_800 * 1_000_000 / unit:
        return NOTHING
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=round(value * unit))


def converted(value: Any, raw: str, kind: str, unit: int | None) -> Any:
    """Return what a column of a type has of a value, which is *raw* in its event; NOTHING if it does not fit."""
    whole = type(value) is float and value.is_integer() and abs(value) <= 1 << 53
    match kind:
        case "string":
            if raw.endswith("1e999"):
                return raw  # a number that no double stands for
            text = value if type(value) is str else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            return text if "\ud800" not in text and "Infinity" not in text else NOTHING
        case "long" if type(value) is int or whole:
            return int(value) if -(1 << 63) <= value < 1 << 63 else NOTHING
        case "double" if type(value) in (int, float):
            return float(value) if abs(value) <= (1 << 53 if type(value) is int else 1e308) else NOTHING
        case "boolean" if type(value) is bool:
            return value
        case "timestamp":
            return as_time(value, unit)
        case "date" if type(value) is str and len(value) == 10 and as_time(value, None) is not NOTHING:
            return date.fromisoformat(value)
        case "decimal(4,2)" if type(value) in (int, float) and abs(value) < 100 and round(value, 2) == value:
            return Decimal(str(value))
    return NOTHING


def cast_of(value: Any) -> Any:
    """Return the number or the boolean that a text is in JSON; any other value unchanged."""
    try:
        found = json.loads(value, parse_constant=lambda name: None) if type(value) is str else value
    except ValueError:
        return value
    return found if type(found) in (int, float, bool) else value


@pytest.mark.parametrize("kind", [*TYPES, "decimal(4,2)", "timestamp/s", "timestamp/ms", "long/cast", "boolean/cast"])
@pytest.mark.parametrize("default", [None, {"string": "d", "long": 7}])
def test_each_value_is_stored_as_its_type_or_keeps_the_payload(kind: str, default: dict[str, Any] | None) -> None:
    kind, _, how = kind.partition("/")
    unit = UNITS.get(how)
    missing = None if default is None else default.get(kind)
    of = table({"x": ("x", kind, missing, unit)}, "ignore")
    of = attrs.evolve(of, columns=tuple(attrs.evolve(each, cast=how == "cast") for each in of.columns))
    payloads = [f'{{"x": {text}}}'.encode() for text in VALUES]
    found, expected, misfits = run([*payloads, b"{}"], of), [], []
    for row, text in enumerate(VALUES):
        value = json.loads(text)
        made = missing if value is None else converted(cast_of(value) if how == "cast" else value, text, kind, unit)
        expected.append(None if made is NOTHING else made)
        if made is NOTHING:
            misfits.append(row)
    for text, one, other in zip(VALUES, [row["x"] for row in rows(found)], expected, strict=False):
        assert one == other, f"{text} is {one!r} in a column {kind}, and not {other!r}"
    assert [row["x"] for row in rows(found)][-1] == missing
    assert [VALUES[row] for row in kept(found)] == [VALUES[row] for row in misfits]
    assert found.columns["x"].type == type_of(kind)


@pytest.mark.parametrize(
    "payload",
    [b"", b"text", b"\xff{}", b"17", b"[1]", b"null", b'{"x": 1', b'{"x": NaN}', b'{"x": Infinity}', b"[" * 100_000],
)
def test_payload_that_is_no_json_object_is_kept(payload: bytes) -> None:
    found = run([payload, {"x": 1}], table({"x": ("x", "long", 7)}))
    assert rows(found) == [{"x": 7}, {"x": 1}]
    assert kept(found) == [0]


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
    in_columns = [sum(value is not None for value in row.values()) for row in rows(found)] if columns_of(found) else []
    for row, event in enumerate(events):
        if found.misfits[row] or not in_columns:
            continue
        assert isinstance(event.get("b"), dict) or in_columns[row] == scalars(event)
    for name, kind in found.fields.items():
        if name in columns_of(found):
            assert columns_of(found)[name].type == TYPES[kind]


def parsed(payload: bytes) -> Any:
    """Return the JSON value in *payload*, or None if it is none."""
    try:
        return json.loads(payload.removeprefix(b"\xef\xbb\xbf").decode())
    except ValueError:
        return None


@given(st.lists(st.binary(max_size=20), max_size=6))
@example([b"{}", b" {}\n", b"\xef\xbb\xbf{}", b"{}\x0b", b"\x0c{}", b'{"n": 1}'])
def test_payload_of_any_bytes_is_kept_unless_it_is_a_json_object(payloads: list[bytes]) -> None:
    found = extracted(payloads, table({"a": "string"}), {})
    for payload, misfit in zip(payloads, found.misfits, strict=True):
        value = parsed(payload)
        assert misfit or isinstance(value, dict), f"{payload!r} is no object, and is not kept"
        assert not misfit or value != {}, f"{payload!r} is an empty object, and is kept"


@given(st.lists(JSON, min_size=1, max_size=6), st.sampled_from(sorted(TYPES)))
def test_splitting_events_into_batches_changes_no_column(values: list[Any], kind: str) -> None:
    payloads = [json.dumps({"x": value}).encode() for value in values]
    whole = extracted(payloads, table({"x": kind}, "ignore"), {})
    parts = [extracted([payload], table({"x": kind}, "ignore"), {}) for payload in payloads]
    assert whole.columns["x"].to_pylist() == [part.columns["x"][0].as_py() for part in parts]
    assert whole.misfits.tolist() == [part.misfits[0] for part in parts]


@pytest.mark.parametrize(
    ("payload", "expected", "rescued"),
    [
        (b'{"n": 1, "n": 2}', {"n": 2}, True),
        (b'{"n": 2, "a": {"b": 1, "b": 1}}', {"n": 2, "a.b": 1}, True),
        (b'{"n": 2, "list": [{"b": 1, "b": 2}]}', {"n": 2, "list": '[{"b":2}]'}, True),
        (b'{"n": 2, "ms": 1234567890.12345678901}', {"n": 2, "ms": 1234567890.1234567}, True),
        (b'{"n": 2, "new": 99999999999999.999}', {"n": 2, "new": 100000000000000.0}, True),
        (b'{"n": 2, "text": 0.12345678901234567891}', {"n": 2, "text": "0.12345678901234567891"}, False),
        (b'{"n": 2, "ms": 0.10000000000000001}', {"n": 2, "ms": 0.1}, False),  # printed with 17 digits
        (b'{"n": 2, "ms": 0.30000000000000004}', {"n": 2, "ms": 0.30000000000000004}, False),
        (b'{"n": 2, "ms": 1e2}', {"n": 2, "ms": 100.0}, False),
        (b'{"n": 2, "ms": 1e400}', {"n": 2}, True),
        (b'{"n": 2, "ms": 1e-400}', {"n": 2, "ms": 0.0}, True),
        (b'{"n": 2, "price": 12345678901234567890.12}', {"n": 2, "price": Decimal("12345678901234567890.12")}, False),
        (b'{"n": 2, "price": 0.125}', {"n": 2}, True),
        (b'{"n": 2, "price": 5}', {"n": 2, "price": Decimal(5)}, False),
        (b'{"n": 2, "ms": NaN}', {"n": 2}, True),
        (b'{"n": 2, "list": [-Infinity]}', {"n": 2, "list": "[null]"}, True),
        (b'\xef\xbb\xbf{"n": 2}', {"n": 2}, False),
        (b'{"n": 2, "text": "caf\xe9"}', {"n": 2}, True),
        (b'{"n": 2, "new": "caf\xe9"}', {"n": 2, "new": None}, True),
        (b'{"n": 2, "caf\xe9": 1}', {"n": 2}, True),
        (b'{"n": "200", "ms": 1.5}', {"ms": 1.5}, True),
    ],
)
def test_misfit_is_that_of_one_field_and_nothing_vanishes(
    payload: bytes, expected: dict[str, Any], rescued: bool
) -> None:
    kinds = {"n": "long", "ms": "double", "text": "string", "price": "decimal(22,2)"}
    found = extracted([payload], table({name: (name, kind, None) for name, kind in kinds.items()}), {})
    (row,) = rows(found)
    assert row == dict.fromkeys(kinds) | expected
    assert bool(found.misfits[0]) == rescued


def test_time_in_nanoseconds() -> None:
    when = datetime(2026, 11, 21, 12, 34, 35, 789488, UTC)
    found = run([{"at": 1795264475789488123}], table({"at": ("at", "timestamp", None, UNITS["ns"])}))
    assert rows(found) == [{"at": when}]


def test_other_fields_are_json_text_in_one_column() -> None:
    of = table({"a": "long", "items0": ("items[0]", "long")}, "json")
    of = attrs.evolve(of, columns=(*of.columns, TypedColumn(name="other_fields", path=OTHERS, type="string")))
    events = [
        {"a": 1, "host": {"name": "ä", "x": None}, "items": [5, {"b": 1.5}]},
        {"a": 2, "gone": None},
        b'{"a": 3, "n": 1.23456789012345678901, "m": 1}',
        b'{"a": 4, "n": "half \xff"}',
    ]
    found = run(events, of)
    texts = [row["other_fields"] for row in rows(found)]
    assert [text and json.loads(text) for text in texts] == [
        {"host.name": "ä", "items": [5, {"b": 1.5}]},
        None,
        {"n": 1.2345678901234568, "m": 1},
        None,
    ]
    assert (kept(found), found.fields) == ([2, 3], {})
    assert [row["items0"] for row in rows(found)] == [5, None, None, None]


def test_text_of_the_whole_event_is_a_column() -> None:
    of = table({"text": ("$", "string"), "a": "long"}, "ignore")
    found = run([b"a line", b' {"a": 1}\n', b"bad \xff", b'{"a": "odd"}', b'{"a": 1, "a": 2}'], of)
    assert [row["text"] for row in rows(found)] == ["a line", ' {"a": 1}\n', None, '{"a": "odd"}', '{"a": 1, "a": 2}']
    assert kept(found) == [2, 3, 4]


def test_times_and_dates_may_have_a_format() -> None:
    columns = {
        "at": ("timestamp", "%d/%b/%Y:%H:%M:%S %z"),
        "local": ("timestamp", "%Y%m%d %H"),
        "on": ("date", "%d.%m.%y"),
    }
    made = [TypedColumn(name=name, path=name, type=kind, format=form) for name, (kind, form) in columns.items()]
    of = attrs.evolve(table({}, "ignore"), columns=tuple(made))
    good = {"at": "31/Jan/2026:12:00:00 +0200", "local": "20260131 12", "on": "31.01.26"}
    found = run([good, {"at": "2026-01-31T12:00:00Z"}, {"local": 5}, {"on": "32.01.26"}, {}], of)
    assert rows(found)[0] == {
        "at": datetime(2026, 1, 31, 10, tzinfo=UTC),
        "local": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "on": date(2026, 1, 31),
    }
    assert kept(found) == [1, 2, 3]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"b": 1}, "a": {"c": 2}}',
        '{"a": {"b": 1, "b": 1}}',
        '{"items": [{"b": 1, "b": 2}]}',
        '{"whole": {"b": {"c": 1, "c": 2}}}',
        '{"a" : 1, "x": "a\\":", "a": 2}',
    ],
)
def test_repeated_key_at_any_depth_keeps_the_payload(text: str) -> None:
    of = table({"whole": "string"})
    assert kept(run([text.encode(), b'{"x": "\\"a\\": 1", "y" : 2}'], of)) == [0]


def test_sparse_fields_have_their_values_in_their_rows() -> None:
    kinds: list[Any] = [1, 2.5, "text", True, ["list"]]
    events = [{} if row % 7 else {f"f{row % 5}": kinds[row % 5]} for row in range(1000)]
    found = rows(run(events, table({})))
    for row, event in enumerate(events):
        have = {name: value for name, value in found[row].items() if value is not None}
        assert have == {name: json.dumps(value) if type(value) is list else value for name, value in event.items()}


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 9)), max_size=20),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_cells_are_those_of_the_whole_column(table: list[tuple[bool, bool, int]], one: int, other: int) -> None:
    column = [value if there else None for there, _, value in table]
    rows = [row for row, (there, _, _) in enumerate(table) if there]
    cells = Cells(np.array(rows, np.int64), pa.array([column[row] for row in rows], pa.int64()))
    begin, end = sorted((min(one, len(table)), min(other, len(table))))
    assert cells.between(begin, end).to_pylist() == column[begin:end]
    mask = np.array([stays for _, stays, _ in table], bool)
    kept = [value for value, stays in zip(column, mask, strict=True) if stays]
    assert cells.chosen(mask).between(0, len(kept)).to_pylist() == kept
