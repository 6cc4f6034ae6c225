"""The service: what is bound, who is asked, and what is closed, in which order."""

from __future__ import annotations

from pathlib import Path
from socket import create_server
from typing import Any

import pytest
import zmq
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort
from twisted.internet.task import Clock
from zmq.auth import create_certificates
from zope.interface.verify import verifyObject

from fyrehose.core.broker import Broker
from fyrehose.core.policy import parse
from fyrehose.core.sequencer import Sequencer
from fyrehose.errors import ConfigError
from fyrehose.protocols.eventbus import connections
from fyrehose.protocols.eventbus.handshakes import BAD, LEFT, TIMEOUT
from fyrehose.protocols.eventbus.service import EventBusService
from fyrehose.protocols.eventbus.settings import Settings
from fyrehose.protocols.eventbus.zmqport import ACCEPTED, CONNECTED, DISCONNECTED, FAILED, FAILED_AUTH, FAILED_PROTOCOL
from fyrehose.testing import MemoryJournal


class Reactor(Clock):
    """A clock with a thread pool that nobody uses."""

    def getThreadPool(self) -> None:
        return None


class House:
    """A service, and the fakes beneath it."""

    def __init__(self, fake: Any, host: str = "127.0.0.1", port: int = 5556, **options: Any) -> None:
        self.fake = fake
        self.reactor = Reactor()
        self.broker = Broker(self.reactor, MemoryJournal(), Sequencer())
        self.broker.open()
        self.service = EventBusService(self.reactor, self.broker, host, port, Settings(**options))

    def start(self) -> Any:
        results: list[Any] = []
        self.service.startService().addBoth(results.append)
        return results[0]

    def ask(self, address: bytes = b"127.0.0.1") -> bytes:
        """What the listener says to a connection from ``address``."""
        listener = self.fake.ports[0]
        listener.full = False
        listener.receive([b"1.0", b"1", b"eventbus.publish", address, b"", b"NULL"], 6)
        status: bytes = listener.sent.pop()[2]
        return status


@pytest.fixture
def make_house(fake_zmq: Any) -> Any:
    fake = fake_zmq("service")
    return lambda **options: House(fake, **options)


def test_three_ports_in_a_row_and_a_listener(make_house: Any) -> None:
    house = make_house()
    listening = house.start()
    assert verifyObject(IListeningPort, listening)
    assert (listening.getHost().host, listening.getHost().port) == ("127.0.0.1", 5556)
    listening.startListening()
    sockets = house.fake.contexts[0].sockets
    assert [socket.kind for socket in sockets] == [zmq.REP, zmq.ROUTER, zmq.PUB, zmq.ROUTER]
    assert [socket.bound[0] for socket in sockets] == [
        "inproc://zeromq.zap.01",
        "tcp://127.0.0.1:5556",
        "tcp://127.0.0.1:5557",
        "tcp://127.0.0.1:5558",
    ]
    domains = [socket.options[zmq.ZAP_DOMAIN] for socket in sockets[1:]]
    assert domains == [b"eventbus.subscribe", b"eventbus.subscribe", b"eventbus.publish"]
    assert sockets[1].options[zmq.MAXMSGSIZE] == 32 << 10
    assert sockets[3].options[zmq.MAXMSGSIZE] == 20 << 20
    assert (sockets[1].options[zmq.SNDHWM], sockets[2].options[zmq.SNDHWM]) == (1_000, 10_000)
    assert sockets[1].options[zmq.ROUTER_MANDATORY] == 1
    assert sockets[1].options[zmq.ROUTER_HANDOVER] == 0
    assert all(port.reading for port in house.fake.ports)
    assert listening.stopListening().called
    assert all(socket.closed for socket in sockets)
    assert sockets[2].linger == 1_000
    assert house.fake.contexts[0].ended
    assert all(monitor.closed for monitor in house.fake.monitors)
    house.reactor.advance(0)
    assert not house.reactor.getDelayedCalls()
    assert house.service.stopService().called


