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
