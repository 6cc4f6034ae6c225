"""Requests of workers: turns of streams, repetitions, all or nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from fyrehose.subscriptions.lane import Group, Lane, LaneChange
from fyrehose.subscriptions.progress import ShareOptions, StreamProgress
from fyrehose.subscriptions.work import MOST_CONSUMERS, Item, Leased, Work


class World:
    """A subscription of streams with ten records each; batches are durable at once."""

    def __init__(self, *streams: str, most: int = 100, window: int = 1_000) -> None:
        self.now = 0.0
        options = ShareOptions(stream="*", pattern=True, lease=10, most=most, window=window)
        self.group = Group(options, self.append, lambda: self.now)
        lanes = {name: Lane(self.group, name, StreamProgress(), lambda: (1, 10)) for name in streams or ("s",)}
        self.work = Work(self.group, OrderedDict(lanes))

    def append(self, batches: Sequence[LaneChange]) -> None:
        for batch in batches:
            self.group.committed(batch)

    def lease(self, most: int, request: int | None = None, consumer: str = "w") -> list[Leased]:
        for _ in range(3):
            found = self.work.lease(consumer, request, most)
            if found:
                return found
        return []


def items(kind: str, leased: Sequence[Leased]) -> list[Item]:
    return [Item(kind, seq, seq, each.token, each.lane.stream) for each in leased for seq in numbers([each])]


def numbers(leased: Sequence[Leased]) -> list[int]:
    return [seq for each in leased for seq in range(each.first, each.last + 1)]


def test_streams_take_turns() -> None:
    world = World("a", "b", "c")
    for _ in range(3):
        world.lease(3)
    assert {each.lane.stream: len(each) for each in world.lease(6)} == {"a": 2, "b": 2, "c": 2}


def test_a_consumer_holds_at_most_its_share() -> None:
    world = World(most=3)
    assert numbers(world.lease(9)) == [1, 2, 3]
    assert world.lease(9) == []
    assert numbers(world.lease(9, consumer="x")) == [4, 5, 6]


def test_a_repeated_request_gets_the_same_leases_as_long_as_they_last() -> None:
    world = World()
    first = world.lease(3, request=1)
    world.now = 6.0
    assert world.lease(3, request=1) == first
    world.now = 12.0
    world.work.act([], "w")
    outcome = world.work.act(items("done", first)[:1], "w")
    world.append(outcome.batches)
    assert numbers(world.lease(3, request=1)) == [2, 3], "the repetition has renewed them"
    assert numbers(world.lease(1, request=2)) == [4]


def test_only_the_last_requests_of_the_latest_consumers_are_remembered() -> None:
    world = World()
    world.lease(1, request=1, consumer="first")
    for number in range(MOST_CONSUMERS):
        world.work._requests[f"{number}"] = (1, [])
    world.lease(1, request=1, consumer="last")
    assert "first" not in world.work._requests


def test_a_request_with_results_does_nothing_if_one_record_is_refused() -> None:
    world = World()
    first, second = items("done", world.lease(2))
    bad = Item("done", second.first, second.last, (7, 7), "s")
    outcome = world.work.act([first, bad], "w", whole=True)
    assert (outcome.batches, outcome.refused) == ([], [(bad, "lease-lost")])
    outcome = world.work.act([first, bad], "w")
    assert ([batch.settled for batch in outcome.batches], outcome.refused) == ([[(1, 1)]], [(bad, "lease-lost")])


def test_only_the_part_of_a_range_that_cannot_be_settled_is_refused() -> None:
    world = World()
    world.lease(6)
    world.append(world.work.act([Item("failed", 2, 2, (1, 1), "s", delay=0.0)], "w").batches)
    world.lease(1, consumer="x")
    outcome = world.work.act([Item("done", 1, 8, (1, 1), "s")], "w")
    assert [batch.settled for batch in outcome.batches] == [[(1, 1), (3, 6)]]
    refused = [(item.first, item.last, why) for item, why in outcome.refused]
    assert refused == [(2, 2, "lease-lost"), (7, 7, "lease-lost"), (8, 8, "lease-lost")]
    assert world.group.late == 3


def test_settling_records_of_several_streams_is_appended_together() -> None:
    world = World("a", "b")
    world.lease(2)
    outcome = world.work.act(items("done", world.lease(4)), "w")
    assert sorted(batch.lane.stream for batch in outcome.batches if batch.lane) == ["a", "b"]


def test_a_second_action_on_the_same_record_in_a_request_is_refused() -> None:
    world = World()
    leased = world.lease(1)
    outcome = world.work.act([*items("done", leased), *items("failed", leased)], "w")
    assert [batch.settled for batch in outcome.batches] == [[(1, 1)]]
    assert [(item.kind, why) for item, why in outcome.refused] == [("failed", "being-settled")]


def test_the_end_of_a_lease_that_cannot_be_written_is_tried_once_at_each_tick() -> None:
    world = World()
    world.lease(2)
    tried: list[LaneChange] = []

    def refuse(batches: Sequence[LaneChange]) -> None:
        tried.extend(batches)
        for batch in batches:
            world.group.undone(batch)

    world.group.append = refuse
    world.now = 20.0
    assert [numbers(world.work.lease("x", None, 1)) for _ in range(3)] == [[3], [4], [5]]
    assert 3 <= len(tried) <= 6
    world.group.append = world.append
    world.work.tick()
    assert world.work.lanes["s"].entries[1].ended == (1, 1)


def test_refusals_are_counted() -> None:
    world = World()
    leased = world.lease(1)
    world.append(world.work.act(items("done", leased), "w").batches)
    assert world.work.act(items("extend", leased), "w").refused[0][1] == "final"
    assert world.group.late == 1


def test_deleted_records_fill_the_window_until_their_end_is_written() -> None:
    world = World("a", "b", window=4)
    assert {each.lane.stream for each in world.lease(2)} == {"b"}
    lane = world.work.lanes["a"]

    def refuse(batches: Sequence[LaneChange]) -> None:
        for batch in batches:
            world.group.undone(batch)

    world.group.append = refuse
    lane.bounds = lambda: (3, 10)
    lane.tick()
    assert (lane.seen, world.group.room()) == (2, 0), "2 are leased, and 2 that were deleted are not final"
    world.group.append = world.append
    lane.tick()
    assert world.group.room() == 2
    world.group.append = refuse
    lane.bounds = lambda: (5, 10)
    lane.tick()
    lane.abandon()
    assert world.group.room() == 2, "only the records of b are left"
