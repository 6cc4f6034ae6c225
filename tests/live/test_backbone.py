"""Test the backbone on loopback: with plain sockets and hand-made bytes against the plugin, and with our client."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from typing import Any

import attrs
import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.task import deferLater

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.protocols.backbone.client import BackboneClient
from fyrehose.protocols.backbone.plugin import plugin
from fyrehose.protocols.backbone.session import BackboneOptions
from fyrehose.protocols.backbone.settings import BackboneSettings
from fyrehose.testing import MemoryJournal, until
from tests.live.conftest import PATIENCE

pytestmark = pytest.mark.live

SOL_UDP, UDP_SEGMENT = 17, 103


@attrs.define(eq=False)
class Peer:
    """A plain socket that speaks the backbone with hand-made bytes."""

    server: tuple[str, int]
    host: str = "127.0.0.1"
    socket: socket.socket = attrs.field(init=False)
    received: list[bytes] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.bind((self.host, 0))
        self.socket.setblocking(False)

    @property
    def port(self) -> int:
        port: int = self.socket.getsockname()[1]
        return port

    def send(self, datagram: bytes) -> None:
        self.socket.sendto(datagram, self.server)

    def push(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.send(struct.pack(">BH6x", 2, len(payload)) + payload)

    def push_batch(self, payloads: list[bytes]) -> None:
        """Push payloads of one size in one system call."""
        data = b"".join(struct.pack(">BH6x", 2, len(payload)) + payload for payload in payloads)
        segment = struct.pack("=H", 9 + len(payloads[0]))
        self.socket.sendmsg([data], [(SOL_UDP, UDP_SEGMENT, segment)], 0, self.server)

    def keep_alive(self, flags: int = 0, host: str = "0.0.0.0", port: int = 0) -> None:
        self.send(struct.pack(">B4sHHI16s", 16, socket.inet_aton(host), port or self.port, 0, flags, b"T" * 16))

    def request(self, first: int, last: int) -> None:
        head = struct.pack(">B4sH", 4, socket.inet_aton(self.host), self.port)
        self.send(head + first.to_bytes(6, "big") + last.to_bytes(6, "big"))

    def read(self) -> list[bytes]:
        """Return all datagrams that have arrived so far."""
        while True:
            try:
                self.received.append(self.socket.recv(1 << 16))
            except BlockingIOError:
                return self.received

    def delivers(self) -> list[tuple[int, bytes]]:
        found = []
        for datagram in self.read():
            if datagram[0] == 1:
                length = int.from_bytes(datagram[1:3], "big")
                assert len(datagram) == 9 + length
                found.append((int.from_bytes(datagram[3:9], "big"), datagram[9:]))
        return found

    async def join(self, flags: int = 0) -> None:
        """Send a KEEPALIVE, and wait until it is acknowledged."""
        self.keep_alive(flags)
        await until(reactor, lambda: b"\x20" + b"T" * 16 in self.read())


@attrs.define(eq=False)
class Server:
    """The plugin on a free port of the loopback interface."""

    broker: Broker
    service: Any
    address: tuple[str, int]
    peers: list[Peer] = attrs.field(factory=list)

    @classmethod
    async def start(cls, endpoint: str = "udp:0:interface=127.0.0.1", **settings: Any) -> Server:
        broker = Broker(reactor, MemoryJournal(), Sequencer())  # type: ignore[arg-type]
        await broker.open()
        service = plugin.make_service(reactor, broker, endpoint, BackboneSettings(**settings))
        port = await service.startService()
        return cls(broker, service, ("127.0.0.1", port.getHost().port))

    def peer(self, host: str = "127.0.0.1") -> Peer:
        self.peers.append(Peer(self.address, host))
        return self.peers[-1]

    def records(self) -> list[bytes]:
        last = self.broker.bounds("backbone")[1]
        records: list[bytes] = []
        while len(records) < last:
            for run in self.broker.read("backbone", len(records) + 1, 1 << 20):
                records += [bytes(payload) for payload in run.payloads()]
        return records

    def count(self, what: str) -> int:
        return self.broker.counters.counts["backbone", what]

    async def stop(self) -> None:
        for peer in self.peers:
            peer.socket.close()
        await self.service.stopService()
        await self.broker.close()


@pytest_twisted.ensureDeferred
async def test_records_are_the_same_whether_datagrams_are_batched_or_not() -> None:
    payloads = [b"%04d" % i for i in range(640)]
    seen = []
    for batching in (True, False):
        server = await Server.start(batching=batching)
        publisher, subscriber = server.peer(), server.peer()
        await subscriber.join()
        for at in range(0, 320, 64):
            publisher.push_batch(payloads[at : at + 64])
        for at in range(320, 640, 40):
            publisher.push(*payloads[at : at + 40])
            await deferLater(reactor, 0)  # type: ignore[arg-type]
        publisher.push_batch([*[b"same"] * 9, b"end"])
        await until(reactor, lambda server=server: server.broker.bounds("backbone")[1] == 650)
        assert server.records() == [*payloads, *[b"same"] * 9, b"end"]
        await until(reactor, lambda subscriber=subscriber: len(subscriber.delivers()) == 650)
        seen.append(subscriber.delivers())
        await server.stop()
    assert seen[0] == seen[1] == list(enumerate([*payloads, *[b"same"] * 9, b"end"], 1))


@pytest_twisted.ensureDeferred
async def test_threat_forged_and_own_addresses_do_not_subscribe() -> None:
    """The server is bound to all addresses, so that it has several addresses of its own."""
    server = await Server.start(endpoint="udp:0")
    peer = server.peer()
    peer.keep_alive(host="127.0.0.2")
    peer.keep_alive(host="127.0.0.1", port=server.address[1])
    peer.keep_alive(port=server.address[1])
    await until(reactor, lambda: server.count("foreign-address") == 1 and server.count("own-address") == 2)
    peer.push(b"one")
    await until(reactor, lambda: server.broker.bounds("backbone")[1] >= 1)
    await deferLater(reactor, 0.1)  # type: ignore[arg-type]
    assert server.broker.bounds("backbone") == (1, 1)
    assert peer.read() == []
    await server.stop()


@pytest_twisted.ensureDeferred
async def test_threat_a_subscriber_that_closes_its_port_disturbs_nobody() -> None:
    server = await Server.start()
    gone, stays = server.peer(), server.peer()
    await gone.join()
    await stays.join()
    gone.socket.close()
    for i in range(100):
        stays.push(b"%d" % i)
        await until(reactor, lambda i=i: len(stays.delivers()) == i + 1)
    assert stays.delivers() == [(i + 1, b"%d" % i) for i in range(100)]
    await server.stop()


@pytest_twisted.ensureDeferred
async def test_a_request_is_answered_although_300_peers_never_answer() -> None:
    """300 clients with FLAGS=0 say that they would answer FORWARDs, and do not."""
    server = await Server.start()
    publisher, asker = server.peer(), server.peer()
    payloads = [b"%d" % i for i in range(2_000)]
    for at in range(0, 2_000, 50):
        publisher.push(*payloads[at : at + 50])
        await until(reactor, lambda at=at: server.broker.bounds("backbone")[1] == at + 50)
    mute = [server.peer() for _ in range(300)]
    for peer in mute:
        await peer.join()
    await asker.join(flags=3)
    asker.request(1, 2_000)
    await until(reactor, lambda: asker.delivers() or any(8 in [d[0] for d in peer.read()] for peer in mute))
    first = 1
    if not asker.delivers():
        # A repeated request differs a little, because records have come meanwhile.
        first = 2
        asker.request(first, 2_000)
    await until(reactor, lambda: asker.delivers())
    await until(reactor, lambda: asker.delivers()[-1][0] == 2_000)
    assert asker.delivers() == [(seq, payloads[seq - 1]) for seq in range(first, 2_001)]
    await server.stop()


@pytest_twisted.ensureDeferred
async def test_threat_every_pushed_message_of_a_burst_is_stored_once_or_dropped_by_the_kernel() -> None:
    """Of 100,000 datagrams sent at once, each is in the journal once or was never read, and the server continues."""
    server = await Server.start(push_rate=10_000_000)
    peer = server.peer()
    for at in range(0, 100_000, 50):
        peer.push_batch([b"%08d" % i for i in range(at, at + 50)])
        if at % 5_000 == 0:
            await deferLater(reactor, 0)  # type: ignore[arg-type]
    peer.push(b"the end!")
    await until(reactor, lambda: (server.records() or [b""])[-1] == b"the end!" or peer.push(b"the end!"))
    records = server.records()
    pushed = [int(record) for record in records if record != b"the end!"]
    assert pushed == sorted(set(pushed))
    assert server.count("pushes") == len(records)
    await peer.join()
    await server.stop()


#: A program that serves the backbone with Twisted's own UDP port.
PROGRAM = """
from twisted.internet import {0}reactor
{0}reactor.install()
from twisted.internet import reactor
from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.protocols.backbone.server import BackboneProtocol
from fyrehose.testing import MemoryJournal
from tests.live.conftest import PATIENCE

