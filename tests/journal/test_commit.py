"""Group commit: which publishes wait, which thread commits them, and how their owners are settled.

A commit runs in the reactor's thread only if it is small, fits into the segment, and nothing else writes.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from fyrehose.interfaces import JournalState
from fyrehose.journal import journal as module
from fyrehose.journal.clock import RecordClock
from fyrehose.journal.commit import (
    AHEAD,
    CALM,
    COMMIT,
    COMMIT_S,
    FAST,
    LEAST_COMMIT,
    QUIET,
    SLOW,
    SMALL,
    STALL,
    Commit,
    Commits,
    CommitSize,
    Far,
    InlineWorker,
    Measured,
    ThreadWorker,
    settle,
)
from fyrehose.journal.format import BATCH_HEADER
from fyrehose.journal.settings import Durability, JournalSettings
from fyrehose.journal.writer import Committed, NoRoom
from fyrehose.records import Publish, Run
from tests.doubles.files import FaultyFiles
from tests.doubles.opened_journal import Bench, Observer, Opener


class HandWorker:
    """A worker whose jobs run when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Deferred[Any]]] = []
        self.by_hand = True

    def call(self, job: Callable[[], Any]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.jobs.append((job, done))
        if not self.by_hand:
            self.work()
        return done

    @property
    def idle(self) -> bool:
        return not self.jobs

    def stop(self) -> None:
        self.work()

    def work(self, most: int = 1 << 30) -> None:
        """Run the jobs that wait, *most* at the most."""
        while self.jobs and most:
            job, done = self.jobs[0]
            result = job()
            self.jobs.pop(0)
            done.callback(result)
            most -= 1


@attrs.define(eq=False)
class Near:
    """A pace that a test sets."""

    near: bool = True
    seen: list[float] = attrs.field(factory=list)

    def took(self, seconds: float) -> None:
        self.seen.append(seconds)


@pytest.fixture
def worker() -> HandWorker:
    return HandWorker()


@pytest.fixture
def pace() -> Near:
    return Near()


@pytest.fixture
def bench(open_journal: Opener, worker: HandWorker, pace: Near) -> Iterator[Bench]:
    bench = opened(open_journal, worker, pace)
    yield bench
    bench.close()
    bench.clock.advance(0)
    worker.work()


def opened(open_journal: Opener, worker: HandWorker, pace: Near, **settings: Any) -> Bench:
    """Open a journal whose worker has no job left."""
    worker.by_hand = False
    bench = open_journal(worker=worker, pace=pace, **settings)
    worker.by_hand = True
    return bench


def durable(*appends: Deferred[None]) -> list[bool]:
    return [append.called for append in appends]


def test_appends_of_one_turn_of_the_reactor_share_one_commit(bench: Bench, worker: HandWorker, pace: Near) -> None:
    first, second = bench.append(b"a"), bench.append(b"b")
    assert durable(first, second) == [False, False], "the turn goes on"
    bench.clock.advance(0)
    assert durable(first, second) == [True, True]
    assert bench.payloads() == [b"a", b"b"]
    assert not worker.jobs or bench.journal.status().durable, "only zeros are left to be written ahead"
    assert len(pace.seen) == 1


def test_commits_run_in_the_writer_thread_when_the_disk_is_slow(bench: Bench, worker: HandWorker, pace: Near) -> None:
    pace.near = False
    append = bench.append(b"a")
    bench.clock.advance(0)
    assert durable(append) == [False]
    worker.work()
    assert durable(append) == [True]
    assert len(pace.seen) == 1, "the disk is measured there, too"


def test_large_commit_runs_in_the_writer_thread(bench: Bench, worker: HandWorker, pace: Near) -> None:
    append = bench.append(bytes(SMALL))
    bench.clock.advance(0)
    assert durable(append) == [False]
    worker.work()
    assert durable(append) == [True]
    assert not pace.seen, "it says nothing about small ones"


def test_every_small_commit_is_measured_to_choose_the_thread(bench: Bench, worker: HandWorker, pace: Near) -> None:
    commits = bench.journal._commits
    sizes = []
    for payload in (bytes(8), bytes(SMALL - 98)):
        bench.append(payload)
        bench.clock.advance(0)
        worker.work()
        sizes.append(commits._last)
    assert sizes == [106, SMALL]
    assert len(pace.seen) == 2
    assert all(0 <= seconds < 60 for seconds in pace.seen)


def test_an_observer_that_fails_is_reported(bench: Bench, worker: HandWorker, pace: Near, logged_errors: Any) -> None:
    bench.observer.then = lambda ends: 1 // 0
    for near in (True, False):
        pace.near = near
        bench.append(b"a")
        bench.clock.advance(0)
        worker.work()
        assert [error["log_failure"].type for error in logged_errors.take()] == [ZeroDivisionError]
    bench.observer.then = lambda ends: None


def test_a_commit_that_grew_large_before_it_ran_goes_to_the_writer_thread(bench: Bench, worker: HandWorker) -> None:
    appends = [bench.append(b"a"), bench.append(bytes(SMALL))]
    bench.clock.advance(0)
    assert durable(*appends) == [False, False]
    worker.work()
    assert durable(*appends) == [True, True]
    assert bench.payloads() == [b"a", bytes(SMALL)]


def test_a_commit_waits_while_the_writer_thread_is_busy(bench: Bench, worker: HandWorker) -> None:
    other = worker.call(lambda: None)
    append = bench.append(b"a")
    bench.clock.advance(0)
    assert durable(append) == [False], "two threads must not write at once"
    worker.work()
    assert durable(other, append) == [True, True]


def test_an_append_during_a_retirement_is_committed_without_a_later_append(bench: Bench, worker: HandWorker) -> None:
    bench.append(bytes(1_000))
    bench.clock.advance(0)
    retired = bench.journal.retire(["s"])
    append = bench.append(b"a", stream="other")  # smaller than the last commit
    for _ in range(2):
        bench.clock.advance(0)
        worker.work()
    assert durable(retired, append) == [True, True]


def test_a_commit_waits_for_a_job_that_the_writer_thread_got_in_the_same_turn(bench: Bench, worker: HandWorker) -> None:
    append = bench.append(b"a")
    other = worker.call(lambda: None)
    bench.clock.advance(0)
    assert durable(append) == [False]
    worker.work()
    assert durable(append, other) == [True, True]


def test_appends_before_and_behind_a_retirement_have_commits_of_their_own(bench: Bench, worker: HandWorker) -> None:
    for name in ("a", "b"):
        bench.append(b"x", stream=name)
    retired = [bench.journal.retire([name]) for name in ("a", "b")]
    behind = bench.append(b"y", stream="a")
    for _ in range(4):
        bench.clock.advance(0)
        worker.work()
    assert durable(*retired, behind) == [True, True, True]
    assert (dict(bench.journal.retired()), dict(bench.journal.ends())) == ({"b": 1}, {"a": 2})


def test_commit_that_begins_a_segment_runs_in_the_writer_thread(
    open_journal: Opener, worker: HandWorker, pace: Near
) -> None:
    bench = opened(open_journal, worker, pace, segment_size=4096)
    near = far = 0
    for i in range(40):
        append = bench.append(b"%d" % i * 100)
        bench.clock.advance(0)
        near += append.called
        far += not append.called
        base = bench.journal.status().segments
        worker.work()
        assert append.called
        assert (bench.journal.status().segments > base) <= (far > 0)
    assert near > far > 0
    assert far == bench.journal.status().segments - 1, "these and only these rolled"
    assert bench.payloads() == [b"%d" % i * 100 for i in range(40)]
    bench.close()


@pytest.mark.parametrize(("more", "rolls"), [(0, False), (1, True)])
def test_commit_runs_in_the_writer_thread_exactly_if_it_begins_a_segment(
    open_journal: Opener, worker: HandWorker, pace: Near, more: int, rolls: bool
) -> None:
    bench = opened(open_journal, worker, pace, segment_size=8192)
    bench.append(b"x")
    bench.clock.advance(0)
    worker.work()
    writer = bench.journal.writer
    left = writer.base + writer.segment_size - writer.position - BATCH_HEADER.size
    empty = Run.of("s", [b""], source="test").room
    base, append = writer.base, bench.append(bytes(left - empty + more))
    bench.clock.advance(0)
    assert durable(append) == [not rolls]
    worker.work()
    assert durable(append) == [True]
    assert (writer.base > base) is rolls
    bench.close()
    worker.work()


def test_a_commit_in_the_reactor_thread_waits_for_room(open_journal: Opener, worker: HandWorker, pace: Near) -> None:
    files = FaultyFiles(error=errno.ENOSPC)
    bench = opened(open_journal, worker, pace, files=files)
    files.name, files.nth, files.times = "write", 1, 1 << 30
    appends = [bench.append(payload) for payload in (b"a", b"b")]
    bench.clock.advance(0)
    assert bench.journal.state is JournalState.READ_ONLY
    files.name = ""
    for _ in range(2):
        bench.clock.advance(1)
        worker.work()
        bench.clock.advance(0)
    assert (durable(*appends), bench.journal.state) == ([True, True], JournalState.WRITABLE)
    bench.close()
    worker.work()


def test_closing_commits_publishes_that_wait_for_the_end_of_the_turn(bench: Bench, worker: HandWorker) -> None:
    append = bench.append(b"a")
    closed = bench.journal.close()
    assert not closed.called
    bench.clock.advance(0)
    assert durable(append) == [True]
    worker.work()
    assert closed.called


@pytest.mark.parametrize(
    ("mode", "where"), [("batch", Measured), ("interval", Far), ("never", Far)], ids=("batch", "interval", "never")
)
def test_disk_is_measured_only_if_each_commit_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, where: type
) -> None:
    monkeypatch.setattr(module, "ThreadWorker", lambda call, name, meters: InlineWorker())
    clock: Any = Clock()
    clock.callFromThread = None
    settings = JournalSettings(min_free=0, durability=Durability(mode, 1.0))
    journal = module.FileJournal(clock, tmp_path, settings)
    journal.open(Observer())
    assert type(journal._commits.pace) is where
    journal.close()


