"""Test the limits of connections at their defaults, one below, at, one above, with Figg; all protocols share them."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.protocols.figg.server import FiggFactory, FiggSettings
from fyrehose.protocols.http.server import HttpFactory
from fyrehose.protocols.lumberjack.server import LumberjackFactory
from fyrehose.protocols.relink.service import RelinkFactory
from fyrehose.testing import MemoryJournal, Transport

DEFAULTS = FiggSettings()


class Unsorted(Clock):
    """A clock that stands still and does not sort its timers; Twisted's clock sorts them for each new one."""

    def _sortCalls(self) -> None:
        """Do not sort."""


class Server:
    """A Figg server (or one of another protocol) with default limits; it closes refused connections without a delay."""

    def __init__(self, factory: Any = FiggFactory) -> None:
        self.clock = Unsorted()
        self.broker = Broker(self.clock, MemoryJournal(), Sequencer())
        self.broker.open()
        settings = attrs.evolve(factory.defaults, refusal_delay=0.0)
        self.factory: Any = factory(self.broker, settings, reactor=self.clock)

    def connect(self, number: int, host: str) -> Transport | None:
        address = IPv4Address("TCP", host, 1 + number % 60_000)
        protocol = self.factory.buildProtocol(address)
        if protocol is None:
            return None
        transport = Transport(peerAddress=address)
        protocol.makeConnection(transport)
        return transport

    def count(self, what: str) -> int:
        return int(self.broker.counters.counts["figg", what])


def test_exactly_as_many_connections_of_one_address_are_open_as_the_limit_says() -> None:
    server = Server()
    for number in range(DEFAULTS.max_per_host):
        assert server.connect(number, "10.0.0.1") is not None
    assert server.count("too-many-connections-from-one-host") == 0
    server.connect(DEFAULTS.max_per_host, "10.0.0.1")
    assert server.count("too-many-connections-from-one-host") == 1
    assert server.connect(0, "10.0.0.2") is not None


@pytest.mark.slow
def test_beyond_the_limit_of_a_listener_an_idle_connection_is_closed() -> None:
    server = Server()
    for number in range(1, DEFAULTS.max_connections + 2):
        server.connect(number, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        if number >= DEFAULTS.max_connections - 1:
            assert server.count("made-room") == max(0, number - DEFAULTS.max_connections)
    assert server.count("too-many-connections") == 0


@pytest.mark.parametrize("factory", [FiggFactory, HttpFactory, LumberjackFactory, RelinkFactory])
def test_a_connection_that_has_sent_nothing_is_idle(factory: Any) -> None:
    """A full listener closes such a connection at once to make room."""
    server = Server(factory)
    server.connect(1, "10.0.0.1")
    (silent,) = server.factory.connections
    assert silent.is_idle()
