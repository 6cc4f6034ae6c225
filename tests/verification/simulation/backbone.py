"""Simulate clients of the backbone protocol, and check every datagram that the server receives or sends.

The ports of the server check these rules:

a PUSH may be lost, and is never stored more often than it arrived
every DELIVER of one number has the same bytes, whenever and to whomever it is sent
a token is echoed at most as often as it arrived; an address that sent nothing for 5 s is sent nothing
in a trusted network, a subscriber that sends a KEEPALIVE is sent every DELIVER of the next 5 s (rules 2, 3)
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import Any

import attrs
from history import History, Reader, Sent
from server import Server
from sides import Side
from textpeer import TextPeer
from twisted.application.service import Service
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from world import Host, Lane, Violation, World
from zope.interface import implementer

from fyrehose.errors import RemoteProtocolError
from fyrehose.net.clients import Backoff
from fyrehose.net.udp import ITrainTransport
from fyrehose.options import networks
from fyrehose.protocols.backbone.client import BACKBONE_OPTIONS, BackboneClient, PushUnconfirmed
from fyrehose.protocols.backbone.frames import Deliver, Flags, KeepAlive, KeepAliveAck, Push, decode
from fyrehose.protocols.backbone.gso_batches import Train
from fyrehose.protocols.backbone.server import BackboneProtocol
from fyrehose.protocols.backbone.session import BackboneOptions
from fyrehose.protocols.backbone.settings import BackboneSettings
from fyrehose.records import Delivery, Run

Address = tuple[str, int]
STREAM = "backbone"
PORT = 2323
#: For how many seconds after the last datagram of an address the server may send datagrams to that address.
SILENCE = 5.0


@implementer(ITrainTransport)
@attrs.define(eq=False)
class Port:
    """A simulated UDP port of a client or the server; now and then its kernel accepts no datagrams for up to 0.2 s."""

    lane: Lane
    owner: Any
    address: Address
    reading: bool = True
    maxPacketSize: int = 8_192
    stuck: bool = False
    queue: list[tuple[bytes, Address]] = attrs.field(factory=list)
    #: the reactor of the server; None for the port of a client
    host: Host | None = None

    @property
    def waiting(self) -> int:
        return len(self.queue)

    def getHost(self) -> IPv4Address:
        return IPv4Address("UDP", *self.address)

    def startListening(self) -> None:
        self.lane.ports[self.address] = self
        self.owner.makeConnection(self)

    def write_train(self, train: Train, destination: Address) -> None:
        self.queue += [(bytes(datagram), destination) for datagram in train.datagrams()]

    def flush(self) -> None:
        world = self.lane.world
        if self.stuck or not self.queue:
            return
        if world.random.random() < 0.01:
            self.stuck = True
            self.owner.congested()
            (self.host or world.clock).callLater(world.random.random() * 0.2, self._relieve)
            return
        queue, self.queue = self.queue, []
        for datagram, destination in queue:
            self.leaves(datagram, destination)
            self.lane.carry(datagram, self.address, destination)

    def _relieve(self) -> None:
        self.stuck = False
        if self.lane.ports.get(self.address) is self:
            self.flush()
            if not self.stuck:
                self.owner.relieved()

    def leaves(self, datagram: bytes, destination: Address) -> None:
        """Allow any datagram that a client sends."""

    def arrived(self, datagram: bytes, source: Address) -> None:
        if self.reading:
            self.owner.datagrams_received(memoryview(datagram), max(len(datagram), 1), source)
            self.owner.turn_over()

    def stopListening(self) -> None:
        self.reading = False
        if self.lane.ports.get(self.address) is self:
            del self.lane.ports[self.address]
        if self.owner.transport is self:
            self.owner.doStop()


@attrs.define(eq=False)
class ServerPort(Port):
    """The UDP port of one life of the server; it checks every datagram that the server receives and sends.

    :ivar arrivals: how often each PUSH has arrived, in all lives of the server
    """

    history: History = attrs.field(kw_only=True)
    arrivals: Counter[bytes] = attrs.field(kw_only=True)
    heard: dict[Address, float] = attrs.field(factory=dict)
    flags: dict[Address, Flags] = attrs.field(factory=dict)
    #: when the server last answered a KEEPALIVE of each address, in seconds; this makes it a subscriber by rule 2
    subscribed: dict[Address, float] = attrs.field(factory=dict)
    #: address and number of each DELIVER that the server has written during the current call of `deliver`
    written: set[tuple[Address, int]] = attrs.field(factory=set)
    tokens: Counter[tuple[Address, bytes]] = attrs.field(factory=Counter)

    def arrived(self, datagram: bytes, source: Address) -> None:
        if not self.reading:
            return
        self.heard[source] = self.lane.world.clock.seconds()
        try:
            frame = decode(datagram)
        except RemoteProtocolError as error:
            self.history.wrong(f"a client sent {datagram[:20]!r}: {error}")
        if isinstance(frame, Push):
            self.arrivals[bytes(frame.data)] += 1
        elif isinstance(frame, KeepAlive):
            self.tokens[source, bytes(frame.token)] += 1
            self.flags[source] = frame.flags
        super().arrived(datagram, source)

    def write_train(self, train: Train, destination: Address) -> None:
        for frame in map(decode, train.datagrams()):
            if isinstance(frame, Deliver):
                self.written.add((destination, frame.seq))
            elif isinstance(frame, KeepAliveAck):
                self.subscribed[destination] = self.lane.world.clock.seconds()
        super().write_train(train, destination)

    def subscribers(self) -> list[Address]:
        """Return the addresses that the server must send every DELIVER to at this moment."""
        now = self.lane.world.clock.seconds()
        return [
            address
            for address, since in self.subscribed.items()
            if now - since <= SILENCE and not self.flags[address] & Flags.NOSUBSCRIBE
        ]

    def leaves(self, datagram: bytes, destination: Address) -> None:
        wrong, frame = self.history.wrong, decode(datagram)
        silent = self.lane.world.clock.seconds() - self.heard.get(destination, float("-inf"))
        if silent > SILENCE + 0.3:  # 0.3 s more: a kernel that accepted nothing for a while sends the datagram late
            wrong(f"{destination} was silent for {silent:.1f} s and is sent {type(frame).__name__}")
        if isinstance(frame, Deliver):
            self.history.release(STREAM, frame.seq, bytes(frame.data))
        elif isinstance(frame, KeepAliveAck):
            self.tokens[destination, bytes(frame.token)] -= 1
            if self.tokens[destination, bytes(frame.token)] < 0:
                wrong(f"{destination} is sent a token more often than it sent that token")


class Watched(BackboneProtocol):
    """The server's protocol, with a check that a delivery reaches all subscribers in trusted networks (rules 2, 3)."""

    def deliver(self, delivery: Delivery) -> None:
        port = self.transport
        subscribers = port.subscribers() if self.settings.trusted else ()
        port.written.clear()
        super().deliver(delivery)
        numbers = [seq for run in delivery.runs for seq in range(run.first_seq, run.last_seq + 1)]
        missing = {(address, seq) for address in subscribers for seq in numbers} - port.written
        if missing:
            port.history.wrong(f"a subscriber is not sent every DELIVER: {sorted(missing)[:3]}")


