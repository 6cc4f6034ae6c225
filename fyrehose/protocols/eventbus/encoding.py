"""From runs to the frames that clients get.

in: runs of records      out: the six frames of each event
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack

from fyrehose.protocols.eventbus.frames import Dialect
from fyrehose.protocols.eventbus.labels import Written
from fyrehose.records import Buffer, Run

#: What the bus calls itself: its protocol, and the source of what came by it.
PROTOCOL = "eventbus"

#: Labels of so many records are written at a time.
ROWS = 512

Frames = tuple[Buffer, ...]


def event_frames(run: Run, dialect: Dialect) -> Iterator[Frames]:
    """Topic, sequence, producer, timestamp, UUID and data of each record of ``run``.

    What came by another listener is no msgpack, so its payload goes out as one object of msgpack: bytes.
    """
    written = Written(run, PROTOCOL)
    topic, producer = (run.topic or "").encode(), written.producer
    payloads = run.payloads()
    for start in range(0, len(run), ROWS):
        rows = written.rows(start, min(start + ROWS, len(run)), dialect)
        for (sequence, timestamp, uuid), payload in zip(rows, payloads, strict=False):
            data: Buffer = msgpack_bytes(payload) if written.foreign else payload
            yield topic, sequence, producer, timestamp, uuid, data


def msgpack_bytes(payload: Buffer) -> bytes:
    """``payload`` as msgpack's type bin (8, 16 or 32)."""
    size = len(payload)
    if size < 1 << 8:
        head = pack(">BB", 0xC4, size)
    elif size < 1 << 16:
        head = pack(">BH", 0xC5, size)
    else:
        head = pack(">BI", 0xC6, size)
    return head + payload


def unpacked(data: bytes) -> bytes:
    """What :func:`msgpack_bytes` packed; ``data`` as it is where it is anything else."""
    size = {0xC4: 2, 0xC5: 3, 0xC6: 5}.get(data[0] if data else 0, 0)
    if size and int.from_bytes(data[1:size], "big") == len(data) - size and len(data) >= size:
        return data[size:]
    return data
