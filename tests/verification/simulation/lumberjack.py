"""Simulate Lumberjack writers, and check every byte between them and the server.

A tap checks each connection by itself: an acknowledgement of n says that the first n events of the oldest window are
durable.  In half of the simulations events have an identity, and the server drops events that are sent again, so that
none is stored twice.
"""

from __future__ import annotations

import zlib
from functools import partial

import attrs
from history import History, Sent
from links import Endpoint
from server import Server
from sides import Side
from world import Violation, World

from fyrehose.errors import Closed
from fyrehose.protocols.lumberjack.client import LUMBERJACK_OPTIONS, LumberjackClient
from fyrehose.protocols.lumberjack.plugin import plugin
from fyrehose.protocols.lumberjack.server import LumberjackSettings

PORT = 5044
STREAM = "lumberjack"
#: An event as Filebeat sends it: the agent process that has read the line, and the offset of the line in its file.
IDENTIFIED = b'{"@timestamp":"t","agent":{"ephemeral_id":"%b"},"log":{"offset":%d,"file":{"path":"/x"}},"n":"%b"}'
#: Errors with which a publish may end: the client was closed, or a violation was already recorded.
EXPECTED = Closed, Violation


@attrs.define(eq=False)
class Window:
    size: int
    acked: int = 0
    events: list[bytes] = attrs.field(factory=list)


@attrs.define(eq=False)
class Tap:
    """Checks one connection, by the bytes that the server reads and writes."""

    history: History
    version: int
    windows: list[Window] = attrs.field(factory=list)
    _heard: bytearray = attrs.field(factory=bytearray)
    _said: bytearray = attrs.field(factory=bytearray)

    def read(self, data: bytes) -> None:
        self._heard += data
        del self._heard[: self._frames(bytes(self._heard))]

    def _frames(self, data: bytes) -> int:
        """Check the complete frames at the start of ``data``; return the offset of their end."""
        at = 0
        while len(data) - at >= 6:
            kind, number = data[at + 1 : at + 2], int.from_bytes(data[at + 2 : at + 6], "big")
            if kind == b"W":
                self.windows.append(Window(number))
                at += 6
                continue
            head = 6 if kind == b"C" else 10
            size = number if kind == b"C" else int.from_bytes(data[at + 6 : at + 10], "big")
            if len(data) - at < head + size:
                break
            content = data[at + head : at + head + size]
            if kind == b"C":
                self._frames(zlib.decompress(content))
            else:
                self.windows[-1].events.append(content)
            at += head + size
        return at

    def wrote(self, data: bytes) -> None:
        self._said += data
        while len(self._said) >= 6:
            version, kind, number = self._said[:1], self._said[1:2], int.from_bytes(self._said[2:6], "big")
            del self._said[:6]
            if kind != b"A" or version != b"%d" % self.version:
                self.history.wrong(f"version {self.version} is told {bytes(version + kind)!r}")
            self._acknowledged(number)

    def _acknowledged(self, number: int) -> None:
        wrong = self.history.wrong
        if number == 0 and self.version == 1:
            wrong("version 1 is asked for patience")
        if not self.windows and not (number == 0 and self._heard):  # A 0 also asks for patience within the first W
            wrong(f"an acknowledgement of {number} without a window")
        if number == 0:
            return
        window = self.windows[0]
        if not window.acked < number <= len(window.events):
            wrong(f"an acknowledgement of {number}, of {len(window.events)} events and behind {window.acked}")
        for event in window.events[window.acked : number]:
            self.history.acknowledge(STREAM, event)
        window.acked = number
        if number == window.size:
            del self.windows[0]


@attrs.define(eq=False)
class Writer:
    """A client with one connection, whose messages must be stored in the order in which it sends them."""

    world: World
    history: History
    name: str
    servers: tuple[str, ...]
    dropping: bool  #: whether the server drops what is sent again
    client: LumberjackClient = attrs.field(init=False)
    connections: int = 0
    connected: bool = False
    published: int = 0
    unacked: set[bytes] = attrs.field(factory=set)

    def __attrs_post_init__(self) -> None:
        dice = self.world.random
        version = dice.choice((1, 2, 2))
        self.client = LumberjackClient(
            self.world.clock,
            [Endpoint(self.world, self.name, PORT, partial(Tap, self.history, version), servers=self.servers)],
            version=version,
            compression=dice.choice((0, 3)),
            window=dice.choice((1, 5, 50)),
            pipelining=dice.choice((1, 2, 5)),
            on_state=self._state,
            connection_options=attrs.evolve(
                LUMBERJACK_OPTIONS,
                silence=dice.choice((6.0, 30.0)),
                retry=lambda failures: 0.3 * min(failures, 6) * (0.5 + dice.random()),
            ),
        )
        self.client.connect().addErrback(lambda failure: None)

    def _state(self, connected: bool) -> None:
        self.connections += connected
        self.connected = connected

    def publish(self) -> None:
        dice = self.world.random
        payloads = []
        base = self.connections - self.connected
        for _ in range(dice.choice((*self.world.bursts, 8))):
            self.published += 1
            noise = "." * self.world.size()
            payload = f'{{"n":"{self.name}:{self.published}:{noise}"}}'.encode()
            if self.dropping:
                payload = IDENTIFIED % (self.name.encode(), self.published, noise.encode())
            copies = partial(self._copies, base)
            self.history.send(STREAM, payload, Sent(self.name, self.published, copies))
            payloads.append(payload)
        self.unacked.update(payloads)
        done = self.client.publish_many(payloads)
        done.addCallback(lambda _: self._acked(payloads)).addErrback(lambda failure: failure.trap(*EXPECTED))

    def _copies(self, base: int) -> int:
        """Return how often a message that was first sent on connection *base* may be stored by now."""
        return 1 if self.dropping and self.history.keeps(STREAM) else self.connections - base

    def _acked(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            self.history.acknowledge(STREAM, payload)
            self.unacked.discard(payload)

    def owed(self) -> str:
        return f"{self.name} waits for {len(self.unacked)} acknowledgements" if self.unacked else ""

    def close(self) -> None:
        self.client.close()


class Lumberjack(Side):
    """All Lumberjack clients of a simulation.

    :param herd: how many writers there are; 0 means a few
    """

    topics = (STREAM,)

    def __init__(self, world: World, server: Server, history: History, herd: int = 0) -> None:
        self.world = world
        dropping = world.seed % 2 == 1
        # Windows and their compressed frames may exceed any limit of an event.
        largest = 1 << 30 if world.large else world.random.choice((1 << 30, 1 << 20, 2 << 20))
        settings = LumberjackSettings(resent="drop" if dropping else "store", max_frame=largest)
        server.listen(
            lambda host, broker: plugin.make_service(host, broker, f"tcp:{PORT}", settings),
            plugin.abilities.only_leading,
        )
        self.make_writers(history, server.names, dropping, herd)

    def make_writers(self, history: History, names: tuple[str, ...], dropping: bool, herd: int) -> None:
        count = herd or self.world.random.randint(1, 3)
        self.clients = [Writer(self.world, history, f"lumberjack-{n}", names, dropping) for n in range(count)]
