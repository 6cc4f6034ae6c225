"""The plugin: endpoints, and the service."""

from __future__ import annotations

import errno
import select
import socket
from typing import Any

import pytest
from twisted.internet.error import CannotListenError
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from fyrehose.core.broker import Broker
from fyrehose.core.sequencer import Sequencer
from fyrehose.errors import ConfigError
from fyrehose.interfaces import IProtocolPlugin
from fyrehose.protocols.backbone import udp
from fyrehose.protocols.backbone.frames import MAX_DATA, TOKEN, Flags, KeepAlive
from fyrehose.protocols.backbone.plugin import parse_endpoint, plugin
from fyrehose.protocols.backbone.settings import Settings
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal


class SilentReactor(Clock):
    """A clock with readers that are never called."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: set[object] = set()

    def addReader(self, reader: object) -> None:
        self.readers.add(reader)

    def removeReader(self, reader: object) -> None:
        self.readers.discard(reader)

    def removeWriter(self, writer: object) -> None:
        """Do nothing."""


@pytest.fixture
def broker() -> Broker:
    broker = Broker(Clock(), MemoryJournal(), Sequencer())
    broker.open()
    return broker


def test_plugin_provides_the_interface() -> None:
    assert verifyObject(IProtocolPlugin, plugin)
    assert (plugin.name, plugin.default_endpoint, plugin.settings) == (
        "backbone",
        "udp:2323:interface=127.0.0.1",
        Settings,
    )


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("udp:2323:interface=127.0.0.1", ("127.0.0.1", 2323)),
        ("udp:0:interface=10.0.0.7", ("10.0.0.7", 0)),
        ("udp:65535", ("0.0.0.0", 65535)),
    ],
)
def test_valid_endpoints(endpoint: str, address: tuple[str, int]) -> None:
    assert parse_endpoint(endpoint) == address


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "udp",
        "udp:",
        "tcp:2323",
        "UDP:2323",
        "udp:65536",
        "udp:-1",
        "udp: 1",
        "udp:٣",
        "udp:2323:",
        "udp:2323:127.0.0.1",
        "udp:2323:interface=",
        "udp:2323:interface=localhost",
        "udp:2323:interface=::1",
        "udp:2323:interface=127.0.0.1:backlog=5",
        "udp:2323:host=127.0.0.1",
    ],
)
def test_invalid_endpoint_is_refused_with_the_expected_form(endpoint: str, broker: Broker) -> None:
    with pytest.raises(ConfigError, match="expected udp:PORT or udp:PORT:interface=IP"):
        plugin.make_service(SilentReactor(), broker, endpoint, Settings())


def test_other_protocols_cannot_publish_oversized_payloads(broker: Broker) -> None:
    plugin.make_service(SilentReactor(), broker, plugin.default_endpoint, Settings(stream="news"))
    failures: list[Any] = []
    broker.publish([Run.of("news", [bytes(MAX_DATA + 1)], source="figg")]).addErrback(failures.append)
    assert "exceeds the limit of 65498 bytes" in str(failures[0].value)
    broker.publish([Run.of("news", [bytes(MAX_DATA)], source="figg")])
    assert broker.bounds("news") == (1, 1)


def test_service_binds_on_start_and_closes_on_stop(broker: Broker) -> None:
    reactor = SilentReactor()
    service = plugin.make_service(reactor, broker, "udp:0:interface=127.0.0.1", Settings(receive_buffer=4_096))
    assert reactor.readers == set()
    assert service.stopService().called  # not started: nothing to stop
    started: list[Any] = []
    service.startService().addCallback(started.append)
    port = started[0]
    at = (port.getHost().host, port.getHost().port)
    assert reactor.readers == {port}
    assert port.getHost().host == "127.0.0.1"
    assert service.connections == 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        peer.sendto(KeepAlive(address=peer.getsockname(), flags=Flags(0), token=bytes(TOKEN)).serialize(), at)
        assert select.select([port], [], [], 30)[0]
        port.doRead()
    assert service.connections == 1
    reactor.advance(6)
    assert service.connections == 0, "the subscriber has expired"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other, pytest.raises(OSError) as taken:
        other.bind(at)
    assert taken.value.errno == errno.EADDRINUSE
    assert service.stopService().called
    assert reactor.readers == set()
    assert reactor.getDelayedCalls() == []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(at)


def test_port_in_use_fails_the_start(broker: Broker) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        endpoint = f"udp:{other.getsockname()[1]}:interface=127.0.0.1"
        service = plugin.make_service(SilentReactor(), broker, endpoint, Settings())
        failures: list[Any] = []
        service.startService().addErrback(failures.append)
        assert failures[0].check(CannotListenError)
        assert service.stopService().called


def test_local_addresses_are_recognised() -> None:
    assert udp.is_local("127.0.0.1")
    assert not udp.is_local("192.0.2.1")
