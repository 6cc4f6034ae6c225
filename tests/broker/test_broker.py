"""The broker numbers, refuses and retires, and nothing leaves it before it is durable."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from fyrehose.broker.broker import Broker
from fyrehose.broker.publisher import MOST_PRODUCERS, fire
from fyrehose.broker.sequencer import Sequencer
from fyrehose.broker.streams import StreamRule, StreamRules
from fyrehose.errors import (
    Closed,
    InvalidName,
    InvalidRun,
    NewStreamForbidden,
    NoSuchStream,
    PayloadTooLarge,
    ReadOnly,
    StreamInUse,
    TooManyStreams,
)
from fyrehose.identity import Identity
from fyrehose.interfaces import JournalState
from fyrehose.net.turns import STEPS
from fyrehose.observe.listeners import Listener
from fyrehose.records import MAX_PAYLOAD, MAX_PUBLISH, Run
from fyrehose.server.config import ServerSettings
from fyrehose.testing import MemoryJournal, RecordingSink


def make(auto: bool = True, **settings: object) -> tuple[Broker, MemoryJournal, Clock]:
    journal, clock = MemoryJournal(auto=auto), Clock()
    broker = Broker(clock, journal, Sequencer(), **settings)  # type: ignore[arg-type]
    broker.open()
    return broker, journal, clock


def drafts(*payloads: bytes, stream: str = "s") -> list[Run]:
    return [Run.of(stream, payloads, source="test")]


def test_nothing_is_delivered_or_acknowledged_before_it_is_durable() -> None:
    broker, journal, clock = make(auto=False)
    sink = RecordingSink()
    broker.subscribe("s", 0, sink).resumeProducing()
    published = broker.publish(drafts(b"a", b"b"))
    clock.advance(1)
    assert not published.called
    assert not sink.deliveries
    journal.commit()
    clock.advance(0)
    assert published.result == (1,)
    assert [(r.seq, r.payload) for r in sink.records] == [(1, b"a"), (2, b"b")]


def test_numbers_continue_behind_what_waits_for_room() -> None:
    broker, journal, _ = make(auto=False)
    first = broker.publish(drafts(b"waits"))
    journal.enter(JournalState.READ_ONLY, "full")
    assert not first.called
    journal.enter(JournalState.WRITABLE, "room")
    again = broker.publish(drafts(b"kept"))
    journal.commit()
    assert (first.result, again.result) == ((1,), (2,))


def test_restriction_of_a_stream_holds_for_every_listener() -> None:
    broker, journal, _ = make()
    broker.restrict("s", 3)
    failure = []
    broker.publish(drafts(b"abc", b"abcd")).addErrback(failure.append)
    assert failure[0].check(PayloadTooLarge)
    assert broker.publish(drafts(b"abc", b"abc")).result == (1,)
    assert journal.bounds("s") == (1, 2)


def refused(deferred) -> Exception:  # type: ignore[no-untyped-def]
    failures: list = []  # type: ignore[type-arg]
    deferred.addErrback(failures.append)
    assert failures, "it should have been refused"
    return failures[0].value


def test_publish_may_be_exactly_as_large_as_the_limit() -> None:
    broker, _, _ = make()
    runs = [drafts(b"x" * MAX_PAYLOAD)[0] for _ in range(3)]
    left = MAX_PUBLISH - sum(run.room for run in runs) - drafts(b"")[0].room
    assert isinstance(refused(broker.publish([*runs, *drafts(b"x" * (left + 1))])), PayloadTooLarge)
    assert not broker.exists("s"), "a publish that is refused creates no stream"
    assert broker.publish([*runs, *drafts(b"x" * left)]).called
    assert broker.bounds("s") == (1, 4)


def test_max_streams_is_limited_by_the_first_batch_of_a_segment() -> None:
    assert make(max_streams=200_000)[0].max_streams == 200_000
    with pytest.raises(ValueError, match="200000"):
        make(max_streams=200_001)


@pytest.mark.parametrize("label", ["topic", "content_type"])
def test_labels_longer_than_255_characters_are_refused(label: str) -> None:
    broker, _, _ = make()
    fits, too_long = (Run.of("s", [b"x"], source="test", **{label: "x" * size}) for size in (255, 256))
    assert broker.publish([fits]).result == (1,)
    assert isinstance(refused(broker.publish([too_long])), InvalidName)


@pytest.mark.parametrize(("max_streams", "most"), [(1, 1), (3, 1), (4, 2)])
def test_one_peer_creates_at_most_half_of_all_streams(max_streams: int, most: int) -> None:
    broker, _, _ = make(max_streams=max_streams)
    maker = Identity(host="10.0.0.1")
    runs = [Run.of(f"s{n}", [b"x"], source="test") for n in range(most + 1)]
    assert broker.identified(maker).publish(runs[:most]).result == (1,) * most
    assert isinstance(refused(broker.identified(maker).publish(runs[most:])), TooManyStreams)
    other = broker.identified(Identity(host="10.0.0.2")).publish(drafts(b"x", stream="of another"))
    assert isinstance(refused(other), TooManyStreams) if most == max_streams else other.result == (1,)


def test_acknowledged_publishes_are_counted_by_source_and_refused_ones_are_not() -> None:
    broker, journal, _ = make(auto=False)
    broker.publish(drafts(b"abc", b"d"))
    assert not broker.published, "it is not durable yet"
    journal.commit()
    broker.publish(drafts(b"e"))
    journal.commit()
    broker.publish(drafts(b"x", stream="")).addErrback(lambda failure: None)
    published = broker.published["test"]
    assert (published.publishes, published.messages, published.bytes) == (2, 3, 5)
    assert list(broker.published) == ["test"]


def test_peers_may_create_the_stream_that_a_listener_is_bound_to() -> None:
    broker, _, _ = make(rules=StreamRules((StreamRule(names=("*",), new_streams=False),)))
    broker.listeners.append(
        Listener(
            name="lumberjack", protocol="lumberjack", endpoint="", access=str, connections=lambda: 0, stream="logs"
        )
    )
    peer = Identity(host="10.0.0.1")
    assert broker.identified(peer).publish(drafts(b"a", stream="logs")).result == (1,)
    assert isinstance(refused(broker.identified(peer).publish(drafts(b"a", stream="other"))), NewStreamForbidden)


def test_the_smaller_of_restriction_and_configured_limit_holds() -> None:
    rules = StreamRules((StreamRule(names=("small.*",), max_payload=3),))
    broker, _, _ = make(rules=rules)
    broker.restrict("small.er", 2)
    broker.restrict("small.but", 100)
    broker.restrict("large", 100)
    for stream, most in (("small.", 3), ("small.er", 2), ("small.but", 3), ("large", 100)):
        assert broker.publish(drafts(b"x" * most, stream=stream)).result == (1,)
        assert isinstance(refused(broker.publish(drafts(b"x" * (most + 1), stream=stream))), PayloadTooLarge)
    broker.restrict("small.", 1)
    assert isinstance(refused(broker.publish(drafts(b"xx", stream="small."))), PayloadTooLarge)


def test_the_limit_of_the_configuration_holds_for_streams_that_exist_when_the_server_starts() -> None:
    first, journal, clock = make()
    first.publish(drafts(b"large enough", stream="s"))
    broker = Broker(clock, journal, Sequencer(), rules=StreamRules((StreamRule(names=("s",), max_payload=3),)))
    broker.open()
    assert isinstance(refused(broker.publish(drafts(b"long"))), PayloadTooLarge)
    assert broker.publish(drafts(b"xxx")).result == (2,)


def test_new_limits_reach_the_payloads_of_many_streams_in_turns() -> None:
    broker, _, clock = make()
    for number in range(3 * STEPS):
        broker.publish(drafts(b"long", stream=f"s{number}"))
    rules = StreamRules((StreamRule(names=("s*",), max_payload=3),))
    broker.change_limits(rules, broker.limits, broker.max_streams, broker.named_subscriptions)

    def limited() -> int:
        return sum(largest == 3 for largest in broker.largest.values())

    assert 0 < limited() <= STEPS
    broker.retire([f"s{3 * STEPS - 1}"])
    clock.advance(0)
    assert limited() == len(broker.largest) == 3 * STEPS - 1
    assert isinstance(refused(broker.publish(drafts(b"long", stream="s1"))), PayloadTooLarge)
    assert isinstance(refused(broker.publish(drafts(b"long", stream="s-new"))), PayloadTooLarge)


def test_streams_that_exist_at_the_start_count_for_the_limit() -> None:
    first, journal, clock = make()
    first.publish(drafts(b"a"))
    rules = StreamRules((StreamRule(names=("*",), new_streams=False),))
    broker = Broker(clock, journal, Sequencer(), rules=rules, max_streams=1)
    broker.open()
    assert broker.retirable("s")
    assert broker.identified(Identity(host="10.0.0.1")).publish(drafts(b"b")).result == (2,)
    assert isinstance(refused(broker.publish(drafts(b"c", stream="other"))), TooManyStreams)


def test_close_ends_subscriptions_and_reports_that_the_journal_failed() -> None:
    class FailingJournal(MemoryJournal):
        def close(self) -> Deferred[None]:
            return fail(OSError(5, "Input/output error"))

    broker = Broker(Clock(), FailingJournal(), Sequencer())
    broker.open()
    sink = RecordingSink()
    broker.subscribe("s", 0, sink).resumeProducing()
    assert isinstance(refused(broker.close()), OSError)
    assert isinstance(sink.reason, Closed)


def test_publish_of_a_run_without_records_is_refused() -> None:
    broker, journal, _ = make()
    assert isinstance(refused(broker.publish([*drafts(b"a"), *drafts()])), InvalidRun)
    with pytest.raises(InvalidRun, match="a run without records"):
        broker.publisher(None, fire).publish([*drafts(b"a"), *drafts()])
    assert journal.ends() == {}


def test_peers_cannot_create_streams_that_the_configuration_forbids() -> None:
    rules = StreamRules((StreamRule(names=("open.*",), new_streams=True), StreamRule(names=("*",), new_streams=False)))
    broker, journal, _ = make(rules=rules)
    peer = Identity(host="10.0.0.1")
    refusal = refused(broker.identified(peer).publish([*drafts(b"a", stream="open.a"), *drafts(b"a", stream="s")]))
    assert isinstance(refusal, NewStreamForbidden)
    assert not refusal.retriable
    assert "new-streams = true" in str(refusal)
    assert journal.ends() == {}
    assert broker.identified(peer).publish(drafts(b"a", stream="open.a")).result == (1,)
    assert broker.publish(drafts(b"a")).result == (1,), "the server itself may"
    assert broker.identified(peer).publish(drafts(b"a")).result == (2,), "then everybody may publish there"
    published = broker.identified(peer).publish(drafts(b"a", stream="open.b"), drafts(b"b", stream=".own"))
    assert published.result == (1, 1)


def test_a_stream_is_empty_when_nothing_of_it_is_served_or_on_its_way_to_the_disk() -> None:
    broker, journal, _ = make(auto=False)
    assert broker.is_empty("s")
    broker.publish(drafts(b"a"))
    assert not broker.is_empty("s"), "it is not durable, but it will be"
    journal.commit()
    assert not broker.is_empty("s")
    journal.empty("s")
    assert broker.is_empty("s")
    broker.publish(drafts(b"b"))
    assert not broker.is_empty("s")


def test_defaults_of_the_broker_equal_those_of_the_server_options() -> None:
    options = ServerSettings()
    broker, _, _ = make()
    assert (broker.max_streams, broker.budget.limit) == (options.max_streams, options.memory)


def listener(stream: str) -> Listener:
    return Listener(name="backbone", protocol="backbone", endpoint="", access=str, connections=lambda: 0, stream=stream)


class TestRetiring:
    def test_a_retired_stream_does_not_exist_and_its_numbers_are_not_reused(self) -> None:
        broker, journal, clock = make(max_streams=1)
        broker.publish(drafts(b"a", b"b"))
        assert broker.retire(["s"]).result is None
        assert (dict(journal.ends()), broker.exists("s"), broker.read("s", 1, 100)) == ({}, False, ())
        assert broker.publish(drafts(b"x", stream="other")).result == (1,), "it counts against no limit"
        assert isinstance(refused(broker.publish(drafts(b"c"))), TooManyStreams), "and to return is to be made"
        broker.retire(["other"])
        assert broker.publish(drafts(b"c")).result == (3,)
        assert broker.bounds("s") == (3, 3)
        assert [bytes(run.payload) for run in broker.read("s", 1, 100)] == [b"c"]
        again = Broker(clock, journal, Sequencer())
        again.open()
        assert again.publish(drafts(b"d")).result == (4,)
        assert again.publish(drafts(b"y", stream="other")).result == (2,), "after a restart, too"

    def test_a_publish_after_the_retirement_creates_the_stream_again(self) -> None:
        broker, journal, _ = make(auto=False)
        before = broker.publish(drafts(b"a"))
        retired = broker.retire(["s"])
        after = broker.publish(drafts(b"b", b"c"))
        assert not retired.called
        journal.commit()
        assert (before.result, retired.result, after.result) == ((1,), None, (2,))
        assert broker.bounds("s") == (2, 3)

    def test_subscriptions_remain_and_receive_records_when_the_stream_returns(self) -> None:
        broker, _, clock = make()
        behind, live, late = RecordingSink(), RecordingSink(), RecordingSink()
        broker.publish(drafts(b"a", b"b"))
        slow = broker.subscribe("s", 0, behind)
        broker.subscribe("s", None, live).resumeProducing()
        broker.retire(["s"])
        later = broker.subscribe("s", None, late)
        assert later.position == 2
        assert broker.subscribe("s", 1, RecordingSink()).position == 2
        later.resumeProducing()
        slow.resumeProducing()
        clock.advance(0)
        assert not behind.deliveries, "what was retired is served to nobody"
        broker.publish(drafts(b"c"))
        clock.advance(0)
        for sink in (behind, live, late):
            assert [(r.seq, r.payload) for r in sink.records] == [(3, b"c")]
        assert behind.gaps == [(1, 2)]
        assert live.gaps == late.gaps == []

    def test_a_delivery_that_was_shared_is_not_served_after_its_stream_is_retired(self) -> None:
        broker, _, clock = make()
        broker.publish(drafts(b"a"))
        first, second = RecordingSink(), RecordingSink()
        slow = broker.subscribe("s", 0, second)
        broker.subscribe("s", 0, first).resumeProducing()
        clock.advance(0)
        assert len(first.records) == 1
        broker.retire(["s"])
        slow.resumeProducing()
        clock.advance(0)
        assert not second.deliveries

    def test_a_stream_that_cannot_be_retired_is_refused_and_no_other_is_retired(self, log_lines: list[str]) -> None:
        broker, journal, _ = make()
        broker.listeners.append(listener("bound"))
        broker.publish([*drafts(b"a"), *drafts(b"a", stream="bound")], drafts(b"a", stream=".own"))
        for stream, kind, said in (
            ("none", NoSuchStream, "there is no stream 'none'"),
            (".own", StreamInUse, "reserved for the server"),
            ("bound", StreamInUse, "the listener backbone is bound to it by the option backbone.stream"),
        ):
            assert not broker.retirable(stream)
            error = refused(broker.retire(["s", stream]))
            assert type(error) is kind
            assert said in str(error)
        assert set(journal.ends()) == {"s", ".own", "bound"}
        assert broker.retirable("s")
        assert broker.retire(["s", "s"]).result is None
        assert isinstance(refused(broker.retire(["s"])), NoSuchStream)
        assert broker.counters.counts["server", "streams-retired"] == 1
        assert [line for line in log_lines if "retired" in line] == ["stream 's' was retired by the server"]

    def test_a_retirement_waits_for_room(self) -> None:
        broker, journal, _ = make(auto=False)
        broker.publish(drafts(b"a"))
        journal.commit()
        retired = broker.retire(["s"])
        journal.enter(JournalState.READ_ONLY, "full")
        assert not retired.called
        assert isinstance(refused(broker.retire(["other"])), ReadOnly)
        journal.enter(JournalState.WRITABLE, "room")
        assert retired.called
        published = broker.publish(drafts(b"b"))
        journal.commit()
        assert (published.result, broker.bounds("s")) == ((2,), (2, 2))

    @pytest.mark.parametrize(
        ("state", "error"), [(JournalState.READ_ONLY, ReadOnly), (JournalState.FAILED, Closed)], ids=str
    )
    def test_a_read_only_journal_refuses_publishes_to_invalid_names_with_its_own_reason(
        self, state: JournalState, error: type[Exception]
    ) -> None:
        broker, journal, _ = make()
        journal.enter(state, "trouble")
        assert type(refused(broker.retire(["none"]))) is error

    def test_new_streams_begin_above_the_numbers_of_retired_ones_that_are_not_remembered(self) -> None:
        broker, journal, _ = make()
        broker.publish(drafts(b"a", b"b"))
        broker.publish(drafts(b"x", stream="kept"))
        journal.floor = 7  # as when so many streams are retired that the journal forgets their names
        assert broker.retire(["s"]).result is None
        assert broker.publish(drafts(b"c", stream="new")).result == (8,)
        assert broker.publish(drafts(b"c")).result == (3,), "this one is remembered"
        assert broker.publish(drafts(b"y", stream="kept")).result == (2,)


def test_time_until_a_publish_is_durable_is_measured_by_source() -> None:
    broker, journal, clock = make(auto=False)
    clock.advance(2.0)
    broker.publish(drafts(b"a"))
    clock.advance(0.25)
    journal.commit()
    seconds = broker.published["test"].seconds
    assert (seconds.count, seconds.total) == (1, 0.25)


def test_producers_of_a_source_are_collected_up_to_a_limit() -> None:
    broker, _, _ = make()
    for producer in ("10.0.0.1:5", "10.0.0.1:6", "[::1]:7", "x (10.0.0.1:8)", "x (10.0.0.1:9)"):
        broker.publish([Run.of("s", [b"x"], source="test", producer=producer)])
    assert broker.published["test"].producers == {"10.0.0.1", "[::1]", "x (10.0.0.1"}
    for number in range(MOST_PRODUCERS):
        broker.publish([Run.of("s", [b"x"], source="test", producer=f"producer {number}")])
    assert len(broker.published["test"].producers) == MOST_PRODUCERS


def test_payload_by_stream_is_collected_only_for_an_observer() -> None:
    broker, _, _ = make()
    broker.publish(drafts(b"a"))
    assert broker.grown_bytes == {}
    broker.grown = set()
    broker.publish([*drafts(b"abc"), *drafts(b"d", stream="t"), *drafts(b"e")])
    assert broker.grown_bytes == {"s": 4, "t": 1}


def test_turns_that_take_long_are_counted_by_the_kind_of_their_work() -> None:
    class Slow:
        def take_turn(self) -> int:
            clock.rightNow += 0.06
            return 0

        def failed(self, failure: Failure) -> None:
            raise failure.value

    broker, _, clock = make()
    broker.turns.ready(Slow())
    clock.advance(0)
    assert broker.counters.counts["server", "long-turn-Slow"] == 1
