"""Read Parquet files of a lake or a typed table without the rows that deletion vectors delete.

in: paths of files, columns      out: Arrow record batches
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, dataset

from fyrehose.spark.columns import TABLE
from fyrehose.spark.lake import day_of
from fyrehose.spark.selection import Selection
from fyrehose.spark.stores import LakeStore

#: The largest number of records in a batch, so that a batch with payloads of some KiB each has some MiB.
_ROWS = 1 << 13


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
    schema, wanted = TABLE.remove(len(TABLE) - 1), None
    if chosen is not None and chosen.streams is not None:  # Spark applies the other bounds.
        wanted = compute.field("stream").isin(sorted(chosen.streams))
    for path in (paths[number] for batch in numbers for number in batch.column(0).to_pylist()):
        day = pa.scalar(day_of(path)).cast(pa.date32())
        for found in read(store, [path], schema, deleted, wanted):
            yield pa.RecordBatch.from_arrays([*found.columns, pa.repeat(day, found.num_rows)], schema=TABLE)


def read(
    store: LakeStore,
    paths: Iterable[str],
    schema: pa.Schema,
    deleted: Mapping[str, Any] | None = None,
    wanted: dataset.Expression | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the given columns of files; columns that a file does not have are null.

    :param deleted: indexes of the rows that deletion vectors delete, by file
    :param wanted: the rows to read; ignored for files with deleted rows, because a filter would change the indexes of
        rows
    """
    files, form = store.files(), dataset.ParquetFileFormat()
    with store.explained():
        for path in paths:
            without = (deleted or {}).get(path)
            chosen = wanted if without is None else None
            found = form.make_fragment(path, files).to_batches(schema, filter=chosen, batch_size=_ROWS)
            yield from found if without is None else kept(found, without)


def kept(batches: Iterable[pa.RecordBatch], deleted: Any) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one file without the deleted rows, whose indexes in the file are in *deleted*, sorted."""
    first = 0
    for batch in batches:
        begin, end = np.searchsorted(deleted, (first, first + batch.num_rows))
        mask = np.ones(batch.num_rows, bool)
        mask[deleted[begin:end] - first] = False
        first += batch.num_rows
        yield batch if begin == end else batch.filter(pa.array(mask))
