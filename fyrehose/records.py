"""Represent records as columns, on their way from a socket to the disk and back.

A *run* holds consecutive records of one stream that share their source, producer, topic and content type, for example
those that one connection sent in one read.  The journal writes its columns as they are, so nothing is copied:

    lengths        u32 x n      the payloads' lengths
    payload        bytes        the payloads end to end
    producer_seq   u64, or x n  the producer's own numbers: the first of consecutive ones, or a column
    event_ids      16 B x n     optional
    event_times    i64 x n      optional, microseconds since 1970 UTC

All integers of a column are little-endian, as in Arrow.  A run of *drafts* is not numbered yet (``first_seq == 0``);
numbering makes it a run of *records*.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from struct import pack
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from fyrehose.kernels import buffers, columns

if sys.byteorder != "little":  # pragma: no cover - no such machine in sight
    raise ImportError("fyrehose needs a little-endian machine, because columns hold native integers")

T = TypeVar("T")
Buffer = buffers.Buffer

#: The last number of a stream (48 bits, the width of the backbone's SEQUENCE).
LAST_SEQ = (1 << 48) - 1
#: Limit of the name of a stream, a producer or a topic, in bytes of UTF-8.
MAX_NAME = 255
#: Limit of the payload of one record for all protocols, in bytes.
MAX_PAYLOAD = 16 << 20
#: Limit of one publish, in bytes as :attr:`Run.room` counts them.
MAX_PUBLISH = 60 << 20

#: Characters that a label does not have: they control terminals, and take six times their size in JSON.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: A run whose ``room`` exceeds its ``size`` by at most this has no name of more than :data:`MAX_NAME` characters.
USUAL_NAMES = columns.AROUND + columns.CHARACTER * MAX_NAME
#: A limit of bytes that no run reaches, for calls that need one.
_ALL = (1 << 64) - 1


def is_label(text: str) -> bool:
    """Return whether a peer may send *text* as a label: 1 to MAX_NAME bytes of UTF-8, without control characters."""
    return 1 <= len(text.encode()) <= MAX_NAME and _CONTROL.search(text) is None


@attrs.frozen(kw_only=True, slots=True)
class Record:
    """A single record, for tools, tests and slow paths; between socket and disk, only :class:`Run` is used."""

    stream: str
    seq: int
    time: int  #: when the server accepted it, in microseconds since 1970 UTC
    source: str
    producer: str | None
    topic: str | None
    content_type: str | None
    producer_seq: int | None
    event_id: bytes | None
    event_time: int | None
    payload: bytes


@attrs.define(slots=True)
class Column:
    """Payloads end to end, and their lengths; the base of everything that holds several messages.

    A column is never changed after it was built.  The class is not frozen, because building a frozen object with so
    many fields takes four times as long.

    :ivar lengths: the lengths of the payloads in bytes, u32 x n, little-endian
    :ivar payload: the payloads end to end
    """

    lengths: Buffer
    payload: Buffer

    if TYPE_CHECKING:

        def __len__(self) -> int: ...
    else:
        __len__ = columns.count

    @property
    def sizes(self) -> Sequence[int]:
        """Return the lengths of the payloads, in bytes."""
        return memoryview(self.lengths).cast("I")

    def payloads(self) -> Iterator[memoryview]:
        """Yield the payloads as views of this column's bytes."""
        view = memoryview(self.payload)
        begin = 0
        for size in self.sizes:
            yield view[begin : begin + size]
            begin += size

    def part(self, start: int, stop: int) -> Column:
        """Return payloads *start* to *stop*, with 0 <= start <= stop <= len(self); they share this column's bytes."""
        begin = columns.span(self.lengths, 0, start, _ALL)[1]
        end = begin + columns.span(self.lengths, start, stop, _ALL)[1] if stop < len(self) else len(self.payload)
        return Column(memoryview(self.lengths)[4 * start : 4 * stop], memoryview(self.payload)[begin:end])


def column_of(payloads: Iterable[Buffer]) -> Column:
    """Return *payloads* as a column."""
    parts = list(payloads)
    return Column(pack(f"<{len(parts)}I", *map(len, parts)), b"".join(parts))


