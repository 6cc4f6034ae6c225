"""Serialize runs of records as the frames of events.

in: runs of records      out: the six frames of each event
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack

from fyrehose.protocols.eventbus.frames import Dialect
from fyrehose.protocols.eventbus.labels import WireLabels
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
