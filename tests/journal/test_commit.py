"""Group commit: which publishes wait, which thread commits them, and how their owners are settled.

A commit runs in the reactor's thread only if it is small, fits into the segment, and nothing else writes.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

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
from fyrehose.journal.format import BATCH, BATCH_HEADER
from fyrehose.journal.settings import Durability, JournalSettings
from fyrehose.journal.writer import Committed, NoRoom
from fyrehose.records import Publish, Run
from tests.doubles.files import FaultyFiles
from tests.doubles.hand_worker import HandWorker
from tests.doubles.opened_journal import Bench, Observer, Opener


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
    worker.hold = False
    bench = open_journal(worker=worker, pace=pace, **settings)
    worker.hold = True
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


def test_an_observer_that_fails_is_reported(bench: Bench, worker: HandWorker, pace: Near, logged_errors: Any) -> None:
    bench.observer.then = lambda ends: 1 // 0
    for near in (True, False):
        pace.near = near
        bench.append(b"a")
        bench.clock.advance(0)
        worker.work()
        assert [error["log_failure"].type for error in logged_errors.take()] == [ZeroDivisionError]
    bench.observer.then = lambda ends: None


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


def test_publish_of_another_network_overtakes_large_ones_that_wait(rig: Rig) -> None:
    for number in range(4):
        rig.submit(b"large %d" % number, 2 * LEAST_COMMIT, network="192.0.2.1")
    rig.submit(b"small", network="192.0.2.2")
    while rig.worker.jobs:
        rig.worker.work(1)
        rig.commits.schedule()
    assert rig.writer.payloads == [b"large 0", b"small", b"large 1", b"large 2", b"large 3"]


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


def test_a_commit_that_is_written_while_the_journal_ends_is_not_passed_on(rig: Rig) -> None:
    rig.writer.meanwhile = rig.commits.stop
    rig.submit(b"a")
    rig.worker.work(1)
    assert (rig.writer.payloads, rig.done) == ([b"a"], [])


def test_two_threads_lose_no_publish_and_keep_the_order(rig: Rig) -> None:
    jobs: SimpleQueue[bool] = SimpleQueue()
    commits = rig.commits

    def work() -> None:
        while jobs.get():
            commits.commit()

    def call(job: Callable[[], Any]) -> Deferred[Any]:
        jobs.put(True)
        return Deferred()

    other: Any = SimpleNamespace(call=call, idle=False)
    commits.worker = other
    thread = threading.Thread(target=work)
    thread.start()
    sent = [b"%d" % i for i in range(20_000)]
    for payload in sent:
        rig.submit(payload)
        commits.schedule()
    jobs.put(False)
    thread.join()
    assert rig.writer.payloads == sent


class Reactor(HandWorker):
    """A reactor and its writer thread, of which a schedule runs each job, and reports its result, when it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.turn_ends: list[Callable[[], object]] = []

    def end_turn(self) -> None:
        calls = [*self.turn_ends]
        self.turn_ends.clear()
        for call in calls:
            call()

    def drain(self) -> None:
        while self.turn_ends or not self.idle:
            for is_due, act in ((self.turn_ends, self.end_turn), (self.jobs, self.run), (self.ran, self.report)):
                if is_due:
                    act()