@attrs.define(kw_only=True, slots=True)
class Run(Column):
    """Consecutive records of one stream, source, producer, topic and content type, as columns.

    A run is never changed after it was built, with one exception: the broker numbers the drafts in a :class:`Publish`,
    and the commit sets their time, so that no second object is needed.

    :ivar last_seq: the number of the last record
    :ivar size: the size of all columns in bytes, which memory budgets charge
    :ivar room: limit of the bytes that the run can occupy in the journal, with its names and header
    """

    stream: str
    source: str
    producer: str | None = None
    topic: str | None = None
    content_type: str | None = None
    producer_seq: int | Buffer | None = None
    event_ids: Buffer | None = None
    event_times: Buffer | None = None
    first_seq: int = 0  #: 0 for drafts
    time: int = 0  #: when the server accepted them, in microseconds since 1970 UTC; 0 for drafts
    # These three are computed once, because they are used about twenty times on the way of a message.
    last_seq: int = attrs.field(init=False, eq=False, repr=False)
    size: int = attrs.field(init=False, eq=False, repr=False)
    room: int = attrs.field(init=False, eq=False, repr=False)

    # attrs makes no __init__ if the class has one; type checkers derive the same signature from the fields.
    __init__ = columns.build_run

    @classmethod
    def of(cls, stream: str, payloads: Iterable[Buffer], *, source: str, **constants: object) -> Run:
        """Return a run of *payloads*; *constants* are the other fields of the run."""
        column = column_of(payloads)
        return cls(stream=stream, source=source, lengths=column.lengths, payload=column.payload, **constants)  # type: ignore[arg-type]

    def numbered(self, first_seq: int, time: int) -> Run:
        """Return this run as records with numbers and a time, with the same columns.

        :param first_seq: the number of the first record
        :param time: when the server accepted them, in microseconds since 1970 UTC
        """
        return attrs.evolve(self, first_seq=first_seq, time=time)

    def slice(self, start: int, stop: int) -> Run:
        """Return records *start* to *stop*, counted as in a Python slice, as a run that shares this run's bytes."""
        start, stop, _ = slice(start, stop).indices(len(self))
        if start == 0 and stop == len(self):
            return self
        stop = max(start, stop)
        part = self.part(start, stop)
        return Run(
            stream=self.stream,
            source=self.source,
            lengths=part.lengths,
            payload=part.payload,
            producer=self.producer,
            topic=self.topic,
            content_type=self.content_type,
            producer_seq=_slice_seqs(self.producer_seq, start, stop),
            event_ids=_slice_column(self.event_ids, 16, start, stop),
            event_times=_slice_column(self.event_times, 8, start, stop),
            first_seq=self.first_seq + start if self.first_seq else 0,
            time=self.time,
        )

    def fitting(self, max_bytes: int) -> int:
        """Return how many of the first records fit into *max_bytes* of payload; at least one."""
        if len(self.payload) <= max_bytes:
            return len(self)
        return max(1, columns.span(self.lengths, 0, len(self), max(0, max_bytes))[0])

    def producer_seqs(self) -> Sequence[int] | None:
        """Return the producer's own number of each record, or None if it has none."""
        if self.producer_seq is None:
            return None
        if isinstance(self.producer_seq, int):
            return range(self.producer_seq, self.producer_seq + len(self))
        return memoryview(self.producer_seq).cast("Q")

    def records(self) -> Iterator[Record]:
        """Yield the records, each with its own copy of the bytes."""
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


@attrs.define(slots=True, eq=False)
class Publish:
    """The runs of one publish, from the broker to the disk and back; the journal writes all of them or none.

    :ivar runs: the numbered runs, whose time the commit sets; only the commit changes them
    :ivar size: the sum of their :attr:`Run.room`, in bytes
    :ivar owner: its ``settle(items)`` is called once for all publishes of this owner in a commit, in order, when they
        are durable; owners are compared by identity
    :ivar note: any object that the owner needs to settle the publish
    :ivar counted: how many runs at the beginning are messages of a peer; the others are records of the server
    :ivar began: when the publish was submitted, on the broker's clock, in seconds
    :ivar retires: streams to retire, by a publish that has no runs
    :ivar network: the network of the peer, which its publishes wait for; empty: the server itself, and datagrams
    """

    runs: list[Run]
    size: int
    owner: Any
    note: Any = None
    counted: int = 0
    began: float = 0.0
    retires: Sequence[str] = ()
    network: str = ""


#: Returns the ``room`` of a run.  This is no Python function, so that ``sum(map(room_of, runs))`` is fast.
room_of: Callable[[Run], int] = attrgetter("room")


def _slice_column(column: Buffer | None, width: int, start: int, stop: int) -> Buffer | None:
    return None if column is None else memoryview(column)[width * start : width * stop]


def _slice_seqs(producer_seq: int | Buffer | None, start: int, stop: int) -> int | Buffer | None:
    if isinstance(producer_seq, int):
        return producer_seq + start
    return _slice_column(producer_seq, 8, start, stop)


@attrs.define(slots=True, init=False)
class Delivery:
    """Consecutive records of one stream, read once for all subscribers that have reached the same number.

    Subscribers share a delivery, so each protocol encodes it only once, and nobody may change it.
    """

    runs: tuple[Run, ...]  #: not empty, ascending; numbers missing between two runs are missing for good
    first_seq: int = attrs.field(init=False)
    last_seq: int = attrs.field(init=False)
    payload_size: int = attrs.field(init=False)  #: the payloads, in bytes
    size: int = attrs.field(init=False)  #: all columns, in bytes
    count: int = attrs.field(init=False)
    _encoded: dict[Callable[[tuple[Run, ...]], object], object] = attrs.field(init=False, eq=False, repr=False)

    if TYPE_CHECKING:

        def __init__(self, runs: tuple[Run, ...]) -> None: ...

        def encoded(self, encode: Callable[[tuple[Run, ...]], T]) -> T:
            """Return ``encode(runs)``, computed only once for each *encode*."""
    else:
        __init__, encoded = columns.build_delivery, columns.encoded

    def __len__(self) -> int:
        return self.count


def halves(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Split *runs*, which have at least two messages, into their first and their second half, in order."""
    return split(runs, sum(map(len, runs)) // 2)


def split(runs: Sequence[Run], first: int) -> tuple[list[Run], list[Run]]:
    """Split *runs* into their first messages, *first* in number, and the others, in order."""
    found: list[Run] = []
    rest: list[Run] = []
    for run in runs:
        count = min(first, len(run))
        first -= count
        if count:
            found.append(run.slice(0, count))
        if count < len(run):
            rest.append(run.slice(count, len(run)))
    return found, rest
