"""Aggregates of a typed table by windows of time, as a Delta table that follows it.

    rows of the table -> windows that changed -> these windows counted again -> replaced in one commit

An aggregate always equals the result of a query of its table: also with late events, and after a backfill.  It
reads only the files that may have rows of the windows that changed.  Its progress is a version of its table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
from pyarrow import compute

from fyrehose.spark.fetching import read
from fyrehose.spark.footers import bounds
from fyrehose.spark.lake import File, Lake, day_of
from fyrehose.spark.stores import LakeStore
from fyrehose.spark.typed.config import DATE, EVENT_TIME, TYPES, Aggregate, TypedTable
from fyrehose.spark.typed.writing import by_folder, days_of, write_file

#: The column with the beginning of a window.
WINDOW = "window"
_TIME = TYPES["timestamp"]


@attrs.frozen(kw_only=True)
class WindowTask:
    """A task that finds the windows of a table's files, or counts their rows by window; can be pickled.

    :ivar windows: the numbers of the windows to count, sorted; None: find the windows of the files
    """

    store: LakeStore
    paths: tuple[str, ...]
    deleted: Mapping[str, Any]
    aggregate: Aggregate
    types: Mapping[str, pa.DataType]
    windows: Any = None


def schema_of_aggregate(aggregate: Aggregate, table: TypedTable) -> pa.Schema:
    """Return the columns of an aggregate: the window, the groups, the measures and the day."""
    types = {field.name: field.type for field in table.schema}
    made = [(WINDOW, _TIME), *((name, types[name]) for name in aggregate.by)]
    for each in aggregate.measures:
        kinds = {"count": pa.int64(), "mean": pa.float64()}
        made.append((each.name, kinds.get(each.function) or types[each.column or ""]))
    return pa.schema([*made, (DATE, pa.date32())])


def windows_of(task: WindowTask) -> Any:
    """Return the numbers of the windows in which a task's files have rows; window 0 begins in 1970."""
    found = [np.empty(0, np.int64)]
    for batch in read(task.store, task.paths, pa.schema([(EVENT_TIME, _TIME)]), task.deleted):
        found.append(np.unique(_numbers(batch[EVENT_TIME], task.aggregate.window)))
    return np.unique(np.concatenate(found))


def count(task: WindowTask) -> pa.Table | None:
    """Count the rows of a task's files by windows and groups; the results of several tasks can be combined.

    :return: None if no row is in one of the windows
    """
    aggregate = task.aggregate
    wanted = pa.schema([*task.types.items()])
    parts = []
    for batch in read(task.store, task.paths, wanted, task.deleted):
        numbers = _numbers(batch[EVENT_TIME], aggregate.window)
        mask = pa.array(np.isin(numbers, task.windows))
        if aggregate.where is not None:
            columns = {name: batch[name] for name in batch.schema.names}
            mask = compute.and_(mask, aggregate.where.holds(columns))
        rows = pa.Table.from_batches([batch]).append_column(WINDOW, pa.array(numbers)).filter(mask)
        if rows.num_rows:
            parts.append(_grouped(rows, aggregate))
    return combined(pa.concat_tables(parts), aggregate) if parts else None


def _numbers(times: pa.Array, window: int) -> Any:
    return times.cast(pa.int64()).to_numpy(zero_copy_only=False) // window


#: For each function that tasks compute from rows, the function that combines the results of several tasks.
_PARTS = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}


def _needed(aggregate: Aggregate) -> list[tuple[str, str, str | None]]:
    """Return the partial results that an aggregate needs: name, function and column; a mean needs two."""
    found: list[tuple[str, str, str | None]] = []
    for each in aggregate.measures:
        if each.function == "mean":
            found += [(f"{each.name}/sum", "sum", each.column), (f"{each.name}/count", "count", each.column)]
        else:
            found.append((each.name, each.function, each.column))
    return found


