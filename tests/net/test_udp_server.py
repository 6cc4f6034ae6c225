"""The base of servers of datagrams: publishes are counted until they are durable, and a stop waits for them."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import ReadOnly
from fyrehose.interfaces import JournalState
from fyrehose.net.udp_server import DRAIN_TIMEOUT, UDPServerProtocol, UDPService
from fyrehose.protocols.backbone.frames import Address
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal

THERE = ("10.0.0.2", 4000)


class Notes(UDPServerProtocol):
    """A protocol that publishes each datagram to the stream that it names, as ``STREAM:TEXT``."""

    name = "notes"

    def datagrams_received(self, data: memoryview, segment: int, source: Address) -> None:
        stream, _, text = bytes(data).decode().partition(":")
        self.publish([Run.of(stream, [text.encode()], source=self.name)])

    def turn_over(self) -> None:
        """Do nothing: every datagram was published at once."""


class FakeTransport:
    maxPacketSize = 8_192


class World:
    def __init__(self, auto: bool = False) -> None:
        self.journal, self.clock = MemoryJournal(auto=auto), Clock()
        broker = Broker(self.clock, self.journal, Sequencer())
        broker.open()
        self.port = Notes(broker, None, self.clock, (), ())
        self.port.makeConnection(FakeTransport())

    def receive(self, datagram: bytes) -> None:
        self.port.datagrams_received(memoryview(datagram), len(datagram), THERE)

    def drain(self) -> list[Any]:
        ended: list[Any] = []
        self.port.drain().addCallback(ended.append)
        return ended


def test_port_without_publishes_stops_at_once() -> None:
    assert World().drain() == [None]


def test_port_stops_when_its_publishes_are_durable() -> None:
    world = World()
    world.receive(b"diary:one")
    ended = world.drain()
    assert (ended, world.port.unsettled) == ([], 1)
    world.journal.commit()
    assert (ended, world.port.unsettled) == ([None], 0)


def test_port_waits_only_for_a_while() -> None:
    world = World()
    world.receive(b"diary:one")
    ended = world.drain()
    world.clock.advance(DRAIN_TIMEOUT)
    assert ended == [None]


def test_refused_publish_is_settled() -> None:
    world = World()
    world.journal.enter(JournalState.READ_ONLY, "full")
    with pytest.raises(ReadOnly):
        world.receive(b"diary:one")
    assert world.port.unsettled == 0
    assert world.drain() == [None]


def test_service_that_stops_waits_for_its_publishes_and_then_closes_the_port() -> None:
    class Port:
        connected = False

        def stopListening(self) -> None:
            self.connected = False

    world, port = World(), Port()
    service = UDPService("udp:1", port, world.port)
    assert service.stopService().called, "it was not started"
    port.connected = True
    world.receive(b"diary:one")
    stopped = service.stopService()
    assert (stopped.called, port.connected) == (False, True)
    world.journal.commit()
    assert (stopped.called, port.connected) == (True, False)


def test_port_is_behind_while_the_budget_pauses_it() -> None:
    port = World().port
    port.pauseProducing()
    assert port.journal_behind
    port.resumeProducing()
    assert not port.journal_behind


def test_closed_port_is_not_waited_for() -> None:
    world = World()
    world.receive(b"diary:one")
    ended = world.drain()
    world.port.doStop()
    World().port.doStop()  # and without drain(), as after an error
    assert ended == [None]
    assert world.clock.getDelayedCalls() == []
