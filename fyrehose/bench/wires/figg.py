"""Figg (specs: figg.md): send PUBLISHes with rising numbers, and count the ACKs and DATA that arrive.

header: type u16 | version u16 | size u32; then fields, each topic and data behind its u32 length
"""

from __future__ import annotations

import socket
import struct

import numpy as np

from fyrehose.bench.wires.base import Job, Rows, Wire, Wrong, column, leading, payload, read_exactly

_HEADER = struct.Struct(">HHI")
_U16, _U32, _U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_ATTACH, _ATTACHED, _PUBLISH, _ACK, _DATA = 1, 2, 5, 6, 7
_FROM_OFFSET = 0x8000
#: Limits of one block: the number of its messages, and its bytes.
BLOCK, BLOCK_BYTES = 8_192, 64 << 20
#: Digits at the end of each topic's name, if there are several.
DIGITS = 6


def message(kind: int, topic: bytes, number: int, data: bytes) -> bytes:
    """Return a PUBLISH or DATA frame."""
    size = 4 + len(topic) + 8 + 4 + len(data)
    return _HEADER.pack(kind, 1, size) + _U32.pack(len(topic)) + topic + _U64.pack(number) + _U32.pack(len(data)) + data


def number_at(topic: bytes) -> int:
    """Return the offset of the number within a message."""
    return _HEADER.size + 4 + len(topic)


class FiggPublisherWire(Wire):
    """A connection that sends PUBLISHes, and counts ACKs; ``extra``: streams, the number of topics that take turns."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._streams = job.extra.get("streams", 0)
        topic = (f"grown-{0:0{DIGITS}}" if self._streams else job.stream).encode()
        frame = message(_PUBLISH, topic, 0, payload(job.size))
        most = max(1, min(BLOCK, job.messages, BLOCK_BYTES // len(frame)))
        self._rows = Rows(frame, number_at(topic), most)
        self._digits = number_at(topic) - DIGITS

    def block(self, count: int) -> memoryview:
        if self._streams:
            self._rows.turn(self._digits, DIGITS, self._streams, count)
        return self._rows.take(count)

    def scan(self, data: bytearray, size: int) -> int:
        whole = size - size % 16
        if whole:
            kind, _, _, number = struct.unpack_from(">HHIQ", data, whole - 16)
            if kind != _ACK or number < self.done:
                raise Wrong(f"{kind} {number} instead of an ACK above {self.done}")
            self.done = number
        return whole


class FiggSubscriberWire(Wire):
    """A connection that attaches at the start of the topic, and counts DATA.

    ``extra``: rising, if the server's offsets are positions in bytes, as those of the reference program are.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._topic = job.stream.encode()
        frame = message(_DATA, self._topic, 0, payload(job.size))
        self._row, self._at = len(frame), number_at(self._topic)
        self._header = int.from_bytes(frame[:8], "big")

    def begin(self) -> bytes:
        body = _U16.pack(_FROM_OFFSET) + _U32.pack(len(self._topic)) + self._topic + _U64.pack(0)
        return _HEADER.pack(_ATTACH, 1, len(body)) + body

    def begun(self, sock: socket.socket) -> None:
        kind, _, size = _HEADER.unpack(read_exactly(sock, 8))
        if kind != _ATTACHED:
            raise Wrong(f"{kind} instead of ATTACHED")
        read_exactly(sock, size)

    def scan(self, data: bytearray, size: int) -> int:
        """Count whole DATA frames, check that their offsets are in order, and return how many bytes they have."""
        used = self._attached(data, size)
        rows = (size - used) // self._row
        if rows:
            headers = column(data, used, self._row, rows)
            offsets = column(data, used + self._at, self._row, rows)
            if self.job.extra.get("rising"):
                in_order = np.append(True, offsets[1:] > offsets[:-1])
            else:
                in_order = offsets == np.arange(self.done + 1, self.done + rows + 1, dtype=np.uint64)
            if leading((headers == self._header) & in_order) != rows:
                raise Wrong(f"the server did not send DATA {self.done + 1} and those that follow it, in order")
            self.done += rows
        return used + rows * self._row

    def _attached(self, data: bytearray, size: int) -> int:
        """Skip ATTACHED, which arrives first if :meth:`begun` did not read it; return how many bytes that is."""
        if not self.done and size >= 8 and _HEADER.unpack_from(data)[0] == _ATTACHED:
            length = 8 + int(_HEADER.unpack_from(data)[2])
            return length if size >= length else 0
        return 0
