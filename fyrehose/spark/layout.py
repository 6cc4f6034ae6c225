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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
from deltalake.transaction import AddAction
from pyarrow import compute, parquet

from fyrehose.spark.columns import COLUMNS, ENCODED, arrow_schema, numbers
from fyrehose.spark.lake import values_of
from fyrehose.spark.selection import time_of
from fyrehose.spark.stores import LakeStore

#: The largest number of records in a row group.
GROUP = 1 << 16
#: The largest size of the payloads of a row group in bytes, unless one record is larger.
GROUP_BYTES = 32 << 20
#: Bytes of a row group that are read at a time, uncompressed; and bytes of a file, as they are.
READ, BUFFER = 4 << 20, 1 << 20
#: The largest number of records in a row group that several streams share.
SMALL = 1 << 12

#: Columns of a file, without the day and the hour, which are in the names of its directories.
SCHEMA = pa.schema([pa.field("server", ENCODED), *arrow_schema(tuple(COLUMNS), encoded=True)])
STRINGS = [field.name for field in SCHEMA if field.type == ENCODED]
#: Columns of numbers and times, whose differences from record to record are small.
_RISING = ["seq", "time", "producer_seq", "event_time"]
#: How files of a lake are written: most columns are not compressed, because their encoding makes them small, and
#: compression takes time for each row group; statistics of payloads would only make files larger.
_OPTIONS = {
    "compression": dict.fromkeys(SCHEMA.names, "none")
    | dict.fromkeys(("producer", "topic", "event_id", "payload"), "zstd"),
    "use_dictionary": STRINGS,
    "column_encoding": dict.fromkeys(_RISING, "DELTA_BINARY_PACKED"),
    "write_statistics": ["server", "stream", "seq", "time", "source", "topic", "event_time"],
}


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


def fitting(records: pa.Table, room: int = GROUP_BYTES) -> int:
    """Return how many of the first records have payloads of at most *room* bytes together."""
    payloads = records["payload"]
    if payloads.nbytes <= room:
        return int(records.num_rows)
    lengths = [np.from_dlpack(compute.binary_length(chunk)) for chunk in payloads.chunks]
    return int(np.searchsorted(np.cumsum(np.concatenate(lengths), dtype=np.int64), room, side="right"))


def of_group(file: parquet.ParquetFile, number: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a row group, a few MiB at a time."""
    group = file.metadata.row_group(number)
    rows = max(1, min(group.num_rows, READ * group.num_rows // max(1, group.total_byte_size)))
    yield from file.iter_batches(rows, row_groups=[number], columns=columns)


def spans(*keys: pa.DictionaryArray) -> list[tuple[int, int]]:
    """Return where each stream begins and ends in columns that are sorted by stream."""
    changed = np.zeros(max(0, len(keys[0]) - 1), bool)
    for key in keys:
        codes = np.from_dlpack(key.indices)
        changed |= codes[1:] != codes[:-1]
    return list(pairwise([0, *(np.flatnonzero(changed) + 1).tolist(), len(keys[0])])) if len(keys[0]) else []


@attrs.define(eq=False)
class TableFile:
    """A Parquet file of a table that is being written, one row group after the other; use it as a context.

    The name of each file is unique, so that a task that Spark starts twice writes two files, and not one file twice.

    :ivar folder: the directory of its partition, as in date=2026-01-31
    :ivar name: the beginning of its name
    :ivar schema: its columns, without those of the partition
    :ivar measured: the columns whose least and largest values the log has, by which readers skip files
    :ivar options: how PyArrow writes it
    """

    store: LakeStore
    folder: str
    name: str
    schema: pa.Schema
    measured: Sequence[str]
    options: Mapping[str, Any] = MappingProxyType({"compression": "zstd", "coerce_timestamps": "us"})
    path: str = attrs.field(init=False)
    rows: int = attrs.field(default=0, init=False)
    size: int = attrs.field(default=0, init=False)
    _least: dict[str, Any] = attrs.field(factory=dict, init=False)
    _most: dict[str, Any] = attrs.field(factory=dict, init=False)
    _nulls: Counter[str] = attrs.field(factory=Counter, init=False)
    _stack: ExitStack = attrs.field(factory=ExitStack, init=False)
    _file: Any = attrs.field(default=None, init=False)
    _writer: Any = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.path = f"{self.folder}/{self.name}-{uuid.uuid4().hex[:12]}.parquet"

    def __enter__(self) -> TableFile:
        self._file = self._stack.enter_context(self.store.writing(self.path))
        self._writer = parquet.ParquetWriter(
            self._file, self.schema, write_page_checksum=True, store_schema=False, **self.options
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
        columns = [_compacted(each) if each.type == ENCODED else each for each in records.itercolumns()]
        group = pa.Table.from_arrays(columns, schema=self.schema)
        self._measure(group)
        self._writer.write_table(group, row_group_size=group.num_rows)
        self.rows += group.num_rows
        self.size = self._file.tell()

    def _measure(self, group: pa.Table) -> None:
        for name in self.measured:
            column = group[name]
            self._nulls[name] += column.null_count
            timed = pa.types.is_timestamp(column.type)  # as_py of a time would import pandas
            if column.type == ENCODED:
                column = column.chunk(0).dictionary  # it has only values that occur
            found = compute.min_max(column.cast(pa.int64()) if timed else column).as_py()
            if found["min"] is not None:
                least, most = (time_of(found[end]) if timed else found[end] for end in ("min", "max"))
                self._least[name] = min(self._least.get(name, least), least)
                self._most[name] = max(self._most.get(name, most), most)

    def action(self, data_change: bool) -> AddAction:
        """Return the action that makes the file a part of its table; readers skip files by its statistics."""
        stats = {
            "numRecords": self.rows,
            "minValues": {name: _shown(value) for name, value in self._least.items()},
            "maxValues": {name: _shown(value) for name, value in self._most.items()},
            "nullCount": {name: self._nulls[name] for name in self._least},
        }
        return AddAction(
            path=self.path,
            size=self.size,
            partition_values=values_of(self.path),
            modification_time=time.time_ns() // 1_000_000,
            data_change=data_change,
            stats=json.dumps(stats, ensure_ascii=False),
        )


def lake_file(store: LakeStore, folder: str, name: str) -> TableFile:
    """Return a file for records of a lake."""
    return TableFile(store, folder, name, SCHEMA, ("server", "stream", "seq", "time"), _OPTIONS)


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
