"""Records as columns: what travels from a socket to the disk and back.

A *run* is a number of consecutive records of one stream whose constants are equal: what one connection sent in
one read.  Its columns are the bytes that the journal writes, so nothing is copied on the way:

    lengths        u32 x n      the payloads' lengths
    payload        bytes        the payloads end to end
    producer_seq   u64, or x n  the producer's own numbers: first + i, or a column
    event_ids      16 B x n     optional
    event_times    i64 x n      optional, microseconds since 1970 UTC

All integers of a column are little-endian, as Arrow has them.  A run of *drafts* has ``first_seq == 0``;
numbering makes it a run of *records*.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import pack
from typing import TypeVar

import attrs

from fyrehose.kernels import columns

if sys.byteorder != "little":  # pragma: no cover - no such machine in sight
    raise ImportError("fyrehose keeps columns as the machine's own integers and needs a little-endian machine")

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

#: The last number of a stream (48 bits, the width of the backbone's SEQUENCE).
LAST_SEQ = (1 << 48) - 1
#: The largest name of a stream, a producer or a topic, in bytes of UTF-8.
MAX_NAME = 255
#: The largest payload of one record, by any listener, in bytes.
MAX_PAYLOAD = 16 << 20
#: The most that is published at once, in bytes as :attr:`Run.room` counts them.
MAX_PUBLISH = 60 << 20

#: What a run takes besides its columns and names, in bytes, and a character of a name, if it cannot be encoded.
_AROUND = 64
_CHARACTER = 6
#: More bytes than any run has.
_ALL = (1 << 64) - 1


@attrs.frozen(kw_only=True, slots=True)
class Record:
    """One record by itself: for tools, tests and slow paths, never for the way from socket to disk."""

    stream: str
    seq: int
    time: int  #: microseconds since 1970 UTC, when accepted
    source: str
    producer: str | None
    topic: str | None
    content_type: str | None
    producer_seq: int | None
    event_id: bytes | None
    event_time: int | None
    payload: bytes


@attrs.frozen(kw_only=True, slots=True)
class Run:
    """Consecutive records of one stream, source, producer, topic and content type, as columns."""

    stream: str
    source: str
    lengths: Buffer
    payload: Buffer
    producer: str | None = None
    topic: str | None = None
    content_type: str | None = None
    producer_seq: int | Buffer | None = None
    event_ids: Buffer | None = None
    event_times: Buffer | None = None
    first_seq: int = 0  #: 0: drafts
    time: int = 0  #: microseconds since 1970 UTC, when accepted; 0: drafts

    @classmethod
    def of(cls, stream: str, payloads: Iterable[Buffer], *, source: str, **constants: object) -> Run:
        """A run from single payloads; ``constants`` are the other fields of a run."""
        parts = list(payloads)
        lengths = pack(f"<{len(parts)}I", *map(len, parts))
        payload = b"".join(parts)
        return cls(stream=stream, source=source, lengths=lengths, payload=payload, **constants)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.lengths) // 4

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.lengths) // 4 - 1

    @property
    def size(self) -> int:
        """What its columns hold, in bytes: what budgets count."""
        size = len(self.payload) + len(self.lengths)
        if self.producer_seq is not None and not isinstance(self.producer_seq, int):
            size += len(self.producer_seq)
        return size + len(self.event_ids or b"") + len(self.event_times or b"")

    @property
    def room(self) -> int:
        """What it takes in the journal, in bytes, at the most: its columns, its names, and what goes with them."""
        names = len(self.stream) + len(self.source)
        names += len(self.producer or "") + len(self.topic or "") + len(self.content_type or "")
        return self.size + _AROUND + _CHARACTER * names

    @property
    def sizes(self) -> Sequence[int]:
        """The payloads' lengths, as integers."""
        return memoryview(self.lengths).cast("I")

    def numbered(self, first_seq: int, time: int) -> Run:
        """The same columns as records: numbered from ``first_seq``, accepted at ``time``."""
        return Run(
            stream=self.stream,
            source=self.source,
            lengths=self.lengths,
            payload=self.payload,
            producer=self.producer,
            topic=self.topic,
            content_type=self.content_type,
            producer_seq=self.producer_seq,
            event_ids=self.event_ids,
            event_times=self.event_times,
            first_seq=first_seq,
            time=time,
        )

    def slice(self, start: int, stop: int) -> Run:
        """Records ``start`` to ``stop`` (as a Python slice counts), sharing this run's bytes."""
        start, stop, _ = slice(start, stop).indices(len(self))
        if start == 0 and stop == len(self):
            return self
        stop = max(start, stop)
        begin = columns.span(self.lengths, 0, start, _ALL)[1]
        end = begin + columns.span(self.lengths, start, stop, _ALL)[1] if stop < len(self) else len(self.payload)
        return Run(
            stream=self.stream,
            source=self.source,
            lengths=memoryview(self.lengths)[4 * start : 4 * stop],
            payload=memoryview(self.payload)[begin:end],
            producer=self.producer,
            topic=self.topic,
            content_type=self.content_type,
            producer_seq=_part(self.producer_seq, start, stop),
            event_ids=_column(self.event_ids, 16, start, stop),
            event_times=_column(self.event_times, 8, start, stop),
            first_seq=self.first_seq + start if self.first_seq else 0,
            time=self.time,
        )

    def fitting(self, max_bytes: int) -> int:
        """How many records from the first fit into ``max_bytes`` of payload; at least one."""
        if len(self.payload) <= max_bytes:
            return len(self)
        return max(1, columns.span(self.lengths, 0, len(self), max(0, max_bytes))[0])

    def payloads(self) -> Iterator[memoryview]:
        """The payloads one by one, as views of this run's bytes."""
        view = memoryview(self.payload)
        begin = 0
        for size in self.sizes:
            yield view[begin : begin + size]
            begin += size

    def producer_seqs(self) -> Sequence[int] | None:
        """The producer's own numbers, one a record."""
        if self.producer_seq is None:
            return None
        if isinstance(self.producer_seq, int):
            return range(self.producer_seq, self.producer_seq + len(self))
        return memoryview(self.producer_seq).cast("Q")

    def records(self) -> Iterator[Record]:
        """The records one by one, each with bytes of its own."""
        seqs = self.producer_seqs()
        times = None if self.event_times is None else memoryview(self.event_times).cast("q")
        for i, payload in enumerate(self.payloads()):
            yield Record(
                stream=self.stream,
                seq=self.first_seq + i if self.first_seq else 0,
                time=self.time,
                source=self.source,
                producer=self.producer,
                topic=self.topic,
                content_type=self.content_type,
                producer_seq=None if seqs is None else seqs[i],
                event_id=None if self.event_ids is None else bytes(self.event_ids[16 * i : 16 * i + 16]),
                event_time=None if times is None else times[i],
                payload=bytes(payload),
            )


