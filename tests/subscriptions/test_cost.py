"""What a request costs does not depend on records, streams and subscriptions that it does not concern."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from types import FrameType
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock

from fyrehose.records import Run
from fyrehose.subscriptions.lane import MOST_ENDS, Draft, Lane
from fyrehose.subscriptions.pool import TURN, Item, LeasePool
from fyrehose.subscriptions.progress import STREAM, Creator, StreamProgress, SubscriptionOptions
from fyrehose.subscriptions.shared import MOST_ANSWERS, SharedSubscription
from fyrehose.subscriptions.table import CHECK
from tests.doubles.references import references

from .test_table import World as Table


class World:
    """A subscription of streams with *last* records each; what is appended is durable at once."""

    def __init__(self, *streams: str, last: int, **options: int) -> None:
        self.last = dict.fromkeys(streams, last)
        self.now = 0.0
        self.pool = LeasePool(SubscriptionOptions(stream="*", **options), self.append, lambda: self.now)
        for name in streams:
            self.pool.lanes[name] = self.lane(name)
        while not self.pool.lease("first", None, 1):
            pass

    def lane(self, stream: str) -> Lane:
        return Lane(stream, StreamProgress(), self.pool, lambda: (1, self.last[stream]))

    def append(self, draft: Draft) -> bool:
        self.pool.accept(draft)
        self.pool.durable(draft)
        return True

    def work_once(self, most: int = 100) -> int:
        """Lease records, settle them, and return how many they were; the first time, what is needed is appended."""
        leased = self.pool.lease("w", None, most) or self.pool.lease("w", None, most)
        actions = [Item("done", each.first, each.last, each.token, each.lane.stream) for each in leased]
        self.append(self.pool.act(actions, "w").draft)
        return sum(map(len, leased))


@contextmanager
def counted(folder: str) -> Iterator[Callable[[], int]]:
    """Count the calls of Python functions in files of *folder* in the meantime."""
    calls = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call" and folder in frame.f_code.co_filename

    before = sys.getprofile()
    gc.disable()  # A collection calls functions of others.
    sys.setprofile(profile)
    try:
        yield lambda: calls
    finally:
        sys.setprofile(before)
        gc.enable()


def calls_of(action: Callable[[], object], folder: str = "") -> int:
    with counted(folder) as calls:
        action()
        return calls()


def test_leasing_and_settling_100_records_takes_as_many_calls_as_10() -> None:
    world = World("s", last=1_000_000, window=100_000)
    world.work_once()
    hundred = calls_of(world.work_once)
    few = World("s", last=1_000_000, window=100_000, most=10)
    few.work_once()
    assert hundred == calls_of(few.work_once), "those of 10 records"


def test_a_million_records_behind_an_unsettled_one_slow_nothing_down() -> None:
    world = World("s", last=2_000_000, most=1_000)
    world.work_once()
    first = calls_of(world.work_once)
    for _ in range(9_997):
        assert world.work_once() == 100
    lane = world.pool.lanes["s"]
    assert (lane.progress.counts["settled"], lane.progress.final.floor) == (999_900, 0), "the first one is stuck"
    assert calls_of(world.work_once) == first
    assert len(lane.progress.final.above()) == 1
    assert len(lane.spans) == 1
    world.now = 29.0
    assert world.pool.act([Item("extend", 1, 1, (1, 1), "s")], "first").extended


def test_settled_records_take_no_memory_until_their_leases_would_have_ended() -> None:
    world = World("s", last=2_000_000, lease=3_600)
    lane = world.pool.lanes["s"]
    before = references(lane)
    for _ in range(1_000):
        world.work_once()
    for _ in range(1_000):
        (leased,) = world.pool.lease("w", None, 1)
        seq, token = leased.first, leased.token
        for kind in ("extend", "extend", "failed", "done"):
            item = Item(kind, seq, seq, token, "s", delay=86_400)
            world.append(world.pool.act([item], "w").draft)
    assert len(lane.spans) == 1
    assert references(lane) < before + 2_000, "less than two for each of what was leased"


def test_records_that_were_never_leased_cost_nothing() -> None:
    few, many = World("s", last=10_000), World("s", last=1_000_000_000)
    assert few.work_once() == many.work_once() == 100
    assert calls_of(few.work_once) == calls_of(many.work_once)


def test_a_request_visits_only_streams_in_which_something_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [f"s{number}" for number in range(1_000)]
    world = World(*streams, last=1, window=5_000)
    while world.work_once():
        pass
    visited: list[str] = []
    for name in ("lease", "due"):
        real = getattr(Lane, name)
        monkeypatch.setattr(Lane, name, lambda lane, *a, real=real: (visited.append(lane.stream), real(lane, *a))[1])
    assert world.pool.lease("w", None, 10) == []
    assert visited == []
    world.pool.lanes["s7"].arrived(2)
    assert world.work_once() == 1
    assert set(visited) == {"s7"}


def test_subscriptions_are_served_in_turn(ladder: Any) -> None:
    """Measured in answers to other requests; each worker settles what it has, and asks again."""
    table, subscriptions, rounds = Table(), ladder(50, 1_000), 4
    shares = [table.create(f"share-{number}", first=10) for number in range(subscriptions)]
    waits: list[int] = []
    answers = 0

    def ask(shared: Any, consumer: str) -> None:
        begun = answers

        def answered(found: Any) -> None:
            nonlocal answers
            answers += 1
            if found:
                waits.append(answers - begun)
                table.settle(shared, found)
                ask(shared, consumer)

        table.lease(shared, consumer=consumer, wait=300).addCallback(answered)

    for shared in shares:
        for number in range(10):
            ask(shared, f"w{number}")
    for _ in range(10 * rounds):
        table.publish(b"x")
        table.clock.advance(0)
    assert len(waits) == subscriptions * 10 * rounds
    assert max(waits) < 3 * median(waits)


def test_streams_of_many_records_are_read_once_for_several_answers() -> None:
    table = Table()
    table.publish(*[b"x"] * 1_000)
    shared = table.create()
    reads: list[int] = []
    table.journal.before_read = lambda stream, start: reads.append(start)
    for number in range(9):
        table.lease(shared, 100, f"w{number}")
    assert len(reads) <= 2


class Scattered:
    """A subscription, each second of whose 2,000 leased records is settled, so that each lease is a range of its own.

    What it writes is durable after :meth:`turn`.
    """

    def __init__(self, **options: Any) -> None:
        self.table = Table()
        self.table.publish(*[b"x"] * 2_000)
        self.shared = self.table.create(first=10, window=2_000, most=2_000, lease=60, **options)
        found = self.table.lease(self.shared, 2_000).result
        self.items = [Item("reject", seq, seq, found[0].lease.token, why="no") for seq in range(11, 2_011, 2)]
        self.shared.act([attrs.evolve(each, kind="done", why="") for each in self.items], "w")
        self.items = [attrs.evolve(each, first=each.first + 1, last=each.last + 1) for each in self.items]
        self.table.journal.auto = False

    def turn(self) -> None:
        """Make what was written durable, and let the subscription do the next part of its work."""
        self.table.journal.commit()
        self.table.clock.advance(0)

    def costs(self) -> list[int]:
        """Return the calls of Fyrehose in each turn until no record is leased."""
        costs: list[int] = []
        while left := self.shared.pool.leased:
            assert len(costs) < 100, f"{left} records stay leased"
            costs.append(calls_of(self.turn))
        return costs


def test_a_start_takes_few_calls_for_each_range_of_records_that_wait() -> None:
    scattered = Scattered()
    table = scattered.table
    table.journal.auto = True
    scattered.shared.act([attrs.evolve(each, kind="failed", why="") for each in scattered.items[:MOST_ENDS]], "w")
    table.table.close()
    assert calls_of(table.table.open, "/fyrehose/") < 24_000, "of 1,000 ranges, and of what was written last"
    assert len(table.table.find("work").tracks["s"].progress.ends) == MOST_ENDS


#: How many calls one turn of a subscription may take, also with the kernels in Python: about ten milliseconds.
TURN_CALLS = 26_000


@pytest.mark.parametrize("options", [{}, {"limit": 1, "dead": "dead"}])
def test_leases_that_end_together_end_in_short_turns(options: dict[str, Any]) -> None:
    scattered = Scattered(**options)
    first = calls_of(lambda: scattered.table.clock.advance(61))
    costs = scattered.costs()
    assert max(first, *costs) < TURN_CALLS
    assert len(costs) == 1_000 // MOST_ENDS - 1


def test_the_records_of_a_dead_worker_are_released_in_short_turns() -> None:
    scattered = Scattered()
    released: list[Any] = []
    first = calls_of(lambda: scattered.shared.release("w").addCallback(released.append))
    assert max(first, *scattered.costs()) < TURN_CALLS
    assert released == []
    scattered.turn()
    assert released == [1_000], "when the last part is durable"


def test_a_release_looks_at_a_part_of_the_leases_of_others_in_each_turn() -> None:
    world = World("s", last=5_000, window=5_000, most=5_000)
    for number in range(2 * TURN):
        world.pool.lease(f"w{number % 2}", None, 1)
    world.pool.lease("dead worker", None, 1)
    found = []
    for draft in world.pool.release("dead worker"):
        found.append(len(draft.changes))
        world.append(draft)
    assert found == [0, 0, 1]


def test_many_rejections_are_made_in_short_requests() -> None:
    scattered = Scattered(dead="dead")
    left, costs = scattered.items, list[int]()
    while left:
        answers: list[Any] = []
        costs.append(calls_of(lambda: scattered.shared.act(left, "w").addCallback(answers.append)))  # noqa: B023
        scattered.turn()
        left = [item for item, why in answers[0].refused if why == "later"]
    assert max(costs) < TURN_CALLS
    assert len(costs) == 1_000 // MOST_ENDS


def test_streams_that_have_no_room_cost_a_pattern_nothing() -> None:
    """One tenant may have 10,000 streams, and half of all places for patterns that match each of them."""
    table = Table(named_subscriptions=40)
    creator = Creator(host="10.0.0.1")
    options = SubscriptionOptions(stream="evil.*", pattern=True, creator=creator)
    patterns = [table.table.create(f"evil-{number}", options).result for number in range(20)]
    costs: list[int] = []
    for count in (100, 1_000):
        for number in range(count):
            table.broker.publish([Run.of(f"evil.{count}-{number}", [b"x"], source="test")])
        costs.append(calls_of(lambda: table.clock.advance(CHECK)))
    assert [each.left_out for each in patterns] == [1_100] * 20
    assert costs[1] < costs[0] + 500


def test_a_pattern_of_many_streams_is_created_in_short_turns() -> None:
    clock = TurningClock()
    table = Table(clock=clock, named_subscriptions=10_000)
    for part in range(4):
        table.broker.publish([Run.of(f"logs.{part}-{number}", [b"x"], source="test") for number in range(500)])
    named = table.broker.named
    options = SubscriptionOptions(stream="logs.*", pattern=True)
    made: list[Any] = []
    costs = [calls_of(lambda: made.append(named.create("work", options, 1)), "/fyrehose/")]
    same = named.create("work", options, 1)
    costs += clock.turns([made[0], same])
    assert same.result is made[0].result
    assert len(made[0].result.pool.lanes) == 2_000
    assert max(costs) < TURN_CALLS


class TurningClock(Clock):
    """A clock on which what is to run as soon as possible runs in a turn of its own, after that which asked for it."""

    def callLater(self, when: float, *call: Any, **arguments: Any) -> Any:
        return super().callLater(max(when, 0.001), *call, **arguments)

    def turns(self, waiting: list[Any]) -> list[int]:
        """Return the calls of Fyrehose in each turn until all Deferreds of *waiting* have fired."""
        costs: list[int] = []
        while not all(each.called for each in waiting):
            costs.append(calls_of(lambda: self.advance(0.001), "/fyrehose/"))  # The clock sorts for each call.
        return costs


@pytest.mark.parametrize("end", ["records", "deadline", "deletion"])
def test_requests_that_wait_are_answered_in_short_turns(end: str) -> None:
    table = Table(clock=(clock := TurningClock()))
    shared = table.create(first=10, window=10_000)
    waiting = [table.lease(shared, consumer=f"w{number}", wait=0.01) for number in range(500)]
    costs: list[int] = []
    if end == "records":
        costs.append(calls_of(lambda: table.publish(*[b"x"] * 500)))
    elif end == "deletion":
        costs.append(calls_of(lambda: table.table.delete(shared)))
    for each in waiting:
        each.addErrback(lambda _: None)
    costs += clock.turns(waiting)
    assert len(costs) > 500 // MOST_ANSWERS // 2
    assert max(costs) < TURN_CALLS


def test_one_record_wakes_many_subscriptions_in_short_turns() -> None:
    table = Table(clock=(clock := TurningClock()))
    shares = [table.create(f"share-{number}", first=10) for number in range(500)]
    waiting = [table.lease(each, wait=30) for each in shares]
    costs = [calls_of(lambda: table.publish(b"x"))]
    assert max(costs + clock.turns(waiting)) < TURN_CALLS


def test_many_records_of_one_key_take_few_appends_and_short_turns() -> None:
    clock = TurningClock()
    table = Table(clock=clock)
    table.broker.publish([Run.of("s", [b""] * 5_000, source="test", producer="p")])
    table.create(first=10, window=10_000, key="producer")
    table.table.close()
    for _ in range(2):
        world, journal = Table(table.journal, clock), table.journal
        found = world.table.find("work")
        assert isinstance(found, SharedSubscription)
        journal.auto, appended = False, journal.bounds(STREAM)[1]
        for consumer in "ab":
            world.lease(found, consumer=consumer, wait=100)
        reads = list[int]()
        journal.before_read = lambda stream, start, reads=reads: reads.append(start)
        costs = [calls_of(lambda: (journal.commit(), clock.advance(0.001)), "/fyrehose/") for _ in range(100)]  # noqa: B023
        assert found.pool.open == 5_000
        assert max(costs) < TURN_CALLS // 5
        assert len(reads) < 5, "one for many portions"
        assert journal.bounds(STREAM)[1] - appended < 30
        world.table.close()
        journal.commit()


def test_a_deleted_subscription_leases_nothing_to_requests_that_still_wait() -> None:
    """They are refused in turns, and its state may be that of another one by then."""
    table = Table(clock=(clock := TurningClock()))
    shared = table.create(first=0)
    shared.pause(True)
    waiting = [table.lease(shared, consumer=f"w{number}", wait=30) for number in range(2 * MOST_ANSWERS)]
    table.journal.auto = False
    shared.pause(False)
    table.table.delete(shared)
    table.journal.commit()
    appended = table.journal.bounds(STREAM)[1]
    for each in waiting:
        each.addErrback(lambda _: "refused")
    clock.turns(waiting)
    assert [each.result for each in waiting] == ["refused"] * 2 * MOST_ANSWERS
    table.journal.commit()
    assert table.journal.bounds(STREAM)[1] == appended
