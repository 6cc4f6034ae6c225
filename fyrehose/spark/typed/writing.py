"""Fill typed tables from a part of a journal: the work on records, in tasks of Spark or in this process.

    in: a task: a part, and the tables to fill      out: their files, and what became of the records

A task reads its part once for all tables.  Its files are durable when it ends, and part of their tables when the driver
has committed them.  A task may run twice: the files of one of the runs are then never committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
from deltalake.transaction import AddAction
from pyarrow import compute

from fyrehose.errors import ExpectationFailed
from fyrehose.offline.places import Place
from fyrehose.spark import memory
from fyrehose.spark.columns import AN_HOUR, DAY, arrow_schema
from fyrehose.spark.fetching import batches_of, read
from fyrehose.spark.lake import folder_at, folder_of, values_of
from fyrehose.spark.layout import GROUP_BYTES, TableFile
from fyrehose.spark.plan import Part
from fyrehose.spark.reading import PartReader
from fyrehose.spark.selection import Selection, time_of
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
from fyrehose.spark.typed.extraction import Cells, Widened, converted, extracted

#: The columns of records that tables need.
NEEDED = ("stream", "seq", "time", "event_time", "payload")
#: Size of a part of a journal, which a task reads, in bytes.
PART = 16 << 20
#: Columns whose least and largest values the log has for each file.
MEASURED = (STREAM, SEQ, ACCEPTED, EVENT_TIME)
#: Length of a key's digest in bytes; zeros stand for a row without a key.
DIGEST = 16
#: The largest number of rows in a row group, and of its values, with nulls; a value of a fixed size has WIDTH bytes.
_GROUP, _CELLS, _WIDTH = 1 << 16, 1 << 24, 8
#: Bounds of event times, in microseconds since 1970: times outside of these bounds come from clocks that were not set,
#: and are ignored.
_YEARS = (pa.scalar(0, pa.int64()), pa.scalar(253_370_764_800_000_000, pa.int64()))
#: Schema of a quarantine: the names of the expectations, and the payload in ``rescued``.
QUARANTINED = schema_of({"expectations": "string"})
#: Schema of the table of expectations: a row for each rule and round, or backfill, with the position where it began,
#: how many rows it had, how many of these failed, and the beginning of the payload of one of them.
CHECKED = pa.schema(
    [
        *(("table", pa.string()), ("rule", pa.string()), ("run", pa.int64()), ("time", SYSTEM[ACCEPTED])),
        *(("rows", pa.int64()), ("failed", pa.int64()), ("sample", pa.binary()), (DATE, SYSTEM[DATE])),
    ]
)
#: Rows with their declared columns, and the columns of undeclared fields.
_Lot = tuple[pa.Table, dict[str, Cells]]
#: The size of a sample, in bytes.
_SAMPLE = 4096


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
    :ivar samples: the payload of a row that did not meet an expectation, by the name of the expectation
    """

    files: tuple[TypedFile, ...]
    quarantined: tuple[TypedFile, ...]
    fields: Mapping[str, str]
    counts: Mapping[str, int]
    samples: Mapping[str, bytes]


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
    samples: dict[str, bytes] = attrs.field(factory=dict, init=False)
    _good: list[_Lot] = attrs.field(factory=list, init=False)
    _bad: list[_Lot] = attrs.field(factory=list, init=False)
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
        self._sort(pa.table(columns), batch["payload"], found.cells)

    def _sort(self, rows: pa.Table, payloads: pa.Array, cells: dict[str, Cells]) -> None:
        """Check the rows against the expectations, count them, and leave out rows that do not meet one."""
        columns = {field.name: rows[field.name] for field in self.target.table.schema}
        good = np.ones(rows.num_rows, bool)
        bad = np.zeros(rows.num_rows, bool)
        reasons: list[list[str]] = [[] for _ in range(rows.num_rows)] if self.target.table.quarantines else []
        for each in self.target.table.expectations:
            holds = each.condition.holds(columns).to_numpy(zero_copy_only=False)
            failures = np.flatnonzero(~holds)
            self.counts[f"failed/{each.name}"] += len(failures)
            if len(failures) and each.name not in self.samples:
                self.samples[each.name] = payloads[int(failures[0])].as_py()[:_SAMPLE]
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
        whole, cells = _chosen((rows, cells), good)
        self.counts["rows"] += whole.num_rows
        self.counts["rescued"] += whole.num_rows - whole[RESCUED].null_count
        self.counts["dropped"] += int((~good & ~bad).sum())
        self.counts["quarantined"] += int(bad.sum())
        if whole.num_rows and self.target.store is not None:
            self._good.append((whole, cells))
        if bad.any() and self.target.quarantine is not None:
            said = pa.array([", ".join(names) for names in reasons])
            some = {name: rows[name] for name in SYSTEM if name not in (RESCUED, DATE)}
            quarantined = pa.table({**some, "expectations": said, RESCUED: payloads, DATE: rows[DATE]})
            self._bad.append((quarantined.filter(pa.array(bad)), {}))

    def written(self, name: str) -> Filled:
        """Write the rows, one file for each day."""
        schema = schema_of({column.name: column.type for column in self.target.table.columns} | self.fields)
        return Filled(
            files=tuple(_written(self.target.store, self._good, schema, name, self.target.table)),
            quarantined=tuple(_written(self.target.quarantine, self._bad, QUARANTINED, name)),
            fields=self.fields,
            counts={what: count for what, count in self.counts.items() if count},
            samples=self.samples,
        )


