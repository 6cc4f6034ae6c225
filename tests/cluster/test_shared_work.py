"""While servers of a cluster are cut off, stopped and started, each record has one worker at a time, and one result."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest
from twisted.python.failure import Failure

from fyrehose.cluster.role import State
from fyrehose.errors import Following, FyrehoseError
from fyrehose.interfaces import JournalState
from fyrehose.records import Run
from fyrehose.subscriptions.pool import Item
from fyrehose.subscriptions.progress import SubscriptionOptions

from .test_member import Cluster, Server

LEASE = 6


@attrs.define(eq=False)
class Worker:
    """Leases records, and settles each with its result; repeats requests that are not answered.

    :ivar held: the leases that the worker believes to have: the token, and their end
    """

    pool: Pool
    name: str
    held: dict[int, tuple[tuple[int, int], float]] = attrs.field(factory=dict)

    def believed(self) -> set[int]:
        now = self.pool.cluster.clock.seconds()
        self.held = {seq: (token, until) for seq, (token, until) in self.held.items() if until > now}
        return set(self.held)

    def act(self, server: Server, dice: Random) -> None:
        sharing = server.broker.named
        try:
            shared = sharing.find("work")
        except FyrehoseError:
            return
        sent = self.pool.cluster.clock.seconds()
        if self.believed() and dice.random() < 0.6:
            seq = dice.choice(sorted(self.held))
            token = self.held[seq][0]
            if dice.random() < 0.3:
                extended = sharing.act(shared, [Item("extend", seq, seq, token)], self.name)
                extended.addCallback(self.extended, sent).addErrback(self.refused)
                return
            result = Run.of("results", [b"%d" % seq], source="t")
            settled = sharing.act(shared, [Item("done", seq, seq, token)], self.name, [result])
            settled.addCallback(self.settled, seq).addErrback(self.refused)
        else:
            leased = sharing.lease(shared, self.name, None, dice.randint(1, 3), dice.choice((0, 1)))
            leased.addCallback(self.leased, sent).addErrback(self.refused)

    def leased(self, found: Any, sent: float) -> None:
        for part in found:
            for seq in range(part.lease.first, part.lease.last + 1):
                self.holds(seq, part.lease.token, sent)

    def holds(self, seq: int, token: tuple[int, int], sent: float) -> None:
        self.held[seq] = token, sent + LEASE
        others = [worker.name for worker in self.pool.workers if worker is not self and seq in worker.believed()]
        if seq in self.believed() and others:
            self.pool.violations.append(f"{self.name} and {others} hold record {seq}")

    def extended(self, answer: Any, sent: float) -> None:
        for item, token in answer.extended:
            self.holds(item.first, token, sent)

    def settled(self, answer: Any, seq: int) -> None:
        self.held.pop(seq, None)

    def refused(self, failure: Failure) -> None:
        failure.trap(FyrehoseError)


@attrs.define(eq=False)
class Pool:
    """The workers of a cluster.

    :ivar violations: broken promises, as text
    """

    cluster: Cluster
    workers: list[Worker] = attrs.field(init=False)
    violations: list[str] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.workers = [Worker(self, f"w{number}") for number in range(3)]

    def step(self, dice: Random) -> None:
        for server in self.cluster.servers.values():
            if not server.up:
                continue
            if not server.broker.follows and server.role not in (State.LEADER, State.CANDIDATE):
                server.stop()  # As a process does that was deposed.
                server.start()
            elif server.journal.state is JournalState.WRITABLE:
                dice.choice(self.workers).act(server, dice)
        alone = [
            server.name for server in self.cluster.servers.values() if server.up and server.journal.standing.leads_alone
        ]
        if len(alone) > 1:
            self.violations.append(f"{alone} lead alone")

    def run(self, seconds: float, dice: Random) -> None:
        end = self.cluster.clock.seconds() + seconds
        while self.cluster.clock.seconds() < end:
            self.step(dice)
            self.cluster.run(0.1)


def begin(cluster: Cluster, records: int, lease: int = LEASE) -> Server:
    """Start three servers, and share a stream with so many records."""
    leader = cluster.elect("abc")
    leader.broker.publish([Run.of("jobs", [b"%d" % seq for seq in range(1, records + 1)], source="t")])
    created: list[Any] = []
    options = SubscriptionOptions(stream="jobs", lease=lease, limit=0, window=8)
    leader.broker.named.create("work", options, 1).addCallback(created.append)
    cluster.run(2, until=lambda: bool(created))
    assert created
    return leader


def lease(cluster: Cluster, server: Server, most: int, wait: float = 1) -> list[int]:
    sharing, found = server.broker.named, []
    sharing.lease(sharing.find("work"), "w", None, most, wait).addCallback(found.append)
    cluster.run(wait + 2, until=lambda: bool(found))
    return [seq for part in found[0] for seq in range(part.lease.first, part.lease.last + 1)]


def settle(cluster: Cluster, server: Server, first: int, last: int, token: tuple[int, int]) -> list[str]:
    sharing, found = server.broker.named, []
    sharing.act(sharing.find("work"), [Item("done", first, last, token)], "w").addCallback(found.append)
    cluster.run(2, until=lambda: bool(found))
    return [why for _, why in found[0].refused]


def test_a_leader_that_was_cut_off_leases_nothing_when_another_one_may_lead(cluster: Cluster) -> None:
    old = begin(cluster, 10)
    assert lease(cluster, old, 1) == [1]
    cluster.run(5)
    assert lease(cluster, old, 1) == [2], "an append proves that it leads"
    cluster.hub.away.add(old.name)
    others = [server for server in cluster.servers.values() if server is not old]
    cluster.run(2.9, until=lambda: not old.journal.standing.leads_alone)
    cluster.run(0.1)
    assert not old.journal.standing.leads_alone
    assert not any(server.role is State.LEADER for server in others)
    waiting: list[Any] = []
    sharing = old.broker.named
    sharing.lease(sharing.find("work"), "w", None, 1, 1).addBoth(waiting.append)
    cluster.run(1)
    assert old.journal.state is JournalState.WRITABLE, "it does not know yet"
    assert waiting in ([], [[]]) or isinstance(waiting[0], Failure)


def test_shared_work_continues_at_the_next_leader(cluster: Cluster) -> None:
    old = begin(cluster, 10)
    assert lease(cluster, old, 4) == [1, 2, 3, 4]
    assert settle(cluster, old, 1, 1, (1, 1)) == []
    cluster.settle()
    cluster.hub.away.add(old.name)
    new = cluster.elect_other(old)
    shared = new.broker.named.find("work")
    assert shared.pool.before == 1
    assert settle(cluster, new, 2, 2, (1, 1)) == [], "the worker that has it settles it there"
    leased = lease(cluster, new, 9)
    assert leased == [9], "no other record can have been leased before: the others wait for the grace"
    cluster.run(LEASE)
    assert lease(cluster, new, 9)[:2] == [3, 4]
    assert settle(cluster, new, 3, 4, (2, 1)) == []
    assert shared.pool.lanes["jobs"].progress.counts["settled"] == 4


def test_a_follower_does_not_show_outdated_progress_of_shared_subscriptions(cluster: Cluster) -> None:
    leader = begin(cluster, 10)
    cluster.settle()
    follower = next(server for server in cluster.servers.values() if server is not leader)
    follower.stop()
    follower.start()
    cluster.run(1)
    sharing = follower.broker.named
    assert list(sharing.listed()) == []
    with pytest.raises(Following):
        sharing.show(sharing.find("work"))
    assert [each["name"] for each in leader.broker.named.listed()] == ["work"]


@pytest.mark.parametrize("seed", range(4))
def test_each_record_has_one_worker_and_one_result_over_take_overs(cluster: Cluster, seed: int, ladder: Any) -> None:
    dice, records = Random(seed), ladder(30, 200)
    cluster.hub.rnd = Random(seed)
    begin(cluster, records)
    pool = Pool(cluster)
    for _ in range(ladder(15, 60)):
        luck, server = dice.random(), cluster.servers[dice.choice("abc")]
        cluster.hub.loss = dice.choice([0, 0, 0.2])
        if luck < 0.3:
            cluster.hub.away.symmetric_difference_update({server.name})
        elif luck < 0.5 and server.up:
            server.stop()
        elif luck < 0.7 and not server.up:
            server.start()
        pool.run(dice.choice([0.5, 2, 6]), dice)
    cluster.hub.loss = 0
    cluster.hub.away.clear()
    for server in cluster.servers.values():
        if not server.up:
            server.start()
    for _ in range(100):
        pool.run(3, dice)
        shares = [server.broker.table.entries["work"] for server in cluster.leaders if not server.broker.follows]
        if any(share.pool.lanes["jobs"].progress.final.floor == records for share in shares):
            break
    pool.run(3, dice)
    cluster.settle()
    assert pool.violations == []
    (leader,) = cluster.leaders
    assert leader.broker.table.entries["work"].pool.lanes["jobs"].progress.counts["settled"] == records
    found: list[bytes] = []
    while runs := leader.journal.read("results", len(found) + 1, 1 << 20):
        found += [record.payload for run in runs for record in run.records()]
    assert sorted(map(int, found)) == list(range(1, records + 1))
