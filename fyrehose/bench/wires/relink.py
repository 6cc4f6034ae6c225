"""Relink (specs: relink.md): messages of one part on one channel without id; so all other packets have 8 bytes."""

from __future__ import annotations

import socket
import struct

from fyrehose.bench.wires.base import Job, Rows, Wire, Wrong, column, leading, payload, read_exactly

_CHANNEL, _ACKNOWLEDGEMENT, _SEQUENCE_ACKNOWLEDGEMENT, _MESSAGE = 1, 1 << 2, 3 << 2, 4 << 2
_RECEIVED, _CONSUMED = 0, 1 << 5
_PING, _PONG = 1 << 5, 2 << 5
_NUMBERED = struct.Struct("<BxxxI")
_REPLY = struct.Struct("<QQ")
_MASK = (1 << 32) - 1
#: The largest number of messages in one block.
BLOCK = 8_192
#: A subscriber acknowledges messages as consumed after this many.
SAY_EVERY = 256


def message(data: bytes) -> bytes:
    """Return one message of one part, on channel 0 of id size 0."""
    if len(data) < 1 << 16:
        head = struct.pack("<BBHxxxx", _CHANNEL | _MESSAGE, 1, len(data))
    else:
        head = struct.pack("<BBxxxxxxQ", _CHANNEL | _MESSAGE | 2 << 5, 1, len(data))
    return head + data + bytes(-len(data) & 7)


def hello(endpoint: str) -> bytes:
    """Return the connector's second transmission, for a new link."""
    name = endpoint.encode()
    head = bytes([len(name)]) + name + bytes(3)
    return head + bytes(-len(head) & 7) + bytes(16)


class _Link(Wire):
    verb = ""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._replied = False

    def hello(self, sock: socket.socket) -> None:
        sock.sendall(bytes(8))
        read_exactly(sock, 8)

    def begin(self) -> bytes:
        return hello(f"{self.verb}:{self.job.stream}")

    def begun(self, sock: socket.socket) -> None:
        self._reply(read_exactly(sock, _REPLY.size))

    def _reply(self, data: bytes | bytearray) -> None:
        if not _REPLY.unpack_from(data)[1]:
            raise Wrong("the listener gave no link")
        self._replied = True

    def _other(self, data: bytearray, at: int) -> None:
        """Handle a packet of 8 bytes: answer a ping, count an acknowledgement, refuse anything else but a NOP."""
        first = data[at]
        if first == _PING:
            self.answers += bytes([_PONG, 0, 0, 0, 0, 0, 0, 0])
        elif first == _CHANNEL | _SEQUENCE_ACKNOWLEDGEMENT | _CONSUMED:
            self.done += (_NUMBERED.unpack_from(data, at)[1] + 1 - self.done) & _MASK
        elif first == _CHANNEL | _ACKNOWLEDGEMENT | _CONSUMED:
            self.done += 1
        elif first not in (0, _PONG) and first & ~_RECEIVED not in (
            _CHANNEL | _ACKNOWLEDGEMENT,
            _CHANNEL | _SEQUENCE_ACKNOWLEDGEMENT,
        ):
            raise Wrong(f"unexpected packet, whose first byte is {first}")


class RelinkPublisherWire(_Link):
    """A link that sends messages without transactions, and counts those that are acknowledged as consumed."""

    verb = "publish"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._rows = Rows(message(payload(job.size)), -1, max(1, min(BLOCK, job.messages)))

    def block(self, count: int) -> memoryview:
        return self._rows.take(count)

    def scan(self, data: bytearray, size: int) -> int:
        whole = size - size % 8
        for at in range(0, whole, 8):
            self._other(data, at)
        return whole


class RelinkSubscriberWire(_Link):
    """A link that receives messages from the start of the stream, counts them, and acknowledges them as consumed."""

    verb = "subscribe"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        frame = message(payload(job.size))
        self._row, self._header = len(frame), int.from_bytes(frame[:8], "big")
        self._said = 0

    def begin(self) -> bytes:
        return hello(f"{self.verb}:{self.job.stream}@0")

    def scan(self, data: bytearray, size: int) -> int:
        """Count and acknowledge messages, answer the other frames, and return how many bytes were handled."""
        used = 0
        if not self._replied:
            if size < _REPLY.size:
                return 0
            self._reply(data)
            used = _REPLY.size
        while size - used >= 8:
            rows = leading(column(data, used, self._row, (size - used) // self._row) == self._header)
            self.done += rows
            used += rows * self._row
            if size - used < 8 or data[used] == _CHANNEL | _MESSAGE:
                break
            self._other(data, used)
            used += 8
        if self.done - self._said >= SAY_EVERY or self.done == self.job.messages:
            self._said = self.done
            first = _CHANNEL | _SEQUENCE_ACKNOWLEDGEMENT | _CONSUMED
            self.answers += _NUMBERED.pack(first, (self.done - 1) & _MASK)
        return used
