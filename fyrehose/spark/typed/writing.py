"""Fill typed tables from a part of a journal: the work on records, in tasks of Spark or in this process.

    in: a task: a part, and the tables to fill      out: their files, and what became of the records

A task reads its part once for all tables.  Its files are durable when it ends, and part of their tables when the driver
has committed them.  A task may run twice: the files of one of the runs are then never committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
from deltalake.transaction import AddAction
from pyarrow import compute, parquet

from fyrehose.errors import ExpectationFailed
from fyrehose.offline.places import Place
from fyrehose.spark import memory
from fyrehose.spark.columns import arrow_schema
from fyrehose.spark.fetching import read
from fyrehose.spark.lake import day_of
from fyrehose.spark.layout import add_action, new_path
from fyrehose.spark.plan import Part
from fyrehose.spark.reading import PartReader
from fyrehose.spark.selection import Selection
from fyrehose.spark.stores import LakeStore
from fyrehose.spark.typed.config import (
    ACCEPTED,
    DATE,
    DROP,
    EVENT_TIME,
    FAIL,
    QUARANTINE,
    RESCUED,
    SEQ,
    STREAM,
    SYSTEM,
    TypedTable,
    schema_of,
)
from fyrehose.spark.typed.extraction import Widened, extracted

#: The columns of records that tables need.
NEEDED = ("stream", "seq", "time", "event_time", "payload")
#: Size of a part of a journal, which a task reads, in bytes.
PART = 32 << 20
#: Columns whose least and largest values the log has for each file.
MEASURED = (STREAM, SEQ, ACCEPTED, EVENT_TIME)
#: Length of a key's digest in bytes; zeros stand for a row without a key.
DIGEST = 16
#: The largest number of rows in a row group.
_GROUP = 1 << 16
#: Bounds of event times, in microseconds since 1970: times outside of these bounds come from clocks that were not set,
#: and are ignored.
_YEARS = (pa.scalar(0, pa.int64()), pa.scalar(253_370_764_800_000_000, pa.int64()))
#: Schema of a quarantine: the names of the expectations, and the payload in ``rescued``.
QUARANTINED = schema_of({"expectations": "string"})


@attrs.frozen(kw_only=True)
class JournalPart:
    """A part of a journal to read."""

    place: Place
    part: Part
    selection: Selection
    skip_gaps: bool

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the selected records in the order of the journal."""
        return PartReader(self.place, self.part, self.selection, arrow_schema(NEEDED), self.skip_gaps).read()


