"""The outgoing half of a connection: large records in pieces, and what follows them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.net.lifecycle import Phase
from fyrehose.net.outgoing import LargeRecord
from fyrehose.net.tcp import CLOSE_TIMEOUT_S, MOST_UNREAD
from fyrehose.records import Run
from fyrehose.sessions import PIECE, piece_of
from fyrehose.testing import MemoryJournal, Transport

from .test_tcp import Toy, ToyFactory

RECORD = b"r" * (3 * PIECE + 10)


def cut(run: Run, position: int) -> tuple[bytes, int | None]:
    return piece_of([b"<", run.payload, b">"], position)


class Slow(Transport):
    """A transport that is full after each write, until the test calls resumeProducing."""

    def writeSequence(self, data: Any) -> None:
        self.written.append(b"".join(data))
        self.protocol.pauseProducing()

    written: list[bytes]
    protocol: Toy


@attrs.define
class World:
    clock: Clock = attrs.field(factory=Clock)
    journal: MemoryJournal = attrs.field(factory=lambda: MemoryJournal(auto=True))
    broker: Broker = attrs.field(init=False)
    protocol: Toy = attrs.field(init=False)
    transport: Slow = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.broker = Broker(self.clock, self.journal, Sequencer())
        self.broker.open()
        self.protocol, self.transport = self.connect(1)
        self.broker.publish([Run.of("s", [RECORD], source="test")])

    def connect(self, number: int) -> tuple[Toy, Slow]:
        address = IPv4Address("TCP", "127.0.0.1", number)
        protocol = ToyFactory(self.broker, reactor=self.clock).buildProtocol(address)
        assert isinstance(protocol, Toy)
        transport = Slow(peerAddress=address)  # type: ignore[no-untyped-call]
        transport.written, transport.protocol = [], protocol
        protocol.makeConnection(transport)
        return protocol, transport

    def send(self) -> None:
        self.protocol.send_record(LargeRecord("s", 1, cut, None))

    def read(self, times: int) -> list[bytes]:
        for _ in range(times):
            self.clock.advance(0)
            self.protocol.resumeProducing()
        return self.transport.written


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.protocol.connectionLost()


def test_a_large_record_is_sent_in_pieces_as_the_peer_reads(world: World) -> None:
    world.send()
    assert world.read(1) == [b"<" + RECORD[: PIECE - 1]]
    assert b"".join(world.read(5)) == b"<" + RECORD + b">"
    assert max(map(len, world.transport.written)) == PIECE


def test_answers_are_sent_after_a_record_that_is_half_sent(world: World) -> None:
    world.send()
    world.read(1)
    world.protocol.dataReceived(b"echo pong\n")
    assert len(world.transport.written) == 1, "nothing is written within the record"
    assert b"".join(world.read(5)) == b"<" + RECORD + b"> pong"


def test_a_subscription_continues_after_its_large_record(world: World) -> None:
    world.send()
    world.protocol.dataReceived(b"?\n")
    assert b"".join(world.read(7)) == b"<" + RECORD + b">" + RECORD + b"\n"


def test_peers_share_the_memory_for_large_records_and_each_gets_its_record(world: World) -> None:
    world.broker.budget.unread.capacity = len(RECORD)
    others = [world.connect(number) for number in range(2, 12)]
    world.send()
    for protocol, _ in others:
        protocol.send_record(LargeRecord("s", 1, cut, None))
    for _ in range(6):
        assert world.broker.budget.unread.used <= len(RECORD)
        world.read(1)
        for protocol, _ in others:
            protocol.resumeProducing()
    for _, transport in [(world.protocol, world.transport), *others]:
        assert b"".join(transport.written) == b"<" + RECORD + b">"
    assert not world.broker.budget.unread.used


def test_a_large_record_is_charged_while_it_waits_for_its_first_turn(world: World) -> None:
    size = len(RECORD)
    world.broker.budget.unread.capacity = 2 * size
    run = world.broker.read("s", 1, 1)[0]
    protocols = [world.connect(number)[0] for number in range(2, 12)]
    for number, protocol in enumerate(protocols):
        if number % 2:
            protocol.pauseProducing()
        protocol.send_record(LargeRecord("s", 1, cut, run))
    held = [protocol.outgoing.record.run for protocol in protocols if protocol.outgoing.record is not None]
    assert (len(held), sum(one is not None for one in held), world.broker.budget.unread.used) == (10, 1, size)


def test_a_large_record_that_is_deleted_while_it_is_sent_ends_the_connection(world: World) -> None:
    world.send()
    world.clock.advance(0)
    world.broker.budget.unread.discard(world.protocol.outgoing)
    world.protocol.outgoing.displace()
    world.broker.publish([Run.of("s", [b"next"], source="test")])
    world.journal.forget("s", 2)
    world.read(2)
    assert world.transport.aborted
    assert len(world.transport.written) == 1


def test_closing_first_sends_the_rest_of_a_large_record(world: World) -> None:
    world.send()
    world.read(1)
    world.protocol.finish()
    assert not world.transport.disconnecting
    assert b"".join(world.read(4)) == b"<" + RECORD + b">"
    assert world.transport.disconnecting
    assert not world.transport.aborted


def test_closing_does_not_wait_for_a_peer_that_does_not_read(world: World) -> None:
    world.send()
    world.read(1)
    world.protocol.finish()
    world.clock.advance(CLOSE_TIMEOUT_S)
    assert world.transport.aborted


def test_a_peer_that_sends_requests_within_a_record_and_reads_no_answer_is_dropped(world: World) -> None:
    world.send()
    world.read(1)
    for _ in range(MOST_UNREAD // 60_000 + 2):
        world.protocol.dataReceived(b"echo" + b"x" * 60_000 + b"\n")
    assert world.protocol.phase is not Phase.OPEN


def test_a_lost_connection_releases_the_memory_of_its_large_record(world: World) -> None:
    world.send()
    world.clock.advance(0)
    assert world.broker.budget.unread.used == len(RECORD)
    world.protocol.connectionLost()
    assert not world.broker.budget.unread.used
    world.clock.advance(0)


class Buffered(Transport):
    """A transport that pauses its producer while more than a limit is unsent, until the peer reads."""

    unsent = 0
    protocol: Toy

    def writeSequence(self, data: Any) -> None:
        self.unsent += sum(map(len, data))
        if self.unsent > MOST_UNREAD // 4:
            self.protocol.pauseProducing()

    def read(self, paused: bool) -> None:
        """Let the peer read everything."""
        self.unsent = 0
        if paused:
            self.protocol.resumeProducing()


@pytest.mark.parametrize("seed", range(10))
def test_bytes_that_a_paused_peer_must_read_are_those_that_it_has_not_read(world: World, seed: int) -> None:
    """Unread data is charged to the memory of all peers, so it must be neither forgotten nor counted twice."""
    dice = Random(seed)
    protocol, transport = world.protocol, Buffered(peerAddress=IPv4Address("TCP", "127.0.0.1", 1))
    transport.protocol, protocol.transport = protocol, transport
    unread = world.broker.budget.unread
    for _ in range(200):
        outgoing = protocol.outgoing
        if dice.random() < 0.3:
            transport.read(outgoing.paused)
            assert (outgoing.paused, unread.used) == (False, 0)
        else:
            if not outgoing.paused:
                transport.unsent = 0  # a transport that is not paused has hardly any unsent data left
            protocol.session.out.append(bytes(dice.choice((1, 100, PIECE // 2, PIECE, MOST_UNREAD // 3))))
            protocol.flush()
        if outgoing.paused:
            assert outgoing.written == transport.unsent, "what the peer has not read"
            assert unread.used <= transport.unsent, "more is charged than the peer has not read"
