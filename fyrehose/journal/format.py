"""The journal's file format; this module is its specification.

A journal is a directory.  Its log is one sequence of bytes, numbered from 0 (a *position*), cut into segment files that
are named after the position of their first byte:

    LOCK                          locked by the writing process
    MARK                          the durable mark, for readers in other processes; a cache
    0000000000000000.segment      positions 0 ... n - 1
    00000000000n0000.segment      positions n ...
    0000000000000000.index        where the records of each stream are in the segment; a cache
    00000000000n0000.streams      all streams at one position: a snapshot that segments refer to (see snapshots.py)

    segment   header 64 | batch | batch | ... | zeros, where space was allocated ahead
    batch     header 64 | body: the unit of a group commit and of the checksums
    body      of kind RECORDS: run | run | ... grouped by stream     of other kinds: entry | entry | ...
    run       header 40 | stream source producer topic content_type | 0..7 |
              [producer_seq u64 x n] | [event_id 16 x n] | [event_time i64 x n] | lengths u32 x n | 0..7 |
              payloads end to end | 0..7
    entry     header 24 | stream | 0..7

Every part begins at a multiple of 8 bytes; integers are little-endian; padding consists of zeros, and the checksums
cover it.
The checksum of a body is CRC32C, continued from the checksum of the previous batch (its *chain*), so that a lost,
repeated or moved batch is noticed.  A batch header includes the chain, so a batch can also be checked by itself.

The first batch of a segment is of kind ENDS: it has the last number of every stream so far.  Therefore the numbers are
still known after retention has deleted segments, and recovery reads one segment only.  If there are many streams, the
first
batch is of kind STREAMS instead: it names a snapshot file, and the streams that changed since that snapshot.

    in: bytes of segments      out: headers, runs, entries; Damage if the bytes are not as they were written
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from struct import Struct

import attrs
from crc32c import crc32c

from fyrehose.records import Buffer, Run

#: The newest versions that this code reads.  Batches that an older Fyrehose can read are written as version 1, that is,
#: all batches except those of kind STREAMS, which have version 2.
SEGMENT_VERSION = 1
BATCH_VERSION = 2
#: Limit of a batch's body, in bytes, when a group commit is divided into batches; a single larger append is not
#: divided.
BATCH = 4 << 20
#: Upper bound of any batch's body, in bytes; it is above BATCH because a single append may be as large as
#: records.MAX_PUBLISH.
MAX_BODY = 64 << 20

#: The identity of a journal that has none, because an older version created it.
UNKNOWN = bytes(16)

SEGMENT_MAGIC = b"FYREHOSE"
BATCH_MAGIC = b"FYB"

SEGMENT_HEADER = Struct(
    "<"
    "8s"  # magic "FYREHOSE"
    "H"  # version
    "6x"
    "Q"  # base: position of this header
    "q"  # created, us since 1970 UTC
    "I"  # chain: the checksum that the first batch continues from
    "16s"  # identity of the journal, the same in every copy; zeros in segments of older versions
    "8x"
    "I"  # CRC32C of the 60 bytes before
)
BATCH_HEADER = Struct(
    "<"
    "3s"  # magic "FYB"
    "B"  # version
    "B"  # kind
    "B"  # 1: mended: replaces a damaged range; the next batch continues from the batch that was replaced
    "2x"
    "I"  # length of the body
    "I"  # runs or entries in the body
    "I"  # records in the body
    "I"  # chain: checksum of the body of the previous batch
    "Q"  # position of this header
    "Q"  # durable: everything below this position was on disk when this was written
    "q"  # time of its records, us since 1970 UTC; never goes back
    "q"  # the wall clock when it was written, us since 1970 UTC
    "I"  # CRC32C of the body, continued from the chain
    "I"  # CRC32C of the 60 bytes before
)
RUN_HEADER = Struct(
    "<"
    "I"  # length of the run, header and padding included
    "I"  # records
    "Q"  # seq of the first
    "Q"  # producer_seq of the first, where CONTIGUOUS
    "I"  # length of the payloads
    "H"  # which optional parts are present: Has
    "H"  # length of producer
    "H"  # length of topic
    "H"  # length of content type
    "B"  # length of stream, 1..255
    "B"  # length of source, 1..255
    "2x"
)
ENTRY_HEADER = Struct(
    "<"
    "Q"  # first
    "Q"  # last
    "B"  # length of stream; 0: every stream that has no entry
    "B"  # state
    "6x"
)

_CRC = Struct("<I")
#: PADDING[n] is n zeros, which fill a part up to the next multiple of 8 bytes.
PADDING = tuple(bytes(size) for size in range(8))


class Kind(IntEnum):
    """The kinds of batches."""

    RECORDS = 0
    ENDS = 1  #: entries: numbers up to ``first`` may have been given out, numbers up to ``last`` were written
    RESERVED = 2  #: entries: numbers up to ``first`` may be given out before they are on disk
    GAP = 3  #: entries: numbers ``first`` to ``last`` are missing and will never be used
    CLOSED = 4  #: no entries: the journal was closed in order
    STREAMS = 5  #: entries: changes of streams, see StreamState; as the first batch of a segment: since a snapshot

    @property
    def version(self) -> int:
        """Return the oldest version that can read a batch of this kind."""
        return 2 if self is Kind.STREAMS else 1


_KINDS = tuple(Kind)
_VERSIONS = tuple(kind.version for kind in Kind)


class StreamState(IntEnum):
    """The state of a stream in an entry of a STREAMS batch; in batches of other kinds, entries have the state LIVE."""

    LIVE = 0  #: as in ENDS; without a stream: ``first`` is the position of the snapshot (0: none), ``last`` the floor
    RETIRED = 1  #: the stream was retired: numbers up to ``last`` were given out, and none of its records is served
    BACK = 2  #: the stream was retired and published to again: its records up to ``last`` are not served
    HIGHEST = 3  #: without a stream: no stream has had a higher number than ``last``
    FORGOTTEN = 4  #: the stream was retired so long ago that its last number is dropped; the floor was raised above it


_STATES = tuple(StreamState)


class Has(IntEnum):
    """The optional parts that a run has, as bits."""

    PRODUCER = 1
    TOPIC = 2
    CONTENT_TYPE = 4
    CONTIGUOUS = 8  #: record i has producer_seq + i
    PRODUCER_SEQS = 16
    EVENT_IDS = 32
    EVENT_TIMES = 64


#: The optional columns of a run, with their size per record in bytes.
_WIDTHS = ((Has.PRODUCER_SEQS, 8), (Has.EVENT_IDS, 16), (Has.EVENT_TIMES, 8))


class Damage(Exception):
    """The error for bytes of a journal that are not as they were written."""


class Newer(Damage):
    """The error for bytes of a journal that a newer version of Fyrehose has written.

    In every version, a header has its magic, its version, its position and its checksum at the same places.
    """


@attrs.frozen(slots=True)
class SegmentHeader:
    """The first 64 bytes of a segment."""

    base: int
    created: int
    chain: int
    identity: bytes = UNKNOWN

    def pack(self) -> bytes:
        return _sealed(
            SEGMENT_HEADER.pack(SEGMENT_MAGIC, SEGMENT_VERSION, self.base, self.created, self.chain, self.identity, 0)
        )

    @classmethod
    def unpack(cls, data: Buffer) -> SegmentHeader:
        """Decode the header of a segment.

        :raises Damage: the header is damaged
        :raises Newer: a newer version has written it
        """
        if len(data) < SEGMENT_HEADER.size:
            raise Damage(f"{len(data)} bytes are too few for the header of a segment")
        magic, version, base, created, chain, identity, crc = SEGMENT_HEADER.unpack_from(data)
        if crc != crc32c(data[: SEGMENT_HEADER.size - 4]) or magic != SEGMENT_MAGIC:
            raise Damage("the header of the segment is damaged")
        _check_version(version, SEGMENT_VERSION)
        return cls(base, created, chain, identity)


@attrs.define(slots=True)
class BatchHeader:
    """The first 64 bytes of a batch.

    A header is never changed after it was built.  The class is not frozen, because building frozen objects is slow, as
    with
    :class:`~fyrehose.records.Column`.

    :ivar end: the position behind the batch
    """

    kind: Kind
    mended: bool  #: replaces a damaged range; the next batch continues from the batch that was replaced
    length: int  #: of the body, in bytes
    parts: int  #: runs or entries
    records: int
    chain: int
    position: int
    durable: int
    time: int
    clock: int
    checksum: int  #: of the body
    end: int = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.end = self.position + BATCH_HEADER.size + self.length

    def pack(self) -> bytes:
        """Return the header's bytes, with the checksum of the header itself at their end."""
        packed = BATCH_HEADER.pack(
            BATCH_MAGIC,
            _VERSIONS[self.kind],
            self.kind,
            self.mended,
            self.length,
            self.parts,
            self.records,
            self.chain,
            self.position,
            self.durable,
            self.time,
            self.clock,
            self.checksum,
            0,
        )[:-4]
        return packed + _CRC.pack(crc32c(packed))

    @classmethod
    def unpack(cls, data: Buffer, position: int) -> BatchHeader:
        """Decode the header of a batch from the first 64 bytes of *data*, which were read at *position*.

        :raises Damage: the header is damaged, or of a batch at another position
        :raises Newer: a newer version has written it
        """
        if len(data) < BATCH_HEADER.size:
            raise Damage(f"{len(data)} bytes are too few for the header of a batch")
        magic, version, kind, mended, length, parts, records, chain, at, durable, time, clock, checksum, crc = (
            BATCH_HEADER.unpack_from(data)
        )
        if crc != crc32c(data[: BATCH_HEADER.size - 4]) or magic != BATCH_MAGIC:
            raise Damage("the header of the batch is damaged")
        if at != position:
            raise Damage(f"the batch was found at position {position}, and belongs at position {at}")
        _check_version(version, BATCH_VERSION)
        if length > MAX_BODY or length % 8 or kind >= len(_KINDS):
            raise Damage(
                f"the header of the batch has kind {kind} and length {length}; expected a kind below {len(_KINDS)} and "
                f"a multiple of 8 up to {MAX_BODY}"
            )
        if durable > at:
            raise Damage(f"the header of the batch has a durable position ({durable}) beyond its own ({at})")
        return cls(_KINDS[kind], bool(mended), length, parts, records, chain, at, durable, time, clock, checksum)

    def check(self, body: Buffer) -> None:
        """Check the length and the checksum of the *body*.

        :raises Damage: *body* is not as it was written with this header
        """
        if len(body) != self.length:
            raise Damage(f"the body of the batch is truncated to {len(body)} of {self.length} bytes")
        if crc32c(body, self.chain) != self.checksum:
            raise Damage("the body of the batch is damaged")