@pytest.mark.parametrize(("payload", "waiting"), [(16 << 20, 16), (1 << 20, 256), (256 << 10, 1_000), (1, 1_000)])
def test_as_many_pubs_wait_as_memory_holds(make_house: Any, payload: int, waiting: int) -> None:
    """Threat: huge messages."""
    house = make_house(max_payload=payload)
    house.start()
    assert house.fake.contexts[0].sockets[3].options[zmq.RCVHWM] == waiting


def test_it_starts_again(make_house: Any) -> None:
    house = make_house()
    house.start()
    house.service.stopService()
    house.fake.ports.clear()
    house.start()
    assert len(house.fake.contexts) == 2
    house.service.stopService()


def test_ipv6(make_house: Any) -> None:
    house = make_house(host="::1")
    assert house.start().getHost().host == "::1"
    assert house.fake.contexts[0].sockets[1].bound == ["tcp://[::1]:5556"]
    assert house.fake.contexts[0].sockets[1].options[zmq.IPV6] == 1
    house.service.stopService()


@pytest.mark.parametrize("taken", [5556, 5557, 5558])
def test_a_port_that_is_taken(make_house: Any, taken: int) -> None:
    house = make_house()
    house.fake.taken.add(f"tcp://127.0.0.1:{taken}")
    failure = house.start()
    error = failure.value
    assert isinstance(error, CannotListenError)
    assert (error.interface, error.port, error.socketError.strerror) == (
        "127.0.0.1",
        5556,
        "Address already in use",
    )
    assert house.fake.contexts[0].ended, "and everything is closed again"


def test_any_three_in_a_row(make_house: Any) -> None:
    house = make_house(port=0)
    house.fake.taken |= {"tcp://127.0.0.1:40002", "tcp://127.0.0.1:40004"}
    assert house.start().getHost().port == 40_005
    assert [socket.bound for socket in house.fake.contexts[0].sockets[1:]] == [
        ["tcp://127.0.0.1:40005"],
        ["tcp://127.0.0.1:40006"],
        ["tcp://127.0.0.1:40007"],
    ]
    house.service.stopService()


def test_no_three_in_a_row(make_house: Any) -> None:
    house = make_house(port=0)
    house.fake.taken |= {f"tcp://127.0.0.1:{port}" for port in range(40_002, 40_400, 2)}
    assert isinstance(house.start().value, CannotListenError)


def test_who_may_connect(make_house: Any) -> None:
    house = make_house(host="0.0.0.0")
    house.broker.guard.change(parse({"allow": [{"network": "10.0.0.0/8", "publish": "*"}]}))
    house.start()
    assert house.ask(b"10.1.2.3") == b"200"
    assert house.ask(b"11.1.2.3") == b"400"
    assert house.broker.counters.counts["eventbus", "Forbidden"] == 1
    house.service.stopService()


