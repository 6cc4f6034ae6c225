"""When the leader trims the shared log: members that confirm, that are away, and a log that grows beyond its limit."""

from __future__ import annotations

import json
from random import Random

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
    world.hear("c", 3, applied=5)
    assert not world.purged(), "the next entry of c is there still"
    world.hear("c", 0, applied=0)
    assert world.purged()
    world.trimmer.measured(world.role, 0, first=6)
    world.trimmer.trim(world.role, world.now)
    assert world.answer() == [], "the checkpoint is the first entry now"


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
    world.trimmer.trim(world.role, world.now)
    assert world.answer() == [], "the bytes before a checkpoint count no more"
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


class Lead:
    """A random history of a leader, and what is known of each member: the model of when entries may be purged.

    :ivar heard: by name, when a message came last
    :ivar reported: by name, the last entry that the member has on disk, as its last message says
    :ivar since: by name, since when this leader has the member in its list, in this lead
    """

    NAMES = "bcde"

    def __init__(self, seed: int) -> None:
        self.dice, self.world = Random(seed), World()
        self.heard: dict[str, float] = {}
        self.reported: dict[str, int] = {}
        self.since = dict.fromkeys("bc", self.world.now)
        self.led = self.world.now
        self.marked = 3  #: the last entry when the leader added a checkpoint, or began to lead
        self.exceeded = self.warned = False
        self.branches = dict.fromkeys(("every member", "some are silent", "waits", "beyond the limit", "refuses"), 0)

    @property
    def others(self) -> list[str]:
        return [name for name in self.world.role.members.names if name != "a"]

    def hear(self) -> None:
        name, last = self.dice.choice(self.NAMES), self.world.role.applied
        reported = max(0, self.dice.choice([last, last, last - 1, last - 3, last - 9, 1, 1]))
        self.reported[name] = max(reported, self.reported.get(name, 0))
        self.heard[name] = self.world.now
        self.world.hear(name, self.reported[name])

    def append(self) -> None:
        self.world.role.append(self.world.role.position, whole(b"x"))
        self.world.answer()

    def note(self) -> None:
        self.world.role.noted(self.world.role.position)

    def wait(self) -> None:
        self.world.now += self.dice.choice([1, 5, 20, 70])

    def change(self) -> None:
        members, count = self.world.role.members, self.dice.randint(1, 4)
        names = self.dice.sample(self.NAMES, count)
        if self.dice.random() < 0.9 or count == 1:  # a leader that was removed leads on for a moment
            names.insert(self.dice.randint(0, count), "a")
        self.world.change_members(Members(members.version + 1, tuple(names), self.dice.choice([0, 0, 1, 2])))

    def lead_again(self) -> None:
        """Lead after another server has led for a while, during which this one did not count who was silent."""
        self.world.now += 100
        self.led, self.since, self.marked = self.world.now, {}, self.world.role.applied
        self.exceeded = self.warned = False
        self.world.trimmer.start(self.world.role, self.led)

    def measure(self, log_lines: list[str]) -> None:
        """Measure the shared log, whose limit is 100 MiB, or that of its stream if that is less."""
        role, size, limit = self.world.role, self.dice.choice((10, 50, 51, 60, 80, 81, 100, 101)), 100
        stream, limit = self.dice.choice(((0, 100), (160, 100), (160, 100), (80, 80)))
        first = role.checkpoints[0] if role.checkpoints else None
        late = [name for name in self.others if self.reported.get(name, 0) < (first or 1)]
        log_lines.clear()
        why = self.world.trimmer.measured(role, size * MIB, stream * MIB)
        self.exceeded, large = size > limit, size > limit / 2
        assert len(log_lines) == (large and not self.warned), "it is said once while the log is large"
        self.warned = large
        places, cause = role.members.places, "messages arrive faster than it is trimmed"
        if late:
            cause = f"{', '.join(map(repr, late))} {'does' if len(late) == 1 else 'do'} not confirm what it has"
        elif places:
            cause = f"no server has taken the {places} place{'s' * (places > 1)} of new members yet"
        assert all(f"because {cause}; beyond {limit}.0 MiB (log-limit)" in line for line in log_lines)
        refuses = self.exceeded and first is not None and late == self.others
        reason = f"the shared log has {size}.0 MiB, more than log-limit, and {cause}"
        assert why == (reason if refuses else ""), "the leader accepts messages as long as it may trim the log"
        self.branches["refuses"] += refuses

    def trim(self) -> None:
        role, now, least = self.world.role, self.world.now, self.world.now - 60
        self.since = {name: self.since.get(name, now) for name in self.others}
        checkpoints = list(role.checkpoints)
        patient = bool(role.members.places) and self.led >= least
        silent = {name for name in self.others if max(self.since[name], self.heard.get(name, 0.0)) <= least}
        if beyond := self.exceeded and bool(checkpoints):
            patient, silent = False, {name for name in self.others if self.reported.get(name, 0) < checkpoints[0]}
        waited = [name for name in self.others if name not in silent]
        confirmed = [
            number
            for number in checkpoints
            if waited and not patient and all(self.reported.get(name, 0) >= number for name in waited)
            if number <= role.reported and "a" in role.members.names
        ]
        due = not checkpoints and role.applied > self.marked + 1
        self.marked = role.applied if due else self.marked
        self.world.trimmer.trim(role, now)
        actions = role.take()
        added = [action for action in actions if isinstance(action, Append)]
        assert len(added) == due, "a checkpoint follows at least two entries, when none waits for members"
        purged = [action.number for action in actions if isinstance(action, Purge)]
        known = f"reported {self.reported}, silent {silent}, of {self.others}, checkpoints {checkpoints}"
        assert purged == confirmed[-1:], f"{purged} was purged instead of {confirmed[-1:]}: {known}"
        self.exceeded = self.exceeded and not (beyond and purged)
        self.branches["beyond the limit"] += beyond and bool(silent) and bool(purged)
        self.branches["waits" if not purged else "some are silent" if silent else "every member"] += 1
        for action in actions:
            if isinstance(action, Append):
                role.accepted(action.entry, action.expect + 1)

    def step(self, log_lines: list[str]) -> None:
        often = [self.hear] * 5 + [self.append, self.note] * 2 + [self.trim] * 4 + [self.wait, self.change]
        often += [lambda: self.measure(log_lines)] * 2
        (self.lead_again if self.dice.random() < 0.03 else self.dice.choice(often))()


