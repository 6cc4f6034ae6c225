"""Fixtures for the event bus without ZeroMQ: fake ports and sockets, and a clock that tests advance."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from itertools import count
from typing import Any

import attrs
import pytest
import zmq
from twisted.internet.defer import succeed
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.protocols.eventbus.connections import AcceptedConnection
from fyrehose.protocols.eventbus.messages import NOWHERE, Origin
from fyrehose.protocols.eventbus.queued_memory import Full, QueuedMessages
from fyrehose.protocols.eventbus.server import EventBusServer
from fyrehose.protocols.eventbus.settings import EventBusSettings
from fyrehose.protocols.eventbus.zmqport import Gone
from fyrehose.records import Buffer
from fyrehose.testing import MemoryJournal

TIME = b"2024-05-01T10:20:30.123Z"


def event(n: int = 0, topic: bytes = b"/a/", data: bytes | None = None) -> list[bytes]:
    """Return the six frames of a PUB."""
    return [topic, b"null", b"me", TIME, b"7d444840-9dc0-41d1-b245-%012x" % n, b"%d" % n if data is None else data]


class TurnClock(Clock):
    """A clock that, like the reactor, runs calls that are scheduled during a turn in the next turn."""

    def advance(self, amount: float) -> None:
        self.rightNow += amount
        for call in [call for call in self.calls if call.getTime() <= self.rightNow]:
            if call.active():
                self.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)


@attrs.define
class Parcel:
    """The tracker of a sent message; the socket releases the message if its client reads."""

    port: FakePort
    client: bytes

    @property
    def done(self) -> bool:
        return self.port.done and self.client not in self.port.room


@attrs.define(eq=False)
class FakePort:
    """A port that records sent messages.

    :ivar room: number of messages that can be queued for a client that does not read, by routing id
    :ivar gone: routing ids of disconnected clients
    """

    name: str = "PORT"
    origin: Origin = ("10.0.0.1", 7, 1)
    reading: bool = False
    sent: list[list[bytes]] = attrs.field(factory=list)
    room: dict[bytes, int] = attrs.field(factory=dict)
    gone: set[bytes] = attrs.field(factory=set)
    empty: bool = True
    scheduled: int = 0
    processed: int = 0
    done: bool = True  #: whether lent messages are released
    keys: list[bytes] = attrs.field(factory=list)  #: keys of messages that were lent by one
    subscribed: list[tuple[list[bytes], list[bytes]]] = attrs.field(factory=list)  #: keys added, and removed
    lent: list[int] = attrs.field(factory=list)  #: sizes of lent messages that are not released

    def start(self) -> None:
        self.reading = True

    def pause(self) -> None:
        self.reading = False

    def schedule_turn(self) -> None:
        self.scheduled += 1

    def process_commands(self) -> None:
        self.processed += 1

    def drained(self) -> bool:
        return self.empty

    def send(self, frames: Sequence[Buffer], account: QueuedMessages | None = None) -> None:
        client, size = bytes(frames[0]), len(frames[-1])
        if client in self.gone:
            raise Gone
        tracked = account is not None and account.tracks(size)
        if client in self.room:
            if not self.room[client]:
                raise Full
            self.room[client] -= 1
        if account is not None and tracked:
            account.add(Parcel(self, client), size)
        elif account is not None:
            account.skip(size)
        self.sent.append([bytes(frame) for frame in frames])

    def lend(self, frames: Sequence[Buffer]) -> None:
        self.send(frames)
        self.lent.append(sum(map(len, frames)))

    def lend_by_key(self, key: bytes, frames: Sequence[Buffer]) -> None:
        self.keys.append(key)
        self.lend(frames)

    def process_events(self) -> None:
        """No connection has begun or ended."""

    def resubscribe(self, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        self.subscribed.append((list(added), list(removed)))

    def held(self) -> tuple[int, int]:
        if self.done:
            self.lent.clear()
        return len(self.lent), sum(self.lent)

    def take(self) -> list[list[bytes]]:
        """Return the messages that were sent since the last call."""
        sent, self.sent = self.sent, []
        return sent


@attrs.define(eq=False, kw_only=True)
class FakeConnection(AcceptedConnection):
    """An open connection of a world."""

    world: World

    def close(self) -> bool:
        self.world.ended.append((self.host, self.descriptor))
        return True


@attrs.define
class FakeConnections:
    """The subscribers of a world, and the connections that its server has closed."""

    world: World
    _made: dict[tuple[str, int], FakeConnection] = attrs.field(factory=dict, init=False)

    def __len__(self) -> int:
        return 0  # nobody is connected when a server is made

    def of(self, port: int) -> list[FakeConnection]:
        return [self._made.setdefault(each, self._make(port, *each)) for each in self.world.subscribers]

    def _make(self, port: int, host: str, descriptor: int) -> FakeConnection:
        return FakeConnection(port, descriptor, (host, 1), world=self.world)

    def count(self, port: int) -> int:
        return len(self.world.subscribers)

    def find(self, port: int, descriptor: int, number: int) -> FakeConnection | None:
        return next((each for each in self.of(port) if each.descriptor == descriptor and number == 1), None)

    def close(self, port: int, descriptor: int, number: int) -> None:
        self.world.ended.append(("SNAPSHOT", descriptor))


class World:
    """A server, its broker, and the clock of both."""

    def __init__(self, **options: Any) -> None:
        self.clock = TurnClock()
        self.journal = MemoryJournal(now=lambda: 1_000_000 + int(self.clock.seconds() * 1e6))
        self.broker = Broker(self.clock, self.journal, Sequencer())
        self.broker.open()
        self.settings = EventBusSettings(**options)
        self.begin()

    def begin(self) -> None:
        """Start a server, possibly another one on the same journal."""
        self.ended: list[tuple[str, int]] = []
        self.subscribers: list[tuple[str, int]] = []
        self.connections = FakeConnections(self)
        self.server = EventBusServer(self.clock, self.broker, self.settings, self.connections)
        self.snapshot, self.publisher, self.collector = FakePort(), FakePort(), FakePort()
        self.server.start(self.snapshot, self.publisher, self.collector)
        self.run()

    def run(self, turns: int = 20) -> None:
        """Run calls that are due, and the calls that these schedule."""
        for _ in range(turns):
            self.clock.advance(0)

    def pass_time(self, seconds: float, step: float = 0.5) -> None:
        """Advance the clock by *seconds*."""
        for _ in range(int(seconds / step)):
            self.clock.advance(step)

    def publish(self, *frames: bytes, identity: bytes = b"p") -> None:
        """Receive a PUB in a turn of its own."""
        self.publish_all([frames], identity)

    def publish_all(self, events: Sequence[Sequence[bytes]], identity: bytes = b"p") -> None:
        """Receive PUBs in one turn."""
        for frames in events:
            self.server.pub_received([identity, *frames], 1 + len(frames))
        self.server.publish_turn()
        self.run()

    def leave(self, descriptor: int) -> None:
        """End the connection of a subscriber."""
        connection = self.connections.find(0, descriptor, 1)
        assert connection is not None
        self.subscribers.remove((connection.host, descriptor))
        self.server.subscriber_left(connection)

    def subscribe(self, descriptor: int, *prefixes: bytes) -> None:
        """Receive the subscriptions of a subscriber."""
        for prefix in prefixes:
            self.publisher.origin = ("10.0.0.1", descriptor, 1)
            self.server.subscription_received([b"\1" + prefix], 1)

    def ask(self, *frames: bytes, identity: bytes = b"c") -> None:
        """Receive a message at SNAPSHOT."""
        self.server.request_received([identity, *frames], 1 + len(frames))
        self.server.serve_snapshots()

    def count(self, what: str) -> int:
        return self.broker.counters.counts["eventbus", what]

    def sequences(self) -> list[int]:
        """Return the binary sequences of the broadcasts since the last call."""
        return [int.from_bytes(frames[1], "big") for frames in self.publisher.take()]


@pytest.fixture
def make_world() -> type[World]:
    return World


@pytest.fixture
def make_event() -> Any:
    return event


@attrs.define(eq=False)
class FakeSocket:
    """A socket that records calls, and fails to bind to an address in ``taken``."""

    kind: int
    taken: set[str] = attrs.field(factory=set)
    options: dict[int, Any] = attrs.field(factory=dict)
    subscriptions: list[bytes] = attrs.field(factory=list)
    bound: list[str] = attrs.field(factory=list)
    connected: list[str] = attrs.field(factory=list)
    closed: bool = False
    linger: int | None = None
    curve_server: bool = False
    curve_publickey: bytes = b""
    curve_secretkey: bytes = b""
    curve_serverkey: bytes = b""
    next_port: int = 40_000

    def setsockopt(self, option: int, value: Any) -> None:
        if option == zmq.SUBSCRIBE:
            self.subscriptions.append(value)
        self.options[option] = value

    def getsockopt_string(self, option: int) -> str:
        return self.bound[-1]

    def bind(self, address: str) -> None:
        if address.endswith(":*"):
            free = next(port for port in count(self.next_port + 1) if address.replace("*", str(port)) not in self.taken)
            self.next_port = free
            address = address.replace("*", str(free))
        if address in self.taken:
            raise zmq.ZMQError(zmq.EADDRINUSE)
        self.bound.append(address)

    def unbind(self, address: str) -> None:
        self.bound.remove(address)

    def connect(self, address: str) -> None:
        if " " in address:
            raise zmq.ZMQError(errno.EINVAL)
        self.connected.append(address)

    def close(self, linger: int | None = None) -> None:
        self.closed, self.linger = True, linger


@attrs.define(eq=False)
class FakeContext:
    """A context that creates fake sockets."""

    taken: set[str] = attrs.field(factory=set)
    sockets: list[FakeSocket] = attrs.field(factory=list)
    ended: bool = False

    def socket(self, kind: int) -> FakeSocket:
        self.sockets.append(FakeSocket(kind, self.taken))
        return self.sockets[-1]

    def term(self) -> None:
        assert all(socket.closed for socket in self.sockets), "term() would block"
        self.ended = True


@attrs.define
class FakeMonitor:
    """Reports the connection events of a port, as a test says."""

    happened: Any


class FakeZMQ:
    """Replaces ZeroMQ in a module."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
        self.contexts: list[FakeContext] = []
        self.ports: list[Any] = []
        self.monitors: list[FakeMonitor] = []
        self.taken: set[str] = set()
        monkeypatch.setattr(f"{module}.zmq.Context", self._context)
        monkeypatch.setattr(f"{module}.ZMQPort", self._port)
        monkeypatch.setattr(f"{module}.deferToThreadPool", lambda reactor, pool, call: succeed(call()))

    def _context(self) -> FakeContext:
        self.contexts.append(FakeContext(self.taken))
        return self.contexts[-1]

    def _port(
        self, reactor: Any, socket: FakeSocket, receive: Any = None, turn_over: Any = None, name: str = ""
    ) -> Any:
        self.ports.append(FakeZMQPort(socket, receive, turn_over, self.monitors))
        return self.ports[-1]