@attrs.frozen(slots=True)
class Entry:
    """A stream and two of its numbers; :class:`Kind` says for each kind of batch what the numbers mean."""

    stream: str
    first: int
    last: int
    state: StreamState = StreamState.LIVE

    def pack(self) -> bytes:
        name = self.stream.encode()
        return ENTRY_HEADER.pack(self.first, self.last, len(name), self.state) + name + PADDING[-len(name) % 8]

    @classmethod
    def unpack(cls, data: Buffer, at: int) -> tuple[Entry, int]:
        """Decode the entry at the offset *at*; return it, and the offset of the next.

        :raises Damage: the entry is truncated, or has an unknown state
        """
        if at + ENTRY_HEADER.size > len(data):
            raise Damage("an entry is truncated")
        first, last, length, state = ENTRY_HEADER.unpack_from(data, at)
        at += ENTRY_HEADER.size
        end = at + length + -length % 8
        if end > len(data):
            raise Damage("an entry is truncated")
        if state >= len(_STATES):
            raise Damage(f"an entry has the unknown state {state}")
        return cls(_text(data[at : at + length]), first, last, _STATES[state]), end


def runs(body: Buffer, time: int) -> list[Run]:
    """Decode the runs of a *body* whose checksum was checked; the runs refer to the bytes of *body*.

    :param time: the time of the batch, in microseconds since 1970 UTC
    :raises Damage: lengths contradict each other (the writer has a bug, because the checksum is right)
    """
    view = memoryview(body)
    found: list[Run] = []
    at = 0
    while at < len(view):
        run, at = _unpack_run(view, at, time)
        found.append(run)
    return found


