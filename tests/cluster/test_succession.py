"""The lead moves in good order: to the server that lacks least, at an operator's wish, and away from a full disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fyrehose.cluster.members import ChangeKind, MemberChange
from fyrehose.cluster.role import State
from fyrehose.errors import ReadOnly

from .test_member import Cluster, Server


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.hub.away.clear()
    for server in made.servers.values():
        if server.up:
            server.stop()


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


def test_a_leader_that_is_about_to_hand_over_refuses_publishes_whatever_the_shared_log_answers(
    cluster: Cluster,
) -> None:
    leader = cluster.elect("abc")
    cluster.run(2)
    leader.publish(b"under way")
    leader.journal.gate.hold("it hands over")
    cluster.run(1, until=lambda: bool(leader.acknowledged))
    leader.publish(b"refused")
    (refused,) = leader.refused
    assert isinstance(refused, ReadOnly)
    leader.journal.gate.unhold()
    leader.publish(b"accepted")
    cluster.run(1, until=lambda: len(leader.acknowledged) == 2)
    assert leader.acknowledged == [b"under way", b"accepted"]


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
