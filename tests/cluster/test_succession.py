"""The lead moves in good order: to the server that lacks least, at an operator's wish, and away from a full disk."""

from __future__ import annotations

import pytest

from fyrehose.cluster.members import ChangeKind, MemberChange
from fyrehose.cluster.role import State
from fyrehose.cluster.succession import SLOW_LOOKS, SLOW_S

from .test_member import Cluster, Server


def other_than(cluster: Cluster, server: Server) -> list[Server]:
    return [each for each in cluster.servers.values() if each is not server]


def ask(cluster: Cluster, kind: ChangeKind, name: str, by: str = "") -> None:
    cluster.hub.ask(MemberChange("wish", 0, kind, name, by).pack())


def answer_of(leader: Server) -> str:
    """Return why *leader* has refused the wish, as it tells the others."""
    said: list[bytes] = []
    cluster = leader.cluster
    heard = cluster.hub.hears
    cluster.hub.hears = {**heard, "ear": said.append}
    cluster.run(0.5)
    cluster.hub.hears = heard
    return next(message.decode() for message in reversed(said) if b'"state": "leader"' in message)


@pytest.mark.parametrize("named", [False, True])
def test_a_leader_hands_over_to_the_server_that_is_asked_for(cluster: Cluster, named: bool) -> None:
    leader = cluster.elect("abc")
    leader.publish(b"before")
    cluster.run(2)
    wanted = other_than(cluster, leader)[-1]
    ask(cluster, ChangeKind.HAND_OVER, leader.name, wanted.name if named else "")
    began = cluster.clock.seconds()
    cluster.run(5, until=lambda: leader.role is State.FOLLOWER)
    assert cluster.clock.seconds() - began < 1.0, "a successor waits for no timeout"
    new = cluster.elect()
    assert new is not leader
    assert new is wanted or not named
    cluster.open_again()
    new.publish(b"after")
    cluster.run(2)
    cluster.settle()
    assert new.read() == [b"before", b"after"]


def test_publishes_under_way_are_acknowledged_before_the_lead_moves(cluster: Cluster) -> None:
    leader = cluster.elect("abc")
    cluster.run(2)
    for number in range(20):
        leader.publish(b"%d" % number)
    ask(cluster, ChangeKind.HAND_OVER, leader.name)
    cluster.run(5, until=lambda: leader.role is State.FOLLOWER)
    assert leader.acknowledged == [b"%d" % number for number in range(20)]
    leader.publish(b"refused")
    assert leader.refused


def test_a_server_that_has_much_to_replay_does_not_take_over(cluster: Cluster) -> None:
    leader = cluster.elect("abc")
    cluster.run(2)
    late, ready = other_than(cluster, leader)
    late.journal.why_not_ready = lambda: "it has 9000 changes of its state to replay"
    cluster.hub.away.add(leader.name)
    cluster.run(5, until=lambda: ready.role is State.LEADER)
    assert late.role is State.FOLLOWER
    cluster.hub.away.add(ready.name)
    cluster.run(20)
    assert late.role is State.FOLLOWER
    late.journal.why_not_ready = str
    cluster.run(15, until=lambda: late.role is State.LEADER)
    assert late.role is State.LEADER


@pytest.mark.parametrize(
    ("trouble", "why"), [("away", "it was not heard for"), ("unfit", "it is in maintenance"), ("stranger", "not heard")]
)
def test_a_leader_leads_on_if_the_server_that_is_asked_for_cannot(cluster: Cluster, trouble: str, why: str) -> None:
    leader = cluster.elect("abc")
    cluster.run(2)
    wanted = other_than(cluster, leader)[0]
    if trouble == "away":
        cluster.hub.away.add(wanted.name)
    elif trouble == "unfit":
        ask(cluster, ChangeKind.MAINTAIN, wanted.name)
    cluster.run(2)
    ask(cluster, ChangeKind.HAND_OVER, leader.name, "x" if trouble == "stranger" else wanted.name)
    assert why in answer_of(leader)
    leader.publish(b"x")
    cluster.run(1, until=lambda: bool(leader.acknowledged))
    assert leader.acknowledged == [b"x"]


def test_a_leader_whose_successor_vanishes_meanwhile_leads_on_and_names_none(cluster: Cluster) -> None:
    leader = cluster.elect("abc")
    cluster.run(2)
    others = other_than(cluster, leader)
    cluster.hub.away |= {other.name for other in others}
    ask(cluster, ChangeKind.HAND_OVER, leader.name, others[0].name)
    assert f'"successor": "{others[0].name}"' in answer_of(leader), "it was heard a moment ago"
    cluster.run(5)
    assert leader.role is State.LEADER
    said = answer_of(leader)
    assert ('"leaving": false' in said, '"successor": ""' in said) == (True, True), f"it leads on, and says {said}"


def test_a_successor_has_its_time_however_long_the_appends_under_way_took(cluster: Cluster) -> None:
    leader = cluster.elect("abc")
    cluster.run(2)
    cluster.hub.queues[leader.name] = 1.9
    leader.publish(b"under way")
    ask(cluster, ChangeKind.HAND_OVER, leader.name)
    cluster.run(3, until=lambda: bool(leader.acknowledged))
    cluster.hub.queues = {other.name: 1.0 for other in other_than(cluster, leader)}
    cluster.run(0.9)
    leader.publish(b"refused")
    cluster.run(5, until=lambda: leader.role is State.FOLLOWER)
    assert (leader.acknowledged, len(leader.refused)) == ([b"under way"], 1), "it waits for its successor for 2 s"


