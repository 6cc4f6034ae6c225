"""Servers with real journals and a shared log in memory: they follow, take over, step down, and stay identical."""

from __future__ import annotations

import fcntl
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from click.testing import CliRunner
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock, deferLater

from fyrehose.broker.broker import Broker
from fyrehose.broker.once import STREAM as KEYS
from fyrehose.broker.sequencer import Sequencer
from fyrehose.cli.command import main
from fyrehose.cluster.entries import EntryKind
from fyrehose.cluster.members import ChangeKind, MemberChange
from fyrehose.cluster.replicated import replicated
from fyrehose.cluster.role import State
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.cluster.shared_log import EntryRange
from fyrehose.errors import ConfigError, Following, JournalUnreachable, OutcomeUnknown, ReadOnly
from fyrehose.interfaces import JournalState
from fyrehose.journal import scan
from fyrehose.journal.commit import InlineWorker
from fyrehose.journal.files import Files
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import Durability, JournalSettings
from fyrehose.journal.writer import SyncFailed, Writer
from fyrehose.records import Run
from fyrehose.server.journal_copy import copy_journal
from fyrehose.testing.sinks import RecordingSink
from tests.doubles.shared_log import Hub


@attrs.define(eq=False, repr=False)
class Disk(Files):
    """The disk of the server *name*, whose free space the test may decide."""

    cluster: Cluster
    name: str

    def free(self, directory: Path) -> int:
        return self.cluster.free.get(self.name, 1 << 40)


@attrs.define(eq=False, repr=False)
class DiskThread(InlineWorker):
    """The thread of the server *name* that writes its disk, which the test may slow down."""

    cluster: Cluster
    name: str

    def call(self, job: Callable[[], Any]) -> Deferred[Any]:
        delay = self.cluster.slow.get(self.name, 0.0)
        return deferLater(self.cluster.clock, delay, job) if delay else super().call(job)


@attrs.define(eq=False, repr=False)
class Server:
    """One server of the cluster: a broker, its journal, and what was acknowledged to publishers."""

    cluster: Cluster
    name: str
    broker: Broker = attrs.field(init=False)
    journal: FileJournal = attrs.field(init=False)
    acknowledged: list[bytes] = attrs.field(factory=list)
    refused: list[Any] = attrs.field(factory=list)
    starts: int = 0
    up: bool = False
    reopenings: list[str] = attrs.field(factory=list)
    #: how often it had taken over when it asked to be opened again; None: it has not asked since its start
    must_follow: int | None = None

    def start(self) -> Server:
        self.starts, self.must_follow = self.starts + 1, None
        cluster = self.cluster
        self.journal = replicated(
            cluster.clock,
            cluster.directory / self.name,
            JournalSettings(segment_size=1 << 14, min_free=1),
            files=Disk(cluster, self.name),
            worker=DiskThread(cluster, self.name),
            replication=ReplicationSettings(
                servers=("nats://x:1",),
                name=self.name,
                address=f"{self.name}:1",
                members=cluster.members,
                member_timeout=cluster.member_timeout,
                log_limit=cluster.log_limit,
                journal=str(cluster.directory / self.name) if cluster.fills else "",
            ),
            copy=partial(cluster.copy, "") if cluster.fills else None,
            in_thread=maybeDeferred,
            on_reopen=self.must_reopen,
            shared_log=cluster.hub.log(self.name),
            incarnation=self.starts + 331 * (ord(self.name[-1]) - ord("a")),
        )
        self.broker = Broker(cluster.clock, self.journal, Sequencer())
        opened: list[Any] = []
        self.broker.open().addBoth(opened.append)
        cluster.run(20, until=lambda: bool(opened))
        assert opened == [None], opened
        self.up = True
        return self

    @property
    def role(self) -> State:
        return self.journal.gate.cluster.role.state

    @property
    def takeovers(self) -> int:
        return self.journal.gate.cluster.takeovers

    def must_reopen(self, reason: str) -> None:
        self.reopenings.append(reason)
        self.must_follow = self.takeovers

    def publish(self, payload: bytes) -> None:
        published = self.broker.publish([Run.of("s", [payload], source="t")])
        published.addCallback(lambda _: self.was_acknowledged(payload))
        published.addErrback(lambda failure: self.refused.append(failure.value))

    def was_acknowledged(self, payload: bytes) -> None:
        self.acknowledged.append(payload)
        self.cluster.acknowledged_at.append((self.cluster.clock.seconds(), self.journal.bounds("s")[1]))

    def stop(self) -> None:
        closed: list[Any] = []
        self.broker.close().addBoth(closed.append)
        self.cluster.run(10, until=lambda: bool(closed))
        assert closed == [None], closed
        assert self.name not in self.cluster.hub.here, "its connection to the shared log is closed"
        self.up = False

    def read(self, stream: str = "s") -> list[bytes]:
        found: list[bytes] = []
        while runs := self.journal.read(stream, len(found) + 1, 1 << 20):
            found += [record.payload for run in runs for record in run.records()]
        return found

    def log(self) -> bytes:
        """Return the durable bytes of the journal."""
        data = b"".join(segment.path.read_bytes() for segment in scan.segments(self.journal.directory))
        return data[: scan.read_mark(self.journal.directory)]


