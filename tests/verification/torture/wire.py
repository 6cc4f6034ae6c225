"""Figg and the backbone by raw sockets and struct, written from their texts; nothing is shared with the server.

Payloads name their publisher and number, from which they can be computed again, so that received payloads are checked
without storing the sent ones.
"""

from __future__ import annotations

import base64
import json
import random
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

HEADER = struct.Struct(">HHI")
ATTACH, ATTACHED, PUBLISH, ACK, DATA, PING, PONG = 1, 2, 5, 6, 7, 8, 9
FROM_OFFSET = 0x8000
U16, U32, U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")

#: the beginning of a payload: publisher u32, number u64, size u32
STAMP = struct.Struct(">IQI")
_NOISE = bytes((i * 167 + (i >> 8) * 59 + (i >> 16) * 13) & 255 for i in range(192 << 10))


def size_of(publisher: int, number: int, largest: int) -> int:
    """Return the size of a payload without its stamp: mostly small, sometimes a page, seldom large."""
    dice = (number * 2654435761 + publisher * 40503) & 0xFFFFFFFF
    if dice % 997 == 0:
        return min(largest, dice >> 8 & 0x1FFFF)
    if dice % 47 == 0:
        return min(largest, 4000 + (dice >> 8) % 300)
    return (dice >> 8) % 220


def payload(publisher: int, number: int, largest: int = 1 << 17) -> bytes:
    """Return the ``number``-th payload of ``publisher``."""
    size = size_of(publisher, number, largest)
    begin = (publisher * 7919 + number * 31) & 0xFFFF
    return STAMP.pack(publisher, number, size) + _NOISE[begin : begin + size]


def _fields(publisher: int, number: int, data: bytes) -> dict[str, Any]:
    """Return the members of the event of Filebeat that has the payload *data*; they give it an identity."""
    return {
        "@timestamp": "2026-11-26T02:00:00.000Z",
        "agent": {"ephemeral_id": f"torture-{publisher}"},
        "log": {"offset": number, "file": {"path": "/var/log/app.log"}},
        "message": base64.b64encode(data).decode(),
    }


def event(publisher: int, number: int, largest: int = 1 << 17) -> bytes:
    """Return the ``number``-th payload of ``publisher`` as an event with an identity; its members have any order."""
    members = list(_fields(publisher, number, payload(publisher, number, largest)).items())
    random.shuffle(members)
    return json.dumps(dict(members)).encode()


def whose(data: bytes, largest: dict[int, int]) -> tuple[int, int] | None:
    """Return publisher and number of a payload or event, or None if it is not exactly what they sent."""
    fields: Any = None
    if data.startswith(b"{"):
        try:
            fields = json.loads(data)
            data = base64.b64decode(fields["message"])
        except (ValueError, KeyError, TypeError):
            return None
    if len(data) < STAMP.size:
        return None
    publisher, number, _ = STAMP.unpack_from(data)
    if fields is not None and fields != _fields(publisher, number, data):
        return None
    return (publisher, number) if data == payload(publisher, number, largest.get(publisher, 1 << 17)) else None


def publish(topic: bytes, number: int, data: bytes) -> bytes:
    body = U32.pack(len(topic)) + topic + U64.pack(number) + U32.pack(len(data)) + data
    return HEADER.pack(PUBLISH, 1, len(body)) + body


def ping(number: int) -> bytes:
    return HEADER.pack(PING, 1, U64.size) + U64.pack(number)


def attach(topic: bytes, offset: int | None) -> bytes:
    flags, where = (0, 0) if offset is None else (FROM_OFFSET, offset)
    body = U16.pack(flags) + U32.pack(len(topic)) + topic + U64.pack(where)
    return HEADER.pack(ATTACH, 1, len(body)) + body


class Frames:
    """Collects received bytes, and yields complete frames: (type, topic, number, data)."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes, int, bytes]]:
        self.buffer += chunk
        at, view = 0, bytes(self.buffer)
        while len(view) - at >= HEADER.size:
            kind, version, size = HEADER.unpack_from(view, at)
            if version != 1:
                raise ValueError(f"unexpected version {version}")
            end = at + HEADER.size + size
            if end > len(view):
                break
            yield self._frame(kind, view, at + HEADER.size, end)
            at = end
        del self.buffer[:at]

    @staticmethod
    def _frame(kind: int, view: bytes, at: int, end: int) -> tuple[int, bytes, int, bytes]:
        if kind in (ACK, PONG):
            return kind, b"", U64.unpack_from(view, at)[0], b""
        (size,) = U32.unpack_from(view, at)
        topic = view[at + 4 : at + 4 + size]
        at += 4 + size
        (number,) = U64.unpack_from(view, at)
        at += 8
        if kind == ATTACHED:
            return kind, topic, number, b""
        if kind != DATA:
            raise ValueError(f"unexpected frame type {kind}")
        (size,) = U32.unpack_from(view, at)
        data = view[at + 4 : at + 4 + size]
        if at + 4 + size != end:
            raise ValueError("the lengths in a frame contradict each other")
        return kind, topic, number, data


def read_all(
    port: int, topics: list[bytes], ends: dict[bytes, int] | None = None, patience: float = 60.0
) -> dict[bytes, list[tuple[int, bytes]]]:
    """Read all records of ``topics`` from offset 0: (offset, data) in the order in which they came.

    :param ends: the last record of each topic, where the last number that the server reports may have no record
    """
    found: dict[bytes, list[tuple[int, bytes]]] = {topic: [] for topic in topics}
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as peer:
        frames = Frames()
        peer.sendall(b"".join(attach(topic, None) for topic in topics))
        last: dict[bytes, int] = {}
        while len(last) < len(topics):
            for kind, topic, number, _ in frames.feed(_some(peer)):
                if kind == ATTACHED:
                    last[topic] = number
    if ends is not None:
        last = {topic: min(number, ends.get(topic, 0)) for topic, number in last.items()}
    left = {topic for topic in topics if last[topic]}
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as peer:
        frames = Frames()
        peer.sendall(b"".join(attach(topic, 0) for topic in left))
        deadline = time.monotonic() + patience
        while left:
            for kind, topic, number, data in frames.feed(_some(peer)):
                if kind == DATA and topic in left:
                    found[topic].append((number, data))
                    if number >= last[topic]:
                        left.discard(topic)
            if time.monotonic() > deadline:
                raise TimeoutError(f"the topics {left} did not reach their ends {last}")
    return found


def _some(peer: socket.socket) -> bytes:
    chunk = peer.recv(1 << 18)
    if not chunk:
        raise ConnectionError("the server closed the connection")
    return chunk


# The backbone:

DELIVER, PUSH, KEEPALIVE = 0x1, 0x2, 0x10
KEEPALIVE_ACK = 0x20


def push(data: bytes) -> bytes:
    return struct.pack(">BH6x", PUSH, len(data)) + data


def keepalive(port: int, token: bytes) -> bytes:
    return struct.pack(">B4sH6s16s", KEEPALIVE, bytes((127, 0, 0, 1)), port, bytes(5) + b"\x02", token)


def delivered(datagram: bytes) -> tuple[int, bytes] | None:
    """Return sequence and data of a DELIVER; None for another datagram."""
    if len(datagram) < 9 or datagram[0] != DELIVER:
        return None
    (size,) = struct.unpack_from(">H", datagram, 1)
    if size != len(datagram) - 9:
        raise ValueError("a DELIVER has another length than its header says")
    return int.from_bytes(datagram[3:9], "big"), datagram[9:]
