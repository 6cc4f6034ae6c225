"""The actions of a role: in their order, one at a time, and none after the member has dropped them."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from fyrehose.cluster.acting import Actor
from fyrehose.cluster.appends import Appends
from fyrehose.cluster.entries import EntryKind, EntryWriter, LogEntry
from fyrehose.cluster.jobs import Jobs
from fyrehose.cluster.log_answers import LogAnswers
from fyrehose.cluster.role import Role
from fyrehose.errors import ConfigError
from fyrehose.journal.format import Damage
from fyrehose.journal.writer import NoRoom

from .test_log_answers import Gate

LEADER = EntryWriter("a", 7)


@attrs.define(eq=False)
class World:
    """A follower whose leader took over by entry 1; the test ends the writes to its journal, and is the member."""

    running: bool = True
    leading: bool = False
    clock: Clock = attrs.field(factory=Clock)
    role: Role = attrs.field(factory=lambda: Role(EntryWriter("me", 1), 0))
    written: list[tuple[int, bytes]] = attrs.field(factory=list)
    writes: list[Deferred[int]] = attrs.field(factory=list)
    failures: list[Failure] = attrs.field(factory=list)
    actor: Actor = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        jobs = Jobs(lambda why: None, self.failures.append)
        appends = Appends(self.clock.seconds, self, LogAnswers(Gate()))
        self.actor = Actor(self.clock, self.role, self, self, self, appends, jobs, self)
        self.role.read(1, LogEntry(EntryKind.TAKEOVER, 1, LEADER, 0))
        self.role.take()

    def apply(self, position: int, data: bytes) -> Deferred[int]:
        self.written.append((position, bytes(data)))
        self.writes.append(Deferred())
        return self.writes[-1]

    def read(self, number: int, data: bytes) -> None:
        """Let the role read an entry of the leader, and carry out what it decides."""
        self.role.read(number, LogEntry(EntryKind.DATA, 1, LEADER, self.role.position, data))
        self.actor.act()


def test_a_write_begins_when_the_one_before_it_is_synced() -> None:
    world = World()
    world.read(2, b"abc")
    world.read(3, b"de")
    assert world.written == [(0, b"abc")]
    world.writes[0].callback(3)
    assert world.written == [(0, b"abc"), (3, b"de")]
    assert world.role.mark == 3
    world.writes[1].callback(5)
    assert world.role.mark == 5


def test_actions_that_were_dropped_are_not_carried_out_and_the_present_one_is_waited_for() -> None:
    world = World()
    world.read(2, b"abc")
    world.read(3, b"de")
    over: list[Any] = []
    Deferred.fromCoroutine(world.actor.over()).addCallback(over.append)
    assert over == []
    world.writes[0].callback(3)
    assert (over, world.written) == ([None], [(0, b"abc")])


def test_a_follower_with_a_full_disk_repeats_the_write_until_there_is_room() -> None:
    world = World()
    world.read(2, b"abc")
    world.writes[0].errback(NoRoom("No space left on device"))
    assert len(world.writes) == 1
    world.clock.advance(1)
    assert world.written == [(0, b"abc")] * 2
    world.writes[1].callback(3)
    assert (world.role.mark, world.failures) == (3, [])


def test_batches_that_do_not_continue_the_journal_end_the_replication() -> None:
    world = World()
    world.read(2, b"abc")
    world.writes[0].errback(Damage("bad chain"))
    (failure,) = world.failures
    assert failure.check(ConfigError)
    assert "does not continue this journal: bad chain" in str(failure.value)
