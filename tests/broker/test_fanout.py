"""The fan-out delivers the journal to subscribers, which cannot affect each other."""

from __future__ import annotations

from asyncio import CancelledError
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from zope.interface import implementer

from fyrehose.broker.broker import Broker
from fyrehose.broker.fanout import SHARED, SHARED_COUNT, TURN, Fanout
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import Closed, JournalCorrupt
from fyrehose.interfaces import IConnectedSink, IRelay
from fyrehose.net.turns import ROUND
from fyrehose.net.turns import Turns as ServerTurns
from fyrehose.records import Delivery, Run
from fyrehose.standing import ServerRole, Standing
from fyrehose.testing import MemoryJournal, RecordingSink


class Turns(Clock):
    """A clock that makes one turn of the reactor out of each second."""

    def callLater(self, delay: float, *args: Any, **kw: Any) -> Any:
        return super().callLater(max(delay, 1), *args, **kw)


class Server:
    """A broker over a journal in memory."""

    def __init__(self, journal: MemoryJournal | None = None) -> None:
        self.clock = Turns()
        self.journal = journal or MemoryJournal()
        self.broker = Broker(self.clock, self.journal, Sequencer())
        self.broker.open()

    def publish(self, *payloads: bytes, stream: str = "s") -> None:
        self.broker.publish([Run.of(stream, payloads, source="test")])

    def subscribe(self, after: int | None = None, stream: str = "s", sink: RecordingSink | None = None) -> Any:
        """A sink with a subscription that runs, which it carries along."""
        sink = sink or RecordingSink()
        subscription = self.broker.subscribe(stream, after, sink)
        subscription.resumeProducing()
        return sink, subscription

    def turn(self) -> None:
        """Run one round, as the reactor does."""
        self.clock.advance(1)

    def settle(self) -> None:
        while self.clock.getDelayedCalls():
            self.turn()


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.mark.parametrize(("after", "position"), [(None, 5), (0, 2), (1, 2), (2, 2), (4, 4), (5, 5)])
def test_start_of_a_subscription_is_moved_into_the_kept_range(server: Server, after: int | None, position: int) -> None:
    for payload in (b"1", b"2", b"3", b"4", b"5"):
        server.publish(payload)
    server.journal.forget("s", 3)
    assert server.broker.subscribe("s", after, RecordingSink()).position == position
    assert server.broker.subscribe("unknown", after, RecordingSink()).position == 0


@pytest.mark.parametrize("after", [6, 20, 1 << 60])
def test_subscription_beyond_the_end_begins_with_the_oldest_record(server: Server, after: int) -> None:
    """The number is one of another journal, so each record of this one is new to the subscriber."""
    for payload in (b"1", b"2", b"3", b"4", b"5"):
        server.publish(payload)
    server.journal.forget("s", 3)
    sink = RecordingSink()
    subscription = server.broker.subscribe("s", after, sink)
    assert subscription.position == 2
    subscription.resumeProducing()
    server.settle()
    assert [record.seq for record in sink.records] == [3, 4, 5]


@pytest.mark.parametrize(("seen", "lines"), [(0, 0), (3, 0), (4, 1), (1 << 40, 1)])
def test_reader_that_has_seen_a_number_beyond_the_end_is_logged_once(server: Server, seen: int, lines: int) -> None:
    server.publish(b"1", b"2", b"3")
    with capturedLogs() as events:
        for _ in range(2):
            assert server.broker.bounds("s", seen) == (1, 3)
    found = [text for event in events if "an older copy" in (text := formatEvent(event))]
    assert len(found) == lines
    assert all(f"after number {seen} of stream 's', which ends at 3" in text for text in found)
    assert all("run `fyrehose journal restore` from its directory into a new one" in text for text in found)


@pytest.mark.parametrize(("role", "position"), [(ServerRole.FOLLOWER, 20), (ServerRole.LEADER, 0)])
def test_subscription_beyond_the_end_waits_where_another_server_may_have_the_record(
    role: ServerRole, position: int
) -> None:
    server = Server(MemoryJournal(auto=False, cluster=Standing(role)))
    if role is ServerRole.LEADER:
        server.publish(b"1", b"2", b"3")
        assert server.broker.subscribe("s", 3, RecordingSink()).position == 3, "a follower may have delivered it"
    assert server.broker.subscribe("s", 20, RecordingSink()).position == position


