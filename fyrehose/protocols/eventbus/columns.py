"""Convert events to runs of records, and runs of records to events.

A :class:`RunBuilder` groups the PUBs of one turn into few runs, and keeps the order of each client's events.  A PUB
joins an earlier run with the same topic, producer and form of labels, unless its client already has an event in a later
run: an earlier run would break that client's order.  The order between clients is not defined before events have
sequences, so a thousand producers whose PUBs arrive interleaved make a thousand runs, and not one run per event.

in: the six frames of each event      out: runs of records; and the other way round
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from struct import pack

import attrs

from fyrehose.kernels import eventbus as kernel
from fyrehose.protocols.eventbus.frames import MAX_LABEL, Broadcast, Dialect, check_event
from fyrehose.protocols.eventbus.labels import CONTENT_TYPE, WireLabels, read_labels
from fyrehose.records import MAX_NAME, MAX_PAYLOAD, Buffer, Run

#: Name of the protocol, and source of the records that it publishes.
PROTOCOL = "eventbus"

#: Number of records whose labels are serialized at a time.
ROWS = 512

Frames = tuple[Buffer, ...]

#: Memory of a run besides its columns, and of an event besides its data, in bytes; generous estimates.
RUN_OVERHEAD = 1 << 10
EVENT_OVERHEAD = 64

#: The topic, producer and content type that all events of a run have.  The content type says in what form the labels
#: are, and so which columns the run has.
_Kind = tuple[str, str, str]


@attrs.define(eq=False)
class _Columns:
    """The columns of a run under construction."""

    kind: _Kind
    data: list[bytes] = attrs.field(factory=list, init=False)
    event_ids: list[bytes] = attrs.field(factory=list, init=False)
    event_times: list[int] = attrs.field(factory=list, init=False)


@attrs.frozen(slots=True, kw_only=True)
class EventBatch:
    """The events of one turn.

    :ivar size: their memory, in bytes
    :ivar count: number of events
    :ivar uuids: the UUIDs of the events, if the option ``dedup`` is on
    """

    runs: list[Run]
    size: int
    count: int
    uuids: list[bytes] = attrs.field(factory=list)

    def parts(self) -> list[EventBatch]:
        """Split the batch into batches of one run each, or a batch of one run into single events.

        The UUIDs are left out: an event that is refused permanently would be refused again.
        """
        runs = self.runs
        if len(runs) == 1:
            runs = [runs[0].slice(row, row + 1) for row in range(len(runs[0]))]
        return [EventBatch(runs=[run], size=run.size, count=len(run)) for run in runs]


@attrs.define(eq=False)
class RunBuilder:
    """The events of one turn of COLLECTOR.

    :ivar uuids: the UUIDs to remember for the option ``dedup``
    """

    stream: str
    source: str
    uuids: list[bytes] = attrs.field(factory=list, init=False)
    _size: int = attrs.field(default=0, init=False)
    _count: int = attrs.field(default=0, init=False)
    _columns: list[_Columns] = attrs.field(factory=list, init=False)
    _latest: dict[_Kind, int] = attrs.field(factory=dict, init=False)
    _reached: dict[bytes, int] = attrs.field(factory=dict, init=False)

    def add(self, identity: bytes, frames: Sequence[bytes]) -> None:
        """Add a PUB.

        :param identity: the routing id of the client
        :param frames: the six frames of the PUB
        :raises RemoteProtocolError: the frames are not an event
        """
        event_id: bytes | None
        event_time: int | None
        usual = kernel.read_event(frames, MAX_NAME, MAX_LABEL, MAX_PAYLOAD)
        if usual is not None:
            topic, producer, event_id, event_time = usual
            content_type = CONTENT_TYPE
        else:
            topic = check_event(frames)
            producer, content_type, event_id, event_time = read_labels(*frames[2:5])
        kind = topic, producer, content_type
        data = frames[5]
        at = self._latest.get(kind, -1)
        if at < 0 or at < self._reached.get(identity, -1):
            at = self._latest[kind] = len(self._columns)
            self._columns.append(_Columns(kind))
            self._size += RUN_OVERHEAD
        self._reached[identity] = at
        columns = self._columns[at]
        columns.data.append(data)
        if event_id is not None:
            columns.event_ids.append(event_id)
        if event_time is not None:
            columns.event_times.append(event_time)
        self._size += len(data) + EVENT_OVERHEAD
        self._count += 1

    def take(self) -> EventBatch | None:
        """Return the events of this turn, or None if there are none, and start with the next turn."""
        if not self._count:
            return None
        runs = [
            Run.of(
                self.stream,
                columns.data,
                source=self.source,
                topic=columns.kind[0],
                producer=columns.kind[1],
                content_type=columns.kind[2],
                event_ids=b"".join(columns.event_ids) or None,
                event_times=pack(f"<{len(columns.event_times)}q", *columns.event_times) or None,
            )
            for columns in self._columns
        ]
        batch = EventBatch(runs=runs, size=self._size, count=self._count, uuids=self.uuids)
        self._columns, self._latest, self._reached, self.uuids = [], {}, {}, []
        self._size = self._count = 0
        return batch


def event_frames(run: Run, dialect: Dialect) -> Iterator[Frames]:
    """Yield topic, sequence, producer, timestamp, UUID and data of each record of *run*.

    Records that were published by another protocol are not msgpack, so their data is sent as one msgpack byte string.
    """
    written = WireLabels(run, PROTOCOL)
    topic, producer = (run.topic or "").encode(), written.producer
    payloads = run.payloads()
    for start in range(0, len(run), ROWS):
        rows = written.rows(start, min(start + ROWS, len(run)), dialect)
        for (sequence, timestamp, uuid), payload in zip(rows, payloads, strict=False):
            data: Buffer = msgpack_bytes(payload) if written.foreign else payload
            yield topic, sequence, producer, timestamp, uuid, data


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
    size = len(payload)
    if size < 1 << 8:
        head = pack(">BB", 0xC4, size)
    elif size < 1 << 16:
        head = pack(">BH", 0xC5, size)
    else:
        head = pack(">BI", 0xC6, size)
    return head + payload


def unpack_msgpack_bytes(data: bytes) -> bytes:
    """Return the content of the msgpack byte string *data*; return *data* unchanged if it is not one."""
    size = {0xC4: 2, 0xC5: 3, 0xC6: 5}.get(data[0] if data else 0, 0)
    if size and int.from_bytes(data[1:size], "big") == len(data) - size and len(data) >= size:
        return data[size:]
    return data