def test_commits_run_in_the_worker_that_the_caller_gives(open_journal: Opener) -> None:
    assert type(open_journal().journal._commits.pace) is Far


# Waiting.


@attrs.define
class FakeWriter:
    """A writer that records the publishes that it is told to write."""

    time: int = 100
    payloads: list[bytes] = attrs.field(factory=list)
    may: bool = True
    times: list[tuple[int, int]] = attrs.field(factory=list)
    error: Exception | None = None
    meanwhile: Callable[[], object] = lambda: None
    position: int = 0
    durable: int = 0

    def retire(self, streams: Sequence[str]) -> list[Any]:
        if self.error is not None:
            raise self.error
        return []

    def commit(self, batches: list[list[Run]], time: int, clock: int) -> Committed:
        if self.error is not None:
            raise self.error
        self.meanwhile()
        self.time = time
        self.times += [(run.time, clock) for batch in batches for run in batch]
        self.payloads += [bytes(run.payload) for batch in batches for run in batch]
        return Committed([], 0, 0, None)


@attrs.define(eq=False)
class Owner:
    """An owner of publishes that records how they were settled."""

    said: list[list[bytes]]
    name: bytes = b""
    then: Callable[[], object] = lambda: None

    def settle(self, items: Sequence[Publish]) -> None:
        self.said.append([self.name, *(bytes(run.payload) for item in items for run in item.runs)])
        self.then()