def extents(body: Buffer) -> list[tuple[str, int, int]]:
    """Return, for each run of a *body* whose checksum was checked, the stream, the first number and the last number.

    :raises Damage: lengths contradict each other
    """
    found: list[tuple[str, int, int]] = []
    at = 0
    while at < len(body):
        if len(body) - at < RUN_HEADER.size:
            raise Damage("a run is truncated")
        length, count, first_seq, _, payload_size, has, *sizes = RUN_HEADER.unpack_from(body, at)
        strings = sum(sizes)
        columns = count * (4 + sum(width for bit, width in _WIDTHS if has & bit))
        if length != RUN_HEADER.size + sum(size + -size % 8 for size in (strings, columns, payload_size)):
            raise Damage("the lengths of a run contradict each other")
        begin = at + RUN_HEADER.size
        at += length
        if at > len(body):
            raise Damage("a run is truncated")
        found.append((_text(body[begin : begin + sizes[3]]), first_seq, first_seq + count - 1))
    return found


def entries(body: Buffer, count: int) -> list[Entry]:
    """Decode the *count* entries of a *body* that was checked; in a mended batch, zeros may follow the entries.

    :raises Damage: lengths contradict each other
    """
    found: list[Entry] = []
    at = 0
    for _ in range(count):
        entry, at = Entry.unpack(body, at)
        found.append(entry)
    return found


