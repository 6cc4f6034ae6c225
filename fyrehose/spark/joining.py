"""Join the parts of events that are larger than a record, in Arrow record batches and in DataFrames.

    part, another record, last part  ->  another record, event

Everything but the parts stays as it is, whatever other columns there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import compute

from fyrehose.parts import LARGEST, PARTS, Joiner
from fyrehose.records import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Columns of a record that say to which event a part belongs.
LABELS = ("source", "producer", "topic", "content_type", "producer_seq")
_KINDS = pa.array(sorted(PARTS))


def joined(records: DataFrame) -> DataFrame:
    """Return records with the parts of each event joined, if all of them are there and the event is at most 64 MiB.

    The event is the row of its last part with the whole payload.  Only parts are sorted, so no order remains; the
    records are read twice, but for the files and row groups of a lake that have no parts.

    :param records: needs the columns of a record; those of a lake or a journal, or some of them
    """
    from pyspark.sql import functions as f

    part = f.coalesce(f.col("content_type").isin(sorted(PARTS)), f.lit(False))
    keys = [name for name in ("server", "stream", "producer") if name in records.columns]
    parts = records.where(f.col("content_type").isin(sorted(PARTS))).repartition(*keys)
    events = parts.sortWithinPartitions(*keys, "seq").mapInArrow(_events, records.schema)
    return records.where(~part).union(events)


def _events(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield parts joined that are sorted by server, stream, producer and number; one server's after another's."""
    rows = (batch.slice(at, 1) for batch in batches for at in range(batch.num_rows))
    for _, of_server in groupby(rows, _server):
        yield from joined_batches(of_server, Joiner(LARGEST))


def _server(row: pa.RecordBatch) -> Any:
    return row.column("server")[0].as_py() if "server" in row.schema.names else None


def joined_batches(batches: Iterable[pa.RecordBatch], joiner: Joiner) -> Iterator[pa.RecordBatch]:
    """Yield batches with the parts of each event joined; batches without parts stay as they are."""
    #: the other columns of the parts that the joiner holds
    rows: dict[tuple[str, int], pa.RecordBatch] = {}

    def batch_of(runs: Iterable[Run]) -> Iterator[pa.RecordBatch]:
        for run in runs:
            yield _with(rows[run.stream, run.first_seq], {"payload": run.payload, "content_type": run.content_type})
        if not joiner.holding:
            rows.clear()

    for batch in batches:
        begin = 0
        for at in compute.indices_nonzero(compute.is_in(batch["content_type"], value_set=_KINDS)).to_pylist():
            if at > begin:
                yield batch.slice(begin, at - begin)
            begin = at + 1
            run = run_of(batch, at)
            # A copy without the payload: a slice would keep the whole batch in memory.
            rows[run.stream, run.first_seq] = _with(batch.slice(at, 1), {"payload": b""}).take(pa.array([0]))
            yield from batch_of(joiner.join(run))
        if begin < batch.num_rows:
            yield batch.slice(begin)
    yield from batch_of(joiner.end())


def run_of(batch: pa.RecordBatch, at: int) -> Run:
    """Return a row of a batch as a run of one record, without its times."""
    row = {name: batch[name][at].as_py() for name in ("stream", "seq", "payload", *LABELS)}
    labels = {name: row[name] for name in LABELS}
    return Run.of(row["stream"], [row["payload"]], first_seq=row["seq"], **labels)


def _with(row: pa.RecordBatch, values: dict[str, Any]) -> pa.RecordBatch:
    """Return a batch of one row with other values in some columns."""
    for name, value in values.items():
        at = row.schema.get_field_index(name)
        row = row.set_column(at, row.schema.field(at), pa.array([value], row.schema.field(at).type))
    return row