@attrs.define(eq=False, repr=False)
class Cluster:
    directory: Path
    members: int = 3
    #: Whether servers copy each other's journals by themselves.
    fills: bool = False
    copy: Callable[..., int] = copy_journal
    member_timeout: float = 86400.0
    log_limit: int = 1 << 30
    #: The free space of servers' disks in bytes, and how long each of their jobs takes in seconds, by name.
    free: dict[str, int] = attrs.field(factory=dict)
    slow: dict[str, float] = attrs.field(factory=dict)
    #: When the last number of the stream "s" was acknowledged, and that number.
    acknowledged_at: list[tuple[float, int]] = attrs.field(factory=list)
    clock: Clock = attrs.field(factory=Clock)
    hub: Hub = attrs.field(init=False)
    servers: dict[str, Server] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.hub = Hub(self.clock, Random(1))

    def add(self, name: str) -> Server:
        """Start another server, which the leader, if there is one, makes a member."""
        for leader in self.leaders:
            members = leader.journal.gate.cluster.role.members
            self.hub.ask(MemberChange("r", members.version, ChangeKind.ADD, name).pack())
        self.servers[name] = Server(self, name)
        return self.servers[name].start()

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        end = self.clock.seconds() + seconds
        while self.clock.seconds() < end and not until():
            self.clock.advance(0.01)
            if round(self.clock.seconds() * 100) % 10 == 0:
                self.check_ages()

    def check_ages(self) -> None:
        """Compare how old each server says that its records may be with the truth.

        The truth is what was acknowledged before, and when the shared log last answered anybody.
        """
        now = self.clock.seconds()
        serving = (JournalState.WRITABLE, JournalState.READ_ONLY)
        for server in (each for each in self.servers.values() if each.up and each.journal.state in serving):
            standing, leads = server.journal.standing, server.role is State.LEADER
            assert standing.caught_up == (standing.age < 10.0), f"ready for readers, or not: {standing}"
            takeovers = server.takeovers
            assert server.must_follow in (None, takeovers), "a server took over that must be opened again first"
            if leads and standing.age == 0.0:  # nobody can have taken over
                last = next(each for each in reversed(self.hub.entries) if each.kind is EntryKind.TAKEOVER)
                assert last.writer.name == server.name, f"{server.name} believes to lead alone, but {last.writer} leads"
                continue
            must = max((last for at, last in self.acknowledged_at if at < now - standing.age), default=0)
            last = server.journal.bounds("s")[1]
            assert last >= must, f"{server.name} lacks {must - last} records that it says it has: {standing}"
            looked = self.hub.looked.get(server.name, -inf) if leads else max(self.hub.looked.values(), default=-inf)
            true_age = now - looked
            assert standing.age >= true_age, (
                f"{server.name}, a {server.role.value}, says that its records are {standing.age:.3f} s old at most, "
                f"but they are {true_age:.3f} s old"
            )

    @property
    def leaders(self) -> list[Server]:
        return [server for server in self.servers.values() if server.up and server.role is State.LEADER]

    def elect(self, names: str = "") -> Server:
        """Add a server for each letter of *names*, and run until one server leads, and accepts messages."""
        for name in names:
            self.add(name)
        self.run(30, until=lambda: any(s.journal.state is JournalState.WRITABLE for s in self.leaders))
        (leader,) = self.leaders
        return leader

    def elect_other(self, old: Server) -> Server:
        """Run until another server than *old* leads, which is cut off, and return it once it accepts messages."""

        def leads() -> bool:
            return any(server.journal.state is JournalState.WRITABLE for server in self.leaders if server is not old)

        self.run(30, until=leads)
        (new,) = (server for server in self.leaders if server is not old)
        return new

    def elect_of_two(self) -> Server:
        """Add the only two members, a and b, and return the leader."""
        self.members = 2
        return self.elect("ab")

    def open_again(self) -> None:
        """Open the journals of the servers that have asked for it, as their processes would."""
        for server in self.servers.values():
            if server.up and server.reopenings:
                server.reopenings.clear()
                server.stop()
                server.start()

    def publish_five(self, leader: Server) -> None:
        """Publish five messages, each followed by time for a checkpoint."""
        for number in range(5):
            leader.publish(b"%d" % number)
            self.run(3)

    def settle(self) -> None:
        """Run until all servers have the same durable bytes."""

        def same() -> bool:
            writers = [server.journal.writer for server in self.servers.values() if server.up]
            ends = {writer.released for writer in writers} | {writer.position for writer in writers}
            return len(ends) == 1 == len({server.log() for server in self.servers.values() if server.up})

        self.run(30, until=same)
        logs = {name: server.log() for name, server in self.servers.items() if server.up}
        assert same(), {name: len(data) for name, data in logs.items()}