class Listener(Service):
    """The listener of the backbone protocol, on a simulated port instead of a socket."""

    def __init__(self, side: Backbone, host: Host, broker: Any) -> None:
        settings = BackboneSettings(trusted=networks(side.trusted))
        self.server = Watched(broker, settings, host, Random(host.world.random.random()))
        address = side.addresses[host.name]
        self.port = ServerPort(side.lane, self.server, address, host=host, history=side.history, arrivals=side.arrivals)

    def startService(self) -> None:
        Service.startService(self)
        self.port.startListening()

    def stopService(self) -> Deferred[None]:
        Service.stopService(self)
        return self.server.drain().addCallback(lambda _: self.port.stopListening())


class Client:
    """A client that either publishes, or reads from a number on, at one of the servers."""

    def __init__(self, side: Backbone, number: int, after: int | None, **options: Any) -> None:
        self.side, self.name, self.number, self.publishes = side, f"backbone-{number}", number, after is None
        self.reader = Reader(side.history, STREAM, self.name, after)
        self.ready = self.dead = False
        self.published, self.waiting = 0, 0
        self.gaps: list[tuple[int, int]] = []
        self.options = options
        self.address = ("10.0.1.1", 5000 + number) if side.herd else (f"10.0.1.{number}", 5000)
        world = side.world
        self.client = BackboneClient(
            world.clock,
            *side.choose(),
            options=BackboneOptions(**options),
            bind=self.address,
            random=Random(world.random.random()),
            # The delays come from the seed.  A client that never reaches its server ends, and another one is made.
            connection_options=attrs.evolve(BACKBONE_OPTIONS, retry=Backoff(1.0, 5.0, world.random.random)),
            process_exception=lambda error: None if self.ready else error,
            open_port=lambda port, protocol, interface, _: Port(side.lane, protocol, (interface, port)),
        )
        self.client.subscribe(None, self._records, after, self._gap)
        self.client.connect().addCallbacks(lambda _: setattr(self, "ready", True), self._unreachable)

    def _unreachable(self, failure: Any) -> None:
        self.dead = True
        self.side.world.note(f"{self.name}: {failure.getErrorMessage()}")

    def publish(self) -> None:
        side, dice = self.side, self.side.world.random
        self.published += 1
        payload = f"{self.name}:{self.published}:".encode() + b"." * dice.choice((0, 10, 300, 1300))
        side.history.send(STREAM, payload, Sent(self.name, None, lambda: side.arrivals[payload]))
        self.waiting += 1
        done = self.client.publish(None, payload)
        done.addCallback(partial(self._confirmed, payload)).addErrback(self._unconfirmed).addBoth(self._settled)

    def _settled(self, _: Any) -> None:
        self.waiting -= 1

    def _unconfirmed(self, failure: Any) -> None:
        failure.trap(PushUnconfirmed, Violation)
        if len(self.side.addresses) > 1 and not self.dead:
            # This server may not be the leader, so connect to another one.
            self.close()
            self.side.connect(self.reader.position, **self.options)

    def _confirmed(self, payload: bytes, seq: int) -> None:
        self.side.history.release(STREAM, seq, payload)

    def _records(self, run: Run) -> None:
        self.reader.take(run.first_seq, [bytes(payload) for payload in run.payloads()])

    def _gap(self, first: int, last: int) -> None:
        position = self.reader.position
        if (position is not None and first != position + 1) or last < first:
            self.side.history.wrong(
                f"{self.name} has everything up to {position} and is told that {first} to {last} are lost"
            )
        self.gaps.append((first, last))
        self.reader.position = last

    def roam(self) -> None:
        """Give the client another address, as DHCP may: from now on nothing arrives at its port."""
        self.side.lane.ports.pop(self.address, None)
        network = 3 - int(self.address[0].split(".")[2])
        self.address = (f"10.0.{network}.{self.number}", 5000)
        self.client.bind = self.address

    def close(self) -> None:
        self.dead = True
        self.client.close()


