"""Convert the runs of a journal to Arrow record batches, without a Python object for each record or run.

    in: a table of runs, and the chunks of segments that contain them      out: pyarrow.RecordBatch

The table has a row of numbers for each run (kernels/pure/columns.py); the values of each record are computed for
thousands of records at once.  The payload of a single large run is passed on without a copy; the payloads of several
runs are joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from fyrehose.errors import ConfigError
from fyrehose.journal.format import Has
from fyrehose.kernels import columns as kernel
from fyrehose.records import Buffer

_TIME = pa.timestamp("us", tz="UTC")
#: The type of a column of strings that is encoded by a dictionary.
ENCODED = pa.dictionary(pa.int32(), pa.string())
#: The length of a day and of an hour, in microseconds.
DAY, AN_HOUR = 86_400_000_000, 3_600_000_000

#: The type of every column, in the order of a table's columns.
COLUMNS: dict[str, pa.DataType] = {
    "stream": pa.string(),
    "seq": pa.int64(),
    "time": _TIME,
    "source": pa.string(),
    "producer": pa.string(),
    "topic": pa.string(),
    "content_type": pa.string(),
    "producer_seq": pa.int64(),
    "event_id": pa.binary(),
    "event_time": _TIME,
    "payload": pa.binary(),
}
#: Columns of a lake and of the tables over it: the name of the server, the columns of a record, and the day (UTC) on
#: which the record was accepted.
TABLE = pa.schema([("server", pa.string()), *COLUMNS.items(), ("date", pa.date32())])
#: Columns that are never null.
REQUIRED = ("stream", "seq", "time", "source", "payload")

#: Size at which a record batch is full, in records and in bytes of payload.
ROWS = 1 << 16
BYTES = 8 << 20


@attrs.frozen(slots=True)
class RunKind:
    """The values that all records of a run share, and the optional columns of the run (journal/format.py, Has)."""

    has: int

    stream: str
    source: str
    producer: str | None
    topic: str | None
    content_type: str | None


def arrow_schema(columns: tuple[str, ...], *, encoded: bool = False) -> pa.Schema:
    """Return the Arrow schema of a table with these columns.

    :param encoded: strings are encoded by dictionaries, as Parquet stores them
    :raises ConfigError: a column does not exist
    """
    for name in columns:
        if name not in COLUMNS:
            raise ConfigError(f"unknown column {name!r}: expected one of {', '.join(COLUMNS)}")
    types = COLUMNS | {name: ENCODED for name, kind in COLUMNS.items() if encoded and kind == pa.string()}
    return pa.schema([pa.field(name, types[name], nullable=name not in REQUIRED) for name in columns])


#: The optional columns of a run, in the order in which they are stored, and the bytes that each takes for a record.
OPTIONAL = ((Has.PRODUCER_SEQS, 8), (Has.EVENT_IDS, 16), (Has.EVENT_TIMES, 8))
#: Columns of the table of runs (kernels/pure/columns.py).
_FIELDS = 10
_ID, _COUNT, _FIRST, _MOMENT, _PRODUCER, _CHUNK, _OPTIONAL_AT, _LENGTHS_AT, _PAYLOAD_AT, _SIZE = range(_FIELDS)
#: Number of runs for which a new table has room.
_ROOM = 1 << 10


@attrs.define(eq=False)
class Pieces:
    """A collection of runs of a journal, from whose records :meth:`batch` makes one record batch.

    :ivar kinds: the kinds to which the runs' indexes refer
    :ivar chunks: the buffers to which the runs' offsets refer
    :ivar table: a row for each run, and room for more
    :ivar used: the number of rows that are filled
    """

    schema: pa.Schema
    kinds: list[RunKind]
    chunks: list[Buffer] = attrs.field(factory=list)
    table: Any = attrs.field(factory=lambda: np.empty((_ROOM, _FIELDS), np.int64))
    used: int = 0
    # Columns of the table.
    _ids: Any = attrs.field(default=None, init=False)
    _counts: Any = attrs.field(default=None, init=False)
    _firsts: Any = attrs.field(default=None, init=False)
    _times: Any = attrs.field(default=None, init=False)
    _producer_firsts: Any = attrs.field(default=None, init=False)

    @property
    def rows(self) -> int:
        """Return the number of records in the collected runs."""
        return int(self.table[: self.used, _COUNT].sum())

    def reserve(self, runs: int) -> None:
        """Make room in the table for *runs* more runs."""
        missing = self.used + runs - len(self.table)
        if missing > 0:
            self.table = np.concatenate([self.table, np.empty((max(missing, len(self.table)), _FIELDS), np.int64)])

    def add(
        self, kind: int, first: int, time: int, producer_first: int, optional: Buffer, lengths: Buffer, payload: Buffer
    ) -> None:
        """Add a run whose columns are separate buffers, not parts of a segment."""
        self.reserve(1)
        number, begin = len(self.chunks), len(optional)
        self.chunks.append(b"".join((optional, lengths, payload)))
        signed = producer_first - (producer_first >> 63 << 64)
        at = begin + len(lengths)
        self.table[self.used] = (kind, len(lengths) // 4, first, time, signed, number, 0, begin, at, len(payload))
        self.used += 1

    def by_period(self, length: int) -> Iterator[tuple[int, Pieces]]:
        """Yield the runs of each period of *length* microseconds (since 1970), sorted by stream and number.

        The runs of a stream already are in the order of their numbers, so it suffices to sort the runs instead of the
        records.
        """
        runs = self.table[: self.used]
        streams = {stream: rank for rank, stream in enumerate(sorted({kind.stream for kind in self.kinds}))}
        ranks = np.array([streams[kind.stream] for kind in self.kinds], np.int64)
        periods = runs[:, _MOMENT] // length
        for period in np.unique(periods).tolist():
            some = runs[periods == period]
            order = np.argsort(ranks[some[:, _ID]], kind="stable")
            yield period, Pieces(self.schema, self.kinds, self.chunks, some[order], len(some))

    def batch(self) -> pa.RecordBatch:
        """Return the runs as one record batch."""
        runs = self.table[: self.used]
        self._ids, self._counts, self._firsts = runs[:, _ID], runs[:, _COUNT], runs[:, _FIRST]
        self._times, self._producer_firsts = runs[:, _MOMENT], runs[:, _PRODUCER]
        columns = [
            self._constant(name) if COLUMNS[name] == pa.string() else getattr(self, f"_{name}")()
            for name in self.schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _gathered(self, offsets: Any, sizes: Any, chosen: Any = None) -> Buffer:
        """Return the joined bytes of all runs, or of the chosen ones."""
        pieces = np.column_stack([self.table[: self.used, _CHUNK], offsets, sizes])
        if chosen is not None:
            pieces = np.ascontiguousarray(pieces[chosen])
        if len(pieces) == 1:
            number, begin, size = pieces[0].tolist()
            return memoryview(self.chunks[number])[begin : begin + size]
        # Join the bytes in Python, because numpy would request huge pages, which take the system longer than small
        # ones.
        out = pa.allocate_buffer(int(pieces[:, 2].sum()))
        kernel.gather(self.chunks, pieces, np.frombuffer(out, np.uint8))
        return memoryview(out)

    def _optional(self, wanted: Has) -> Buffer:
        """Return an optional column: the values of the runs that have it, and null for the others."""
        runs = self.table[: self.used]
        has = np.array([kind.has for kind in self.kinds], np.int64)[runs[:, _ID]]
        offsets, width = runs[:, _OPTIONAL_AT].copy(), 0
        for part, width in OPTIONAL:
            if part is wanted:
                break
            offsets += np.where(has & part, width * self._counts, 0)
        return self._gathered(offsets, width * self._counts, (has & wanted) != 0)

    # The following methods each return one column whose values differ within a run.

    def _seq(self) -> pa.Array:
        return numbers(pa.int64(), self._rising(self._firsts))

    def _time(self) -> pa.Array:
        return numbers(_TIME, np.repeat(self._times, self._counts))

    def _producer_seq(self) -> pa.Array:
        there = self._has(Has.CONTIGUOUS | Has.PRODUCER_SEQS)
        if there is None:
            return pa.nulls(self.rows, pa.int64())
        # Spark has no unsigned integers, so large 64-bit numbers become negative; they still identify their records.
        values = self._rising(self._producer_firsts)
        listed = self._has(Has.PRODUCER_SEQS)
        if listed is not None:
            values[listed] = np.frombuffer(self._optional(Has.PRODUCER_SEQS), np.int64)
        return numbers(pa.int64(), values, there)

    def _event_id(self) -> pa.Array:
        there = self._has(Has.EVENT_IDS)
        if there is None:
            return pa.nulls(self.rows, pa.binary())
        return _strings(pa.binary(), there * np.int32(16), self._optional(Has.EVENT_IDS), there)

    def _event_time(self) -> pa.Array:
        there = self._has(Has.EVENT_TIMES)
        if there is None:
            return pa.nulls(self.rows, _TIME)
        values = np.zeros(self.rows, np.int64)
        values[there] = np.frombuffer(self._optional(Has.EVENT_TIMES), np.int64)
        return numbers(_TIME, values, there)

    def _payload(self) -> pa.Array:
        runs = self.table[: self.used]
        lengths = np.frombuffer(self._gathered(runs[:, _LENGTHS_AT], 4 * self._counts), np.uint32)
        return _strings(pa.binary(), lengths, self._gathered(runs[:, _PAYLOAD_AT], runs[:, _SIZE]))

    def _constant(self, name: str) -> pa.Array:
        """Return the column *name*, whose value is the same for all runs of a kind."""
        values = [getattr(kind, name) for kind in self.kinds]
        encoded = self.schema.field(name).type == ENCODED
        there = {values[i] for i in np.unique(self._ids)}
        if len(there) == 1 and not encoded:
            value = there.pop()
            return pa.nulls(self.rows, pa.string()) if value is None else pa.repeat(texts([value])[0], self.rows)
        known = sorted(there - {None})
        codes = {value: code for code, value in enumerate(known)}
        of_rows = self._of_kinds(np.array([codes.get(value, -1) for value in values], np.int32))
        indices = numbers(pa.int32(), of_rows, of_rows >= 0)
        found = pa.DictionaryArray.from_arrays(indices, texts(known))
        return found if encoded else found.dictionary_decode()

    def _of_kinds(self, values: Any) -> Any:
        """Return a column with, for each record, the item of *values* that belongs to the kind of its run."""
        return np.repeat(values[self._ids], self._counts)

    def _has(self, parts: int) -> Any:
        """Return a mask of the records that have one of the columns ``parts``; None if no record has one."""
        has = np.array([bool(kind.has & parts) for kind in self.kinds])
        return self._of_kinds(has) if has[self._ids].any() else None

    def _rising(self, firsts: Any) -> Any:
        """Return a number for each record; within a run the numbers rise by one from the first."""
        starts = np.cumsum(self._counts) - self._counts
        with np.errstate(over="ignore"):
            return np.repeat(firsts - starts, self._counts) + np.arange(self.rows, dtype=np.int64)


def texts(values: Sequence[str]) -> pa.StringArray:
    """Return strings as an array.

    ``pa.array`` and ``pa.scalar`` are avoided: for the first Python object they import pandas, which takes longer than
    the start of an archive.
    """
    encoded = [value.encode() for value in values]
    return _strings(pa.string(), np.fromiter(map(len, encoded), np.int32, len(encoded)), b"".join(encoded))


def spread(values: pa.Array, rows: Any, count: int) -> pa.Array:
    """Return an array of *count* values: *values* at the indexes *rows*, and null elsewhere."""
    kind, there = values.type, np.zeros(count, bool)
    if values.null_count:
        rows, values = rows[values.is_valid().to_numpy(zero_copy_only=False)], values.drop_null()
    there[rows] = True
    if kind == pa.string():
        offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
        lengths = np.zeros(count, np.int32)
        lengths[rows] = np.diff(offsets)
        data = values.buffers()[2]
        return _strings(kind, lengths, b"" if data is None else data[offsets[0] : offsets[-1]], there)
    if kind in (pa.int64(), pa.float64()):
        found = np.zeros(count, kind.to_pandas_dtype())
        found[rows] = values.to_numpy()
        return numbers(kind, found, there)
    indexes = np.zeros(count, np.int64)
    indexes[rows] = np.arange(len(values))
    return values.take(numbers(pa.int64(), indexes, there))


def numbers(kind: pa.DataType, values: Any, there: Any = None) -> pa.Array:
    """Return an array of the numbers of a numpy array, without a copy; numbers where ``there`` is false become null."""
    return pa.Array.from_buffers(kind, len(values), [_valid(there), pa.py_buffer(values)])


def _strings(kind: pa.DataType, lengths: Any, data: Buffer, there: Any = None) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(kind, len(lengths), [_valid(there), pa.py_buffer(offsets), pa.py_buffer(data)])


def _valid(there: Any) -> pa.Buffer | None:
    return None if there is None or there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
