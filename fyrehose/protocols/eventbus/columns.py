"""Convert events to runs of records, and runs of records to events.

Consecutive events of one client with the same topic, producer and form of labels make one run.  Events of usual labels
are parsed and encoded many at a time by the kernel; this module does the others.

in: the six frames of an event      out: a run; and the other way round, as encoded ZeroMQ messages
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter
from struct import pack
from typing import NamedTuple

import attrs

from fyrehose.kernels import eventbus as kernel
from fyrehose.protocols.eventbus.frames import MAX_LABEL, Broadcast, Dialect, check_event, pack_sequence
from fyrehose.protocols.eventbus.labels import WireLabels, read_labels
from fyrehose.protocols.eventbus.zmtp import encode, head_of
from fyrehose.records import Buffer, Run
from fyrehose.sessions import PIECE, fitting

#: Name of the protocol, and source of the records that it publishes.
PROTOCOL = "eventbus"

#: Limit of the bytes that an event needs besides its topic, its producer and its data: the headers of its frames, a
#: sequence of 2^48 in digits, timestamp and UUID, and the header of a msgpack byte string.
_EXTRA = 5 * 2 + 9 + 15 + 2 * MAX_LABEL + 5


class EventPiece(NamedTuple):
    """The encoded first events of a delivery that a client wants, as many as fit into a piece.

    :ivar data: the events as ZeroMQ messages end to end; empty if the client wants none of them, or if the first one
        is larger than a piece
    :ivar last: the number of the last record that is included, or that the client does not want
    :ivar highest: the number of the last record that is included; 0: none is
    """

    data: bytes
    last: int
    highest: int


@attrs.frozen(cache_hash=True)
class Encoder:
    """Encodes events for the clients that want the same topics in the same dialect; these share the encoded pieces.

    :ivar prefixes: a topic is wanted if it begins with one of these
    :ivar dialect: how sequences are written
    :ivar head: the frames that precede each event, encoded
    """

    prefixes: frozenset[bytes]
    dialect: Dialect
    head: bytes = b""
    #: the parts of a topic that may be prefixes, the shortest first
    _beginnings: tuple[slice, ...] = attrs.field(init=False, eq=False)

    @_beginnings.default
    def _sizes_of_prefixes(self) -> tuple[slice, ...]:
        return tuple(map(slice, sorted({len(prefix) for prefix in self.prefixes})))

    def wants(self, topic: bytes) -> bool:
        """Return whether *topic* begins with one of the prefixes."""
        return not self.prefixes.isdisjoint(map(topic.__getitem__, self._beginnings))

    def __call__(self, runs: Sequence[Run], end: int) -> EventPiece:
        """Return the first events of *runs* that fit into a piece.

        :param runs: those that the client wants of a delivery
        :param end: the number of the last record of the delivery
        """
        parts, room, last, highest = [], PIECE, end, 0
        for run in runs:
            topic = (run.topic or "").encode()
            labels = WireLabels(run, PROTOCOL)
            extra = _EXTRA + len(self.head) + len(topic) + len(labels.producer)
            whole = len(run.payload) + len(run) * extra <= room
            count = len(run) if whole else fitting(run, extra, room)
            if count:
                parts.append(self._encoded(run if whole else run.slice(0, count), topic, labels))
                room -= len(parts[-1])
                highest = run.first_seq + count - 1
            if not whole:
                last = run.first_seq + count - 1
                break
        return EventPiece(parts[0] if len(parts) == 1 else b"".join(parts), last, highest)

    def _encoded(self, run: Run, topic: bytes, labels: WireLabels) -> bytes:
        if labels.usual and run.event_times is not None and run.event_ids is not None:
            columns = run.event_times, run.event_ids, run.lengths, run.payload
            return kernel.frames(
                self.head, topic, labels.producer, run.first_seq, *columns, self.dialect is Dialect.DECIMAL
            )
        parts: list[Buffer] = []
        for row, payload in enumerate(run.payloads()):
            parts += self.head_and_data(run, row, payload, topic, labels)
        return b"".join(parts)

    def large(self, run: Run) -> tuple[bytes, Buffer]:
        """Return the bytes before the payload of the first record of *run*, and its payload."""
        one = run.slice(0, 1)
        head, data = self.head_and_data(one, 0, one.payload, (one.topic or "").encode(), WireLabels(one, PROTOCOL))
        return head, data

    def head_and_data(
        self, run: Run, row: int, payload: Buffer, topic: bytes, labels: WireLabels
    ) -> tuple[bytes, Buffer]:
        """Return the frames of one event, up to the payload of its record, and the payload.

        Records that were published by another protocol are not msgpack, so their data is sent as one msgpack byte
        string.
        """
        sequence = pack_sequence(run.first_seq + row, self.dialect)
        before = (topic, sequence, labels.producer, labels.timestamp(row), labels.uuid(row))
        inner = msgpack_head(len(payload)) if labels.foreign else b""
        return self.head + encode(before, more=True) + head_of(len(inner) + len(payload)) + inner, payload


class EventsByTopic:
    """The runs of one delivery by their topic, and the pieces of them that were encoded.

    Whether a client wants a topic is asked once for each topic, not for each run: events of a hundred topics in turn
    are as many runs as events.

    :param runs: not empty, in the order of their numbers
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._pieces: dict[Encoder, EventPiece] = {}
        self._topics: dict[bytes, list[Run]] = {}
        for run in runs:
            self._topics.setdefault((run.topic or "").encode(), []).append(run)

    def piece(self, encoder: Encoder) -> EventPiece:
        """Return the first events that the clients of *encoder* want."""
        piece = self._pieces.get(encoder)
        if piece is None:
            piece = self._pieces[encoder] = encoder(self._wanted(encoder), self._runs[-1].last_seq)
        return piece

    def _wanted(self, encoder: Encoder) -> Sequence[Run]:
        found = [runs for topic, runs in self._topics.items() if encoder.wants(topic)]
        if len(found) == len(self._topics):
            return self._runs
        return found[0] if len(found) == 1 else sorted(chain.from_iterable(found), key=attrgetter("first_seq"))