@attrs.define(eq=False)
class FakeZMQPort:
    """A port with a fake socket; full until a test sets ``full`` to False."""

    socket: FakeSocket
    receive: Any
    turn_over: Any
    monitors: list[FakeMonitor]
    full: bool = True
    reading: bool = False
    origin: Origin = NOWHERE
    sent: list[list[bytes]] = attrs.field(factory=list)
    resubscribed: list[bytes] = attrs.field(factory=list)  #: keys that were added

    def start(self) -> None:
        self.reading = True

    def pause(self) -> None:
        self.reading = False

    def schedule_turn(self) -> None:
        """Do nothing."""

    def process_commands(self) -> None:
        """Do nothing."""

    def drained(self) -> bool:
        return True

    def send(self, frames: Sequence[Buffer], account: QueuedMessages | None = None) -> None:
        if self.full:
            raise Full
        self.sent.append([bytes(frame) for frame in frames])

    def held(self) -> tuple[int, int]:
        return 0, 0

    def resubscribe(self, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        self.resubscribed += added

    def watch(self, events: int, happened: Any) -> None:
        self.monitors.append(FakeMonitor(happened))

    def process_events(self) -> None:
        """Do nothing; tests report events directly."""

    def close(self, linger: int = 0) -> None:
        self.pause()
        self.socket.close(linger)

    def get(self, *messages: list[bytes]) -> None:
        """Receive *messages* in one turn."""
        for message in messages:
            self.receive(message, len(message))
        self.turn_over()


@pytest.fixture
def fake_zmq(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda module: FakeZMQ(monkeypatch, f"fyrehose.protocols.eventbus.{module}")