def test_the_status_names_the_role_and_the_leader(cluster: Cluster) -> None:
    leader = cluster.elect("ab")
    cluster.run(1)
    follower = next(server for server in cluster.servers.values() if server is not leader)
    leads, follows = leader.journal.status().cluster, follower.journal.status().cluster
    assert leads is not None
    assert follows is not None
    assert (leads.role, leads.takeovers, leads.silent) == ("leader", 1, 0.0)
    assert (follows.role, follows.leader, follows.takeovers, follows.behind) == ("follower", leader.name, 0, 0)
    assert leads.epoch == follows.epoch == 1
    rows = [[(each.name, each.role, each.address, each.alive) for each in seen.members] for seen in (leads, follows)]
    roles = {leader.name: "leader", follower.name: "follower"}
    assert rows == [[(name, roles[name], f"{name}:1", True) for name in "ab"]] * 2, "a follower has its leader's table"
    leader.publish(b"x")
    cluster.run(6)
    assert [each.journal.status().cluster.log_size > 0 for each in (leader, follower)] == [True, False]
    assert follower.journal.standing.caught_up
    cluster.hub.away.add(follower.name)
    cluster.run(9)
    assert follower.journal.standing.caught_up
    cluster.run(2)
    assert not follower.journal.standing.caught_up


def test_healthy_follower_stays_ready_for_readers_under_load(cluster: Cluster) -> None:
    leader = cluster.elect("abc")
    cluster.run(2)
    follower = next(server for server in cluster.servers.values() if server is not leader)
    ready = []
    for number in range(1000):
        leader.publish(b"%d" % number)
        cluster.run(0.01)
        ready.append(follower.journal.standing.caught_up)
    assert all(ready), f"not ready {ready.count(False)} times of {len(ready)}"


def test_a_follower_refuses_publishes_and_retirements_and_names_the_leader(cluster: Cluster) -> None:
    leader = cluster.elect("ab")
    cluster.run(1)
    follower = next(server for server in cluster.servers.values() if server is not leader)
    follower.publish(b"x")
    (refused,) = follower.refused
    assert isinstance(refused, Following)
    assert refused.leader == f"{leader.name}:1"
    assert "publish there" in str(refused)
    with pytest.raises(ReadOnly, match=f"follows {leader.name} at {leader.name}:1; publish there"):
        raise_from(follower.journal.retire(["s"]))
    opened: list[str] = []
    for server in (leader, follower):
        server.broker.when_leading().addCallback(lambda _, name=server.name: opened.append(name))
    assert opened == [leader.name]
    leader.stop()
    cluster.elect()
    assert opened == [leader.name, follower.name]


def raise_from(failed: Deferred[Any]) -> None:
    found: list[Any] = []
    failed.addErrback(lambda failure: found.append(failure.value))
    raise found[0]


def test_a_subscriber_that_comes_from_another_server_is_not_given_a_message_twice(cluster: Cluster) -> None:
    leader = cluster.elect("abc")
    behind = next(server for server in cluster.servers.values() if server is not leader)
    leader.publish(b"1")
    cluster.settle()
    cluster.hub.away.add(behind.name)
    for payload in (b"2", b"3"):
        leader.publish(payload)
    cluster.run(1)
    sink = RecordingSink()
    subscription = behind.broker.subscribe("s", 3, sink)  # it has received three messages from the leader
    subscription.resumeProducing()
    cluster.hub.away.clear()
    leader.publish(b"4")
    cluster.run(5)
    assert behind.read() == [b"1", b"2", b"3", b"4"]
    assert sink.payloads == [b"4"]


