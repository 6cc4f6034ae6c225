"""A simulated subscriber of the backbone, written from the text of the protocol alone.

It sends one KEEPALIVE a second and one REQUEST for each gap, when it finds the gap and again each second; it does not
limit its requests, does not pause, and does not merge gaps.
"""

from __future__ import annotations

import struct
from typing import Any

from history import Reader
from world import World

DELIVER, REQUEST, KEEPALIVE = 0x1, 0x4, 0x10
#: How often it sends a KEEPALIVE, in seconds.
INTERVAL = 1.0
LAST = (1 << 48) - 1


class TextPeer:
    """A subscriber by the text of the protocol, with the attributes of the other clients; it publishes nothing."""

    host = None  #: it is never frozen
    publishes = dead = False
    ready = True
    published = waiting = 0

    def __init__(self, side: Any, number: int) -> None:
        self.name = f"text-{number}"
        self.world: World = side.world
        self.lane, self.server = side.lane, side.choose()
        self.address = (f"10.0.1.{number}", 5000)
        self.reader = Reader(side.history, side.topics[0], self.name, 0)
        self.early: dict[int, bytes] = {}
        self.gaps: list[tuple[int, int]] = []  #: it never gives up
        self.lane.ports[self.address] = self
        self.turn()

    @property
    def position(self) -> int:
        return self.reader.position or 0

    def turn(self) -> None:
        """Send a KEEPALIVE, and request each gap and what may have been published after the last record."""
        if self.dead:
            return
        # ADDR and PORT 0 stand for the sender's own address.
        self.send(struct.pack(">B6x6x", KEEPALIVE) + self.world.random.randbytes(16))
        below = self.position
        for seq in [*sorted(self.early), None]:
            if seq is None or seq > below + 1:
                self.request(below + 1, LAST if seq is None else seq - 1)
            below = seq or below
        self.world.clock.callLater(INTERVAL, self.turn)

    def request(self, first: int, last: int) -> None:
        self.send(struct.pack(">B6x", REQUEST) + first.to_bytes(6, "big") + last.to_bytes(6, "big"))

    def send(self, datagram: bytes) -> None:
        self.lane.carry(datagram, self.address, self.server)

    def arrived(self, datagram: bytes, source: Any) -> None:
        if datagram[0] != DELIVER:
            return
        seq = int.from_bytes(datagram[3:9], "big")
        highest = max(self.early, default=self.position)
        if seq > highest + 1:
            self.request(highest + 1, seq - 1)
        if seq > self.position:
            self.early[seq] = datagram[9:]
        while (following := self.position + 1) in self.early:
            self.reader.take(following, [self.early.pop(following)])

    def publish(self) -> None:
        raise NotImplementedError("TextPeer only subscribes: it cannot publish")

    def close(self) -> None:
        self.dead = True
        if self.lane.ports.get(self.address) is self:
            del self.lane.ports[self.address]
