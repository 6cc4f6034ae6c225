"""Input is handled in turns by network, so that a network that sends much at one moment does not delay the others."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.net.connections import SessionFactory
from fyrehose.protocols.figg.frames import Attach, Ping
from fyrehose.protocols.figg.server import FiggFactory
from fyrehose.protocols.http.server import HttpFactory
from fyrehose.testing import MemoryJournal, Transport
from tests.doubles.steps import advance_until

#: How many connections one network has, and how many requests each sends in one write.
PEERS, REQUESTS = 20, 500


class Reactor(Clock):
    """A clock that runs one turn of the reactor for each second."""

    def callLater(self, delay: float, *args: Any, **kw: Any) -> Any:
        return super().callLater(max(delay, 1), *args, **kw)


class World:
    """A server of two protocols."""

    def __init__(self) -> None:
        self.clock = Reactor()
        self.broker = Broker(self.clock, MemoryJournal(auto=True), Sequencer())
        self.broker.open()
        self.factories: dict[str, SessionFactory] = {
            "figg": FiggFactory(self.broker, reactor=self.clock),
            "http": HttpFactory(self.broker, reactor=self.clock),
        }

    def connect(self, protocol: str, host: str, port: int) -> Transport:
        address = IPv4Address("TCP", host, port)
        peer = self.factories[protocol].buildProtocol(address)
        transport = Transport(peerAddress=address)  # type: ignore[no-untyped-call]
        assert peer is not None
        peer.makeConnection(transport)
        transport.protocol = peer
        return transport

    def attached(self) -> int:
        return len(self.broker.fanout.cursors)

    def handle_everything(self) -> None:
        for _ in range(1_000):
            if self.attached() == PEERS * REQUESTS:
                break
            self.clock.advance(1)
        self.clock.advance(1)


def flood(world: World) -> list[Transport]:
    wanted = b"".join(Attach(topic=f"t{number}").serialize() for number in range(REQUESTS))
    peers = [world.connect("figg", "127.0.0.2", 10_000 + number) for number in range(PEERS)]
    for peer in peers:
        peer.protocol.dataReceived(wanted)
    return peers


@pytest.mark.parametrize(
    ("protocol", "request_"),
    [("figg", Ping(number=1).serialize()), ("http", b"GET /streams HTTP/1.1\r\nHost: localhost\r\n\r\n")],
    ids=["figg", "http"],
)
def test_a_request_of_another_network_is_answered_before_a_flood_is_handled(protocol: str, request_: bytes) -> None:
    world = World()
    flood(world)
    honest = world.connect(protocol, "127.0.0.1", 10_000)
    honest.protocol.dataReceived(request_)
    advance_until(honest.value, world.clock)
    count = world.attached()
    assert count < PEERS * REQUESTS // 2
    world.handle_everything()
    count = world.attached()
    assert count == PEERS * REQUESTS, "the flood is handled in the end, too"


def test_a_connection_that_waits_for_its_turn_is_not_read_after_the_next_data() -> None:
    world = World()
    peers = flood(world)
    for peer in peers:
        peer.protocol.dataReceived(Ping(number=1).serialize())
    assert all(peer.producerState == "paused" for peer in peers)
    world.handle_everything()
    assert all(peer.producerState == "producing" for peer in peers)


def test_memory_of_waiting_input_is_released_when_the_connection_is_lost() -> None:
    world = World()
    peers = flood(world)
    assert world.broker.budget.held
    for peer in peers:
        peer.protocol.connectionLost()
    for _ in range(PEERS * REQUESTS):
        if not world.broker.budget.held:
            break
        world.clock.advance(1)
    assert world.broker.budget.held == 0


def test_the_end_of_input_is_handled_after_input_that_waits_for_its_turn() -> None:
    world = World()
    [peer, *_] = flood(world)
    peer.protocol.readConnectionLost()
    assert not peer.disconnecting
    world.handle_everything()
    assert peer.disconnecting
    assert peer.value().count(b"t499") == 1