def test_a_journal_of_another_cluster_of_the_same_length_is_refused(
    cluster: Cluster, tmp_path: Path, logged_errors: list[Any]
) -> None:
    other = Cluster(tmp_path / "other")
    for each in (cluster, other):
        each.elect("abc").publish(b"mine" if each is cluster else b"them")
        each.settle()
    for server in other.servers.values():
        server.stop()
    stray = next(server for server in cluster.servers.values() if server.role is State.FOLLOWER)
    stray.stop()
    good = [server for server in cluster.servers.values() if server is not stray]
    shutil.rmtree(stray.journal.directory)
    assert len(other.servers[stray.name].log()) == len(good[0].log()), "a position alone cannot tell them"
    (other.directory / stray.name).rename(stray.journal.directory)
    stray.start()
    cluster.run(10, until=lambda: stray.journal.state is JournalState.FAILED)
    assert stray.journal.state is JournalState.FAILED
    (said,) = logged_errors
    assert "is of another cluster: its journal is" in str(said["log_failure"])
    logged_errors.clear()
    leader, said = cluster.elect(), cluster.hub.said[stray.name]
    leader.publish(b"more")
    cluster.run(10)
    assert leader in good
    assert cluster.hub.said[stray.name] == said, "it takes part no more"
    assert [server.read() for server in good] == [[b"mine", b"more"]] * 2
    assert stray.read() == [b"them"]
    closed: list[Any] = []
    stray.journal.close().addBoth(closed.append)
    cluster.run(10, until=lambda: bool(closed))
    stray.up = False


def test_a_leader_whose_messages_are_late_counts_as_alive_by_its_entries(cluster: Cluster) -> None:
    """Otherwise two servers that miss messages of the leader would depose each other again and again."""
    leader = cluster.elect("abc")
    cluster.settle()
    cluster.hub.hears_others = False
    for number in range(20):
        leader.publish(b"%d" % number)
        cluster.run(1)
    assert cluster.leaders == [leader]
    assert leader.journal.gate.cluster.role.validity.epoch == 1
    leader.stop()
    cluster.run(20, until=lambda: bool(cluster.leaders))
    assert cluster.leaders


def test_subscriptions_and_keys_continue_at_the_next_leader(cluster: Cluster) -> None:
    old = cluster.elect("abc")
    for payload in (b"1", b"2", b"3"):
        old.publish(payload)
    keyed: list[tuple[int, ...]] = []
    old.broker.publish([Run.of("s", [b"4"], source="t")], key="key").addCallback(keyed.append)
    named: list[Any] = []
    old.broker.named.open("billing", "s", 0).addCallback(named.append)
    cluster.run(1)
    old.broker.named.acknowledge(named[0], 3)
    cluster.settle()
    cluster.hub.away.add(old.name)
    new = cluster.elect_other(old)
    assert new.broker.named.find("billing").seq == 3
    new.broker.publish([Run.of("s", [b"4"], source="t")], key="key").addCallback(keyed.append)
    cluster.run(1)
    assert keyed == [(4,), (4,)]
    assert new.read() == [b"1", b"2", b"3", b"4"]
    cluster.hub.away.clear()
    cluster.run(10, until=lambda: old.role is State.FOLLOWER)


def test_a_follower_answers_no_repeated_key_before_the_leader_has_acknowledged_it(cluster: Cluster) -> None:
    """The leader says that its readers find everything that was acknowledged."""
    leader = cluster.elect("abc")
    leader.publish(b"first")
    cluster.run(10)  # until the list of members and a checkpoint are appended
    cluster.hub.queues[leader.name] = 1.9  # so the answer to its append reaches the leader late
    answers: list[Any] = []
    leader.broker.publish([Run.of("s", [b"x"], source="t")], key="key").addCallback(answers.append)
    (follower, _) = (server for server in cluster.servers.values() if server is not leader)
    cluster.run(1.8, until=lambda: follower.journal.bounds("s") == (1, 2))
    assert (follower.journal.bounds("s"), leader.journal.bounds("s"), answers) == ((1, 2), (1, 1), [])
    repeated: list[Any] = []
    again = follower.broker.publish([Run.of("s", [b"x"], source="t")], key="key")
    again.addErrback(lambda failure: type(failure.value)).addCallback(repeated.append)
    cluster.run(0.1)
    assert repeated == [Following]
    cluster.hub.queues.clear()
    cluster.settle()
    assert answers == [(2,)]


def test_a_server_that_takes_over_has_applied_all_entries(cluster: Cluster) -> None:
    """Keys of thousands of publishes take seconds to read, and another server takes over from one that is silent."""
    old = cluster.elect("abc")
    for number in range(20):
        old.broker.publish([Run.of("s", [b"%d" % number], source="t")], key=f"key {number}")
        cluster.run(0.1)
    cluster.settle()
    cluster.hub.away.add(old.name)
    cluster.run(2)
    read: list[str] = []
    for server in cluster.servers.values():

        def reading(stream: str, start: int, size: int, find: Any = server.journal.read) -> Any:
            read.append(stream)
            return find(stream, start, size)

        server.journal.read = reading
    new = cluster.elect_other(old)
    assert KEYS not in read
    numbers: list[tuple[int, ...]] = []
    new.broker.publish([Run.of("s", [b"7"], source="t")], key="key 7").addCallback(numbers.append)
    assert numbers == [(8,)]


