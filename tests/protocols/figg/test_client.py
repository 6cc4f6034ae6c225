"""Figg's client: resending, dropping repeated messages, reconnecting, backing off."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from zope.interface import implementer
from zope.interface.verify import verifyObject

from fyrehose import plugins
from fyrehose.errors import Closed, ConfigError, LocalProtocolError
from fyrehose.interfaces import IClientPlugin, IPublisher, ITailer
from fyrehose.net.clients import ClientTarget
from fyrehose.protocols.figg.client import FIGG_OPTIONS, FiggClient
from fyrehose.protocols.figg.frames import (
    Ack,
    Attach,
    Attached,
    Data,
    Detach,
    Detached,
    Ping,
    Pong,
    Publish,
    Published,
)
from fyrehose.protocols.figg.session import FiggServerSession
from fyrehose.records import Run
from fyrehose.testing import Transport
from tests.doubles.awkward import SURROGATES, TOO_LONG
from tests.doubles.steps import advance_until


@implementer(IStreamClientEndpoint)
@attrs.define(eq=False)
class Endpoint:
    """An endpoint whose connection attempts the test accepts or refuses."""

    attempts: list[tuple[Any, Deferred[Any]]] = attrs.field(factory=list)

    def connect(self, factory: Any) -> Deferred[Any]:
        made: Deferred[Any] = Deferred()
        self.attempts.append((factory, made))
        return made


@attrs.define(eq=False)
class Bench:
    client: FiggClient
    clock: Clock
    endpoint: Endpoint
    states: list[bool]
    got: list[tuple[int, bytes]] = attrs.field(factory=list)
    protocol: Any = None
    transport: Any = None
    session: Any = None

    def accept(self) -> None:
        """Accept the pending connection attempt."""
        factory, made = self.endpoint.attempts.pop(0)
        self.protocol, self.transport, self.session = factory.buildProtocol(None), Transport(), FiggServerSession()
        self.protocol.makeConnection(self.transport)
        made.callback(self.protocol)

    def cut(self) -> None:
        """Lose the connection after three seconds, so that it counts as one that has lasted."""
        if not self.transport.disconnecting:
            self.clock.advance(1.5)
            self.say(Pong(number=1))
            self.clock.advance(1.5)
        self.protocol.connectionLost(Failure(ConnectionDone()))

    def said(self) -> list[Any]:
        """Return the frames that the client sent, one message each, without PINGs."""
        self.clock.advance(0)
        wire = self.transport.value()
        self.transport.clear()
        events: list[Any] = []
        for event in self.session.receive_data(wire):
            if isinstance(event, Published):
                messages = []
                for run in event.runs:
                    messages += [
                        Publish(topic=run.stream, number=number, data=bytes(data))
                        for number, data in zip(run.producer_seqs() or (), run.payloads(), strict=True)
                    ]
                events += sorted(messages, key=lambda message: message.number)
            else:
                events.append(event)
        return events

    def pings(self) -> int:
        wire = self.transport.value()
        self.transport.clear()
        return wire.count(Ping(number=0).serialize()[:8])

    def say(self, *frames: Any) -> None:
        self.protocol.dataReceived(b"".join(frame.serialize() for frame in frames))

    def take(self, run: Run) -> None:
        self.got += [(record.seq, bytes(record.payload)) for record in run.records()]


def make(**settings: Any) -> Bench:
    clock, endpoint, states = Clock(), Endpoint(), []
    options = attrs.evolve(FIGG_OPTIONS, retry=float)
    client = FiggClient(clock, endpoint, connection_options=options, on_state=states.append, **settings)
    return Bench(client, clock, endpoint, states)


def connected(**settings: Any) -> Bench:
    bench = make(**settings)
    made = bench.client.connect()
    bench.accept()
    assert made.called
    return bench


def data(number: int, payload: bytes = b"x", topic: str = "t") -> Data:
    return Data(topic=topic, number=number, data=payload)


@attrs.define(eq=False)
class Reader:
    """A program's subscription, with what its callbacks were told; none is called once it has ended.

    :ivar at: the offset up to which it was told; None: only new messages, not begun
    :ivar confirmed: whether the server has confirmed it on this connection
    """

    model: FiggModel = attrs.field(repr=False)
    topic: str
    at: int | None
    confirmed: bool = False
    subscription: Any = None

    def lives(self) -> None:
        ended = self.model.readers.get(self.topic) is not self
        assert not ended, f"a callback of an ended subscription to {self.topic!r}"

    def attached(self, offset: int, asked: int | None) -> None:
        self.lives()
        assert asked == self.at, "on_attached names another offset than the one that was requested"
        self.confirmed = True
        if self.at is None:
            assert offset == self.model.ends[self.topic], "only new messages were wanted"
            self.at = offset
        self.model.may_change(self, "attached")

    def take(self, run: Run) -> None:
        self.lives()
        assert (run.stream, run.source) == (self.topic, ""), "DATA does not say where a message came from"
        assert len(run), "a run without messages"
        for record in run.records():
            assert record.seq == (self.at or 0) + 1
            assert bytes(record.payload) in self.model.versions[self.topic, record.seq]
            self.at = record.seq
        assert self.subscription.offset == self.at, "the offset that a callback sees"
        self.model.seen["taken"] += 1
        self.model.may_change(self, "take")

    def lost(self, first: int, last: int) -> None:
        self.lives()
        assert first == (self.at or 0) + 1
        kept = [seq for seq in range(first, last + 1) if seq in self.model.topics[self.topic].kept]
        assert not kept, f"the server has the messages {kept}"
        self.at = last
        self.model.seen["lost"] += 1
        self.model.may_change(self, "lost")

    def restarted(self, end: int) -> None:
        self.lives()
        assert end == self.model.ends[self.topic], "the end that the server has named"
        self.at = 0
        self.model.seen["restarted"] += 1
        self.model.may_change(self, "restarted")


@attrs.define
class Topic:
    """A topic of the server: its end, and the messages that are kept."""

    end: int = 0
    kept: dict[int, bytes] = attrs.field(factory=dict)


@attrs.define(eq=False)
class FiggModel:
    """A client with a server that stores, answers late and in pieces, expires messages, and loses its journal.

    :ivar versions: all payloads that the server has ever had at an offset
    :ivar ends: the answer to the last ATTACH without an offset
    :ivar answers: frames of the server that are on their way
    :ivar attached: the offset up to which the server has sent each subscribed topic
    :ivar detaching: topics whose DETACH the server has not answered
    :ivar numbers: the payload that each number of a PUBLISH stands for
    :ivar durable, acknowledged: the highest number that the server has stored, and that the client knows of
    """

    random: Random
    bench: Bench
    seen: Counter[str]
    topics: dict[str, Topic] = attrs.field(factory=lambda: defaultdict(Topic))
    versions: dict[tuple[str, int], set[bytes]] = attrs.field(factory=lambda: defaultdict(set))
    ends: dict[str, int] = attrs.field(factory=dict)
    readers: dict[str, Reader] = attrs.field(factory=dict)
    answers: list[Any] = attrs.field(factory=list)
    attached: dict[str, int] = attrs.field(factory=dict)
    detaching: set[str] = attrs.field(factory=set)
    numbers: list[tuple[str, bytes]] = attrs.field(factory=list)
    published: list[tuple[int, Deferred[None]]] = attrs.field(factory=list)
    durable: int = 0
    acknowledged: int = 0
    next_number: int = 1
    ready: Deferred[None] = attrs.field(factory=lambda: succeed(None))

    # The program.

    def subscribe(self, topic: str) -> None:
        after = self.random.choice((None, 0, self.random.randint(0, self.topics[topic].end + 3)))
        reader = self.readers[topic] = Reader(self, topic, after)
        self.detaching.discard(topic)
        callbacks = reader.take, after, reader.lost, reader.restarted, reader.attached
        reader.subscription = self.bench.client.subscribe(topic, *callbacks)
        self.check_sent(Attach(topic=topic, offset=after))

    def check_sent(self, frame: Any) -> None:
        """Check that a request is sent at once if there is a connection."""
        if self.bench.client.connection is not None:
            assert self.bench.transport.value().endswith(frame.serialize()), f"{frame} is not sent at once"

    def unsubscribe(self, topic: str) -> None:
        reader = self.readers.pop(topic, None)
        self.bench.client.unsubscribe(topic)
        if reader is not None:
            self.detaching.add(topic)
            self.check_sent(Detach(topic=topic))

    def may_change(self, reader: Reader, why: str) -> None:
        """Subscribe again, end the subscription, or raise an exception, from within a callback of *reader*."""
        if self.random.random() < 0.1:
            self.seen[f"changed in {why}"] += 1
            self.random.choice((self.subscribe, self.unsubscribe))(reader.topic)
            if self.random.random() < 0.5:
                raise ZeroDivisionError("a callback's")

    def publish(self, topic: str) -> None:
        batch = [b"%d" % (len(self.numbers) + at) for at in range(self.random.choice((1, 1, 2, 6)))]
        self.numbers += [(topic, payload) for payload in batch]
        self.published.append((len(self.numbers), self.bench.client.publish_many(topic, batch)))

    # The server.

    def store(self, topic: str, payload: bytes) -> None:
        kept = self.topics[topic]
        kept.end += 1
        if self.random.random() < 0.9:  # else a number that the server skips
            kept.kept[kept.end] = payload
            self.versions[topic, kept.end].add(payload)

    def expire(self, topic: str) -> None:
        kept = self.topics[topic].kept
        for seq in list(kept)[: self.random.randint(1, 5)]:
            del kept[seq]

    def read(self) -> None:
        """Handle everything that the client has sent."""
        for frame in self.bench.said():
            match frame:
                case Publish():
                    assert frame.number == self.next_number, "a PUBLISH is missing, or is repeated"
                    assert (frame.topic, frame.data) == self.numbers[frame.number - 1]
                    assert frame.number <= self.acknowledged + WINDOW, "the window is exceeded"
                    self.next_number += 1
                    self.store(frame.topic, frame.data)
                    self.durable = max(self.durable, frame.number)
                    self.answers += [Ack(number=frame.number)] * self.random.randint(0, 1)
                case Attach():
                    self.attach(frame)
                case Detach():
                    self.attached.pop(frame.topic, None)
                    self.answers.append(Detached(topic=frame.topic))
                case Ping():
                    self.answers.append(Pong(number=frame.number))

    def attach(self, frame: Attach) -> None:
        topic = self.topics[frame.topic]
        first = next(iter(topic.kept), topic.end + 1)
        position = topic.end if frame.offset is None else max(frame.offset, first - 1)
        if position > topic.end:
            position = first - 1
        if frame.offset is None:
            self.ends[frame.topic] = topic.end
        self.attached[frame.topic] = position
        self.answers.append(Attached(topic=frame.topic, offset=position))

    def deliver(self, topic: str) -> None:
        """Send messages to the client, and some of them twice."""
        if topic in self.attached:
            at, kept = self.attached[topic], self.topics[topic].kept
            again = self.random.choice((0, 0, 2))
            sent = [seq for seq in kept if at - again < seq][: self.random.randint(1, 4) + again]
            sent = sent if sent and sent[-1] > at else [seq for seq in kept if seq > at]
            self.answers += [data(seq, kept[seq], topic) for seq in sent]
            self.attached[topic] = max([at, *sent])

    def answer(self, count: int) -> None:
        frames, self.answers = self.answers[:count], self.answers[count:]
        self.acknowledged = max([self.acknowledged, *(each.number for each in frames if isinstance(each, Ack))])
        self.detaching -= {each.topic for each in frames if isinstance(each, Detached)}
        self.bench.say(*frames)

    # The connection.

    def reconnect(self) -> None:
        """Lose the connection, and sometimes the journal of the server."""
        self.bench.protocol.connectionLost(Failure(ConnectionDone()))
        self.answers, self.attached, self.next_number = [], {}, self.acknowledged + 1
        if self.random.random() < 0.3:
            self.seen["another journal"] += 1
            for topic in self.topics.values():
                topic.end, topic.kept = 0, {}
            for topic in self.random.choices(TOPICS, k=self.random.randint(0, 6)):
                self.store(topic, b"new journal")
        if self.random.random() < 0.3:
            self.change()
        self.connect()

    def connect(self) -> None:
        """Accept the next connection, and check the order of what is sent at once."""
        advance_until(lambda: self.bench.endpoint.attempts, self.bench.clock)
        for reader in self.readers.values():
            reader.confirmed = False
        self.bench.accept()
        frames = list(FiggServerSession().receive_data(self.bench.transport.value()))
        kinds = [(Attach, Detach, Published).index(type(frame)) for frame in frames]
        assert kinds == sorted(kinds), "figg.md demands ATTACHs, then DETACHs, then PUBLISHs"
        asked = {frame.topic: frame.offset for frame in frames if isinstance(frame, Attach)}
        assert asked.keys() == self.readers.keys()
        assert {frame.topic for frame in frames if isinstance(frame, Detach)} == self.detaching
        for topic, reader in self.readers.items():
            assert asked[topic] == reader.at or asked[topic] is None, (
                "each continues at its offset, or asks for the end"
            )

    def change(self) -> None:
        """Do something that the program might do."""
        topic = self.random.choice(TOPICS)
        self.random.choices((self.subscribe, self.unsubscribe, self.publish), (2, 1, 4))[0](topic)

    def step(self) -> None:
        topic = self.random.choice(TOPICS)
        self.random.choices(
            (
                self.change,
                self.read,
                lambda: self.deliver(topic),
                lambda: self.answer(self.random.randint(1, 9)),
                lambda: self.store(topic, b"of another"),
                lambda: self.expire(topic),
                self.reconnect,
            ),
            (6, 6, 6, 9, 3, 1, 1),
        )[0]()
        self.check()

    def check(self) -> None:
        fired = [end for end, done in self.published if done.called]
        late = [end for end in fired if end > self.acknowledged]
        early = [end for end, done in self.published if end <= self.acknowledged and not done.called]
        assert not late, f"publishes up to {late} have succeeded, and the server has acknowledged {self.acknowledged}"
        assert not early, f"publishes up to {early} wait, and the server has acknowledged {self.acknowledged}"
        waiting = [topic for topic, reader in self.readers.items() if not reader.confirmed]
        said = self.bench.client.shortfall(False)
        expected = f"has not confirmed the subscription to {waiting[0]!r}" if waiting else ""
        assert expected in said
        assert bool(said) == bool(waiting), f"{said!r}, and the server has not confirmed {waiting}"
        assert self.bench.client.shortfall(True) == ""
        absent = [topic for topic, reader in self.readers.items() if reader.confirmed and reader.at == 0]
        assert self.bench.client.absent == bool(absent), f"topics that may not exist yet: {absent}"
        room = len(self.numbers) - self.acknowledged < WINDOW
        assert self.ready.called or not room, "the window has room, and who waits for it is not told"
        self.ready = self.bench.client.ready() if self.ready.called else self.ready
        assert self.ready.called == room, "the window has no room"

    def settle(self) -> None:
        """Let everything arrive, and check that nothing is missing."""
        for _ in range(len(self.numbers) // WINDOW + 20):
            self.read()
            for topic in TOPICS:
                self.deliver(topic)
            if self.durable > self.acknowledged:
                self.answers.append(Ack(number=min(self.durable, self.next_number - 1)))
            self.answer(len(self.answers))
            self.check()
        assert self.bench.client.flush().called, "the server has not got all messages"
        assert self.attached.keys() == self.readers.keys(), (
            "the server sends what nobody reads, or not what somebody does"
        )
        for topic, reader in self.readers.items():
            kept = max(self.topics[topic].kept, default=0)
            assert (reader.at or 0) >= kept, f"messages of {topic} are missing"


TOPICS, WINDOW = ("a", "b", "\u00fc"), 4


def test_every_subscription_gets_each_message_once_and_every_publish_is_acknowledged(logged_errors: Any) -> None:
    """Compare a client with the plain history of its server, through lost connections, journals, and callbacks."""
    seen: Counter[str] = Counter()
    for seed in range(150):
        model = FiggModel(Random(seed), make(window=WINDOW), seen)
        for _ in range(seed % 5):
            model.change()  # what is asked before there is a connection
        model.ready = model.bench.client.ready()
        model.bench.client.connect()
        model.connect()
        model.check()
        for work in (*[model.step] * 80, model.settle):
            work()
            for event in logged_errors.take():
                expected = event["log_failure"].check(ZeroDivisionError)
                assert expected, f"seed {seed}: {event['log_failure'].getErrorMessage()}"
    changed = {f"changed in {why}" for why in ("attached", "take", "lost", "restarted")}
    assert {"taken", "lost", "restarted", "another journal"} | changed == set(seen), seen


def test_unsolicited_attached_does_not_start_a_subscription() -> None:
    bench = connected()
    bench.say(Attached(topic="t", offset=7), Attached(topic="t", offset=7))
    bench.client.subscribe("t", bench.take, after=0)
    bench.say(Attached(topic="t", offset=0), data(1, b"a"))
    bench.say(Attached(topic="t", offset=7), data(2, b"b"))
    assert bench.got == [(1, b"a"), (2, b"b")]


def test_two_unanswered_pings_abort_the_connection() -> None:
    bench = connected()
    for _ in range(3):
        bench.clock.advance(FIGG_OPTIONS.ping_after)
        assert bench.pings() == 1
        bench.say(Pong(number=1))
    bench.clock.advance(FIGG_OPTIONS.ping_after)
    bench.clock.advance(FIGG_OPTIONS.ping_after)
    assert not bench.transport.aborted
    bench.clock.advance(FIGG_OPTIONS.ping_after)
    assert bench.transport.aborted


@pytest.mark.parametrize("topic", ["", *TOO_LONG, *SURROGATES])
def test_invalid_topics_and_messages_are_refused_immediately(topic: str) -> None:
    bench = connected(window_bytes=1 << 30)
    with pytest.raises(LocalProtocolError, match="invalid topic"):
        bench.client.publish(topic, b"x")
    with pytest.raises(LocalProtocolError, match="invalid topic"):
        bench.client.subscribe(topic, bench.take)
    with pytest.raises(LocalProtocolError, match="exceeds the limit of 16777216 bytes"):
        bench.client.publish("t", bytes((16 << 20) + 1))
    assert bench.client.flush().called
    assert bench.said() == []


def test_close_fails_unacknowledged_publishes_and_disconnects() -> None:
    bench = connected()
    failures: list[Any] = []
    bench.client.subscribe("t", bench.take)
    bench.client.publish("t", b"not acknowledged").addErrback(failures.append)
    assert bench.client.shortfall(False)
    closed = bench.client.close()
    assert not bench.client.shortfall(False), "the subscriptions have ended"
    assert failures[0].check(Closed)
    assert bench.transport.disconnecting
    bench.cut()
    assert closed.called
    with pytest.raises(LocalProtocolError):
        bench.client.publish("t", b"after")
    with pytest.raises(LocalProtocolError):
        bench.client.connect()
    assert bench.clock.getDelayedCalls() == []


def test_plugin_makes_clients_that_publish_and_tail() -> None:
    plugin: Any = plugins.load("figg")
    assert verifyObject(IClientPlugin, plugin)
    publisher, tailer = (
        plugin.publisher(ClientTarget(MemoryReactorClock(), "h", 1), 5),
        plugin.tailer(ClientTarget(MemoryReactorClock(), "h", 1)),
    )
    assert verifyObject(IPublisher, publisher)
    assert verifyObject(ITailer, tailer)
    assert (plugin.default_port, publisher.window, tailer.shortfall(False)) == (8119, 5, "")


def test_missing_stream_is_refused() -> None:
    client = FiggClient(Clock(), Endpoint())
    for call in (
        lambda: client.prepare(None),
        lambda: client.publish(None, b""),
        lambda: client.subscribe(None, print),
    ):
        with pytest.raises(ConfigError, match="--stream NAME"):
            call()


def test_flush_at_the_end_and_after_it_fails() -> None:
    """The messages were dropped, so nobody knows whether the server has them."""
    bench, failures = connected(), list[Any]()
    bench.client.publish("a", b"x").addErrback(failures.append)

    def again(failure: Failure) -> Deferred[None]:
        failures.append(failure)
        return bench.client.flush().addCallback(failures.append).addErrback(failures.append)

    bench.client.flush().addErrback(again)
    bench.client.close()
    again(failures[-1])
    assert [failure.type for failure in failures] == [Closed] * 5
