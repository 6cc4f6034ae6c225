"""The service: ports, keys, reloads and an orderly stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.error import CannotListenError
from twisted.internet.testing import MemoryReactorClock
from zmq.auth import create_certificates

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import ConfigError
from fyrehose.interfaces import JournalState
from fyrehose.protocols.eventbus.curve import CurveClient
from fyrehose.protocols.eventbus.keys import Keys, load_public
from fyrehose.protocols.eventbus.server import CollectorProtocol, SnapshotProtocol
from fyrehose.protocols.eventbus.service import EventBusService
from fyrehose.protocols.eventbus.session import DealerSession, SubscriberSession
from fyrehose.protocols.eventbus.settings import EventBusSettings
from fyrehose.testing import MemoryJournal
from tests.protocols.eventbus.world import Peer, World, event


class Reactor(MemoryReactorClock):
    """A reactor in memory on which some ports are taken."""

    def __init__(self, *taken: int) -> None:
        super().__init__()
        self.taken = set(taken)
        self.next = 40_000

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> Any:
        if port in self.taken:
            raise CannotListenError(interface, port, OSError(98, "Address already in use"))
        if not port:
            port, self.next = self.next, self.next + 10
        listening = super().listenTCP(port, factory, backlog, interface)
        listening._hostPort = IPv4Address("TCP", interface, port)
        listening.getHost = lambda: IPv4Address("TCP", interface, port)
        return listening


class Running:
    """A service in memory."""

    def __init__(self, *taken: int, port: int = 5556, **options: Any) -> None:
        self.reactor = Reactor(*taken)
        self.journal = MemoryJournal(auto=False)
        self.broker = Broker(self.reactor, self.journal, Sequencer())
        self.broker.open()
        settings = EventBusSettings(**{"refusal_delay": 0.0, **options})
        self.service = EventBusService(self.reactor, self.broker, "127.0.0.1", port, settings)
        self.world = World(self.journal, self.broker, self.reactor, self.service.factory)

    def start(self) -> Any:
        results: list[Any] = []
        self.service.startService().addBoth(results.append)
        return results[0]

    @property
    def ports(self) -> list[int]:
        return [port for port, *_ in self.reactor.tcpServers]


def test_service_listens_on_three_ports() -> None:
    running = Running()
    assert running.start().getHost().port == 5556
    assert running.ports == [5556, 5557, 5558]
    assert running.service.connections == 0


def test_port_0_stands_for_three_consecutive_free_ports() -> None:
    running = Running(40_001, 40_012, port=0)
    assert running.start().getHost().port == 40_020
    assert running.ports[-3:] == [40_020, 40_021, 40_022]


def test_a_taken_port_is_reported() -> None:
    failure = Running(5558).start()
    assert failure.check(CannotListenError)


def follower(*taken: int) -> Running:
    running = Running(*taken)
    running.journal.follow()
    running.broker.open()
    running.start()
    return running


def test_follower_opens_collector_when_it_leads(log_lines: list[str]) -> None:
    running = follower()
    assert "COLLECTOR stays closed" in log_lines[-1]
    running.journal.enter(JournalState.WRITABLE, "this server leads")
    assert running.ports[-1] == 5558
    assert "COLLECTOR is open" in log_lines[-1]


def test_taken_port_of_collector_is_logged_when_the_server_leads(log_lines: list[str], logged_errors: Any) -> None:
    running = follower()
    running.reactor.taken.add(5558)
    running.journal.enter(JournalState.WRITABLE, "this server leads")
    assert "COLLECTOR cannot listen at port 5558" in log_lines[-1]
    assert len(logged_errors.take()) == 1


def test_stopped_service_does_not_open_collector() -> None:
    running = follower()
    running.service.stopService()
    before = running.ports
    running.journal.enter(JournalState.WRITABLE, "this server leads")
    assert running.ports == before


def test_stop_publishes_and_broadcasts_what_has_arrived() -> None:
    running = Running()
    running.start()
    subscriber, collector = running.world.subscriber(b"/a/"), running.world.collector()
    stopped: list[None] = []
    running.service.stopService().addCallback(stopped.append)
    running.reactor.advance(0.03)
    collector.say(event(1))
    running.reactor.pump([0.05] * 5)
    assert not stopped
    running.journal.commit()
    running.reactor.pump([0.05] * 5)
    assert [frames[5] for frames in subscriber.hear()] == [b"1"]
    assert (collector.transport.disconnecting, subscriber.transport.disconnecting) == (True, True)
    collector.leave()
    subscriber.leave()
    running.reactor.pump([0.05] * 5)
    assert stopped


def test_stop_does_not_wait_for_busy_publishers_and_a_stuck_journal() -> None:
    running = Running()
    running.start()
    collector = running.world.collector()
    stopped: list[None] = []
    running.service.stopService().addCallback(stopped.append)
    for n in range(30):
        collector.say(event(n))
        running.reactor.advance(0.05)
    assert collector.protocol.phase.value == "settling", "after a second, no more is read"
    running.reactor.pump([0.5] * 20)
    collector.leave()
    running.reactor.advance(0.1)
    assert stopped


class TestKeys:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("server", "clients", "one"):
            (tmp_path / name).mkdir()
        create_certificates(tmp_path / "server", "server")
        for name in ("one", "two"):
            create_certificates(tmp_path / "clients", name)
        return tmp_path

    def running(self, folder: Path) -> Running:
        server = str(folder / "server" / "server.key_secret")
        return Running(server_key=server, client_keys=str(folder / "clients"))

    def dealer(self, running: Running, folder: Path, name: str) -> Peer:
        server = load_public(str(folder / "server" / "server.key"))
        keys = Keys.load(str(folder / "clients" / f"{name}.key_secret"))
        session = DealerSession(CurveClient(server, keys.public, keys.secret))
        return running.world.connect(SnapshotProtocol, session)

    def test_client_with_a_known_key_is_served(self, folder: Path) -> None:
        running = self.running(folder)
        running.start()
        peer = self.dealer(running, folder, "one")
        peer.say([b"SYNCSTART", b"", b"0"])
        assert peer.hear() == [[b"SYNCEND", b"", b"0"]]
        assert peer.protocol.identity.key == (folder / "clients" / "one.key").read_text().partition('"')[2][:40]

    def test_client_without_a_key_is_refused(self, folder: Path, log_lines: list[str]) -> None:
        running = self.running(folder)
        running.start()
        peer = running.world.connect(CollectorProtocol, DealerSession())
        assert peer.transport.disconnecting
        assert "set curve_serverkey" in log_lines[-1]

    def test_reload_without_a_key_ends_its_connections_and_no_others(self, folder: Path, log_lines: list[str]) -> None:
        running = self.running(folder)
        running.start()
        one, two = (self.dealer(running, folder, name) for name in ("one", "two"))
        before = running.service.contents
        (folder / "clients" / "one.key").unlink()
        settings = running.service.factory.settings
        assert running.service.fixed(settings) == []
        prepared = running.service.prepare(settings)
        assert prepared.contents != before
        assert not one.transport.disconnecting, "nothing is applied yet"
        prepared.apply()
        assert running.service.contents == prepared.contents
        assert (one.transport.disconnecting, two.transport.disconnecting) == (True, False)
        assert "closed 1 connections" in log_lines[-1]

    def test_reload_uses_a_replaced_key_of_the_server_for_new_connections(self, folder: Path) -> None:
        running = self.running(folder)
        running.start()
        old = self.dealer(running, folder, "one")
        before = running.service.contents
        create_certificates(folder / "server", "server")
        prepared = running.service.prepare(running.service.factory.settings)
        assert {name for name in before if prepared.contents[name] != before[name]} == {"server_key"}
        prepared.apply()
        new = self.dealer(running, folder, "one")
        for peer in (old, new):
            peer.say([b"SYNCSTART", b"", b"0"])
            assert peer.hear() == [[b"SYNCEND", b"", b"0"]]

    def test_keys_that_cannot_be_read_are_an_error_and_change_nothing(self, folder: Path) -> None:
        running = self.running(folder)
        (folder / "clients" / "one.key").write_text("")
        with pytest.raises(ConfigError, match="it has no public key"):
            running.service.prepare(running.service.factory.settings)
        assert len(running.service.factory.clients or ()) == 2


def test_options_on_which_connected_clients_rely_are_fixed() -> None:
    running = Running()
    assert running.service.fixed(EventBusSettings(stream="other", max_payload=5, timeout=1.0)) == [
        "stream",
        "max_payload",
    ]


def test_connections_of_all_ports_are_counted() -> None:
    running = Running()
    running.start()
    running.world.collector()
    running.world.connect(SnapshotProtocol, DealerSession())
    running.world.subscriber(b"")
    assert running.service.connections == 3
    assert isinstance(running.world.subscriber().session, SubscriberSession)
