"""Read a part of a journal, check its batches, and yield them as Arrow record batches of a suitable size.

    in: a part, a selection, columns      out: pyarrow.RecordBatch

Bytes are fetched a few MiB at a time, so that reading over HTTP costs about the same, and are parsed without an object
for each record: a batch of ten records takes some microseconds.  Every checksum, the chain from batch to batch, and the
numbers of every selected stream are checked.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import pyarrow as pa
from crc32c import crc32c

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal.offline.places import CHUNK, Missing, Place
from fyrehose.journal.scan import SegmentReader
from fyrehose.spark import columns as col
from fyrehose.spark.columns import Pieces, RunKind
from fyrehose.spark.gaps import describe
from fyrehose.spark.plan import Part, gap, missing
from fyrehose.spark.selection import Selection

_BATCH = fmt.BATCH_HEADER.size
_RUN = fmt.RUN_HEADER.size
#: Offset in a run's header from which runs of one kind are equal: their columns, and the lengths of their names.
_KIND = 28
#: New objects after which Python looks for reference cycles; its default is 700.
_COLLECT = 100_000
_OPTIONAL = fmt.Has.PRODUCER_SEQS | fmt.Has.EVENT_IDS | fmt.Has.EVENT_TIMES

#: A batch: position, kind, mended, length of the body, chain, time, checksum, bytes, begin and end of the body in them.
_Batch = tuple[int, int, int, int, int, int, int, memoryview, int, int]


@attrs.define(eq=False, slots=True)
class _Stream:
    """Progress of reading one stream."""

    name: str
    first_wanted: int
    last_wanted: int
    last: int | None  #: the last number so far; None if it is unknown


@attrs.define(eq=False, slots=True)
class _Known:
    """A kind of runs, whose headers have the same bytes; ``stream`` is None if it is not selected."""

    id: int
    data: int  #: offset of the columns in a run
    optional: int  #: the optional columns that its runs have
    stream: _Stream | None


@attrs.define(eq=False)
class PartReader:
    """Reader of one part.

    :ivar schema: schema of the record batches; it may declare columns nullable that are never null
    :ivar skip_gaps: do not raise :class:`JournalGap` for missing numbers
    :ivar rows, size: a record batch is full with so many records, or bytes of payload
    """

    place: Place
    part: Part
    selection: Selection
    schema: pa.Schema
    skip_gaps: bool = False
    rows: int = col.ROWS
    size: int = col.BYTES
    _streams: dict[str, _Stream] = attrs.field(factory=dict, init=False)
    #: last number of streams that are not in _streams; None if it is unknown
    _floor: int | None = attrs.field(default=None, init=False)
    _known: dict[bytes, _Known] = attrs.field(factory=dict, init=False)
    _kinds: list[RunKind] = attrs.field(factory=list, init=False)
    _pieces: Pieces = attrs.field(init=False)

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
            self._streams[stream] = self._follow(stream, last)
        try:
            reader = self.place.open(self.part.base, self.part.limit)
        except Missing as error:
            raise self._deleted(str(error)) from None
        try:
            with _seldom_collected():
                for first, stop in self.part.ranges:
                    yield from self._read(reader, first, stop)
        except Missing as error:
            raise self._deleted(str(error)) from None
        finally:
            reader.close()
        self._check_end()
        if self._pieces.rows:
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
                if kind == records and not timed:
                    self._runs(body, time)
                elif kind == records:
                    self._records(body, time)
                else:
                    self._entries(fmt.BatchHeader.unpack(view[begin - _BATCH : begin], here), body)
                position = here + _BATCH + length
                if self._pieces.rows >= self.rows or self._pieces.size >= self.size:
                    yield self._pieces
                    self._pieces = self._empty()
            if self.part.chain is not None and chain is not None and chain != self.part.chain:
                raise fmt.Damage("the checksum of the last batch differs from the one that was planned")
        except fmt.Damage as damage:
            raise describe(self.place, self.part.base, position, self.part.limit, damage) from damage

    def _empty(self) -> Pieces:
        return Pieces(self.schema, self._kinds)

    def _records(self, body: memoryview, time: int) -> None:
        """Add the runs of a batch if its time is selected; otherwise forget the numbers of the streams."""
        if self.selection.accepts(time):
            self._runs(body, time)
            return
        self._floor = None
        for stream in self._streams.values():
            stream.last = None

    def _entries(self, header: fmt.BatchHeader, body: memoryview) -> None:
        if fmt.begins(header, self.part.base):
            for entry in fmt.entries(body, header.parts):
                if not entry.stream and entry.state is fmt.StreamState.LIVE:
                    # A stream that only the snapshot names may have any last number.
                    self._floor = None if entry.first else entry.last
                elif entry.state in (fmt.StreamState.LIVE, fmt.StreamState.RETIRED) and self.selection.wants(
                    entry.stream
                ):
                    self._begins(entry.stream, entry.last)
        elif header.kind is fmt.Kind.GAP:
            for entry in fmt.entries(body, header.parts):
                self._declared(entry)

    def _runs(self, view: memoryview, time: int) -> None:
        """Add the selected runs of a batch; this hot loop handles a hundred thousand runs a second."""
        pieces, known, unpack = self._pieces, self._known, fmt.RUN_HEADER.unpack_from
        at, stop = 0, len(view)
        while at < stop:
            length, count, first, producer_first, payload_size, _, a, b, c, d, e = unpack(view, at)
            key = bytes(view[at + _KIND : at + _RUN + a + b + c + d + e])
            kind = known.get(key)
            if kind is None:
                kind = known[key] = self._new_kind(view, at)
            end = at + length
            if end <= at or end > stop:
                raise fmt.Damage("the lengths of a run contradict each other")
            stream = kind.stream
            if stream is not None:
                last = stream.last
                if last is not None and first > last + 1:
                    self._jumped(stream, first)
                last = stream.last = first + count - 1
                if first < stream.first_wanted or last > stream.last_wanted:
                    self._trimmed(view[at:end], stream, kind, time)
                else:
                    data = at + kind.data
                    if kind.optional:
                        data = self._optional(view, data, count, kind.optional)
                    lengths = view[data : data + 4 * count]
                    data += 4 * count + (4 * count & 4)
                    payload = view[data : data + payload_size]
                    pieces.runs.append((kind.id, count, first, time, producer_first, lengths, payload))
                    pieces.rows += count
                    pieces.size += payload_size
            at = end

    def _optional(self, view: memoryview, at: int, count: int, has: int) -> int:
        """Add the optional columns of a run; return the offset of its lengths."""
        pieces = self._pieces
        for bit, width, parts in (
            (fmt.Has.PRODUCER_SEQS, 8, pieces.producer_seqs),
            (fmt.Has.EVENT_IDS, 16, pieces.event_ids),
            (fmt.Has.EVENT_TIMES, 8, pieces.event_times),
        ):
            if has & bit:
                parts.append(view[at : at + width * count])
                at += width * count
        return at

    def _trimmed(self, view: memoryview, stream: _Stream, kind: _Known, time: int) -> None:
        """Add the selected records of a run of which only a part is selected."""
        run = fmt.runs(view, time)[0]
        run = run.slice(
            max(0, min(stream.first_wanted - run.first_seq, len(run))),
            max(0, min(stream.last_wanted - run.first_seq + 1, len(run))),
        )
        if not len(run):
            return
        pieces = self._pieces
        producer_first = run.producer_seq if isinstance(run.producer_seq, int) else 0
        pieces.runs.append((kind.id, len(run), run.first_seq, time, producer_first, run.lengths, run.payload))
        if run.producer_seq is not None and not isinstance(run.producer_seq, int):
            pieces.producer_seqs.append(run.producer_seq)
        if run.event_ids is not None:
            pieces.event_ids.append(run.event_ids)
        if run.event_times is not None:
            pieces.event_times.append(run.event_times)
        pieces.rows += len(run)
        pieces.size += len(run.payload)

    def _new_kind(self, view: memoryview, at: int) -> _Known:
        """Parse the header of a run whose kind was not seen before."""
        length = int.from_bytes(view[at : at + 4], "little")
        run = fmt.runs(view[at : at + length], 0)[0]
        has, *sizes = fmt.RUN_HEADER.unpack_from(view, at)[5:]
        stream = None
        if self.selection.wants(run.stream):
            stream = self._streams.get(run.stream)
            if stream is None:
                stream = self._streams[run.stream] = self._follow(run.stream, self._floor)
            self._kinds.append(RunKind(has, run.stream, run.source, run.producer, run.topic, run.content_type))
        return _Known(len(self._kinds) - 1, _RUN + sum(sizes) + -sum(sizes) % 8, has & _OPTIONAL, stream)

    # Numbers.

    def _follow(self, stream: str, last: int | None) -> _Stream:
        first_wanted, last_wanted = self.selection.seqs(stream)
        return _Stream(stream, first_wanted, last_wanted, last)

    def _begins(self, name: str, last: int) -> None:
        """Process the last number of a stream, as stated at the beginning of the segment."""
        stream = self._streams.get(name)
        if stream is None:
            self._streams[name] = self._follow(name, last)
        elif stream.last is None or last > stream.last:
            if stream.last is not None:
                self._jumped(stream, last + 1)
            stream.last = last

    def _declared(self, entry: fmt.Entry) -> None:
        """Process a range of numbers that the journal declares lost."""
        if not entry.stream and self._floor is not None:
            self._floor = max(self._floor, entry.last)
        if not entry.stream or not self.selection.wants(entry.stream):
            return
        stream = self._streams.setdefault(entry.stream, self._follow(entry.stream, None))
        if stream.last is None or entry.first <= stream.last + 1:
            self._lost(stream, entry.first, entry.last)
        else:
            self._lost(stream, stream.last + 1, entry.last)
        stream.last = max(entry.last, stream.last or 0)

    def _jumped(self, stream: _Stream, first: int) -> None:
        assert stream.last is not None
        self._lost(stream, stream.last + 1, first - 1)

    def _lost(self, stream: _Stream, first: int, last: int) -> None:
        wanted = first <= stream.last_wanted and last >= stream.first_wanted
        if wanted and not self.skip_gaps:
            raise gap(stream.name, first, last, self.place.name(self.part.base))

    def _check_end(self) -> None:
        for name, last in self.part.until:
            stream = self._streams[name]
            if stream.last is not None and stream.last < last:
                self._jumped(stream, last + 1)

    def _deleted(self, file: str) -> JournalCorrupt:
        view = self.place.view()
        return missing(self.place, view, self.part.first, f"{file} was deleted after its reading was planned")


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Let Python look for reference cycles less often.

    Runs are many objects without cycles, and looking for cycles took a fifth of the time of reading small batches.
    """
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


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
            raise fmt.Damage("the header of the batch makes no sense")
        if at + _BATCH + length > len(view) and len(view) - at < limit - position:
            view, at = reader.read(position, min(max(size, _BATCH + length), limit - position)), 0
        begin = at + _BATCH
        yield position, kind, mended, length, chain, time, checksum, view, begin, begin + length
        at = begin + length
        position += _BATCH + length