class Rig:
    """The commits of a fake writer."""

    def __init__(self) -> None:
        self.writer, self.worker = FakeWriter(), HandWorker()
        self.done, self.failures = list[Commit](), list[Any]()
        writer: Any = self.writer
        self.commits = Commits(
            writer,
            self.worker,
            Far(),
            RecordClock(lambda: 50, lambda: 0),
            lambda size: self.writer.may,
            lambda call: call(),
            self.done.append,
            self.failures.append,
        )

    def submit(self, payload: bytes, size: int = 1, network: str = "") -> None:
        run = Run.of(network or "s", [payload], source="t", first_seq=1)
        self.commits.submit(Publish([run], size, Owner([]), network=network))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_one_commit_is_scheduled_for_several_publishes(rig: Rig) -> None:
    rig.commits.schedule()
    assert not rig.worker.jobs, "nothing waits"
    for payload in (b"a", b"b"):
        rig.submit(payload)
    assert len(rig.worker.jobs) == 1
    rig.worker.work(1)
    assert rig.writer.payloads == [b"a", b"b"]
    assert [bytes(item.runs[0].payload) for item in rig.done[0].items] == [b"a", b"b"]
    assert rig.writer.times == [(100, 50)] * 2, "the time of records never goes back, that of the clock may"
    rig.commits.schedule()
    assert not rig.worker.jobs


