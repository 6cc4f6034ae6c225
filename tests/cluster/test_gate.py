"""The journal of a cluster's server: it follows, leads, steps down, and acknowledges nothing before it is released."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from fyrehose.cluster.gate import ReplicatedGate
from fyrehose.errors import Closed, Following, Unreplicated
from fyrehose.interfaces import JournalState
from fyrehose.journal import scan
from fyrehose.journal.commit import COMMIT, InlineWorker, Worker
from fyrehose.journal.files import Files, SteppedFiles
from fyrehose.journal.format import BatchHeader
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.writer import Writer
from fyrehose.records import Buffer, Run
from fyrehose.standing import ServerRole
from tests.doubles.appending import append_runs
from tests.doubles.files import FaultyFiles


class ThreadedClock(Clock):
    """A reactor whose calls from other threads run at once."""

    def callFromThread(self, call: Callable[..., object], *args: object) -> None:
        call(*args)


@attrs.define(eq=False)
class SteppedWorker:
    """A writer thread whose jobs wait while it is held.

    :ivar held: whether jobs wait for :meth:`work`, and their results for :meth:`settle`
    """

    held: bool = False
    idle: bool = False
    _jobs: list[Callable[[], object]] = attrs.field(factory=list)
    _results: list[Callable[[], object]] = attrs.field(factory=list)

    def call(self, job: Callable[[], Any]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()

        def work() -> None:
            result = job()
            self._results.append(lambda: done.callback(result))

        self._jobs.append(work)
        if not self.held:
            self.settle()
        return done

    def work(self) -> None:
        """Run the jobs that wait; their results wait."""
        while self._jobs:
            self._jobs.pop(0)()

    def settle(self) -> None:
        self.work()
        while self._results:
            self._results.pop(0)()
            self.work()

    def stop(self) -> None:
        self.settle()


@attrs.define(eq=False)
class WatchedFiles(SteppedFiles):
    """Files whose syncs are watched."""

    synced: Callable[[], object] = lambda: None

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.synced()


@attrs.define(eq=False)
class Member:
    """A server's journal, the batches that it has handed over, and the events that its observer has received."""

    directory: Path
    worker: Worker = attrs.field(factory=InlineWorker)
    files: Files = attrs.field(factory=Files)
    clock: ThreadedClock = attrs.field(factory=ThreadedClock)
    gate: ReplicatedGate = attrs.field(init=False)
    journal: FileJournal = attrs.field(init=False)
    handed: list[tuple[int, bytes]] = attrs.field(factory=list)
    ends: dict[str, int] = attrs.field(factory=dict)
    states: list[tuple[JournalState, str]] = attrs.field(factory=list)
    let_go: list[str] = attrs.field(factory=list)
    next: int = 1

    def __attrs_post_init__(self) -> None:
        self.gate = ReplicatedGate(self.directory.name, hand_over=self.take)
        self.journal = FileJournal(
            self.clock,
            self.directory,
            JournalSettings(segment_size=1 << 16, min_free=0),
            files=self.files,
            worker=self.worker,
            gate=self.gate,
        )
        self.ends = dict(now(self.journal.open(self)))

    def take(self, position: int, batches: Sequence[Buffer]) -> None:
        self.handed.append((position, b"".join(each.data for each in batches)))

    def durable(self, ends: dict[str, int]) -> None:
        self.ends.update(ends)

    def state_changed(self, state: JournalState, reason: str) -> None:
        self.states.append((state, reason))
        self.next = self.journal.ends().get("s", 0) + 1

    def stuck(self, reason: str) -> None:
        self.let_go.append(reason)

    def append(self, *payloads: bytes) -> Deferred[None]:
        run = Run.of("s", payloads, source="test")
        self.next += len(run)
        return append_runs(self.journal, [run], [self.next - len(run)])

    def position(self) -> int:
        return self.journal.writer.position

    def read(self) -> list[bytes]:
        found: list[bytes] = []
        while runs := self.journal.read("s", len(found) + 1, 1 << 20):
            found += [record.payload for run in runs for record in run.records()]
        return found

    def send(self, *followers: Member) -> None:
        """Apply what was handed over to *followers*."""
        handed, self.handed = self.handed, []
        for position, data in handed:
            for follower in followers:
                now(follower.journal.apply(position, data))