def begins(header: BatchHeader, base: int) -> bool:
    """Return whether *header* is that of the first batch of the segment at *base*, the batch that lists the streams."""
    return header.kind in (Kind.ENDS, Kind.STREAMS) and header.position == base + SEGMENT_HEADER.size


@lru_cache(maxsize=4096)
def _texts(strings: bytes, sizes: tuple[int, ...]) -> tuple[str, ...]:
    """Decode the strings behind the header of a run: stream, source, producer, topic, content type.

    :param sizes: their lengths, in the order of the header
    :raises Damage: a string is not UTF-8
    """
    texts, at = [], 0
    for size in (*sizes[3:], *sizes[:3]):
        texts.append(_text(strings[at : at + size]))
        at += size
    return tuple(texts)


def _unpack_run(view: memoryview, at: int, time: int) -> tuple[Run, int]:
    if len(view) - at < RUN_HEADER.size:
        raise Damage("a run is truncated")
    length, count, first_seq, producer_seq, payload_size, has, *sizes = RUN_HEADER.unpack_from(view, at)
    end = at + length
    at += RUN_HEADER.size
    size = sum(sizes)
    stream, source, producer, topic, content_type = _texts(bytes(view[at : at + size]), tuple(sizes))
    at += size + -size % 8
    seqs: int | Buffer | None = producer_seq if has & Has.CONTIGUOUS else None
    event_ids = event_times = None
    if has & Has.PRODUCER_SEQS:
        seqs = view[at : at + 8 * count]
        at += 8 * count
    if has & Has.EVENT_IDS:
        event_ids = view[at : at + 16 * count]
        at += 16 * count
    if has & Has.EVENT_TIMES:
        event_times = view[at : at + 8 * count]
        at += 8 * count
    lengths = view[at : at + 4 * count]
    at += 4 * count + -4 * count % 8
    payload = view[at : at + payload_size]
    at += payload_size + -payload_size % 8
    if at != end or end > len(view):
        raise Damage("the lengths of a run contradict each other")
    run = Run(
        stream=stream,
        source=source,
        producer=producer if has & Has.PRODUCER else None,
        topic=topic if has & Has.TOPIC else None,
        content_type=content_type if has & Has.CONTENT_TYPE else None,
        producer_seq=seqs,
        event_ids=event_ids,
        event_times=event_times,
        lengths=lengths,
        payload=payload,
        first_seq=first_seq,
        time=time,
    )
    return run, end


def _text(data: Buffer) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise Damage("a name is not UTF-8") from error


def _sealed(header: bytes) -> bytes:
    return header[:-4] + _CRC.pack(crc32c(header[:-4]))


def _check_version(version: int, known: int) -> None:
    if version > known:
        raise Newer(f"it was written by a newer Fyrehose (format version {version}; this one reads up to {known})")
