"""Work between commits: what many commits ask for is done once, and nothing runs when the journal is closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from fyrehose.journal.files import Files
from fyrehose.journal.upkeep import Upkeep


@attrs.define(eq=False)
class World:
    """A log that records the calls of its writer, and a writer thread whose jobs the test runs.

    :ivar errors: raised by the writer's methods, by name
    :ivar during: called once by the next method of the writer
    """

    clock: Clock = attrs.field(factory=Clock)
    calls: list[str] = attrs.field(factory=list)
    errors: dict[str, Exception] = attrs.field(factory=dict)
    jobs: list[Callable[[], object]] = attrs.field(factory=list)
    failures: list[Failure] = attrs.field(factory=list)
    during: list[Callable[[], object]] = attrs.field(factory=list)

    @property
    def writer(self) -> Any:
        return self

    def _called(self, name: str) -> None:
        self.calls.append(name)
        while self.during:
            self.during.pop()()
        if name in self.errors:
            raise self.errors[name]

    def sync(self) -> None:
        self._called("sync")

    def write_mark(self) -> None:
        self._called("mark")

    def prepare(self) -> None:
        self._called("prepare")

    def snapshot(self) -> Iterator[None]:
        for step in range(3):
            self._called(f"snapshot {step}")
            yield

    def run(self, job: Callable[[], Any]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.jobs.append(lambda: maybeDeferred(job).chainDeferred(done))
        return done

    def work(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def upkeep(world: World) -> Upkeep:
    log: Any = world
    made = Upkeep(world.clock, log, Files(), world.run, world.failures.append)
    made.open = True
    return made


def test_mark_is_written_once_for_many_commits_and_again_for_later_ones(world: World, upkeep: Upkeep) -> None:
    for _ in range(3):
        upkeep.mark()
    world.work()
    assert world.calls == ["mark"]
    upkeep.mark()
    world.work()
    assert world.calls == ["mark", "mark"]
    world.during.append(upkeep.mark)
    upkeep.mark()
    world.work()
    assert world.calls == ["mark"] * 4, "a commit was released while MARK was written"


def test_sync_waits_for_its_time_and_can_be_cancelled(world: World, upkeep: Upkeep) -> None:
    upkeep.sync_in(0.5)
    world.clock.advance(0.4)
    assert (world.calls, upkeep.sync_later is None) == ([], False)
    world.clock.advance(0.1)
    world.work()
    assert (world.calls, upkeep.sync_later) == (["sync"], None)
    upkeep.sync_in(0.5)
    upkeep.cancel_sync()
    world.clock.advance(1)
    world.work()
    assert (world.calls, upkeep.sync_later, world.clock.getDelayedCalls()) == (["sync"], None, [])


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("mark", Upkeep.mark),
        ("prepare", Upkeep.prepare),
        ("sync", lambda upkeep: upkeep.sync_in(0)),
    ],
)
def test_failed_work_is_reported(world: World, upkeep: Upkeep, name: str, ask: Callable[[Upkeep], None]) -> None:
    world.errors[name] = OSError("the disk failed")
    ask(upkeep)
    world.clock.advance(0)
    world.work()
    assert [failure.getErrorMessage() for failure in world.failures] == ["the disk failed"]


def test_a_snapshot_is_written_in_steps_while_it_is_wanted(world: World, upkeep: Upkeep) -> None:
    upkeep.take_snapshot(lambda: len(world.calls) < 2)
    assert len(world.jobs) == 1, "other work can run between the steps"
    world.work()
    assert world.calls == ["snapshot 0", "snapshot 1"]


def test_a_snapshot_that_fails_is_only_logged(world: World, upkeep: Upkeep, log_lines: list[str]) -> None:
    world.errors["snapshot 1"] = OSError("no room")
    upkeep.take_snapshot(lambda: True)
    world.work()
    assert world.failures == []
    assert sum("cannot write a snapshot" in line and "no room" in line for line in log_lines) == 1


def test_nothing_is_begun_when_the_journal_is_closed(world: World, upkeep: Upkeep, tmp_path: Path) -> None:
    upkeep.store_index(tmp_path / "first", b"index")
    world.work()
    upkeep.open = False
    upkeep.mark()
    upkeep.take_snapshot(lambda: True)
    upkeep.store_index(tmp_path / "second", b"index")
    world.work()
    assert (world.calls, [path.name for path in tmp_path.iterdir()]) == ([], ["first"])