def now(result: Deferred[Any]) -> Any:
    """Return the result of a Deferred that has fired."""
    found: list[Any] = []
    result.addCallback(found.append)
    assert found, result
    return found[0]


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Callable[..., Member]]:
    """Return a function that starts a server, of which the test may choose the worker and the files."""
    made: list[Member] = []

    def make(name: str, **how: Any) -> Member:
        made.append(Member(tmp_path / name, **how))
        return made[-1]

    yield make
    for each in made:
        if each.gate.leading:
            each.gate.follow(each.position(), "the test is over")
        now(each.journal.close())


@pytest.fixture
def leader(member: Callable[..., Member]) -> Member:
    made = member("a")
    now(made.gate.lead())
    return made


@pytest.fixture
def follower(member: Callable[..., Member]) -> Member:
    return member("b")


@attrs.define(eq=False)
class Lead:
    """Two servers of which one leads, and a shared log: the model of what is acknowledged, served and kept.

    :ivar entries: the shared log, each with the position where it begins
    :ivar written: what the leader has handed over, and the shared log has not accepted yet
    :ivar payloads: all payloads that were published and not lost
    :ivar counts: how many of them are in the journal up to the end of each entry
    :ivar acknowledged: how many of them this leader has acknowledged, beginning with number *begun*
    """

    make: Callable[[str], Member]
    dice: Random
    names: tuple[str, str]
    leader: Member = attrs.field(init=False)
    follower: Member = attrs.field(init=False)
    log: bytes = b""
    payloads: list[bytes] = attrs.field(factory=list)
    counts: dict[int, int] = attrs.field(factory=lambda: {0: 0})
    acknowledged: list[int] = attrs.field(factory=list)
    begun: int = 0
    released: int = 0
    synced: int = 0
    branches: Counter[str] = attrs.field(factory=Counter)

    def __attrs_post_init__(self) -> None:
        self.leader, self.follower = map(self.make, self.names)
        assert not self.leader.gate.returning, "it was never in a cluster"
        self.lead()

    def lead(self) -> None:
        """Let the leader lead, which has everything that the shared log has."""
        member = self.leader
        assert member.journal.state is JournalState.READ_ONLY
        self.synced = 0
        member.gate.connect(member.take, self.note)
        now(member.gate.lead())
        assert member.states[-1] == (JournalState.WRITABLE, "this server leads")
        self.begun, self.acknowledged, self.released = len(self.payloads), [], len(self.log)

    def note(self, position: int) -> None:
        self.synced = max(self.synced, position)  # a worker without a thread ends the next commit within this one

    def append(self) -> None:
        size, count = self.dice.choice([(1, 1), (300, 1), (300, 3), (30_000, 1), ((1 << 16) - 200, 1)])
        payloads = [self.dice.randbytes(size) for _ in range(count)]
        numbers = range(len(self.payloads), len(self.payloads) + count)
        self.payloads += payloads
        acknowledged = self.acknowledged
        self.leader.append(*payloads).addCallback(lambda _: acknowledged.extend(numbers))

    def accept(self) -> None:
        """Let the shared log accept the next entry, and the follower apply it."""
        if self.leader.handed:
            position, data = self.leader.handed.pop(0)
            assert position == len(self.log), "what is handed over continues the log"
            self.log += data
            now(self.follower.journal.apply(position, data))
            self.counts[len(self.log)] = self.follower.ends.get("s", 0)

    def release(self) -> None:
        """Release what is in the shared log and on disk here, or a part of it."""
        ends = [end for end in self.counts if self.released <= end <= self.synced]
        self.released = self.dice.choice(ends or [self.released])
        self.leader.gate.release(self.released)

    def hold(self) -> None:
        self.leader.worker.held = True

    def work(self) -> None:
        self.leader.worker.work()

    def settle(self) -> None:
        self.leader.worker.held = False
        self.leader.worker.settle()

    def depose(self) -> None:
        """Let the follower take over, which has the whole shared log; open the old leader again."""
        old, kept = self.leader, len(self.log)
        self.branches["lost bytes"] += bool(old.handed)
        if self.dice.random() < 0.3:
            old.gate.hold("the shared log is silent")
        else:
            old.gate.suspend("the shared log is silent")
        assert old.gate.follow(kept, "the other leads"), "it has led"
        assert old.gate.standing.role is ServerRole.LEADER, "it has led since it was opened"
        refused = old.gate.standing.refusal
        assert isinstance(refused, Unreplicated)
        assert str(refused) == "the other leads"
        assert not old.gate.resume(), "it accepts nothing until it leads again"
        confirmed = len(self.acknowledged)
        if not old.worker.held:
            assert self.begun + confirmed == self.counts[kept], "what the shared log has is acknowledged"
        assert old.let_go == ["the other leads"], "publishers who wait for an answer are let go"
        self.settle()
        assert len(self.acknowledged) == confirmed, "nothing is acknowledged any more"
        now(old.journal.close())
        self.leader, self.follower = self.follower, self.make(old.directory.name)
        del self.payloads[self.counts[kept] :]
        again = self.follower
        assert again.directory.joinpath("REPLICA").read_text() == f"{again.directory.name}\n"
        assert again.gate.returning
        assert again.position() == kept, f"it begins at {again.position()}, and was confirmed up to {kept}"
        beyond = b"".join(data for _, data in old.handed).rstrip(b"\0")
        aside = [path.read_bytes() for path in again.directory.glob(f"torn-{kept:016x}.bytes")]
        assert b"".join(aside).startswith(beyond), "bytes behind that were not set aside"
        self.lead()

    def check(self) -> None:
        leader, serving = self.leader, self.counts[self.released]
        acknowledged = list(range(self.begun, serving))
        assert self.acknowledged == acknowledged, "what is released is acknowledged, and nothing else"
        assert leader.gate.released == len(acknowledged)
        leads = leader.gate.standing
        assert leads.role is ServerRole.LEADER
        assert leads.caught_up
        assert leads.age == inf, "it does not know when it was in touch with a cluster"
        assert leads.refusal is None
        follows = self.follower.gate.standing
        assert follows.role is ServerRole.FOLLOWER
        assert not follows.caught_up
        assert isinstance(follows.refusal, Following)
        assert str(follows.refusal) == "this server follows, and accepts nothing"
        assert leader.read() == self.payloads[:serving]
        assert leader.ends.get("s", 0) == leader.journal.ends().get("s", 0) == serving
        assert self.follower.states == [], "a follower does not become writable by itself"
        assert self.follower.read() == self.payloads[: self.counts[len(self.log)]]
        bases = [segment.base for segment in scan.segments(leader.directory)]
        assert all(base <= self.released for base in bases), "a segment begins behind what is released"
        self.branches["several commits wait"] += len(leader.handed) > 2
        self.branches["several segments"] += len(bases) > 1
        if not leader.worker.held:
            assert scan.read_mark(leader.directory) == self.released == leader.journal.status().durable
            assert self.synced == leader.position(), "everything is on disk, and reported"
            if self.released == leader.position():
                assert serving == len(self.payloads), "a commit waits although everything is released"

    def step(self) -> None:
        often = [self.append] * 3 + [self.accept] * 4 + [self.release] * 3 + [self.settle, self.hold, self.work]
        (self.depose if self.dice.random() < 0.06 else self.dice.choice(often))()
        self.leader.clock.advance(0)


