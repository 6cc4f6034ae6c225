"""Read Parquet files of a lake or a typed table without the rows that deletion vectors delete.

in: paths of files, columns      out: Arrow record batches
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, dataset, parquet

from fyrehose.spark.columns import TABLE
from fyrehose.spark.lake import day_of
from fyrehose.spark.layout import BUFFER, of_group
from fyrehose.spark.selection import Selection
from fyrehose.spark.stores import LakeStore

#: The largest number of records in a batch, so that a batch with payloads of some KiB each has some MiB.
_ROWS = 1 << 13
#: Types that PyArrow cannot filter, and the types that stand for them.
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def fetch(
    store: LakeStore,
    paths: Sequence[str],
    chosen: Selection | None,
    numbers: Iterable[pa.RecordBatch],
    deleted: Mapping[str, Any] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of files; skip row groups without selected records.

    :param numbers: the indexes of the ``paths`` to read
    :param deleted: indexes of the deleted rows of each file, by its path
    :raises JournalError: the object store cannot be reached
    """
    wanted = None
    if chosen is not None and chosen.streams is not None:  # Spark applies the other bounds.
        wanted = compute.field("stream").isin(sorted(chosen.streams))
    for path in (paths[number] for batch in numbers for number in batch.column(0).to_pylist()):
        yield from records_of(store, path, (deleted or {}).get(path), None, wanted)


def records_of(
    store: LakeStore,
    path: str,
    deleted: Any = None,
    columns: Sequence[str] | None = None,
    wanted: dataset.Expression | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of one file of a lake, with their day.

    :param deleted: indexes of the deleted rows, sorted; None: none
    :param columns: the columns; None: all
    :param wanted: the records to yield; row groups without such records are not read, nor is a file of another day
    """
    day = pa.scalar(day_of(path)).cast(pa.date32())
    with store.explained():
        if deleted is None:
            file = dataset.ParquetFileFormat().make_fragment(path, store.files(), compute.field("date") == day)
            yield from file.to_batches(TABLE, columns=columns, filter=wanted, batch_size=_ROWS)
            return
        found = read(store, [path], TABLE.remove(len(TABLE) - 1), {path: deleted})
        whole = (pa.RecordBatch.from_arrays([*each.columns, pa.repeat(day, len(each))], schema=TABLE) for each in found)
        yield from chosen_of(whole, columns, wanted)


def chosen_of(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str] | None, wanted: dataset.Expression | None
) -> Iterator[pa.RecordBatch]:
    """Yield columns of those records for which a condition is true."""
    scanner = dataset.Scanner.from_batches(iter(batches), schema=TABLE, columns=columns, filter=wanted)
    yield from scanner.to_batches()


def read(
    store: LakeStore,
    paths: Iterable[str],
    schema: pa.Schema,
    deleted: Mapping[str, Any] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the given columns of files; columns that a file does not have are null.

    :param deleted: indexes of the rows that deletion vectors delete, by file
    """
    for path in paths:
        found = batches_of(store, path, schema.names)
        for batch in found if not deleted or path not in deleted else kept(found, deleted[path]):
            columns = [
                batch[field.name].cast(field.type)
                if field.name in batch.schema.names
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def batches_of(store: LakeStore, path: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, a few MiB at a time, however large its row groups are.

    :param columns: the columns to read, if the file has them; None: all
    """
    with (
        store.explained(),
        store.files().open_input_file(path) as opened,
        parquet.ParquetFile(opened, buffer_size=BUFFER, pre_buffer=store.remote) as file,
    ):
        for number in range(file.num_row_groups):
            yield from map(_plain, of_group(file, number, columns))


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch without views of texts, which delta-rs writes when it deletes rows, and PyArrow cannot filter."""
    types = {field.name: _VIEWS.get(field.type, field.type) for field in batch.schema}
    return batch.cast(pa.schema([*types.items()])) if any(kind in _VIEWS for kind in batch.schema.types) else batch


def kept(batches: Iterable[pa.RecordBatch], deleted: Any) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one file without the deleted rows, whose indexes in the file are in *deleted*, sorted."""
    first = 0
    for batch in batches:
        begin, end = np.searchsorted(deleted, (first, first + batch.num_rows))
        mask = np.ones(batch.num_rows, bool)
        mask[deleted[begin:end] - first] = False
        first += batch.num_rows
        yield batch if begin == end else batch.filter(pa.array(mask))
