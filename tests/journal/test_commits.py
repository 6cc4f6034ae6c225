"""Where a commit runs: in the reactor's thread only if it is small, fits into the segment, and nothing else writes.

And when: with ``journal.linger``, the commit of one append waits for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from fyrehose.errors import ReadOnly
from fyrehose.interfaces import JournalState
from fyrehose.journal import journal as module
from fyrehose.journal.files import Files
from fyrehose.journal.pace import SMALL, Far, Measured
from fyrehose.journal.settings import Durability, JournalSettings
from fyrehose.journal.worker import InlineWorker
from tests.journal.conftest import Bench, Observer, Opener


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

    def work(self) -> int:
        """Run all jobs; return how many there were."""
        count = 0
        while self.jobs:
            job, done = self.jobs[0]
            result = job()
            self.jobs.pop(0)
            done.callback(result)
            count += 1
        return count


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
    """Open a journal, whose worker has done what belongs to that."""
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


def test_pace_follows_every_small_commit(bench: Bench, worker: HandWorker, pace: Near) -> None:
    pending = bench.journal._commits.pending
    sizes = []
    for payload in (bytes(8), bytes(SMALL - 98)):
        bench.append(payload)
        bench.clock.advance(0)
        worker.work()
        sizes.append(pending._last)
    assert sizes == [106, SMALL]
    assert len(pace.seen) == 2
    assert all(0 <= seconds < 60 for seconds in pace.seen)


def test_an_observer_that_fails_is_reported(
    bench: Bench, worker: HandWorker, pace: Near, logged_errors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Observer, "durable", lambda self, ends: 1 // 0)
    for near in (True, False):
        pace.near = near
        bench.append(b"a")
        bench.clock.advance(0)
        worker.work()
        assert [error["log_failure"].type for error in logged_errors.take()] == [ZeroDivisionError]
    monkeypatch.undo()


def test_commit_that_has_become_large_runs_in_the_writer_thread(bench: Bench, worker: HandWorker) -> None:
    appends = [bench.append(b"a"), bench.append(bytes(SMALL))]
    bench.clock.advance(0)
    assert durable(*appends) == [False, False]
    worker.work()
    assert durable(*appends) == [True, True]
    assert bench.payloads() == [b"a", bytes(SMALL)]


def test_commit_waits_for_the_writer_thread_while_that_is_busy(bench: Bench, worker: HandWorker) -> None:
    retired = bench.journal.retire(["s"])
    append = bench.append(b"a")
    bench.clock.advance(0)
    assert durable(append) == [False], "two threads must not write at once"
    worker.work()
    assert durable(retired, append) == [True, True]


def test_append_during_a_retirement_needs_no_later_append(bench: Bench, worker: HandWorker) -> None:
    bench.append(bytes(1_000))
    bench.clock.advance(0)
    retired = bench.journal.retire(["s"])
    append = bench.append(b"a", stream="other")  # smaller than the last commit
    bench.clock.advance(0)
    worker.work()
    assert durable(retired, append) == [True, True]


def test_worker_that_got_a_job_in_the_same_turn_is_waited_for(bench: Bench, worker: HandWorker) -> None:
    append = bench.append(b"a")
    retired = bench.journal.retire(["s"])
    bench.clock.advance(0)
    assert durable(append) == [False]
    worker.work()
    assert durable(append, retired) == [True, True]


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
    worker.work()


def test_full_disk_fails_the_commit_in_the_reactor_thread(open_journal: Opener, worker: HandWorker, pace: Near) -> None:
    class Full(Files):
        full = False

        def write(self, fd: int, data: Any, offset: int) -> None:
            if self.full:
                raise OSError(28, "No space left on device")
            super().write(fd, data, offset)

    files = Full()
    bench = opened(open_journal, worker, pace, files=files)
    files.full = True
    failures: list[Any] = []
    for payload in (b"a", b"b"):
        bench.append(payload).addErrback(failures.append)
    bench.clock.advance(0)
    assert [failure.type for failure in failures] == [ReadOnly, ReadOnly]
    assert bench.journal.state is JournalState.READ_ONLY
    files.full = False
    bench.clock.advance(2)
    worker.work()
    assert bench.journal.state is JournalState.WRITABLE
    bench.close()
    worker.work()


def test_closing_commits_what_waits_for_the_end_of_the_turn(bench: Bench, worker: HandWorker) -> None:
    append = bench.append(b"a")
    closed = bench.journal.close()
    assert not closed.called
    bench.clock.advance(0)
    assert durable(append) == [True]
    worker.work()
    assert closed.called


LINGER = 0.01


@pytest.fixture
def lingering(open_journal: Opener, worker: HandWorker, pace: Near) -> Iterator[Bench]:
    bench = opened(open_journal, worker, pace, linger=LINGER)
    yield bench
    bench.close()
    bench.clock.advance(LINGER)
    worker.work()


def test_single_append_waits_for_another_one_as_long_as_the_option_says(lingering: Bench) -> None:
    append = lingering.append(b"a")
    lingering.clock.advance(0.9 * LINGER)
    assert durable(append) == [False]
    lingering.clock.advance(0.1 * LINGER)
    lingering.clock.advance(0)
    assert durable(append) == [True]


def test_second_append_ends_the_wait_and_shares_the_commit(lingering: Bench, pace: Near) -> None:
    appends = [lingering.append(b"a")]
    lingering.clock.advance(LINGER / 2)
    appends.append(lingering.append(b"b"))
    appends.append(lingering.append(b"c"))
    assert durable(*appends) == [False, False, False], "the turn goes on"
    lingering.clock.advance(0)
    assert durable(*appends) == [True, True, True]
    assert len(pace.seen) == 1
    assert lingering.payloads() == [b"a", b"b", b"c"]


def test_wait_of_a_commit_also_precedes_the_writer_thread(lingering: Bench, worker: HandWorker, pace: Near) -> None:
    pace.near = False
    append = lingering.append(b"a")
    worker.work()
    assert durable(append) == [False]
    lingering.clock.advance(LINGER)
    worker.work()
    assert durable(append) == [True]


def test_append_that_came_during_a_commit_does_not_wait_for_another_one(
    lingering: Bench, worker: HandWorker, pace: Near
) -> None:
    pace.near = False
    first = lingering.append(b"a")
    lingering.clock.advance(LINGER)
    others = [lingering.append(b"b"), lingering.append(b"c")]
    worker.work()
    worker.work()
    assert durable(first, *others) == [True, True, True]


def test_full_disk_fails_an_append_that_waits(open_journal: Opener, worker: HandWorker, pace: Near) -> None:
    bench = opened(open_journal, worker, pace, linger=LINGER)
    failures: list[Any] = []
    bench.append(b"a").addErrback(failures.append)
    bench.journal._pending.failed = True
    bench.clock.advance(LINGER)
    bench.clock.advance(0)
    assert len(failures) == 1


def test_closing_commits_an_append_that_waits_for_another_one(lingering: Bench, worker: HandWorker) -> None:
    append = lingering.append(b"a")
    closed = lingering.journal.close()
    lingering.clock.advance(LINGER)
    lingering.clock.advance(0)
    worker.work()
    assert durable(append) == [True]
    assert closed.called


@pytest.mark.parametrize(
    ("mode", "where"), [("batch", Measured), ("interval", Far), ("never", Far)], ids=("batch", "interval", "never")
)
def test_disk_is_measured_only_if_each_commit_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, where: type
) -> None:
    monkeypatch.setattr(module, "ThreadWorker", lambda call, name: InlineWorker())
    clock: Any = Clock()
    clock.callFromThread = None
    settings = JournalSettings(min_free=0, durability=Durability(mode, 1.0))
    journal = module.FileJournal(clock, tmp_path, settings)
    journal.open(Observer())
    assert type(journal._commits.pace) is where
    journal.close()


def test_commits_run_in_a_given_worker(open_journal: Opener) -> None:
    assert type(open_journal().journal._commits.pace) is Far
