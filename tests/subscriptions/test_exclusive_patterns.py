"""Exclusive subscriptions of patterns: a position in each stream that matches, also in those that are created later."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from fyrehose.broker.guard import Guard
from fyrehose.broker.policy import parse
from fyrehose.broker.quotas import ENTRY, PLACE
from fyrehose.errors import (
    Forbidden,
    InvalidPattern,
    InvalidPosition,
    SubscriptionConflict,
    TooManyNamedSubscriptions,
)
from fyrehose.identity import Identity
from fyrehose.interfaces import JournalState
from fyrehose.subscriptions.progress import STREAM, Creator, SubscriptionOptions
from fyrehose.subscriptions.table import CHECK
from tests.subscriptions import worlds
from tests.subscriptions.worlds import refusal


class World(worlds.World):
    """A broker with ten records in each of "logs.a", "logs.b" and "other"."""

    streams = ("logs.a", "logs.b", "other")

    def open(self, after: int | None = 0, pattern: str = "logs.*", name: str = "n") -> Any:  # type: ignore[override]
        return super().open(name, pattern, after, pattern=True)


def create(world: World, name: str, pattern: str, floors: dict[str, int], host: str = "") -> Any:
    """Let the peer at *host*, or the server itself, create an exclusive subscription of a pattern."""
    options = SubscriptionOptions(stream=pattern, pattern=True, ack="all", creator=Creator(host=host))
    return world.table.create(name, options, lambda stream: floors.get(stream, 0))


def create_single(world: World, name: str, host: str) -> Any:
    options = SubscriptionOptions(stream="other", ack="all", creator=Creator(host=host))
    return world.table.create(name, options)


@pytest.mark.parametrize(("after", "begin"), [(0, 0), (4, 4), (None, 10), (99, 10)])
def test_a_new_subscription_begins_in_each_stream_that_matches(after: int | None, begin: int) -> None:
    assert World().open(after).places == {"logs.a": begin, "logs.b": begin}


def test_acknowledgement_in_the_callback_of_an_earlier_one_loses_none_that_wait() -> None:
    world = World()
    named = world.open()
    world.journal.auto = False
    answered: list[Any] = []
    first = world.named.acknowledge(named, {"logs.a": 1})
    world.named.acknowledge(named, {"logs.a": 5}).addCallback(answered.append)
    first.addCallback(lambda _: world.named.acknowledge(named, {"logs.b": 2}).addCallback(answered.append))
    for _ in range(3):
        world.journal.commit()
    assert (len(answered), named.places) == (2, {"logs.a": 5, "logs.b": 2})
    assert world.restarted().open().places == {"logs.a": 5, "logs.b": 2}


def test_a_change_holds_only_the_numbers_that_moved() -> None:
    world = World()
    named = world.open(after=5)
    world.named.acknowledge(named, {"logs.b": 6})
    last = world.journal.read(STREAM, world.journal.bounds(STREAM)[1], 1)[0]
    assert b'"stream":"logs.b","final":[6]' in bytes(last.payload)


def test_rewinding_sets_the_positions_of_all_streams_or_of_named_ones() -> None:
    world = World()
    named = world.open(after=5)
    generation = named.epoch
    world.named.rewind(named, None)
    assert named.places == {"logs.a": 10, "logs.b": 10}
    world.named.rewind(named, {"logs.a": 2})
    assert named.places == {"logs.a": 2, "logs.b": 10}
    assert isinstance(refusal(world.named.acknowledge(named, {"logs.a": 5}, generation)), InvalidPosition)
    world.named.rewind(named, 0)
    assert world.restarted().open().places == {"logs.a": 0, "logs.b": 0}


def test_a_pattern_is_not_the_stream_of_the_same_name() -> None:
    world = World()
    world.open()
    assert isinstance(refusal(world.named.open("n", "logs.*", 0)), SubscriptionConflict)
    assert isinstance(refusal(world.named.open("n", "logs.a*", 0, pattern=True)), SubscriptionConflict)
    world.named.open("single", "logs.*", 0)
    assert "not of pattern" in str(refusal(world.named.open("single", "logs.*", 0, pattern=True)))


def test_retention_keeps_the_streams_of_a_pattern() -> None:
    world = World()
    named = world.open()
    world.named.acknowledge(named, {"logs.a": 4})
    world.publish(1, "logs.c")
    unread = {(each.stream, each.seq) for each in world.table.unread() if not each.pinned}
    assert unread == {("logs.a", 4), ("logs.b", 0), ("logs.c", 0)}


def test_each_stream_of_a_pattern_counts_for_the_limit() -> None:
    world = World(named_subscriptions=4)
    named = world.open()
    world.publish(1, "logs.c")
    world.publish(1, "logs.d")
    assert set(named.places) == {"logs.a", "logs.b", "logs.c"}
    assert isinstance(refusal(world.named.open("m", "other", 0)), TooManyNamedSubscriptions)
    assert "is not one of" in str(refusal(world.named.acknowledge(named, {"logs.d": 1})))


def test_a_peer_may_not_use_up_the_limit_with_a_pattern() -> None:
    world = World(named_subscriptions=4)
    named = create(world, "n", "logs.*", {"logs.a": 4, "logs.b": 5}, "10.0.0.1").result
    assert (named.places, named.left_out) == ({"logs.a": 4}, 1)
    world.table.room.change(9)
    world.clock.advance(CHECK)
    assert (named.places, named.left_out) == ({"logs.a": 4, "logs.b": 5}, 0)


def calls(action: Callable[[], object]) -> int:
    """Return how many functions *action* calls."""
    count = 0

    def called(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


def subscribed(count: int, pattern: str) -> World:
    """Return a world with *count* subscriptions of patterns; ``{}`` is the number of each."""
    world = World(named_subscriptions=10_000)
    for number in range(count):
        world.open(None, pattern.format(number), f"n{number}")
    return world


def test_a_new_stream_costs_a_few_calls_for_each_subscription_whose_pattern_matches() -> None:
    world = subscribed(1_000, "x*")
    assert calls(lambda: world.table.stream_created("x.1")) < 15_000
    assert len(world.table.entries["n999"].places) == 1


def test_a_new_stream_costs_nothing_for_patterns_of_other_names() -> None:
    few, many = subscribed(10, "logs-{}.*"), subscribed(1_000, "logs-{}.*")
    costs = [calls(lambda world=world: world.table.stream_created("orders")) for world in (few, many)]
    assert costs[1] < costs[0] + 10


def test_a_pattern_in_the_journal_is_kept_even_beyond_the_bounds_of_peers() -> None:
    world, evil = World(), "*" * 1_000 + "!"
    create(world, "evil", evil, {"logs.a": 3})
    create(world, "stars", "*l*o*g*s*." + "*" * 9, {"logs.b": 4})
    again = world.restarted()
    assert again.table.entries["stars"].places == {"logs.a": 0, "logs.b": 4}
    again.publish(1, "l-o-g-s-.!")
    assert again.table.entries["evil"].places == {"l-o-g-s-.!": 0}
    assert isinstance(refusal(again.named.open("n", evil, 0, pattern=True)), InvalidPattern)
    again.named.delete(again.named.find("evil"))
    assert "evil" not in again.restarted().table.entries


@pytest.mark.parametrize("seed", range(10))
def test_the_counter_of_room_equals_the_sum_over_all_subscriptions(seed: int) -> None:
    dice = random.Random(seed)
    world = World(named_subscriptions=20)
    world.journal.auto = False
    table, room = world.table, world.table.room
    for step in range(300):
        name, creator = f"n{dice.randint(0, 5)}", f"10.0.0.{dice.randint(1, 2)}"
        match dice.randint(0, 6):
            case 0:
                pattern = dice.choice(["logs.*", "*"])
                create(world, name, pattern, {"logs.a": 0}, creator).addErrback(lambda failure: None)
            case 1:
                create_single(world, name, creator).addErrback(lambda failure: None)
            case 2 if name in table.entries:
                table.delete(table.entries[name]).addErrback(lambda failure: None)
            case 3:
                world.publish(1, f"logs.{step}")
                world.journal.commit()
            case 4 if dice.random() < 0.2:
                gone = [stream for stream in world.journal.ends() if stream.startswith("logs.")]
                world.broker.retire(gone[:3]).addErrback(lambda failure: None)
                world.journal.commit()
                world.clock.advance(CHECK)
            case 5 if dice.random() < 0.1:
                world.journal.enter(JournalState.READ_ONLY, "full")
                create_single(world, name, creator).addErrback(lambda failure: None)
                world.journal.enter(JournalState.WRITABLE, "room")
            case _:
                world.journal.commit()
        used = Counter({each.options.creator.network: 0 for each in table.entries.values()})
        for each in table.entries.values():
            used[each.options.creator.network] += 1 + (len(each.tracks) if each.pattern else 0)
        assert (room.counts.used, {each: room.counts.used_by(each) for each in used}) == (used.total(), used)
        sizes = [each.memory + (PLACE * len(each.tracks) if each.pattern else 0) for each in table.entries.values()]
        assert world.broker.budget.kept == ENTRY * len(sizes) + sum(sizes)


def test_a_position_in_the_journal_is_kept_even_above_the_limit() -> None:
    world = World()
    world.named.acknowledge(world.open(), {"logs.a": 3, "logs.b": 4})
    world.table.close()
    again = World(world.journal, named_subscriptions=1)
    assert again.open().places == {"logs.a": 3, "logs.b": 4}


def test_the_position_in_a_stream_that_was_retired_is_forgotten() -> None:
    world = World()
    named = world.open()
    world.named.acknowledge(named, {"logs.a": 3, "logs.b": 4})
    world.broker.retire(["logs.a"])
    world.clock.advance(CHECK)
    assert named.places == {"logs.b": 4}
    assert world.broker.budget.kept == ENTRY + PLACE
    world.publish(1, "logs.a")
    assert named.places == {"logs.a": 10, "logs.b": 4}
    world.named.acknowledge(named, {"logs.a": 11})
    assert world.restarted().open().places == {"logs.a": 11, "logs.b": 4}


def test_a_stream_that_is_being_created_is_not_forgotten() -> None:
    world = World()
    named = world.open()
    world.journal.auto = False
    world.publish(1, "logs.c")
    world.clock.advance(CHECK)
    world.journal.commit()
    assert "logs.c" in named.places


def test_a_subscription_that_is_being_deleted_is_created_again_with_a_pattern() -> None:
    world = World()
    named = world.open(after=3)
    world.journal.auto = False
    world.named.delete(named)
    again: list[Any] = []
    world.named.open("n", "logs.b*", 7, pattern=True).addCallback(again.append)
    world.journal.commit()
    assert again[0].places == {"logs.b": 7}
    assert world.restarted().open(pattern="logs.b*").places == {"logs.b": 7}


def test_a_pattern_requires_the_rights_for_all_that_it_matches() -> None:
    rules = [{"network": "10.0.0.1", "subscribe": "*", "consume": "logs.*"}]
    world = World(guard=Guard(parse({"allow": rules})))
    named = world.broker.identified(Identity(host="10.0.0.1")).named
    assert isinstance(refusal(named.open("n", "*", 0, pattern=True)), Forbidden)
    assert isinstance(refusal(named.open("n", "log*", 0, pattern=True)), Forbidden)
    assert named.open("n", "logs.a*", 0, pattern=True).result.places == {"logs.a": 0}