def checked(store: LakeStore, table: TypedTable, filled: Sequence[Filled], run: int) -> TypedFile | None:
    """Write how the rows of a round met the expectations of their table; return None if the round had no rows.

    :param run: the position where the round began
    """
    counts: Counter[str] = Counter()
    samples: dict[str, bytes] = {}
    for each in filled:
        counts.update(each.counts)
        samples = {**each.samples, **samples}
    rows = counts["rows"] + counts["dropped"] + counts["quarantined"]
    now = datetime.now(UTC)
    found = [
        (table.name, each.name, run, now, rows, counts[f"failed/{each.name}"], samples.get(each.name))
        for each in table.expectations
    ]
    if not rows:
        return None
    names = CHECKED.names[:-1]
    made = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in found], pa.schema(list(CHECKED)[:-1]))
    action = write_file(store, folder_at(now, False), "part-checked", [made], ("time",))
    return None if action is None else TypedFile(action=action, rows=len(found))


def _event_times(times: pa.Array | None, batch: pa.RecordBatch) -> pa.Array:
    """Return when events happened: by their own field, by their producer's time, or else by when they were accepted."""
    found = [batch["time"]]
    for column in (batch["event_time"], times):
        if column is not None:
            number = column.cast(pa.int64())
            believed = compute.and_(compute.greater(number, _YEARS[0]), compute.less(number, _YEARS[1]))
            found.insert(0, compute.if_else(believed, column, None))
    return compute.coalesce(*found)


def _chosen(lot: _Lot, mask: Any) -> _Lot:
    """Return the rows of a mask."""
    if mask.all():
        return lot
    return lot[0].filter(pa.array(mask)), {name: cells.chosen(mask) for name, cells in lot[1].items()}


def _joined(lots: Sequence[_Lot]) -> _Lot:
    """Return all rows as one lot."""
    found: dict[str, list[Cells]] = {}
    first = 0
    for rows, cells in lots:
        for name, each in cells.items():
            found.setdefault(name, []).append(Cells(each.rows + first, each.values))
        first += rows.num_rows
    return pa.concat_tables([rows for rows, _ in lots], promote_options="default"), {
        name: Cells(np.concatenate([each.rows for each in some]), pa.concat_arrays([each.values for each in some]))
        for name, some in found.items()
    }


