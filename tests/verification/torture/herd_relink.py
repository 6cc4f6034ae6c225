"""Relink clients for herd.py, written from the protocol's text: they resume their links.

publishers   ``publish:NAME``, one channel without transactions
subscribers  a few clients, ``subscribe:NAME@0``; over one link each record must come once
"""

from __future__ import annotations

import random
import struct
import time
from typing import Any

from herd_clients import Outcome, Spec, StreamClient

#: One in READERS clients subscribes, among the first AMONG clients.
READERS, AMONG = 20, 200


class Relink(StreamClient):
    """A connector whose channel ids have no bytes; one in twenty subscribes to what the others publish.

    :ivar received: how many messages the peer has received or, for a subscriber, how many this client has
    :ivar first: the number of the first message on this link
    """

    PING, PONG, RESUME = (bytes((kind << 5, *bytes(7))) for kind in (1, 2, 3))
    CONSUMED_UP_TO = 0b001_011_01
    link = (0, 0)
    state = "version"
    received = 0
    first = 1
    links = 0

    def __init__(self, spec: Spec, number: int, crowd: Any) -> None:
        super().__init__(spec, number, crowd)
        self.subscribes = number % READERS == 1 and number < AMONG
        self.came, self.last = time.monotonic(), 0.0
        self.heard_of = bytearray()

    def begin(self) -> None:
        self.heard_of, self.state = bytearray(), "version"
        self.crowd.send(self, bytes(8))

    def ready(self) -> bool:
        return self.state == "open" and not self.subscribes

    def message(self, payloads: list[bytes]) -> bytes:
        (data,) = payloads
        if len(data) < 1 << 16:
            head = struct.pack("<BBH4x", 0b0_100_01, 1, len(data))
        else:
            head = struct.pack("<BB6xQ", 0b10_100_01 | 1 << 6, 1, len(data))
        return head + data + bytes(-len(data) % 8)

    def heard(self, chunk: bytes, now: float) -> None:
        self.heard_of += chunk
        while self.sock is not None and (size := self._whole()):
            packet = bytes(self.heard_of[:size])
            del self.heard_of[:size]
            self._packet(packet, now)

    def _whole(self) -> int:
        """Return the size of the first packet in the buffer, or 0 if it is not complete."""
        held = self.heard_of
        size = 16 if self.state == "reply" else 8
        if len(held) >= 8 and self.state in ("resync", "open") and held[0] & 0b0_111_01 == 0b0_100_01:
            count, large = held[1], held[0] & 1 << 6
            head = 8 + 8 * count if large else 2 + 2 * count + (-2 - 2 * count) % 8
            if len(held) < head:
                return 0
            sizes = struct.unpack_from(f"<{count}Q" if large else f"<{count}H", held, 8 if large else 2)
            size = head + sum(each + -each % 8 for each in sizes)
        return size if len(held) >= size else 0

    def _packet(self, packet: bytes, now: float) -> None:
        if self.state == "version":
            name = f"{'subscribe' if self.subscribes else 'publish'}:{self.spec.label}{'@0' * self.subscribes}".encode()
            hello = bytes((len(name),)) + name + bytes(3)
            self.state = "reply"
            self.crowd.send(self, hello + bytes(-len(hello) % 8) + struct.pack("<QQ", *self.link))
        elif self.state == "reply":
            self._linked(struct.unpack("<QQ", packet))
        elif packet == self.PING:
            self.crowd.send(self, self.PONG)
        elif packet == self.RESUME and self.state == "resync":
            self._open(now)
        elif packet[0] & 0b0_111_01 == 0b0_100_01:
            self._message(packet, now)
        elif packet[0] & 0b1_11 == 0b1_01 and packet[0] >> 5 in (0, 1):
            self._acknowledgement(packet, now)
        elif packet != self.PONG:
            self.wrong.append(f"the server sent {packet[:16].hex()}")

    def _linked(self, link: Any) -> None:
        if link == self.link:
            self.state = "resync"
            report = b"" if not self.subscribes or not self.received else self._consumed()
            self.crowd.send(self, report + self.RESUME)
            return
        if self.link != (0, 0) and (self.acked or self.received):
            self.wrong.append("its link was lost")
        self.links += 1
        self.link, self.received, self.first = link, 0, self.acked + 1
        self.read.clear()
        self._open(self.made)

    def _open(self, now: float) -> None:
        self.state = "open"
        if self.received + self.first <= self.sent:
            self.resend()
        self.crowd.wake_at(self, now)

    def _consumed(self) -> bytes:
        return struct.pack("<B3xI", self.CONSUMED_UP_TO, self.received - 1)

    def _acknowledgement(self, packet: bytes, now: float) -> None:
        """Handle ``received`` or ``consumed``, which acknowledge everything up to a number, or the next message."""
        numbered, consumed = packet[0] & 0b10_00, packet[0] >> 5 == 1
        done = self.acked - self.first + 1
        upto = struct.unpack_from("<I", packet, 4)[0] + 1 if numbered else (done if consumed else self.received) + 1
        self.received = max(self.received, upto)
        if upto > self.sent - self.first + 1:
            self.wrong.append(
                f"the server acknowledged {upto} messages, but only {self.sent - self.first + 1} were sent"
            )
        elif consumed and upto > done and self.began is not None:
            self.acknowledged(now)

    def _message(self, packet: bytes, now: float) -> None:
        """Handle a record for a subscriber, which has one part."""
        large = packet[0] & 1 << 6
        size, at = (struct.unpack_from("<Q", packet, 8)[0], 16) if large else (packet[2] | packet[3] << 8, 8)
        self.received += 1
        self.delivered(self.spec.label, self.received, packet[at : at + size])
        self.worst = max(self.worst, now - self.last if self.last else 0.0)
        self.last = now
        self.crowd.send(self, self._consumed())
        self.failures = 0
        self.served(now)

    def delay(self, refused: bool) -> float:
        return min(30.0, 0.1 * 2.0 ** (self.failures - 1)) * random.uniform(0.5, 1.0)

    def outcome(self, now: float) -> Outcome:
        found = super().outcome(now)
        if self.subscribes:
            found.worst = max(self.worst, now - (self.last or self.came))
        return found