def test_publishes_stay_in_order_while_the_writer_has_to_wait(rig: Rig) -> None:
    rig.writer.may = False
    for payload in (b"a", b"b"):
        rig.submit(payload)
    rig.worker.work(1)
    assert (rig.done, len(rig.commits.waiting), len(rig.worker.jobs)) == ([], 2, 0)
    rig.writer.may = True
    rig.commits.schedule()
    rig.worker.work(1)
    assert len(rig.done[0].items) == 2
    assert rig.writer.payloads == [b"a", b"b"]


def test_publish_of_another_network_overtakes_large_ones_that_wait(rig: Rig) -> None:
    for number in range(4):
        rig.submit(b"large %d" % number, 2 * LEAST_COMMIT, network="192.0.2.1")
    rig.submit(b"small", network="192.0.2.2")
    while rig.worker.jobs:
        rig.worker.work(1)
        rig.commits.schedule()
    assert rig.writer.payloads == [b"large 0", b"small", b"large 1", b"large 2", b"large 3"]


def test_publish_during_a_commit_belongs_to_the_next(rig: Rig) -> None:
    rig.submit(b"first")

    def meanwhile() -> None:
        rig.writer.meanwhile = lambda: None
        rig.submit(b"meanwhile")

    rig.writer.meanwhile = meanwhile
    rig.worker.work(1)
    assert [len(commit.items) for commit in rig.done] == [1]
    rig.commits.schedule()
    rig.worker.work(1)
    assert rig.writer.payloads == [b"first", b"meanwhile"]