def test_random_leaders_acknowledge_and_keep_what_the_shared_log_has(member: Callable[..., Member]) -> None:
    branches: Counter[str] = Counter()
    for seed in range(4):
        lead = Lead(lambda name: member(name, worker=SteppedWorker()), Random(seed), (f"{seed}a", f"{seed}b"))
        for _ in range(120):
            lead.step()
            lead.check()
        lead.settle()
        for _ in range(40):
            lead.accept()
            lead.leader.gate.release(len(lead.log))
        assert lead.acknowledged == list(range(lead.begun, len(lead.payloads))), "nothing waits for ever"
        branches += lead.branches
    assert len(branches) == 3, f"a branch never ran: {branches}"


def test_those_who_wait_for_a_shared_log_that_is_silent_are_let_go(leader: Member) -> None:
    appended = leader.append(b"one")
    leader.gate.suspend("the shared log does not answer")
    assert leader.states[1:] == [(JournalState.READ_ONLY, "the shared log does not answer")]
    leader.clock.pump([1] * 5)
    assert (leader.let_go, appended.called) == (["the shared log does not answer"], False)
    leader.gate.release(leader.position())
    leader.clock.pump([1] * 5)
    assert (len(leader.let_go), appended.called) == (1, True)


def test_stepping_down_within_a_commit_keeps_its_batches_that_were_confirmed(member: Callable[..., Member]) -> None:
    worker = SteppedWorker()
    old, new = member("a", worker=worker), member("b")
    now(old.gate.lead())
    old.gate.release(old.position())
    old.journal._commits.largest.most = COMMIT  # as after fast commits
    worker.held = True
    results: list[Any] = []
    for number in range(3):  # one commit with a batch each, because they are too large to share one
        old.append(b"%d" % number * 2_500_000).addBoth(results.append)
    worker.settle()
    position, data = old.handed.pop()
    first = BatchHeader.unpack(data, position).end
    old.handed.append((position, data[: first - position]))
    old.send(new)
    old.gate.follow(first, "b leads")
    worker.held = False
    worker.settle()
    assert results == []
    now(old.journal.close())
    old = Member(old.directory)
    now(new.gate.lead())
    new.append(b"next")
    new.gate.release(new.position())
    new.send(old)
    assert old.read() == new.read() == [b"0" * 2_500_000, b"next"]
    assert old.ends == {"s": 2}
    now(old.journal.close())