@pytest.mark.parametrize("expired", range(6))
def test_expired_records_are_not_delivered_although_they_were_delivered_to_others_before(expired: int) -> None:
    """The latest deliveries are kept for subscribers that come later; records expire meanwhile."""
    kept = [Run.of("s", [b"%d" % n], source="test").numbered(n, time=n) for n in range(1, 6)]
    oldest = 1

    def read(stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        return tuple(kept[max(start, oldest) - 1 :][:2])

    clock = Clock()
    fanout = Fanout(ServerTurns(clock), read, lambda stream, time: time < oldest)

    def delivered() -> RecordingSink:
        sink = RecordingSink()
        fanout.subscribe("s", 0, 5, sink).resumeProducing()
        while clock.getDelayedCalls():
            clock.advance(0)
        return sink

    assert delivered().payloads == [b"1", b"2", b"3", b"4", b"5"]
    oldest = expired + 1
    late = delivered()
    assert late.payloads == [b"%d" % seq for seq in range(oldest, 6)]
    assert late.gaps == ([(1, expired)] if expired else []), "told at once, not with the next record"


def test_nothing_is_delivered_before_the_subscription_is_resumed(server: Server) -> None:
    sink = RecordingSink()
    subscription = server.broker.subscribe("s", 0, sink)
    server.publish(b"a")
    server.settle()
    assert not sink.deliveries
    assert [cursor.paused for cursor in server.broker.fanout.cursors] == [True]
    subscription.resumeProducing()
    assert [cursor.paused for cursor in server.broker.fanout.cursors] == [False]
    server.settle()
    assert sink.payloads == [b"a"]


def test_a_paused_subscriber_costs_no_reads_and_misses_nothing(server: Server) -> None:
    sink, subscription = server.subscribe(0)
    subscription.pauseProducing()
    for n in range(100):
        server.publish(b"%d" % n)
        server.settle()
    assert not sink.deliveries
    subscription.resumeProducing()
    subscription.resumeProducing()
    server.settle()
    assert sink.payloads == [b"%d" % n for n in range(100)]


def test_a_sink_may_pause_its_subscription_during_delivery(server: Server) -> None:
    class Cautious(RecordingSink):
        subscription: Any = None

        def deliver(self, delivery: Delivery) -> None:
            super().deliver(delivery)
            self.subscription.pauseProducing()

    sink = Cautious()
    sink.subscription = server.broker.subscribe("s", 0, sink)
    for _ in range(3):
        server.publish(b"x" * TURN)
    for n in range(1, 4):
        sink.subscription.resumeProducing()
        server.settle()
        assert len(sink.deliveries) == n


@pytest.mark.parametrize("when", ["waiting", "queued", "delivering"])
def test_a_stopped_subscriber_receives_nothing_and_disturbs_no_other(server: Server, when: str) -> None:
    class Leaving(RecordingSink):
        subscription: Any = None

        def deliver(self, delivery: Delivery) -> None:
            super().deliver(delivery)
            self.subscription.stopProducing()

    leaving = Leaving() if when == "delivering" else RecordingSink()
    before, _ = server.subscribe()
    _, subscription = server.subscribe(sink=leaving)
    if when == "delivering":
        leaving.subscription = subscription
    after, _ = server.subscribe()
    if when == "waiting":
        server.settle()
    if when != "delivering":
        subscription.stopProducing()
    server.publish(b"one")
    server.settle()
    server.publish(b"two")
    server.settle()
    assert before.payloads == after.payloads == [b"one", b"two"]
    assert leaving.payloads == ([b"one"] if when == "delivering" else [])
    assert leaving.reason is None


def test_a_sink_is_told_of_a_gap_before_the_records_behind_it(server: Server) -> None:
    sink, subscription = server.subscribe(0)
    server.publish(b"1")
    server.settle()
    subscription.pauseProducing()
    for payload in (b"2", b"3", b"4"):
        server.publish(payload)
    server.journal.forget("s", 4)
    subscription.resumeProducing()
    server.settle()
    assert sink.gaps == [(2, 3)]
    assert sink.payloads == [b"1", b"4"]


def test_subscribers_at_the_same_position_share_one_read_and_one_encoding(server: Server) -> None:
    reads: list[int] = []
    server.journal.before_read = lambda stream, start: reads.append(start)
    encodings: list[int] = []

    def encode(runs: tuple[Run, ...]) -> list[Run]:
        encodings.append(len(runs))
        return list(runs)

    sinks = [server.subscribe()[0] for _ in range(50)]
    server.settle()
    reads.clear()
    server.publish(b"a", b"b")
    server.settle()
    late, _ = server.subscribe(0)
    server.settle()
    taken = [sink.deliveries[0].encoded(encode) for sink in [*sinks, late]]
    assert len(encodings) == 1
    assert all(one is taken[0] for one in taken)
    assert reads.count(1) == 1


def test_the_latest_deliveries_are_shared_after_others_were_dropped_or_retired(server: Server) -> None:
    """Only as many are kept as :data:`SHARED` allows."""
    reads: list[tuple[str, int]] = []
    server.journal.before_read = lambda stream, start: reads.append((stream, start))

    def reads_of(after: int, stream: str) -> list[tuple[str, int]]:
        reads.clear()
        _, subscription = server.subscribe(after, stream)
        server.settle()
        subscription.stopProducing()
        return list(reads)

    last = SHARED // TURN + 8
    for _ in range(last):
        server.publish(b"x" * TURN)
    assert len(reads_of(0, "s")) == last
    assert reads_of(last - 2, "s") == [], "the last two are kept"
    most = SHARED // TURN
    assert last - most < len(reads_of(last - most - 1, "s")), "one more than are kept, each of which displaces the next"
    assert len(reads_of(0, "s")) == last, "the first ones are not"
    for n in range(last):
        server.publish(b"x" * TURN, stream=f"retired {n}")
        reads_of(0, f"retired {n}")
        server.broker.retire([f"retired {n}"])
    server.publish(b"x" * TURN, stream="t")
    assert reads_of(0, "t") == [("t", 1)]
    assert reads_of(0, "t") == []


def test_a_round_is_bounded_and_the_rest_follows_in_the_next(server: Server) -> None:
    sinks = []
    for n in range(2 * ROUND // TURN):
        server.publish(b"x" * TURN, stream=f"s{n}")
        sinks.append(server.subscribe(0, stream=f"s{n}")[0])
    server.turn()
    delivered = sum(delivery.size for sink in sinks for delivery in sink.deliveries)
    assert ROUND - TURN <= delivered <= ROUND + TURN
    server.settle()
    assert all(len(sink.payloads) == 1 for sink in sinks)


def test_cursors_that_a_round_does_not_reach_have_their_turn_in_the_next(server: Server) -> None:
    sinks = [server.subscribe()[0] for _ in range(120)]
    server.settle()
    size = 100 << 10  # less than half a turn, so that no cursor is queued again
    server.publish(b"x" * size)
    first = sum(bool(sink.payloads) for sink in sinks)
    assert 0 < first <= ROUND // size + 1
    server.turn()
    assert first < sum(bool(sink.payloads) for sink in sinks) <= 2 * (ROUND // size + 1)
    server.settle()
    assert all(len(sink.payloads) == 1 for sink in sinks)


def test_a_subscriber_that_catches_up_does_not_delay_live_subscribers(server: Server) -> None:
    for _ in range(20):
        server.publish(b"x" * TURN)
    live, _ = server.subscribe()
    server.settle()
    slow, _ = server.subscribe(0)
    server.publish(b"now")
    server.turn()
    assert live.payloads == [b"now"]
    assert len(slow.deliveries) < 20
    server.settle()
    assert len(slow.payloads) == 21


def test_closing_ends_every_subscription(server: Server) -> None:
    waiting, _ = server.subscribe()
    server.settle()
    queued, _ = server.subscribe()
    server.broker.close()
    assert isinstance(waiting.reason, Closed)
    assert isinstance(queued.reason, Closed)
    assert not server.clock.getDelayedCalls()


class SparingSink(RecordingSink):
    """A sink that takes one record of each delivery."""

    def deliver(self, delivery: Delivery) -> int:
        first = Delivery((delivery.runs[0].slice(0, 1),))
        super().deliver(first)
        return first.last_seq


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["subscribe", "subscribe sparing"]), st.integers(0, 12) | st.none()),
    st.tuples(st.sampled_from(["pause", "resume", "leave"]), st.integers(0, 5)),
    st.tuples(st.just("turn"), st.just(0)),
)


