"""The members of a cluster change while it runs: added, removed, replaced, and the first ones by themselves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fyrehose.cluster.entries import EntryKind, EntryWriter
from fyrehose.cluster.members import ChangeKind, MemberChange, Members
from fyrehose.cluster.membership import CATCH_UP, PRESENT, SILENT, Membership
from fyrehose.cluster.peers import Peers
from fyrehose.cluster.role import Role, State
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.errors import FyrehoseError
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
    members = listed(made)
    assert sorted(members.names) == ["a", "b", "c"], "the first servers become members by themselves"
    assert (members.places, members.version) == (0, 3)
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


class Office:
    """A leader, random requests of operators, and messages of servers: the model of when the members change.

    :ivar heard: by name, when a server's last message came, the last entry that it has on disk, and whether it leaves
    :ivar waits: the request that waits for a second copy, and since when
    """

    def __init__(self, seed: int) -> None:
        self.dice, self.now = Random(seed), 100.0
        self.membership = Membership(Peers(ReplicationSettings(name="a"), 1))
        self.role = leading(Members(4, ("a", "b", "c"), self.dice.choice([0, 2])))
        self.heard: dict[str, tuple[float, int, bool]] = {}
        self.waits, self.late = ("", 0.0), self.dice.random() < 0.5
        self.request = self.another()
        self.ran: Counter[str] = Counter()

    def another(self) -> MemberChange:
        kind = self.dice.choice([ChangeKind.ADD, ChangeKind.REMOVE, ChangeKind.REPLACE, ChangeKind.CLOSE])
        version = self.role.members.version - (self.dice.random() < 0.1)
        name, by = self.dice.choice("abcdex"), self.dice.choice("bcdex")
        return MemberChange(f"r{self.dice.random()}", version, kind, name, by)

    def hear(self) -> None:
        name, last, leaving = self.dice.choice("bcde"), self.role.applied, self.dice.random() < 0.2
        most = self.role.trimmed - 1 if self.late else last
        reported = max(0, self.dice.choice([0, most, most, self.role.trimmed - 1]))
        self.heard[name] = self.now, reported, leaving
        said = {"name": name, "incarnation": 5, "epoch": 1, "state": "follower", "reported": reported}
        self.membership.peers.hear(json.dumps(said | {"leaving": leaving}).encode(), self.now)

    def wait(self) -> None:
        self.now += self.dice.choice([0.5, 2.0, 5.0])

    def confirm(self) -> None:
        while self.role.inflight:
            self.role.accepted(self.role.inflight[0].entry, self.role.applied + 1)
        self.role.noted(0)

    def trim(self) -> None:
        """Trim what this server has, as it does when something else has purged the shared log."""
        self.role.add_checkpoint()
        self.confirm()
        self.role.purge({}, alone=True)

    def changed(self) -> Members | None:
        """Return the members that the leader appends."""
        return next((item.entry.members for item in self.role.inflight if item.entry.kind is EntryKind.MEMBERS), None)

    def ask(self) -> None:
        if self.dice.random() < (0.05 if self.late else 0.4):  # operators wait for servers that are late
            self.request = self.another()
        role, before, members, asked = self.role, self.changed(), self.role.members, self.request
        answer, after = self.membership.answer, before
        if before is None:
            try:
                wanted = asked.apply(members)
            except FyrehoseError as error:
                wanted, answer = members, {"id": asked.ident, "refused": str(error)}
            else:
                has = {name: reported for name, (_, reported, _) in self.heard.items()} | {"a": role.reported}
                present = {"a"} | {name for name, (time, _, _) in self.heard.items() if time > self.now - SILENT}
                leaving = {*members.names} - {*wanted.names}
                if leaving & present and sum(has.get(name, 0) >= role.trimmed for name in wanted.names) < 2:
                    self.waits = (asked.ident, self.now if self.waits[0] != asked.ident else self.waits[1])
                    self.ran["waits for a copy"] += 1
                    if self.now - self.waits[1] >= CATCH_UP:
                        why = "has to stay a member until two others have the trimmed entries on disk"
                        helps = "start or replace those that are behind first"
                        answer = {"id": asked.ident, "refused": f"{leaving.pop()} {why}; {helps}"}
                        self.ran["keeps the last copy"] += 1
                elif wanted == members:
                    answer = {"id": asked.ident, "refused": ""}
                else:
                    after = wanted
                    self.ran[f"changes by {asked.kind.value}"] += 1
        self.membership.ask(asked, role, self.now)
        assert self.changed() == after, f"{asked} of {members} at {self.now}, heard {self.heard}"
        assert self.membership.answer == answer, f"{asked} of {members} at {self.now}, heard {self.heard}"

    def ask_a_follower(self) -> None:
        before = dict(self.membership.answer)
        self.membership.ask(self.request, Role(EntryWriter("a", 1), 0), self.now)
        assert self.membership.answer == before, "only the leader answers"

    def fill(self) -> None:
        members, before = self.role.members, self.changed()
        just = [name for name, (time, _, leaving) in self.heard.items() if time > self.now - PRESENT and not leaving]
        fitting = [name for name in just if name not in members.names and members.places]
        self.membership.fill_places(self.role, self.now)
        expected = [members.added(name) for name in fitting] if before is None else []
        assert self.changed() in (expected or [before]), f"{fitting} may take a place of {members}"
        self.ran["takes a place"] += bool(expected)

    def step(self) -> None:
        steps = [self.hear] * 4 + [self.wait] * 2 + [self.ask] * 5 + [self.confirm, self.trim, self.fill]
        self.dice.choice([*steps, self.ask_a_follower])()


def test_random_requests_change_the_members_unless_the_last_copies_would_leave(log_lines: list[str]) -> None:
    ran: Counter[str] = Counter()
    for seed in range(100):
        office = Office(seed)
        for _ in range(80):
            office.step()
        ran += office.ran
    made = sum("an operator makes" in line for line in log_lines)
    assert made == sum(count for name, count in ran.items() if name.startswith("changes")), "each change is logged"
    assert len(ran) == 7, f"a branch never ran: {ran}"
    assert min(ran.values()) > 4, f"a branch hardly ever ran: {ran}"