def test_a_retirement_waits_for_its_release(leader: Member, follower: Member) -> None:
    leader.append(b"one")
    leader.gate.release(leader.position())
    results: list[Any] = []
    synced: list[int] = []
    leader.gate.on_synced = synced.append
    leader.journal.retire(["s"]).addBoth(results.append)
    assert (results, leader.journal.ends()) == ([], {"s": 1})
    assert synced == [leader.position()]
    leader.gate.release(leader.position())
    assert results == [None]
    leader.send(follower)
    for each in (leader, follower):
        assert (each.journal.ends(), each.journal.retired()) == ({}, {"s": 1})


def test_a_retirement_that_is_not_released_has_no_end(leader: Member) -> None:
    leader.append(b"one")
    leader.gate.release(leader.position())
    position = leader.position()
    results: list[Any] = []
    leader.journal.retire(["s"]).addBoth(results.append)
    leader.gate.follow(position, "b leads")
    assert (results, leader.let_go) == ([], ["b leads"])
    assert leader.journal.ends() == {"s": 1}


def test_a_journal_that_differs_from_bytes_of_the_shared_log_is_found(leader: Member) -> None:
    leader.append(b"one")
    position, data = leader.handed[1]
    changed = data[:-1] + bytes([data[-1] ^ 1])
    assert not now(leader.journal.differs(position, data))
    assert not now(leader.journal.differs(position, data + b"what follows is not here yet"))
    assert now(leader.journal.differs(position, changed))


def test_batches_of_the_writer_thread_are_handed_over_before_they_are_synced(member: Callable[..., Member]) -> None:
    files = WatchedFiles()
    leader = member("a", worker=SteppedWorker(), files=files)
    now(leader.gate.lead())
    leader.handed.clear()
    handed: list[bool] = []
    files.synced = lambda: handed.append(bool(leader.handed))
    leader.append(b"x")
    assert handed[0]


