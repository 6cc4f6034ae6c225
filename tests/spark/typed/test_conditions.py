"""Conditions: what they mean for whole columns, and what the errors say."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.spark.typed.conditions import Condition

COLUMNS = {
    "status": pa.array([200, 503, None, 42], pa.int64()),
    "host.name": pa.array(["a", None, "b", "panic"]),
    "odd name": pa.array([1.5, 2.5, None, -1.0]),
    "ok": pa.array([True, False, None, True]),
    "at": pa.array([datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)], pa.timestamp("us", "UTC")),
}
TYPES = {name: column.type for name, column in COLUMNS.items()}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("100 <= status < 600", [0, 1]),
        ("status >= 100 and host.name is not null", [0]),
        ("status is null or not status > 100", [2, 3]),
        ("not (status == 200)", [1, 3]),
        ("status in [200, 42]", [0, 3]),
        ("status not in (200, 42)", [1]),
        ("host.name != 'a'", [2, 3]),
        ("matches(host.name, '^p.n')", [3]),
        ("length(host.name) > 1", [3]),
        ("starts_with(lower(host.name), 'pa')", [3]),
        ("column('odd name') > -1.5 and column('odd name') < 2", [0, 3]),
        ("ok", [0, 3]),
        ("ok == false", [1]),
        ("at >= '2026-01-03'", [2, 3]),
        ("at == '2026-01-03T01:00+01:00'", [2]),
        ("status < column('odd name')", []),
        ("  status == 42  ", [3]),
    ],
)
def test_condition_is_true_for_the_expected_rows(text: str, rows: list[int]) -> None:
    condition = pickle.loads(pickle.dumps(Condition(text)))
    condition.check(TYPES)
    assert [row for row, true in enumerate(condition.holds(COLUMNS).to_pylist()) if true] == rows


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("status = 1", "compare with == instead of ="),
        ("statuss > 1", "there is no column 'statuss'; did you mean status"),
        ("nothing > 1", "there is no column 'nothing'; there are status, host.name"),
        ("status > 'x'", "cannot be computed"),
        ("status", "is not a condition that is true or false"),
        ("5", "is not a condition"),
        ("match(host.name, 'a')", "there is no function 'match'; did you mean matches"),
        ("matches(host.name)", "matches takes a column and a text"),
        ("matches(host.name, '(')", "cannot be computed"),
        ("status in 'abc'", "expected a list behind 'in'"),
        ("status is 5", "'is' compares with null only"),
        ("__import__('os').system('true') == 0", "there is no function"),
        ("status + 1 > 2", "is neither a column nor a constant"),
        ("(" * 500 + "status" + ")" * 500, "is not a condition"),
        ("status > 1 and " * 1000 + "ok", "at most 4096 characters"),
    ],
)
def test_error_of_a_condition_names_the_mistake(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error.replace("(", r"\(")):
        Condition(text).check(TYPES)


@given(st.lists(st.none() | st.integers(-5, 5), max_size=20), st.integers(-5, 5), st.integers(-5, 5))
def test_condition_agrees_with_python(values: list[int | None], least: int, most: int) -> None:
    found = Condition(f"{least} <= x <= {most} or x is null").holds({"x": pa.array(values, pa.int64())})
    assert found.to_pylist() == [value is None or least <= value <= most for value in values]


@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_a_value_error(text: str) -> None:
    try:
        Condition(text).check(TYPES)
    except ValueError:
        return
    assert len(Condition(text).holds(COLUMNS)) == 4
