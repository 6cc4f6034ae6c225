"""The members of a cluster change while it runs: added, removed, replaced, and the first ones by themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fyrehose.cluster.entries import EntryWriter
from fyrehose.cluster.members import ChangeKind, MemberChange, Members
from fyrehose.cluster.membership import Membership
from fyrehose.cluster.peers import Peers
from fyrehose.cluster.role import Role, State
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.interfaces import JournalState
from tests.cluster.test_member import Cluster, Server


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster with the members a, b and c; a new server fills its journal by itself."""
    made = Cluster(tmp_path, fills=True)
    for name in "abc":
        made.add(name)
    made.elect()
    made.run(3)
    assert sorted(listed(made).names) == ["a", "b", "c"]
    yield made
    for server in made.servers.values():
        if server.up:
            server.stop()


def listed(cluster: Cluster) -> Members:
    found: Members = role_of(cluster.elect()).members
    return found


def role_of(server: Server) -> Role:
    found: Role = server.journal.gate.cluster.role  # type: ignore[attr-defined]
    return found


def ask(cluster: Cluster, kind: ChangeKind, name: str = "", by: str = "") -> None:
    """Request a change as the command does: again and again, until the list of members has it."""
    request = MemberChange("r", listed(cluster).version, kind, name, by)
    for _ in range(20):
        cluster.hub.ask(request.pack())
        cluster.run(0.5)
        members = listed(cluster)
        if request.apply(members) == members:
            return
    raise AssertionError(f"{request} was not done")


def test_the_first_servers_become_members_by_themselves(three: Cluster) -> None:
    members = listed(three)
    assert members.places == 0
    assert members.version == 3


def test_a_server_that_was_added_follows_and_is_waited_for(three: Cluster, log_lines: list[str]) -> None:
    leader = three.elect()
    ask(three, ChangeKind.ADD, "d")
    three.publish_five(leader)
    first = three.hub.first
    assert first < len(three.hub.entries) - 5, "it is not trimmed before d has it"
    new = three.add("d")
    three.run(5)
    assert three.hub.first > first
    three.settle()
    assert new.read() == leader.acknowledged
    names = ", ".join(listed(three).names[:3])
    assert sum(f"the members are {names} and d now" in line for line in log_lines) == 4


def test_a_server_that_was_removed_ends_and_is_not_waited_for(three: Cluster, logged_errors: list[Any]) -> None:
    leader = three.elect()
    old = next(server for server in three.servers.values() if server is not leader)
    ask(three, ChangeKind.REMOVE, old.name)
    three.run(10, until=lambda: old.journal.state is JournalState.FAILED)
    assert old.journal.state is JournalState.FAILED
    (said,) = logged_errors
    assert f"this server, {old.name}, is not a member of the cluster" in str(said["log_failure"])
    logged_errors.clear()
    three.publish_five(leader)
    assert len(three.hub.entries) - three.hub.first < 5, "the shared log is trimmed without it"


def test_a_machine_that_is_lost_is_replaced_by_a_new_one(three: Cluster) -> None:
    leader = three.elect()
    lost = next(server for server in three.servers.values() if server is not leader)
    lost.stop()
    first = three.hub.first
    three.publish_five(leader)
    assert three.hub.first - first < 5, "the lost server is waited for"
    ask(three, ChangeKind.REPLACE, lost.name, "d")
    new = three.add("d")
    del three.servers[lost.name]
    three.run(10)
    three.settle()
    assert new.read() == leader.acknowledged
    assert len(three.hub.entries) - three.hub.first < 5


def test_a_leader_that_was_removed_hands_over_and_ends(three: Cluster, logged_errors: list[Any]) -> None:
    leader = three.elect()
    leader.publish(b"before")
    three.run(1)
    three.hub.ask(MemberChange("r", listed(three).version, ChangeKind.REMOVE, leader.name).pack())
    three.run(2, until=lambda: leader.journal.state is JournalState.FAILED)
    assert leader.journal.state is JournalState.FAILED
    assert f"this server, {leader.name}, was removed from cluster fyrehose" in str(logged_errors[0]["log_failure"])
    logged_errors.clear()
    others = [server for server in three.servers.values() if server is not leader]
    three.run(2, until=lambda: any(server.role is State.LEADER for server in others))
    (new,) = [server for server in others if server.role is State.LEADER]
    new.publish(b"after")
    three.run(2)
    assert new.read() == [b"before", b"after"]
    assert leader.name not in role_of(new).members.names


def test_a_server_that_is_no_member_ends_with_advice(three: Cluster, logged_errors: list[Any]) -> None:
    stranger = three.servers["d"] = Server(three, "d").start()
    three.run(10, until=lambda: stranger.journal.state is JournalState.FAILED)
    assert "run `fyrehose cluster add d`" in str(logged_errors[0]["log_failure"])
    logged_errors.clear()


def test_a_change_outlives_the_leader_that_has_appended_it(three: Cluster) -> None:
    leader = three.elect()
    ask(three, ChangeKind.ADD, "d")
    leader.stop()
    del three.servers[leader.name]
    three.run(10)
    assert "d" in listed(three).names


