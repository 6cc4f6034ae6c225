"""When the leader trims the shared log: members that confirm, that are away, and a log that grows beyond its limit."""

from __future__ import annotations

import json

import attrs
import pytest

from fyrehose.cluster.entries import EntryKind, EntryWriter, LogEntry
from fyrehose.cluster.members import Members
from fyrehose.cluster.peers import Peers
from fyrehose.cluster.role import Append, Purge, Role
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.cluster.trimming import MEASURE, TRIM_BYTES, Trimmer
from tests.doubles.shared_log import whole

MIB = 1 << 20


@attrs.define
class World:
    """A leader with five entries in the shared log: the fourth is a checkpoint, the last lists the members a, b, c."""

    settings: ReplicationSettings = attrs.field(
        factory=lambda: ReplicationSettings(name="a", member_timeout=60, log_limit=100 * MIB)
    )
    role: Role = attrs.field(factory=lambda: Role(EntryWriter("a", 1), 0))
    peers: Peers = attrs.field(init=False)
    trimmer: Trimmer = attrs.field(init=False)
    now: float = 1000.0

    def __attrs_post_init__(self) -> None:
        self.peers = Peers(self.settings, 1)
        self.trimmer = Trimmer(self.settings, self.peers)
        self.role.take_over(0)
        self.answer()
        self.trimmer.start(self.role, self.now)
        for _ in range(2):
            self.role.append(self.role.position, whole(b"x"))
            self.answer()
        self.trimmer.trim(self.role, self.now)
        assert self.answer()[-1].kind is EntryKind.CHECKPOINT
        self.role.was_synced(self.role.position)
        self.change_members(Members(3, ("a", "b", "c")))
        assert not self.purged()

    def answer(self) -> list[LogEntry]:
        """Accept every append; return the entries."""
        found = [(action.entry, action.expect) for action in self.role.take() if isinstance(action, Append)]
        for entry, expect in found:
            self.role.accepted(entry, expect + 1)
        return [entry for entry, _ in found]

    def change_members(self, members: Members) -> None:
        assert self.role.change_members(members)
        self.answer()
        self.role.noted(self.role.position)

    def hear(self, name: str, reported: int, at: float | None = None, applied: int = 0) -> None:
        said = {"name": name, "incarnation": 5, "epoch": 1, "state": "follower", "reported": reported}
        said["applied"] = applied
        self.peers.hear(json.dumps(said).encode(), self.now if at is None else at)

    def purged(self) -> bool:
        self.trimmer.trim(self.role, self.now)
        return any(isinstance(action, Purge) for action in self.role.take())


@pytest.fixture
def world() -> World:
    return World()


def test_the_log_is_trimmed_when_every_member_confirms(world: World) -> None:
    assert not world.purged()
    world.hear("b", 4)
    assert not world.purged(), "c was not heard"
    world.hear("c", 3)
    assert not world.purged(), "c has not everything"
    world.hear("c", 4)
    assert world.purged()


def test_trimming_does_not_wait_for_a_member_that_was_silent_for_long(world: World) -> None:
    world.hear("b", 4)
    world.now += 61
    assert not world.purged(), "nobody else has it, as far as was heard lately"
    world.hear("b", 4)
    assert world.purged()


def test_a_server_that_cannot_begin_behind_a_purge_by_something_else_is_not_waited_for(world: World) -> None:
    world.trimmer.trim(world.role, world.now)
    world.trimmer.measured(world.role, 0, first=6)
    world.trimmer.trim(world.role, world.now)
    (entry,) = world.answer()
    assert entry.kind is EntryKind.CHECKPOINT
    world.role.noted(world.role.position)
    world.hear("b", 6, applied=6)
    world.hear("c", 3, applied=5)
    assert not world.purged(), "c is late, and can go on"
    world.hear("c", 0, applied=0)
    assert not world.purged(), "that may be an old message"
    world.now += 2
    world.hear("c", 0, applied=0)
    assert world.purged()
    world.trimmer.measured(world.role, 0, first=6)
    world.trimmer.trim(world.role, world.now)
    assert world.answer() == [], "the checkpoint is the first entry now"


def test_trimming_does_not_wait_for_a_server_that_was_removed(world: World) -> None:
    world.hear("b", 4)
    assert not world.purged(), "c was not heard"
    world.change_members(Members(4, ("a", "b")))
    assert world.purged()


@pytest.mark.parametrize("heard", [False, True], ids=["never heard", "heard long ago"])
def test_trimming_waits_for_a_server_that_was_added(world: World, heard: bool) -> None:
    if heard:
        world.hear("d", 0, at=world.now - 100)
    world.hear("b", 4)
    world.hear("c", 4)
    world.change_members(Members(4, ("a", "b", "c", "d")))
    assert not world.purged()
    world.now += 59
    world.hear("b", 4)
    world.hear("c", 4)
    assert not world.purged(), "it may be copying a journal, and is waited for as for any silent member"
    world.now += 2
    assert world.purged()


