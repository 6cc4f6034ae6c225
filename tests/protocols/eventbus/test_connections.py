"""Who is sent away, and who is not."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.task import Clock

from fyrehose.identity import Action, Identity
from fyrehose.protocols.eventbus import connections
from fyrehose.protocols.eventbus.connections import REMEMBERED, UNKNOWN, AcceptedConnection, Connections
from fyrehose.protocols.eventbus.settings import EventBusSettings

PUBLISH, SUBSCRIBE = Action.PUBLISH, Action.SUBSCRIBE


class Pair:
    """A connection over loopback."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.listening = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.port = self.listening.getsockname()[1]
        self.client = socket.create_connection((host, self.port), timeout=10)
        self.server, _ = self.listening.accept()

    @property
    def lost(self) -> bool:
        self.client.setblocking(False)
        try:
            return self.client.recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def connect() -> Iterator[Any]:
    made: list[Pair] = []

    def connecting(*args: Any) -> Pair:
        made.append(Pair(*args))
        return made[-1]

    yield connecting
    for pair in made:
        for end in (pair.listening, pair.client, pair.server):
            end.close()


def speaks_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


HOSTS = [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "::ffff:127.0.0.1"), *([("::1", "::1")] if speaks_ipv6() else [])]


@pytest.mark.parametrize(("host", "identified"), HOSTS)
def test_forbidden_connections_are_closed(connect: Any, host: str, identified: str) -> None:
    pair, peers = connect(host), Connections()
    peers.accepted(pair.port, pair.server.fileno())
    peers.admit(Identity(host=identified), PUBLISH)
    peers.admit(Identity(host=identified), SUBSCRIBE)
    assert peers.end_forbidden(lambda identity, action: True) == 0
    assert not pair.lost
    assert peers.end_forbidden(lambda identity, action: action is SUBSCRIBE) == 1
    assert pair.lost
    peers.disconnected(pair.port, pair.server.fileno())
    assert len(peers) == 0
    assert peers.end_forbidden(lambda identity, action: action is SUBSCRIBE) == 0, "the identity is forgotten"


def test_other_connections_stay_open(connect: Any) -> None:
    ours, gone, reused = connect(), connect(), connect()
    peers = Connections()
    for pair in (ours, gone, reused):
        peers.accepted(pair.port, pair.server.fileno())
    gone.server.close()
    later = socket.create_connection(("127.0.0.1", reused.port), timeout=10)
    os.dup2(reused.listening.accept()[0].detach(), reused.server.fileno())
    peers.accepted(1, 100_000)
    peers.admit(Identity(host="10.0.0.1"), PUBLISH)
    assert peers.end_forbidden(lambda *_: False) == 0, "no connection from that host"
    peers.admit(Identity(host="127.0.0.1"), PUBLISH)
    assert peers.end_forbidden(lambda *_: False) == 1
    later.setblocking(False)
    with later, pytest.raises(BlockingIOError):
        later.recv(1)
    assert ours.lost


def test_descriptor_reused_by_a_file_is_left_alone(connect: Any, tmp_path: Any) -> None:
    peers = Connections()
    with tmp_path.joinpath("file").open("w") as file:
        peers.accepted(1, file.fileno())
        peers.admit(Identity(), PUBLISH)
        assert peers.end_forbidden(lambda *_: False) == 0
        file.write("still open")


