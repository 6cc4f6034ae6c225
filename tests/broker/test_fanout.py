"""The fan-out delivers the journal to subscribers, which cannot affect each other."""

from __future__ import annotations

from asyncio import CancelledError
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.broker import fanout
from fyrehose.broker.broker import Broker
from fyrehose.broker.fanout import SHARED, SHARED_COUNT, TURN, Fanout
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import Closed, Forbidden, JournalCorrupt
from fyrehose.interfaces import IConnectedSink, IRelay
from fyrehose.net.turns import ROUND
from fyrehose.net.turns import Turns as ServerTurns
from fyrehose.records import Delivery, Run
from fyrehose.standing import ServerRole, Standing
from fyrehose.testing import MemoryJournal, RecordingSink
from tests.doubles.steps import advance_until
from tests.verification.consumers.ran import Ran


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


class Refusing(RecordingSink):
    """A sink that gives its first deliveries back, some *times*."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def deliver(self, delivery: Delivery) -> int | None:
        self.times -= 1
        if self.times >= 0:
            return delivery.first_seq - 1
        return super().deliver(delivery)


def test_the_latest_deliveries_are_shared_after_others_were_given_back_dropped_or_retired(server: Server) -> None:
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
    refusing = Refusing(last)
    server.subscribe(last - 1, sink=refusing)
    server.settle()
    assert (len(refusing.payloads), refusing.reason) == (1, None), "a delivery that is given back takes no more room"
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


def test_many_new_subscriptions_at_the_ends_of_their_streams_delay_no_delivery(server: Server) -> None:
    sink, _ = server.subscribe()
    server.settle()
    for number in range(5_000):
        server.subscribe(stream=f"quiet-{number}")
    server.publish(b"a message")
    assert (sink.payloads, server.clock.getDelayedCalls()) == ([b"a message"], [])


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


def test_watcher_of_new_streams_that_fails_affects_no_publish(server: Server, logged_errors: Any) -> None:
    created: list[str] = []

    def failing(stream: str) -> None:
        raise RuntimeError(stream)

    server.broker.watch_streams(failing)
    server.broker.watch_streams(created.append)
    published = server.broker.publish([Run.of("new", [b"a"], source="test")])
    assert (published.result, created) == ((1,), ["new"])
    assert [event["log_failure"].getErrorMessage() for event in logged_errors.take()] == ["new"]


OTHER_STEPS = ("pause", "leave", "end", "bug", "send", "expire", "expire", "forget", "settle")
OTHER_ACTS = ("stop", "fail", "publish", "subscribe", "end")
FAILURES = (RuntimeError("bug"), OSError(5, "no"), GeneratorExit(), SystemExit(), CancelledError())


class Chatty(RecordingSink):
    """A sink that pauses, resumes, stops, fails, and takes a part, at random; it checks what it gets as it arrives."""

    def __init__(self, world: World, stream: str, start: int, subscriber: tuple[str, str] = ("", "")) -> None:
        super().__init__()
        self.world, self.stream, self.next = world, stream, start + 1
        self.subscriber, self.network = subscriber, "192.0.2.1"
        self.connection = SimpleNamespace(subscriber=subscriber, closes_in=start)
        self.audience, self.sent = world.random.randrange(4), (0, 0)
        self.is_relay = IRelay.providedBy(self)
        self.cursor: Any = None
        self.paused = True
        self.error: BaseException | None = None
        self.got = self.owned = 0

    def unsubscribed(self) -> None:
        """Note as the owner of the subscription that it ended."""
        self.owned -= 1

    def skipped(self, first: int, last: int) -> None:
        world = self.world
        until = min(world.oldest[self.stream], world.ends[self.stream] + 1)
        world.expect((first, last + 1) == (self.next, until), "the gap is not what has expired")
        world.expect(self.reason is None, "a gap was told after the end")
        self.next = last + 1
        if world.random.random() < 0.4:
            self._act("fail")

    def deliver(self, delivery: Delivery) -> int | None:
        world, random = self.world, self.world.random
        world.expect(not self.paused and self in world.readers, "a delivery to a paused or ended subscription")
        world.expect(delivery.first_seq == self.next >= world.oldest[self.stream], "an expired or a wrong record")
        records = [record for run in delivery.runs for record in run.records()]
        sent = [b"%s %d" % (self.stream.encode(), seq) for seq in range(self.next, delivery.last_seq + 1)]
        world.expect([record.payload for record in records] == sent, "other records than were published")
        act = random.choice((*["all", "pause", "again"] * 3, *OTHER_ACTS))
        taken = random.randint(delivery.first_seq - 1, delivery.last_seq) if random.random() < 0.3 else None
        if act in ("fail", "end") or (act == "stop" and self.is_relay):
            taken = None
        kept = [record for record in records if taken is None or record.seq <= taken]
        self.next += len(kept)
        self.got += len(kept)
        if not self.is_relay:
            world.count(self, len(kept), sum(len(record.payload) for record in kept))
        self._act(act)
        return taken

    def _act(self, act: str) -> None:
        if act in ("pause", "again"):
            self.world.use(self, "pause")
        if act == "again":
            self.world.use(self, "resume")
        elif act == "publish" and self.world.random.randrange(len(self.world.readers)) < 2:
            self.world.publish()
        elif act == "subscribe":
            self.world.subscribe()
        elif act == "stop":
            self.world.leave(self)
        elif act == "end":
            self.world.use(self, "end")
            raise RuntimeError("a bug behind the end")
        elif act == "fail":
            self.error = self.world.random.choice(FAILURES)
            raise self.error

    def ended(self, reason: Exception) -> None:
        world = self.world
        world.expect(self.reason is None, "the end was told twice")
        error = self.error if isinstance(self.error, Exception) else RuntimeError(repr(self.error))
        world.expect(reason is world.broken or repr(reason) == repr(error), "the reason of the end is another")
        self.reason = reason
        world.left(self)
        if world.random.random() < 0.2:
            raise RuntimeError("a bug at the end")


@implementer(IConnectedSink)
class ChattyClient(Chatty):
    """Such a sink of one peer."""


@implementer(IRelay)
class ChattyRelay(Chatty):
    """Such a sink that passes records on to clients of its own."""


#: The kinds of sinks, each with the protocol and the peer that it names.
KINDS = ((Chatty, ("", "")), (ChattyClient, ("figg", "1")), (ChattyClient, ("http", "")), (ChattyRelay, ("figg", "2")))


class World:
    """A fan-out of two streams, and a plain table of what each subscriber has got, and of what was counted."""

    def __init__(self, seed: int) -> None:
        self.random, self.clock = Random(seed), Clock()
        self.kept: dict[str, list[Run]] = {"a": [], "b": []}
        self.ends, self.oldest = dict.fromkeys(self.kept, 0), dict.fromkeys(self.kept, 1)
        self.readers: list[Chatty] = []
        self.counted: dict[str, tuple[int, int]] = {}
        self.broken: Exception | None = None
        self.wrong: list[str] = []
        self.fanout = Fanout(ServerTurns(self.clock), self.read, lambda stream, time: time < self.oldest[stream])

    def expect(self, holds: object, what: str) -> None:
        """Note what is wrong: an error that a sink raises would only end its subscription."""
        if not holds:
            self.wrong.append(what)

    def read(self, stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        if self.broken is not None:
            raise self.broken
        first = max(start, self.oldest[stream])
        found = [run for run in self.kept[stream] if run.last_seq >= first]
        return tuple(run.slice(max(0, first - run.first_seq), len(run)) for run in found[: self.random.randint(1, 3)])

    def publish(self) -> None:
        for stream in self.random.choice((["a"], ["b"], ["a", "b"])):
            first = self.ends[stream] + 1
            self.ends[stream] += self.random.randint(1, 3)
            payloads = [b"%s %d" % (stream.encode(), seq) for seq in range(first, self.ends[stream] + 1)]
            self.kept[stream].append(Run.of(stream, payloads, source="t").numbered(first, time=first))
        self.fanout.durable(dict(self.ends))

    def expire(self) -> None:
        """Let the oldest runs of a stream expire; the time of a run is its first number."""
        stream = self.random.choice("ab")
        starts = [*(run.first_seq for run in self.kept[stream]), self.ends[stream] + 1]
        self.oldest[stream] = self.random.choice([first for first in starts if first >= self.oldest[stream]])

    def subscribe(self) -> None:
        stream = self.random.choice("ab")
        start = self.random.randint(0, self.ends[stream])
        kind, subscriber = self.random.choice(KINDS)
        reader = kind(self, stream, start, subscriber)
        reader.owned = int(kind is ChattyClient)
        owner: Any = reader if reader.owned else None
        reader.cursor = self.fanout.subscribe(stream, start, self.ends[stream], reader, owner)
        self.readers.append(reader)
        self.count(reader, 0, 0)

    def count(self, reader: Chatty, messages: int, size: int) -> None:
        before = self.counted.get(reader.subscriber[0], (0, 0))
        self.counted[reader.subscriber[0]] = before[0] + messages, before[1] + size

    def leave(self, reader: Chatty) -> None:
        reader.cursor.stopProducing()
        self.left(reader)

    def left(self, reader: Chatty) -> None:
        self.expect(not reader.owned, "the owner does not know of the end")
        if reader in self.readers:
            self.readers.remove(reader)
            if reader.is_relay:
                self.count(reader, *reader.sent)

    def step(self) -> None:
        """Do something at random, perhaps while no record can be read."""
        random = self.random
        self.broken = random.choice((OSError(5, "no"), JournalCorrupt("damaged"))) if random.random() < 0.05 else None
        what = random.choice((*["publish", "subscribe", "turn", "resume", "resume"] * 3, *OTHER_STEPS))
        if what in ("publish", "subscribe", "expire", "settle"):
            {"publish": self.publish, "subscribe": self.subscribe, "expire": self.expire, "settle": self.settle}[what]()
        elif what == "turn":
            self.clock.advance(0)
        elif what == "forget":
            self.fanout.forget_stream(random.choice("ab"))
        elif self.readers:
            self.use(random.choice(self.readers), what)
        self.broken = None

    def use(self, reader: Chatty, what: str) -> None:
        if what == "resume":
            reader.paused = False
            reader.cursor.resumeProducing()
        elif what == "pause":
            reader.paused = True
            reader.cursor.pauseProducing()
        elif what == "leave":
            self.leave(reader)
        elif what == "end":
            reader.error = Forbidden("no longer")
            reader.cursor.end(reader.error)
        elif what == "bug":
            reader.error = RuntimeError("a turn of the subscription failed: bug")
            reader.cursor.failed(Failure(RuntimeError("bug")))
            assert reader.reason is not None, "the subscription goes on"
        else:
            reader.audience = self.random.randrange(4)
            reader.sent = (reader.sent[0] + 2, reader.sent[1] + 5)

    def settle(self) -> None:
        advance_until(lambda: not self.clock.getDelayedCalls(), self.clock, 0)
        for reader in self.readers:
            assert reader.paused or reader.next == self.ends[reader.stream] + 1, "a subscriber was left behind"

    def check(self) -> None:
        """Compare the figures of the fan-out with the table."""
        fanout = self.fanout
        assert not self.wrong, "; ".join(self.wrong)
        works = [work for queue in fanout.turns.waiting.values() for work in queue]
        assert len(works) == len(set(works)), "a subscription has two places in the queue"
        assert [cursor.sink for cursor in fanout.cursors] == self.readers, "other subscriptions, or in another order"
        for reader in self.readers:
            cursor = reader.cursor
            assert cursor.paused is reader.paused
            assert (cursor.position, cursor.delivered) == (reader.next - 1, reader.got)
            assert cursor.lag == self.ends[reader.stream] - cursor.position
            assert (cursor.audience, cursor.subscriber) == (
                reader.audience if reader.is_relay else 1,
                reader.subscriber,
            )
            assert cursor.closes_in == (reader.connection.closes_in if reader.owned else None)
        for stream in self.kept:
            there = [reader.cursor.audience for reader in self.readers if reader.stream == stream]
            assert fanout.subscribers(stream) == sum(there), f"other clients of stream {stream!r}"
        for protocol, counted in self.counted.items():
            tally = fanout.tallies[protocol]
            there = [reader.cursor.audience for reader in self.readers if reader.subscriber[0] == protocol]
            sent = [reader.sent for reader in self.readers if reader.subscriber[0] == protocol and reader.is_relay]
            assert (tally.messages, tally.bytes) == counted
            assert tally.delivered == tuple(map(sum, zip(counted, *sent, strict=True)))
            assert (tally.subscriptions, tally.subscribers) == (len(there), sum(there))


def run_schedule(seed: int) -> None:
    """Run random steps, then resume and end every subscription."""
    world = World(seed)
    for _ in range(60):
        world.step()
        world.check()
    for reader in [*world.readers]:
        world.use(reader, "resume")
    world.settle()
    world.check()
    for reader in world.readers[::2]:
        world.use(reader, "pause")
    closed = Closed("the server stops")
    for reader in world.readers:
        reader.error = closed
    world.subscribe()
    world.readers[-1].error = closed
    world.use(world.readers[-1], "resume")
    for _ in range(2):
        world.fanout.close(closed)
    assert all(reader.paused for reader in world.readers), "a subscription outlives the server"
    for reader in [*world.readers]:
        world.use(reader, "resume")
    world.check()
    assert not world.readers, "a subscription is left"
    assert not world.clock.getDelayedCalls(), "a turn is left"


@pytest.mark.parametrize("seed", range(0, 400, 40))
def test_random_schedules_of_subscribers_agree_with_a_plain_table(logged_errors: Any, seed: int) -> None:
    for number in range(seed, seed + 40):
        run_schedule(number)
    assert logged_errors.take(), "no sink has failed"


def test_the_schedules_of_subscribers_reach_every_branch(logged_errors: Any) -> None:
    with Ran(fanout) as ran:
        for seed in range(60):
            run_schedule(seed)
    assert logged_errors.take(), "no sink has failed"
    assert ran.never() == {
        "Cursor._take_back: return",
        "Fanout._share: self._recent_size -= self._recent.popitem(last=False)[1].siz",
    }, "other branches than that of the bound of the kept deliveries, which has a test of its own"