@settings(max_examples=60)
@given(st.lists(STEPS, max_size=40))
def test_every_subscriber_receives_every_record_once_and_in_order(steps: list[tuple[str, Any]]) -> None:
    server = Server()
    readers: list[tuple[int, RecordingSink, Any]] = []
    for what, n in steps:
        if what == "publish":
            server.publish(*[b"x" * size for size in range(n)])
        elif what == "turn":
            server.turn()
        elif what.startswith("subscribe"):
            sink, subscription = server.subscribe(n, sink=SparingSink() if "sparing" in what else None)
            readers.append((subscription.position, sink, subscription))
        elif n < len(readers):
            method = {"pause": "pauseProducing", "resume": "resumeProducing", "leave": "stopProducing"}[what]
            getattr(readers[n][2], method)()
    for _, _, subscription in readers:
        subscription.resumeProducing()
    server.settle()
    last = server.broker.bounds("s")[1]
    for start, sink, subscription in readers:
        seqs = [record.seq for record in sink.records]
        assert seqs == list(range(start + 1, start + 1 + len(seqs)))
        assert subscription.position == start + len(seqs)
        assert subscription.stopped or subscription.position == last
        assert subscription.delivered == len(seqs)
    payloads = [payload for _, sink, _ in readers for payload in sink.payloads]
    delivered = [tally.delivered for tally in server.broker.fanout.tallies.values()]
    assert delivered in ([], [(len(payloads), sum(map(len, payloads)))]), "other totals than what was delivered"


