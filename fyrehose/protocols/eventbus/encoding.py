"""Convert runs of records to events, and events to runs of records.

in: runs of records      out: the six frames of each event; and the other way round
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from struct import pack

from fyrehose.protocols.eventbus.frames import Broadcast, Dialect
from fyrehose.protocols.eventbus.labels import WireLabels, read_labels
from fyrehose.records import Buffer, Run

#: Name of the protocol, and source of the records that it publishes.
PROTOCOL = "eventbus"

#: Number of records whose labels are serialized at a time.
ROWS = 512

Frames = tuple[Buffer, ...]


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
    """Return the content of a msgpack byte string; *data* unchanged if it is anything else."""
    size = {0xC4: 2, 0xC5: 3, 0xC6: 5}.get(data[0] if data else 0, 0)
    if size and int.from_bytes(data[1:size], "big") == len(data) - size and len(data) >= size:
        return data[size:]
    return data
