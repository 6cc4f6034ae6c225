"""Read Parquet files of a lake in an object store, in the Python tasks of Spark.

in: numbers of files      out: their records, as Arrow record batches with the columns of a table
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import compute, dataset

from fyrehose.spark.lake import PARTITION, SCHEMA
from fyrehose.spark.selection import Selection
from fyrehose.spark.stores import LakeStore

#: Most records of a batch; a batch of payloads of some KiB each is then some MiB.
_ROWS = 1 << 13


def fetch(
    store: LakeStore, paths: Sequence[str], chosen: Selection | None, numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of files; row groups without selected records are left out.

    :param numbers: which of ``paths`` to read
    :raises JournalError: the object store cannot be reached
    """
    files, form, schema = store.files(), dataset.ParquetFileFormat(), SCHEMA.remove(len(SCHEMA) - 1)
    with store.explained():
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                path = paths[number]
                day = pa.scalar(path.rpartition(f"{PARTITION}=")[2][:10]).cast(pa.date32())
                fragment = form.make_fragment(path, files)
                for found in fragment.to_batches(schema, filter=_filter(chosen), batch_size=_ROWS):
                    yield pa.RecordBatch.from_arrays([*found.columns, pa.repeat(day, found.num_rows)], schema=SCHEMA)


def _filter(chosen: Selection | None) -> Any:
    """Return a filter by the streams of a selection; its other bounds are left to Spark."""
    if chosen is None or chosen.streams is None:
        return None
    return compute.field("stream").isin(sorted(chosen.streams))
