"""Simulate a fleet of Beats, which send whole windows again, in another order and with other bytes each time.

A Beat has up to two windows under way on each of two connections, and now and then pauses within one.  It takes an
acknowledgement of a part of a window for a sign of life only.  When a connection ends, each of its windows comes again
on any connection, behind or before other windows, with its events in another order, and with the members of each event
in another order.

Now and then the whole fleet has sent its windows when the server is killed, and is killed again while the fleet comes
back.  Or the disk takes seconds while they all wait, so that the server sends signs of life.  A tap checks each
connection, as it does for other writers (lumberjack.py).
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from functools import partial
from struct import pack, unpack_from
from typing import Any

import attrs
from history import History, Sent
from links import Endpoint
from lumberjack import PORT, STREAM, Lumberjack, Tap
from server import Server
from twisted.internet.protocol import Factory, Protocol
from world import World

#: How many windows one connection has under way, and how many connections a Beat has.
PIPELINING, CONNECTIONS = 2, 2
#: How long a Beat pauses within a window at most, in seconds: the server then acknowledges a part of it.
PAUSE = 12.0
#: How long the disk takes at most while the whole fleet waits, in seconds: the server sends A 0 every 4 s.
STALL = 9.0
_NAME = re.compile(rb'"name":"([^"]*)"')


def name_of(payload: bytes) -> bytes:
    """Return what identifies an event, however its members are ordered."""
    found = _NAME.search(payload)
    return found[1] if found else payload


@attrs.define(eq=False)
class Event:
    """An event, and how often it was sent."""

    name: str
    members: list[bytes]
    sent: int = 0

    def encode(self, world: World) -> bytes:
        """Return the event as JSON, with its members in another order each time."""
        self.sent += 1
        return b"{" + b",".join(world.random.sample(self.members, len(self.members))) + b"}"


class Shipping(Protocol):
    """One connection of a Beat."""

    def __init__(self, beat: Beat) -> None:
        self.beat = beat
        self.windows: deque[list[Event]] = deque()
        self.heard = bytearray()
        self.pausing = self.lost = False

    def connectionMade(self) -> None:
        self.fill()

    def fill(self) -> None:
        """Send windows, as far as :data:`PIPELINING` allows."""
        world = self.beat.world
        while self.beat.waiting and len(self.windows) < PIPELINING and not self.pausing:
            window = self.beat.waiting.popleft()
            self.windows.append(window)
            frames, cut = bytearray(), 0
            for sequence, event in enumerate(window, 1):
                payload = event.encode(world)
                cut = cut or (world.random.random() < 0.02 and len(frames))
                frames += b"2J" + pack(">II", sequence, len(payload)) + payload
            if self.beat.compressed:
                packed = zlib.compress(frames, 3)
                frames, cut = bytearray(b"2C" + pack(">I", len(packed)) + packed), 0
            self.transport.write(b"2W" + pack(">I", len(window)) + bytes(frames[: cut or None]))
            if cut:
                self.pausing = True
                world.clock.callLater(world.random.random() * PAUSE, self._resume, bytes(frames[cut:]))

    def _resume(self, rest: bytes) -> None:
        if not self.lost:
            self.pausing = False
            self.transport.write(rest)
            self.fill()

    def dataReceived(self, data: bytes) -> None:
        self.heard += data
        while len(self.heard) >= 6:
            (number,) = unpack_from(">I", self.heard, 2)
            del self.heard[:6]
            if number == len(self.windows[0]):
                self.beat.acknowledged(self.windows.popleft())
            else:
                self.beat.world.note("beat: sign of life" if number == 0 else "beat: part acknowledged")
        self.fill()

    def connectionLost(self, reason: Any = None) -> None:
        self.lost = True
        self.beat.lost(self)


@attrs.define(eq=False)
class Beat:
    """A Beat with two connections; *dropping*: the server drops what is sent again."""

    world: World
    history: History
    name: str
    servers: tuple[str, ...]
    dropping: bool
    compressed: bool = attrs.field(init=False)
    published: int = 0
    closed: bool = False
    unacked: dict[str, None] = attrs.field(factory=dict)
    waiting: deque[list[Event]] = attrs.field(factory=deque)
    _open: dict[Shipping, None] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.compressed = self.world.random.random() < 0.7
        for _ in range(CONNECTIONS):
            self._connect()

    def _connect(self) -> None:
        if not self.closed:
            endpoint = Endpoint(self.world, self.name, PORT, partial(Tap, self.history, 2), servers=self.servers)
            connecting = endpoint.connect(Factory.forProtocol(partial(Shipping, self)))
            connecting.addCallbacks(self._connected, lambda failure: self._retry())

    def _connected(self, shipping: Shipping) -> None:
        if not shipping.lost:
            self._open[shipping] = None

    def _retry(self) -> None:
        self.world.clock.callLater(0.1 + self.world.random.random(), self._connect)

    def lost(self, shipping: Shipping) -> None:
        """Send the windows of *shipping* again on another connection, each with its events in another order."""
        dice = self.world.random
        self._open.pop(shipping, None)
        for window in dice.sample(list(shipping.windows), len(shipping.windows)):
            self.world.note(f"beat: window of {len(window)} comes again")
            again = dice.sample(window, len(window))
            (self.waiting.append if dice.random() < 0.5 else self.waiting.appendleft)(again)
        self._retry()
        self.fill()

    def acknowledged(self, window: list[Event]) -> None:
        for event in window:
            self.history.acknowledge(STREAM, b'"name":"%b"' % event.name.encode())
            self.unacked.pop(event.name, None)

    def publish(self) -> None:
        """Make a window of new events, and send it as soon as a connection has room."""
        dice = self.world.random
        window = []
        for _ in range(dice.choice((*self.world.bursts, 8, 30))):
            self.published += 1
            name = f"{self.name}:{self.published}"
            file = b'"log":{"offset":%d,"file":{"path":"/x"}}' % self.published
            agent = b'"agent":{"ephemeral_id":"%b"}' % self.name.encode()
            noise = b'"noise":"%b"' % (b"." * self.world.size())
            event = Event(name, [b'"@timestamp":"t"', b'"name":"%b"' % name.encode(), file, agent, noise])
            self.history.send(STREAM, name.encode(), Sent(self.name, None, partial(self._copies, event)))
            self.unacked[name] = None
            window.append(event)
        self.waiting.append(window)
        self.fill()

    def fill(self) -> None:
        """Send what waits on the connections that have room, in any order."""
        for shipping in self.world.random.sample(list(self._open), len(self._open)):
            shipping.fill()

    def owed(self) -> str:
        return f"{self.name} waits for {len(self.unacked)} acknowledgements" if self.unacked else ""

    def close(self) -> None:
        self.closed = True

    def _copies(self, event: Event) -> int:
        """Return how often *event* may be stored by now."""
        return 1 if self.dropping and self.history.keeps(STREAM) else event.sent


class Beats(Lumberjack):
    """A fleet of Beats.

    :param herd: how many Beats there are; 0 means a few to a dozen
    """

    def __init__(self, world: World, server: Server, history: History, herd: int = 0) -> None:
        self.server = server
        history.names[STREAM] = name_of
        super().__init__(world, server, history, herd)

    def make_writers(self, history: History, names: tuple[str, ...], dropping: bool, herd: int) -> None:
        count = herd or self.world.random.choice((2, 5, 12))
        self.clients = [Beat(self.world, history, f"beat-{n}", names, dropping) for n in range(count)]

    def step(self) -> None:
        dice = self.world.random
        happens = dice.random()
        if happens >= 0.1:
            super().step()
            return
        for _ in range(PIPELINING):
            self.everybody()
        if happens < 0.06:
            self.world.note("beats: all send, and the server is killed")
            self._kill(dice.choice((1, 2, 2)))
        else:
            self.world.note("beats: all send, and the disk stalls")
            self.server.stall(STALL * dice.random())
            self.world.clock.pass_time(STALL)

    def _kill(self, times: int) -> None:
        """Crash the server soon, before or after it has written acknowledgements, and again while the fleet is back."""
        dice = self.world.random

        def kill() -> None:
            self.server.crash()
            self.world.note("beats: killed")
            if times > 1:
                self._kill(times - 1)

        self.world.clock.callLater(dice.choice((0.01, 0.05, 0.3, 1.5)) * dice.random(), kill)