def leader_alone(cluster: Cluster) -> Server:
    """Return the leader of a cluster that has no other member."""
    cluster.members = 1
    return cluster.elect("a")


@pytest.mark.parametrize("busy", [True, False])
def test_a_leader_refuses_messages_while_the_shared_log_does_not_answer(cluster: Cluster, busy: bool) -> None:
    """An idle one does so, too, so that operators notice it before the first publisher is refused."""
    leader = leader_alone(cluster)
    cluster.run(10)
    cluster.hub.away.add("a")
    if busy:
        leader.publish(b"waits")
    cluster.run(10)
    assert leader.journal.state is JournalState.READ_ONLY
    assert "no answer" in str(leader.journal.standing.refusal)
    leader.publish(b"refused")
    assert len(leader.refused) == 1
    cluster.hub.away.clear()
    cluster.run(8, until=lambda: leader.journal.state is JournalState.WRITABLE)
    assert leader.journal.standing.may_write
    leader.publish(b"goes on")
    cluster.run(2)
    assert leader.acknowledged == leader.read() == [b"waits"] * busy + [b"goes on"]


def test_a_leader_whose_disk_fails_ends_although_appends_wait_for_the_shared_log(
    cluster: Cluster, logged_errors: list[Any]
) -> None:
    leader = cluster.elect("a")
    cluster.run(1)
    told: list[JournalState] = []
    leader.broker.watch = lambda state, reason: told.append(state)
    cluster.hub.away.add("a")
    leader.publish(b"waits")
    cluster.run(0.5)
    leader.journal.break_off("the disk failed")
    assert told == [JournalState.FAILED]
    assert [type(error) for error in leader.refused] == [OutcomeUnknown]
    logged_errors.clear()


def test_a_leader_whose_disk_fails_while_it_stops_is_closed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, logged_errors: list[Any]
) -> None:
    leader = cluster.elect("a")
    cluster.run(1)

    def fails(writer: Writer) -> int:
        raise SyncFailed("simulated")

    monkeypatch.setattr(Writer, "note", fails)
    leader.stop()
    assert leader.journal.state is JournalState.FAILED
    with leader.journal.directory.joinpath("LOCK").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no server has this message any more
    logged_errors.clear()


@pytest.mark.parametrize(
    ("answer", "least", "most"),
    [(None, 0.75, 1.75), (True, 1.75, 10.0), (False, 1.75, 10.0)],
    ids=["its process has ended", "it is connected", "nats hides all servers"],
)
def test_silent_leader_is_replaced_sooner_if_nats_shows_that_its_process_has_ended(
    cluster: Cluster, answer: bool | None, least: float, most: float
) -> None:
    """The permissions of NATS may hide every server, so that each one seems to have ended."""
    cluster.hub.answers = answer
    old = cluster.elect("abc")
    cluster.settle()
    cluster.run(2)
    cluster.hub.away.add(old.name)
    began = cluster.clock.seconds()
    cluster.run(10, until=lambda: len(cluster.leaders) == 2)
    assert least < cluster.clock.seconds() - began < most


def test_a_server_that_starts_after_its_leaders_process_has_ended_leads_within_two_seconds(cluster: Cluster) -> None:
    """All servers were killed, for example: this process has never seen the leader."""
    old = cluster.elect_of_two()
    cluster.settle()
    (follower,) = (each for each in cluster.servers.values() if each is not old)
    follower.stop()
    cluster.hub.away.add(old.name)
    began = cluster.clock.seconds()
    follower.start()
    cluster.run(10, until=lambda: follower.role is State.LEADER)
    assert 0.75 < cluster.clock.seconds() - began < 1.75


def test_an_orderly_stop_hands_over_at_once(cluster: Cluster) -> None:
    old = cluster.elect("ab")
    old.publish(b"one")
    cluster.settle()
    old.stop()
    began = cluster.clock.seconds()
    new = cluster.elect()
    assert cluster.clock.seconds() - began < 1.0  # in simulated time; without a hand-over it takes longer
    new.publish(b"two")
    cluster.run(1)
    old.start()
    cluster.settle()
    assert old.read() == [b"one", b"two"]


def test_a_server_that_is_too_far_behind_says_how_to_fill_it(cluster: Cluster, logged_errors: list[Any]) -> None:
    leader = cluster.elect_of_two()
    cluster.publish_five(leader)
    new = cluster.add("c")
    cluster.run(3)
    assert new.journal.state is JournalState.FAILED
    assert "fyrehose journal restore --exact" in str(logged_errors[0]["log_failure"])
    logged_errors.clear()


