"""The service: ports, admission of connections, orderly stop."""

from __future__ import annotations

from pathlib import Path
from socket import create_server
from typing import Any

import attrs
import pytest
import zmq
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort
from twisted.internet.task import Clock
from zmq.auth import create_certificates
from zope.interface.verify import verifyObject

from fyrehose.broker.broker import Broker
from fyrehose.broker.policy import parse
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import ConfigError
from fyrehose.interfaces import JournalState
from fyrehose.protocols.eventbus import connections
from fyrehose.protocols.eventbus.connections import BAD, LEFT, TIMEOUT, AcceptedConnection
from fyrehose.protocols.eventbus.service import EventBusService
from fyrehose.protocols.eventbus.settings import EventBusSettings
from fyrehose.protocols.eventbus.zmqport import ACCEPTED, CONNECTED, DISCONNECTED, FAILED, FAILED_AUTH, FAILED_PROTOCOL
from fyrehose.testing import MemoryJournal


class Reactor(Clock):
    """A clock without a thread pool."""

    def getThreadPool(self) -> None:
        return None


class Running:
    """A service with fake sockets."""

    def __init__(self, fake: Any, host: str = "127.0.0.1", port: int = 5556, **options: Any) -> None:
        self.fake = fake
        self.reactor = Reactor()
        self.journal = MemoryJournal()
        self.broker = Broker(self.reactor, self.journal, Sequencer())
        self.broker.open()
        self.service = EventBusService(self.reactor, self.broker, host, port, EventBusSettings(**options))

    def start(self) -> Any:
        results: list[Any] = []
        self.service.startService().addBoth(results.append)
        return results[0]

    def ask(self, address: bytes = b"127.0.0.1", connection: bytes = b"1") -> bytes | None:
        """Return the status with which the ZAP handler answers a connection from *address*; None: no answer yet."""
        zap = self.fake.ports[0]
        zap.full = False
        zap.receive([connection, b"", b"1.0", b"1", b"eventbus.publish", address, b"", b"NULL"], 8)
        return self.answers().get(connection)

    def answers(self) -> dict[bytes, bytes]:
        """Return the answers of the ZAP handler since the last call: the status for each connection."""
        sent, self.fake.ports[0].sent = self.fake.ports[0].sent, []
        assert all(frames[1] == b"" for frames in sent), "the envelope ends with an empty frame"
        return {frames[0]: frames[4] for frames in sent}


@pytest.fixture
def make_service(fake_zmq: Any) -> Any:
    fake = fake_zmq("service")
    return lambda **options: Running(fake, **options)


def test_service_binds_three_ports_and_a_zap_handler(make_service: Any) -> None:
    running = make_service()
    listening = running.start()
    assert verifyObject(IListeningPort, listening)
    assert (listening.getHost().host, listening.getHost().port) == ("127.0.0.1", 5556)
    listening.startListening()
    sockets = running.fake.contexts[0].sockets
    assert [socket.kind for socket in sockets] == [zmq.ROUTER, zmq.ROUTER, zmq.XPUB, zmq.ROUTER]
    assert sockets[2].options[zmq.XPUB_MANUAL] == 1
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
    assert all(port.reading for port in running.fake.ports)
    assert listening.stopListening().called
    assert all(socket.closed for socket in sockets)
    assert sockets[2].linger == 1_000
    assert running.fake.contexts[0].ended
    running.reactor.advance(0)
    assert not running.reactor.getDelayedCalls()
    assert running.service.stopService().called


def follower(make_service: Any) -> Any:
    running = make_service()
    running.journal.follow()
    running.broker.open()
    running.start()
    return running


def test_follower_opens_collector_when_it_leads(make_service: Any, log_lines: list[str]) -> None:
    running = follower(make_service)
    _, snapshot, publisher, collector = running.fake.contexts[0].sockets
    assert [snapshot.bound, publisher.bound] == [["tcp://127.0.0.1:5556"], ["tcp://127.0.0.1:5557"]]
    assert collector.bound == []
    running.journal.enter(JournalState.WRITABLE, "this server leads")
    assert collector.bound == ["tcp://127.0.0.1:5558"]
    assert "COLLECTOR is open" in log_lines[-1]
    running.service.stopService()


