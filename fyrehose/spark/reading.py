"""Read a part of a journal, check its batches, and yield them as Arrow record batches of a suitable size.

    in: a part, a selection, columns      out: pyarrow.RecordBatch

Bytes are fetched a few MiB at a time, so that reading over HTTP is about as fast as from a disk.  They are parsed
without an object for each record: a batch of ten records takes some microseconds.  Every checksum, the chain from batch
to batch, and the numbers of every selected stream are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
from crc32c import crc32c

from fyrehose.journal import format as fmt
from fyrehose.journal.scan import SegmentReader
from fyrehose.kernels import columns as kernel
from fyrehose.offline.places import CHUNK, Place
from fyrehose.spark import columns as col
from fyrehose.spark.columns import Pieces, RunKind
from fyrehose.spark.gaps import describe
from fyrehose.spark.plan import Part, gap, no_deletion
from fyrehose.spark.selection import Selection

_BATCH = fmt.BATCH_HEADER.size
_RUN = fmt.RUN_HEADER.size
#: Offset in a run's header: from there on (columns, lengths of names), the headers of all runs of one kind are equal.
_KIND = 28

#: A batch: position, kind, mended, length of the body, chain, time, checksum, bytes; begin and end of the body in the
#: bytes.
_Batch = tuple[int, int, int, int, int, int, int, memoryview, int, int]


#: Stands for the last number of a stream if that number is unknown.
_UNKNOWN = -1
#: The largest number that the table of streams can have.
_LARGEST = (1 << 63) - 1


@attrs.define(eq=False)
class PartReader:
    """A reader of one part of a journal.

    :ivar schema: schema of the record batches; it may declare columns nullable that are never null
    :ivar skip_gaps: do not raise :class:`JournalGap` for missing numbers
    :ivar rows, size: the number of records, or bytes of payload, at which a record batch is full
    """

    place: Place
    part: Part
    selection: Selection
    schema: pa.Schema
    skip_gaps: bool = False
    rows: int = col.ROWS
    size: int = col.BYTES
    #: the index of each stream in the table of streams
    _streams: dict[str, int] = attrs.field(factory=dict, init=False)
    #: for each stream: the last number so far, the first and the last selected number (kernels/pure/columns.py)
    _table: Any = attrs.field(factory=lambda: np.empty((64, 3), np.int64), init=False)
    #: the number that is assumed as the last one of each stream that is not in _streams
    _floor: int = attrs.field(default=_UNKNOWN, init=False)
    #: the index of each kind of runs, by the bytes that their headers share
    _known: dict[bytes, int] = attrs.field(factory=dict, init=False)
    _kinds: list[RunKind] = attrs.field(factory=list, init=False)
    _kind_table: Any = attrs.field(factory=lambda: np.empty((64, 3), np.int64), init=False)
    _pieces: Pieces = attrs.field(init=False)
    #: records and bytes of payload in the pieces
    _rows: int = attrs.field(default=0, init=False)
    _bytes: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._pieces = self._empty()

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the selected records of the part as record batches; raises the errors of :meth:`pieces`."""
        for pieces in self.pieces():
            yield pieces.batch()

    def pieces(self) -> Iterator[Pieces]:
        """Yield the selected records of the part, as runs of one record batch each.

        :raises JournalCorrupt: durable bytes are damaged, or were deleted after the part was planned
        :raises JournalGap: numbers are missing from the journal
        """
        for stream, last in self.part.known:
            self._follow(stream, last)
        with (
            no_deletion(self.place, None, self.part.first, "after its reading was planned"),
            closing(self.place.open(self.part.base, self.part.limit)) as reader,
        ):
            for first, stop in self.part.ranges:
                yield from self._read(reader, first, stop)
        self._check_end()
        if self._pieces.used:
            yield self._pieces

    def _read(self, reader: SegmentReader, position: int, stop: int) -> Iterator[Pieces]:
        chain: int | None = None
        records, timed = fmt.Kind.RECORDS, self.selection.timed
        try:
            for here, kind, mended, length, continued, time, checksum, view, begin, end in _batches(
                reader, position, stop, self.part.limit
            ):
                body = view[begin:end]
                if len(body) != length or crc32c(body, continued) != checksum:
                    fmt.BatchHeader.unpack(view[begin - _BATCH : begin], here).check(body)  # Raise the specific error.
                if chain is not None and continued != chain:
                    raise fmt.Damage("the batch does not continue from the one before")
                chain = None if mended else checksum
                if kind == records and (not timed or self.selection.accepts(time)):
                    self._runs(view, begin, end, time)
                elif kind == records:
                    self._floor = _UNKNOWN
                    self._table[:, 0] = _UNKNOWN
                else:
                    self._entries(fmt.BatchHeader.unpack(view[begin - _BATCH : begin], here), body)
                position = here + _BATCH + length
                if self._rows >= self.rows or self._bytes >= self.size:
                    yield self._pieces
                    self._pieces, self._rows, self._bytes = self._empty(), 0, 0
            if self.part.chain is not None and chain is not None and chain != self.part.chain:
                raise fmt.Damage("the checksum of the last batch differs from the one that was planned")
        except fmt.Damage as damage:
            raise describe(self.place, self.part.base, position, self.part.limit, damage) from damage

    def _empty(self) -> Pieces:
        return Pieces(self.schema, self._kinds)

    def _entries(self, header: fmt.BatchHeader, body: memoryview) -> None:
        if fmt.begins(header, self.part.base):
            for entry in fmt.entries(body, header.parts):
                if not entry.stream and entry.state is fmt.StreamState.LIVE:
                    # The last number of a stream that only the stream table names is unknown here.
                    self._floor = _UNKNOWN if entry.first else entry.last
                elif entry.state in (fmt.StreamState.LIVE, fmt.StreamState.RETIRED) and self.selection.wants(
                    entry.stream
                ):
                    self._begins(entry.stream, entry.last)
        elif header.kind is fmt.Kind.GAP:
            for entry in fmt.entries(body, header.parts):
                self._declared(entry)

    def _runs(self, view: memoryview, at: int, stop: int, time: int) -> None:
        """Add the selected runs of a batch: the kernel (fyrehose.kernels) adds most, and :meth:`_attend` the others."""
        pieces = self._pieces
        if not pieces.chunks or pieces.chunks[-1] is not view:
            pieces.chunks.append(view)
        pieces.reserve((stop - at) // _RUN + 1)
        number, before = len(pieces.chunks) - 1, pieces.used
        while at < stop:
            at, pieces.used = kernel.walk(
                view,
                at,
                stop,
                number,
                time,
                self._known,
                self._kind_table,
                self._table,
                pieces.table,
                pieces.used,
            )
            if at < stop:
                at = self._attend(view, at, stop, time)
        added = pieces.table[before : pieces.used]
        self._rows += int(added[:, 1].sum())
        self._bytes += int(added[:, 9].sum())

    def _attend(self, view: memoryview, at: int, stop: int, time: int) -> int:
        """Process a run that the kernel cannot; return where the kernel continues: at the next run, or here again.

        :raises Damage: its lengths contradict each other
        :raises JournalGap: numbers before the run are missing
        """
        if stop - at < _RUN:
            raise fmt.Damage("a run is truncated")
        length, _, first, _, _, _, *names = fmt.RUN_HEADER.unpack_from(view, at)
        end = at + int(length)
        if not at + _RUN + sum(names) <= end <= stop:
            raise fmt.Damage("the lengths of a run contradict each other")
        key = bytes(view[at + _KIND : at + _RUN + sum(names)])
        index = self._known.get(key)
        if index is None:
            self._known[key] = self._new_kind(view, at)
            return at
        stream = int(self._kind_table[index, 0])
        last, first_wanted, last_wanted = self._table[stream].tolist()
        if last != _UNKNOWN and first > last + 1:
            self._lost(stream, last + 1, first - 1)
            self._table[stream, 0] = first - 1
            return at
        run = fmt.runs(view[at:end], time)[0]  # raises Damage
        if first >= first_wanted and run.last_seq <= last_wanted:
            raise fmt.Damage("the lengths of a run contradict each other")
        self._table[stream, 0] = run.last_seq
        run = run.slice(
            max(0, min(first_wanted - run.first_seq, len(run))), max(0, min(last_wanted - run.first_seq + 1, len(run)))
        )
        if len(run):
            contiguous = isinstance(run.producer_seq, int)
            columns = (None if contiguous else run.producer_seq, run.event_ids, run.event_times)
            optional = b"".join(column for column in columns if column is not None and not isinstance(column, int))
            producer_first = run.producer_seq if isinstance(run.producer_seq, int) else 0
            self._pieces.add(index, run.first_seq, time, producer_first, optional, run.lengths, run.payload)
        return end

    def _new_kind(self, view: memoryview, at: int) -> int:
        """Parse the header of a run whose kind was not seen before, and return the index of the kind."""
        length = int.from_bytes(view[at : at + 4], "little")
        run = fmt.runs(view[at : at + length], 0)[0]
        has, *sizes = fmt.RUN_HEADER.unpack_from(view, at)[5:]
        stream = -1
        if self.selection.wants(run.stream):
            known = self._streams.get(run.stream)
            stream = self._follow(run.stream, self._floor) if known is None else known
        number = len(self._kinds)
        self._kinds.append(RunKind(has, run.stream, run.source, run.producer, run.topic, run.content_type))
        if number == len(self._kind_table):
            self._kind_table = np.concatenate([self._kind_table, np.empty_like(self._kind_table)])
        optional = sum(width for part, width in col.OPTIONAL if has & part)
        self._kind_table[number] = stream, _RUN + sum(sizes) + -sum(sizes) % 8, optional
        return number

    def _follow(self, name: str, last: int) -> int:
        """Add a stream to the table of streams, and return its index there."""
        index = self._streams[name] = len(self._streams)
        if index == len(self._table):
            self._table = np.concatenate([self._table, np.empty_like(self._table)])
        first_wanted, last_wanted = self.selection.seqs(name)
        self._table[index] = last, min(first_wanted, _LARGEST), min(last_wanted, _LARGEST)
        return index

    def _begins(self, name: str, last: int) -> None:
        """Check the last number that the beginning of the segment states for a stream."""
        stream = self._streams.get(name)
        if stream is None:
            self._follow(name, last)
        elif last > (known := int(self._table[stream, 0])):
            if known != _UNKNOWN:
                self._lost(stream, known + 1, last)
            self._table[stream, 0] = last

    def _declared(self, entry: fmt.Entry) -> None:
        """Process a range of numbers that the journal declares lost."""
        if not entry.stream and self._floor != _UNKNOWN:
            self._floor = max(self._floor, entry.last)
        if not entry.stream or not self.selection.wants(entry.stream):
            return
        stream = self._streams.get(entry.stream)
        if stream is None:
            stream = self._follow(entry.stream, _UNKNOWN)
        known = int(self._table[stream, 0])
        self._lost(stream, entry.first if known == _UNKNOWN else min(entry.first, known + 1), entry.last)
        self._table[stream, 0] = max(entry.last, known)

    def _lost(self, stream: int, first: int, last: int) -> None:
        """Raise an error for missing numbers, if some of them are selected and gaps are errors."""
        _, first_wanted, last_wanted = self._table[stream].tolist()
        if first <= last_wanted and last >= first_wanted and not self.skip_gaps:
            raise gap(list(self._streams)[stream], first, last, self.place.name(self.part.base))

    def _check_end(self) -> None:
        for name, last in self.part.until:
            known = int(self._table[self._streams[name], 0])
            if known != _UNKNOWN and known < last:
                self._lost(self._streams[name], known + 1, last)


def _batches(reader: SegmentReader, position: int, stop: int, limit: int) -> Iterator[_Batch]:
    """Yield each batch that begins before ``stop``.

    :raises Damage: a header is damaged; the caller checks the bodies
    """
    unpack, size = fmt.BATCH_HEADER.unpack_from, CHUNK
    view, at = reader.read(position, min(size, limit - position)), 0
    while position < stop:
        if at and at + _BATCH > len(view):
            view, at = reader.read(position, min(size, limit - position)), 0
        if len(view) - at < _BATCH:
            raise fmt.Damage(f"{len(view) - at} bytes are too few for the header of a batch")
        magic, version, kind, mended, length, _, _, chain, own, _, time, _, checksum, crc = unpack(view, at)
        good = crc == crc32c(view[at : at + _BATCH - 4]) and magic == fmt.BATCH_MAGIC and version <= fmt.BATCH_VERSION
        if not good or own != position or length > fmt.MAX_BODY:
            fmt.BatchHeader.unpack(view[at : at + _BATCH], position)  # Raise the specific error.
            raise fmt.Damage("the header of the batch has impossible values")
        if at + _BATCH + length > len(view) and len(view) - at < limit - position:
            view, at = reader.read(position, min(max(size, _BATCH + length), limit - position)), 0
        begin = at + _BATCH
        yield position, kind, mended, length, chain, time, checksum, view, begin, begin + length
        at = begin + length
        position += _BATCH + length