def test_leader_that_leads_again_begins_like_a_new_one(log_lines: list[str]) -> None:
    """Sizes of an earlier lead say nothing about the log that other servers have written since."""
    for seed in range(20):
        lead = Lead(seed)
        for _ in range(60):
            lead.step(log_lines)
        for _ in range(5):
            size, role = lead.dice.choice([0, 60, 101]) * MIB, lead.world.role
            lead.world.trimmer.measured(role, size, first=lead.dice.choice([1, role.applied]))
            lead.world.trimmer.trim(role, lead.world.now)
            lead.world.answer()
        new, old = Trimmer(lead.world.settings, lead.world.peers), lead.world.trimmer
        for each in (new, old):
            each.start(lead.world.role, lead.world.now)
            assert each.size == 0
        begun = [attrs.asdict(each, recurse=False) for each in (new, old)]
        left = {name for name in begun[0] if begun[0][name] != begun[1][name]}
        assert left <= {"_measured", "_begun_well"}, "only when the log was looked at last may be known"


def test_random_histories_purge_what_every_member_confirms_that_is_not_silent(log_lines: list[str]) -> None:
    branches: dict[str, int] = {}
    for seed in range(60):
        lead = Lead(seed)
        for _ in range(120):
            lead.step(log_lines)
        for name, count in lead.branches.items():
            branches[name] = branches.get(name, 0) + count
    assert min(branches.values()) > 20, f"a branch of the rule hardly ever ran: {branches}"