def test_a_server_in_maintenance_hands_over_and_leads_only_if_no_other_can(cluster: Cluster) -> None:
    leader = cluster.elect("abc")
    cluster.run(2)
    ask(cluster, ChangeKind.MAINTAIN, leader.name)
    cluster.run(5, until=lambda: leader.role is State.FOLLOWER)
    assert leader.role is State.FOLLOWER
    new = cluster.elect()
    assert new is not leader
    ask(cluster, ChangeKind.MAINTAIN, new.name)
    rest = next(each for each in other_than(cluster, leader) if each is not new)
    cluster.run(5, until=lambda: rest.role is State.LEADER)
    assert rest.role is State.LEADER
    cluster.open_again()
    rest.stop()
    cluster.run(30, until=lambda: bool(cluster.leaders))
    assert cluster.leaders, "a server that should not lead is better than none"


@pytest.mark.parametrize("trouble", ["its listener hangs", "its disk is full"])
def test_a_leader_that_cannot_serve_hands_over_to_a_server_that_can(cluster: Cluster, trouble: str) -> None:
    leader = cluster.elect("abc")
    cluster.run(2)
    if trouble == "its disk is full":
        cluster.free[leader.name] = 0
    else:
        leader.journal.gate.unreachable = "its listener does not answer"
    cluster.run(5, until=lambda: leader.role is State.FOLLOWER)
    new = cluster.elect()
    assert new is not leader
    new.publish(b"after")
    cluster.run(2)
    assert new.acknowledged == [b"after"]


def test_a_leader_leads_on_while_all_disks_are_full(cluster: Cluster) -> None:
    leader = cluster.elect("abc")
    cluster.run(2)
    for server in (*other_than(cluster, leader), leader):
        cluster.free[server.name] = 0
        cluster.run(2)
    cluster.run(20)
    assert cluster.leaders == [leader]
    cluster.free.clear()
    cluster.run(20)
    leader.publish(b"x")
    cluster.run(2)
    assert leader.acknowledged == [b"x"]


@pytest.mark.parametrize("seconds", [SLOW_S, 60.0])
@pytest.mark.parametrize(("slow", "moves"), [("leader", True), ("all", False)])
def test_lead_moves_from_a_slow_disk_to_a_faster_one(cluster: Cluster, slow: str, moves: bool, seconds: float) -> None:
    """A sync of a minute does not end meanwhile."""
    leader = cluster.elect("abc")
    cluster.run(2)
    for server in cluster.servers.values():
        if slow == "all" or server is leader:
            cluster.slow[server.name] = seconds
    cluster.run(SLOW_LOOKS * 0.25 - 1)
    assert cluster.leaders == [leader], "a disk may be slow for a moment"
    cluster.run(5, until=lambda: leader.role is State.FOLLOWER)
    assert (leader.role is State.FOLLOWER) == moves
    if moves:
        assert cluster.elect() is not leader


def test_a_server_that_is_behind_does_not_take_over(cluster: Cluster) -> None:
    leader = cluster.elect("abc")
    cluster.run(2)
    behind = other_than(cluster, leader)[0]
    cluster.hub.queues[behind.name] = 1.5
    for number in range(60):
        leader.publish(b"%d" % number)
        cluster.run(0.1)
    ask(cluster, ChangeKind.HAND_OVER, leader.name, behind.name)
    assert "it is behind" in answer_of(leader)
    assert leader.role is State.LEADER


def test_a_server_that_lacks_more_than_the_leader_has_seen_written_does_not_take_over(cluster: Cluster) -> None:
    first = cluster.elect("abc")
    cluster.run(2)
    leader, behind = other_than(cluster, first)
    cluster.hub.away.add(behind.name)
    first.publish(b"x")
    cluster.run(2)
    leader.stop()
    leader.start()
    ask(cluster, ChangeKind.HAND_OVER, first.name, leader.name)
    cluster.run(5, until=lambda: leader.role is State.LEADER)
    cluster.hub.queues[behind.name] = 10.0
    cluster.hub.away.discard(behind.name)
    cluster.run(2)
    ask(cluster, ChangeKind.HAND_OVER, leader.name, behind.name)
    assert "it is behind" in answer_of(leader)


def test_a_leader_that_has_handed_over_does_not_believe_to_lead_alone(cluster: Cluster) -> None:
    leader = cluster.elect("abc")
    leader.publish(b"x")
    cluster.run(0.3)
    assert leader.journal.standing.age == 0.0
    ask(cluster, ChangeKind.HAND_OVER, leader.name)
    cluster.run(1, until=lambda: len(cluster.leaders) == 2)
    assert leader in cluster.leaders, "it has not heard of its successor yet"
    assert leader.journal.standing.age != 0.0


def test_a_disk_that_is_slow_now_and_then_moves_no_lead(cluster: Cluster) -> None:
    leader = cluster.elect("abc")
    cluster.run(2)
    for _ in range(4):
        cluster.slow[leader.name] = SLOW_S
        cluster.run(SLOW_LOOKS * 0.25 / 2)
        cluster.slow.clear()
        cluster.run(3)
    assert cluster.leaders == [leader]