class TestTrouble:
    """Reading fails for one, and for nobody else."""

    @pytest.mark.parametrize(
        "error", [OSError(5, "Input/output error"), JournalCorrupt("damaged"), ValueError("a bug")]
    )
    def test_an_error_of_one_stream_stops_no_acknowledgement_and_no_other_subscriber(
        self, server: Server, logged_errors, error: Exception
    ) -> None:
        fine, _ = server.subscribe(stream="fine")
        bad, _ = server.subscribe(stream="bad")
        server.settle()

        def fail(stream: str, start: int) -> None:
            if stream == "bad":
                raise error

        server.journal.before_read = fail
        runs = [Run.of(stream, [b"x"], source="test") for stream in ("bad", "fine")]
        published = server.broker.publish(runs)
        server.settle()
        assert published.result == (1, 1)
        assert fine.payloads == [b"x"]
        assert bad.reason is error
        assert logged_errors.take()


def test_subscriptions_that_fail_by_a_bug_end_with_a_log_line_and_the_others_go_on(
    server: Server, logged_errors: Any
) -> None:
    """The lines name the subscriber and the stream."""

    @implementer(IConnectedSink)
    class Named(RecordingSink):
        connection = SimpleNamespace(subscriber=("figg", "10.0.0.1:5"))

        def deliver(self, delivery: Delivery) -> None:
            raise RuntimeError("bug")

    def bug(stream: str, start: int) -> None:
        if stream == "unreadable":
            raise RuntimeError("bug")

    server.publish(b"a", stream="unreadable")
    server.publish(b"a")
    server.journal.before_read = bug
    reading, _ = server.subscribe(after=0, stream="unreadable")
    failing, _ = server.subscribe(after=0, sink=Named())
    other, _ = server.subscribe(after=0)
    server.settle()
    assert [str(each.reason) for each in (reading, failing)] == ["bug", "bug"]
    assert other.payloads == [b"a"]
    assert [formatEvent(event) for event in logged_errors.take()] == [
        "the subscription to stream 'unreadable' ends: reading failed; please report this bug",
        "the subscription of figg 10.0.0.1:5 to stream 's' ends: its sink failed; please report this bug",
    ]


def test_a_subscription_paused_during_close_ends_when_it_is_resumed(server: Server) -> None:
    sink = RecordingSink()
    subscription = server.broker.subscribe("s", 0, sink)
    server.publish(b"x")
    server.broker.close()
    assert sink.reason is None
    subscription.resumeProducing()
    assert isinstance(sink.reason, Closed)
    assert not sink.deliveries
    assert not server.clock.getDelayedCalls()


def test_closing_twice_ends_each_subscription_once(server: Server) -> None:
    reasons: list[Exception] = []

    class Counting(RecordingSink):
        def ended(self, reason: Exception) -> None:
            reasons.append(reason)

    server.subscribe(0, sink=Counting())
    server.publish(b"x")
    for _ in range(2):
        server.broker.close()
    assert len(reasons) == 1