def test_taken_port_of_collector_is_logged_when_the_server_leads(
    make_service: Any, log_lines: list[str], logged_errors: Any
) -> None:
    running = follower(make_service)
    running.fake.taken.add("tcp://127.0.0.1:5558")
    running.journal.enter(JournalState.WRITABLE, "this server leads")
    assert "COLLECTOR cannot listen at port 5558" in log_lines[-1]
    assert len(logged_errors.take()) == 1
    running.service.stopService()


def test_stopped_service_does_not_open_collector(make_service: Any) -> None:
    running = follower(make_service)
    running.service.stopService()
    running.journal.enter(JournalState.WRITABLE, "this server leads")
    assert running.fake.contexts[0].sockets[3].bound == []


@pytest.mark.parametrize(("payload", "waiting"), [(16 << 20, 16), (1 << 20, 256), (256 << 10, 1_000), (1, 1_000)])
def test_receive_queue_is_bounded_by_memory(make_service: Any, payload: int, waiting: int) -> None:
    """Threat: huge messages."""
    running = make_service(max_payload=payload)
    running.start()
    assert running.fake.contexts[0].sockets[3].options[zmq.RCVHWM] == waiting


def test_service_starts_again_after_stop(make_service: Any) -> None:
    running = make_service()
    running.start()
    running.service.stopService()
    running.fake.ports.clear()
    running.start()
    assert len(running.fake.contexts) == 2
    running.service.stopService()


def test_service_binds_ipv6(make_service: Any) -> None:
    running = make_service(host="::1")
    assert running.start().getHost().host == "::1"
    assert running.fake.contexts[0].sockets[1].bound == ["tcp://[::1]:5556"]
    assert running.fake.contexts[0].sockets[1].options[zmq.IPV6] == 1
    running.service.stopService()


@pytest.mark.parametrize("taken", [5556, 5557, 5558])
def test_port_in_use_fails_the_start(make_service: Any, taken: int) -> None:
    running = make_service()
    running.fake.taken.add(f"tcp://127.0.0.1:{taken}")
    failure = running.start()
    error = failure.value
    assert isinstance(error, CannotListenError)
    assert (error.interface, error.port, error.socketError.strerror) == (
        "127.0.0.1",
        5556,
        "Address already in use",
    )
    assert running.fake.contexts[0].ended, "all sockets are closed again"


def test_port_0_binds_any_three_consecutive_ports(make_service: Any) -> None:
    running = make_service(port=0)
    running.fake.taken |= {"tcp://127.0.0.1:40002", "tcp://127.0.0.1:40004"}
    assert running.start().getHost().port == 40_005
    assert [socket.bound for socket in running.fake.contexts[0].sockets[1:]] == [
        ["tcp://127.0.0.1:40005"],
        ["tcp://127.0.0.1:40006"],
        ["tcp://127.0.0.1:40007"],
    ]
    running.service.stopService()


def test_start_fails_without_three_consecutive_ports(make_service: Any) -> None:
    running = make_service(port=0)
    running.fake.taken |= {f"tcp://127.0.0.1:{port}" for port in range(40_002, 40_400, 2)}
    assert isinstance(running.start().value, CannotListenError)


def test_policy_decides_who_may_connect(make_service: Any) -> None:
    running = make_service(host="0.0.0.0")
    running.broker.guard.change(parse({"allow": [{"network": "10.0.0.0/8", "publish": "*"}]}))
    running.start()
    assert running.ask(b"10.1.2.3") == b"200"
    assert running.ask(b"11.1.2.3") == b"400"
    assert running.broker.counters.counts["eventbus", "Forbidden"] == 1
    running.service.stopService()