def test_a_server_that_is_no_member_does_not_confirm_anything(world: World) -> None:
    world.change_members(Members(4, ("a", "b")))
    world.hear("x", 4)
    assert world.trimmer.measured(world.role, 101 * MIB).endswith("'b' does not confirm what it has")
    assert not world.purged()


def test_trimming_waits_for_a_free_place_like_for_a_silent_member(world: World, log_lines: list[str]) -> None:
    world.change_members(Members(4, ("a", "b"), places=1))
    world.hear("b", 4)
    assert not world.purged()
    world.trimmer.measured(world.role, 60 * MIB)
    assert "no server has taken the 1 place of new members yet" in log_lines[-1]
    world.now += 61
    world.hear("b", 4)
    assert world.purged()


def test_beyond_the_limit_trimming_waits_only_for_servers_that_confirm(world: World, log_lines: list[str]) -> None:
    world.hear("b", 4)
    world.hear("c", 1)
    assert world.trimmer.measured(world.role, 99 * MIB) == ""
    assert not world.purged()
    assert world.trimmer.measured(world.role, 101 * MIB) == ""
    assert world.purged()
    (line,) = [line for line in log_lines if "has grown to" in line]
    assert "'c' does not confirm what it has; beyond 100.0 MiB (log-limit)" in line


def test_without_another_server_that_confirms_messages_are_refused_beyond_the_limit(world: World) -> None:
    world.hear("b", 1)
    assert world.trimmer.measured(world.role, 100 * MIB) == ""
    why = world.trimmer.measured(world.role, 101 * MIB)
    assert why == "the shared log has 101.0 MiB, more than log-limit, and 'b', 'c' do not confirm what it has"
    assert not world.purged()
    world.hear("b", 4)
    assert world.trimmer.measured(world.role, 101 * MIB) == ""
    assert world.purged()


def test_the_warning_is_repeated_only_after_the_log_was_small_again(world: World, log_lines: list[str]) -> None:
    for size in (60, 70, 10, 60):
        world.trimmer.measured(world.role, size * MIB)
    assert ["has grown to 60.0 MiB" in line for line in log_lines if "has grown" in line] == [True, True]
    assert "'b', 'c' do not confirm what it has" in log_lines[-1]


def test_the_next_checkpoint_follows_a_purge(world: World) -> None:
    """Entries that are appended while a checkpoint waits for a member are trimmed by the next checkpoint."""
    world.hear("b", 4)
    world.role.append(world.role.position, whole(b"y"))
    world.answer()
    assert not world.purged()
    world.hear("c", 4)
    assert world.purged()
    world.role.append(world.role.position, whole(b"z"))
    world.answer()
    world.trimmer.trim(world.role, world.now)
    assert [entry.kind for entry in world.answer()] == [EntryKind.CHECKPOINT]


def test_a_checkpoint_follows_many_bytes_although_more_is_in_flight() -> None:
    world = World()
    world.hear("b", 4)
    world.hear("c", 4)
    assert world.purged()
    for _ in range(TRIM_BYTES >> 20):
        world.role.append(world.role.position, whole(bytes(MIB)))
        world.answer()
    world.role.append(world.role.position, whole(b"pending"))
    world.role.take()
    world.trimmer.trim(world.role, world.now)
    assert [action.entry.kind for action in world.role.take() if isinstance(action, Append)] == [EntryKind.CHECKPOINT]


def test_a_limit_of_the_engine_counts_if_it_is_less() -> None:
    world = World()
    world.hear("b", 4)
    world.trimmer.measured(world.role, 30 * MIB, limit=28 * MIB)
    assert world.purged(), "beyond it, the silent server is not waited for"


def test_a_log_that_fills_up_while_a_member_is_away_has_a_checkpoint_near_its_end() -> None:
    """A full log accepts no checkpoint, and trimming it at an early one would hardly make room."""
    world = World()
    world.hear("b", 4)
    for _ in range(TRIM_BYTES >> 20):
        world.role.append(world.role.position, whole(bytes(MIB)))
        world.answer()
    world.trimmer.trim(world.role, world.now)
    assert [entry.kind for entry in world.answer()] == [EntryKind.CHECKPOINT]
    world.role.noted(world.role.position)
    late = world.role.applied
    world.hear("b", late)
    purged = []
    for _ in range(2):
        world.trimmer.measured(world.role, 101 * MIB)
        for _ in range(2):
            world.trimmer.trim(world.role, world.now)
            purged.append([action.number for action in world.role.take() if isinstance(action, Purge)])
    assert purged == [[late], [], [], []], "c is not waited for beyond the limit"


def test_the_log_is_measured_after_each_interval_however_often_that_is_asked(world: World) -> None:
    due = [world.trimmer.is_due(world.now + MEASURE * quarter / 4) for quarter in range(16)]
    assert due == [True, False, False, False] * 4
