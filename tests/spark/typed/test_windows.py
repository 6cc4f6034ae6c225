"""Windows: partial results of tasks make the same aggregate, however files are distributed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fyrehose.patterns import Pattern
from fyrehose.spark.lake import Lake
from fyrehose.spark.stores import LakeStore
from fyrehose.spark.typed import windows
from fyrehose.spark.typed.conditions import Condition
from fyrehose.spark.typed.config import EVENT_TIME, Aggregate, Measure, TypedColumn, TypedTable
from fyrehose.spark.typed.windows import WindowTask, count, finished, overlapping, replaced, windows_of
from fyrehose.spark.typed.writing import write_file

MINUTE = 60_000_000
START = datetime(2026, 1, 31, tzinfo=UTC)
TABLE = TypedTable(
    name="t",
    streams=(Pattern("*"),),
    columns=(TypedColumn(name="k", path="k", type="string"), TypedColumn(name="n", path="n", type="long")),
)
AGGREGATE = Aggregate(
    name="a",
    table="t",
    window=MINUTE,
    by=("k",),
    where=Condition("n is null or n < 100"),
    measures=(
        Measure(name="rows", function="count", column=None),
        Measure(name="total", function="sum", column="n"),
        Measure(name="least", function="min", column="n"),
        Measure(name="most", function="max", column="n"),
        Measure(name="middle", function="mean", column="n"),
        Measure(name="again", function="sum", column="n"),
    ),
)
TYPES = {field.name: field.type for field in TABLE.schema}
SCHEMA = windows.schema_of_aggregate(AGGREGATE, TABLE)
Row = tuple[int, str | None, int | None]


def written(store: LakeStore, rows: list[Row]) -> str:
    times = pa.array([START + timedelta(seconds=second) for second, _, _ in rows], pa.timestamp("us", "UTC"))
    columns = {EVENT_TIME: times, "k": pa.array([k for _, k, _ in rows], pa.string())}
    columns["n"] = pa.array([n for _, _, n in rows], pa.int64())
    action = write_file(store, "date=2026-01-31", "part", [pa.table(columns)], (EVENT_TIME,))
    assert action is not None
    return str(action.path)


def task(store: LakeStore, paths: list[str], wanted: Any = None) -> WindowTask:
    return WindowTask(store=store, paths=tuple(paths), deleted={}, aggregate=AGGREGATE, types=TYPES, windows=wanted)


def expected(rows: list[Row]) -> list[dict[str, Any]]:
    groups: dict[tuple[int, str | None], list[int | None]] = {}
    for second, key, number in rows:
        if number is None or number < 100:
            groups.setdefault((second // 60, key), []).append(number)
    found = []
    for (minute, key), numbers in sorted(
        groups.items(), key=lambda group: (group[0][0], group[0][1] is None, group[0][1])
    ):
        there = [number for number in numbers if number is not None]
        some = (sum(there), min(there), max(there), sum(there) / len(there), sum(there)) if there else (None,) * 5
        at = START + timedelta(minutes=minute)
        values = (at, key, len(numbers), *some, at.date())
        found.append(dict(zip(SCHEMA.names, values, strict=True)))
    return found


ROWS = st.lists(
    st.tuples(st.integers(0, 200), st.none() | st.sampled_from("ab"), st.none() | st.integers(-5, 120)), min_size=1
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=4), st.integers(1, 3))
def test_aggregate_agrees_with_python(tmp_path: Path, files: list[list[Row]], size: int) -> None:
    store = LakeStore.at(tmp_path)
    paths = [written(store, rows) for rows in files]
    wanted = windows_of(task(store, paths))
    assert (wanted - int(START.timestamp()) // 60).tolist() == sorted({row[0] // 60 for rows in files for row in rows})
    tasks = [task(store, list(some), wanted) for some in windows.chunks(paths, size)]
    found = finished(map(count, tasks), AGGREGATE, SCHEMA)
    assert found.to_pylist() == expected([row for rows in files for row in rows])


def test_only_files_with_the_changed_windows_are_read() -> None:
    times = {
        f"min.{EVENT_TIME}": [0, 100, None, 250],
        f"max.{EVENT_TIME}": [99, 400, None, 260],
    }
    made = {name: pa.array(values, pa.int64()).cast(pa.timestamp("us", "UTC")) for name, values in times.items()}
    files = pa.table({"path": ["a", "b", "c", "d"], **made})
    assert overlapping(files, np.array([0]), 100) == ["a", "c"]
    assert overlapping(files, np.array([2, 9]), 100) == ["b", "c", "d"]
    assert overlapping(files, np.array([5]), 100) == ["c"]
    assert overlapping(files.select(["path"]), np.array([5]), 100) == ["a", "b", "c", "d"]


def test_changed_windows_of_a_day_are_replaced_and_others_stay(tmp_path: Path) -> None:
    lake = Lake(LakeStore.at(tmp_path / "lake"), SCHEMA, (windows.WINDOW,))
    lake.create()
    first = int(START.timestamp()) // 60

    def rows(minutes: list[int], total: int) -> pa.Table:
        made = [(START + timedelta(minutes=m), "a", total, None, None, None, None, None) for m in minutes]
        days = [(START + timedelta(minutes=m)).date() for m in minutes]
        return pa.Table.from_pylist(
            [dict(zip(SCHEMA.names, (*row, day), strict=True)) for row, day in zip(made, days, strict=True)], SCHEMA
        )

    from fyrehose.spark.lake import Progress

    identity, before = b"i" * 16, None
    lake.admit(identity, None, "here")
    for number, (minutes, changed) in enumerate([([0, 1, 1440], [0, 1, 1440]), ([1], [1, 2]), ([], [0])], 1):
        actions, old = replaced(lake, rows(minutes, number), np.array([first + each for each in changed]), MINUTE)
        after = Progress(position=number, chain=None)
        lake.commit(identity, before, after, actions, removed=old)
        before = after
    assert lake.table is not None
    found = sorted((row["window"], row["rows"]) for row in lake.table.to_pyarrow_table().to_pylist())
    assert found == [(START + timedelta(minutes=1), 2), (START + timedelta(days=1), 1)]
    assert len(lake.files()) == 2


def test_schema_of_an_aggregate_has_window_groups_measures_and_day() -> None:
    assert SCHEMA.names == ["window", "k", "rows", "total", "least", "most", "middle", "again", "date"]
    assert SCHEMA.field("middle").type == pa.float64()