class Backbone(Side):
    """All backbone clients of a simulation.

    :param herd: how many clients there are, all at one address; with 0, a few clients connect and disconnect
    """

    #: whether its clients cope with records that were lost or deleted
    gaps = False
    topics = (STREAM,)

    def __init__(self, world: World, server: Server, history: History, herd: int = 0) -> None:
        dice = world.random
        self.herd = herd
        self.world, self.history = world, history
        self.arrivals: Counter[bytes] = Counter()
        # The rules of trusted networks promise a herd nothing: its addresses compete with hostile ones for
        # subscriptions.
        self.trusted = "" if herd else dice.choice(("10.0.1.0/24,10.0.2.0/24", ""))
        self.lane = Lane(world, dice.choice((0.0, 0.05, 0.3)), dice.choice((0.0, 0.1)), dice.choice((0.01, 0.2)))
        self.addresses = {name: (f"10.0.0.{n}", PORT) for n, name in enumerate(server.names, 1)}
        self.lane.names = {address[0]: name for name, address in self.addresses.items() if name}
        server.listen(partial(Listener, self))
        server.on_crash.append(lambda name: self.lane.ports.pop(self.addresses[name], None))
        self.clients: list[Client | TextPeer] = []
        self.last: list[Client] = []
        self.made = 0
        for n in range(herd):
            self.connect(None if n % 10 == 0 else 0)

    def choose(self) -> Address:
        """Return the address of one of the servers."""
        addresses = list(self.addresses.values())
        return addresses[0] if len(addresses) == 1 else self.world.random.choice(addresses)

    def connect(self, after: int | None, **options: Any) -> Client:
        self.made += 1
        client = Client(self, self.made, after, **options)
        self.clients.append(client)
        return client

    def step(self) -> None:
        dice = self.world.random
        self._bury()
        if dice.random() < 0.02 and not any(isinstance(client, TextPeer) for client in self.clients):
            self.made += 1
            self.clients.append(TextPeer(self, self.made))
        elif len(self.clients) < 4 and dice.random() < 0.2:
            known = len(self.history.truth.get(STREAM, ()))
            after = dice.choice((None, None, 0, dice.randint(0, known)))
            self.connect(after, retries=dice.choice((0, 2)), store=dice.choice((0, 1 << 16)))
        elif dice.random() < 0.03 and self.clients:
            self.world.partition(dice.choice(self.clients).address[0], dice.random() * 12)
        elif dice.random() < 0.02 and self.clients:
            dice.choice(self.clients).close()
        elif dice.random() < 0.02 and self.clients:
            client = dice.choice(self.clients)
            if isinstance(client, Client):
                client.roam()
        else:
            for client in self.clients:
                for _ in range(dice.choice((0, 1, 1, 10)) if client.publishes and client.ready else 0):
                    client.publish()

    def everybody(self) -> None:
        """Publish one message with every publisher of a herd."""
        for client in self.clients:
            if client.publishes and client.ready:
                client.publish()

    def _bury(self) -> None:
        self._published += sum(client.published for client in self.clients if client.dead)
        self.clients = [client for client in self.clients if not client.dead]

    def calm(self) -> None:
        self.lane.loss = self.lane.double = 0.0
        self.lane.delay = 0.01

    def settled(self) -> str:
        """Return what a client still waits for, or an empty string; a new client must receive every record."""
        self._bury()
        if len(self.last) < 2 or any(client.dead for client in self.last):
            self.last = [self.connect(0), self.connect(None)]
        if not all(client.ready for client in self.last):
            return "the last clients are not connected"
        late, publisher = self.last
        if not publisher.published:
            publisher.publish()
        end = len(self.history.truth.get(STREAM, ()))
        for client in self.clients:
            if client.reader.position is None and client.publishes and not client.waiting:
                continue  # it was disconnected when the last record came, and has received nothing to ask from
            if client.waiting or client.reader.position != end:
                return f"{client.name} has up to {client.reader.position} of {end}, and {client.waiting} unconfirmed"
        if late.gaps:
            self.history.wrong(f"a client that had everything sent to it has lost {late.gaps}")
        return ""
