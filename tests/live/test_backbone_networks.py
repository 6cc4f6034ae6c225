"""Test backbone clients on networks that change or translate addresses, and on a link with a small MTU.

The networks are namespaces of the kernel, without a name, which end with the test.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import DNSLookupError
from twisted.internet.interfaces import IResolverSimple
from twisted.internet.protocol import DatagramProtocol
from zope.interface import implementer

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.protocols.backbone.client import BackboneClient
from fyrehose.protocols.backbone.plugin import plugin
from fyrehose.protocols.backbone.session import BackboneOptions
from fyrehose.protocols.backbone.settings import BackboneSettings
from fyrehose.testing import MemoryJournal, until
from fyrehose.testing.ports import free_port
from tests.live.conftest import FYREHOSE, PATIENCE, Start
from tests.live.networks import Network

pytestmark = pytest.mark.live

POLICY = """
[[allow]]
network = "10.0.0.0/8"
publish = "*"
subscribe = "*"
"""


@attrs.define(eq=False)
class Networks:
    """A server at 10.9.0.1, and clients at 10.8.0.2, with a router between them.

    :ivar tails: the running ``fyrehose tail`` commands
    """

    server: Network
    router: Network
    clients: Network
    programs: list[subprocess.Popen[Any]] = attrs.field(factory=list)

    @classmethod
    def make(cls, mtu: int = 1_500) -> Networks:
        server = Network.make()
        networks = cls(server, Network.make(server), Network.make(server))
        server.link("10.9.0.1", networks.router, "10.9.0.254", mtu=mtu)
        networks.clients.link("10.8.0.2", networks.router, "10.8.0.254")
        server.route("10.9.0.254")
        networks.clients.route("10.8.0.254")
        networks.router.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        return networks

    def serve(self, start: Start, folder: Path) -> None:
        policy = folder / "policy.toml"
        policy.write_text(POLICY)
        words = ("--data-dir", "data", "--policy", str(policy), "--option", "backbone.trusted=10.0.0.0/8")
        start(*words, "--listen", "backbone=udp:2323:interface=10.9.0.1", command=self.server.inside)

    def publish(self, network: Network, message: str) -> None:
        """Publish *message* from *network*; fail if it is not confirmed."""
        words = ("publish", "--protocol", "backbone", "--to", "10.9.0.1:2323", message)
        subprocess.run([*network.inside, FYREHOSE, *words], check=True, timeout=PATIENCE)

    def tail(self, *words: str) -> subprocess.Popen[str]:
        """Start ``fyrehose tail`` in the network of the clients."""
        command = [*self.clients.inside, FYREHOSE, "tail", "--protocol", "backbone", "--from", "10.9.0.1:2323"]
        program = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True)
        self.programs.append(program)
        return program

    def end(self) -> None:
        for program in self.programs:
            program.kill()
            program.communicate()
        for network in (self.clients, self.router, self.server):
            network.end()


@pytest.fixture
def networks() -> Iterator[Networks]:
    made = Networks.make()
    yield made
    made.end()


@pytest.fixture
def narrow_networks() -> Iterator[Networks]:
    """Networks with a link of MTU 1,400, whose router sends no ICMP errors: a black hole for path MTU discovery."""
    made = Networks.make(mtu=1_400)
    made.router.run("ip", "rule", "add", "iif", "lo", "blackhole")
    yield made
    made.end()


def read_line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().rstrip("\n")


def test_subscriber_continues_after_its_own_address_has_changed(
    networks: Networks, start: Start, tmp_path: Path
) -> None:
    networks.serve(start, tmp_path)
    tail = networks.tail("--since", "start")
    networks.publish(networks.server, "before")
    assert read_line(tail) == "before"
    interface = "to-10.8.0.254"
    networks.clients.run("ip", "address", "add", "10.8.0.3/24", "dev", interface)
    networks.clients.run("ip", "address", "del", "10.8.0.2/24", "dev", interface)
    # The kernel may have removed the new address, a secondary one, together with the old one; and the route with both.
    networks.clients.run("ip", "address", "replace", "10.8.0.3/24", "dev", interface)
    networks.clients.run("ip", "route", "replace", "default", "via", "10.8.0.254")
    networks.publish(networks.server, "meanwhile")
    assert read_line(tail) == "meanwhile"


def test_message_larger_than_the_mtu_of_a_silent_router_is_published_and_received(
    narrow_networks: Networks, start: Start, tmp_path: Path
) -> None:
    narrow_networks.serve(start, tmp_path)
    tail = narrow_networks.tail("--since", "start")
    messages = [f"{size} bytes".ljust(size, ".") for size in (1_300, 1_400, 1_450, 3_000)]
    for message in messages:
        narrow_networks.publish(narrow_networks.clients, message)
    assert [read_line(tail) for _ in messages] == messages


class Outside(DatagramProtocol):
    """The outer side of a :class:`Translator` for one client."""

    noisy = False

    def __init__(self, inside: Translator, client: tuple[str, int]) -> None:
        self.inside, self.client = inside, client

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        self.inside.transport.write(datagram, self.client)


class Translator(DatagramProtocol):
    """A router that puts an address and port of its own in place of the client's (NAT); clients send to it.

    :ivar ports: the outer port for each client
    """

    noisy = False
    transport: Any

    def __init__(self, server: tuple[str, int]) -> None:
        self.server = server
        self.ports: dict[Any, Any] = {}

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        if addr not in self.ports:
            listen: Any = reactor
            self.ports[addr] = listen.listenUDP(0, Outside(self, addr), interface="127.0.0.3")
        self.ports[addr].write(datagram, self.server)

    def forget(self) -> None:
        """Forget all clients, as a router does that starts again; their next datagrams come from other ports."""
        ports, self.ports = self.ports, {}
        for port in ports.values():
            port.stopListening()


@pytest_twisted.ensureDeferred
async def test_client_behind_a_router_that_translates_addresses_publishes_and_subscribes() -> None:
    loop: Any = reactor
    broker = Broker(loop, MemoryJournal(), Sequencer())
    await broker.open()
    service = plugin.make_service(loop, broker, "udp:0:interface=127.0.0.1", BackboneSettings())
    server: Any = await service.startService()
    translator = Translator(("127.0.0.1", server.getHost().port))
    inside = loop.listenUDP(0, translator, interface="127.0.0.2")
    client = BackboneClient(loop, "127.0.0.2", inside.getHost().port, options=BackboneOptions(retries=9))
    received: list[bytes] = []
    client.subscribe(None, lambda run: received.extend(map(bytes, run.payloads())))
    await client.connect()
    assert await client.publish(None, b"one") == 1
    translator.forget()
    assert await client.publish(None, b"two") == 2
    await until(reactor, lambda: received == [b"one", b"two"])
    assert broker.counters.counts["backbone", "foreign-address"] == 0
    await client.close()
    translator.forget()
    await inside.stopListening()
    await service.stopService()
    await broker.close()


@implementer(IResolverSimple)
@attrs.define
class NameServer:
    """Resolves each name to one address; without an address it fails, as a name server that does not run.

    :ivar asked: number of lookups
    """

    address: str | None = None
    asked: int = 0

    def getHostByName(self, name: str, timeout: object = ()) -> Deferred[str]:
        self.asked += 1
        return fail(DNSLookupError(name)) if self.address is None else succeed(self.address)


@pytest.fixture
def name_server() -> Iterator[NameServer]:
    loop: Any = reactor
    server = NameServer()
    before = loop.installResolver(server)
    yield server
    loop.installResolver(before)


@pytest_twisted.ensureDeferred
async def test_client_waits_for_the_name_server_and_follows_its_server_to_another_address(
    name_server: NameServer,
) -> None:
    loop: Any = reactor
    broker = Broker(loop, MemoryJournal(), Sequencer())
    await broker.open()
    number = free_port()
    service = plugin.make_service(loop, broker, f"udp:{number}:interface=127.0.0.1", BackboneSettings())
    await service.startService()
    client = BackboneClient(loop, "bus.example", number, options=BackboneOptions(retries=9))
    received: list[bytes] = []
    client.subscribe(None, lambda run: received.extend(map(bytes, run.payloads())))
    connected = client.connect()
    await until(reactor, lambda: name_server.asked >= 2)
    assert client.problem == "the host name has no address"
    name_server.address = "127.0.0.1"
    await connected
    assert await client.publish(None, b"one") == 1
    await service.stopService()
    service = plugin.make_service(loop, broker, f"udp:{number}:interface=127.0.0.2", BackboneSettings())
    await service.startService()
    name_server.address = "127.0.0.2"
    assert await client.publish(None, b"two") == 2
    await until(reactor, lambda: received == [b"one", b"two"])
    await client.close()
    await service.stopService()
    await broker.close()
