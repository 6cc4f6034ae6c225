"""The outgoing half of a connection: large records in pieces, and what follows them."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
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


def test_a_subscription_continues_after_its_large_record(world: World) -> None:
    world.send()
    world.protocol.dataReceived(b"?\n")
    assert b"".join(world.read(7)) == b"<" + RECORD + b">" + RECORD + b"\n"


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


def test_the_record_of_a_peer_that_does_not_read_gives_way_and_is_read_again(world: World) -> None:
    world.broker.budget.unread.capacity = len(RECORD)
    run = world.broker.read("s", 1, 1)[0]
    (deaf, transport), (reader, _) = world.connect(2), world.connect(3)
    deaf.send_record(LargeRecord("s", 1, cut, run))
    world.clock.advance(0)
    reader.send_record(LargeRecord("s", 1, cut, run))
    left = [protocol.outgoing.record for protocol in (deaf, reader)]
    assert [record is not None and record.run is run for record in left] == [False, True]
    for _ in range(5):
        deaf.resumeProducing()
        world.clock.advance(0)
    assert b"".join(transport.written) == b"<" + RECORD + b">"


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


def test_bug_in_cutting_a_large_record_ends_the_connection(world: World, logged_errors: Any) -> None:
    world.protocol.send_record(LargeRecord("s", 1, lambda run, position: 1 // 0, None))  # type: ignore[arg-type]
    world.clock.advance(0)
    assert world.transport.aborted
    assert len(logged_errors.take()) == 1


@pytest.mark.parametrize("late", [0.0, CLOSE_TIMEOUT_S - 1, CLOSE_TIMEOUT_S])
def test_closing_gives_the_peer_time_to_read_the_rest_of_a_record_and_then_as_much_to_close(
    world: World, late: float
) -> None:
    world.send()
    world.read(1)
    world.protocol.finish()
    world.clock.advance(late)
    assert world.transport.aborted == (late == CLOSE_TIMEOUT_S)
    if not world.transport.aborted:
        assert not world.transport.disconnecting
        assert b"".join(world.read(4)) == b"<" + RECORD + b">"
        assert world.transport.disconnecting
        world.clock.advance(CLOSE_TIMEOUT_S - 0.5)
        assert not world.transport.aborted, "its time to read has begun again"
        world.clock.advance(0.5)
        assert world.transport.aborted


@attrs.define(eq=False)
class Subscription:
    """A subscription that delivers nothing, until it is stopped."""

    reads: bool = False
    stopped: bool = False

    def resumeProducing(self) -> None:
        assert not self.stopped
        self.reads = True

    def pauseProducing(self) -> None:
        assert not self.stopped
        self.reads = False

    def stopProducing(self) -> None:
        self.reads, self.stopped = False, True


class Reader(Transport):
    """A peer that reads now and then; its transport pauses the protocol while more than a limit is unsent.

    :ivar expected: what it is to be sent, in order
    :ivar replies: how many bytes of answers were sent since everything before was read
    :ivar charges: whether what it has not read is charged to the memory of all peers
    :ivar delivers: whether anything was sent since the last check
    """

    def begin(self, broker: Broker, clock: Clock, number: int) -> None:
        protocol = ToyFactory(broker, reactor=clock).buildProtocol(IPv4Address("TCP", "127.0.0.1", number))
        assert isinstance(protocol, Toy)
        self.protocol, self.wire, self.expected, self.unsent, self.replies = protocol, bytearray(), bytearray(), 0, 0
        self.charges, self.delivers, self.ended = False, False, list[Subscription]()
        protocol.makeConnection(self)
        self.subscribe()

    def subscribe(self) -> None:
        self.subscription = Subscription()
        self.protocol.attach(self.subscription)

    def unsubscribe(self) -> None:
        self.protocol.detach(self.subscription)
        self.ended.append(self.subscription)
        assert not self.protocol.outgoing.delivers(), "without subscriptions the peer is idle"
        self.delivers = False
        self.subscribe()

    def writeSequence(self, data: Any) -> None:
        written = b"".join(data)
        self.wire += written
        self.delivers = True
        if self.protocol.outgoing.paused:
            self.unsent += len(written)
        else:
            self.unsent, self.charges = len(written), len(written) > PIECE
            if self.unsent > MOST_UNREAD // 4:
                self.protocol.pauseProducing()

    def ask(self, size: int) -> None:
        """Ask for an answer of *size* bytes."""
        answer = b"%d" % (len(self.expected) % 7) * size
        self.expected += answer
        self.replies += size if self.protocol.outgoing.blocked else 0
        self.protocol.dataReceived(b"echo%b\n" % answer)

    def take(self, record: LargeRecord) -> None:
        if self.protocol.outgoing.record is None:
            self.expected += b"<" + RECORD + b">"
            self.protocol.send_record(record)

    def read(self) -> None:
        self.unsent = 0
        if self.protocol.outgoing.paused and not self.aborted:
            self.protocol.resumeProducing()

    def lose(self) -> None:
        self.protocol.connectionLost()
        assert self.subscription.stopped
        assert self.protocol.outgoing not in self.protocol.broker.budget.unread

    def check(self, most: float) -> None:
        outgoing = self.protocol.outgoing
        assert self.expected.startswith(self.wire), "answers are sent in order, and none within a record"
        dropped = self.protocol.phase is not Phase.OPEN
        assert dropped if self.replies > MOST_UNREAD else (not dropped or most < inf), f"{self.replies} are unread"
        assert self.subscription.reads == (not dropped and not outgoing.blocked)
        assert all(each.stopped for each in self.ended)
        if dropped:
            return
        lent = outgoing.record is not None and outgoing.record.run is not None
        unread = outgoing in self.protocol.broker.budget.unread
        assert unread == (lent or (outgoing.paused and self.charges)) or (most < inf and not lent and not unread)
        assert outgoing.written == self.unsent or not outgoing.paused, "what the peer has not read"
        if not outgoing.blocked:
            assert (outgoing.delivers(), outgoing.delivers()) == (self.delivers, False), "whether the peer is idle"
            self.replies, self.delivers = 0, False


@pytest.mark.parametrize("most", [len(RECORD), inf])
@pytest.mark.parametrize("seed", range(10))
def test_peers_that_read_get_records_and_answers_in_order_within_the_memory(seed: int, most: float) -> None:
    dice, clock, broker = Random(seed), Clock(), World().broker
    broker.turns.clock, unread = clock, broker.budget.unread
    unread.capacity = min(most, 1 << 40)
    broker.publish([Run.of("s", [b"other", RECORD, b"another"], source="test")])
    run = broker.read("s", 3, 1)[0]
    readers = [Reader() for _ in range(5)]
    for number, reader in enumerate(readers):
        reader.begin(broker, clock, number)
    for _ in range(300):
        at = dice.randrange(len(readers))
        if dice.random() < 0.02:
            readers[at].lose()
            readers[at] = Reader()
            readers[at].begin(broker, clock, at)
        reader = readers[at]
        if reader.protocol.phase is Phase.OPEN:
            match dice.randrange(6):
                case 5:
                    reader.unsubscribe()
                case 0:
                    reader.take(LargeRecord("s", 3, cut, dice.choice((None, run))))
                case 1:
                    reader.ask(dice.choice((1, 100, PIECE, max(1, MOST_UNREAD - reader.replies))))
                case 2:
                    clock.advance(0)
                    for each in readers:
                        each.check(most)
                case _:
                    reader.read()
            reader.check(most)
        assert unread.used <= unread.capacity or len(unread) == 1
    for _ in range(10):
        clock.advance(0)
        for reader in readers:
            reader.read()
    for reader in readers:
        assert reader.protocol.phase is not Phase.OPEN or reader.wire == reader.expected
        reader.lose()
    assert unread.used == 0
