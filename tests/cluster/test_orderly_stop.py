"""The stop of a member: it begins once, and in time."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from fyrehose.cluster.orderly_stop import PATIENCE, OrderlyStop


@attrs.define
class World:
    """A stop that lasts until the test ends it."""

    clock: Clock = attrs.field(factory=Clock)
    stopping: list[Deferred[None]] = attrs.field(factory=list)
    stop: OrderlyStop = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.stop = OrderlyStop(self.clock, self.job)

    async def job(self) -> None:
        self.stopping.append(Deferred())
        await self.stopping[-1]

    def perform(self) -> list[Any]:
        """Stop; return a list that gets a value when the stop has ended."""
        ended: list[Any] = []
        Deferred.fromCoroutine(self.stop.perform()).addCallback(ended.append)
        return ended


def test_an_expected_stop_begins_when_the_patience_is_over() -> None:
    world = World()
    world.stop.expect()
    world.clock.advance(1)
    world.stop.expect()
    world.clock.advance(PATIENCE - 1.1)
    assert len(world.stopping) == 0
    world.clock.advance(0.2)
    assert len(world.stopping) == 1, "PATIENCE seconds after it was first expected"


def test_a_stop_that_was_expected_waits_for_what_has_begun() -> None:
    world = World()
    world.stop.expect()
    world.clock.advance(PATIENCE)
    ended = world.perform()
    assert (len(world.stopping), ended) == (1, [])
    world.stopping[0].callback(None)
    assert ended == [None]


def test_a_stop_does_not_wait_for_the_patience_and_leaves_no_timer() -> None:
    world = World()
    world.stop.expect()
    world.perform()
    assert len(world.stopping) == 1
    assert not world.clock.getDelayedCalls()


def test_appends_are_waited_for_until_the_patience_is_over_since_the_stop_was_expected() -> None:
    world = World()
    world.clock.advance(10)
    assert world.stop.deadline == 10 + PATIENCE
    world.stop.expect()
    world.clock.advance(1)
    assert world.stop.deadline == 10 + PATIENCE


def test_a_member_that_was_stopped_may_be_stopped_again() -> None:
    world = World()
    for number in (1, 2):
        ended = world.perform()
        assert len(world.stopping) == number
        world.stopping[-1].callback(None)
        assert ended == [None]
