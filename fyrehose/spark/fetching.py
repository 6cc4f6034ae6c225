"""Read Parquet files of a lake in an object store, in the Python tasks of Spark.

in: indexes of files      out: their records, as Arrow record batches with the columns of a table
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, dataset

from fyrehose.spark.lake import PARTITION, SCHEMA
from fyrehose.spark.selection import Selection
from fyrehose.spark.stores import LakeStore

#: Most records of a batch; a batch of payloads of some KiB each is then some MiB.
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
    files, form, schema = store.files(), dataset.ParquetFileFormat(), SCHEMA.remove(len(SCHEMA) - 1)
    with store.explained():
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                path = paths[number]
                day = pa.scalar(path.rpartition(f"{PARTITION}=")[2][:10]).cast(pa.date32())
                fragment = form.make_fragment(path, files)
                without = (deleted or {}).get(path)
                wanted = _filter(chosen) if without is None else None  # A filter would change the indexes of rows.
                batches = fragment.to_batches(schema, filter=wanted, batch_size=_ROWS)
                for found in batches if without is None else kept(batches, without):
                    yield pa.RecordBatch.from_arrays([*found.columns, pa.repeat(day, found.num_rows)], schema=SCHEMA)


def kept(batches: Iterable[pa.RecordBatch], deleted: Any) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one file without the deleted rows; their indexes in the file are in order."""
    first = 0
    for batch in batches:
        begin, end = np.searchsorted(deleted, (first, first + batch.num_rows))
        mask = np.ones(batch.num_rows, bool)
        mask[deleted[begin:end] - first] = False
        first += batch.num_rows
        yield batch if begin == end else batch.filter(pa.array(mask))


def _filter(chosen: Selection | None) -> Any:
    """Return a filter for the streams of a selection; Spark applies the other bounds."""
    if chosen is None or chosen.streams is None:
        return None
    return compute.field("stream").isin(sorted(chosen.streams))
