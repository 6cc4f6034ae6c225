"""How far named subscriptions are behind, in records and in seconds."""

from __future__ import annotations

from typing import Any

from fyrehose.net.turns import SteppedWork
from fyrehose.subscriptions.description import describe
from fyrehose.subscriptions.lags import LOOKS
from fyrehose.subscriptions.table import CHECK
from tests.subscriptions import worlds


class World(worlds.World):
    """A broker with ten records in each of two streams, at second 1; it is second 5."""

    streams = ("logs.a", "logs.b")

    def __init__(self) -> None:
        super().__init__()
        self.table.now = lambda: 5_000_000


def test_lag_counts_records_and_the_age_of_the_oldest() -> None:
    world = World()
    named = world.open(stream="logs.a")
    assert world.table.lags.of(named) == (10, None)
    world.clock.advance(CHECK)
    assert world.table.lags.of(named) == (10, 4.0)
    world.named.acknowledge(named, 10)
    assert world.table.lags.of(named) == (0, 0.0)
    assert describe(named)["lag_seconds"] == 0.0


def test_records_that_retention_deleted_are_no_lag_and_have_no_age() -> None:
    world = World()
    named = world.open(stream="logs.a")
    world.clock.advance(CHECK)
    world.journal.now = lambda: 4_000_000
    world.publish(5, "logs.a")
    world.journal.forget("logs.a", 11)
    world.clock.advance(CHECK)
    assert world.table.lags.of(named) == (5, 1.0)
    world.journal.empty("logs.a")
    world.clock.advance(CHECK)
    assert world.table.lags.of(named) == (0, 0.0)


def test_the_lag_of_a_pattern_is_the_sum_and_the_largest_age() -> None:
    world = World()
    named = world.open(stream="logs.*", pattern=True)
    assert world.table.lags.of(named) == (20, None)
    world.clock.advance(CHECK)
    assert world.table.lags.of(named) == (20, 4.0)
    world.named.acknowledge(named, {"logs.a": 10, "logs.b": 9})
    shown: dict[str, Any] = SteppedWork(world.table.turns, world.named.show(named)).begin().result
    assert (shown["kind"], shown["stream"], shown["streams"], shown["lag"]) == ("pattern", "logs.*", 2, 1)
    assert shown["positions"] == {
        "logs.a": {"position": 10, "lag": 0, "lag_seconds": 0.0},
        "logs.b": {"position": 9, "lag": 1, "lag_seconds": 4.0},
    }
    assert "positions" not in describe(named)


def test_one_check_reads_a_limited_number_of_streams_and_the_next_continues() -> None:
    world = World()
    for number in range(LOOKS):
        world.publish(1, f"logs.{number}")
    named = world.open(stream="logs.*", pattern=True)
    world.clock.advance(CHECK)
    assert len(named.oldest) == LOOKS
    world.clock.advance(CHECK)
    assert len(named.oldest) == LOOKS + 2


def test_age_of_the_oldest_record_is_dropped_when_everything_is_acknowledged() -> None:
    world = World()
    named = world.open(stream="logs.*", pattern=True)
    world.clock.advance(CHECK)
    world.named.acknowledge(named, {"logs.a": 10, "logs.b": 10})
    world.clock.advance(CHECK)
    assert named.oldest == {}
