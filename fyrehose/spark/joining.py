"""Join the parts of events that are larger than a record, in Arrow record batches and in DataFrames.

    part, another record, last part  ->  another record, event

All other records stay as they are; further columns are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import compute

from fyrehose.journal.parts import LARGEST, PART, PARTS, Joiner, is_next, is_part
from fyrehose.records import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Columns by which the parts of one event are recognized.
LABELS = ("source", "producer", "topic", "content_type", "producer_seq")
_KINDS = pa.array(sorted(PARTS))


def joined(records: DataFrame) -> DataFrame:
    """Return records with the parts of each event joined, if all of them are there and the event is at most 64 MiB.

    The event is the row of its last part with the whole payload.  The result has no order.  The records are read twice,
    except for files and row groups of a lake without parts.

    :param records: the records of a lake or a journal, or some of them; the columns of a record are needed
    """
    from pyspark.sql import functions as f

    part = f.coalesce(f.col("content_type").isin(sorted(PARTS)), f.lit(False))
    keys = [name for name in ("server", "stream", "producer") if name in records.columns]
    parts = records.where(f.col("content_type").isin(sorted(PARTS))).repartition(*keys)
    events = parts.sortWithinPartitions(*keys, "seq").mapInArrow(_events, records.schema)
    return records.where(~part).union(events)


def _events(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join parts that are sorted by server, stream, producer and number, one server after another; yield the events."""
    rows = (batch.slice(at, 1) for batch in batches for at in range(batch.num_rows))
    for _, of_server in groupby(rows, _server):
        yield from joined_batches(of_server, Joiner(LARGEST))


def _server(row: pa.RecordBatch) -> Any:
    return row.column("server")[0].as_py() if "server" in row.schema.names else None


def joined_batches(batches: Iterable[pa.RecordBatch], joiner: Joiner) -> Iterator[pa.RecordBatch]:
    """Yield batches with the parts of each event joined; batches without parts stay as they are."""
    #: the row without the payload of each part that the joiner keeps, by stream and number
    rows: dict[tuple[str, int], pa.RecordBatch] = {}

    def batch_of(runs: Iterable[Run]) -> Iterator[pa.RecordBatch]:
        for run in runs:
            yield _with(rows[run.stream, run.first_seq], {"payload": run.payload, "content_type": run.content_type})
        if not joiner.holding:
            rows.clear()

    for batch in batches:
        begin = 0
        for at in _parts_of(batch):
            if at > begin:
                yield batch.slice(begin, at - begin)
            begin = at + 1
            run = run_of(batch, at)
            # Copy the row without its payload, because a slice would keep the whole batch in memory.
            rows[run.stream, run.first_seq] = _with(batch.slice(at, 1), {"payload": b""}).take(pa.array([0]))
            yield from batch_of(joiner.join(run))
        if begin < batch.num_rows:
            yield batch.slice(begin)
    yield from batch_of(joiner.end())


def whole_events(
    batches: Iterable[pa.RecordBatch], before: Callable[[], Iterable[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Yield batches in which every event that is stored in parts is one row, even if parts are missing.

    The row is that of the last part.  It has the whole payload; or only the payload of the last part, if no other part
    is found, or the event is larger than 64 MiB.  So the number of rows depends on the batches alone.

    :param before: returns the earlier batches that may hold first parts; called only if there are parts
    """
    joiner: Joiner | None = None
    for batch in batches:
        begin = 0
        for at in _parts_of(batch):
            run = run_of(batch, at)
            if not is_part(run):
                continue  # An ordinary record, whose producer has chosen the content type of parts.
            if joiner is None:
                joiner = _holding(before())
            if at > begin:
                yield batch.slice(begin, at - begin)
            begin = at + 1
            found = list(joiner.join(run))
            if run.content_type != PART:
                yield _with(batch.slice(at, 1), {"payload": _payload(run, found)})
        if begin < batch.num_rows:
            yield batch.slice(begin)


def _holding(batches: Iterable[pa.RecordBatch]) -> Joiner:
    """Return a joiner that has received the parts in the batches, and keeps those of incomplete events."""
    joiner = Joiner()
    for batch in batches:
        for at in _parts_of(batch):
            for _ in joiner.join(run_of(batch, at)):
                pass
    return joiner


def _payload(last: Run, found: Iterable[Run]) -> bytes:
    """Return the payload of an event from the runs that a joiner passed on when the event's last part arrived."""
    key = last.stream, last.producer
    # If an event is not a JSON text, the joiner passes it on in several runs.
    mine = [run for run in found if (run.stream, run.producer) == key and is_next(last, run)]
    whole = b"".join(run.payload for run in mine)
    return whole if len(whole) <= LARGEST else bytes(last.payload)


def _parts_of(batch: pa.RecordBatch) -> list[int]:
    """Return the indexes of the rows that may be parts."""
    found: list[int] = compute.indices_nonzero(compute.is_in(batch["content_type"], value_set=_KINDS)).to_pylist()
    return found


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