def leading(members: Members) -> Role:
    """Return the role of a, which leads with these members."""
    role = Role(EntryWriter("a", 1), 0)
    role.validity.members = members
    role.take_over(0)
    role.accepted(role.inflight[0].entry, 1)
    role.validity.members = members
    role.take()
    return role


def membership() -> Membership:
    return Membership(Peers(ReplicationSettings(name="a"), 1))


def hear(peers: Peers, name: str, now: float, **more: Any) -> None:
    heard = Peers(ReplicationSettings(name=name), 2)
    peers.hear(heard.pack(Role(EntryWriter(name, 2), 0), more.get("leaving", False), now=0.0), now)


def test_the_leader_answers_why_a_change_is_refused() -> None:
    made, role = membership(), leading(Members(4, ("a", "b")))
    made.ask(MemberChange("r", 4, ChangeKind.REMOVE, "b"), role, 10.0)
    assert made.answer["id"] == "r"
    assert "b cannot be removed" in made.answer["refused"]
    assert not role.changes_members


def test_the_leader_answers_when_the_change_is_confirmed() -> None:
    made, role = membership(), leading(Members(4, ("a", "b")))
    request = MemberChange("r", 4, ChangeKind.ADD, "c")
    made.ask(request, role, 10.0)
    assert role.changes_members
    made.ask(request, role, 10.0)
    assert made.answer == {}
    role.accepted(role.inflight[0].entry, 2)
    made.ask(request, role, 10.0)
    assert made.answer == {"id": "r", "refused": ""}
    assert not role.changes_members


def trimmed(made: Membership, now: float) -> Role:
    """Return the role of a, which leads, has trimmed up to entry 2, and hears b and c, which is behind."""
    role = leading(Members(4, ("a", "b", "c")))
    role.add_checkpoint()
    role.accepted(role.inflight[0].entry, 2)
    role.noted(0)
    role.purge({"b": 2}, absent=["c"])
    role.take()
    say(made, now, b=2, c=1)
    return role


def say(made: Membership, now: float, **reported: int) -> None:
    for name, entry in reported.items():
        said = {"name": name, "incarnation": 5, "epoch": 1, "state": "follower", "reported": entry}
        made.peers.hear(json.dumps(said).encode(), now)


def test_member_with_one_of_two_copies_stays_unless_it_is_silent() -> None:
    made = membership()
    role = trimmed(made, 10.0)
    request = MemberChange("r", 4, ChangeKind.REMOVE, "b")
    made.ask(request, role, 10.0)
    assert made.answer == {}
    say(made, 20.0, b=2, c=1)
    made.ask(request, role, 20.0)
    assert "b has to stay a member until two others have the trimmed entries on disk" in made.answer["refused"]
    made.ask(MemberChange("s", 4, ChangeKind.REMOVE, "c"), role, 20.0)
    assert role.changes_members, "a and b have everything"
    role = leading(Members(4, ("a", "b", "c")))
    made.ask(request, role, 40.0)
    assert role.changes_members


def test_removal_waits_for_a_server_that_is_behind_by_a_moment() -> None:
    made = membership()
    role = trimmed(made, 10.0)
    request = MemberChange("r", 4, ChangeKind.REMOVE, "b")
    made.ask(request, role, 10.0)
    assert not role.changes_members
    say(made, 10.5, b=2, c=2)
    made.ask(request, role, 10.5)
    assert role.changes_members


def test_another_change_waits_until_the_first_is_confirmed() -> None:
    made, role = membership(), leading(Members(4, ("a", "b")))
    made.ask(MemberChange("r", 4, ChangeKind.ADD, "c"), role, 10.0)
    made.ask(MemberChange("s", 4, ChangeKind.ADD, "d"), role, 10.0)
    assert [item.entry.members for item in role.inflight] == [Members(5, ("a", "b", "c"))]


def test_requests_to_a_follower_are_ignored() -> None:
    made, role = membership(), leading(Members(4, ("a", "b")))
    made.ask(MemberChange("r", 4, ChangeKind.ADD, "c"), Role(EntryWriter("a", 1), 0), 10.0)
    assert made.answer == {}
    assert not role.changes_members


def test_only_servers_that_were_just_heard_take_a_free_place() -> None:
    made, role = membership(), leading(Members(4, ("a", "b"), places=1))
    made.fill_places(role, 10.0)
    hear(made.peers, "b", 10.0)
    hear(made.peers, "c", 5.0)
    hear(made.peers, "d", 10.0, leaving=True)
    made.fill_places(role, 10.0)
    assert not role.changes_members
    hear(made.peers, "c", 10.0)
    made.fill_places(role, 10.0)
    assert [item.entry.members for item in role.inflight] == [Members(5, ("a", "b", "c"))]


def test_without_free_places_nobody_is_added() -> None:
    made, role = membership(), leading(Members(4, ("a", "b")))
    hear(made.peers, "c", 10.0)
    made.fill_places(role, 10.0)
    assert not role.changes_members
