"""Golden packets, a server with hand-made peers, and access to the simulated network of tests/verification/torture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import attrs
import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectError, ConnectionDone
from twisted.internet.interfaces import ISSLTransport, IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import alsoProvides, implementer

from fyrehose.broker.broker import Broker
from fyrehose.broker.quotas import PeerLimits
from fyrehose.broker.sequencer import Sequencer
from fyrehose.broker.streams import UNLIMITED, StreamRules
from fyrehose.errors import Closed
from fyrehose.interfaces import JournalState
from fyrehose.net.clients import ConnectionOptions
from fyrehose.options import build
from fyrehose.protocols.relink.client import RelinkClient
from fyrehose.protocols.relink.frames import (
    ID_SIZES,
    Ack,
    Acknowledgement,
    General,
    GeneralPacket,
    Hello,
    Message,
    Op,
    Operation,
    Packet,
    Terms,
)
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.registry import Registry
from fyrehose.protocols.relink.service import RelinkFactory
from fyrehose.protocols.relink.session import ConnectorSession
from fyrehose.protocols.relink.settings import RelinkSettings
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal, Transport
from tests.doubles.steps import advance_until


@attrs.frozen(kw_only=True)
class Vector:
    """A packet, the size of its channel ids, its bytes, and a mask of the bits that are used."""

    packet: Packet
    id_size: int
    text: str  #: the bytes in hexadecimal, with spaces between the fields
    used: bytes
    fields: dict[str, bool] = attrs.field(factory=dict)  #: arguments of serialize()

    @property
    def data(self) -> bytes:
        """Return the bytes."""
        return bytes.fromhex(self.text)


@attrs.define
class Specified:
    """The bytes of a packet as section 2 of the specification says, field by field, and which bits are used."""

    data: bytes = b""
    used: bytes = b""
    fields: list[str] = attrs.field(factory=list)

    def put(self, data: bytes, used: bytes | None = None) -> None:
        self.data += data
        self.fields += [data.hex()] * bool(data)
        self.used += b"\xff" * len(data) if used is None else used

    def align(self, size: int) -> None:
        padding = bytes(-len(self.data) % size)
        self.put(padding, padding)

    def number(self, value: int, size: int) -> None:
        self.put(value.to_bytes(size, "little"))

    def packet(self, packet: Packet, id_size: int, *, long: bool = False, large: bool = False) -> None:
        if isinstance(packet, GeneralPacket):
            self.put(bytes([packet.kind << 5, 0]), b"\xe1\0")
        else:
            first, second, used = self.head(packet, long, large)
            self.put(bytes([first | 2 * packet.multicast, second]), used)
            if packet.multicast:
                self.align(4)
                self.number(len(packet.channels), 4)
            for channel in packet.channels:
                self.put(channel.to_bytes(id_size, "little"))
            if isinstance(packet, Message):
                self.parts(packet.parts, long, large)
            elif packet.number is not None:
                self.align(4)
                self.number(packet.number, 4)
        self.align(8)

    @staticmethod
    def head(packet: Any, long: bool, large: bool) -> tuple[int, int, bytes]:
        if isinstance(packet, Message):
            length = 0 if long else len(packet.parts)
            return 0x11 | long << 5 | large << 6, length, b"\x7f\0" if long else b"\x7f\xff"
        form = 2 * (packet.number is not None) + isinstance(packet, Acknowledgement)
        return 1 | form << 2 | packet.kind << 5, 0, b"\xff\0"

    def parts(self, parts: Sequence[bytes], long: bool, large: bool) -> None:
        self.align(2)
        if long:
            self.number(len(parts), 4)
        if large and parts:
            self.align(8)
        for part in parts:
            self.number(len(part), 8 if large else 2)
        for part in parts:
            self.align(8)
            self.put(part)


def specified(packet: Packet, id_size: int, **fields: bool) -> Vector:
    made = Specified()
    made.packet(packet, id_size, **fields)
    return Vector(packet=packet, id_size=id_size, text=" ".join(made.fields), used=made.used, fields=fields)


def operation(kind: Op, channel: int = 0, number: int | None = None) -> Operation:
    return Operation(kind=kind, channels=(channel,), number=number)


def message(*parts: bytes, channels: tuple[int, ...] = (0,), multicast: bool = False) -> Message:
    return Message(channels=channels, parts=parts, multicast=multicast)


def every_packet() -> Iterator[Vector]:
    """Yield packets of every type, with every size of ids, one target and several, and every way to write lengths."""
    yield from (specified(GeneralPacket(kind=kind), 0) for kind in General)
    for size in ID_SIZES:
        largest = (1 << 8 * size) - 1
        for channels in ((largest // 3,), (largest,), (), (0, largest, largest // 5)):
            multicast = len(channels) != 1
            for number in (None, 0, 0x0A0B0C0D):
                kinds = (*Op, *Ack) if number is None else (Op.COMMIT, Op.ROLLBACK, *list(Ack)[:4])
                for kind in kinds:
                    type_ = Operation if isinstance(kind, Op) else Acknowledgement
                    yield specified(type_(kind=kind, channels=channels, number=number, multicast=multicast), size)
            for parts in ((), (b"",), (b"z",), (b"12345678",), (b"abc", b"", b"defgh"), (b"x" * 9, b"")):
                for long, large in product((False, True), repeat=2):
                    yield specified(
                        message(*parts, channels=channels, multicast=multicast), size, long=long, large=large
                    )


#: The examples of the specification (2.3.1, 2.3.2, 2.3.3.3).
EXAMPLES: list[tuple[Packet, int, dict[str, bool], str]] = [
    (operation(Op.COMMIT, 0x1234), 2, {}, "0100 3412 00000000"),
    (operation(Op.COMMIT, 0x0102030405060708, 0x0A0B0C0D), 8, {}, "0900 0807060504030201 0000 0d0c0b0a"),
    (
        message(b"abc", b"", b"defgh", channels=(9,)),
        1,
        {},
        "1103 09 00 0300 0000 0500 000000000000 616263 0000000000 6465666768 000000",
    ),
    (
        message(b"x" * 9, b"", channels=(1, 2), multicast=True),
        4,
        {"long": True, "large": True},
        f"7300 0000 02000000 01000000 02000000 02000000 00000000 0900000000000000 {8 * '00'} {9 * '78'} {7 * '00'}",
    ),
]


@pytest.fixture
def examples() -> list[tuple[Packet, int, dict[str, bool], str]]:
    return EXAMPLES


@pytest.fixture(scope="session")
def vectors() -> list[Vector]:
    return list(every_packet())


class CertifiedTransport(Transport):
    """A transport whose peer has a certificate."""

    certificate: Any = None

    def getPeerCertificate(self) -> Any:
        return self.certificate


@attrs.define(eq=False)
class Peer:
    """A connector session, connected to a protocol of the server."""

    server: Server
    protocol: Any
    transport: Transport
    session: ConnectorSession
    events: list[Any] = attrs.field(factory=list)

    @property
    def link(self) -> Link:
        assert self.session.link is not None
        return self.session.link

    def talk(self) -> list[Any]:
        """Exchange bytes until both sides are idle, and return the events of this side."""
        received: list[Any] = []
        while True:
            sent = b"".join(self.session.data_to_send())
            if sent and not self.transport.disconnecting:
                self.protocol.dataReceived(sent)
            self.server.clock.advance(0)
            answer = self.transport.value()
            self.transport.clear()
            received += self.session.receive_data(answer)
            if not sent and not answer:
                self.events += received
                return received

    def publish(self, *payloads: bytes, channel: int = 0) -> list[Any]:
        """Send messages of one part, and return the events of this side."""
        for payload in payloads:
            self.link.send((channel,), (payload,))
        return self.talk()

    def say(self, data: bytes) -> None:
        """Send raw bytes to the server."""
        self.protocol.dataReceived(data)

    def leave(self) -> None:
        self.session.receive_eof()
        self.protocol.connectionLost(Failure(ConnectionDone()))

    def reconnect(self) -> Peer:
        """Lose the connection, and return a peer that resumes the link on another one."""
        self.leave()
        return self.server.linked(old=self.link)

    @property
    def closed(self) -> bool:
        return self.transport.disconnecting or self.transport.aborted


@attrs.define(eq=False)
class Server:
    """A server in memory; ``restart`` simulates a crash and another start."""

    journal: MemoryJournal
    clock: Clock
    settings: RelinkSettings
    limits: PeerLimits = attrs.field(factory=PeerLimits)
    rules: StreamRules = UNLIMITED
    link_memory: int | None = None  #: memory of all links, in place of half of the server's
    now: int = 1_000_000
    #: how far the reactor's clock is ahead of the one that never steps, in seconds
    off: float = 0.0
    broker: Broker = attrs.field(init=False)
    registry: Registry = attrs.field(init=False)
    factory: Any = attrs.field(init=False)
    _random: int = 0

    def start(self) -> None:
        self.broker = Broker(self.clock, self.journal, Sequencer(), limits=self.limits, rules=self.rules)
        self.broker.open()
        self.registry = Registry(self.broker, self.clock, self.settings, ".relink/x", self.bits)
        self.registry.memory.capacity = self.link_memory or self.registry.memory.capacity
        opened: list[Any] = []
        self.registry.open().addBoth(opened.append)
        while not opened and self.journal.state is JournalState.WRITABLE:
            if not self.journal.auto:
                self.journal.commit()
            self.clock.advance(0)
        assert opened
        self.factory = RelinkFactory(self.broker, self.settings, self.clock, self.registry)

    def restart(self) -> None:
        self.registry.close()
        self.start()

    def monotonic(self) -> int:
        return int((self.clock.seconds() - self.off) * 1_000_000)

    def bits(self, count: int) -> int:
        self._random += 1
        return self._random

    def connect(
        self,
        name: str = "publish:s",
        *,
        old: Link | None = None,
        require: bool = False,
        host: str = "127.0.0.1",
        certificate: Any = None,
        hello: Hello | None = None,
        **terms: Any,
    ) -> Peer:
        """Return a connector before its first byte."""
        address = IPv4Address("TCP", host, 5000)
        protocol = self.factory.buildProtocol(address)
        transport = CertifiedTransport(peerAddress=address)
        transport.certificate = certificate
        if certificate is not None:
            alsoProvides(transport, ISSLTransport)
        wanted = old.terms if old else Terms(endpoint=name, **{"connector_size": 1, **terms})
        if hello is None:
            hello = Hello(terms=wanted, require=require, epoch=old.epoch if old else 0, link_id=old.id if old else 0)
        session = ConnectorSession(link=old, hello=hello, new_link=lambda epoch, id_: Link(wanted, True, epoch, id_))
        protocol.makeConnection(transport)
        return Peer(self, protocol, transport, session)

    def linked(self, name: str = "publish:s", **more: Any) -> Peer:
        """Return a connector whose handshake is complete."""
        peer = self.connect(name, **more)
        peer.talk()
        return peer

    def linked_durably(self, name: str = "publish:s", **more: Any) -> Peer:
        """Return a connector whose handshake is complete, where the test commits: the reply waits for the link."""
        peer = self.linked(name, **more)
        self.journal.commit()
        peer.talk()
        return peer

    def used(self, *payloads: bytes, **more: Any) -> Peer:
        """Return a publisher that has sent *payloads* on a new link."""
        peer = self.linked(**more)
        peer.publish(*payloads)
        return peer

    def publish(self, stream: str, *payloads: bytes, **more: Any) -> None:
        self.broker.publish([Run.of(stream, payloads, source="test", **more)])

    def records(self, stream: str = "s") -> list[Any]:
        return [record for run in self.journal.read(stream, 1, 1 << 30) for record in run.records()]

    def payloads(self, stream: str = "s") -> list[bytes]:
        return [record.payload for record in self.records(stream)]

    def count(self, what: str) -> int:
        return self.broker.counters.counts["relink", what]


@pytest.fixture
def make_server() -> Any:
    """Return a function that makes servers: ``make_server(auto=True, **settings)``; if not *auto*, the test commits.

    A setting is the text of an option, or the value of a field that is none.
    """
    made: list[Server] = []

    def make(
        auto: bool = True,
        limits: PeerLimits | None = None,
        rules: StreamRules = UNLIMITED,
        link_memory: int | None = None,
        **settings: Any,
    ) -> Server:
        texts = {name: text for name, text in settings.items() if isinstance(text, str)}
        values = {name: value for name, value in settings.items() if name not in texts}
        built = attrs.evolve(build(RelinkSettings, "relink", texts), **{"refusal_delay": 0.0, **values})
        journal = MemoryJournal(auto=auto, now=lambda: server.now, monotonic=lambda: server.monotonic())
        server = Server(journal, Clock(), built, limits or PeerLimits(), rules, link_memory)
        server.start()
        made.append(server)
        return server

    yield make
    for server in made:
        server.registry.close()


@implementer(IStreamClientEndpoint)
@attrs.define(eq=False)
class Wire:
    """An endpoint whose connections lead to a :class:`Server`, and can be cut."""

    server: Server
    refusing: bool = False
    near: Any = None
    far: Any = None
    attempts: int = 0

    def connect(self, factory: Any) -> Deferred[Any]:
        self.attempts += 1
        if self.refusing:
            return fail(ConnectError())
        address = IPv4Address("TCP", "127.0.0.1", 5000)
        self.near, self.far = factory.buildProtocol(address), self.server.factory.buildProtocol(address)
        self.far.makeConnection(Transport(peerAddress=address))
        self.near.makeConnection(Transport(peerAddress=address))
        return succeed(self.near)

    def pump(self, seconds: float = 0.0) -> None:
        """Exchange bytes until both sides are idle."""
        self.server.clock.advance(seconds)
        while self.near is not None:
            self.server.clock.advance(0)
            moved = False
            for one, other in ((self.near, self.far), (self.far, self.near)):
                if one is None:
                    return
                sent = one.transport.value()
                one.transport.clear()
                if sent:
                    moved = True
                    other.dataReceived(sent)
            if (
                self.near.transport.aborted
                or self.far.transport.aborted
                or (not moved and (self.near.transport.disconnecting or self.far.transport.disconnecting))
            ):
                self.cut()
            elif not moved:
                return

    def reconnect(self) -> None:
        """Let the client connect again, and exchange bytes until both sides are idle."""
        self.pump(1)
        self.pump()

    def settle(self) -> None:
        """Let time pass until the client has a link, and two more seconds, in which nothing is left to be done."""
        advance_until(lambda: self.near is not None and self.near.session.linked, Pumped(self))
        self.pump(1)
        self.pump(1)

    def cut(self) -> None:
        near, far, self.near, self.far = self.near, self.far, None, None
        for one in (near, far):
            if one is not None:
                one.connectionLost(Failure(ConnectionDone()))

    def lose_link(self) -> None:
        """Make the server forget all links, and cut the connection."""
        registry = self.server.registry
        for entry in list(registry.entries.values()):
            registry.discard(entry)
        self.cut()

    def crash(self) -> None:
        """Crash the server, start another one, and lose the connection."""
        near, self.near, self.far = self.near, None, None
        self.server.restart()
        near.connectionLost(Failure(ConnectionDone()))


@pytest.fixture(scope="session")
def make_wire() -> type[Wire]:
    """Return the class of endpoints: ``make_wire(server)``."""
    return Wire


@attrs.define(eq=False)
class Pumped:
    """The clock of a wire, whose bytes arrive as time passes."""

    wire: Wire

    def seconds(self) -> float:
        return self.wire.server.clock.seconds()

    def advance(self, seconds: float) -> None:
        self.wire.pump(seconds)


#: a client that waits half a second more after each failure
OPTIONS = ConnectionOptions(retry=lambda failures: 0.5 * failures)


@pytest.fixture
def make_client(make_server: Any) -> Any:
    """Return a function that makes a client and its wire: ``make_client("publish:s", transactional=True)``."""
    made: list[tuple[RelinkClient, Wire]] = []

    def make(
        name: str = "publish:s", server: Server | None = None, kind: type[RelinkClient] = RelinkClient, **more: Any
    ) -> tuple[RelinkClient, Wire]:
        wire = Wire(server or make_server())
        client = kind(wire.server.clock, wire, name, **{"connection_options": OPTIONS, **more})
        made.append((client, wire))
        client.connect().addErrback(lambda failure: failure.trap(Closed))
        wire.pump()
        return client, wire

    yield make
    for client, wire in made:
        client.close().addErrback(lambda failure: None)
        wire.pump()
        wire.pump(6)
        wire.cut()