def test_the_number_of_kept_small_deliveries_is_bounded(server: Server) -> None:
    reads: list[str] = []
    server.journal.before_read = lambda stream, start: reads.append(stream)
    for i in range(SHARED_COUNT + 1):
        server.publish(b"x", stream=f"s{i}")
        server.subscribe(0, stream=f"s{i}")
        server.settle()
    for stream, again in (("s1", []), ("s0", ["s0"])):
        reads.clear()
        server.subscribe(0, stream=stream)
        server.settle()
        assert reads == again, "the oldest is not kept"


@implementer(IConnectedSink)
class Named(RecordingSink):
    """A sink that says who it is."""

    connection = SimpleNamespace(subscriber=("protocol", "peer"))


def test_deliveries_are_counted_by_protocol_also_after_subscribers_have_left(server: Server) -> None:
    server.publish(b"abc", b"d")
    _, one = server.subscribe(after=0, sink=Named())
    server.subscribe(after=1, sink=Named())
    server.subscribe(after=0)
    server.settle()

    def tallies() -> dict[str, tuple[int, int, int]]:
        found = server.broker.fanout.tallies
        return {plugin: (tally.subscriptions, tally.messages, tally.bytes) for plugin, tally in found.items()}

    assert tallies() == {"protocol": (2, 3, 5), "": (1, 2, 4)}
    assert sorted(cursor.subscriber for cursor in server.broker.fanout.cursors) == [
        ("", ""),
        ("protocol", "peer"),
        ("protocol", "peer"),
    ]
    one.stopProducing()
    one.stopProducing()
    assert len(server.broker.fanout.cursors) == 2
    assert tallies() == {"protocol": (1, 3, 5), "": (1, 2, 4)}
    server.publish(b"e")
    assert tallies()["protocol"] == (1, 4, 6)
    server.broker.close()
    assert not server.broker.fanout.cursors
    assert tallies() == {"protocol": (0, 4, 6), "": (0, 3, 5)}


def test_subscribers_of_a_stream_are_counted_and_leave_no_state(server: Server) -> None:
    server.publish(b"x")
    subscriptions = [server.subscribe(stream=stream)[1] for stream in ("s", "s", "new")]
    server.settle()
    assert [server.broker.fanout.subscribers(stream) for stream in ("s", "new", "none")] == [2, 1, 0]
    for subscription in subscriptions:
        subscription.stopProducing()
    assert server.broker.fanout.subscribers("s") == 0
    server.publish(b"y")
    sink, _ = server.subscribe(0)
    server.settle()
    assert sink.payloads == [b"x", b"y"]


def test_lag_of_a_cursor_is_its_distance_from_the_end(server: Server) -> None:
    server.publish(b"1", b"2", b"3")
    _, subscription = server.subscribe(after=1)
    assert subscription.lag == 2
    server.settle()
    assert subscription.lag == 0
    subscription.pauseProducing()
    server.publish(b"4")
    assert subscription.lag == 1


def test_many_new_subscriptions_at_the_ends_of_their_streams_delay_no_delivery(server: Server) -> None:
    sink, _ = server.subscribe()
    server.settle()
    for number in range(5_000):
        server.subscribe(stream=f"quiet-{number}")
    server.publish(b"a message")
    assert (sink.payloads, server.clock.getDelayedCalls()) == ([b"a message"], [])


def test_a_sink_that_resumes_within_a_partial_delivery_gets_the_rest(server: Server) -> None:
    class Partial(SparingSink):
        subscription: Any

        def deliver(self, delivery: Delivery) -> int:
            self.subscription.pauseProducing()
            self.subscription.resumeProducing()
            return super().deliver(delivery)

    sink = Partial()
    sink.subscription = server.broker.subscribe("s", 0, sink)
    sink.subscription.resumeProducing()
    server.publish(b"a", b"b", b"c")
    server.settle()
    assert sink.payloads == [b"a", b"b", b"c"]


