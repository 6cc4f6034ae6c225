"""Test the contract of every IBroker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import Closed, InvalidName, PayloadTooLarge, PublishError, StreamFull, TooManyStreams
from fyrehose.interfaces import IBroker, IJournalObserver, ISink, ISubscription
from fyrehose.journal.commit import InlineWorker
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.net.inflight import InFlight
from fyrehose.observe.counters import Counters
from fyrehose.records import LAST_SEQ, Run
from fyrehose.testing import MemoryJournal, RecordingSink

Make = Callable[..., Broker]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "file"])
def make(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes open brokers over one kind of journal, where publishes are durable at once."""
    made: list[Broker] = []

    def broker(**settings: Any) -> Broker:
        journal: Any = MemoryJournal()
        if request.param == "file":
            smallest = JournalSettings(segment_size=1 << 20)
            journal = FileJournal(clock, tmp_path / str(len(made)), smallest, worker=InlineWorker())
        made.append(Broker(clock, journal, Sequencer(), **settings))
        made[-1].open()
        return made[-1]

    yield broker
    for one in made:
        one.close()


@pytest.fixture
def broker(make: Make) -> Broker:
    return make()


def drafts(*payloads: bytes, stream: str = "s", **constants: Any) -> Run:
    return Run.of(stream, payloads, source="test", **constants)


def outcome(published: Deferred[Any]) -> Any:
    """Return the result of ``published``, or the error with which it failed."""
    results: list[Any] = []
    published.addCallbacks(results.append, lambda failure: results.append(failure.value))
    assert results, "it has not fired"
    return results[0]


def settle(clock: Clock) -> None:
    for _ in range(10):
        clock.advance(0)


def test_broker_provides_its_interface(broker: Broker) -> None:
    assert verifyObject(IBroker, broker)
    assert verifyObject(IJournalObserver, broker)
    assert isinstance(broker.counters, Counters)
    assert isinstance(broker.budget, InFlight)


def test_parts_of_the_broker_provide_their_interfaces(broker: Broker) -> None:
    sink = RecordingSink()
    assert verifyObject(ISink, sink)
    assert verifyObject(ISubscription, broker.subscribe("s", 0, sink))


def test_publish_returns_the_first_number_of_each_run(broker: Broker) -> None:
    assert outcome(broker.publish([drafts(b"a", b"b"), drafts(b"c", stream="t"), drafts(b"d")])) == (1, 1, 3)
    assert outcome(broker.publish([drafts(b"e")])) == (4,)
    assert broker.bounds("s") == (1, 4)
    assert broker.bounds("none") == (1, 0)


def test_published_records_are_read_from_a_number_on(broker: Broker) -> None:
    broker.publish([drafts(b"a", b"b", topic="x"), drafts(b"c")])
    records = [record for run in broker.read("s", 2, 1000) for record in run.records()]
    assert [(record.seq, record.topic, record.payload) for record in records] == [(2, "x", b"b"), (3, None, b"c")]
    assert broker.read("s", 4, 1000) == ()


def test_publish_is_atomic(broker: Broker) -> None:
    broker.restrict("small", 1)
    refused = outcome(broker.publish([drafts(b"fits"), drafts(b"too large", stream="small")]))
    assert isinstance(refused, PayloadTooLarge)
    assert broker.bounds("s") == (1, 0)
    assert outcome(broker.publish([drafts(b"first")])) == (1,)


@pytest.mark.parametrize(
    ("run", "error"),
    [
        (drafts(b"x", stream=""), InvalidName),
        (drafts(b"x", stream="ä" * 128), InvalidName),
        (drafts(b"x" * ((16 << 20) + 1)), PayloadTooLarge),
    ],
    ids=["empty-name", "long-name", "17-MiB"],
)
def test_invalid_publishes_are_refused(broker: Broker, run: Run, error: type[PublishError]) -> None:
    assert type(outcome(broker.publish([run]))) is error


def test_names_of_the_largest_length_and_payloads_of_every_size_are_stored(broker: Broker) -> None:
    name = "ä" * 127 + "x"
    assert outcome(broker.publish([drafts(b"", b"x", b"y" * 100_000, stream=name)])) == (1,)
    sizes = [len(record.payload) for run in broker.read(name, 1, 1 << 20) for record in run.records()]
    assert sizes == [0, 1, 100_000]


def test_the_last_number_ends_only_its_own_stream(broker: Broker) -> None:
    broker.sequencer.restore({"s": LAST_SEQ})
    assert type(outcome(broker.publish([drafts(b"x")]))) is StreamFull
    assert outcome(broker.publish([drafts(b"x", stream="other")])) == (1,)


def test_streams_are_counted(make: Make) -> None:
    broker = make(max_streams=2)
    for stream in ("a", "b", "a"):
        broker.publish([drafts(b"x", stream=stream)])
    assert type(outcome(broker.publish([drafts(b"x", stream="c")]))) is TooManyStreams
    assert outcome(broker.publish([drafts(b"x", stream="b")])) == (2,)


def test_subscribing_does_not_create_a_stream(make: Make) -> None:
    broker = make(max_streams=1)
    for n in range(10):
        assert broker.subscribe(f"s{n}", None, RecordingSink()).position == 0
    assert outcome(broker.publish([drafts(b"x")])) == (1,)


@pytest.mark.parametrize(("after", "seqs"), [(None, [4]), (0, [1, 2, 3, 4]), (2, [3, 4]), (99, [1, 2, 3, 4])])
def test_subscribers_receive_later_records(broker: Broker, clock: Clock, after: int | None, seqs: list[int]) -> None:
    broker.publish([drafts(b"1", b"2"), drafts(b"3")])
    sink = RecordingSink()
    subscription = broker.subscribe("s", after, sink)
    settle(clock)
    assert not sink.deliveries, "it begins paused"
    subscription.resumeProducing()
    broker.publish([drafts(b"4")])
    settle(clock)
    assert [record.seq for record in sink.records] == seqs
    assert sink.payloads == [b"%d" % seq for seq in seqs]


def test_a_subscription_may_begin_before_its_stream_exists(broker: Broker, clock: Clock) -> None:
    sink = RecordingSink()
    broker.subscribe("s", None, sink).resumeProducing()
    settle(clock)
    broker.publish([drafts(b"x")])
    settle(clock)
    assert sink.payloads == [b"x"]


def test_stopped_subscription_delivers_nothing(broker: Broker, clock: Clock) -> None:
    sink = RecordingSink()
    subscription = broker.subscribe("s", 0, sink)
    subscription.resumeProducing()
    subscription.stopProducing()
    broker.publish([drafts(b"x")])
    settle(clock)
    broker.close()
    assert (sink.deliveries, sink.reason) == ([], None)


def test_a_stream_may_be_restricted_before_or_after_its_creation(broker: Broker) -> None:
    broker.publish([drafts(b"long enough", stream="old")])
    for stream in ("old", "new"):
        broker.restrict(stream, 3)
        assert type(outcome(broker.publish([drafts(b"four", stream=stream)]))) is PayloadTooLarge
        assert isinstance(outcome(broker.publish([drafts(b"333", stream=stream)])), tuple)


def test_closed_broker_refuses_publishes(broker: Broker, clock: Clock) -> None:
    sink = RecordingSink()
    broker.subscribe("s", 0, sink).resumeProducing()
    settle(clock)
    broker.close()
    assert isinstance(sink.reason, Closed)
    assert type(outcome(broker.publish([drafts(b"x")]))) is Closed
