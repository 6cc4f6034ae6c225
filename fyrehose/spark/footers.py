"""Compare a Parquet file with its Delta table before a commit, so that nothing in a table disagrees with its schema.

in: the action that adds a file, the schema of the table      out: an error if the file's footer disagrees with them

Readers take the statistics of files by :func:`bounds`, which knows how other programs shorten them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
from deltalake import Schema
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction
from pyarrow import ArrowException, compute, parquet

from fyrehose.errors import JournalError
from fyrehose.spark.selection import microseconds
from fyrehose.spark.stores import LakeStore

#: Other writers cut times in statistics to milliseconds, as Delta's protocol allows ("Per-file Statistics"), so the
#: largest time of a file may be this many microseconds later than a time in its statistics that is a whole millisecond.
CUT, _WHOLE = 999, 1000
#: Nanoseconds of the units of times.
_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}


def check_files(store: LakeStore, actions: Iterable[AddAction], schema: Schema) -> None:
    """Check that the files of *actions* have the types of a table's columns, and the rows and values of their actions.

    :param schema: the schema of the table after the commit
    :raises JournalError: a file cannot be read, has other types, or its statistics would make readers skip its rows
    """
    types = {field.name: field.type for field in schema.fields}
    for action in actions:
        try:
            with store.files().open_input_file(action.path) as opened:
                found = parquet.read_metadata(opened)
            said = _difference(found, json.loads(action.stats or "{}"), types)
        except (ArrowException, FileNotFoundError) as error:
            said = f"it cannot be read: {error}"
        if said is not None:
            raise JournalError(f"the file {store.below(action.path)} was not committed to its table: {said}")


def bounds(files: pa.Table, column: str) -> tuple[pa.ChunkedArray | None, pa.ChunkedArray | None]:
    """Return the least and the largest value that each file may have in a column; None if no file has statistics.

    :param files: the actions of the log, flattened
    """
    least, most = (files[name] if name in files.column_names else None for name in (f"min.{column}", f"max.{column}"))
    if most is not None and pa.types.is_timestamp(most.type):
        number = most.cast(pa.int64())
        whole = compute.equal(compute.multiply(compute.divide(number, _WHOLE), _WHOLE), number)
        most = compute.if_else(whole, compute.add(number, CUT), number).cast(most.type)
    return least, most


def _difference(file: parquet.FileMetaData, stats: Mapping[str, Any], types: Mapping[str, Any]) -> str | None:
    """Return how a file differs from its table or its statistics, as text; None if it does not differ."""
    schema = file.schema.to_arrow_schema()
    for field in Schema.from_arrow(schema).fields:
        if field.name not in types:
            return f"the table has no column {field.name!r}"
        if field.type != types[field.name]:
            return f"its column {field.name!r} is {_name(field.type)}, and {_name(types[field.name])} in the table"
    if stats.get("numRecords") != file.num_rows:
        return f"its statistics count {stats.get('numRecords')} rows, and it has {file.num_rows}"
    least, most = stats.get("minValues", {}), stats.get("maxValues", {})
    units = {field.name: _UNITS[field.type.unit] for field in schema if pa.types.is_timestamp(field.type)}
    for group in map(file.row_group, range(file.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name, values, unit = column.path_in_schema, column.statistics, units.get(column.path_in_schema)
            if values is None or not values.has_min_max:
                continue
            first, last = values.min if unit is None else values.min_raw, values.max if unit is None else values.max_raw
            if (name in least and _bound(least[name], unit) > first) or (
                name in most and _bound(most[name], unit, upper=True) < last
            ):
                said = f"{least.get(name)!r} to {most.get(name)!r}"
                return f"its statistics of {name!r} are {said}, and it has {first!r} to {last!r}"
    return None


def _bound(stated: Any, unit: int | None, upper: bool = False) -> Any:
    """Return a bound of the statistics as readers take it; a time is a number in its column's unit.

    :param unit: nanoseconds of the unit of a column of times; None: it is another column
    """
    if unit is None:
        return stated
    time = microseconds(datetime.fromisoformat(stated))
    return (time + (CUT if upper and time % _WHOLE == 0 else 0)) * _UNITS["us"] // unit


def _name(kind: object) -> str:
    return kind.type if isinstance(kind, PrimitiveType) else str(kind)
