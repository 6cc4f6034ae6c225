"""The journal of a cluster's server: it follows, leads, steps down, and acknowledges nothing before it is released."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from fyrehose.cluster.gate import ReplicatedGate
from fyrehose.errors import Closed, Following
from fyrehose.interfaces import JournalState
from fyrehose.journal import scan
from fyrehose.journal.commit import COMMIT, InlineWorker, Worker
from fyrehose.journal.files import Files, SteppedFiles
from fyrehose.journal.format import BatchHeader
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.writer import Writer
from fyrehose.records import Buffer, Run
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
        runs = self.journal.read("s", 1, 1 << 20)
        return [record.payload for run in runs for record in run.records()]

    def send(self, *followers: Member) -> None:
        """Apply what was handed over to *followers*."""
        handed, self.handed = self.handed, []
        for position, data in handed:
            for follower in followers:
                now(follower.journal.apply(position, data))


def opened_again(member: Member) -> Member:
    """Return *member* with another journal and gate, as a server has after it has led."""
    now(member.journal.close())
    return Member(member.directory)


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


def test_a_follower_refuses_retirements_and_says_why(follower: Member) -> None:
    assert follower.journal.state is JournalState.READ_ONLY
    refused: list[Any] = []
    follower.journal.retire(["s"]).addErrback(lambda failure: refused.append(failure.value))
    assert [type(error) for error in refused] == [Following]
    assert "follows" in str(refused[0])


def test_an_append_is_acknowledged_and_served_when_it_is_released(leader: Member) -> None:
    assert leader.journal.state is JournalState.WRITABLE
    acknowledged: list[Any] = []
    leader.append(b"one").addCallback(acknowledged.append)
    assert len(leader.handed) == 2  # the beginning of the segment, and the batch
    assert (acknowledged, leader.read(), leader.ends) == ([], [], {})
    leader.gate.release(leader.position() - 1)
    assert acknowledged == []
    assert scan.read_mark(leader.directory) < leader.position()
    leader.gate.release(leader.position())
    assert (acknowledged, leader.read(), leader.ends) == ([None], [b"one"], {"s": 1})
    assert scan.read_mark(leader.directory) == leader.position() == leader.journal.status().durable


def test_later_appends_are_committed_while_earlier_ones_are_not_released(leader: Member) -> None:
    results: list[int] = []
    for number in range(3):
        leader.append(b"%d" % number).addCallback(lambda _, number=number: results.append(number))
    assert len(leader.handed) == 4
    end = leader.handed[2][0]
    leader.gate.release(end)
    assert results == [0]
    leader.gate.release(leader.position())
    assert results == [0, 1, 2]


def test_a_follower_serves_what_it_has_applied(leader: Member, follower: Member) -> None:
    for number in range(300):
        leader.append(b"%d" % number * 400)
        leader.gate.release(leader.position())
        leader.send(follower)
    assert len(scan.segments(follower.directory)) > 2
    assert follower.journal.bounds("s") == leader.journal.bounds("s") == (1, 300)
    found, start = [], 1
    while runs := follower.journal.read("s", start, 1 << 20):
        found += [record.payload for run in runs for record in run.records()]
        start = runs[-1].last_seq + 1
    assert found == [b"%d" % number * 400 for number in range(300)]
    assert follower.ends == {"s": 300}


def test_a_follower_takes_over_and_continues_the_numbers(member: Callable[..., Member]) -> None:
    old, new = member("a"), member("b")
    now(old.gate.lead())
    old.append(b"one", b"two")
    old.gate.release(old.position())
    old.send(new)
    now(new.gate.lead())
    assert new.states == [(JournalState.WRITABLE, "this server leads")]
    new.append(b"three")
    old.gate.follow(old.position(), "b leads")
    new.gate.release(new.position())
    new.send(old)
    assert old.read() == new.read() == [b"one", b"two", b"three"]
    for each in (old, new):
        assert each.journal.bounds("s") == (1, 3)


def test_stepping_down_lets_publishers_go_and_sets_aside_what_is_not_released(member: Callable[..., Member]) -> None:
    old, new = member("a"), member("b")
    now(old.gate.lead())
    old.append(b"kept")
    kept = old.position()
    old.gate.release(kept)
    old.send(new)
    results: list[Any] = []
    for payload in (b"lost", b"lost, too"):
        old.append(payload).addBoth(results.append)
    old.gate.follow(kept, "b has taken over")
    assert (results, old.let_go) == ([], ["b has taken over"])
    assert old.states[-1] == (JournalState.READ_ONLY, "b has taken over")
    old = opened_again(old)
    assert old.position() == kept
    assert b"lost" in old.directory.joinpath(f"torn-{kept:016x}.bytes").read_bytes()
    now(new.gate.lead())
    new.append(b"mine")
    new.send(old)
    assert old.read() == [b"kept", b"mine"]


def test_stepping_down_acknowledges_confirmed_publishes(leader: Member) -> None:
    results: list[Any] = []
    leader.append(b"one").addBoth(results.append)
    confirmed = leader.position()
    leader.append(b"two").addBoth(results.append)
    leader.gate.follow(confirmed, "b leads")
    assert results == [None]
    assert leader.read() == [b"one"]


def test_a_suspended_leader_releases_what_it_has_accepted(leader: Member) -> None:
    appended = leader.append(b"one")
    leader.gate.suspend("the shared log does not answer")
    assert leader.states[1:] == [(JournalState.READ_ONLY, "the shared log does not answer")]
    leader.gate.release(leader.position())
    assert appended.called


def test_those_who_wait_for_a_shared_log_that_is_silent_are_let_go(leader: Member) -> None:
    appended = leader.append(b"one")
    leader.gate.suspend("the shared log does not answer")
    leader.clock.pump([1] * 5)
    assert (leader.let_go, appended.called) == (["the shared log does not answer"], False)
    leader.gate.release(leader.position())
    leader.clock.pump([1] * 5)
    assert (len(leader.let_go), appended.called) == (1, True)


def test_stepping_down_at_the_beginning_of_a_segment_keeps_that_segment(member: Callable[..., Member]) -> None:
    old, new = member("a"), member("b")
    now(old.gate.lead())
    for _ in range(3):
        old.append(bytes(30_000)).addErrback(lambda _: None)
    old.gate.release(old.position())
    lost = old.handed.pop()  # the shared log has the first batch of the second segment, and none of the following
    old.send(new)
    old.gate.follow(lost[0], "b leads")
    old = opened_again(old)
    now(new.gate.lead())
    for number in range(4):
        new.append(b"%d" % number * 30_000)
        new.gate.release(new.position())
        new.send(old)
    assert old.journal.status().segments == new.journal.status().segments == 3
    assert old.read() == new.read()


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
    old = opened_again(old)
    now(new.gate.lead())
    new.append(b"next")
    new.gate.release(new.position())
    new.send(old)
    assert old.read() == new.read() == [b"0" * 2_500_000]
    assert [bytes(run.payload) for run in old.journal.read("s", 2, 1 << 20)] == [b"next"]
    assert old.ends == {"s": 2}
    now(old.journal.close())


def test_a_server_that_leads_again_after_stepping_down_commits_and_releases(leader: Member) -> None:
    leader.append(b"one")
    leader.gate.follow(0, "b leads")
    leader = opened_again(leader)
    assert scan.segments(leader.directory) == []
    now(leader.gate.lead())
    leader.append(b"two")
    leader.gate.release(leader.position())
    assert leader.handed[0][0] == 0
    assert leader.read() == [b"two"]


def test_a_segment_begins_when_everything_before_it_is_released(leader: Member) -> None:
    results: list[Any] = []
    for _ in range(3):
        leader.append(bytes(30_000)).addBoth(results.append)
    assert len(scan.segments(leader.directory)) == 1
    leader.gate.release(leader.position())
    assert len(scan.segments(leader.directory)) == 2
    leader.gate.release(leader.position())
    assert results == [None] * 3


def test_a_large_first_append_is_written_when_the_beginning_of_the_log_is_released(leader: Member) -> None:
    """No other commit waits for that release."""
    results: list[Any] = []
    leader.append(bytes((1 << 16) - 200)).addBoth(results.append)
    for _ in range(2):
        leader.gate.release(leader.position())
    assert results == [None]


def test_a_retirement_waits_for_its_release(leader: Member, follower: Member) -> None:
    leader.append(b"one")
    leader.gate.release(leader.position())
    results: list[Any] = []
    leader.journal.retire(["s"]).addBoth(results.append)
    assert (results, leader.journal.ends()) == ([], {"s": 1})
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


def test_a_restarted_server_continues_where_everything_was_released(member: Callable[..., Member]) -> None:
    leader = member("a")
    now(leader.gate.lead())
    leader.append(b"kept")
    leader.gate.release(leader.position())
    released = leader.position()
    leader.append(b"lost").addErrback(lambda _: None)
    leader.gate.follow(released, "it stops")
    now(leader.journal.close())
    again = member("a")
    assert (again.position(), again.ends) == (released, {"s": 1})
    assert again.directory.joinpath("REPLICA").read_text() == "a\n"


def test_a_journal_that_differs_from_bytes_of_the_shared_log_is_found(leader: Member) -> None:
    leader.append(b"one")
    position, data = leader.handed[1]
    changed = data[:-1] + bytes([data[-1] ^ 1])
    assert not now(leader.journal.differs(position, data))
    assert not now(leader.journal.differs(position, data + b"what follows is not here yet"))
    assert now(leader.journal.differs(position, changed))


def test_a_follower_does_not_become_writable_by_itself(follower: Member) -> None:
    for _ in range(3):
        follower.journal.reactor.advance(1)
    assert follower.journal.state is JournalState.READ_ONLY
    assert follower.states == []


def test_batches_of_the_writer_thread_are_handed_over_before_they_are_synced(member: Callable[..., Member]) -> None:
    files = WatchedFiles()
    leader = member("a", worker=SteppedWorker(), files=files)
    now(leader.gate.lead())
    leader.handed.clear()
    handed: list[bool] = []
    files.synced = lambda: handed.append(bool(leader.handed))
    leader.append(b"x")
    assert handed[0]


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


def test_an_append_that_was_not_committed_when_another_server_leads_is_never_written(
    member: Callable[..., Member],
) -> None:
    worker = SteppedWorker()
    leader = member("a", worker=worker)
    now(leader.gate.lead())
    kept = leader.position()
    worker.held = True
    failures: list[Any] = []
    leader.append(b"too late").addErrback(failures.append)
    leader.gate.follow(kept, "b leads")
    worker.held = False
    worker.settle()
    assert failures == []
    assert leader.position() == kept
    assert not list(leader.directory.glob("torn-*"))
    now(leader.journal.close())


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


def test_the_position_of_a_synced_retirement_is_reported_at_once(leader: Member) -> None:
    leader.append(b"one")
    leader.gate.release(leader.position())
    told: list[int] = []
    leader.gate.on_synced = told.append
    leader.journal.retire(["s"]).addErrback(lambda _: None)
    assert told == [leader.position()]


def test_a_server_that_leads_again_writes_an_append_before_earlier_ones_are_released(leader: Member) -> None:
    leader.append(b"lost")
    leader.gate.follow(0, "b leads")
    leader = opened_again(leader)
    now(leader.gate.lead())
    for payload in (b"a long message", b"a short"):
        leader.append(payload).addErrback(lambda _: None)
        assert payload in leader.handed[-1][1]


def test_a_segment_begins_behind_released_batches_only(leader: Member) -> None:
    leader.append(bytes(1000))
    assert leader.gate.may_write(1000)
    assert not leader.gate.may_write(1 << 16)
    leader.gate.release(leader.position())
    assert leader.gate.may_write(1 << 16)
    for _ in range(2):
        leader.append(bytes(40_000))
        leader.gate.release(leader.position())
    leader.append(bytes(1000))
    assert len(scan.segments(leader.directory)) == 2
    assert leader.gate.may_write(1000), "it fits into the second segment"


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