def test_size_of_a_commit_is_limited(rig: Rig) -> None:
    for _ in range(5):
        rig.submit(b"x", COMMIT // 2)
    while rig.worker.jobs:
        rig.worker.work(1)
        rig.commits.schedule()
    assert [len(commit.items) for commit in rig.done] == [1, 2, 2], "this disk takes no time"


@pytest.mark.parametrize(
    ("sizes", "commits"),
    [
        ([1, LEAST_COMMIT - 1, 1], [2, 1]),
        ([1, LEAST_COMMIT, 1], [1, 1, 1]),
        ([1, 3 * LEAST_COMMIT, 1, 1], [1, 1, 2]),
    ],
)
def test_small_publish_does_not_wait_for_a_large_one_behind_it(rig: Rig, sizes: list[int], commits: list[int]) -> None:
    """Writing and syncing a publish of 16 MiB takes 20 ms or more."""
    for size in sizes:
        rig.submit(b"x", size)
    while rig.worker.jobs:
        rig.worker.work(1)
        rig.commits.schedule()
    assert [len(commit.items) for commit in rig.done] == commits


@pytest.mark.parametrize(
    ("last", "added", "ahead"),
    [(100, [60], False), (100, [60, 40], True), (AHEAD, [AHEAD], True), (AHEAD + 1, [2 * AHEAD], False)],
)
def test_next_commit_is_scheduled_ahead_when_as_large_as_the_last_small_one(
    rig: Rig, last: int, added: list[int], ahead: bool
) -> None:
    rig.submit(b"x", last)
    rig.worker.work(1)
    rig.submit(b"y")
    job, _ = rig.worker.jobs.pop(0)  # a commit is under way, and takes the publishes that wait
    job()
    for size in added:
        rig.submit(b"x", size)
    assert bool(rig.worker.jobs) is ahead


def test_a_commit_without_room_waits_in_front_of_what_came_meanwhile(rig: Rig) -> None:
    rig.writer.error = NoRoom("none")
    rig.submit(b"a")
    rig.submit(b"b")
    rig.worker.work(1)
    assert [failure.check(NoRoom) for failure in rig.failures] == [NoRoom]
    assert (rig.done, rig.commits.size) == ([], 2)
    rig.writer.error = None
    rig.submit(b"c")
    rig.worker.work(1)
    rig.commits.schedule()
    rig.worker.work(1)
    assert (rig.writer.payloads, rig.commits.size) == ([b"a", b"b", b"c"], 0)


def test_nothing_is_written_or_passed_on_after_a_commit_that_failed(rig: Rig) -> None:
    rig.writer.error = OSError(5, "Input/output error")
    rig.submit(b"a")
    rig.worker.work(1)
    rig.writer.error = None
    rig.submit(b"b")
    rig.worker.work(1)
    assert (len(rig.failures), rig.done, rig.writer.payloads) == (1, [], [])


def test_a_commit_that_is_written_while_the_journal_ends_is_not_passed_on(rig: Rig) -> None:
    rig.writer.meanwhile = rig.commits.stop
    rig.submit(b"a")
    rig.worker.work(1)
    assert (rig.writer.payloads, rig.done) == ([b"a"], [])


def test_nothing_is_written_behind_a_retirement_that_failed(rig: Rig) -> None:
    """The writer's thread must not wait until the reactor knows of the failure."""
    rig.writer.error = OSError("the disk failed")
    rig.commits.submit(Publish([], 0, Owner([]), retires=["s"]))
    rig.submit(b"behind")
    rig.commits.commit()
    rig.writer.error = None
    while rig.worker.jobs:
        rig.worker.work(1)
    assert not rig.writer.payloads


def test_two_threads_lose_no_publish_and_keep_the_order(rig: Rig) -> None:
    jobs: SimpleQueue[bool] = SimpleQueue()
    commits = rig.commits

    def work() -> None:
        while jobs.get():
            commits.commit()

    def call(job: Callable[[], Any]) -> Deferred[Any]:
        jobs.put(True)
        return Deferred()

    rig.worker.call = call  # type: ignore[method-assign]
    thread = threading.Thread(target=work)
    thread.start()
    sent = [b"%d" % i for i in range(20_000)]
    for payload in sent:
        rig.submit(payload)
        commits.schedule()
    jobs.put(False)
    thread.join()
    assert rig.writer.payloads == sent


# Settling.


def submit(bench: Bench, owner: Owner, *payloads: bytes, stream: str = "s") -> None:
    run = Run.of(stream, payloads, source="t", first_seq=bench.next.get(stream, 1))
    bench.next[stream] = run.last_seq + 1
    bench.journal.submit(Publish([run], run.room, owner))


def test_each_owner_is_settled_once_after_the_observer_in_the_order_of_first_publishes(open_journal: Opener) -> None:
    worker, said = HandWorker(), list[Any]()
    bench = open_journal()
    bench.journal._commits.worker = worker
    bench.observer.then = said.append
    one, two = Owner(said, b"one"), Owner(said, b"two")
    for owner, payload in ((one, b"a"), (two, b"b"), (one, b"c")):
        submit(bench, owner, payload)
    worker.work(1)
    assert said == [{"s": 3}, [b"one", b"a", b"c"], [b"two", b"b"]]
    assert bench.payloads() == [b"a", b"b", b"c"]
    assert {record.time for record in bench.records()} == {1_000_000}


def test_owner_that_submits_while_it_is_settled_gets_the_next_commit(open_journal: Opener) -> None:
    bench, said = open_journal(), list[Any]()
    owner = Owner(said)

    def again() -> None:
        owner.then = lambda: None
        submit(bench, owner, b"b")

    owner.then = again
    submit(bench, owner, b"a")
    assert said == [[b"", b"a"], [b"", b"b"]]


def test_owner_that_fails_is_reported_and_the_others_are_settled(logged_errors: Any) -> None:
    said: list[Any] = []
    run = Run.of("s", [b"x"], source="t", first_seq=1)
    settle([Publish([run], 1, Owner(said, then=lambda: 1 // 0)), Publish([run], 1, Owner(said))])
    assert len(said) == 2
    assert [error["log_failure"].type for error in logged_errors.take()] == [ZeroDivisionError]


def test_submitting_to_a_journal_that_is_not_writable_is_a_bug(open_journal: Opener) -> None:
    bench = open_journal()
    bench.close()
    with pytest.raises(AssertionError, match="the journal is closed"):
        submit(bench, Owner([]), b"a")


# The pace.


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def measured(clock: Clock) -> Measured:
    return Measured(clock.seconds)


def feed(measured: Measured, seconds: float, commits: int = 100) -> None:
    for _ in range(commits):
        measured.took(seconds)


def test_a_disk_counts_as_fast_only_after_25_fast_commits(measured: Measured) -> None:
    feed(measured, 100e-6, 24)
    assert not measured.near
    feed(measured, 100e-6, 1)
    assert measured.near


def test_commits_between_the_two_limits_stay_in_their_thread(measured: Measured) -> None:
    between = (FAST + SLOW) / 2
    feed(measured, between)
    assert not measured.near
    feed(measured, FAST / 2)
    feed(measured, between)
    assert measured.near


def test_slow_disk_moves_commits_to_the_writer_thread(measured: Measured) -> None:
    feed(measured, FAST / 2)
    feed(measured, 2 * SLOW)
    assert not measured.near
    feed(measured, FAST / 2)
    assert measured.near, "it is fast again"


def test_stalls_that_are_far_apart_leave_commits_in_their_thread(measured: Measured, clock: Clock) -> None:
    for _ in range(10):
        feed(measured, FAST / 2)
        measured.took(10 * STALL)
        assert measured.near
        clock.advance(CALM)


def test_two_stalls_move_commits_to_the_writer_thread_until_none_came_for_a_while(
    measured: Measured, clock: Clock
) -> None:
    feed(measured, FAST / 2)
    measured.took(1.01 * STALL)
    assert measured.near
    clock.advance(CALM - 0.001)
    measured.took(1.01 * STALL)
    assert not measured.near
    feed(measured, FAST / 2)
    clock.advance(CALM - 0.001)
    feed(measured, FAST / 2)
    assert not measured.near
    clock.advance(0.001)
    feed(measured, FAST / 2, 1)
    assert measured.near


def test_stalls_in_the_writer_thread_keep_commits_there(measured: Measured, clock: Clock) -> None:
    feed(measured, FAST / 2)
    measured.took(10 * STALL)
    for _ in range(30):
        measured.took(10 * STALL)
        feed(measured, FAST / 2)
        clock.advance(1.0)
        assert not measured.near


def test_a_commit_of_exactly_the_limit_is_not_a_stall(measured: Measured) -> None:
    feed(measured, FAST / 2)
    measured.took(STALL)
    feed(measured, FAST / 2)
    assert measured.near


def test_a_few_slow_commits_of_a_fast_disk_leave_commits_in_their_thread(measured: Measured) -> None:
    # On a busy machine any system call may take long, while other processes use the processor.
    feed(measured, FAST / 2)
    for _ in range(100):
        feed(measured, FAST / 2, 3)
        measured.took(0.9 * STALL)
        assert measured.near


def test_changes_of_the_committing_thread_are_logged_once_a_minute(measured: Measured, clock: Clock) -> None:
    with capturedLogs() as events:
        for _ in range(4):
            feed(measured, FAST / 2)
            feed(measured, 2 * SLOW)
            clock.advance(QUIET / 4)
        feed(measured, FAST / 2)
    assert [event["log_format"].split()[-3:] for event in events] == [["the", "reactor's", "thread"]] * 2


# The worker.


@pytest.mark.parametrize("kind", ["thread", "inline"])
def test_jobs_run_in_order_and_report_their_results(kind: str) -> None:
    answers: SimpleQueue[Any] = SimpleQueue()
    worker = InlineWorker() if kind == "inline" else ThreadWorker(lambda *call: answers.put(call), "test")
    did: list[int] = []
    said: list[Any] = []

    def job(i: int) -> int:
        did.append(i)
        if i % 10 == 3:
            raise OSError(i, "no")
        return i

    for i in range(30):
        worker.call(lambda i=i: job(i)).addCallbacks(said.append, lambda f: said.append(f.value.errno))
    worker.stop()
    while not answers.empty():
        call, *arguments = answers.get()
        call(*arguments)
    assert did == said == list(range(30))


def test_stop_waits_for_accepted_jobs() -> None:
    held, answers = threading.Event(), []
    worker = ThreadWorker(lambda call, done, result: answers.append(result), "test")
    worker.call(held.wait)
    threading.Timer(0.05, held.set).start()
    worker.stop()
    assert answers == [True]


def test_thread_is_idle_when_the_results_of_all_jobs_were_processed() -> None:
    answers: SimpleQueue[Any] = SimpleQueue()
    worker = ThreadWorker(lambda *call: answers.put(call), "test")
    seen: list[bool] = []
    assert worker.idle
    worker.call(int).addCallback(lambda _: seen.append(worker.idle))
    worker.call(lambda: 1 // 0).addErrback(lambda _: seen.append(worker.idle))
    assert not worker.idle
    worker.stop()
    assert not worker.idle, "they ran, and nobody knows the results yet"
    while not answers.empty():
        call, *arguments = answers.get()
        call(*arguments)
    assert seen == [False, True]
    assert worker.idle


def test_program_that_does_not_stop_its_worker_can_exit() -> None:
    worker = ThreadWorker(lambda *call: None, "forgotten")
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "forgotten"] == [True]
    worker.stop()


@pytest.mark.parametrize(("fixed", "rate"), [(0.0005, 100e6), (0.005, 400e6), (0.2, 50e6)])
def test_commits_become_as_large_as_the_disk_writes_in_a_short_time(fixed: float, rate: float) -> None:
    """A commit takes COMMIT_S longer than a small one or, if each takes long, twice as long."""
    size = CommitSize()
    for _ in range(100):
        size.took(LEAST_COMMIT // 2, fixed)
        size.took(size.most, fixed + size.most / rate)
    assert size.most == pytest.approx(rate * max(COMMIT_S, fixed), rel=0.4)
    assert size.part == pytest.approx(rate * fixed, rel=0.4)


def test_first_commits_are_small_until_the_disk_is_measured() -> None:
    assert (CommitSize().most, CommitSize().part) == (LEAST_COMMIT, 0)


def test_commits_stay_within_their_bounds() -> None:
    size = CommitSize()
    size.took(COMMIT, 1e-9)
    assert size.most == COMMIT
    for _ in range(20):
        size.took(COMMIT, 60.0)
    assert size.most == LEAST_COMMIT


def test_large_commits_return_after_the_disk_was_slow() -> None:
    size = CommitSize()
    for _ in range(20):
        size.took(size.most, 60.0)
    for _ in range(200):
        size.took(size.most, 0.001 + size.most / 4e9)
    assert size.most == COMMIT