class World:
    """Commits to a fake disk without room at times, and plain lists of what was submitted, written and passed on."""

    def __init__(self, seed: int) -> None:
        self.random, self.reactor, self.pace = Random(seed), Reactor(), Near()
        self.networks = ["", "other"][: 1 + seed % 2]
        self.submitted, self.written, self.passed = list[Publish](), list[Publish](), list[Publish]()
        self.room, self.may, self.failed, self.small, self.near = True, True, False, 0, 0
        self.wall = 50
        #: whether a commit has found no room, or a closed gate, since commits were scheduled last
        self.blocked = False
        # The writer is this world itself, with the attributes and methods of a writer that commits use.
        self.time, self.base, self.segment_size, self.position, self.durable = 60, 0, 4 * SMALL, 0, 0
        writer: Any = self
        clock, at_turn_end = RecordClock(lambda: self.wall, lambda: 0), self.reactor.turn_ends.append
        self.commits = Commits(
            writer,
            self.reactor,
            self.pace,
            clock,
            self.may_write,
            at_turn_end,
            self.synced,
            self.broke,
        )

    def may_write(self, size: int) -> bool:
        self.blocked = self.blocked or not self.may
        return self.may

    def submit(self) -> None:
        """Submit a publish, or the retirement of a stream; check where its commit is scheduled, if it is."""
        network = self.random.choice(self.networks)
        size = self.random.choice((1, 100, SMALL - BATCH_HEADER.size, SMALL, SMALL + 1, AHEAD, LEAST_COMMIT + 1))
        run = Run.of(network or "s", [b"x"], source="t", first_seq=1)
        publish = Publish([run], size, None, len(self.submitted), network=network)
        if self.random.random() < 0.2:
            publish = Publish([], 0, None, len(self.submitted), retires=["s"])
        self.submitted.append(publish)
        scheduled = len(self.reactor.jobs), len(self.reactor.turn_ends)
        near = self.pace.near and self.reactor.idle and self.commits.size + publish.size <= SMALL
        self.commits.submit(publish)
        wanted = scheduled[0] + (not near), scheduled[1] + near
        assert (len(self.reactor.jobs), len(self.reactor.turn_ends)) in (scheduled, wanted), "in the wrong thread"

    def commit(self, batches: list[list[Run]], time: int, clock: int) -> Committed:
        publishes = {id(run): publish for publish in self.submitted for run in publish.runs}
        runs = [run for batch in batches for run in batch]
        assert (time, clock) == (max(self.time, self.wall), self.wall), "the time of records goes back"
        assert {run.time for run in runs} == {time}, "the records have another time"
        items = [publishes[id(run)] for run in runs]
        size = sum(item.size for item in items)
        assert all(len(batch) == 1 or sum(publishes[id(run)].size for run in batch) <= BATCH for batch in batches)
        self._write(items, size)
        self.time = time
        return Committed([], 0, 0, None)

    def retire(self, streams: Sequence[str]) -> list[Any]:
        self._write([next(item for item in self.submitted if item.retires and item not in self.written)], 0)
        return []

    def take_rolled(self) -> None:
        """Return that no segment was completed."""

    def _write(self, items: list[Publish], size: int) -> None:
        self.near += not self.reactor.in_job
        if not self.reactor.in_job:
            assert self.reactor.idle, "two threads write at once"
            assert size <= SMALL, "the reactor waits for a large commit"
            assert self.position + size + BATCH_HEADER.size <= self.segment_size, "the reactor begins a segment"
        assert self.may, "the gate is closed"
        if not self.room:
            self.blocked = True
            raise NoRoom("none")
        if self.random.random() < 0.003:
            self.failed = True
            raise OSError(5, "Input/output error")
        assert not self.failed, "a commit behind one that has failed"
        self.written += items
        self.position = 0 if self.random.random() < 0.2 else self.position + size
        self.position %= self.segment_size

    def synced(self, commit: Commit) -> None:
        assert not self.failed, "a commit was passed on behind one that has failed"
        self.passed += commit.items
        assert self.passed == self.written[: len(self.passed)], "passed on in another order than written"
        self.small += commit.size <= SMALL
        self.commits.schedule()

    def broke(self, failure: Failure) -> None:
        assert failure.check(NoRoom) or self.failed, str(failure)

    def step(self) -> None:
        reactor, random = self.reactor, self.random
        what = random.choice((*["submit", "run", "report"] * 2, "submit", "turn", "room", "room", "pace", "job"))
        if what == "submit":
            self.submit()
        elif what == "turn":
            size, before = self.commits.size, self.near
            fits = self.position + size + BATCH_HEADER.size <= self.segment_size
            near = bool(reactor.turn_ends) and reactor.idle and size <= SMALL and fits and self.may and not self.failed
            reactor.end_turn()
            assert (self.near > before) == near, "a commit in the other thread"
        elif what == "run" and reactor.jobs:
            reactor.run()
        elif what == "report" and reactor.ran:
            reactor.report()
        elif what == "room":
            self.room, self.may = random.choice(((True, True), (True, True), (False, True), (True, False)))
            self.blocked = False
            self.commits.schedule()
        elif what == "pace":
            self.pace.near, self.wall = not self.pace.near, self.wall + random.randint(-5, 9)
        elif what == "job":
            reactor.call(lambda: None)

    def check(self) -> None:
        under_way = sum(publish.size for publish in self.submitted if publish not in self.passed)
        goes_on = self.failed or self.blocked or self.reactor.turn_ends or not self.reactor.idle
        assert goes_on or not self.commits.waiting, "publishes wait, and nothing commits them"
        assert self.failed or self.commits.size == under_way, "another size waits than was submitted and not passed on"
        for network in self.networks:
            order = [publish for publish in self.submitted if publish.network == network]
            written = [publish for publish in self.written if publish.network == network]
            assert written == order[: len(written)], "written twice, not at all, or in another order"
        assert self.failed or len(self.pace.seen) == self.small, "other commits were measured than the small ones"


