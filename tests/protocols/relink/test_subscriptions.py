"""Links that consume a named subscription: ``consumed`` moves its position, across lost links and restarts."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred

from fyrehose.broker.guard import Guard
from fyrehose.broker.policy import parse
from fyrehose.interfaces import JournalState
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.reader import RelinkReader
from fyrehose.protocols.relink.session import LinkUnknown
from fyrehose.records import Run


def received(peer: Any) -> list[bytes]:
    return [b"".join(parts) for event in peer.events if isinstance(event, events.Received) for parts in event.messages]


def consume(peer: Any, count: int) -> None:
    """Consume the first *count* messages of channel 0."""
    for seq in range(count):
        peer.link.consume(0, seq)
    peer.talk()


def position(server: Any, name: str = "n") -> int:
    found: int = server.broker.named.find(name).seq
    return found


def serve(make_server: Any, **more: Any) -> Any:
    server = make_server(**more)
    server.publish("s", b"1", b"2", b"3", b"4", b"5")
    return server


def test_consumed_moves_the_position_when_that_is_durable(make_server: Any) -> None:
    server = serve(make_server)
    peer = server.linked("subscribe:s@0?name=n")
    assert received(peer) == [b"1", b"2", b"3", b"4", b"5"]
    server.journal.auto = False
    consume(peer, 3)
    assert position(server) == 0
    server.journal.commit()  # the first acknowledgement
    server.journal.commit()  # those that arrived meanwhile, together
    assert position(server) == 3


def test_a_new_subscription_begins_with_new_records_unless_the_endpoint_says_where(make_server: Any) -> None:
    server = serve(make_server)
    peer = server.linked("subscribe:s?name=n")
    server.publish("s", b"6")
    peer.talk()
    assert received(peer) == [b"6"]


def test_a_reader_that_consumed_nothing_moves_no_position(make_server: Any) -> None:
    server = serve(make_server)
    peer = server.linked("subscribe:s@0?name=n")
    assert peer.reconnect().link is peer.link
    assert position(server) == 0


def test_a_second_consumer_is_refused_until_the_first_has_left(make_server: Any) -> None:
    server = serve(make_server)
    first = server.linked("subscribe:s@0?name=n")
    links = len(server.registry.entries)
    assert server.linked("subscribe:s@0?name=n").closed
    assert not first.closed
    assert server.count("subscription-refused") == 1
    assert len(server.registry.entries) == links
    first.leave()
    assert not server.linked("subscribe:s@0?name=n").closed


def test_a_consumer_that_takes_over_ends_the_other_link(make_server: Any) -> None:
    server = serve(make_server)
    first = server.linked("subscribe:s@0?name=n")
    consume(first, 2)
    second = server.linked("subscribe:s@0?name=n&takeover")
    assert received(second) == [b"3", b"4", b"5"]
    assert first.closed
    assert server.count("subscription-displaced") == 1
    old = server.connect(old=first.link, require=True)
    old.talk()
    assert any(isinstance(event, LinkUnknown) for event in old.events)


def test_a_link_is_not_resumed_after_another_consumer_had_the_subscription(make_server: Any) -> None:
    server = serve(make_server)
    first = server.linked("subscribe:s@0?name=n")
    first.leave()
    second = server.linked("subscribe:s@0?name=n")
    consume(second, 4)
    second.leave()
    again = server.linked(old=first.link)
    assert again.link is not first.link
    assert received(again) == [b"5"]


def test_rewinding_ends_the_link(make_server: Any) -> None:
    server = serve(make_server)
    peer = server.linked("subscribe:s@0?name=n")
    consume(peer, 5)
    server.broker.named.rewind(server.broker.named.find("n"), 1)
    assert peer.closed
    assert received(server.linked(old=peer.link)) == [b"2", b"3", b"4", b"5"]


def test_a_connection_that_replaces_a_half_open_one_keeps_the_subscription(make_server: Any) -> None:
    server = serve(make_server)
    peer = server.linked("subscribe:s@0?name=n")
    peer.session.receive_eof()
    again = server.linked(old=peer.link)
    assert again.session.link is peer.link
    peer.protocol.connectionLost()
    assert server.linked("subscribe:s@0?name=n").closed


def test_a_full_disk_refuses_new_subscriptions_only(make_server: Any) -> None:
    server = serve(make_server)
    server.linked("subscribe:s@0?name=n").leave()
    server.journal.enter(JournalState.READ_ONLY, "full")
    assert server.linked("subscribe:s@0?name=new").closed
    assert received(server.linked("subscribe:s@0?name=n")) == [b"1", b"2", b"3", b"4", b"5"]


def test_positions_behind_a_gap_are_right(make_server: Any) -> None:
    server = make_server()
    for payload in (b"1", b"2", b"3", b"4"):
        server.publish("s", payload)
    server.linked("subscribe:s@0?name=n").leave()
    server.journal.forget("s", 3)
    peer = server.linked("subscribe:s@0?name=n")
    peer.talk()
    assert received(peer) == [b"3", b"4"]
    consume(peer, 1)
    assert position(server) == 3


def test_consuming_requires_the_right_consume(make_server: Any) -> None:
    server = serve(make_server)
    server.broker.guard = Guard(parse({"allow": [{"network": "127.0.0.1", "subscribe": "*", "consume": "t"}]}))
    assert server.linked("subscribe:s@0?name=n").closed
    assert not server.linked("subscribe:s@0").closed
    assert not server.linked("subscribe:t@0?name=n").closed


@attrs.define(eq=False)
class Reading:
    """A reader of a named subscription, with the numbers that it has passed on."""

    wire: Any
    takeover: bool = False
    seqs: list[int] = attrs.field(factory=list)
    lost: list[tuple[int, int]] = attrs.field(factory=list)
    answers: list[Any] = attrs.field(factory=list)
    reader: RelinkReader = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.reader = RelinkReader(self.wire.server.clock, self.wire)
        self.reader.subscribe("s", self.take, 0, lambda *gap: self.lost.append(gap), name="n", takeover=self.takeover)
        self.reader.connect().addErrback(lambda failure: None)
        self.wire.pump()

    def take(self, run: Run) -> Any:
        self.seqs.append(run.first_seq)
        return self.answers.pop(0) if self.answers else None

    def reconnect(self) -> None:
        for _ in range(4):
            self.wire.pump(1)


@pytest.fixture
def read(make_wire: Any) -> Any:
    """Return a function that makes a reader: ``read(server)``."""
    return lambda server, **more: Reading(make_wire(server), **more)


def test_a_reader_gets_records_again_when_its_subscription_was_rewound(make_server: Any, read: Any) -> None:
    server = serve(make_server)
    reading = read(server)
    server.broker.named.rewind(server.broker.named.find("n"), 3)
    reading.reconnect()
    assert reading.seqs == [1, 2, 3, 4, 5, 4, 5]
    reading.wire.cut()
    server.publish("s", b"6", b"7")
    server.broker.named.rewind(server.broker.named.find("n"), None)
    reading.reconnect()
    assert (reading.seqs[7:], reading.lost) == ([], [])
    reading.reader.close()


def test_records_that_were_consumed_elsewhere_meanwhile_are_not_lost(make_server: Any, read: Any) -> None:
    server = serve(make_server)
    reading = read(server)
    reading.wire.lose_link()
    server.publish("s", b"6", b"7", b"8")
    server.broker.named.acknowledge(server.broker.named.find("n"), {"s": 7})
    reading.reconnect()
    assert (reading.seqs, reading.lost) == ([1, 2, 3, 4, 5, 8], [])
    reading.reader.close()


def test_readers_take_turns_when_the_other_is_away_and_report_no_loss(make_server: Any, read: Any) -> None:
    server = serve(make_server)
    first, second = read(server), read(server)
    second.reconnect()
    assert second.seqs == []
    first.wire.refusing = True
    first.wire.cut()
    server.publish("s", b"6")
    second.wire.settle()
    assert second.seqs == [6]
    second.reader.close()
    second.wire.pump()
    first.wire.refusing = False
    server.publish("s", b"7")
    first.wire.settle()
    assert (first.seqs, first.lost, second.lost) == ([1, 2, 3, 4, 5, 7], [], [])
    first.reader.close()


def test_a_reader_that_closes_acknowledges_its_last_record_and_leaves_its_link(make_server: Any, read: Any) -> None:
    server = serve(make_server)
    reading = read(server)
    server.publish("s", b"6")
    server.clock.advance(0)
    slow: Deferred[None] = Deferred()
    reading.answers, wire = [slow], reading.wire
    wire.near.dataReceived(wire.far.transport.value())
    wire.near.transport.clear()
    slow.callback(None)
    closed = reading.reader.close()
    wire.far.dataReceived(wire.near.transport.value())
    server.clock.advance(0)
    assert (reading.seqs, position(server)) == ([1, 2, 3, 4, 5, 6], 6)
    assert wire.near.transport.disconnecting
    wire.cut()
    assert closed.called
    assert len(server.registry.entries) == 1


@pytest.mark.parametrize("seed", range(30))
def test_records_are_consumed_exactly_once_over_lost_connections_lost_links_and_crashes(
    make_server: Any, read: Any, seed: int
) -> None:
    dice = random.Random(seed)
    server = make_server()
    reading = read(server)
    published = highest = 0
    for _ in range(60):
        what = dice.random()
        if what < 0.4:
            count = dice.randint(1, 5)
            server.publish("s", *[b"x"] * count)
            published += count
        elif what < 0.6:
            reading.wire.pump(dice.choice((0, 0, 1)))
        elif what < 0.7:
            reading.wire.cut()
        elif what < 0.75:
            reading.wire.lose_link()
        elif what < 0.82:  # the position cannot be moved until there is room, and the connection may be lost before
            server.journal.enter(JournalState.READ_ONLY, "full")
            reading.wire.pump(dice.choice((0, 1)))
            if dice.random() < 0.7:
                reading.wire.cut()
            server.journal.enter(JournalState.WRITABLE, "room")
        elif what < 0.9:
            reading.wire.cut()
            server.journal.auto = False
            reading.wire.pump(1)
            server.journal.enter(JournalState.FAILED, "crash")
            server.journal.auto = True
            reading.wire.cut()
            server.restart()
            published = server.journal.bounds("s")[1]
        else:
            reading.wire.settle()
            assert position(server) == max(reading.seqs, default=0), "nothing is on its way any more"
        if "n" in server.broker.table.entries:
            now = position(server)
            assert highest <= now <= max(reading.seqs, default=0), "never back, and never ahead of what was consumed"
            highest = now
    for _ in range(10):
        reading.wire.pump(2)
    assert (reading.seqs, reading.lost) == (list(range(1, published + 1)), [])
    assert position(server) == published
    reading.reader.close()