broker = Broker(reactor, MemoryJournal(), Sequencer())
broker.open()
port = reactor.listenUDP(0, BackboneProtocol(broker), interface="127.0.0.1")
print(type(reactor).__name__, port.getHost().port, flush=True)
reactor.run()
"""


@pytest.mark.parametrize(
    ("name", "kind"), [("epoll", "EPollReactor"), ("select", "SelectReactor"), ("asyncio", "AsyncioSelectorReactor")]
)
@pytest_twisted.ensureDeferred
async def test_the_backbone_works_on_any_udp_port_with_any_reactor(name: str, kind: str) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM.format(name)], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        running, port = program.stdout.readline().split()
        assert running == kind
        writer = BackboneClient(reactor, "127.0.0.1", int(port), options=BackboneOptions(timeout=60.0, window=50))
        late: list[bytes] = []
        reader = BackboneClient(reactor, "127.0.0.1", int(port))
        reader.subscribe(None, lambda run: late.extend(map(bytes, run.payloads())), 0)
        await writer.connect()
        payloads = [*(b"%d" % i for i in range(500)), bytes(60_000)]
        for payload in payloads:
            await writer.ready()
            writer.publish(None, payload)
        await writer.drained()
        await reader.connect()
        await until(reactor, lambda: len(late) >= len(payloads))
        assert set(late) == set(payloads)
        await writer.close()
        await reader.close()
        program.terminate()
        assert program.wait(PATIENCE) == 0