@pytest.mark.parametrize("seed", range(0, 200, 20))
def test_random_schedules_of_commits_agree_with_plain_lists(seed: int) -> None:
    for number in range(seed, seed + 20):
        world = World(number)
        for _ in range(120):
            world.step()
            world.check()
        world.room = world.may = True
        world.commits.schedule()
        world.reactor.drain()
        world.check()
        assert world.failed or world.passed == world.written, "something was not passed on"
        assert world.failed or len(world.written) == len(world.submitted), "something waits forever"


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


def test_thread_of_commits_agrees_with_a_plain_history_of_their_durations() -> None:
    """A disk counts as fast after 25 fast commits, and as slow after slow ones, or after two stalls within a while."""
    durations = (FAST / 2, FAST / 2, FAST / 2, (FAST + SLOW) / 2, 0.9 * STALL, STALL, 1.01 * STALL, 2 * SLOW, 60.0)
    for seed in range(40):
        random, clock = Random(seed), Clock()
        measured, average, near = Measured(clock.seconds), 2 * SLOW, False
        stalls: list[float] = []
        said: list[float] = []
        with capturedLogs() as events:
            for number in range(60):
                seconds = FAST / 5 if number == 0 else random.choice(durations)
                for count in range(25 if number == 0 else random.choice((1, 1, 2, 30))):
                    average += (min(seconds, 2 * SLOW) - average) / 16
                    recent = [at for at in stalls if clock.seconds() - at < CALM]
                    if seconds > STALL:
                        stalls.append(clock.seconds())
                    before, calm = near, not recent and seconds <= STALL
                    near = average <= SLOW and not (recent and seconds > STALL) if near else average < FAST and calm
                    if near != before and (not said or clock.seconds() - said[-1] >= QUIET):
                        said.append(clock.seconds())
                    measured.took(seconds)
                    assert measured.near is near, f"after commit {number}.{count} of schedule {seed}, of {seconds} s"
                    assert number or near is (count == 24)
                clock.advance(random.choice((0, 0, 1, CALM - 1, CALM, QUIET)))
        texts = [str(formatEvent(event)) for event in events]
        assert len(texts) == len(said), "a change of the thread is logged at most once a minute"
        assert re.fullmatch(r"commits take 0\.\d\d ms, and run in the reactor's thread", texts[0])
        for text in texts[1:]:
            assert re.fullmatch(r"commits take 0.*|a commit took [\d.]+ ms; commits run in the writer thread", text)


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