def test_a_new_server_follows_after_the_journal_of_another_was_copied(cluster: Cluster) -> None:
    leader = cluster.elect_of_two()
    cluster.publish_five(leader)
    source, target = leader.journal.directory, cluster.directory / "c"
    copied = CliRunner().invoke(main, ["journal", "restore", "--exact", str(source), str(target)])
    assert copied.exit_code == 0, copied.output
    new = cluster.add("c")
    leader.publish(b"after the copy")
    cluster.run(1)
    cluster.settle()
    assert new.read() == leader.acknowledged


def test_a_leader_without_followers_refuses_messages_when_the_shared_log_is_full(cluster: Cluster) -> None:
    cluster.log_limit = 1
    leader = cluster.elect("a")
    leader.publish(b"1")
    cluster.run(10)
    assert leader.acknowledged == [b"1"]
    assert leader.journal.state is JournalState.READ_ONLY
    leader.publish(b"2")
    cluster.run(1)
    assert "more than log-limit, and no server has taken the 2 places of new members yet" in str(leader.refused[0])
    for name in "bc":
        cluster.add(name)
    cluster.run(20, until=lambda: leader.journal.state is JournalState.WRITABLE)
    leader.publish(b"3")
    cluster.run(1)
    assert leader.acknowledged == [b"1", b"3"]


@pytest.mark.parametrize("answers", [True, False])
def test_a_leader_that_is_about_to_stop_waits_a_while_for_the_shared_log(cluster: Cluster, answers: bool) -> None:
    """Listeners wait for it before they close, and the journal closes after them."""
    leader = leader_alone(cluster)
    cluster.hub.away.add("a")
    leader.publish(b"1")
    cluster.run(1)
    leader.journal.expect_close()
    if answers:
        cluster.hub.away.clear()
    cluster.run(2)
    assert leader.acknowledged == [b"1"] * answers
    cluster.run(2)
    assert "a" not in cluster.hub.here, "the stop has begun although listeners may wait"
    leader.stop()
    assert [type(error) for error in leader.refused] == [OutcomeUnknown] * (not answers)
    cluster.hub.away.clear()
    leader.start()
    cluster.elect()
    leader.publish(b"3")
    cluster.run(1)
    assert leader.acknowledged == [b"1"] * answers + [b"3"]


def test_a_server_waits_for_others_that_start_with_it(cluster: Cluster) -> None:
    cluster.fills = True
    leader = cluster.elect_of_two()
    cluster.publish_five(leader)
    assert cluster.hub.first > 1, "the shared log was trimmed"
    for server in cluster.servers.values():
        server.stop()
    cluster.clock.callLater(3, lambda: [cluster.servers[name].start() for name in "ab"])
    new = cluster.add("c")
    cluster.run(20, until=lambda: bool(cluster.leaders))
    cluster.run(1)
    cluster.settle()
    assert new.read() == leader.acknowledged


def lose_the_shared_log(cluster: Cluster) -> None:
    """Stop all servers, and delete the shared log."""
    for server in cluster.servers.values():
        server.stop()
    cluster.hub.entries.clear()
    cluster.hub.first = 1


@pytest.mark.parametrize("later", [0, 5])
def test_no_server_begins_a_lost_shared_log_again_by_itself(
    cluster: Cluster, log_lines: list[str], later: float
) -> None:
    """Nor does an empty server that starts first, and waits for the others."""
    leader = cluster.elect("ab")
    leader.publish(b"1")
    cluster.settle()
    lose_the_shared_log(cluster)
    new = cluster.add("c")
    cluster.run(later)
    for name in "ab":
        cluster.servers[name].start()
    cluster.run(30)
    assert not cluster.leaders
    assert not cluster.hub.entries
    assert any("it was deleted or lost" in line and "fyrehose cluster reseed" in line for line in log_lines)
    assert any("has a longer journal than this server; waiting for it" in line for line in log_lines)
    with pytest.raises(ReadOnly, match="the shared log is empty"):
        raise_from(new.broker.publish([Run.of("s", [b"x"], source="t")]))


def test_a_server_continues_after_outdated_answers_for_some_seconds(cluster: Cluster) -> None:
    """A NATS server that was frozen may believe for a while that it leads the stream, and report an earlier end."""
    leader = cluster.elect("ab")
    leader.publish(b"x")
    cluster.settle()
    cluster.hub.outdated = EntryRange(1, 1)
    cluster.run(10)
    cluster.hub.outdated = None
    leader.publish(b"y")
    cluster.settle()
    for server in cluster.servers.values():
        assert server.role in (State.LEADER, State.FOLLOWER)
        assert server.read() == [b"x", b"y"]


def test_a_follower_whose_reads_wait_goes_on_asking_for_the_extent(cluster: Cluster) -> None:
    """The answer shows whether the NATS server that leads the stream is cut off, and another one may answer reads."""
    leader = cluster.elect("abc")
    leader.publish(b"x")
    cluster.settle()
    cluster.hub.answers_reads = False
    cluster.run(1)
    asked = dict(cluster.hub.extents)
    cluster.run(1)
    for name in cluster.servers.keys() - {leader.name}:
        assert cluster.hub.extents[name] >= asked[name] + 2