@attrs.frozen(kw_only=True)
class LakePart:
    """Files of an archive to read.

    :ivar deleted: indexes of the rows that deletion vectors delete, by file
    """

    store: LakeStore
    paths: tuple[str, ...]
    server: str
    selection: Selection
    deleted: Mapping[str, Any]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the selected records of the server."""
        columns = {"server": pa.string(), **{field.name: field.type for field in arrow_schema(NEEDED)}}
        since, until = self.selection.start.time, self.selection.end.time
        for batch in read(self.store, self.paths, pa.schema([*columns.items()]), self.deleted):
            mask = compute.and_(compute.equal(batch["server"], self.server), compute.is_valid(batch["seq"]))
            times = batch["time"].cast(pa.int64())
            if since is not None:
                mask = compute.and_(mask, compute.greater_equal(times, since))
            if until is not None:
                mask = compute.and_(mask, compute.less_equal(times, until))
            yield batch.filter(mask).select(list(NEEDED))


@attrs.frozen(kw_only=True)
class Target:
    """One table that a task fills.

    :ivar store: where the table is; None: the table has these records already
    :ivar quarantine: where its quarantine is; None: the table has none, or its quarantine has these records already
    :ivar known: the types of the columns of fields that no declared column has
    :ivar fixed: the columns of *known* that cannot get a wider type
    """

    table: TypedTable
    store: LakeStore | None
    quarantine: LakeStore | None
    known: Mapping[str, str]
    fixed: frozenset[str]


@attrs.frozen(kw_only=True)
class FillTask:
    """A part of the records, and the tables to fill; can be pickled."""

    source: JournalPart | LakePart
    targets: tuple[Target, ...]
    name: str


@attrs.frozen(kw_only=True)
class TypedFile:
    """A file that a task wrote.

    :ivar keys: the digest of each row's key; empty if the table has no key
    :ivar times: when the record of each row was accepted, in microseconds
    :ivar rescued: a mask of the rows whose payload is kept
    """

    action: AddAction
    rows: int
    keys: bytes = b""
    times: Any = None
    rescued: Any = None


@attrs.frozen(kw_only=True)
class Filled:
    """The result of a task for one table.

    :ivar fields: the types of all columns of fields
    :ivar counts: the number of rows, by outcome
    """

    files: tuple[TypedFile, ...]
    quarantined: tuple[TypedFile, ...]
    fields: Mapping[str, str]
    counts: Mapping[str, int]


def fill(task: FillTask) -> list[Filled]:
    """Write the files of a task, and return what was done for each of its tables.

    :raises ExpectationFailed: a row does not meet an expectation that must be met
    :raises JournalCorrupt: durable bytes are damaged, or were deleted
    """
    known = [dict(target.known) for target in task.targets]
    with memory.uncollected():
        while (rows := _collected(task, known)) is None:
            pass  # Begin again with wider columns; this happens once for each column.
        return [each.written(task.name) for each in rows]


def _collected(task: FillTask, known: Sequence[dict[str, str]]) -> list[_Rows] | None:
    """Return the rows of each table; or None if the type of a column is too narrow, after widening it in *known*."""
    rows = [_Rows(target, dict(fields)) for target, fields in zip(task.targets, known, strict=True)]
    for batch in task.source.batches():
        for each, fields in zip(rows, known, strict=True):
            try:
                each.add(batch)
            except Widened as wider:
                fields[wider.name] = "double"
                return None
    return rows


@attrs.define(eq=False)
class _Rows:
    """A collection of the rows of one table.

    :ivar fields: the types of the columns of fields so far
    """

    target: Target
    fields: dict[str, str]
    counts: Counter[str] = attrs.field(factory=Counter, init=False)
    _good: list[pa.Table] = attrs.field(factory=list, init=False)
    _bad: list[pa.Table] = attrs.field(factory=list, init=False)
    _covered: dict[str, bool] = attrs.field(factory=dict, init=False)

    def add(self, batch: pa.RecordBatch) -> None:
        """Extract the rows of those records in a batch whose streams belong to the table."""
        table = self.target.table
        streams = batch["stream"].unique().to_pylist()
        for stream in streams:
            if stream not in self._covered:
                self._covered[stream] = any(pattern.covers(stream) for pattern in table.streams)
        ours = [stream for stream in streams if self._covered[stream]]
        if len(ours) < len(streams):
            batch = batch.filter(compute.is_in(batch["stream"], pa.array(ours, pa.string())))
        if not batch.num_rows:
            return
        found = extracted(batch["payload"].to_pylist(), table, self.fields, self.target.fixed)
        self.fields = found.fields
        columns = {
            STREAM: batch["stream"],
            SEQ: batch["seq"],
            ACCEPTED: batch["time"],
            EVENT_TIME: _event_times(found.times, batch),
            **found.columns,
            RESCUED: compute.if_else(pa.array(found.misfits), batch["payload"], None),
        }
        columns[DATE] = days_of(batch["time"])
        self._sort(pa.table(columns), batch["payload"])

    def _sort(self, rows: pa.Table, payloads: pa.Array) -> None:
        """Check the rows against the expectations, count them, and leave out rows that do not meet one."""
        columns = {field.name: rows[field.name] for field in self.target.table.schema}
        good = np.ones(rows.num_rows, bool)
        bad = np.zeros(rows.num_rows, bool)
        reasons: list[list[str]] = [[] for _ in range(rows.num_rows)] if self.target.table.quarantines else []
        for each in self.target.table.expectations:
            holds = each.condition.holds(columns).to_numpy(zero_copy_only=False)
            failures = np.flatnonzero(~holds)
            self.counts[f"failed/{each.name}"] += len(failures)
            if len(failures) and each.action == FAIL:
                row = int(failures[0])
                raise ExpectationFailed(
                    f"record {rows[SEQ][row].as_py()} of the stream {rows[STREAM][row].as_py()!r} does not meet the "
                    f"expectation {each.name!r} of the table {self.target.table.name!r}: {each.condition.text}; "
                    "nothing of its round was committed. Correct the condition, or let its action be drop or quarantine"
                )
            if each.action in (DROP, QUARANTINE):
                good &= holds
            if each.action == QUARANTINE:
                bad |= ~holds
                for row in failures.tolist():
                    reasons[row].append(each.name)
        whole = rows if good.all() else rows.filter(pa.array(good))
        self.counts["rows"] += whole.num_rows
        self.counts["rescued"] += whole.num_rows - whole[RESCUED].null_count
        self.counts["dropped"] += int((~good & ~bad).sum())
        self.counts["quarantined"] += int(bad.sum())
        if whole.num_rows and self.target.store is not None:
            self._good.append(whole)
        if bad.any() and self.target.quarantine is not None:
            said = pa.array([", ".join(names) for names in reasons])
            some = {name: rows[name] for name in SYSTEM if name not in (RESCUED, DATE)}
            quarantined = pa.table({**some, "expectations": said, RESCUED: payloads, DATE: rows[DATE]})
            self._bad.append(quarantined.filter(pa.array(bad)))

    def written(self, name: str) -> Filled:
        """Write the rows, one file for each day."""
        schema = schema_of({column.name: column.type for column in self.target.table.columns} | self.fields)
        return Filled(
            files=tuple(_written(self.target.store, self._good, schema, name, self.target.table.key)),
            quarantined=tuple(_written(self.target.quarantine, self._bad, QUARANTINED, name)),
            fields=self.fields,
            counts={what: count for what, count in self.counts.items() if count},
        )


def _event_times(times: pa.Array | None, batch: pa.RecordBatch) -> pa.Array:
    """Return when events happened: by their own field, by their producer's time, or else by when they were accepted."""
    found = [batch["time"]]
    for column in (batch["event_time"], times):
        if column is not None:
            number = column.cast(pa.int64())
            believed = compute.and_(compute.greater(number, _YEARS[0]), compute.less(number, _YEARS[1]))
            found.insert(0, compute.if_else(believed, column, None))
    return compute.coalesce(*found)


