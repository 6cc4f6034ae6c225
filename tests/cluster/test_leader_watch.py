"""What a follower knows of its leader: its silence, its announcements, and whether NATS has its connection."""

from __future__ import annotations

import json

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.cluster.appends import GONE
from fyrehose.cluster.entries import EntryKind, EntryWriter, LogEntry
from fyrehose.cluster.leader_watch import ASK, HEIR, SPREAD, LeaderWatch
from fyrehose.cluster.peers import ClusterPeer, Peers
from fyrehose.cluster.role import Role
from fyrehose.cluster.settings import ReplicationSettings

LEADER = EntryWriter("a", 7)
TAKEOVER_AFTER = 3.0


@attrs.define
class World:
    """A follower whose leader took over by entry 1 and was heard at 100; *incarnation* decides its jitter."""

    incarnation: int = 0
    peers: Peers = attrs.field(init=False)
    watch: LeaderWatch = attrs.field(init=False)
    role: Role = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.peers = Peers(ReplicationSettings(name="me", takeover_after=TAKEOVER_AFTER), self.incarnation)
        self.watch = LeaderWatch(self.peers)
        self.role = Role(self.peers.writer, 0)
        self.role.read(1, LogEntry(EntryKind.TAKEOVER, 1, LEADER, 0))
        self.watch.begin(100.0)

    def hear(self, now: float, applied: int = 1, current: object = None) -> None:
        """Hear the leader, which says that it knows all entries up to the time *current* of this server's clock."""
        self.watch.hear(
            ClusterPeer(
                name="a",
                incarnation=7,
                state="leader",
                epoch=1,
                applied=applied,
                current={str(self.incarnation): current},
                heard=now,
            )
        )


@pytest.mark.parametrize("incarnation", [0, 999])
def test_a_silent_leader_is_replaced_after_the_option_and_a_jitter_of_this_server(incarnation: int) -> None:
    world = World(incarnation)
    patience = TAKEOVER_AFTER + SPREAD * incarnation / 1000
    assert not world.watch.why_take_over(world.role, 99.999 + patience)
    assert world.watch.why_take_over(world.role, 100.001 + patience).startswith("no leader was heard for 3.")
    world.hear(110.0)
    assert not world.watch.why_take_over(world.role, 109.999 + patience)


@given(answers=st.lists(st.tuples(st.sampled_from([LEADER, EntryWriter("a", 8)]), st.booleans()), max_size=6))
def test_leader_is_replaced_sooner_while_nats_reports_it_no_more(answers: list[tuple[EntryWriter, bool]]) -> None:
    world = World()
    for leader, connected in answers:
        world.watch.found(leader, connected)
    gone = answers[-1:] == [(LEADER, False)]
    assert not world.watch.why_take_over(world.role, 100 + GONE)
    why = world.watch.why_take_over(world.role, 100.1 + GONE)
    assert why.endswith("and none is connected to NATS") if gone else not why
    assert bool(why) == gone, f"after {answers} the wait is that of a leader that is {'' if why else 'not '}gone"


def test_nats_is_asked_for_a_leader_that_was_not_heard_for_a_moment() -> None:
    world = World()
    assert not world.watch.must_ask(100 + ASK)
    assert world.watch.must_ask(100.1 + ASK)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["announce", "read", "read data", "sync"]), st.integers(1, 12), st.integers(0, 100)),
        max_size=30,
    )
)
def test_records_are_current_only_if_the_announced_entries_are_applied_and_on_disk(
    steps: list[tuple[str, int, int]],
) -> None:
    world, announced, ends = World(), list[tuple[int, float]](), {1: 0}
    watch, role = world.watch, world.role
    awaited: tuple[int, float] | None = None  # the first announcement since one counted
    for now, (step, number, size) in enumerate([*steps, *[("read", 0, 0)] * 12, ("sync", 0, 0)], 110):
        if step == "announce":
            world.hear(float(now), number, now - 0.5)
            announced.append((number, now - 0.5))
            awaited = awaited or announced[-1]
        elif step == "sync":
            role.was_synced(role.position - size // 2)
        else:
            data = bytes(size) if step == "read data" else b""
            kind = EntryKind.DATA if data else EntryKind.CHECKPOINT
            role.read(role.applied + 1, LogEntry(kind, 1, LEADER, role.position, data))
            ends[role.applied] = role.position
        watch.applied(role)
        known = [time for last, time in announced if last in ends and ends[last] <= role.synced]
        here = max(known, default=float("-inf"))
        assert watch.current <= here, f"after {steps} it counts {watch.current - here} s as read that are not on disk"
        assert watch.has_all(role) == (max((last for last, _ in announced), default=0) <= role.applied)
        if awaited is not None and awaited[0] <= role.applied and role.mark >= role.position:
            assert watch.current >= awaited[1], f"after {steps} it waits for ever later announcements, and never counts"
            awaited = None
    first = announced[0][1] if announced else float("-inf")
    assert watch.current >= first, f"after {steps} everything is on disk, and the first announcement does not count"


@pytest.mark.parametrize("answer", [110.001, float("nan"), float("inf"), "109.0", 109, None, [109.0]])
def test_answer_that_is_no_past_time_makes_nothing_current(answer: object) -> None:
    world = World()
    world.hear(110.0, current=answer)
    world.watch.applied(world.role)
    assert world.watch.current == float("-inf")
    world.hear(110.0, current=109.0)
    world.watch.applied(world.role)
    assert world.watch.current == 109.0


@pytest.mark.parametrize(("heir", "patience"), [("me", 0.0), ("b", HEIR), ("", 0.0)])
def test_successor_that_the_leader_names_takes_over_before_the_others(heir: str, patience: float) -> None:
    world = World()
    message = {"name": "a", "incarnation": 7, "state": "leader", "epoch": 1, "leaving": True, "successor": heir}
    peer = world.peers.hear(json.dumps(message).encode(), 110.0)
    assert peer is not None
    world.watch.begin(110.0)
    world.watch.hear(peer)
    assert not world.watch.why_take_over(world.role, 110.0 + patience)
    assert world.watch.why_take_over(world.role, 110.001 + patience)


def test_server_that_should_not_lead_lets_the_others_try_first() -> None:
    world = World()
    assert not world.watch.why_take_over(world.role, 100.0 + 3 * TAKEOVER_AFTER, "its disk is full")
    assert world.watch.why_take_over(world.role, 100.001 + 3 * TAKEOVER_AFTER, "its disk is full")


def test_first_entries_of_a_leader_count_as_heard() -> None:
    world = World()
    world.watch.hear_entries(LEADER, 105.0)
    assert not world.watch.why_take_over(world.role, 105 + TAKEOVER_AFTER)
