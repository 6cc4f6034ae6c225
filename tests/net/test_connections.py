"""A full listener closes the longest idle connection for a new one, and descriptors never run out."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address

from fyrehose.net.connections import connections_within, descriptors_for
from fyrehose.net.holding import RefusedConnection
from fyrehose.net.sockets import READ

sys.path.insert(0, str(Path(__file__).parent))

toys = import_module("test_tcp")  # the same server of the same toy protocol
make, Transport = toys.make, toys.Transport


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


def test_a_connection_of_the_address_with_the_most_is_closed_first() -> None:
    server = make(max_connections=4)
    peers = fill(server, "10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3")
    server.connect("10.0.0.4")
    assert closed(peers) == [False, True, False, False]


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


def test_among_equal_addresses_the_one_that_connects_loses_a_connection() -> None:
    server = make(max_connections=2)
    peers = fill(server, "10.0.0.1", "10.0.0.2")
    server.connect("10.0.0.2")
    assert closed(peers) == [False, True]


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


@pytest.mark.parametrize("busy", [b"message\n", b"#90\n", b"?\n"], ids=["publishing", "frame", "subscribed"])
def test_a_busy_connection_is_not_closed_while_another_is_idle(busy: bytes) -> None:
    server = make(auto=False, max_connections=2)
    first, transport = server.connect("10.0.0.1")
    first.dataReceived(busy)
    other, _ = server.connect("10.0.0.1", 5001)
    other.dataReceived(b"message\n" if busy == b"?\n" else b"#0\n")
    server.journal.commit() if busy == b"?\n" else None
    server.clock.advance(0)
    server.connect("10.0.0.2")
    assert not transport.disconnecting


def test_a_subscription_without_deliveries_is_idle() -> None:
    server = make(max_connections=1)
    protocol, transport = server.connect("10.0.0.1")
    protocol.dataReceived(b"?\n")
    server.connect("10.0.0.2")
    assert transport.disconnecting


def test_among_busy_connections_the_longest_idle_without_a_publish_is_closed() -> None:
    server = make(auto=False, max_connections=2)
    (publishing, _), (frame, transport) = server.connect("10.0.0.1"), server.connect("10.0.0.2")
    publishing.dataReceived(b"message\n")
    frame.dataReceived(b"#90\n")
    server.connect("10.0.0.3")
    assert transport.disconnecting
    assert publishing in server.factory.connections


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

    factory = toys.ToyFactory(make().broker)
    assert factory.clock is reactor
    assert factory.settings is toys.ToyFactory.defaults
