"""Simulate senders of RELP, and check every byte between them and the server.

A tap checks each connection by itself: an answer says that its message is durable.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import attrs
from history import History, Sent
from links import Endpoint
from server import Server
from sides import Side
from twisted.internet.protocol import Factory, Protocol
from world import World

from fyrehose.protocols.syslog.plugin import plugin
from fyrehose.protocols.syslog.server import SyslogSettings
from fyrehose.protocols.syslog.session import SyslogMessages, SyslogServerSession

PORT = 2514
STREAM = "syslog"
#: The largest message, in bytes.
LARGEST = 16 << 20
#: How many messages may wait for an answer, as in librelp.
WINDOW = 128
_FRAME = re.compile(rb"([0-9]+) ([a-z]+) ([0-9]+)(?: |(?=\n))")


def frames(data: bytearray) -> list[tuple[int, bytes, bytes]]:
    """Take the complete frames from the start of *data*: the number, the command and the content of each."""
    found = []
    while (head := _FRAME.match(data)) is not None and len(data) > head.end() + int(head[3]):
        end = head.end() + int(head[3])
        found.append((int(head[1]), bytes(head[2]), bytes(data[head.end() : end])))
        head = None
        del data[: end + 1]
    return found


@attrs.define(eq=False)
class Tap:
    """Checks one connection, by the bytes that the server reads and writes."""

    history: History
    sent: dict[int, bytes] = attrs.field(factory=dict)
    _heard: SyslogServerSession = attrs.field(factory=lambda: SyslogServerSession(LARGEST))
    _said: bytearray = attrs.field(factory=bytearray)

    def read(self, data: bytes) -> None:
        events = self._heard.receive_data(data)
        while self._heard.more:
            events += self._heard.next_events()
        for event in events:
            if isinstance(event, SyslogMessages):
                self.sent |= dict(zip(event.numbers, event.payloads, strict=True))

    def wrote(self, data: bytes) -> None:
        self._said += data
        for number, command, content in frames(self._said):
            if command == b"rsp" and content == b"200 OK":
                if number not in self.sent:
                    self.history.wrong(f"an answer to {number}, which was not sent or was answered before")
                self.history.acknowledge(STREAM, self.sent.pop(number))


class Talking(Protocol):
    """One connection of a sender."""

    def __init__(self, sender: Sender) -> None:
        self.sender, self.number, self.open = sender, 1, False
        self.sent: dict[int, bytes] = {}
        self.buffer = bytearray()

    def connectionMade(self) -> None:
        self.sender.connections += 1
        self.transport.write(b"1 open 15 commands=syslog\n")

    def dataReceived(self, data: bytes) -> None:
        self.buffer += data
        for number, command, content in frames(self.buffer):
            if number == 1:
                self.open = True
            elif command == b"rsp" and content == b"200 OK":
                self.sender.acknowledged(self.sent.pop(number))
        self.proceed()

    def proceed(self) -> None:
        """Send what is not sent yet, as far as the window allows."""
        under_way = set(self.sent.values())
        for payload in [each for each in self.sender.unacked if each not in under_way] if self.open else ():
            if len(self.sent) < WINDOW:
                self.number += 1
                self.sent[self.number] = payload
                self.transport.write(b"%d syslog %d %b\n" % (self.number, len(payload), payload))

    def connectionLost(self, reason: Any = None) -> None:
        self.sender.lost()


@attrs.define(eq=False)
class Sender:
    """A sender with one connection, whose messages must be stored in the order in which it sends them."""

    world: World
    history: History
    name: str
    servers: tuple[str, ...]
    connections: int = 0
    published: int = 0
    closed: bool = False
    unacked: dict[bytes, None] = attrs.field(factory=dict)
    _endpoint: Any = attrs.field(init=False)
    _talking: Talking | None = None

    def __attrs_post_init__(self) -> None:
        self._endpoint = Endpoint(self.world, self.name, PORT, partial(Tap, self.history), servers=self.servers)
        self._connect()

    def _connect(self) -> None:
        if not self.closed:
            connecting = self._endpoint.connect(Factory.forProtocol(lambda: Talking(self)))
            connecting.addCallbacks(self._connected, lambda failure: self.lost())

    def _connected(self, talking: Talking) -> None:
        self._talking = talking

    def lost(self) -> None:
        self._talking = None
        self.world.clock.callLater(0.5 + self.world.random.random(), self._connect)

    def acknowledged(self, payload: bytes) -> None:
        self.history.acknowledge(STREAM, payload)
        self.unacked.pop(payload, None)

    def owed(self) -> str:
        return f"{self.name} waits for {len(self.unacked)} answers" if self.unacked else ""

    def close(self) -> None:
        self.closed = True

    def publish(self) -> None:
        base = self.connections - (self._talking is not None)
        for _ in range(self.world.random.choice(self.world.bursts)):
            self.published += 1
            payload = f"<13>{self.name}:{self.published}:".encode() + b"." * self.world.size()
            self.history.send(STREAM, payload, Sent(self.name, self.published, lambda: self.connections - base))
            self.unacked[payload] = None
        if self._talking is not None:
            self._talking.proceed()


class Syslog(Side):
    """All senders of a simulation.

    :param herd: how many senders there are; 0 means a few
    """

    topics = (STREAM,)

    def __init__(self, world: World, server: Server, history: History, herd: int = 0) -> None:
        self.world = world
        settings = SyslogSettings(max_payload=LARGEST)
        server.listen(
            lambda host, broker: plugin.make_service(host, broker, f"tcp:{PORT}", settings),
            plugin.abilities.only_leading,
        )
        count = herd or world.random.randint(1, 3)
        self.clients = [Sender(world, history, f"syslog-{n}", server.names) for n in range(count)]
