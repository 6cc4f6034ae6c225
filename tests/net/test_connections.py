"""A full listener closes the longest idle connection for a new one, and descriptors never run out."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.address import IPv4Address

from fyrehose.net.connections import connections_within, descriptors_for
from fyrehose.net.holding import RefusedConnection
from fyrehose.net.inflight import InFlight
from fyrehose.net.sockets import READ
from fyrehose.testing import Transport

from .test_tcp import ToyFactory, make


def test_a_host_with_thousands_of_connections_leaves_others_the_whole_size_of_a_read() -> None:
    server = make(max_per_host=3_000)
    for port in range(5_000, 8_000):
        server.connect("10.0.0.2", port)
    _, transport = server.connect("10.0.0.1")
    assert transport.bufferSize == READ


def fill(server: Any, *hosts: str) -> list[tuple[Any, Any]]:
    """Connect once from each of *hosts*, and say something."""
    peers = [server.connect(host, port) for port, host in enumerate(hosts, 5000)]
    for protocol, _ in peers:
        protocol.dataReceived(b"#0\n")
    return peers


def reap(server: Any) -> None:
    """Lose the connections that were closed, as a reactor does."""
    for held in list(server.factory.holding._closing):
        server.lose(held)


def closed(peers: list[tuple[Any, Any]]) -> list[bool]:
    return [transport.disconnecting for _, transport in peers]


def test_the_connection_that_is_idle_longest_is_closed_to_make_room(log_lines: list[str]) -> None:
    server = make(max_connections=3)
    peers = fill(server, "10.0.0.1", "10.0.0.2", "10.0.0.3")
    peers[0][0].dataReceived(b"#0\n")
    server.connect("10.0.0.4")
    assert closed(peers) == [False, True, False]
    assert len(server.factory.connections) == 3
    assert server.count("made-room") == 1
    said = "toy: made-room from 10.0.0.2: idle longest while the listener is full; to allow more, raise"
    assert log_lines == [f"{said} toy.max-connections"]


def test_a_server_that_stops_waits_for_refused_connections_only_until_they_are_closed() -> None:
    server = make(max_per_host=1, refusal_delay=1.0)
    first, _ = server.connect()
    refused, transport = server.connect(port=5001)
    assert isinstance(refused, RefusedConnection)
    server.lose(first)
    drained: list[None] = []
    server.factory.drain().addCallback(drained.append)
    assert (transport.disconnecting, drained) == (True, [])
    server.lose(refused)
    assert drained == [None]


def test_silent_connections_do_not_block_new_clients() -> None:
    server = make(max_connections=100, max_per_host=100)
    silent = [server.connect("10.0.0.9", port) for port in range(100)]
    honest = [server.connect("10.0.0.1", port) for port in range(10)]
    for _ in range(3):
        for protocol, transport in honest:
            protocol.dataReceived(b"message\n")
            assert transport.value().endswith(b"ok message\n")
            server.connect("10.0.0.9")
            reap(server)
    assert not any(closed(honest))
    assert sum(closed(silent)) == 40


@attrs.define(eq=False)
class Peer:
    """A connection, and what the server knows of it.

    :ivar frame: the bytes that its incomplete frame lacks
    :ivar unsettled: how many of its publishes are not durable
    :ivar seen: how many bytes it had been sent when the server last asked whether it is idle
    """

    host: str
    protocol: Any
    transport: Any
    silent: bool = True
    frame: int = 0
    unsettled: int = 0
    subscribed: bool = False
    seen: int = 0

    def send(self, data: bytes) -> None:
        self.silent = False
        self.protocol.dataReceived(data)

    def looks_idle(self) -> bool:
        """Return whether nothing is in flight; deliveries count if they came since the last call."""
        before, self.seen = self.seen, len(self.transport.value())
        return self.silent or not (self.unsettled or self.frame or (self.subscribed and self.seen > before))


class Crowd:
    """A full listener, and a list of its connections, of which the one that was active last is the last."""

    def __init__(self, seed: int) -> None:
        self.dice, self.most = Random(seed), 2 + seed % 5
        self.server = make(auto=False, max_connections=self.most, max_per_host=100)
        self.peers: list[Peer] = []
        self.counts: dict[str, int] = {}  #: by host; the one that has had as many for longest comes first
        self.made_room = self.refused = 0

    def count(self, host: str, change: int) -> None:
        self.counts[host] = self.counts.pop(host, 0) + change

    def touch(self, peer: Peer) -> None:
        self.peers.remove(peer)
        self.peers.append(peer)

    def first_out(self, host: str) -> Peer | None:
        """Return the connection that is closed for one of *host*: idle for longest, of the host with the most."""
        largest = max((host, *self.counts), key=lambda each: self.counts.get(each, 0))
        busy = []
        for of in (largest, None):
            candidates = [peer for peer in self.peers if of in (None, peer.host)]
            if of not in (None, host) and len(candidates) == 1:
                continue  # all hosts have one connection
            for peer in candidates:
                if peer.looks_idle():
                    return peer
                busy += [] if peer.unsettled else [peer]
                self.touch(peer)
        return busy[0] if busy else None

    def connect(self) -> None:
        host = self.dice.choice(("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"))
        full = len(self.peers) >= self.most
        closed = self.first_out(host) if full else None
        protocol = self.server.factory.buildProtocol(IPv4Address("TCP", host, 1))
        assert [peer for peer in self.peers if peer.transport.disconnecting] == ([closed] if closed else [])
        self.made_room += closed is not None
        assert (protocol is None) == (full and closed is None)
        if closed is not None:
            self.lose(closed)
        if protocol is None:
            self.refused += 1
            return
        transport = Transport(peerAddress=IPv4Address("TCP", host, 1))
        protocol.makeConnection(transport)
        self.peers.append(Peer(host, protocol, transport))
        self.count(host, 1)

    def lose(self, peer: Peer) -> None:
        self.peers.remove(peer)
        self.count(peer.host, -1)
        self.server.lose(peer.protocol)

    def send(self, peer: Peer) -> None:
        self.touch(peer)
        if peer.frame:
            size = self.dice.choice((peer.frame, 1))
            peer.frame -= size
            peer.unsettled += not peer.frame
            peer.send(b"x" * size)
            return
        match self.dice.randrange(5):
            case 0:
                peer.frame = 2
                peer.send(b"#2\n")
            case 1:
                peer.unsettled += 1
                peer.send(b"message\n")
            case 2 if not peer.subscribed:
                peer.subscribed = True
                peer.send(b"?\n")
            case _:
                peer.send(b"#0\n")

    def step(self) -> None:
        match self.dice.randrange(8):
            case 0 | 1:
                self.connect()
            case 2 if self.dice.random() < 0.3:
                self.server.journal.commit()
                for peer in self.peers:
                    peer.unsettled = 0
            case 3 if self.peers and self.dice.random() < 0.3:
                self.lose(self.dice.choice(self.peers))
            case _ if self.peers:
                self.send(self.dice.choice(self.peers))
        self.server.clock.advance(0)
        assert list(self.server.factory.connections) == [peer.protocol for peer in self.peers]


def test_the_connection_that_makes_room_is_idle_for_longest_and_of_the_host_with_the_most() -> None:
    made_room = refused = 0
    for seed in range(25):
        crowd = Crowd(seed)
        for _ in range(150):
            crowd.step()
        made_room, refused = made_room + crowd.made_room, refused + crowd.refused
    assert min(made_room, refused) > 20, (made_room, refused)


def test_a_connection_that_does_not_read_is_aborted_to_make_room() -> None:
    server = make(max_connections=1)
    protocol, transport = server.connect("10.0.0.1")
    protocol.pauseProducing()
    server.connect("10.0.0.2")
    assert transport.aborted


def test_refused_connections_do_not_count_against_the_limits() -> None:
    server = make(max_connections=40, max_per_host=1, refusal_delay=3.2)
    server.connect("10.0.0.1")
    for port in range(100):
        protocol = server.factory.buildProtocol(IPv4Address("TCP", "10.0.0.1", port))
        if isinstance(protocol, RefusedConnection):
            protocol.makeConnection(Transport())
    assert len(server.factory.connections) + len(server.factory.holding) <= descriptors_for(40)
    for number in range(39):
        server.connect(f"10.0.1.{number}")
        reap(server)
        assert len(server.factory.connections) + len(server.factory.holding) <= descriptors_for(40)
    assert len(server.factory.connections) == 40
    assert server.count("made-room") == 0


@pytest.mark.parametrize(
    ("most", "others", "held"), [(64, 0, 64 + 18), (64, 60, 4 + 18), (64, 64, 18), (5_000, 0, 1_000)]
)
def test_a_listener_holds_as_many_refused_connections_as_it_has_free_ones_and_some_more(
    most: int, others: int, held: int
) -> None:
    server = make(max_connections=most)
    for port in range(others):
        server.connect(port=port)
    assert server.factory.most_held == held


def test_full_listener_serves_and_lets_wait_as_many_connections_as_it_has_descriptors_for() -> None:
    server = make(max_connections=64, budget=InFlight(limit=8 << 20))
    newcomers, found = server.factory.newcomers, list[tuple[bool, int]]()
    for port in range(64):
        server.connect(port=port)
    for _ in range(30):
        found.append((newcomers.is_free(), newcomers.room()))
        server.factory.holding.await_close(RefusedConnection(server.factory.holding, "10.0.0.2", 1.0, 1))
    assert found == [(closing < 18 + 8, max(8, 18 - closing)) for closing in range(30)]
    newcomers.displaced("10.0.0.3")
    assert (server.count("made-room"), server.factory.reads.total) == (1, 1 << 20)


def test_full_listener_uses_no_more_descriptors_than_are_set_aside() -> None:
    server = make(max_connections=2)
    for number in range(descriptors_for(2)):
        server.connect(f"10.0.0.{number}")
    assert server.factory.buildProtocol(IPv4Address("TCP", "10.0.1.0", 1)) is None
    assert server.count("too-many-connections") == 1


def test_shares_of_connections_of_all_listeners_fit_the_available_descriptors() -> None:
    for available in (100, 936, 960, 19_936, 100_000):
        for listeners in range(1, 8):
            share = connections_within(available, listeners) // listeners
            assert share >= 1
            assert share == 1 or listeners * descriptors_for(share) <= available


def test_a_factory_can_be_built_with_a_broker_alone() -> None:
    from twisted.internet import reactor

    factory = ToyFactory(make().broker)
    assert factory.clock is reactor
    assert factory.settings is ToyFactory.defaults
