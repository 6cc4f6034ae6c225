"""Exclusive subscriptions: their positions move when that is durable, and never back except by rewinding."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import (
    JournalCorrupt,
    SubscriptionConflict,
    SubscriptionError,
    SubscriptionInUse,
    TooManyNamedSubscriptions,
)
from fyrehose.interfaces import FileLag
from fyrehose.records import Run
from fyrehose.subscriptions.progress import STREAM, Creator, SubscriptionOptions
from fyrehose.subscriptions.table import CHECK
from tests.subscriptions.worlds import World, refusal


def create(world: World, name: str, host: str) -> Any:
    """Let the peer at *host* create an exclusive subscription."""
    return world.table.create(name, SubscriptionOptions(stream="s", ack="all", creator=Creator(host=host)))


def test_a_closed_broker_checks_nothing_any_more() -> None:
    world = World()
    world.open()
    assert world.clock.getDelayedCalls()
    world.broker.close()
    assert not world.clock.getDelayedCalls()


@pytest.mark.parametrize(("after", "begin"), [(0, 0), (4, 4), (None, 10), (99, 0)])
def test_a_new_subscription_begins_where_the_peer_says(after: int | None, begin: int) -> None:
    assert World().open(after=after).seq == begin


def test_acknowledgements_during_a_write_are_written_together() -> None:
    world = World()
    named = world.open()
    world.journal.auto = False
    answered: list[int] = []
    for seq in (*range(1, 10), 9, 3):  # those of before are answered with what waits
        world.named.acknowledge(named, seq).addCallback(lambda _, seq=seq: answered.append(seq))
    assert answered == []
    world.journal.commit()
    assert answered == [1]
    world.journal.commit()
    assert sorted(answered) == [1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 9]
    assert world.journal.bounds(STREAM)[1] == 3  # created, 1, 9


def test_a_subscription_belongs_to_one_stream() -> None:
    world = World()
    world.open()
    assert isinstance(refusal(world.named.open("n", "other", 0)), SubscriptionConflict)


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", ".a", "a/b", "a.new", "ä"])
def test_invalid_names_are_refused(name: str) -> None:
    assert isinstance(refusal(World().named.open(name, "s", 0)), SubscriptionError)


def test_the_name_of_a_program_that_reads_the_files_is_refused() -> None:
    world = World()
    world.journal.keeper.kept.append(FileLag("archive", 5, 6))
    assert isinstance(refusal(world.named.open("archive", "s", 0)), SubscriptionInUse)


def test_the_number_of_subscriptions_is_limited() -> None:
    world = World(named_subscriptions=4)
    for name in ("a", "b", "c", "d"):
        create(world, name, "10.0.0.1" if name < "c" else "10.0.0.2")
    assert isinstance(refusal(create(world, "e", "10.0.0.3")), TooManyNamedSubscriptions)
    world.named.delete(world.named.find("d"))
    assert "2 of them by 10.0.0.1" in str(refusal(create(world, "e", "10.0.0.1")))
    assert create(world, "e", "10.0.0.2").result


def test_the_memory_of_subscriptions_is_limited() -> None:
    world = World()
    world.broker.budget.keep(world.broker.budget.limit // 2)
    assert "server.memory" in str(refusal(world.named.open("n", "s", 0)))


@pytest.mark.slow
def test_a_checkpoint_is_written_when_enough_was_written() -> None:
    world = World()
    named = world.open()
    world.publish(5_000)
    for seq in range(1, 5_000):
        world.named.acknowledge(named, seq)
    assert world.journal.bounds(STREAM)[1] == 5_000
    assert sum(len(run.payload) for run in world.journal.read(STREAM, 1, 1 << 30)) > world.table.stream.checkpoint_bytes
    world.clock.advance(CHECK)
    world.named.acknowledge(named, 5_001)
    world.journal.forget(STREAM, 5_001)
    assert world.restarted().open().seq == 5_001


def test_a_checkpoint_is_written_again_when_its_segment_is_sealed() -> None:
    world = World()
    world.open()
    world.journal.keeper.sealed = True
    pinned = next(world.table.unread())
    assert (pinned.stream, pinned.seq, pinned.pinned) == (STREAM, 0, True)
    world.clock.advance(CHECK)
    assert next(world.table.unread()).seq == 1


def test_a_subscription_that_has_read_everything_counts_as_active() -> None:
    world = World()
    behind, done = world.open("behind"), world.open("done", after=None)
    created = behind.active
    world.table.now = lambda: created + 10**9
    world.clock.advance(CHECK)
    assert (behind.active, done.active) == (created, created + 10**9)


def test_damaged_records_stop_the_start() -> None:
    world = World()
    world.broker.publish([], [Run.of(STREAM, [b"{}"], source="server-subscriptions")])
    with pytest.raises(JournalCorrupt, match=r"stream \.subscriptions"):
        Broker(Clock(), world.journal, Sequencer()).table.open()