def _grouped(rows: pa.Table, aggregate: Aggregate) -> pa.Table:
    keys = [WINDOW, *aggregate.by]
    asked: list[Any] = []
    for _, function, column in _needed(aggregate):
        mode = compute.CountOptions(mode="all" if column is None else "only_valid")
        asked.append((column or WINDOW, function, mode if function == "count" else None))
    found = rows.group_by(keys).aggregate(asked)
    names = [f"{column}_{function}" for column, function, _ in asked]
    # If two measures need the same partial result, use its column for both.
    return pa.table(
        [*(found[key] for key in keys), *(found.column(found.schema.get_all_field_indices(name)[0]) for name in names)],
        names=[*keys, *(name for name, _, _ in _needed(aggregate))],
    )


def combined(parts: pa.Table, aggregate: Aggregate) -> pa.Table:
    """Return partial results with one row for each window and group."""
    keys = [WINDOW, *aggregate.by]
    needed = [(name, _PARTS[function]) for name, function, _ in _needed(aggregate)]
    found = parts.group_by(keys).aggregate(needed)
    return pa.table(
        [*(found[key] for key in keys), *(found[f"{name}_{function}"] for name, function in needed)],
        names=[*keys, *(name for name, _ in needed)],
    )


def finished(parts: Iterable[pa.Table | None], aggregate: Aggregate, schema: pa.Schema) -> pa.Table:
    """Return the rows of an aggregate, from the results of :func:`count` of all tasks."""
    there = [part for part in parts if part is not None]
    if not there:
        return schema.empty_table()
    found = combined(pa.concat_tables(there), aggregate)
    starts = compute.multiply(found[WINDOW], aggregate.window).cast(pa.timestamp("us")).cast(_TIME)
    columns = {WINDOW: starts, **{name: found[name] for name in aggregate.by}}
    for each in aggregate.measures:
        if each.function == "mean":
            total, number = found[f"{each.name}/sum"].cast(pa.float64()), found[f"{each.name}/count"]
            columns[each.name] = compute.divide(total, compute.if_else(compute.equal(number, 0), None, number))
        else:
            columns[each.name] = found[each.name]
    columns[DATE] = days_of(starts)
    keys = [(name, "ascending") for name in (WINDOW, *aggregate.by)]
    return pa.table({field.name: columns[field.name].cast(field.type) for field in schema}).sort_by(keys)


def overlapping(files: pa.Table, windows: Any, window: int) -> list[str]:
    """Return the files of a table that may have rows of these windows, by the statistics of its log.

    :param files: the actions of the log
    :param windows: numbers of windows, sorted
    """
    paths: list[str] = files["path"].to_pylist()
    least, most = bounds(files, EVENT_TIME)
    if least is None or most is None:
        return paths
    found = []
    for path, first, last in zip(paths, *(each.cast(pa.int64()).to_pylist() for each in (least, most)), strict=True):
        if first is None or last is None:
            found.append(path)
            continue
        at = int(np.searchsorted(windows, first // window))
        if at < len(windows) and windows[at] <= last // window:
            found.append(path)
    return found


def replaced(lake: Lake, rows: pa.Table, windows: Any, window: int) -> tuple[list[Any], list[File]]:
    """Write the changed days of an aggregate again; return the actions of the new files, and the files to replace.

    :param rows: the rows of the windows that changed
    :param windows: the numbers of these windows
    """
    starts = compute.multiply(pa.array(windows), window).cast(_TIME)
    days = set(map(str, days_of(starts).unique().to_pylist()))
    old = [file for file in lake.files() if day_of(file.path) in days]
    parts = [rows]
    schema = rows.schema.remove(rows.schema.get_field_index(DATE))
    for batch in read(lake.store, [file.path for file in old], schema, lake.vectors()):
        stays = ~np.isin(_numbers(batch[WINDOW], window), windows)
        some = pa.Table.from_batches([batch]).filter(pa.array(stays))
        parts.append(some.append_column(DATE, days_of(some[WINDOW])))
    whole = pa.concat_tables(parts).sort_by(WINDOW)
    return [
        action
        for folder, mask in by_folder(whole[WINDOW])
        for some in [whole.filter(pa.array(mask)).drop_columns([DATE])]
        if (action := write_file(lake.store, folder, "part-windows", [some], (WINDOW,))) is not None
    ], old


def chunks(items: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """Return the items in tuples of at most *size*."""
    return [tuple(items[at : at + size]) for at in range(0, len(items), size)]