def test_a_commit_that_the_shared_log_has_before_this_disk_is_acknowledged_when_it_is_synced(
    member: Callable[..., Member],
) -> None:
    worker = SteppedWorker()
    leader = member("a", worker=worker)
    leader.gate.connect(leader.take, leader.gate.release)
    now(leader.gate.lead())
    leader.handed.clear()
    worker.held = True
    published = leader.append(b"x")
    leader.clock.advance(0)
    worker.work()
    assert leader.handed, "the shared log may accept it from now on"
    assert not published.called
    worker.held = False
    worker.settle()
    assert published.called, "a publisher on a quiet server waits for ever"


def test_retiring_a_stream_that_does_not_exist_succeeds_at_once(leader: Member) -> None:
    assert now(leader.journal.retire(["there is no such stream"])) is None


def test_a_retirement_that_cannot_be_written_fails_the_journal(
    member: Callable[..., Member], logged_errors: Any
) -> None:
    files = FaultyFiles()
    leader = member("a", files=files)
    now(leader.gate.lead())
    leader.append(b"one")
    leader.gate.release(leader.position())
    files.name, files.nth = "write", files.calls["write"] + 1
    results: list[Any] = []
    leader.journal.retire(["s"]).addBoth(results.append)
    assert (results, leader.states[-1][0]) == ([], JournalState.FAILED)
    assert len(logged_errors.take()) == 1
    leader.journal.close()


def test_leader_accepts_nothing_while_it_is_suspended_or_held(member: Callable[..., Member]) -> None:
    leader = member("a")
    gate, suspended, held, dice = leader.gate, False, False, Random(52)
    assert not gate.suspend("it follows anyway")
    now(gate.lead())
    for step in range(100):
        match dice.choice(("suspend", "resume", "hold", "unhold")):
            case "suspend":
                assert gate.suspend("the log is silent") == (not suspended), f"step {step}: wrong news of the change"
                suspended = True
            case "resume":
                assert gate.resume() == (suspended and not held), f"step {step}: wrong news of the change"
                suspended = held
            case "hold":
                gate.hold("the log is silent")
                suspended = held = True
            case "unhold":
                gate.unhold()
                suspended = held = False
        assert gate.accepts != suspended, f"step {step}: publishes are {'accepted' if suspended else 'refused'}"
        assert (leader.journal.state is JournalState.WRITABLE) == gate.accepts
    gate.hold("the log is silent")
    refused = leader.journal.retire(["s"])
    assert now(refused.addErrback(lambda failure: failure.value.args)) == ("the log is silent",)


def test_a_journal_that_has_failed_says_so_whether_it_follows_or_was_suspended(
    member: Callable[..., Member], logged_errors: Any
) -> None:
    follower = member("a")
    follower.journal.break_off("the shared log differs")
    leader = member("b")
    now(leader.gate.lead())
    assert leader.gate.suspend("the shared log is silent")
    leader.journal.break_off("the shared log differs")
    assert leader.gate.resume()
    for each in (follower, leader):
        assert each.journal.state is JournalState.FAILED
        failures: list[Any] = []
        each.journal.retire(["s"]).addErrback(failures.append)
        assert failures[0].check(Closed)
    assert len(logged_errors.take()) == 2


def test_following_another_leader_is_no_change_of_state(follower: Member) -> None:
    follower.gate.follow(0, "c leads")
    assert follower.states == []
    assert [follower.gate.refuse(why) for why in ("d leads", "d leads", "c leads")] == [True, False, True]
    assert now(follower.journal.retire(["s"]).addErrback(lambda failure: failure.value.args)) == ("c leads",)


