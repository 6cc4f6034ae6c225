"""A broker that calls a function with what peers publish."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from zope.interface.verify import verifyObject

from fyrehose.broker.callback import CallbackBroker
from fyrehose.broker.policy import parse
from fyrehose.errors import Forbidden, PublishError, TooManyStreams
from fyrehose.identity import Action, Identity
from fyrehose.interfaces import IBroker
from fyrehose.protocols.figg.frames import Ack, Publish
from fyrehose.protocols.figg.server import FiggFactory
from fyrehose.protocols.figg.session import FiggClientSession
from fyrehose.records import Run
from fyrehose.testing import RecordingSink


def drafts(*payloads: bytes, stream: str = "s") -> Run:
    return Run.of(stream, payloads, source="test")


def test_the_function_gets_numbered_runs_even_of_what_it_publishes_itself() -> None:
    clock, dice, handled = Clock(), Random(1), list[Run]()

    def publish(run: Run | None = None) -> None:
        if run is not None:
            handled.append(run)
        if run is None or dice.random() < 0.4:
            begun, view = len(handled), dice.choice((broker, broker.identified(Identity(host="127.0.0.2"))))
            done = view.publish([drafts(*[b"x"] * dice.randint(1, 3), stream=dice.choice("st"))])
            assert done.result == (handled[begun].first_seq,)

    broker = CallbackBroker(publish, now=clock.seconds)
    assert verifyObject(IBroker, broker)
    for _ in range(50):
        clock.advance(1)
        publish()
        assert handled[-1].time == clock.seconds() * 1_000_000
    assert len(handled) > 75
    for stream in "st":
        numbers = [seq for run in handled if run.stream == stream for seq in range(run.first_seq, run.last_seq + 1)]
        assert numbers == [*range(1, broker.bounds(stream)[1] + 1)], "each number once, in the order of the calls"
    assert (broker.exists("s"), broker.exists("u")) == (True, False)


def test_a_publish_is_acknowledged_when_the_function_has_handled_all_of_it() -> None:
    waiting: list[Deferred[None]] = []

    def handle(run: Run) -> Deferred[None]:
        waiting.append(Deferred())
        return waiting[-1]

    done = CallbackBroker(handle).publish([drafts(b"a"), drafts(b"b")])
    waiting[1].callback(None)
    assert not done.called
    waiting[0].callback(None)
    assert done.result == (1, 2)


@pytest.mark.parametrize("error", [PublishError("not today"), RuntimeError("a bug")])
def test_an_error_of_the_function_is_the_error_of_the_publish(error: Exception) -> None:
    def handle(run: Run) -> None:
        raise error

    failures: list[Any] = []
    CallbackBroker(handle).publish([drafts(b"a"), drafts(b"b")]).addErrback(failures.append)
    assert [failure.value for failure in failures] == [error]


def test_the_policy_decides_who_publishes_and_allows_no_reads() -> None:
    handled: list[Run] = []
    policy = parse({"allow": [{"network": "10.0.0.0/8", "publish": "a"}]})
    broker = CallbackBroker(handled.append, policy=policy)
    friend = broker.identified(Identity(host="10.0.0.1"))
    friend.admit(())
    assert friend.publish([drafts(b"1", stream="a")]).result == (1,)
    refused = friend.publish([drafts(b"1", stream="a"), drafts(b"2", stream="b")])
    refused.addErrback(lambda failure: failure.trap(Forbidden))
    assert refused.result is Forbidden
    assert [run.stream for run in handled] == ["a"], "a publish is handled whole or not at all"
    assert not friend.permits(Action.SUBSCRIBE, "a")
    with pytest.raises(Forbidden, match="keeps no messages"):
        friend.subscribe("a", 0, RecordingSink())
    with pytest.raises(Forbidden, match="no rule"):
        broker.identified(Identity(host="11.0.0.1")).admit(())


def test_by_default_only_this_machine_publishes() -> None:
    broker = CallbackBroker(lambda run: None)
    broker.identified(Identity(host="127.0.0.1")).admit(())
    with pytest.raises(Forbidden):
        broker.identified(Identity(host="10.0.0.1")).admit(())


def test_streams_are_limited() -> None:
    broker = CallbackBroker(lambda run: None, max_streams=2)
    assert broker.publish([drafts(b"a", stream="a"), drafts(b"b", stream="b")]).result == (1, 1)
    refused = broker.publish([drafts(b"c", stream="c")])
    refused.addErrback(lambda failure: failure.trap(TooManyStreams))
    assert refused.result is TooManyStreams
    assert broker.publish([drafts(b"a", stream="a")]).result == (2,)


def test_callback_broker_keeps_no_records() -> None:
    broker = CallbackBroker(lambda run: None)
    broker.publish([drafts(b"a")])
    broker.restrict("s", 10)
    assert (broker.bounds("s"), broker.read("s", 1, 100)) == ((2, 1), ())
    retired = broker.retire(["s"])
    retired.addErrback(lambda failure: failure.trap(Forbidden))
    assert retired.result is Forbidden


def test_a_figg_client_publishes_to_the_function() -> None:
    clock, handled = Clock(), []
    factory = FiggFactory(CallbackBroker(handled.append, now=clock.seconds), reactor=clock)
    protocol = factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 9))
    transport: Any = StringTransport(peerAddress=IPv4Address("TCP", "127.0.0.1", 9))
    transport.setTcpNoDelay = transport.setTcpKeepAlive = lambda on: None
    protocol.makeConnection(transport)
    protocol.dataReceived(Publish(topic="orders", number=1, data=b"one").serialize())
    clock.advance(0)
    assert [(run.stream, [bytes(each) for each in run.payloads()]) for run in handled] == [("orders", [b"one"])]
    assert FiggClientSession().receive_data(transport.value()) == [Ack(number=1)]
