"""Snapshot files: all streams of a journal at one position, so that not every segment has to list them all.

With a hundred thousand streams, every segment would begin with megabytes of names.  Instead, the server writes a
snapshot now and then, and a segment begins with the streams that changed since (a batch of kind STREAMS).  A snapshot
is written under another name, synced and renamed before any segment refers to it, and is never changed.  Retention
deletes it with the last segment that refers to it.

    file      header 64 | row 32 ... | names end to end | CRC32C of everything before u32
    header    magic "FYSTREAM" | version u16 | 6 zeros | position u64 | floor u64 | identity of the journal 16 |
              rows u32 | size of the names u32 | 8 zeros
    row       end of its name u32 | state u32 | last number u64 | reserved up to u64 | start: records up to it are not
              served u64

Rows are sorted by the bytes of their names, so a binary search in the packed bytes finds one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

import attrs
from crc32c import crc32c

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal.files import Files
from fyrehose.journal.format import StreamState
from fyrehose.journal.scan import SegmentReader, snapshot_path_of
from fyrehose.journal.streams import Streams, referenced_snapshot

VERSION = 1
#: How many rows are packed per piece, because packing a hundred thousand rows at once would delay a commit.
STEP = 5_000
#: Limit of the size of a snapshot's file, in bytes: 300,000 streams with the longest names take 82 MiB.
LIMIT = 128 << 20

_MAGIC = b"FYSTREAM"
_HEADER = Struct("<8sH6xQQ16sII8x")
_ROW = Struct("<IIQQQ")
_CRC = Struct("<I")


def pieces(streams: Streams, position: int, identity: bytes) -> Iterator[bytes]:
    """Yield the bytes of a snapshot of *streams*, in pieces that each take a few milliseconds to make.

    :param position: the position of the log at which the streams were in this state
    """
    names = sorted(stream.encode() for of in (streams.ends, streams.retired) for stream in of)
    size = sum(map(len, names))
    header = _HEADER.pack(_MAGIC, VERSION, position, streams.floor, identity, len(names), size)
    crc = crc32c(header)
    yield header
    end = 0
    for begin in range(0, len(names), STEP):
        rows = bytearray()
        for name in names[begin : begin + STEP]:
            end += len(name)
            rows += _row(streams, name.decode(), end)
        crc = crc32c(rows, crc)
        yield bytes(rows)
    joined = b"".join(names)
    yield joined
    yield _CRC.pack(crc32c(joined, crc))


def _row(streams: Streams, stream: str, end: int) -> bytes:
    last = streams.ends.get(stream)
    if last is None:
        return _ROW.pack(end, StreamState.RETIRED, streams.retired[stream], 0, 0)
    return _ROW.pack(end, StreamState.LIVE, last, streams.reserved.get(stream, last), streams.starts.get(stream, 0))


@attrs.frozen(eq=False, slots=True)
class Snapshot:
    """A snapshot in the bytes of its file, of which only the values that a method needs are unpacked."""

    data: bytes
    position: int
    floor: int
    identity: bytes
    rows: int

    @classmethod
    def of(cls, data: bytes, position: int) -> Snapshot:
        """Decode *data*, the content of the file of the snapshot at *position*.

        :raises Damage: *data* is damaged, no snapshot, or a snapshot at another position
        :raises Newer: a newer version has written it
        """
        if len(data) < _HEADER.size + _CRC.size or _CRC.unpack(data[-4:])[0] != crc32c(data[:-4]):
            raise fmt.Damage("the snapshot is damaged")
        magic, version, at, floor, identity, rows, size = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise fmt.Damage("the file is no snapshot of streams: its first bytes are not FYSTREAM")
        if version > VERSION:
            raise fmt.Newer(
                f"it was written by a newer Fyrehose (snapshot version {version}; this one reads up to {VERSION})"
            )
        if len(data) != _HEADER.size + rows * _ROW.size + size + _CRC.size:
            raise fmt.Damage("the lengths of the snapshot contradict each other")
        if at != position:
            raise fmt.Damage(f"the file contains the snapshot at position {at}, not at {position}")
        return cls(data, position, floor, identity, rows)

    def last(self, stream: str) -> int:
        """Return the last number of *stream*, retired or not, at the snapshot's position."""
        name = stream.encode()
        at = bisect_left(range(self.rows), name, key=self._name)
        return self.floor if at == self.rows or self._name(at) != name else self._row(at)[2]

    def streams(self) -> Streams:
        """Return the state of all streams at the snapshot's position."""
        found = Streams(floor=self.floor)
        begin = at = _HEADER.size + self.rows * _ROW.size
        for end, state, last, reserved, start in _ROW.iter_unpack(self.data[_HEADER.size : begin]):
            stream = self.data[at : begin + end].decode()
            at = begin + end
            if state == StreamState.RETIRED:
                found.retired[stream] = last
                continue
            found.ends[stream] = last
            if reserved > last:
                found.reserved[stream] = reserved
            if start:
                found.starts[stream] = start
        return found

    def _row(self, at: int) -> tuple[int, int, int, int, int]:
        return _ROW.unpack_from(self.data, _HEADER.size + at * _ROW.size)

    def _name(self, at: int) -> bytes:
        names = _HEADER.size + self.rows * _ROW.size
        begin = self._row(at - 1)[0] if at else 0
        return self.data[names + begin : names + self._row(at)[0]]


def needed_by(reader: SegmentReader) -> int:
    """Return the position of the oldest snapshot that a segment needs.

    :return: the position of the snapshot that the segment refers to, or the segment's base if it lists all streams
    :raises Damage: its first batch is damaged
    """
    header, body = reader.batch(reader.base + fmt.SEGMENT_HEADER.size)
    snapshot = referenced_snapshot(fmt.entries(body, header.parts)) if fmt.begins(header, reader.base) else 0
    return snapshot or reader.base


def load(directory: Path, position: int) -> Snapshot:
    """Read the snapshot at *position*, which a segment refers to.

    :raises JournalCorrupt: the file is missing, damaged, or of another position
    """
    path = snapshot_path_of(directory, position)
    try:
        return Snapshot.of(Files().content(path, LIMIT), position)
    except fmt.Newer as newer:
        raise JournalCorrupt(f"{path} cannot be read: {newer}; serve it with that version") from newer
    except (OSError, fmt.Damage) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise JournalCorrupt(
            f"{path}, which has the last numbers of streams, cannot be used: {why}; put the file back from a copy, or "
            "start with --quarantine to continue without it"
        ) from error
