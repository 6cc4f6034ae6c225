"""The bytes of each protocol, written with struct from its text alone; nothing is shared with the server.

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
import uuid
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

HEADER = struct.Struct(">HHI")
ATTACH, ATTACHED, PUBLISH, ACK, DATA, PING, PONG = 1, 2, 5, 6, 7, 8, 9
FROM_OFFSET = 0x8000
U16, U32, U64, U64_LITTLE = (struct.Struct(form) for form in (">H", ">I", ">Q", "<Q"))

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
#: Addresses in a KEEPALIVE; ANY stands for the source of the datagram.
LOOPBACK, ANY = bytes((127, 0, 0, 1)), bytes(4)


def push(data: bytes) -> bytes:
    return struct.pack(">BH6x", PUSH, len(data)) + data


def keepalive(port: int, token: bytes, address: bytes = LOOPBACK, flags: int = 2) -> bytes:
    return struct.pack(">B4sH5xB16s", KEEPALIVE, address, port, flags, token)


def delivered(datagram: bytes) -> tuple[int, bytes] | None:
    """Return sequence and data of a DELIVER; None for another datagram."""
    if len(datagram) < 9 or datagram[0] != DELIVER:
        return None
    (size,) = struct.unpack_from(">H", datagram, 1)
    if size != len(datagram) - 9:
        raise ValueError("a DELIVER has another length than its header says")
    return int.from_bytes(datagram[3:9], "big"), datagram[9:]


# Lumberjack:


def json_event(sequence: int, data: bytes, version: int = 2) -> bytes:
    return b"%dJ" % version + struct.pack(">II", sequence, len(data)) + data


def compressed(frames: bytes, level: int = 3, version: int = 2) -> bytes:
    packed = zlib.compress(frames, level)
    return b"%dC" % version + U32.pack(len(packed)) + packed


def window(events: Iterable[bytes], level: int = 0, version: int = 2) -> bytes:
    """Return a window of *events*, which are numbered from 1; it is compressed unless *level* is 0."""
    frames = [json_event(sequence, data, version) for sequence, data in enumerate(events, 1)]
    inner = b"".join(frames)
    return b"%dW" % version + U32.pack(len(frames)) + (compressed(inner, level, version) if level else inner)


class Acknowledgements:
    """Collects received bytes, and yields complete acknowledgements: (version and type, sequence)."""

    def __init__(self) -> None:
        self.buffer = b""

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, int]]:
        self.buffer += chunk
        while len(self.buffer) >= 6:
            found, self.buffer = struct.unpack_from(">2sI", self.buffer), self.buffer[6:]
            yield found  # type: ignore[misc]


# Relink:

RELINK_PING, RELINK_PONG, RELINK_RESUME = (bytes((kind << 5, *bytes(7))) for kind in (1, 2, 3))


def relink_hello(name: bytes, link: tuple[int, int] = (0, 0)) -> bytes:
    """Return a HELLO of a connector without transactions, whose channel ids have no bytes."""
    hello = bytes((len(name),)) + name + bytes(3)
    return hello + bytes(-len(hello) % 8) + struct.pack("<QQ", *link)


def relink_message(data: bytes) -> bytes:
    """Return a message of one part, whose size takes two or eight bytes."""
    if len(data) < 1 << 16:
        head = struct.pack("<BBH4x", 0b0_100_01, 1, len(data))
    else:
        head = struct.pack("<BB6xQ", 0b10_100_01 | 1 << 6, 1, len(data))
    return head + data + bytes(-len(data) % 8)


def relink_consumed(number: int) -> bytes:
    """Return a packet that says that all messages up to *number* are consumed."""
    return struct.pack("<B3xI", 0b001_011_01, number)


class RelinkLink:
    """A connector's link, which it resumes on each connection; it has one channel, whose ids have no bytes.

    :ivar state: version, reply, resync or open
    :ivar begun: how many links were begun
    :ivar report: the acknowledgement that the connector sends when it resumes the link
    """

    state = "version"
    begun = 0
    report = b""

    def __init__(self, name: bytes) -> None:
        self.name, self.link = name, (0, 0)
        self.buffer = bytearray()

    def connect(self) -> bytes:
        """Return what is sent first on a new connection."""
        self.buffer, self.state = bytearray(), "version"
        return bytes(8)

    def feed(self, chunk: bytes) -> Iterator[tuple[str, Any]]:
        """Yield what happens.

        :return: ``say`` (bytes to send), ``begun`` (a new link), ``resumed``, ``received`` and ``consumed`` (a number,
            or None for the next message), ``message`` (its data), or ``wrong`` (a packet)
        """
        self.buffer += chunk
        while size := self._size():
            packet = bytes(self.buffer[:size])
            del self.buffer[:size]
            found = self._packet(packet)
            if found is not None:
                yield found

    def _size(self) -> int:
        """Return the size of the first packet in the buffer, or 0 if it is not complete."""
        held = self.buffer
        size = 16 if self.state == "reply" else 8
        if len(held) >= 8 and self.state in ("resync", "open") and held[0] & 0b0_111_01 == 0b0_100_01:
            count, large = held[1], held[0] & 1 << 6
            head = 8 + 8 * count if large else 2 + 2 * count + (-2 - 2 * count) % 8
            if len(held) < head:
                return 0
            sizes = struct.unpack_from(f"<{count}Q" if large else f"<{count}H", held, 8 if large else 2)
            size = head + sum(each + -each % 8 for each in sizes)
        return size if len(held) >= size else 0

    def _packet(self, packet: bytes) -> tuple[str, Any] | None:
        if self.state == "version":
            self.state = "reply"
            return "say", relink_hello(self.name, self.link)
        if self.state == "reply":
            link = struct.unpack("<QQ", packet)
            if link == self.link:
                self.state = "resync"
                return "say", self.report + RELINK_RESUME
            self.link, self.state, self.begun = link, "open", self.begun + 1
            return "begun", None
        if packet == RELINK_PING:
            return "say", RELINK_PONG
        if packet == RELINK_RESUME and self.state == "resync":
            self.state = "open"
            return "resumed", None
        if packet[0] & 0b0_111_01 == 0b0_100_01:  # of one part
            large = packet[0] & 1 << 6
            size, at = (U64_LITTLE.unpack_from(packet, 8)[0], 16) if large else (packet[2] | packet[3] << 8, 8)
            return "message", packet[at : at + size]
        if packet[0] & 0b1_01_11 == 0b0_01_01 and packet[0] >> 5 in (0, 1):
            number = struct.unpack_from("<I", packet, 4)[0] if packet[0] & 0b10_00 else None
            return ("consumed" if packet[0] >> 5 else "received"), number
        return None if packet == RELINK_PONG else ("wrong", packet)


# The event bus, whose messages are frames of ZeroMQ:

BUS_TIME = b"2024-05-01T10:20:30.123Z"
ZMTP_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\0" + b"NULL".ljust(20, b"\0") + bytes(32)


def zmtp_ready(kind: bytes) -> bytes:
    """Return the READY of a socket of the *kind* (ZMTP 3.0, NULL)."""
    properties = b"".join(
        bytes((len(name),)) + name + U32.pack(len(value)) + value
        for name, value in ((b"Socket-Type", kind), (b"Identity", b""))
    )
    return b"\x04" + bytes((6 + len(properties),)) + b"\x05READY" + properties


def zmtp_message(frames: list[bytes]) -> bytes:
    made = b""
    for n, frame in enumerate(frames, 1):
        flags, long = n < len(frames), len(frame) > 255
        made += bytes((flags | long << 1,)) + struct.pack(">Q" if long else ">B", len(frame)) + frame
    return made


def bus_event(topic: bytes, publisher: int, number: int, data: bytes) -> list[bytes]:
    """Return the frames of an event, whose id names its publisher and number."""
    made = str(uuid.UUID(int=publisher << 64 | number, version=4)).encode()
    return [topic, b"null", b"torture", BUS_TIME, made, data]