def test_resuming_many_times_within_a_turn_costs_one_read(server: Server) -> None:
    """A transport may ask for more with every write: the queue must not grow with that."""
    reads: list[int] = []
    server.journal.before_read = lambda stream, start: reads.append(start)
    server.publish(b"w")
    sink = RecordingSink()
    subscription = server.broker.subscribe("s", 0, sink)
    for _ in range(100):
        subscription.pauseProducing()
        subscription.resumeProducing()
    server.settle()
    assert len(reads) == 1
    for _ in range(100):
        subscription.resumeProducing()
    server.settle()
    assert len(reads) == 1, "nothing was published since"
    server.publish(b"x", b"y")
    server.settle()
    assert sink.payloads == [b"w", b"x", b"y"]
    assert subscription.delivered == 3


@implementer(IRelay)
class Relay(RecordingSink):
    """A sink that passes records on to clients of its own."""

    subscriber = ("protocol", "2 clients")
    audience = 2
    sent = (0, 0)


def test_a_relay_counts_its_clients_and_the_messages_that_it_sent_to_them(server: Server) -> None:
    relay = Relay()
    _, subscription = server.subscribe(sink=relay)
    server.subscribe(sink=Named())
    server.publish(b"abc", b"d")
    server.settle()
    tally = server.broker.fanout.tallies["protocol"]
    assert tally.delivered == (2, 4), "the relay has sent nothing yet"
    subscribers = server.broker.fanout.subscribers
    assert (tally.subscribers, subscribers("s"), subscribers("t")) == (3, 3, 0)
    relay.sent, relay.audience = (3, 7), 0
    assert tally.delivered == (5, 11)
    assert (tally.subscribers, server.broker.fanout.subscribers("s")) == (1, 1)
    assert [cursor.audience for cursor in server.broker.fanout.cursors] == [0, 1]
    subscription.stopProducing()
    assert tally.delivered == (5, 11)
    assert (tally.subscribers, server.broker.fanout.subscribers("s")) == (1, 1)


@pytest.mark.parametrize("error", [RuntimeError, GeneratorExit, SystemExit, CancelledError])
def test_sink_that_fails_or_raises_an_exit_ends_only_its_subscription(
    server: Server, logged_errors: Any, error: type[BaseException]
) -> None:
    class Failing(RecordingSink):
        def deliver(self, delivery: Delivery) -> None:
            raise error

        def ended(self, reason: Exception) -> None:
            super().ended(reason)
            raise error

    before, _ = server.subscribe()
    sink, subscription = server.subscribe(sink=Failing())
    after, _ = server.subscribe()
    published = server.broker.publish([Run.of("s", [b"a"], source="test")])
    assert published.result == (1,), "its publisher is told"
    server.settle()
    server.publish(b"b")
    server.settle()
    assert before.payloads == after.payloads == [b"a", b"b"]
    assert (type(sink.reason), subscription.stopped) == (RuntimeError, True)
    assert len(logged_errors.take()) == 2, "it failed once, and once when it ended"


def test_sink_may_publish_subscribe_stop_and_retire_while_it_is_called(server: Server) -> None:
    """Each call within deliver() is one that a program makes, and each publish is durable within its call."""
    others = [server.subscribe(stream="copies") for _ in range(2)]

    class Busy(RecordingSink):
        def deliver(self, delivery: Delivery) -> None:
            super().deliver(delivery)
            for run in delivery.runs:
                copies = [bytes(payload) for payload in run.payloads()]
                server.publish(*copies, stream="copies")
                if run.last_seq < 3:
                    server.publish(b"again")
            others[1][1].stopProducing()
            server.subscribe(after=0, stream="copies")[1].stopProducing()
            subscription.pauseProducing()
            subscription.resumeProducing()
            if server.broker.exists("spare"):
                server.broker.retire(["spare"])

    server.publish(b"x", stream="spare")
    sink, subscription = server.subscribe(sink=Busy())
    server.publish(b"a")
    server.settle()
    assert sink.payloads == [b"a", b"again", b"again"]
    assert others[0][0].payloads == sink.payloads
    assert len(others[1][0].payloads) <= 1


def test_watcher_of_new_streams_that_fails_affects_no_publish(server: Server, logged_errors: Any) -> None:
    created: list[str] = []

    def failing(stream: str) -> None:
        raise RuntimeError(stream)

    server.broker.watch_streams(failing)
    server.broker.watch_streams(created.append)
    published = server.broker.publish([Run.of("new", [b"a"], source="test")])
    assert (published.result, created) == ((1,), ["new"])
    assert [event["log_failure"].getErrorMessage() for event in logged_errors.take()] == ["new"]
