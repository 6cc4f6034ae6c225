"""Jobs of a member: one of each name at a time, and no failure is lost."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from fyrehose.cluster.jobs import Jobs
from fyrehose.cluster.shared_log import Unavailable


@attrs.define
class World:
    """Jobs that wait until the test ends them, in the order in which they began."""

    waiting: list[Deferred[None]] = attrs.field(factory=list)
    unavailable: list[str] = attrs.field(factory=list)
    failures: list[Failure] = attrs.field(factory=list)
    jobs: Jobs = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.jobs = Jobs(self.unavailable.append, self.failures.append)

    async def job(self) -> None:
        self.waiting.append(Deferred())
        await self.waiting[-1]

    def begin(self, name: str) -> int:
        """Begin a job; return how many have begun so far."""
        self.jobs.begin(name, self.job)
        return len(self.waiting)


def test_a_job_begins_only_when_the_last_one_of_its_name_has_ended() -> None:
    world = World()
    assert [world.begin(name) for name in ("read", "read", "ask")] == [1, 1, 2]
    world.waiting[0].callback(None)
    assert world.begin("read") == 3


def test_a_job_that_has_failed_may_begin_again_and_its_failure_is_reported() -> None:
    world = World()
    world.begin("read")
    world.waiting[0].errback(ValueError("a bug"))
    assert [str(failure.value) for failure in world.failures] == ["a bug"]
    assert world.begin("read") == 2


def test_a_shared_log_that_does_not_answer_is_no_failure() -> None:
    world = World()
    world.begin("read")
    world.waiting[0].errback(Unavailable("no answer"))
    assert (world.unavailable, world.failures) == (["no answer"], [])


def test_waiting_for_a_job_ends_with_the_job_even_if_that_fails() -> None:
    world = World()
    over: list[Any] = []
    Deferred.fromCoroutine(world.jobs.over("act")).addCallback(over.append)
    assert over == [None], "none is under way"
    world.begin("act")
    for _ in range(2):
        Deferred.fromCoroutine(world.jobs.over("act")).addCallback(over.append)
    assert over == [None]
    world.waiting[0].errback(ValueError("a bug"))
    assert over == [None, None, None]
