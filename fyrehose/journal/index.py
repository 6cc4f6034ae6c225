"""Where the records of a stream are in a segment: a cache, made again from the segment when it is missing or wrong.

The index is sparse: a stream has an entry for the first of its batches, and then for the first that is 64 KiB or more
behind the last entry.  So its size is bounded by that of the segment, and a reader scans little.

    file      magic "FYREINDX" | base u64 | end u64 | counts u32 u32 | CRC32C of what follows u32 | 0 u32 |
              before | streams
    before    entries (journal/format.py): the last number of each stream before this segment
    streams   stream entry (first = count of pairs, last = last number) | first seqs u64 x count | positions u64 x count
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from struct import Struct

import attrs
from crc32c import crc32c

from fyrehose.journal import format as fmt
from fyrehose.journal.scan import SegmentReader
from fyrehose.records import Buffer

#: Two entries of a stream are at least so far apart, in bytes.
SPACING = 64 << 10

_MAGIC = b"FYREINDX"
_HEADER = Struct("<8sQQIIII")


@attrs.define(eq=False)
class StreamIndex:
    """One stream in one segment."""

    last: int = 0
    firsts: array[int] = attrs.field(factory=lambda: array("Q"))
    positions: array[int] = attrs.field(factory=lambda: array("Q"))


@attrs.define(eq=False)
class SegmentIndex:
    """All streams of one segment.

    :ivar before: the last number of each stream when the segment began
    :ivar floor: the same for every stream that is not in ``before``
    :ivar end: the index covers the segment up to this position
    """

    base: int
    end: int = 0
    floor: int = 0
    before: dict[str, int] = attrs.field(factory=dict)
    streams: dict[str, StreamIndex] = attrs.field(factory=dict)

    @classmethod
    def scan(cls, reader: SegmentReader, stop: int) -> SegmentIndex:
        """Made from the segment itself, up to ``stop``.

        :raises Damage: the segment is damaged
        """
        index = cls(reader.base)
        for header, body in reader.batches(reader.base + fmt.SEGMENT_HEADER.size, stop):
            index.add(header, body)
        return index

    def add(self, header: fmt.BatchHeader, body: Buffer) -> None:
        """The next batch, from its bytes."""
        if header.kind is fmt.Kind.RECORDS:
            for run in fmt.runs(body, header.time):
                self.add_run(header.position, run.stream, run.first_seq, run.last_seq)
        elif header.kind is fmt.Kind.ENDS:
            self.set_before(fmt.entries(body, header.parts))
        self.end = header.end

    def set_before(self, ends: Iterable[fmt.Entry]) -> None:
        """What the segment begins with."""
        for entry in ends:
            if entry.stream:
                self.before[entry.stream] = entry.last
            else:
                self.floor = entry.last

    def add_run(self, position: int, stream: str, first: int, last: int) -> None:
        """Records ``first`` to ``last`` of ``stream`` are in the batch at ``position``."""
        of = self.streams.get(stream)
        if of is None:
            of = self.streams[stream] = StreamIndex()
        of.last = last
        if not of.positions or position - of.positions[-1] >= SPACING:
            of.firsts.append(first)
            of.positions.append(position)

    def last_before(self, stream: str) -> int:
        """The last number of ``stream`` before this segment."""
        return self.before.get(stream, self.floor)

    def find(self, stream: str, seq: int) -> int | None:
        """A position from which to look for ``seq`` or what follows it; None when nothing of it is in this segment."""
        of = self.streams.get(stream)
        if of is None or of.last < seq:
            return None
        return of.positions[max(0, bisect_right(of.firsts, seq) - 1)]

    def pack(self) -> bytes:
        """What the index file holds."""
        pieces = []
        for stream, last in [*self.before.items(), ("", self.floor)]:
            pieces.append(fmt.Entry(stream, 0, last).pack())
        for stream, of in self.streams.items():
            pieces += fmt.Entry(stream, len(of.firsts), of.last).pack(), of.firsts.tobytes(), of.positions.tobytes()
        body = b"".join(pieces)
        counts = len(self.before) + 1, len(self.streams)
        return _HEADER.pack(_MAGIC, self.base, self.end, *counts, crc32c(body), 0) + body

    @classmethod
    def unpack(cls, data: bytes, base: int, end: int) -> SegmentIndex | None:
        """The index in ``data``; None if it is not that of the segment from ``base`` to ``end``."""
        if len(data) < _HEADER.size:
            return None
        magic, its_base, its_end, befores, streams, crc, _ = _HEADER.unpack_from(data)
        if (magic, its_base, its_end) != (_MAGIC, base, end) or crc32c(data[_HEADER.size :]) != crc:
            return None
        index = cls(base, end)
        at = _HEADER.size
        for _ in range(befores):
            entry, at = fmt.Entry.unpack(data, at)
            index.set_before([entry])
        for _ in range(streams):
            entry, at = fmt.Entry.unpack(data, at)
            of = index.streams[entry.stream] = StreamIndex(entry.last)
            count = entry.first
            of.firsts.frombytes(data[at : at + 8 * count])
            of.positions.frombytes(data[at + 8 * count : at + 16 * count])
            at += 16 * count
        return index