def test_followers_read_an_entry_as_soon_as_it_is_announced_and_wait_for_one_that_is_not_there_yet(
    cluster: Cluster,
) -> None:
    leader = cluster.elect("abc")
    cluster.settle()
    cluster.hub.slowest = 0.01
    followers = [server for server in cluster.servers.values() if server is not leader]
    for number in range(10):
        leader.publish(b"%d" % number)
        cluster.run(0.13)
        assert [len(server.read()) for server in followers] == [number + 1] * 2, "the leader has told them"
    cluster.hub.unread = 1
    leader.publish(b"late")
    cluster.run(0.2)
    before = dict(cluster.hub.reads)
    cluster.run(2)
    assert all(cluster.hub.reads[server.name] <= before[server.name] + 10 for server in followers), "four a second"
    cluster.hub.unread = 0
    cluster.settle()


def empty(cluster: Cluster, leader: Server, *payloads: bytes) -> None:
    """Empty the shared log, as an operator of NATS can; the leader publishes *payloads* before it can notice that."""
    cluster.hub.purge(len(cluster.hub.entries) + 1)
    for payload in payloads:
        leader.publish(payload)
    cluster.run(0.1)


def test_a_server_that_waits_for_the_beginning_of_the_shared_log_says_so_once(
    cluster: Cluster, log_lines: list[str]
) -> None:
    leader = cluster.elect_of_two()
    leader.publish(b"1")
    cluster.settle()
    for server in cluster.servers.values():
        server.stop()
    empty(cluster, leader)
    follower = next(server for server in cluster.servers.values() if server is not leader)
    follower.start()
    cluster.run(30)
    assert follower.role is State.FOLLOWER
    assert not follower.journal.standing.caught_up
    (line,) = [line for line in log_lines if "waits for a checkpoint" in line]
    assert "fyrehose cluster reseed" in line


def test_a_server_that_is_to_be_opened_again_does_not_take_over(cluster: Cluster) -> None:
    old = cluster.elect("ab")
    cluster.hub.away.add(old.name)
    cluster.run(30, until=lambda: len(cluster.leaders) == 2)
    cluster.hub.away.clear()
    cluster.run(10, until=lambda: bool(old.reopenings))
    (new,) = (server for server in cluster.servers.values() if server is not old)
    cluster.hub.away.add(new.name)
    cluster.run(30)
    assert old.role is State.FOLLOWER


def test_a_leader_accepts_nothing_and_opens_again_when_the_shared_log_has_lost_entries(cluster: Cluster) -> None:
    leader = cluster.elect("a")
    leader.publish(b"x")
    cluster.settle()
    cluster.hub.entries.pop()
    leader.publish(b"y")
    cluster.run(40, until=lambda: bool(leader.reopenings))
    assert "the shared log has lost entries: it ends at entry" in leader.reopenings[0]
    assert leader.acknowledged == [b"x"]
    assert leader.journal.state is JournalState.READ_ONLY
    leader.stop()
    assert isinstance(leader.refused[0], OutcomeUnknown)


def test_two_servers_with_one_name_are_noticed(cluster: Cluster, logged_errors: list[Any]) -> None:
    one = cluster.add("a")
    cluster.run(1)
    other = Server(cluster, "a")
    cluster.directory = cluster.directory / "other"
    cluster.hub.hears["first"] = cluster.hub.hears["a"]
    other.starts = 7
    other.start()
    cluster.servers["other"] = other
    cluster.run(3)
    assert one.journal.state is JournalState.FAILED
    assert "same name" in str(logged_errors[0]["log_failure"])
    logged_errors.clear()


@pytest.mark.parametrize("settings", [{"durability": Durability("never")}, {"quarantine": True}])
def test_settings_that_cannot_be_replicated_are_refused(cluster: Cluster, settings: dict[str, Any]) -> None:
    journal = replicated(
        cluster.clock,
        cluster.directory,
        JournalSettings(**settings),
        replication=ReplicationSettings(name="a"),
        shared_log=cluster.hub.log("a"),
    )
    opening = journal.open(Broker(cluster.clock, journal, Sequencer()))
    cluster.run(1)
    with pytest.raises(ConfigError, match="a replicated journal"):
        raise_from(opening)
    assert not cluster.hub.here, "its connection is closed"


