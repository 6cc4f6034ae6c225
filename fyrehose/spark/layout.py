"""The layout of Parquet files in a lake: row groups are cut at streams, so that a reader of one stream reads little.

in: record batches in the order of server, stream and number      out: a Parquet file, and its AddAction

A large stream has separate row groups of at most GROUP records each.  Small streams share a group of at most SMALL
records.  DuckDB, Polars, pyarrow and Spark skip row groups by the statistics in the footer, so they read a few percent
of the bytes for a stream that has two percent of the records.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
from deltalake.transaction import AddAction
from pyarrow import compute, parquet

from fyrehose.spark.columns import COLUMNS, ENCODED, arrow_schema, numbers
from fyrehose.spark.lake import PARTITION, day_of
from fyrehose.spark.selection import time_of
from fyrehose.spark.stores import LakeStore

#: The largest number of records in a row group.
GROUP = 1 << 16
#: The largest number of records in a row group that several streams share.
SMALL = 1 << 12

#: Columns of a file, without the day, which is in the name of its directory.
SCHEMA = pa.schema([pa.field("server", ENCODED), *arrow_schema(tuple(COLUMNS), encoded=True)])
STRINGS = [field.name for field in SCHEMA if field.type == ENCODED]
#: Columns of numbers and times, whose differences from record to record are small.
_RISING = ["seq", "time", "producer_seq", "event_time"]
#: The compression of each column: most have none, because their encoding makes them small, and compression takes time
#: for each row group.
_COMPRESSION = dict.fromkeys(SCHEMA.names, "none") | dict.fromkeys(("producer", "topic", "event_id", "payload"), "zstd")
#: Columns with statistics, by which readers skip row groups; statistics of payloads would only make files larger.
_MEASURED = ["server", "stream", "seq", "time", "source", "topic", "event_time"]


def groups(sizes: Iterable[int]) -> Iterator[int]:
    """Yield the number of records of each row group, for streams that have *sizes* records, in this order."""
    joined = 0
    for size in sizes:
        if joined and joined + size > SMALL:
            yield joined
            joined = 0
        if size <= SMALL:
            joined += size
        else:
            count = -(-size // GROUP)
            for number in range(count):
                yield size * (number + 1) // count - size * number // count
    if joined:
        yield joined


def spans(*keys: pa.DictionaryArray) -> list[tuple[int, int]]:
    """Return where each stream begins and ends in columns that are sorted by stream."""
    changed = np.zeros(max(0, len(keys[0]) - 1), bool)
    for key in keys:
        codes = np.from_dlpack(key.indices)
        changed |= codes[1:] != codes[:-1]
    return list(pairwise([0, *(np.flatnonzero(changed) + 1).tolist(), len(keys[0])])) if len(keys[0]) else []


@attrs.define(eq=False)
class LakeFile:
    """A Parquet file of the lake that is being written, one row group after the other; use it as a context.

    The name of each file is unique, so that a task that Spark starts twice writes two files, and not one file twice.

    :ivar day: the day of its records, as in 2026-01-31
    :ivar name: the beginning of its name
    """

    store: LakeStore
    day: str
    name: str
    path: str = attrs.field(init=False)
    rows: int = attrs.field(default=0, init=False)
    size: int = attrs.field(default=0, init=False)
    _least: dict[str, Any] = attrs.field(factory=dict, init=False)
    _most: dict[str, Any] = attrs.field(factory=dict, init=False)
    _stack: ExitStack = attrs.field(factory=ExitStack, init=False)
    _file: Any = attrs.field(default=None, init=False)
    _writer: Any = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.path = new_path(self.day, self.name)

    def __enter__(self) -> LakeFile:
        self._file = self._stack.enter_context(self.store.writing(self.path))
        self._writer = parquet.ParquetWriter(
            self._file,
            SCHEMA,
            compression=_COMPRESSION,
            use_dictionary=STRINGS,
            column_encoding=dict.fromkeys(_RISING, "DELTA_BINARY_PACKED"),
            write_statistics=_MEASURED,
            write_page_checksum=True,
            store_schema=False,
        )
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._writer.close()
            self.size = self._file.tell()
        finally:
            self._stack.close()  # closing makes the file durable

    def write(self, records: pa.Table) -> None:
        """Write *records* as one row group."""
        columns = [
            _compacted(column) if field.type == ENCODED else column
            for field, column in zip(SCHEMA, records.itercolumns(), strict=True)
        ]
        group = pa.Table.from_arrays(columns, schema=SCHEMA)
        self._measure(group)
        self._writer.write_table(group, row_group_size=group.num_rows)
        self.rows += group.num_rows
        self.size = self._file.tell()

    def _measure(self, group: pa.Table) -> None:
        for name in ("server", "stream", "seq", "time"):
            column = group[name]
            if SCHEMA.field(name).type == ENCODED:  # the dictionary has only values that occur
                values = column.chunk(0).dictionary.to_pylist()
                least, most = min(values), max(values)
            else:
                found = compute.min_max(column.cast(pa.int64())).as_py()  # as_py of a time would import pandas
                least, most = (time_of(found[end]) if name == "time" else found[end] for end in ("min", "max"))
            self._least[name] = min(self._least.get(name, least), least)
            self._most[name] = max(self._most.get(name, most), most)

    def action(self, data_change: bool) -> AddAction:
        """Return the action that makes the file a part of the lake."""
        nulls = dict.fromkeys(self._least, 0)
        return add_action(self.path, self.size, self.rows, self._least, self._most, nulls, data_change)


def new_path(day: str, name: str) -> str:
    """Return a unique path for a new file of one day, so that a task that Spark repeats does not overwrite a file."""
    return f"{PARTITION}={day}/{name}-{uuid.uuid4().hex[:12]}.parquet"


def add_action(
    path: str,
    size: int,
    rows: int,
    least: Mapping[str, Any],
    most: Mapping[str, Any],
    nulls: Mapping[str, int],
    data_change: bool = True,
) -> AddAction:
    """Return the action that makes a file a part of its table, with the statistics by which readers skip files.

    :param least, most: the least and the largest value of each column that has statistics
    :param nulls: the number of nulls of these columns
    """
    stats = {
        "numRecords": rows,
        "minValues": {name: _shown(value) for name, value in least.items()},
        "maxValues": {name: _shown(value) for name, value in most.items()},
        "nullCount": nulls,
    }
    return AddAction(
        path=path,
        size=size,
        partition_values={PARTITION: day_of(path)},
        modification_time=time.time_ns() // 1_000_000,
        data_change=data_change,
        stats=json.dumps(stats, ensure_ascii=False),
    )


def _shown(value: Any) -> Any:
    """Return a value in the form that statistics need: a time becomes a text that ends with Z."""
    return f"{value:%Y-%m-%dT%H:%M:%S.%f}Z" if isinstance(value, datetime) else value


def _compacted(column: pa.ChunkedArray) -> pa.Array:
    """Return a column whose dictionary has only the values that occur, because a row group stores all of them."""
    if column.num_chunks > 1:
        column = column.unify_dictionaries().combine_chunks()
    found = column if isinstance(column, pa.DictionaryArray) else column.chunk(0)
    values = found.dictionary
    if len(values) <= 1:
        return found
    indices = found.indices
    there = np.from_dlpack(indices.is_valid().cast(pa.int8())).astype(bool) if indices.null_count else None
    codes: Any = np.from_dlpack(indices.fill_null(0) if indices.null_count else indices)
    count = np.bincount(codes if there is None else codes[there], minlength=len(values))
    used = np.flatnonzero(count).astype(np.int32)
    if len(used) == len(values):
        return found
    renamed = np.zeros(len(values), np.int32)
    renamed[used] = np.arange(len(used))
    kept = values.take(numbers(pa.int32(), used))
    return pa.DictionaryArray.from_arrays(numbers(pa.int32(), renamed[codes], there), kept)