def test_how_many(make_house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    house = make_house(max_connections=2)
    house.start()
    monkeypatch.setattr(connections, "_peer", lambda port, descriptor: "127.0.0.1")
    ended: list[Any] = []
    monkeypatch.setattr(connections, "_shut_down", lambda *args: ended.append(args))
    monitors = house.fake.monitors
    for n in range(2):
        monitors[n].happened(ACCEPTED, 0)
        assert house.ask() == b"200"
    monitors[2].happened(ACCEPTED, 7)
    assert house.ask() == b"300"
    assert ended == [(7, ["127.0.0.1"], [5558])]
    monitors[2].happened(DISCONNECTED, 7)
    monitors[1].happened(DISCONNECTED, 0)
    monitors[2].happened(ACCEPTED, 7)
    assert house.ask() == b"200"
    assert house.broker.counters.counts["eventbus", "too-many-connections"] == 1
    assert house.broker.counters.counts["eventbus", "connections"] == 4
    assert house.service.connections == 2
    house.service.stopService()
    assert house.broker.counters.gauges["eventbus", "connections"] == 0


def test_a_handshake_that_fails_is_counted_and_logged(make_house: Any, log_lines: list[str]) -> None:
    house = make_house()
    house.start()
    snapshot, _, collector = house.fake.monitors
    counts = house.broker.counters.counts
    with create_server(("127.0.0.1", 0)) as listening:
        for monitor, event, number in (
            (snapshot, FAILED_PROTOCOL, 0x11000002),
            (collector, None, 0),
            (collector, FAILED, 11),
            (collector, FAILED, 32),
            (collector, FAILED_AUTH, 400),
            (collector, CONNECTED, 0),
        ):
            monitor.happened(ACCEPTED, listening.fileno())
            if event is not None:
                monitor.happened(event, number)
            monitor.happened(DISCONNECTED, listening.fileno())
    assert [counts["eventbus", cause] for cause in (BAD, TIMEOUT, LEFT)] == [2, 1, 1]
    lines = [line for line in log_lines if "handshake" in line]
    assert len(lines) == 2, "one a second for each cause, and none for checks whether the port is open"
    assert "bad-handshake from an unknown address at SNAPSHOT (port 5556): what it sent is no" in lines[0]
    assert house.service.connections == 0
    house.service.stopService()


def test_a_refused_connection_is_kept_open_for_a_second(make_house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_peer", lambda port, descriptor: "127.0.0.1")
    ended: list[int] = []
    monkeypatch.setattr(connections, "_shut_down", lambda descriptor, hosts, ports: ended.append(descriptor))
    house = make_house(max_connections=48)
    house.start()
    for n in range(48):
        house.fake.monitors[n % 3].happened(ACCEPTED, n)
    assert ended == []
    house.fake.monitors[0].happened(ACCEPTED, 48)
    assert ended == [48], "three are kept"
    house.fake.monitors[0].happened(DISCONNECTED, 45)
    house.reactor.advance(1)
    assert ended == [48, 46, 47]
    house.fake.monitors[0].happened(ACCEPTED, 49)
    house.service.stopService()
    assert not house.reactor.getDelayedCalls()


def test_keys(make_house: Any, tmp_path: Path) -> None:
    _, secret = create_certificates(tmp_path, "server")
    house = make_house(server_key=secret, client_keys=str(tmp_path))
    house.start()
    for socket in house.fake.contexts[0].sockets[1:]:
        assert socket.curve_server
        assert len(socket.curve_publickey) == len(socket.curve_secretkey) == 40
    assert house.ask() == b"400", "without a key"
    house.service.stopService()
    anybody = make_house(server_key=secret, client_keys="any")
    assert anybody.service._listener.clients is None


def test_a_change_of_the_policy_parts_with_those_who_may_not_any_more(
    make_house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parted: list[Any] = []
    monkeypatch.setattr(connections, "_shut_down", lambda *args: parted.append(args) or True)
    house = make_house(port=5556)
    house.start()
    house.fake.monitors[0].happened(ACCEPTED, 77)
    assert house.ask() == b"200"
    house.service.reload()
    assert parted == []
    house.broker.guard.change(parse({"allow": [{"network": "127.0.0.1", "subscribe": "*"}]}))
    house.service.reload()
    assert parted == [(77, {"127.0.0.1"}, range(5556, 5559))]
    assert house.ask() == b"400"
    house.service.stopService()


def test_the_keys_of_clients_are_read_again(make_house: Any, tmp_path: Path) -> None:
    _, secret = create_certificates(tmp_path, "server")
    clients = tmp_path / "clients"
    clients.mkdir()
    create_certificates(clients, "one")
    house = make_house(server_key=secret, client_keys=str(clients))
    assert len(house.service._listener.clients) == 1
    create_certificates(clients, "two")
    house.service.reload()
    assert len(house.service._listener.clients) == 2
    for path in clients.iterdir():
        path.unlink()
    with pytest.raises(ConfigError, match="has no client key"):
        house.service.reload()
    assert len(house.service._listener.clients) == 2