def run_of(frames: Sequence[bytes], stream: str) -> Run:
    """Return an event with labels of any form as a run.

    :param frames: the six frames of a PUB
    :raises RemoteProtocolError: the frames are not an event
    """
    topic = check_event(frames)
    labels = read_labels(*frames[2:5])
    return Run.of(
        stream,
        [frames[5]],
        source=PROTOCOL,
        topic=topic,
        producer=labels.producer,
        content_type=labels.content_type,
        event_ids=labels.event_id,
        event_times=None if labels.event_time is None else pack("<q", labels.event_time),
    )


def runs_of(events: Sequence[Broadcast]) -> Iterator[Run]:
    """Yield consecutive events with the same topic and producer as runs; unpack data that is one msgpack byte string.

    The source and the time of acceptance stay unknown, because the protocol does not send them.
    """

    def kind(item: tuple[int, Broadcast]) -> tuple[str, bytes, int]:
        at, event = item
        return event.topic, event.producer, event.sequence - at  # equal for consecutive sequences

    for _, group in groupby(enumerate(events), kind):
        row = [event for _, event in group]
        labels = [read_labels(event.producer, event.timestamp, event.uuid) for event in row]
        ids = [label.event_id for label in labels]
        times = [label.event_time for label in labels]
        yield Run.of(
            PROTOCOL,
            [unpack_msgpack_bytes(bytes(event.data)) for event in row],
            source="",
            producer=labels[0].producer,
            topic=row[0].topic,
            event_ids=None if None in ids else b"".join(each for each in ids if each is not None),
            event_times=None if None in times else pack(f"<{len(times)}q", *times),
            first_seq=row[0].sequence,
        )


def msgpack_bytes(payload: Buffer) -> bytes:
    """Return *payload* as a msgpack byte string (bin 8, bin 16 or bin 32)."""
    return msgpack_head(len(payload)) + payload


def msgpack_head(size: int) -> bytes:
    """Return what precedes the *size* bytes of a msgpack byte string."""
    if size < 1 << 8:
        return pack(">BB", 0xC4, size)
    return pack(">BH", 0xC5, size) if size < 1 << 16 else pack(">BI", 0xC6, size)


def unpack_msgpack_bytes(data: bytes) -> bytes:
    """Return the content of the msgpack byte string *data*; return *data* unchanged if it is not one."""
    size = {0xC4: 2, 0xC5: 3, 0xC6: 5}.get(data[0] if data else 0, 0)
    if size and int.from_bytes(data[1:size], "big") == len(data) - size and len(data) >= size:
        return data[size:]
    return data
