"""The endpoints ``publish:`` and ``subscribe:``: positions, gaps, and subscribers that resume."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

import attrs
import pytest
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from fyrehose.interfaces import JournalState
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.channels import Sending
from fyrehose.protocols.relink.endpoints import MAX_ANCHORS, stream_seq
from fyrehose.protocols.relink.frames import SHUTDOWN, Ack, Message, Op
from fyrehose.protocols.relink.messages import CONTENT_TYPE, join
from fyrehose.protocols.relink.names import EndpointName
from fyrehose.protocols.relink.server import first_anchor
from fyrehose.protocols.relink.session import Linked
from fyrehose.records import Delivery, Run
from fyrehose.sessions import PIECE


def got(peer: Any) -> list[tuple[int, tuple[bytes, ...]]]:
    return [one for e in peer.events if isinstance(e, events.Received) for one in enumerate(e.messages, e.first)]


def bodies(peer: Any) -> list[bytes]:
    return [parts[0] for _, parts in got(peer)]


def forget(peer: Any, found: list[Any]) -> None:
    """Forget each channel that is finished, as the owner of a session does."""
    for event in found:
        if isinstance(event, events.Finished):
            peer.link.forget(event.channel)


def test_anchors_map_channel_numbers_to_stream_numbers(make_server: Any) -> None:
    server = make_server()
    server.publish("s", b"1", b"2", b"3")
    for after, first in ((None, 4), (0, 1), (2, 3), (3, 4), (99, 1)):
        assert first_anchor(server.broker, EndpointName(stream="s", subscribe=True, after=after)) == [(0, first)]
    assert first_anchor(server.broker, EndpointName(stream="s", subscribe=False)) == []
    assert [stream_seq([(0, 5), (3, 20)], seq) for seq in (0, 2, 3, 4)] == [5, 7, 20, 21]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("subscribe:s", [b"3"]), ("subscribe:s@0", [b"1", b"2", b"3"]), ("subscribe:s@1", [b"2", b"3"])],
)
def test_subscriber_gets_records_behind_its_position(make_server: Any, name: str, expected: list[bytes]) -> None:
    server = make_server()
    server.publish("s", b"1", b"2")
    peer = server.linked(name)
    server.publish("s", b"3")
    peer.talk()
    assert bodies(peer) == expected


@pytest.mark.parametrize(("name", "most"), [("subscribe:s", 5), ("subscribe:s?seq", 4)])
def test_delivery_is_sent_up_to_its_first_gap_and_as_far_as_there_is_room(
    make_server: Any, name: str, most: int
) -> None:
    """The message that says where a channel begins takes a place of the window."""
    narrow = make_server(window="5").linked(name)
    assert narrow.protocol.endpoint.deliver(Delivery((Run.of("s", [b"x"] * 9, source="test").numbered(1, 1),))) == most
    peer = make_server().linked(name)
    runs = [Run.of("s", [b"x"] * 2, source="test").numbered(first, 1) for first in (1, 3, 6)]
    assert peer.protocol.endpoint.deliver(Delivery(tuple(runs))) == 4
    runs = [Run.of("s", [bytes(PIECE // 3)] * 2, source="test").numbered(first, 1) for first in (7, 9)]
    assert peer.protocol.endpoint.deliver(Delivery(tuple(runs))) == 8, "the heads of messages count, too"


def test_records_are_delivered_only_when_durable(make_server: Any) -> None:
    server = make_server(auto=False)
    peer = server.linked_durably("subscribe:s@0")
    server.publish("s", b"1")
    peer.talk()
    assert bodies(peer) == []
    server.journal.commit()
    peer.talk()
    assert bodies(peer) == [b"1"]


def test_parts_are_preserved(make_server: Any) -> None:
    server = make_server()
    publisher = server.linked()
    messages = [(b"one",), (), (b"",), (b"a", b"", b"bc"), (b"one more",)]
    for parts in messages:
        publisher.link.send((3,), parts)
    publisher.talk()
    server.publish("s", b"not parts", content_type=CONTENT_TYPE)
    server.publish("s", join((b"x", b"y")))
    peer = server.linked("subscribe:s@0")
    assert [parts for _, parts in got(peer)] == [*messages, (b"not parts",), (join((b"x", b"y")),)]


@pytest.mark.parametrize("seed", range(30))
def test_each_record_is_delivered_once_over_gaps_reconnections_and_restarts(make_server: Any, seed: int) -> None:
    """Retention deletes records that were not sent: channel numbers have no gap, and belong to the same records."""
    dice, server, after = random.Random(seed), make_server(window="4"), seed % 3
    server.publish("s", b"1", b"2")
    peer = server.linked(f"subscribe:s@{after}?seq")
    heard, published, deaf = list[tuple[int, tuple[bytes, ...]]](), 2, False
    for step in range(120):
        names = ("publish", "publish", "consume", "consume", "delete", "checkpoint", "deafen", "reconnect", "restart")
        what = dice.choice(names)
        what = "reconnect" if step == 110 else "consume" if step > 110 else what
        if deaf:  # what the server sends until the connection is lost does not arrive
            peer.say(b"".join(peer.session.data_to_send()))
            server.clock.advance(0)
            peer.transport.clear()
        else:
            peer.talk()
        last = len(heard) + len(got(peer)) - 1
        if what == "publish":
            published += 1
            server.publish("s", b"%d" % published)
        elif what == "consume" and last > peer.link.receiving[0].consumed:
            peer.link.consume(0, last if step > 110 else peer.link.receiving[0].consumed + 1)
        elif what == "delete":
            server.journal.forget("s", dice.randint(max(1, published - 5), published))
        elif what == "checkpoint":
            server.registry.log.maintain(True)
        elif what == "deafen":
            deaf = True
        elif what in ("reconnect", "restart"):
            heard, deaf = heard + got(peer), False
            peer.session.data_to_send()  # These bytes are lost.
            peer.leave()
            if what == "restart":
                server.restart()
            peer = server.linked(old=peer.link)
            assert peer.events[0].resumed
    heard += got(peer)
    assert [seq for seq, _ in heard] == list(range(len(heard)))
    assert heard[0][1][:2] == (b"", number(after)), "the channel begins with the position"
    seqs = [int.from_bytes(parts[0], "little") for _, parts in heard[1:]]
    assert [parts[1] for _, parts in heard[1:]] == [b"%d" % seq for seq in seqs]
    assert seqs == sorted(set(seqs))
    deleted = range(after + 1, server.journal.bounds("s")[0])
    assert sorted({*seqs, *deleted}) == list(range(after + 1, published + 1))
    check_shutdown(server, peer, dice)


def check_shutdown(server: Any, peer: Any, dice: random.Random) -> None:
    """A link whose peer has shut down is kept in memory until all is consumed, and no start finds it again."""
    if dice.random() < 0.5:
        server.publish("s", b"last")
    peer.link.shutdown()
    peer.talk()
    if dice.random() < 0.5:
        peer = peer.reconnect()
        assert peer.events[0].resumed, "the peer has not consumed everything, or not forgotten the channel"
    if dice.random() < 0.5:
        server.registry.log.maintain(True)
    peer.leave()
    server.restart()
    assert not server.linked(old=peer.link).events[0].resumed, "the peer would get everything again"


@attrs.define
class Went:
    """One message of a publisher, its decision, and what the server has answered."""

    payload: bytes
    op: Op | None = None
    together: tuple[int, int] = (0, 0)  #: the first and the last message of the decision
    answer: Ack | None = None


MOST = 20  #: the stream refuses larger payloads


class PublisherHistory:
    """Publishes over lost connections, crashes and a full disk, and knows which messages must be stored."""

    def __init__(self, make_server: Any, seed: int) -> None:
        self.dice = random.Random(seed)
        self.transactional = bool(seed % 3)
        self.server = make_server(auto=False, refused="dead-letter")
        self.server.broker.restrict("s", MOST)
        self.peer = self.server.linked(connector_transactions=self.transactional)
        assert self.peer.session.link is None, "the reply is sent when the link is durable"
        self.commit()
        self.peer.talk()
        self.sent: dict[tuple[int, int], list[Went]] = {}  # by channel, and how often it was opened before
        self.opened = [0, 0, 0]
        self.seen = 0

    def step(self) -> None:
        names = ("send", "send", "send", "decide", "decide", "talk", "talk", "commit", "close", "cut", "half_open")
        getattr(self, self.dice.choice((*names, "crash", "fill")))()
        self.take()

    def messages(self, channel: int) -> list[Went]:
        return self.sent.setdefault((channel, self.opened[channel]), [])

    def take(self) -> None:
        """Note what the server has answered, which must be durable."""
        for event in self.peer.events[self.seen :]:
            match event:
                case events.Resulted():
                    for one in self.messages(event.channel)[event.first : event.last + 1]:
                        assert (one.op, one.answer) == (Op.COMMIT, None), "each commit has one result"
                        one.answer = event.result
                        assert (one.payload in self.server.payloads()) is (event.result is Ack.COMMITTED)
                case events.Consumed() if not self.transactional:
                    for one in self.messages(event.channel)[event.first : event.last + 1]:
                        one.answer = Ack.CONSUMED
                        assert one.payload in [*self.server.payloads(), *self.server.payloads("dead.relink")]
                case events.ChannelClosed():
                    self.opened[event.channel] += 1
        self.seen = len(self.peer.events)

    def send(self) -> None:
        for channel in self.dice.sample(range(3), k=self.dice.randint(1, 3)):
            found = self.peer.link.sending.get(channel)
            if found is not None and found.mode is not Sending.OPEN:
                continue
            messages = self.messages(channel)
            large = b"x" * MOST if self.dice.random() < 0.06 else b""
            messages.append(Went(b"%d.%d %d " % (channel, self.opened[channel], len(messages)) + large))
            self.peer.link.send((channel,), (messages[-1].payload,))

    def decide(self, everything: bool = False) -> None:
        for channel, found in self.peer.link.sending.items():
            if found.undecided and (everything or self.dice.random() < 0.5):
                op = self.dice.choice((Op.COMMIT, Op.COMMIT, Op.ROLLBACK))
                through = found.next - 1 if everything else min(found.next - 1, found.dec + self.dice.choice((1, 1, 9)))
                first, last = self.peer.link.decide(channel, op, through)
                for one in self.messages(channel)[first : last + 1]:
                    one.op, one.together = op, (first, last)

    def close(self) -> None:
        for channel, found in list(self.peer.link.sending.items()):
            if found.mode is Sending.OPEN and not found.undecided and self.dice.random() < 0.3:
                self.peer.link.close(channel)

    def talk(self) -> None:
        self.peer.talk()

    def commit(self) -> None:
        self.server.journal.commit()

    def part(self) -> None:
        """Let the server receive a part of what the peer has sent, and lose its answer."""
        data = b"".join(self.peer.session.data_to_send())
        self.peer.say(data[: self.dice.randint(0, len(data))])
        if self.dice.random() < 0.5:
            self.commit()
        self.server.clock.advance(0)

    def cut(self) -> None:
        self.part()
        self.peer.leave()
        self.resume()

    def half_open(self) -> None:
        """Reconnect before the server notices; what still arrives on the first connection has no effect."""
        self.part()
        self.peer.session.receive_eof()
        before, fenced = self.peer, self.server.count("connections-fenced")
        self.resume()
        assert before.transport.aborted
        assert self.server.count("connections-fenced") == fenced + 1
        before.say(Message(channels=(0,), parts=(b"late",)).serialize(1))
        before.protocol.connectionLost(Failure(ConnectionDone()))

    def crash(self) -> None:
        self.part()
        self.server.journal.pending.clear()
        self.peer.session.receive_eof()
        self.server.restart()
        self.server.broker.restrict("s", MOST)
        self.resume()

    def fill(self) -> None:
        """Fill the disk, and make room after the server has closed a connection that waits."""
        self.server.journal.enter(JournalState.READ_ONLY, "full")
        self.part()
        self.server.clock.advance(5)
        self.peer.leave()
        self.server.journal.enter(JournalState.WRITABLE, "room")
        self.resume()

    def resume(self) -> None:
        link = self.peer.link
        for messages in self.sent.values():
            self.join(messages)
        self.peer, self.seen = self.server.linked(old=link), 0
        for _ in range(5):
            self.commit()
            self.peer.talk()
        assert [type(event) for event in self.peer.events if isinstance(event, Linked | events.Resumed)] == [
            Linked,
            events.Resumed,
        ]
        assert self.peer.link is link

    def join(self, messages: list[Went]) -> None:
        """Note that decisions alike, without an answer, are sent again as one."""
        for _, some in groupby(enumerate(messages), lambda each: (each[1].op, each[1].answer)):
            run = list(some)
            for _, one in run:
                one.together = (run[0][0], run[-1][0]) if one.answer is None else one.together

    def end(self) -> None:
        """Decide and close everything, and shut down; check what is stored."""
        self.decide(everything=True)
        for channel, found in list(self.peer.link.sending.items()):
            if found.mode is Sending.OPEN:
                self.peer.link.close(channel)
        self.peer.link.shutdown()
        for _ in range(10):
            self.commit()
            self.talk()
        self.take()
        assert isinstance(self.peer.events[-1], events.Ended)
        assert self.peer.closed
        self.server.restart()
        assert not self.server.registry.entries, "the link has ended for the next start, too"
        self.check()

    def check(self) -> None:
        producers: dict[tuple[int, int], str] = {}
        stored: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
        for record in self.server.records():
            key = int(record.topic), int(record.payload.split()[0].split(b".")[1])
            assert producers.setdefault(key, record.producer) == record.producer
            stored.setdefault(key, []).append((record.producer_seq, record.payload))
        assert len(set(producers.values())) == len(producers), "a channel that is opened again is another producer"
        letters = {record.payload: record.topic for record in self.server.records("dead.relink")}
        large = [one.payload for sent in self.sent.values() for one in sent if len(one.payload) > MOST]
        kept = [] if self.transactional else large
        assert letters == {each: f"PayloadTooLarge {len(each)} s" for each in kept}
        assert len(self.server.records("dead.relink")) == len(letters)
        for key, sent in self.sent.items():
            wanted = Ack.COMMITTED if self.transactional else Ack.CONSUMED
            numbered = [(seq, one.payload) for seq, one in enumerate(sent) if one.answer is wanted]
            assert stored.get(key, []) == [one for one in numbered if one[1] not in letters]
            for one in sent:
                assert (one.answer is None) is (self.transactional and one.op is not Op.COMMIT)
                first, last = one.together
                beside = [each.payload for each in sent[first : last + 1]]
                assert one.answer is not Ack.UNCOMMITTED or max(map(len, beside)) > MOST, "nothing of it is too large"


@pytest.mark.parametrize("seed", range(18))
def test_each_message_is_stored_once_and_answered_over_crashes_and_a_full_disk(make_server: Any, seed: int) -> None:
    history = PublisherHistory(make_server, seed)
    for _ in range(80):
        history.step()
    history.end()


@pytest.mark.parametrize("had", [2, 500])
def test_acknowledgement_beyond_the_stream_ends_the_link(make_server: Any, had: int) -> None:
    server = make_server()
    server.publish("s", b"1")
    peer = server.linked("subscribe:s@0")
    peer.leave()
    server.restart()
    channel = peer.link.receiving[0]
    channel.next, channel.done, channel.consumed = had, had - 1, had - 1
    again = server.linked(old=peer.link)
    assert again.closed
    assert server.count("acknowledged-unsent") == 1
    assert not server.registry.entries


def test_subscriber_that_sends_messages_loses_its_link(make_server: Any) -> None:
    server = make_server()
    peer = server.linked("subscribe:s")
    peer.say(Message(channels=(0,), parts=(b"x",)).serialize(1))
    assert peer.closed
    assert server.count("message-to-subscription") == 1


def test_subscriber_shutdown_ends_the_link_after_consumption(make_server: Any) -> None:
    server = make_server()
    server.publish("s", b"1", b"2")
    peer = server.linked("subscribe:s@0")
    peer.link.shutdown()
    peer.talk()
    assert not any(isinstance(e, events.Ended) for e in peer.events), "the peer has not consumed all messages"
    peer.link.consume(0, 1)
    forget(peer, peer.talk())
    assert isinstance(peer.talk()[-1], events.Ended)
    assert peer.closed
    assert not server.registry.entries


@pytest.mark.parametrize("restarted", [False, True])
def test_subscriber_shutdown_before_any_record_closes_no_channel(make_server: Any, restarted: bool) -> None:
    server = make_server()
    peer = server.linked("subscribe:s")
    if restarted:
        peer.leave()
        server.restart()
        peer = server.linked(old=peer.link)
    peer.transport.clear()
    peer.say(SHUTDOWN.serialize())
    server.clock.advance(0)
    assert peer.transport.value() == SHUTDOWN.serialize()


def test_channel_is_not_closed_before_the_server_has_forgotten_the_link(make_server: Any) -> None:
    """A peer forgets a closed channel: if the server crashed and still had the link, it would send everything again."""
    server = make_server()
    server.publish("s", b"1", b"2")
    peer = server.linked("subscribe:s@0")
    peer.link.consume(0, 1)
    peer.talk()
    server.journal.auto = False
    peer.link.shutdown()
    forget(peer, peer.talk())
    peer.leave()
    server.journal.pending.clear()
    server.journal.auto = True
    server.restart()
    again = server.connect(old=peer.link)
    while sent := b"".join(again.session.data_to_send()):
        for at in range(0, len(sent), 8):  # resume arrives before shutdown
            again.say(sent[at : at + 8])
            server.clock.advance(0)
        again.events += again.session.receive_data(again.transport.value())
        again.transport.clear()
    assert bodies(again) == []
    forget(again, again.events)
    assert isinstance(again.talk()[-1], events.Ended)
    assert not server.registry.entries


def test_link_ends_while_the_disk_is_full(make_server: Any) -> None:
    server = make_server()
    server.publish("s", b"1")
    peer = server.linked("subscribe:s@0")
    peer.link.consume(0, 0)
    server.journal.enter(JournalState.READ_ONLY, "full")
    peer.link.shutdown()
    forget(peer, peer.talk())
    assert isinstance(peer.talk()[-1], events.Ended)


def test_subscribing_works_while_the_disk_is_full(make_server: Any) -> None:
    server = make_server()
    server.publish("s", b"1")
    server.journal.enter(JournalState.READ_ONLY, "full")
    peer = server.linked("subscribe:s@0")
    assert bodies(peer) == [b"1"]
    refused = server.connect("publish:s")
    refused.talk()
    assert refused.session.link is None


def test_unwritable_gap_ends_the_link(make_server: Any) -> None:
    server = make_server(window="1")
    for i in range(4):
        server.publish("s", b"%d" % i)
    peer = server.linked("subscribe:s@0")
    peer.leave()
    server.journal.forget("s", 4)
    server.journal.enter(JournalState.READ_ONLY, "full")
    peer.link.consume(0, 0)
    again = server.linked(old=peer.link)
    assert bodies(again) == []
    assert again.closed
    assert server.count("gap-not-written") == 1


def test_number_of_unconsumed_gaps_is_limited(make_server: Any) -> None:
    server = make_server(window="2000")
    peer = server.linked("subscribe:s@0")
    for gaps in range(MAX_ANCHORS + 1):
        assert not peer.closed, f"closed after {gaps} gaps"
        peer.protocol.pauseProducing()
        server.publish("s", b"deleted")
        server.publish("s", b"x")
        server.journal.forget("s", server.broker.bounds("s")[1])
        peer.protocol.resumeProducing()
        server.clock.advance(0)
    assert (server.count("too-many-gaps"), server.count("skipped")) == (1, MAX_ANCHORS + 1)
    assert MAX_ANCHORS == 1_000


def test_ended_subscription_closes_the_connection(make_server: Any) -> None:
    server = make_server()
    peer = server.linked("subscribe:s")
    server.broker.close()
    assert peer.closed


def test_slow_transport_pauses_the_subscription(make_server: Any) -> None:
    server = make_server()
    peer = server.linked("subscribe:s")
    peer.protocol.pauseProducing()
    server.publish("s", b"1")
    server.clock.advance(0)
    assert peer.transport.value() == b""
    peer.protocol.resumeProducing()
    peer.talk()
    assert bodies(peer) == [b"1"]


def number(seq: int) -> bytes:
    return seq.to_bytes(8, "little")


def start(seq: int, end: int) -> tuple[bytes, ...]:
    """Return the first message of a channel that begins behind record *seq* of a stream that ends at *end*."""
    return b"", number(seq), number(0), number(end), b""


@pytest.mark.parametrize("place", ["@1000?seq", "@1?seq&epoch=older"])
def test_position_of_another_journal_begins_with_the_oldest_record(make_server: Any, place: str) -> None:
    server = make_server()
    server.publish("s", b"1", b"2")
    peer = server.linked(f"subscribe:s{place}")
    assert got(peer) == [(0, start(0, end=2)), (1, (number(1), b"1")), (2, (number(2), b"2"))]


@pytest.mark.parametrize(("size", "count"), [(100, 20_000), (1 << 20, 3), (4 << 20, 2)])
def test_subscribers_that_never_read_take_little_memory(make_server: Any, size: int, count: int) -> None:
    server = make_server(window="1000000")
    peers = [server.linked("subscribe:s@0") for _ in range(50)]
    written: list[int] = []
    for peer in peers:

        def full(data: list[bytes], peer: Any = peer) -> None:
            written.append(sum(map(len, data)))
            peer.protocol.pauseProducing()

        peer.transport.writeSequence = full
    server.publish("s", *[b"x" * size] * count)
    for _ in range(500):
        server.clock.advance(0)
    assert len(written) == len(peers)
    assert max(written) <= PIECE
    assert sum(written) + server.broker.budget.unread.used <= 64 << 20
    assert all(cursor.paused and cursor.closes_in is not None for cursor in server.broker.fanout.cursors)


@pytest.mark.parametrize("name", ["subscribe:s@0", "subscribe:s@0?seq"])
def test_messages_larger_than_a_piece_arrive_whole(make_server: Any, name: str) -> None:
    server = make_server()
    large = b"large" * 100_000
    server.publish("s", b"before")
    server.publish("s", large, content_type="text/plain")
    server.publish("s", join((b"a", large, b"", large)), content_type=CONTENT_TYPE)
    server.publish("s", b"after")
    peer = server.linked(name)
    parts = [parts for _, parts in got(peer)]
    if "seq" in name:
        assert [one[0] for one in parts[1:]] == [n.to_bytes(8, "little") for n in (1, 2, 3, 4)]
        parts = [one[1:] for one in parts[1:]]
    assert parts == [(b"before",), (large,), (b"a", large, b"", large), (b"after",)]


def test_a_subscriber_without_a_window_holds_no_records(make_server: Any) -> None:
    server = make_server(window="2")
    peer = server.linked("subscribe:s@0")
    server.publish("s", b"1", b"2", b"3")
    peer.talk()
    cursor = next(iter(server.broker.fanout.cursors))
    assert (cursor.position, bodies(peer)) == (2, [b"1", b"2"])