def test_several_releases_on_a_slow_disk_write_one_mark(
    member: Callable[..., Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    monkeypatch.setattr(Writer, "write_mark", lambda self: written.append(self.released))
    worker = SteppedWorker()
    leader = member("a", worker=worker)
    now(leader.gate.lead())
    for payload in (b"one", b"two"):
        leader.append(payload)
    written.clear()
    worker.held = True
    for _ in range(3):
        leader.gate.release(leader.position())
    worker.work()
    assert written == [leader.position()]
    leader.gate.release(leader.position())
    worker.held = False
    worker.settle()
    assert len(written) == 2, "the next release is noted again"


def test_a_start_logs_which_bytes_it_has_set_aside(tmp_path: Path) -> None:
    leader = Member(tmp_path / "a")
    now(leader.gate.lead())
    leader.append(b"kept")
    leader.gate.release(leader.position())
    now(leader.journal.note())
    leader.append(b"lost").addErrback(lambda _: None)
    leader.journal.writer.close(in_order=False)
    leader.journal._unlock()
    again = Member(tmp_path / "a")
    (note,) = again.journal.report.notes
    assert note.startswith("set aside ")
    now(again.journal.close())


def test_a_journal_that_cannot_be_opened_leaves_no_file_open(tmp_path: Path) -> None:
    first = Member(tmp_path / "a")
    now(first.journal.close())
    files = FaultyFiles(name="write", nth=1)
    journal = FileJournal(
        ThreadedClock(),
        tmp_path / "a",
        JournalSettings(min_free=0),
        files=files,
        worker=InlineWorker(),
        gate=ReplicatedGate("a"),
    )
    before = sorted(path.name for path in Path("/proc/self/fd").iterdir())
    failures: list[Any] = []
    journal.open(first).addErrback(failures.append)
    assert failures
    assert files.calls["write"] == 1
    assert sorted(path.name for path in Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize(
    ("error", "state", "logged"),
    [(errno.EIO, JournalState.FAILED, 1), (errno.ENOSPC, JournalState.READ_ONLY, 0)],
)
def test_a_leader_that_cannot_write_an_append_says_so_once(
    member: Callable[..., Member], logged_errors: Any, error: int, state: JournalState, logged: int
) -> None:
    files = FaultyFiles(error=error)
    leader = member("a", files=files)
    now(leader.gate.lead())
    files.name, files.nth = "write", files.calls["write"] + 1
    waits = leader.append(b"x")
    assert ([each for each, _ in leader.states[1:]], waits.called) == ([state], False)
    assert len(logged_errors.take()) == logged


def test_a_segment_begins_when_the_release_comes_while_the_writer_thread_gives_up(
    member: Callable[..., Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = SteppedWorker()
    leader = member("a", worker=worker)
    now(leader.gate.lead())
    for _ in range(2):
        leader.append(bytes(30_000))
    commits = leader.journal._commits

    def released_too_late(size: int) -> bool:
        may = leader.gate.may_write(size)
        leader.gate.release(leader.position())
        return may

    monkeypatch.setattr(commits, "may_write", released_too_late)
    worker.held = True
    leader.append(bytes(30_000))
    worker.work()
    assert len(scan.segments(leader.directory)) == 1
    monkeypatch.undo()
    worker.held = False
    worker.settle()
    assert len(scan.segments(leader.directory)) == 2


@pytest.mark.parametrize("retires", [False, True])
def test_a_commit_that_ends_after_the_journal_of_a_leader_has_failed_is_not_released(
    member: Callable[..., Member], logged_errors: Any, retires: bool
) -> None:
    """The commit is on disk, but can no longer be released."""
    worker = SteppedWorker()
    leader = member("a", worker=worker)
    now(leader.gate.lead())
    leader.append(b"one")
    leader.gate.release(leader.position())
    worker.held = True
    results: list[Any] = []
    under_way = leader.journal.retire(["s"]) if retires else leader.append(b"two")
    under_way.addBoth(results.append)
    worker.work()
    leader.journal.break_off("another part of its disk failed")
    assert results == []
    worker.held = False
    worker.settle()
    assert (results, leader.states[-1][0]) == ([], JournalState.FAILED)
    assert leader.states[-1][0] is JournalState.FAILED
    assert len(logged_errors.take()) == 1
    now(leader.journal.close())
