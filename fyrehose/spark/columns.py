"""Convert the runs of a journal to Arrow record batches, without an object for each record.

    in: runs, whose columns are slices of segments      out: pyarrow.RecordBatch

Adding a run stores a few numbers and slices; the values of each record are computed for thousands of records at once.
The payload of a single large run is passed without a copy; those of several runs are joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from fyrehose.errors import ConfigError
from fyrehose.journal.format import Has
from fyrehose.records import Buffer

_TIME = pa.timestamp("us", tz="UTC")
#: The type of a column of strings that is encoded by a dictionary.
ENCODED = pa.dictionary(pa.int32(), pa.string())
#: A day, in us.
_DAY = 86_400_000_000

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
#: Columns that are never null.
REQUIRED = ("stream", "seq", "time", "source", "payload")

#: Size at which a record batch is full, in records and in bytes of payload.
ROWS = 1 << 16
BYTES = 8 << 20


@attrs.frozen(slots=True)
class RunKind:
    """Constants that many runs share, and the columns that they have (journal/format.py, Has)."""

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


#: The optional columns, in the order of the lists of Pieces.
_OPTIONAL = Has.PRODUCER_SEQS, Has.EVENT_IDS, Has.EVENT_TIMES

#: A run: index of its kind, number of records, first seq, time, first producer_seq, lengths, payloads.
Piece = tuple[int, int, int, int, int, Buffer, Buffer]


@attrs.define(eq=False)
class Pieces:
    """Runs that become one record batch.  The reader's hot loop appends to the lists directly.

    :ivar kinds: the kinds to which the runs' indexes refer
    :ivar size: size of the payloads, in bytes
    :ivar producer_seqs: a column for each run that has it; so are ``event_ids`` and ``event_times``
    """

    schema: pa.Schema
    kinds: list[RunKind]
    rows: int = 0
    size: int = 0
    runs: list[Piece] = attrs.field(factory=list)
    producer_seqs: list[Buffer] = attrs.field(factory=list)
    event_ids: list[Buffer] = attrs.field(factory=list)
    event_times: list[Buffer] = attrs.field(factory=list)
    # Arrays with one number for each run.
    _ids: Any = attrs.field(default=None, init=False)
    _counts: Any = attrs.field(default=None, init=False)
    _firsts: Any = attrs.field(default=None, init=False)
    _times: Any = attrs.field(default=None, init=False)
    _producer_firsts: Any = attrs.field(default=None, init=False)

    def by_day(self) -> Iterator[tuple[int, Pieces]]:
        """Yield the runs of each day (UTC, since 1970), sorted by stream and number.

        The runs of a stream are in the order of its numbers already, so sorting moves runs and not records.
        """
        days: dict[int, list[int]] = {}
        for i, run in enumerate(self.runs):
            days.setdefault(run[3] // _DAY, []).append(i)
        lists = self.producer_seqs, self.event_ids, self.event_times
        optional = [self._of_runs(bit, parts) for bit, parts in zip(_OPTIONAL, lists, strict=True)]
        for day, chosen in sorted(days.items()):
            chosen.sort(key=lambda i: self.kinds[self.runs[i][0]].stream)
            runs = [self.runs[i] for i in chosen]
            columns = ([part[i] for i in chosen if i in part] for part in optional)
            rows, size = sum(run[1] for run in runs), sum(len(run[6]) for run in runs)
            yield day, Pieces(self.schema, self.kinds, rows, size, runs, *columns)

    def _of_runs(self, bit: int, parts: list[Buffer]) -> dict[int, Buffer]:
        """Return an optional column of each run that has it, by the index of the run."""
        having = (i for i, run in enumerate(self.runs) if self.kinds[run[0]].has & bit) if parts else ()
        return dict(zip(having, parts, strict=True))

    def batch(self) -> pa.RecordBatch:
        """Return the runs as one record batch."""
        ids, counts, firsts, times, producer_firsts, _, _ = zip(*self.runs, strict=True)
        self._ids, self._counts = np.array(ids, np.int32), np.array(counts, np.int64)
        self._firsts, self._times = np.array(firsts, np.int64), np.array(times, np.int64)
        self._producer_firsts = np.array(producer_firsts, np.uint64)
        return pa.RecordBatch.from_arrays(
            [getattr(self, f"_{name}")() for name in self.schema.names], schema=self.schema
        )

    # One method for each column.

    def _stream(self) -> pa.Array:
        return self._constant("stream")

    def _source(self) -> pa.Array:
        return self._constant("source")

    def _producer(self) -> pa.Array:
        return self._constant("producer")

    def _topic(self) -> pa.Array:
        return self._constant("topic")

    def _content_type(self) -> pa.Array:
        return self._constant("content_type")

    def _seq(self) -> pa.Array:
        return _numbers(pa.int64(), self._rising(self._firsts))

    def _time(self) -> pa.Array:
        return _numbers(_TIME, np.repeat(self._times, self._counts))

    def _producer_seq(self) -> pa.Array:
        there = self._has(Has.CONTIGUOUS | Has.PRODUCER_SEQS)
        if there is None:
            return pa.nulls(self.rows, pa.int64())
        # Spark has no unsigned integers: the upper half of the 64-bit numbers becomes negative, which is as good a key.
        values = self._rising(self._producer_firsts.view(np.int64))
        if self.producer_seqs:
            values[self._has(Has.PRODUCER_SEQS)] = np.frombuffer(_joined(self.producer_seqs), np.int64)
        return _numbers(pa.int64(), values, there)

    def _event_id(self) -> pa.Array:
        there = self._has(Has.EVENT_IDS)
        if there is None:
            return pa.nulls(self.rows, pa.binary())
        return _strings(pa.binary(), there * np.int32(16), _joined(self.event_ids), there)

    def _event_time(self) -> pa.Array:
        there = self._has(Has.EVENT_TIMES)
        if there is None:
            return pa.nulls(self.rows, _TIME)
        values = np.zeros(self.rows, np.int64)
        values[there] = np.frombuffer(_joined(self.event_times), np.int64)
        return _numbers(_TIME, values, there)

    def _payload(self) -> pa.Array:
        lengths, payloads = [run[5] for run in self.runs], [run[6] for run in self.runs]
        return _strings(pa.binary(), np.frombuffer(_joined(lengths), np.uint32), _joined(payloads))

    def _constant(self, name: str) -> pa.Array:
        """Return a column whose values are those of the kinds."""
        values = [getattr(kind, name) for kind in self.kinds]
        encoded = self.schema.field(name).type == ENCODED
        there = {values[i] for i in np.unique(self._ids)}
        if len(there) == 1 and not encoded:
            return pa.repeat(pa.scalar(there.pop(), pa.string()), self.rows)
        codes = {value: code for code, value in enumerate(sorted(there - {None}))}
        of_rows = self._of_kinds(np.array([codes.get(value, -1) for value in values], np.int32))
        indices = _numbers(pa.int32(), of_rows, of_rows >= 0)
        found = pa.DictionaryArray.from_arrays(indices, pa.array(codes, pa.string()))
        return found if encoded else found.dictionary_decode()

    def _of_kinds(self, values: Any) -> Any:
        """Repeat the value of each kind for each record."""
        return np.repeat(values[self._ids], self._counts)

    def _has(self, parts: int) -> Any:
        """Return a mask of the records that have one of ``parts``; None if none has."""
        has = np.array([bool(kind.has & parts) for kind in self.kinds])
        return self._of_kinds(has) if has[self._ids].any() else None

    def _rising(self, firsts: Any) -> Any:
        """Return a number for each record: those of a run rise by one from its first."""
        starts = np.cumsum(self._counts) - self._counts
        with np.errstate(over="ignore"):
            return np.repeat(firsts - starts, self._counts) + np.arange(self.rows, dtype=np.int64)


def _joined(parts: list[Buffer]) -> Buffer:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _numbers(kind: pa.DataType, values: Any, there: Any = None) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [_valid(there), pa.py_buffer(values)])


def _strings(kind: pa.DataType, lengths: Any, data: Buffer, there: Any = None) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(kind, len(lengths), [_valid(there), pa.py_buffer(offsets), pa.py_buffer(data)])


def _valid(there: Any) -> pa.Buffer | None:
    return None if there is None or there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