def _written(
    store: LakeStore | None, tables: list[pa.Table], schema: pa.Schema, name: str, key: tuple[str, ...] = ()
) -> Iterator[TypedFile]:
    if store is None or not tables:
        return
    whole = pa.concat_tables(tables, promote_options="default")
    missing = [field for field in schema if field.name not in whole.column_names]
    for field in missing:
        whole = whole.append_column(field, pa.nulls(whole.num_rows, field.type))
    whole = whole.select(schema.names).cast(schema)
    for day, rows in by_day(whole):
        yield TypedFile(
            action=write_file(store, day, name, rows),
            rows=rows.num_rows,
            keys=digests(rows, key) if key else b"",
            times=rows[ACCEPTED].cast(pa.int64()).to_numpy() if key else None,
            rescued=compute.is_valid(rows[RESCUED]).to_numpy() if key else None,
        )


def days_of(times: pa.Array) -> pa.Array:
    """Return the day in UTC of each time."""
    return times.cast(pa.timestamp("us")).cast(pa.date32(), safe=False)


def by_day(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield each day in the column ``date``, and its rows without this column."""
    for day in sorted(rows[DATE].unique().to_pylist()):
        yield str(day), rows.filter(compute.equal(rows[DATE], pa.scalar(day, pa.date32()))).drop_columns([DATE])


def write_file(store: LakeStore, day: str, name: str, rows: pa.Table, measured: Iterable[str] = MEASURED) -> AddAction:
    """Write a durable file of one day, and return the action that makes it a part of its table.

    :param rows: without the column ``date``
    """
    path = new_path(day, name)
    with store.writing(path) as file:
        parquet.write_table(
            rows,
            file,
            compression="zstd",
            row_group_size=_GROUP,
            write_page_checksum=True,
            store_schema=False,
            coerce_timestamps="us",
        )
        size = file.tell()
    bounds = {each: compute.min_max(rows[each]).as_py() for each in measured}
    least, most = (
        {each: found[end] for each, found in bounds.items() if found[end] is not None} for end in ("min", "max")
    )
    return add_action(path, size, rows.num_rows, least, most, {each: rows[each].null_count for each in least})


def digests(rows: pa.Table, key: tuple[str, ...]) -> bytes:
    """Return the joined digests of the rows' keys; zeros for a row in which a column of the key is null."""
    # Times become numbers, because it is slow to convert times to Python objects.
    times = pa.types.is_timestamp
    columns = [(rows[name].cast(pa.int64()) if times(rows[name].type) else rows[name]).to_pylist() for name in key]
    return b"".join(
        bytes(DIGEST) if None in values else blake2b(repr(values).encode(), digest_size=DIGEST).digest()
        for values in zip(*columns, strict=True)
    )


@attrs.frozen(kw_only=True)
class RewriteTask:
    """A file to write again, with some of its rows, or with other types.

    :ivar schema: the schema to write; None: the schema of the file
    :ivar chosen: a mask of the rows to keep; None: all
    """

    store: LakeStore
    path: str
    schema: pa.Schema | None = None
    chosen: Any = None


def rewrite(task: RewriteTask) -> AddAction | None:
    """Write a file again; return None if no row is kept, or if its new type would change a value."""
    with task.store.explained(), task.store.files().open_input_file(task.path) as opened:
        rows = parquet.ParquetFile(opened).read()
    if task.chosen is not None:
        rows = rows.filter(pa.array(task.chosen))
    if task.schema is not None:
        schema = task.schema.remove(task.schema.get_field_index(DATE))
        for field in schema:
            if field.name not in rows.column_names:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        try:
            rows = rows.select(schema.names).cast(schema)
        except pa.ArrowInvalid:
            return None
    return write_file(task.store, day_of(task.path), "part-rewritten", rows) if rows.num_rows else None