def _whole(lot: _Lot, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows with all columns of a schema, so many at a time that their nulls fit into memory."""
    rows, cells = lot
    step = _CELLS // len(schema)
    for begin in range(0, rows.num_rows, step):
        some = rows.slice(begin, step)
        columns = {name: each.between(begin, begin + some.num_rows) for name, each in cells.items()}
        columns |= {name: some[name] for name in some.column_names}
        nulls = {field.name: pa.nulls(some.num_rows, field.type) for field in schema if field.name not in columns}
        columns |= nulls
        yield pa.table([columns[name] for name in schema.names], schema.names).cast(schema)


def _written(
    store: LakeStore | None, lots: Sequence[_Lot], schema: pa.Schema, name: str, table: TypedTable | None = None
) -> Iterator[TypedFile]:
    if store is None or not lots:
        return
    key, by_hour = ((), False) if table is None else (table.key, table.by_hour)
    whole = _joined(lots)
    schema = schema.remove(schema.get_field_index(DATE))
    for folder, mask in by_folder(whole[0][ACCEPTED], by_hour):
        lot = _chosen(whole, mask)
        if (action := write_file(store, folder, name, _whole(lot, schema))) is None:
            continue
        rows = lot[0]
        yield TypedFile(
            action=action,
            rows=rows.num_rows,
            keys=digests(rows, key) if key else b"",
            times=rows[ACCEPTED].cast(pa.int64()).to_numpy() if key else None,
            rescued=compute.is_valid(rows[RESCUED]).to_numpy() if key else None,
        )


def days_of(times: pa.Array) -> pa.Array:
    """Return the day in UTC of each time."""
    return times.cast(pa.timestamp("us")).cast(pa.date32(), safe=False)


def by_folder(times: pa.ChunkedArray, by_hour: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the directory of each partition, and a mask of its rows, by the times of the rows."""
    length = AN_HOUR if by_hour else DAY
    periods = times.cast(pa.int64()).to_numpy() // length
    for period in np.unique(periods).tolist():
        yield folder_at(time_of(period * length), by_hour), periods == period


def write_file(
    store: LakeStore,
    folder: str,
    name: str,
    tables: Iterable[pa.Table],
    measured: Sequence[str] = MEASURED,
    data_change: bool = True,
) -> AddAction | None:
    """Write rows as a durable file of one partition, and return the action that makes it a part of its table.

    :param tables: rows without the column ``date``; not more than a row group of them is in memory
    :param measured: the columns whose least and largest values readers use
    :return: None if there are no rows
    """
    groups = _groups(tables)
    group = next(groups, None)
    if group is None:
        return None
    with TableFile(store, folder, name, group.schema, measured) as file:
        while group is not None:
            file.write(group)
            group = None  # so that two row groups are not in memory at the same time
            group = next(groups, None)
    return file.action(data_change)


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of *tables* as row groups, which are bounded in rows and in bytes."""
    lot: list[pa.Table] = []
    rows = size = 0
    for some in (piece for table in tables for piece in _pieces(table)):
        more = _bytes(some)
        if lot and not _fits(rows + some.num_rows, some.num_columns, size + more):
            yield pa.concat_tables(lot)
            lot, rows, size = [], 0, 0
        lot.append(some)
        rows += some.num_rows
        size += more
    if lot:
        yield pa.concat_tables(lot)


def _fits(rows: int, columns: int, size: int) -> bool:
    """Return whether a row group may be so large; *size* is that of its texts."""
    return rows <= _GROUP and rows * columns <= _CELLS and size <= GROUP_BYTES


def _bytes(table: pa.Table) -> int:
    """Return the bytes of a table beyond those that each value has."""
    beyond: int = table.nbytes - _WIDTH * table.num_rows * table.num_columns
    return max(0, beyond)


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    """Yield parts of a table that are not larger than a row group, unless one row is."""
    if table.num_rows <= 1 or _fits(table.num_rows, table.num_columns, _bytes(table)):
        yield from (table,) if table.num_rows else ()
    else:
        half = table.num_rows // 2
        yield from _pieces(table.slice(0, half))
        yield from _pieces(table.slice(half))


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
    """Files of one partition to write again as one file, with some of their rows, or with other types.

    :ivar schema: the schema to write; None: the schema of the file
    :ivar chosen: a mask of the rows to keep; None: all
    :ivar merges: whether the rows stay the same
    """

    store: LakeStore
    paths: tuple[str, ...]
    schema: pa.Schema | None = None
    chosen: Any = None
    measured: Sequence[str] = MEASURED
    merges: bool = False


def rewrite(task: RewriteTask) -> AddAction | None:
    """Write files again, a few MiB at a time; return None if no row is kept, or if a new type would change a value."""
    folder, name = folder_of(task.paths[0]), "part-merged" if task.merges else "part-rewritten"
    try:
        return write_file(task.store, folder, name, _rewritten(task), task.measured, not task.merges)
    except pa.ArrowInvalid:
        return None


def _rewritten(task: RewriteTask) -> Iterator[pa.Table]:
    at = 0
    for rows in (pa.Table.from_batches([batch]) for path in task.paths for batch in batches_of(task.store, path)):
        count = rows.num_rows
        if task.chosen is not None:
            rows = rows.filter(pa.array(task.chosen[at : at + count]))
        at += count
        if task.schema is not None:
            schema = pa.schema([field for field in task.schema if field.name not in values_of(task.paths[0])])
            columns = [
                converted(rows[field.name], field.type)
                if field.name in rows.column_names
                else pa.nulls(rows.num_rows, field.type)
                for field in schema
            ]
            rows = pa.table(columns, schema)
        yield rows
