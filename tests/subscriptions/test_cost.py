"""What a request costs does not depend on records, streams and subscriptions that it does not concern."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from types import FrameType
from typing import Any

import pytest

from fyrehose.subscriptions.lane import Draft, Lane
from fyrehose.subscriptions.pool import Item, LeasePool
from fyrehose.subscriptions.progress import StreamProgress, SubscriptionOptions
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
def counted() -> Iterator[Callable[[], int]]:
    """Count the calls of Python functions in the meantime."""
    calls = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    gc.disable()  # A collection calls functions of others.
    sys.setprofile(profile)
    try:
        yield lambda: calls
    finally:
        sys.setprofile(before)
        gc.enable()


def calls_of(action: Callable[[], object]) -> int:
    with counted() as calls:
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
    world.last["s7"] += 1
    world.pool.lanes["s7"].stir()
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