def play(cluster: Cluster, rnd: Random) -> int:
    """Let servers, links and answers fail at random while messages are published; return how many were."""
    hub, number, late = cluster.hub, 0, list[bytes]()
    hub.hears["recorder"] = late.append
    for _ in range(60):
        luck, server = rnd.random(), cluster.servers[rnd.choice("abc")]
        hub.loss, hub.slowest = rnd.choice([0, 0, 0.2]), rnd.choice([0.05, 0.05, 0.05, 1.5])
        hub.tells_extent = rnd.random() < 0.8  # messages between servers still arrive
        hub.queues = {server.name: rnd.choice([0.5, 1.5, 8.0])} if rnd.random() < 0.15 else {}
        if luck < 0.15:
            hub.away.symmetric_difference_update({server.name})
        elif luck < 0.25:
            server.stop() if server.up else server.start()
        elif (
            luck < 0.35 and server.name in hub.hears
        ):  # messages of now and then arrive once more, perhaps from earlier starts
            for message in rnd.sample(late, min(len(late), 20)):
                hub.hears[server.name](message)
        if rnd.random() < 0.7:
            cluster.open_again()
        for leader in cluster.leaders:
            for _ in range(rnd.randint(0, 3)):
                number += 1
                leader.publish(b"%d " % number * rnd.randint(1, 300))
        cluster.run(rnd.choice([0.05, 0.5, 4]))
    hub.loss, hub.slowest, hub.tells_extent = 0, 0.05, True
    hub.queues.clear()
    hub.away.clear()
    del hub.hears["recorder"]
    return number


@pytest.mark.parametrize("seed", range(6))
def test_no_acknowledged_message_is_lost_while_servers_and_answers_fail(cluster: Cluster, seed: int) -> None:
    cluster.hub.rnd = Random(seed)
    cluster.elect("abc")
    cluster.run(5)
    number = play(cluster, Random(seed))
    for server in cluster.servers.values():
        if not server.up:
            server.start()
    for _ in range(2):
        cluster.run(10)
        cluster.open_again()
    leader = cluster.elect()
    leader.publish(b"the last")
    cluster.run(0.5)
    age = leader.journal.standing.age
    assert age == 0.0, "nobody can have taken over since"
    cluster.run(5)
    cluster.settle()
    kept = leader.read()
    assert len(set(kept)) == len(kept)
    acknowledged = [payload for server in cluster.servers.values() for payload in server.acknowledged]
    refused = sum(len(server.refused) for server in cluster.servers.values())
    assert len(acknowledged) + refused == number + 1, "each publisher gets an answer"
    assert b"the last" in acknowledged
    assert set(acknowledged) <= set(kept)
    for server in cluster.servers.values():
        found = server.read()
        assert found == kept
        age = server.journal.standing.age
        assert age < 1.5, f"{server.name} has everything, also while nobody publishes"
    first = cluster.hub.first
    assert first > 1, "the shared log was not trimmed"


@pytest.mark.parametrize("seed", range(6))
def test_followers_come_and_go_while_somebody_purges_the_shared_log(cluster: Cluster, seed: int) -> None:
    """The leader is never stopped: it alone has the entries that were purged before a follower had read them."""
    rnd = cluster.hub.rnd = Random(seed)
    ran = Counter[str]()

    def copy(token_file: str, url: str, *arguments: Any) -> int:
        if rnd.random() < 0.3:
            ran["a copy fails"] += 1
            raise JournalUnreachable("it is not running")
        ran["a copy"] += 1
        return copy_journal(token_file, url, *arguments)

    cluster.fills, cluster.copy = True, copy
    leader = cluster.elect("abc")
    cluster.run(3)
    followers = [server for server in cluster.servers.values() if server is not leader]
    number = 0
    for _ in range(40):
        luck, server = rnd.random(), rnd.choice(followers)
        if luck < 0.2:
            ran["a purge"] += 1
            cluster.hub.purge(rnd.choice([len(cluster.hub.entries) + 1, len(cluster.hub.entries)]))
        elif luck < 0.35:
            cluster.hub.away.symmetric_difference_update({server.name})
        elif luck < 0.5:
            server.stop() if server.up else server.start()
        elif luck < 0.55 and not server.up:
            ran["a new machine"] += 1
            shutil.rmtree(server.journal.directory, ignore_errors=True)
        cluster.open_again()
        for _ in range(rnd.randint(0, 3)):
            number += 1
            leader.publish(b"%d " % number * rnd.randint(1, 300))
        cluster.run(rnd.choice([0.01, 0.05, 0.5, 4]))
    cluster.hub.away.clear()
    for _ in range(5):
        cluster.open_again()
        for server in followers:
            if not server.up:
                server.start()
        cluster.run(10)
    cluster.settle()
    role, acknowledged = leader.role, leader.acknowledged
    assert role is State.LEADER
    assert len(acknowledged) == number
    assert ran["a purge"], "nothing was purged"
    assert ran["a copy"], "no journal was filled"
    for server in cluster.servers.values():
        found = server.read()
        assert found == acknowledged
