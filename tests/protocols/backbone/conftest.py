"""A network in memory that can lose datagrams, and a server on it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from zope.interface import implementer

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.net.udp import ITrainTransport
from fyrehose.options import networks
from fyrehose.protocols.backbone.client import BackboneClient
from fyrehose.protocols.backbone.frames import Address, Frame, decode
from fyrehose.protocols.backbone.gso_batches import Train
from fyrehose.protocols.backbone.server import BackboneProtocol
from fyrehose.protocols.backbone.session import BackboneOptions
from fyrehose.protocols.backbone.settings import BackboneSettings
from fyrehose.testing import MemoryJournal


@implementer(ITrainTransport)
@attrs.define(eq=False)
class SimPort:
    """A port of a :class:`Network`; with ``full`` it sends nothing, like a kernel without buffer space."""

    network: Network
    owner: Any
    address: Address
    full: bool = False
    reading: bool = True
    maxPacketSize: int = 8_192
    queue: list[tuple[Train, Address]] = attrs.field(factory=list)
    counts: list[int] = attrs.field(factory=list)  #: datagrams of each train that was sent

    @property
    def waiting(self) -> int:
        return len(self.queue)

    def getHost(self) -> IPv4Address:
        return IPv4Address("UDP", *self.address)

    def startListening(self) -> None:
        self.network.ports[self.address] = self
        self.owner.makeConnection(self)

    def write_train(self, train: Train, destination: Address) -> None:
        self.counts.append(train.count)
        self.queue.append((train, destination))

    def flush(self) -> None:
        if self.full:
            if self.queue:
                self.owner.congested()
            return
        queue, self.queue = self.queue, []
        for train, destination in queue:
            for datagram in train.datagrams():
                self.network.carry(bytes(datagram), self.address, destination)

    def relieve(self) -> None:
        """Send waiting trains, as if the kernel had room again."""
        self.full = False
        self.flush()
        self.owner.relieved()

    def stopListening(self) -> None:
        self.reading = False
        if self.network.ports.pop(self.address, None) is not None:
            self.owner.doStop()


@attrs.define(eq=False)
class Network:
    """Carries datagrams; loses, duplicates and delays them with the given probabilities.

    :ivar log: all sent datagrams, including lost ones
    """

    clock: Clock
    random: Random = attrs.field(factory=lambda: Random(1))
    loss: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    ports: dict[Address, SimPort] = attrs.field(factory=dict)
    log: list[tuple[Address, Address, bytes]] = attrs.field(factory=list)
    _at_once: list[tuple[bytes, Address, Address]] = attrs.field(factory=list)

    def open(self, port: int, protocol: Any, interface: str, reactor: object = None) -> SimPort:
        """Return a port that is not bound yet; the arguments are those of Twisted's ports."""
        return SimPort(self, protocol, (interface, port))

    def carry(self, datagram: bytes, source: Address, destination: Address) -> None:
        self.log.append((source, destination, datagram))
        if self.random.random() < self.loss or destination not in self.ports:
            return
        for _ in range(1 + (self.random.random() < self.double)):
            if self.delay:
                self.clock.callLater(self.random.random() * self.delay, self._arrive, datagram, source, destination)
            else:
                if not self._at_once:
                    self.clock.callLater(0, self._arrive_all)
                self._at_once.append((datagram, source, destination))

    def _arrive_all(self) -> None:
        at_once, self._at_once = self._at_once, []
        for arrival in at_once:
            self._arrive(*arrival)

    def _arrive(self, datagram: bytes, source: Address, destination: Address) -> None:
        port = self.ports.get(destination)
        if port is not None and port.reading:
            port.owner.datagrams_received(memoryview(datagram), max(len(datagram), 1), source)
            port.owner.turn_over()

    def sent_to(self, destination: Address) -> list[Frame]:
        """Return the frames that were sent to *destination*."""
        return [decode(datagram) for _, to, datagram in self.log if to == destination]


@attrs.define(eq=False)
class World:
    """A server at 10.0.0.1:2323, its broker and its network."""

    settings: BackboneSettings
    auto: bool = True
    journal_settings: dict[str, Any] = attrs.field(factory=dict)
    clock: Clock = attrs.field(factory=Clock)
    network: Network = attrs.field(init=False)
    journal: MemoryJournal = attrs.field(init=False)
    broker: Broker = attrs.field(init=False)
    server: BackboneProtocol = attrs.field(init=False)
    port: SimPort = attrs.field(init=False)
    address: Address = ("10.0.0.1", 2323)

    def __attrs_post_init__(self) -> None:
        self.network = Network(self.clock)
        self.journal = MemoryJournal(auto=self.auto)
        self.broker = Broker(self.clock, self.journal, Sequencer(), **self.journal_settings)
        self.broker.open()
        self.broker.counters.seconds = self.clock.seconds
        self.serve()

    def serve(self) -> None:
        """Start a server, possibly another one after a stop."""
        self.server = BackboneProtocol(self.broker, self.settings, self.clock, Random(3))
        self.port = SimPort(self.network, self.server, self.address)
        self.port.startListening()
        self.clock.advance(0)

    def stop(self) -> Deferred[None]:
        """Stop the server as the plugin does."""
        return self.server.drain().addCallback(lambda _: self.port.stopListening())

    def send(self, *frames: Frame | bytes, source: Address = ("10.0.0.2", 4000)) -> None:
        """Receive *frames* in one turn of the server."""
        for frame in frames:
            datagram = frame if isinstance(frame, bytes) else frame.serialize()
            self.server.datagrams_received(memoryview(datagram), max(len(datagram), 1), source)
        self.server.turn_over()
        self.clock.advance(0)

    def count(self, what: str) -> int:
        return self.broker.counters.counts["backbone", what]

    def payloads(self) -> list[bytes]:
        """Return the payloads in the journal, in order."""
        stream = self.settings.stream
        return [
            bytes(payload)
            for run in self.broker.read(stream, self.broker.bounds(stream)[0], 1 << 40)
            for payload in run.payloads()
        ]

    def client(self, n: int, **settings: Any) -> BackboneClient:
        """Return a client at 10.0.1.n:5000; further settings are ``take``, ``lost``, ``after`` and options."""
        known = {
            key: settings.pop(key) for key in ("on_state", "process_exception", "connection_options") if key in settings
        }
        subscription = {key: settings.pop(key) for key in ("take", "lost", "after") if key in settings}
        client = BackboneClient(
            self.clock,
            *self.address,
            options=BackboneOptions(**settings),
            bind=(f"10.0.1.{n}", 5000),
            random=Random(n),
            open_port=self.network.open,
            **known,
        )
        client.subscribe(None, **{"take": len, **subscription})
        return client

    def run(self, seconds: float, step: float = 0.01) -> None:
        """Advance the clock by *seconds*."""
        for _ in range(round(seconds / step)):
            self.clock.advance(step)


@pytest.fixture
def make_world() -> Callable[..., World]:
    """Return a function that makes a World; its other keywords are settings of the server, which trusts all clients."""

    def make(
        auto: bool = True, broker: dict[str, Any] | None = None, clock: Clock | None = None, **settings: Any
    ) -> World:
        settings.setdefault("trusted", networks("10.0.0.0/8"))
        return World(BackboneSettings(**settings), auto=auto, journal_settings=broker or {}, clock=clock or Clock())

    return make
