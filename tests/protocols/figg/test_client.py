"""Figg's client: resending, dropping repeated messages, reconnecting, backing off."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
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


def test_publish_fires_when_its_message_is_acknowledged() -> None:
    bench = connected()
    first, second = bench.client.publish("t", b"a"), bench.client.publish("t", b"b")
    assert bench.said() == [Publish(topic="t", number=1, data=b"a"), Publish(topic="t", number=2, data=b"b")]
    bench.say(Ack(number=1))
    assert first.called
    assert not second.called
    bench.say(Ack(number=2))
    assert second.called


def test_acknowledgements_let_further_messages_into_the_window() -> None:
    bench = connected(window=2)
    done = [bench.client.publish("t", b"%d" % i) for i in range(5)]
    assert len(bench.said()) == 2
    ready = bench.client.ready()
    bench.say(Ack(number=2))
    assert [event.number for event in bench.said()] == [3, 4]
    assert not ready.called
    bench.say(Ack(number=5))
    bench.said()
    bench.say(Ack(number=5))
    assert all(d.called for d in done)
    assert ready.called
    assert bench.client.flush().called


def test_messages_published_before_connecting_are_sent_on_connect() -> None:
    bench = make()
    bench.client.connect()
    bench.client.publish("t", b"early")
    bench.client.subscribe("u", bench.take, after=3)
    bench.accept()
    assert bench.said() == [Attach(topic="u", offset=3), Publish(topic="t", number=1, data=b"early")]


def test_new_connection_resends_attaches_then_detaches_then_publishes() -> None:
    bench = connected(window=3)
    bench.client.subscribe("kept", bench.take)
    bench.client.subscribe("left", bench.take)
    bench.say(Attached(topic="kept", offset=7), Attached(topic="left", offset=0), data(8, topic="kept"))
    bench.client.unsubscribe("left")
    for i in range(5):
        bench.client.publish("t", b"%d" % i)
    bench.said()
    bench.say(Ack(number=1))
    bench.said()
    bench.cut()
    bench.clock.advance(0)
    bench.accept()
    assert bench.said() == [
        Attach(topic="kept", offset=8),
        Detach(topic="left"),
        *(Publish(topic="t", number=n, data=b"%d" % (n - 1)) for n in (2, 3, 4)),
    ]
    bench.say(Detached(topic="left"))
    bench.cut()
    bench.clock.advance(0)
    bench.accept()
    assert Detach(topic="left") not in bench.said(), "DETACHED answered it"
    assert bench.states == [True, False, True, False, True]


def test_answer_to_an_older_attach_does_not_start_the_subscription() -> None:
    bench = connected()
    bench.client.subscribe("t", bench.take)
    bench.client.unsubscribe("t")
    bench.client.subscribe("t", bench.take, after=0)
    assert bench.said() == [Attach(topic="t"), Detach(topic="t"), Attach(topic="t", offset=0)]
    bench.say(Attached(topic="t", offset=7), data(8, b"for the first"), Detached(topic="t"))
    bench.say(Attached(topic="t", offset=0), data(1, b"from the start"))
    assert bench.got == [(1, b"from the start")]


def test_unsolicited_attached_does_not_start_a_subscription() -> None:
    bench = connected()
    bench.say(Attached(topic="t", offset=7), Attached(topic="t", offset=7))
    bench.client.subscribe("t", bench.take, after=0)
    bench.say(Attached(topic="t", offset=0), data(1, b"a"))
    bench.say(Attached(topic="t", offset=7), data(2, b"b"))
    assert bench.got == [(1, b"a"), (2, b"b")]


def test_subscription_beyond_the_end_is_told_of_a_restart_and_reads_the_topic_from_its_start() -> None:
    bench, restarted = connected(), list[int]()
    bench.client.subscribe("t", bench.take, after=20, restarted=restarted.append)
    assert bench.said() == [Attach(topic="t", offset=20)]
    bench.say(Attached(topic="t", offset=0), data(1, b"a new history"))
    assert bench.said() == [Attach(topic="t", offset=None)], "to learn where the topic ends"
    assert (bench.got, restarted) == ([], [])
    bench.say(Attached(topic="t", offset=5))
    assert bench.said() == [Attach(topic="t", offset=0)]
    assert restarted == [5]
    bench.say(Attached(topic="t", offset=0), data(1, b"a new history"))
    assert bench.got == [(1, b"a new history")]


def test_restart_is_told_although_the_connection_is_lost_while_the_client_asks_for_the_end() -> None:
    bench, restarted = connected(), list[int]()
    bench.client.subscribe("t", bench.take, after=20, restarted=restarted.append)
    bench.say(Attached(topic="t", offset=0))
    bench.cut()
    bench.clock.advance(1)
    bench.accept()
    assert bench.said() == [Attach(topic="t", offset=None)]
    bench.say(Attached(topic="t", offset=5))
    assert restarted == [5]
    assert bench.said() == [Attach(topic="t", offset=0)]


def test_exception_in_a_callback_is_logged_and_other_subscriptions_continue(logged_errors: Any) -> None:
    bench = connected()
    bench.client.subscribe("bad", lambda run: 1 / 0, after=0)
    bench.client.subscribe("t", bench.take, after=0)
    bench.say(Attached(topic="bad", offset=0), Attached(topic="t", offset=0))
    bench.say(data(1, topic="bad"), data(1, b"a"))
    assert bench.got == [(1, b"a")]
    assert not bench.transport.disconnecting
    assert len(logged_errors.take()) == 1


def test_on_attached_reports_an_expired_offset() -> None:
    bench = connected()
    began: list[tuple[int, int | None]] = []
    taken: list[int | None] = []

    def attached(at: int, asked: int | None) -> None:
        began.append((at, asked))
        taken.append(subscription.offset)

    take = lambda run: taken.append(subscription.offset)  # noqa: E731
    subscription = bench.client.subscribe("t", take, 3, on_attached=attached)
    bench.say(Attached(topic="t", offset=10), data(11), data(12))
    assert began == [(10, 3)]
    assert taken == [10, 12], "a callback sees the offset up to which it is told"


@pytest.mark.parametrize("after", [None, 0])
def test_topic_that_begins_at_0_is_absent_until_its_first_message(after: int | None) -> None:
    bench = connected()
    bench.client.subscribe("t", bench.take, after)
    assert not bench.client.absent
    bench.say(Attached(topic="t", offset=0))
    assert bench.client.absent
    bench.say(data(1, b"a"))
    assert not bench.client.absent


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


@pytest.mark.parametrize("topic", ["", "x" * 256, "\ud800"])
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


def test_partly_repeated_run_is_delivered_from_its_first_new_message() -> None:
    bench = connected()
    bench.client.subscribe("t", bench.take, after=0)
    bench.say(Attached(topic="t", offset=0), data(1, b"a"), data(2, b"b"))
    bench.say(data(1, b"a"), data(2, b"b"))
    bench.say(data(2, b"b"), data(3, b"c"), data(4, b"d"))
    assert bench.got == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]


def test_requests_made_while_disconnected_are_sent_on_reconnect() -> None:
    bench = connected()
    bench.client.unsubscribe("never read")
    bench.client.subscribe("left", bench.take)
    bench.say(Attached(topic="left", offset=0))
    bench.said()
    bench.cut()
    bench.client.pause()
    bench.client.resume()
    bench.client.unsubscribe("left")
    bench.client.subscribe("t", bench.take, after=2)
    bench.clock.advance(0)
    bench.accept()
    assert bench.said() == [Attach(topic="t", offset=2), Detach(topic="left")]
    assert bench.transport.producerState == "producing"


def test_data_of_an_unsubscribed_topic_is_dropped() -> None:
    bench = connected()
    bench.client.subscribe("t", bench.take, after=0)
    bench.say(Attached(topic="t", offset=0))
    bench.client.unsubscribe("t")
    assert bench.transport.value().endswith(Detach(topic="t").serialize()), "it is sent at once"
    bench.say(data(1, b"on its way"), Detached(topic="t"))
    bench.client.subscribe("t", bench.take, after=0)
    bench.client.unsubscribe("t")
    bench.say(Attached(topic="t", offset=0), data(1, b"on its way"))
    assert bench.got == []
    assert not bench.transport.disconnecting


def test_lost_is_called_only_for_expired_messages() -> None:
    bench = connected()
    lost: list[tuple[int, int]] = []
    bench.client.subscribe("expired", bench.take, 3, lambda first, last: lost.append((first, last)))
    bench.client.subscribe("kept", bench.take, 7, lambda first, last: lost.append((first, last)))
    bench.client.subscribe("new", bench.take, None, lambda first, last: lost.append((first, last)))
    bench.say(*(Attached(topic=topic, offset=7) for topic in ("expired", "kept", "new")))
    assert lost == [(4, 7)]


def test_lost_is_called_for_numbers_that_the_server_skips() -> None:
    bench = connected()
    lost: list[tuple[int, int]] = []
    bench.client.subscribe("t", bench.take, 3, lambda first, last: lost.append((first, last)))
    bench.say(Attached(topic="t", offset=3), data(4, b"a"), data(6, b"b"), data(9, b"c"), data(10, b"d"))
    assert lost == [(5, 5), (7, 8)]
    assert [number for number, _ in bench.got] == [4, 6, 9, 10]


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


def test_a_subscription_that_the_server_has_not_confirmed_is_a_shortfall() -> None:
    bench = connected()
    bench.client.subscribe("t", bench.take, 0)
    assert "has not confirmed the subscription to 't'" in bench.client.shortfall(False)
    assert bench.client.shortfall(True) == ""
    bench.say(Attached(topic="t", offset=0), data(1, b"x"))
    assert bench.client.shortfall(False) == ""


def test_missing_stream_is_refused() -> None:
    client = FiggClient(Clock(), Endpoint())
    for call in (
        lambda: client.prepare(None),
        lambda: client.publish(None, b""),
        lambda: client.subscribe(None, print),
    ):
        with pytest.raises(ConfigError, match="--stream NAME"):
            call()


def test_runs_have_the_topic_and_the_offsets() -> None:
    bench = connected()
    runs: list[Run] = []
    bench.client.subscribe("t", runs.append, 7)
    bench.say(Attached(topic="t", offset=7), data(8, b"a"), data(9, b"b"))
    assert {run.source for run in runs} == {""}, "DATA does not say where a message came from"
    assert [(run.stream, record.seq, record.payload) for run in runs for record in run.records()] == [
        ("t", 8, b"a"),
        ("t", 9, b"b"),
    ]


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