def _column(column: Buffer | None, width: int, start: int, stop: int) -> Buffer | None:
    return None if column is None else memoryview(column)[width * start : width * stop]


def _part(producer_seq: int | Buffer | None, start: int, stop: int) -> int | Buffer | None:
    if isinstance(producer_seq, int):
        return producer_seq + start
    return _column(producer_seq, 8, start, stop)


@attrs.frozen(slots=True)
class Delivery:
    """Consecutive records of one stream, read at once for whoever stands at the same place.

    Subscribers share it, so each protocol encodes it once.
    """

    runs: tuple[Run, ...]  #: not empty, ascending; a number missing between two of them is missing for good
    _encoded: dict[Callable[[tuple[Run, ...]], object], object] = attrs.field(factory=dict, eq=False, repr=False)

    @property
    def first_seq(self) -> int:
        return self.runs[0].first_seq

    @property
    def last_seq(self) -> int:
        return self.runs[-1].last_seq

    @property
    def size(self) -> int:
        return sum(run.size for run in self.runs)

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def encoded(self, encode: Callable[[tuple[Run, ...]], T]) -> T:
        """``encode(runs)``, done once however many subscribers ask."""
        if encode not in self._encoded:
            self._encoded[encode] = encode(self.runs)
        return self._encoded[encode]  # type: ignore[return-value]