def test_connections_beyond_the_limit_are_refused(make_service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    running = make_service(max_connections=2)
    running.start()
    monkeypatch.setattr(connections, "peer_of", lambda port, descriptor: ("127.0.0.1", 1))
    ended: list[tuple[int, int]] = []
    monkeypatch.setattr(AcceptedConnection, "close", lambda each: ended.append((each.port, each.descriptor)))
    monitors = running.fake.monitors
    for n in range(2):
        monitors[n].happened(ACCEPTED, 0)
        assert running.ask() == b"200"
    monitors[2].happened(ACCEPTED, 7)
    assert ended == [(5558, 7)]
    monitors[2].happened(DISCONNECTED, 7)
    monitors[1].happened(DISCONNECTED, 0)
    monitors[2].happened(ACCEPTED, 7)
    assert running.ask() == b"200"
    assert running.broker.counters.counts["eventbus", "too-many-connections"] == 1
    assert running.broker.counters.counts["eventbus", "connections"] == 4
    assert running.service.connections == 2
    running.service.stopService()
    assert running.broker.counters.gauges["eventbus", "connections"] == 0


def test_connection_with_the_descriptor_of_one_that_just_ended_is_served(
    make_service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Subscriptions of the earlier connection that are read late have its number, and are dropped."""
    running = make_service()
    running.start()
    monkeypatch.setattr(connections, "peer_of", lambda port, descriptor: ("127.0.0.1", 1))
    monkeypatch.setattr(AcceptedConnection, "close", lambda connection: pytest.fail("a connection is closed"))
    _, _, publisher, _ = running.fake.ports
    for number, prefix in ((1, b"/a"), (2, b"/b/")):
        running.fake.monitors[1].happened(ACCEPTED, 7)
        assert running.ask() == b"200"
        for origin, known in ((0, b"/x"), (number - 1, b"/y"), (number, prefix)):
            publisher.origin = ("127.0.0.1", 7, origin)
            publisher.receive([b"\1" + known], 1)
        running.fake.monitors[1].happened(DISCONNECTED, 7)
        publisher.receive([b"\1/z"], 1)
    assert publisher.resubscribed == [b"\xffa", b"/b/"]
    running.service.stopService()


def test_a_handshake_that_fails_is_counted_and_logged(make_service: Any, log_lines: list[str]) -> None:
    running = make_service()
    running.start()
    snapshot, _, collector = running.fake.monitors
    counts = running.broker.counters.counts
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
    assert len(lines) == 2, "one line per second and cause, and none for handshake-left"
    assert "bad-handshake from an unknown address at SNAPSHOT (port 5556): it does not speak ZeroMQ" in lines[0]
    assert running.service.connections == 0
    running.service.stopService()


def test_a_refused_connection_is_kept_open_for_a_second(make_service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "peer_of", lambda port, descriptor: ("127.0.0.1", 1))
    ended: list[int] = []
    monkeypatch.setattr(AcceptedConnection, "close", lambda connection: ended.append(connection.descriptor))
    running = make_service(max_connections=48)
    running.start()
    for n in range(48):
        running.fake.monitors[n % 3].happened(ACCEPTED, n)
    assert ended == []
    running.fake.monitors[0].happened(ACCEPTED, 48)
    assert ended == [48], "three refused connections stay open"
    running.fake.monitors[0].happened(DISCONNECTED, 45)
    running.reactor.advance(1)
    assert ended == [48, 46, 47]
    running.fake.monitors[0].happened(ACCEPTED, 49)
    running.service.stopService()
    assert not running.reactor.getDelayedCalls()


def test_zap_requests_wait_while_a_refused_connection_from_that_address_is_open(
    make_service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request does not tell its connection: an early answer could refuse another one, or admit the refused one."""
    monkeypatch.setattr(connections, "peer_of", lambda port, descriptor: (f"127.0.0.{descriptor // 100}", 1))
    ended: list[int] = []
    monkeypatch.setattr(AcceptedConnection, "close", lambda connection: ended.append(connection.descriptor))
    running = make_service(max_connections=16)
    running.start()
    (monitor, *_) = running.fake.monitors
    for descriptor in range(100, 115):
        monitor.happened(ACCEPTED, descriptor)
        assert running.ask() == b"200"
        monitor.happened(CONNECTED, 0)
    monitor.happened(ACCEPTED, 115)
    monitor.happened(DISCONNECTED, 100)
    monitor.happened(ACCEPTED, 116)
    assert running.ask(connection=b"admitted") is None
    assert running.ask(connection=b"refused") is None
    assert running.ask(b"127.0.0.2") == b"200", "other addresses do not wait"
    running.reactor.advance(1)
    assert ended == [115]
    assert running.answers() == {}
    running.reactor.advance(0.1)
    assert running.answers() == {b"admitted": b"200", b"refused": b"200"}, "only one of them is still open"
    monitor.happened(CONNECTED, 0)
    for descriptor in (115, 116):
        monitor.happened(DISCONNECTED, descriptor)
    assert running.broker.counters.counts["eventbus", "too-many-connections"] == 1
    assert running.broker.counters.counts["eventbus", BAD] == 0
    running.service.stopService()


def test_stop_drops_zap_requests_that_wait(make_service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "peer_of", lambda port, descriptor: ("127.0.0.1", 1))
    running = make_service(max_connections=16)
    running.start()
    for descriptor in range(16):
        running.fake.monitors[0].happened(ACCEPTED, descriptor)
    assert running.ask() is None
    running.service.stopService()
    running.reactor.advance(0)
    assert not running.reactor.getDelayedCalls()


def test_clients_need_a_key_with_curve(make_service: Any, tmp_path: Path) -> None:
    _, secret = create_certificates(tmp_path, "server")
    running = make_service(server_key=secret, client_keys=str(tmp_path))
    running.start()
    for socket in running.fake.contexts[0].sockets[1:]:
        assert socket.curve_server
        assert len(socket.curve_publickey) == len(socket.curve_secretkey) == 40
    assert running.ask() == b"400", "without a key"
    running.service.stopService()
    anybody = make_service(server_key=secret, client_keys="any")
    assert anybody.service._authenticator.clients is None


def test_policy_change_closes_forbidden_connections(make_service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(connections, "peer_of", lambda port, descriptor: (f"127.0.0.{descriptor}", 1))
    monkeypatch.setattr(AcceptedConnection, "close", lambda each: closed.append((each.port, each.descriptor)) or True)
    running = make_service(port=5556)
    running.start()
    for descriptor in (1, 2):
        running.fake.monitors[0].happened(ACCEPTED, descriptor)
    assert running.ask() == b"200"
    running.service.prepare(running.service._settings).apply()
    assert closed == []
    running.broker.guard.change(parse({"allow": [{"network": "127.0.0.1", "subscribe": "*"}]}))
    running.service.prepare(running.service._settings).apply()
    assert closed == [(5556, 1)]
    assert running.ask() == b"400"
    running.service.stopService()


def test_reload_reads_client_keys_again(make_service: Any, tmp_path: Path) -> None:
    _, secret = create_certificates(tmp_path, "server")
    clients = tmp_path / "clients"
    clients.mkdir()
    create_certificates(clients, "one")
    running = make_service(server_key=secret, client_keys=str(clients))
    assert len(running.service._authenticator.clients) == 1
    create_certificates(clients, "two")
    running.service.prepare(running.service._settings).apply()
    assert len(running.service._authenticator.clients) == 2
    for path in clients.iterdir():
        path.unlink()
    with pytest.raises(ConfigError, match="no client key in"):
        running.service.prepare(running.service._settings).apply()
    assert len(running.service._authenticator.clients) == 2


def test_reload_applies_options_that_are_checked_for_each_message(make_service: Any) -> None:
    running = make_service(max_connections=100)
    running.start()
    service = running.service
    changed = attrs.evolve(service._settings, dedup=True, timeout=7.0, max_connections=1_000)
    service.prepare(changed).apply()
    session = service._server._session
    assert (session._settings.dedup, service._server._settings.timeout) == (True, 7.0)
    assert service._connections.most == 1_000
    assert set(service.fixed(changed)) == {"stream", "server_key", "dialect", "max_payload"}
    service.stopService()


def test_reload_reads_the_keys_of_another_directory(make_service: Any, tmp_path: Path) -> None:
    _, secret = create_certificates(tmp_path, "server")
    for name, count in (("few", 1), ("many", 3)):
        (tmp_path / name).mkdir()
        for number in range(count):
            create_certificates(tmp_path / name, f"client{number}")
    running = make_service(server_key=secret, client_keys=str(tmp_path / "few"))
    running.service.prepare(attrs.evolve(running.service._settings, client_keys=str(tmp_path / "many"))).apply()
    assert len(running.service._authenticator.clients) == 3