def test_connections_of_forgotten_identities_are_closed(connect: Any) -> None:
    pair, peers = connect(), Connections()
    peers.accepted(pair.port, pair.server.fileno())
    peers.admit(Identity(), PUBLISH)
    for n in range(REMEMBERED):
        peers.admit(Identity(host=f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"), PUBLISH)
    assert len(peers._admitted) == REMEMBERED
    assert peers.end_forbidden(lambda *_: True) == 1
    assert pair.lost


class Crowd:
    """Connections of many hosts, without sockets: their descriptors count up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.peers = Connections(most)
        self.hosts: dict[int, str] = {}
        self.ended: list[int] = []
        monkeypatch.setattr(connections, "peer_of", lambda port, descriptor: (self.hosts[descriptor], 1))
        monkeypatch.setattr(AcceptedConnection, "close", lambda connection: self.ended.append(connection.descriptor))

    def join(self, host: str = "10.0.0.1", count: int = 1) -> list[int]:
        """Connect; return the descriptors that were refused."""
        refused = []
        for _ in range(count):
            self.hosts[len(self.hosts)] = host
            connection = self.peers.accepted(1, len(self.hosts) - 1)
            if connection is not None:
                assert connection.refused
                refused.append(connection.descriptor)
        return refused


@pytest.mark.parametrize(("most", "places"), [(1, 1), (2, 2), (16, 15), (1_500, 1_407), (16_000, 15_744)])
def test_a_sixteenth_is_reserved_for_refused_connections(
    monkeypatch: pytest.MonkeyPatch, most: int, places: int
) -> None:
    crowd = Crowd(monkeypatch, most)
    assert crowd.join(count=places) == []
    refused = crowd.join(count=most - places + 2)
    assert refused == list(range(places, most + 2))
    assert crowd.peers.too_many_refused()
    crowd.peers.disconnected(1, 0)
    assert crowd.join() == [], "refused connections take no place of others"


def test_15_000_connections_of_one_address_are_admitted_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 clients with three connections each."""
    crowd = Crowd(monkeypatch, EventBusSettings().max_connections)
    assert crowd.join(count=15_000) == []


def test_a_full_server_makes_room_for_another_network(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(monkeypatch, 12)
    assert crowd.join("fd00::1", 6) == crowd.join("fd00::2", 6) == [], "one network"
    assert crowd.join("10.0.0.1", 4) == [11, 10, 9, 8], "the newest of the largest network"
    assert crowd.join("10.0.0.1") == [16]


def test_refused_connections_of_a_host_are_open_until_the_last_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd, clock = Crowd(monkeypatch, 1), Clock()
    crowd.join()
    assert crowd.peers.refused_until("10.0.0.1") == 0
    for descriptor, delay in ((1, 5.0), (2, 7.0), (3, None)):
        crowd.hosts[descriptor] = "10.0.0.1"
        refused = crowd.peers.accepted(1, descriptor)
        assert refused is not None
        if delay is not None:
            refused.ending = clock.callLater(delay, refused.close)
    assert crowd.peers.refused_until("10.0.0.2") == 0
    assert crowd.peers.refused_until("::ffff:10.0.0.1") == 7
    crowd.peers.disconnected(1, 2)
    assert crowd.peers.refused_until("10.0.0.1") == 5
    clock.advance(5)
    assert crowd.peers.refused_until("10.0.0.1") == 0, "it was closed, and its end was not reported yet"


def test_descriptors_of_two_ports_may_have_the_same_number(connect: Any) -> None:
    pair, peers = connect(), Connections()
    descriptor = pair.server.fileno()
    peers.accepted(pair.port, descriptor)
    peers.accepted(1, descriptor)
    assert [each.host for each in (*peers.of(pair.port), *peers.of(1))] == ["127.0.0.1", UNKNOWN]
    hosts = [gone.host for port in (1, pair.port) if (gone := peers.disconnected(port, descriptor)) is not None]
    assert hosts == [UNKNOWN, "127.0.0.1"]
    assert peers.disconnected(1, descriptor) is None
    assert len(peers) == 0


def test_only_the_connection_of_a_message_is_closed(connect: Any) -> None:
    pair, peers = connect(), Connections()
    descriptor = pair.server.fileno()
    earlier = peers.number()
    peers.accepted(pair.port, descriptor)
    number = peers.number()
    peers.close(pair.port, descriptor, earlier)
    peers.close(pair.port + 1, descriptor, number)
    peers.close(pair.port, 100_000, number)
    assert not pair.lost
    peers.close(pair.port, descriptor, number)
    assert pair.lost


def test_messages_of_an_ended_connection_are_not_those_of_the_next_with_its_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowd = Crowd(monkeypatch, 100)
    crowd.join()
    first = crowd.peers.number()
    assert crowd.peers.find(1, 0, first) in crowd.peers.of(1)
    crowd.peers.disconnected(1, 0)
    assert crowd.peers.find(1, 0, first) is None
    crowd.peers.accepted(1, 0)
    assert crowd.peers.find(1, 0, first) is None
    assert crowd.peers.find(1, 0, crowd.peers.number()) in crowd.peers.of(1)
    assert crowd.peers.find(2, 0, crowd.peers.number()) is None


def test_connection_whose_end_was_not_reported_is_counted_once(connect: Any) -> None:
    pair, peers = connect(), Connections(2)
    for _ in range(5):
        assert peers.accepted(pair.port, pair.server.fileno()) is None
    assert len(peers) == 1


def test_limit_changes_without_closing_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "peer_of", lambda port, descriptor: ("127.0.0.1", 1))
    open_ones = Connections(2)
    assert [open_ones.accepted(1, descriptor) for descriptor in (7, 8)] == [None, None]
    open_ones.change(1)
    assert len(open_ones) == 2
    refused = open_ones.accepted(1, 9)
    assert refused is not None
    open_ones.change(10)
    assert open_ones.accepted(1, 10) is None
