"""Indexes: where the records of each stream are in a segment.  An index is a cache, rebuilt from the segment.

The index is sparse: a stream has a pair (first number, position) for the first of its batches, and another for the next
batch that is 64 KiB or more behind the last pair.  So the index is small compared with the segment, and a reader scans
little.

    file      header 56 | stream 24 ... | names end to end | 0..7 | pairs u64 u64 ...
    header    magic "FYREIDX3" | base | end | floor | snapshot | streams u32 | size of the names u32 |
              CRC32C of everything else u32 | 0
    stream    end of its name u32 | end of its pairs u32 | its last number before this segment | its last number in this
              segment, or 0

For a stream that is not listed, the last number before this segment is in the snapshot or, if there is no snapshot, is
the floor.  Therefore the index lists only streams that changed, on a server with many streams.

Streams are sorted by name, so that a binary search in the packed bytes finds a stream, and no index has to be unpacked
to find one record in a journal with a hundred thousand streams and a thousand segments.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain
from struct import Struct

import attrs
from crc32c import crc32c

from fyrehose.journal import format as fmt
from fyrehose.journal.format import StreamState
from fyrehose.journal.scan import SegmentReader
from fyrehose.records import Buffer

#: Minimum distance, in bytes, between two batches for which the index has a pair of the same stream.
SPACING = 64 << 10

_MAGIC = b"FYREIDX3"
_HEADER = Struct("<8sQQQQIIII")
_STREAM = Struct("<IIQQ")
_PAIR = Struct("<QQ")


@attrs.define(eq=False)
class SegmentIndex:
    """The index of a segment while it is written or scanned.

    All positions are those of batches.  A reader of a stream starts at the result of :meth:`find`, and continues at the
    results of :meth:`following` until there is none.

    :ivar before: the last number of each listed stream when the segment began
    :ivar floor: without a snapshot, the number that counts as the last one of any stream that is not in ``before``
    :ivar end: the index covers the segment up to this position
    :ivar snapshot: the position of the snapshot that has the streams that are not in ``before``; 0 if there is none
    :ivar streams: for each stream an array of its last number and its pairs, because arrays take little memory: there
        may be a hundred thousand streams
    """

    base: int
    end: int = 0
    floor: int = 0
    before: dict[str, int] = attrs.field(factory=dict)
    snapshot: int = 0
    streams: dict[str, array[int]] = attrs.field(factory=dict)

    @classmethod
    def scan(cls, reader: SegmentReader, stop: int) -> SegmentIndex:
        """Build the index from the segment itself, up to the position *stop*.

        :raises Damage: the segment is damaged
        """
        index = cls(reader.base)
        for header, body in reader.batches(reader.base + fmt.SEGMENT_HEADER.size, stop):
            index.add(header, body)
        return index

    def add(self, header: fmt.BatchHeader, body: Buffer) -> None:
        """Add the next batch of the segment."""
        if header.kind is fmt.Kind.RECORDS:
            for stream, first, last in fmt.extents(body):
                self.add_run(header.position, stream, first, last)
        elif fmt.begins(header, self.base):
            self.set_before(fmt.entries(body, header.parts))
        self.end = header.end

    def set_before(self, ends: Iterable[fmt.Entry]) -> None:
        """Set the last numbers before the segment, from the entries of its first batch."""
        for entry in ends:
            if not entry.stream and entry.state is StreamState.LIVE:
                self.snapshot, self.floor = entry.first, entry.last
            elif entry.state in (StreamState.LIVE, StreamState.RETIRED, StreamState.FORGOTTEN):
                self.before[entry.stream] = entry.last

    def add_run(self, position: int, stream: str, first: int, last: int) -> None:
        """Add records *first* to *last* of *stream*, which are in the batch at *position*."""
        of = self.streams.get(stream)
        if of is None:
            self.streams[stream] = array("Q", (last, first, position))
            return
        of[0] = last
        if position - of[-1] >= SPACING:
            of.extend((first, position))

    def last_before(self, stream: str) -> int | None:
        """Return the last number of *stream* before this segment, or None if the snapshot has it."""
        before = self.before.get(stream)
        if before is not None or not self.snapshot:
            return self.floor if before is None else before
        first = self.first(stream)
        return first - 1 if first else None

    def first(self, stream: str) -> int:
        """Return the number of the first record of *stream* in this segment; 0 if there is none."""
        of = self.streams.get(stream)
        return 0 if of is None else of[1]

    def last(self, stream: str) -> int:
        """Return the last number of *stream* in this segment, or 0 if the segment has no record of it."""
        of = self.streams.get(stream)
        return 0 if of is None else of[0]

    def firsts(self) -> list[tuple[str, int]]:
        """Return each stream and its first number in this segment, in the order of these records' positions."""
        return [(stream, of[1]) for stream, of in self.streams.items()]

    def lasts(self) -> list[tuple[str, int]]:
        """Return each stream and its last number in this segment, roughly in the order of these records' positions."""
        return [(stream, of[0]) for stream, of in sorted(self.streams.items(), key=lambda item: item[1][-1])]

    def find(self, stream: str, seq: int) -> int | None:
        """Return the position from which to scan for record *seq* or a later one, or None if this segment has none."""
        of = self.streams.get(stream)
        if of is None or of[0] < seq:
            return None
        at = bisect_right(range(len(of) // 2), seq, key=lambda i: of[2 * i + 1])
        return of[max(at, 1) * 2]

    def following(self, stream: str, position: int) -> int | None:
        """Return the first position from *position* on that may have records of *stream*, or None if none has."""
        of = self.streams[stream]
        at = bisect_right(range(len(of) // 2), position, key=lambda i: of[2 * i + 2])
        if position - of[2 * at] < SPACING:
            return position
        return of[2 * at + 2] if 2 * at + 2 < len(of) else None

    def pairs(self, stream: str) -> list[tuple[int, int]]:
        """Return the pairs of *stream*: the first number of the stream in a batch, and the position of that batch."""
        of = self.streams.get(stream, _NOTHING)
        return [(of[i], of[i + 1]) for i in range(1, len(of), 2)]

    def positions(self, begin: int) -> list[int]:
        """Return those positions of all pairs that are at least *begin*, in order; each batch is near one of them."""
        return sorted({each for of in self.streams.values() for each in of[2::2] if each >= begin})

    def pack(self) -> bytes:
        """Return the content of the index file."""
        names = {stream.encode(): stream for stream in chain(self.before, self.streams)}
        table, blob, pairs = bytearray(), [], []
        name_end = pairs_end = 0
        for name in sorted(names):
            stream = names[name]
            of = self.streams.get(stream, _NOTHING)
            blob.append(name)
            pairs.append(of[1:].tobytes())
            name_end += len(name)
            pairs_end += len(of) // 2
            table += _STREAM.pack(name_end, pairs_end, self.last_before(stream), of[0])
        rest = b"".join((table, *blob, bytes(-name_end % 8), *pairs))
        return _header(self.base, self.end, self.floor, self.snapshot, len(names), name_end, rest) + rest


_NOTHING = array("Q", (0,))
#: Limit of the size of an index's table of streams with their names, in bytes: see :class:`.StreamLimits`.
_MOST_STREAMS = 128 << 20


def index_limit(base: int, end: int) -> int:
    """Return how many bytes the index of the segment from *base* to *end* has at most."""
    return _MOST_STREAMS + end - base  # each pair of 16 bytes is for a run, which takes more in the segment


def _header(base: int, end: int, floor: int, snapshot: int, streams: int, names_size: int, rest: Buffer) -> bytes:
    """Return the header of an index file; its checksum covers everything else in the file."""
    fields = _MAGIC, base, end, floor, snapshot, streams, names_size
    return _HEADER.pack(*fields, crc32c(rest, crc32c(_HEADER.pack(*fields, 0, 0))), 0)


@attrs.frozen(eq=False, slots=True)
class PackedIndex:
    """The index of a sealed segment, in the bytes of its file; see :class:`SegmentIndex` for the methods.

    Only the values that a method needs are unpacked.
    """

    data: bytes
    end: int
    floor: int
    snapshot: int
    _streams: int
    _names: int  #: offset of the names
    _pairs: int  #: offset of the pairs

    @classmethod
    def unpack(cls, data: bytes, base: int, end: int) -> PackedIndex | None:
        """Return the index in *data*; None if *data* is damaged, or no index of the segment from *base* to *end*."""
        if len(data) < _HEADER.size:
            return None
        *_, floor, snapshot, streams, names_size, _, _ = _HEADER.unpack_from(data)
        header = _header(base, end, floor, snapshot, streams, names_size, memoryview(data)[_HEADER.size :])
        if data[: _HEADER.size] != header:
            return None
        names = _HEADER.size + streams * _STREAM.size
        return cls(data, end, floor, snapshot, streams, names, names + names_size + -names_size % 8)

    def last_before(self, stream: str) -> int | None:
        at = self._at(stream)
        if at is not None:
            return int(_STREAM.unpack_from(self.data, at)[2])
        return None if self.snapshot else self.floor

    def last(self, stream: str) -> int:
        at = self._at(stream)
        return 0 if at is None else int(_STREAM.unpack_from(self.data, at)[3])

    def find(self, stream: str, seq: int) -> int | None:
        at = self._at(stream)
        if at is None or _STREAM.unpack_from(self.data, at)[3] < max(seq, 1):
            return None
        first, stop = self._range(at)
        found = bisect_right(range(first, stop), seq, key=lambda i: self._pair(i)[0]) + first
        return self._pair(max(found - 1, first))[1]

    def following(self, stream: str, position: int) -> int | None:
        at = self._at(stream)
        assert at is not None, "find() found the stream before"
        first, stop = self._range(at)
        found = bisect_right(range(first, stop), position, key=lambda i: self._pair(i)[1]) + first
        if position - self._pair(found - 1)[1] < SPACING:
            return position
        return self._pair(found)[1] if found < stop else None

    def streams(self) -> Iterator[str]:
        """Yield the streams that have records in this segment, sorted by the bytes of their names."""
        for i in range(self._streams):
            if _STREAM.unpack_from(self.data, _HEADER.size + i * _STREAM.size)[3]:
                yield self._name(i).decode()

    def positions(self, begin: int) -> list[int]:
        return sorted({each for each in memoryview(self.data)[self._pairs :].cast("Q")[1::2] if each >= begin})

    def pairs(self, stream: str) -> list[tuple[int, int]]:
        at = self._at(stream)
        if at is None:
            return []
        begin, end = (self._pairs + i * _PAIR.size for i in self._range(at))
        return list(_PAIR.iter_unpack(memoryview(self.data)[begin:end]))

    def _at(self, stream: str) -> int | None:
        """Return the offset of the entry of *stream*, or None if the index does not list the stream."""
        name = stream.encode()
        at = bisect_left(range(self._streams), name, key=self._name)
        return _HEADER.size + at * _STREAM.size if at < self._streams and self._name(at) == name else None

    def _name(self, i: int) -> bytes:
        at = _HEADER.size + i * _STREAM.size
        begin = _STREAM.unpack_from(self.data, at - _STREAM.size)[0] if i else 0
        return self.data[self._names + begin : self._names + _STREAM.unpack_from(self.data, at)[0]]

    def _range(self, at: int) -> tuple[int, int]:
        """Return the range of the pairs that belong to the entry at the offset *at*, as two indexes."""
        begin = _STREAM.unpack_from(self.data, at - _STREAM.size)[1] if at > _HEADER.size else 0
        return begin, _STREAM.unpack_from(self.data, at)[1]

    def _pair(self, i: int) -> tuple[int, int]:
        first, position = _PAIR.unpack_from(self.data, self._pairs + i * _PAIR.size)
        return first, position


#: The index of one segment, which is written or sealed.
Index = SegmentIndex | PackedIndex
