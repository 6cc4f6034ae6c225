"""The event bus (specs: event-bus.md) in ZMTP 3.0, NULL security: what a DEALER and a SUB socket put on the wire.

greeting: FF 00 00 00 00 00 00 00 01 7F | 3 0 | "NULL" padded to 20 | 0 | 31 x 0
frame:    flags u8 (1 more, 2 long, 4 command) | size u8 or u64 | body
"""

from __future__ import annotations

import os
import socket
import struct
import time
import uuid

import numpy as np

from fyrehose.bench.wires.base import Job, Wire, Wrong, column, leading, payload, read_exactly

GREETING = b"\xff" + struct.pack(">Q", 1) + b"\x7f" + bytes([3, 0]) + b"NULL".ljust(20, b"\0") + bytes(32)
_MORE, _LONG, _COMMAND = 1, 2, 4
#: The largest number of events in one block.
BLOCK = 1_024
#: Seconds that a subscription needs to take effect.
SETTLE = 0.3
TOPIC, PRODUCER, TIMESTAMP = b"/bench/", b"load-maker", b"2024-05-01T10:20:30.123Z"


def frame(body: bytes, flags: int = 0) -> bytes:
    """Return *body* as one ZMTP frame."""
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | _LONG]) + struct.pack(">Q", len(body)) + body


def multipart(*bodies: bytes) -> bytes:
    """Return *bodies* as the frames of one ZMTP message."""
    return b"".join(frame(body, _MORE) for body in bodies[:-1]) + frame(bodies[-1])


def ready(kind: bytes) -> bytes:
    """Return the READY command of a socket of ``kind``."""
    return frame(b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind, _COMMAND)


def binary(data: bytes) -> bytes:
    """Return ``data`` as a bin of MessagePack, cut so that its length does not change."""
    if len(data) < 258:
        return b"\xc4" + bytes([max(0, len(data) - 2)]) + data[2:]
    return b"\xc5" + struct.pack(">H", len(data) - 3) + data[3:]


def event(sequence: bytes, size: int) -> bytes:
    """Return a PUB or a BROADCAST of ``size`` bytes of data, its UUID left out."""
    return multipart(TOPIC, sequence, PRODUCER, TIMESTAMP, bytes(36), binary(payload(size)))


#: Where the UUID is in a PUB and in a BROADCAST, and the sequence in the latter.
_BEFORE = len(frame(TOPIC)) + len(frame(PRODUCER)) + len(frame(TIMESTAMP)) + 2
_SEQUENCE_AT = len(frame(TOPIC)) + 2


class _Socket(Wire):
    kind = b""

    def hello(self, sock: socket.socket) -> None:
        sock.sendall(GREETING)
        read_exactly(sock, len(GREETING))
        sock.sendall(ready(self.kind))
        flags, size = read_exactly(sock, 2)
        if flags != _COMMAND or not read_exactly(sock, size).startswith(b"\x05READY"):
            raise Wrong("the server did not send READY")

    def _command(self, data: bytearray, at: int, size: int) -> int:
        """Handle a command between messages; return its end, or its begin if it is incomplete."""
        if data[at] != _COMMAND:
            raise Wrong(f"a frame of flags {data[at]} where a message or a command should begin")
        if size - at < 2 or size - at < 2 + data[at + 1]:
            return at
        body = bytes(data[at + 2 : at + 2 + data[at + 1]])
        if body.startswith(b"\x04PING"):
            self.answers += frame(b"\x04PONG" + body[7:], _COMMAND)
        return at + 2 + len(body)


class ZmtpPublisherWire(_Socket):
    """A DEALER at the collector, which answers nothing: the broadcast of a message confirms its publish."""

    kind = b"DEALER"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        whole = event(b"null", job.size)
        at = _BEFORE + len(frame(b"null"))
        most = max(1, min(BLOCK, job.messages))
        made = [whole[:at] + str(uuid.UUID(bytes=os.urandom(16))).encode() + whole[at + 36 :] for _ in range(most)]
        self._row, self._data = len(whole), memoryview(b"".join(made))

    def block(self, count: int) -> memoryview:
        return self._data[: count * self._row]

    def scan(self, data: bytearray, size: int) -> int:
        used = 0
        while used < size:
            end = self._command(data, used, size)
            if end == used:
                break
            used = end
        return used


class ZmtpSubscriberWire(_Socket):
    """A SUB socket at the publisher port, which counts broadcasts."""

    kind = b"SUB"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        whole = self._example()
        self._row, self._header = len(whole), int.from_bytes(whole[:8], "big")
        self._last = 0

    def _example(self) -> bytes:
        return event(bytes(8), self.job.size)

    #: offset of the sequence
    _at = _SEQUENCE_AT

    def begin(self) -> bytes:
        return frame(b"\x01" + TOPIC)

    def begun(self, sock: socket.socket) -> None:
        # The server does not answer a subscription, so wait.
        time.sleep(SETTLE)

    def scan(self, data: bytearray, size: int) -> int:
        """Count the messages, handle the commands between them, and return how many bytes were handled."""
        used = 0
        while True:
            rows = (size - used) // self._row
            if rows:
                rows = leading(column(data, used, self._row, rows) == self._header)
                self._count(data, used, rows)
                used += rows * self._row
            if size - used < 8 or int.from_bytes(data[used : used + 8], "big") == self._header:
                return used
            end = self._command(data, used, size)
            if end == used:
                return used
            used = end

    def _count(self, data: bytearray, used: int, rows: int) -> None:
        if not rows:
            return
        sequences = column(data, used + self._at, self._row, rows)
        if int(sequences[0]) <= self._last or not (np.diff(sequences.astype(np.int64)) > 0).all():
            raise Wrong(f"expected rising sequences above {self._last}")
        self._last = int(sequences[-1])
        self.done += rows


class ZmtpSnapshotWire(ZmtpSubscriberWire):
    """A DEALER at the snapshot port that requests earlier messages."""

    kind = b"DEALER"
    _at = len(frame(b"SYNC")) + _SEQUENCE_AT

    def _example(self) -> bytes:
        return frame(b"SYNC", _MORE) + event(bytes(8), self.job.size)

    def begin(self) -> bytes:
        return multipart(b"SYNCSTART", TOPIC, bytes(8))

    def _command(self, data: bytearray, at: int, size: int) -> int:
        if data[at] != _COMMAND and bytes(data[at + 2 : at + 9]) == b"SYNCEND":
            return size
        return super()._command(data, at, size)
