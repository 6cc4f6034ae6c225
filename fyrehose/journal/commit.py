"""Group commit: publishes wait, and one commit writes and syncs all publishes that wait.

    submit -> waiting (waiting.py) -> a commit: in the reactor's thread at the end of an iteration, or the writer thread
           -> Commit -> the gate -> the journal, which settles each owner of the commit once
           -> no room -> waiting, in front, until the journal schedules a commit again

What is submitted becomes durable, or the journal ends: a commit is never refused.

While one commit is synced, publishes gather for the next, so commits grow with the load.  Once the gathered publishes
are as large as the last commit, the writer thread is scheduled to commit them at once, so that the disk stays busy.
Otherwise, and if commits are large, the next commit is scheduled when the reactor has processed the present one,
because that delay costs less than many small commits.

Handing a commit to another thread, and its result back, costs more than a sync of a fast disk: four context switches,
and two wake-ups of the interpreter.  A slow disk, however, would make every connection wait.  So small commits run in
the reactor's thread while the disk is measured to be fast (:class:`Measured`) and the writer thread has no job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

import attrs
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.journal import format as fmt
from fyrehose.journal.clock import RecordClock
from fyrehose.journal.waiting import WaitingPublishes
from fyrehose.journal.writer import Committed, NoRoom, Writer
from fyrehose.observe.meters import JournalMeters
from fyrehose.records import Publish, Run

log = Logger()
T = TypeVar("T")

_HEADER = fmt.BATCH_HEADER.size
#: Bounds of the upper bound of a commit, in bytes; a single publish may be larger.
COMMIT = 16 << 20
LEAST_COMMIT = 1 << 20
#: How long a commit should take, in seconds, besides what the smallest takes, or as long as that again.
COMMIT_S = 10e-3
#: Commits larger than this, in bytes, are not scheduled ahead, because they take much longer than the reactor's delay.
AHEAD = 256 << 10
#: Commits larger than this, in bytes, run in the writer thread, so that the reactor can receive publishes meanwhile.
SMALL = 64 << 10
#: Commits move to the reactor's thread if they take less than FAST seconds on average, and back if more than SLOW.
FAST, SLOW = 500e-6, 1e-3
#: Weight of one commit in the moving average of their durations.
WEIGHT = 1 / 16
#: A commit that takes longer than this, in seconds, is a stall.
STALL = 10e-3
#: After two stalls within this many seconds, commits run in the writer thread until as many have passed without one.
#: A single stall changes nothing: usually another process had the processor, and handing commits over costs more.
CALM = 10.0
#: Changes between the threads are logged at most once in this many seconds; on a busy machine there may be many.
QUIET = 60.0


# Waiting, writing, settling.


@attrs.define(eq=False, slots=True)
class Commit:
    """The publishes of one commit, and its outcome.

    :ivar size: size of the publishes, in bytes
    :ivar began, ended: when the commit itself ran, in microseconds of the monotonic clock
    :ivar result: None if nothing was written, because nothing was waiting, or may be written at present
    """

    items: list[Publish]
    size: int
    began: int
    ended: int
    result: Committed | Failure | None


@attrs.define(eq=False)
class CommitSize:
    """The measured size up to which a commit takes COMMIT_S longer than a small one, or twice as long.

    :ivar most: that size in bytes, between LEAST_COMMIT and COMMIT
    :ivar part: how many bytes are written while a small commit takes place, at most ``most``
    """

    most: int = attrs.field(default=LEAST_COMMIT, init=False)
    part: int = attrs.field(default=0, init=False)
    _small: float = attrs.field(default=0.0, init=False)  #: how long commits up to LEAST_COMMIT take on average

    def took(self, size: int, seconds: float) -> None:
        """Measure a commit of *size* bytes that took *seconds*."""
        if size <= LEAST_COMMIT:
            self._small += (seconds - self._small) * WEIGHT
        longer = max(COMMIT_S, self._small)
        if 2 * size >= self.most:
            wanted = size * longer / max(seconds - self._small, COMMIT_S / 16)
            self.most = min(COMMIT, max(LEAST_COMMIT, (self.most + int(wanted)) // 2))
        self.part = int(self.most * self._small / longer)


@attrs.define(eq=False)
class Commits:
    """The commits of one journal, one after another.

    :ivar clock: gives records their times, and measures commits
    :ivar pace: decides in which thread commits run
    :ivar may_write: called with a number of bytes in the thread that writes; returns whether they may be written now;
        None: always
    :ivar at_turn_end: calls a function when the reactor has read everything that is readable in this iteration
    :ivar synced: called in the reactor's thread with each commit that is on disk, in order
    :ivar broke: called with the error of a commit that failed; after :class:`.NoRoom` its publishes wait in front of
        all others, and after another error the journal has to end
    :ivar stopped: whether nothing is written or passed on any more, because the journal ends
    :ivar unsettled: how many publishes and retirements were submitted and are not released yet; the journal reduces it
    :ivar size: size of all publishes that wait or are being written, in bytes
    :ivar waiting: the publishes that wait for a commit
    :ivar largest: how large a commit is at most
    """

    writer: Writer
    worker: Worker
    pace: Pace
    clock: RecordClock
    may_write: Callable[[int], bool] | None
    at_turn_end: Callable[[Callable[[], object]], object]
    synced: Callable[[Commit], None]
    broke: Callable[[Failure], None]
    stopped: bool = attrs.field(default=False, init=False)
    unsettled: int = attrs.field(default=0, init=False)
    size: int = attrs.field(default=0, init=False)
    waiting: WaitingPublishes = attrs.field(factory=WaitingPublishes, init=False)
    largest: CommitSize = attrs.field(factory=CommitSize, init=False)
    #: Whether a commit is scheduled that has not taken the waiting publishes yet.
    _scheduled: bool = attrs.field(default=False, init=False)
    #: Number of commits that are scheduled or run, and are not processed yet.
    _under_way: int = attrs.field(default=0, init=False)
    #: Size of the publishes since a commit was scheduled last, and of the publishes of the last commit, in bytes.
    _added: int = attrs.field(default=0, init=False)
    _last: int = attrs.field(default=0, init=False)
    #: Size of the commit that may not be written at present, in bytes; 0: the last one might be.
    _put_off: int = attrs.field(default=0, init=False)

    def submit(self, publish: Publish) -> None:
        """Commit *publish* with the next commit; one that retires streams has a commit of its own."""
        self.unsettled += 1
        self.waiting.arrived.append(publish)
        self.size += publish.size
        self._added += publish.size
        if not self._scheduled and (not self._under_way or (self._last <= self._added and self._last <= AHEAD)):
            self.schedule()

    def stop(self) -> None:
        """Write nothing more, and pass nothing on, because the journal ends."""
        self.stopped = True

    def schedule(self, near: bool = True) -> None:
        """Schedule a commit of the waiting appends, unless one is scheduled already or none waits.

        :param near: whether the commit may run in the reactor's thread
        """
        waiting = self.waiting
        if self._scheduled or not (waiting.arrived or waiting.left):
            return
        self._scheduled = True
        self._under_way += 1
        self._added = 0
        if near and self.pace.near and self.worker.idle and self.size <= SMALL:
            # Publishes that arrive later in this iteration of the reactor belong to the same commit.
            self.at_turn_end(self._commit_near)
        else:
            self.worker.call(self.commit).addCallback(self._process).addErrback(_log_bug)

    def _commit_near(self) -> None:
        size = self.size
        # More publishes may have arrived meanwhile, and the worker may have got another job.
        writer = self.writer
        whole = writer.position + size + _HEADER <= writer.base + writer.segment_size  # else the segment is full
        if size > SMALL or not self.worker.idle or not whole:
            self._scheduled = False
            self._under_way -= 1
            self.schedule(near=False)
            return
        try:
            self._process(self.commit())
        except Exception:
            _log_bug(Failure())

    def commit(self) -> Commit:
        """Write all publishes that wait (called in the thread that writes)."""
        # The flag is reset before the queue is read: a publish that is submitted from now on is either taken here, or
        # schedules the next commit.
        self._scheduled = False
        began = self.clock.monotonic()
        items, size = self._take()
        result: Committed | Failure | None = None
        try:
            if items:
                result = self._write(items)
        except NoRoom:
            result = Failure()
            self.waiting.put_back(items)
            items, size = [], 0
        except Exception:
            self.stopped = True  # Later publishes must not be written without those of this commit.
            result = Failure()
        return Commit(items, size, began, self.clock.monotonic(), result)

    def _take(self) -> tuple[list[Publish], int]:
        """Take the publishes of the next commit from those that wait; return them and their size in bytes."""
        items, size = ([], 0) if self.stopped else self.waiting.take(self.largest.most, self.largest.part)
        needed = size + len(items) * _HEADER
        self._put_off = needed if items and self.may_write is not None and not self.may_write(needed) else 0
        if self._put_off:
            self.waiting.put_back(items)
            return [], 0
        return items, size

    def _write(self, items: Sequence[Publish]) -> Committed:
        writer = self.writer
        if items[0].retires:
            retired = writer.retire(items[0].retires)
            return Committed([], writer.position, writer.durable, writer.take_rolled(), retired=retired)
        clock = self.clock.now()
        accepted = max(writer.time, clock)
        # Each batch has at most fmt.BATCH bytes, unless one publish is larger.
        batches: list[list[Run]] = []
        filled = fmt.BATCH
        for item in items:
            if filled + item.size > fmt.BATCH:
                batches.append([])
                filled = 0
            for run in item.runs:
                run.time = accepted
            batches[-1] += item.runs
            filled += item.size
        return writer.commit(batches, accepted, clock)

    def _process(self, commit: Commit) -> None:
        result = commit.result
        self._under_way -= 1
        self._last = commit.size
        self.size -= commit.size
        assert self._under_way >= 0 <= self.size, f"{self._under_way} commits of {self.size} bytes are under way"
        if isinstance(result, Failure):
            self.broke(result)
        elif result is not None:
            seconds = (commit.ended - commit.began) / 1e6
            if commit.size <= SMALL:
                self.pace.took(seconds)
            else:
                self.largest.took(commit.size, seconds)
            if not self.stopped:
                self.synced(commit)
        elif self._put_off and self.may_write is not None and self.may_write(self._put_off):
            self.schedule()  # It may be written by now, and nothing else may ever schedule it.


def _log_bug(failure: Failure) -> None:
    log.failure("processing a durable commit failed; please report this bug", failure)


def settle(items: Sequence[Publish]) -> None:
    """Settle *items*, the durable publishes of one commit: call each owner once, in the order of their first items."""
    owners: dict[Any, list[Publish]] = {}
    for item in items:
        owners.setdefault(item.owner, []).append(item)
    for owner, of in owners.items():
        try:
            owner.settle(of)
        except Exception:
            log.failure("settling publishes failed; please report this bug")  # the other publishes are still settled


class Deferreds:
    """The owner of publishes whose ``note`` is a Deferred."""

    def settle(self, items: Sequence[Publish]) -> None:
        for item in items:
            item.note.callback(None)


DEFERREDS = Deferreds()


# Where commits run.


class Pace(Protocol):
    """The choice of the thread, the reactor's or the writer's, in which small commits run."""

    @property
    def near(self) -> bool:
        """Return whether the next small commit should run in the reactor's thread."""

    def took(self, seconds: float) -> None:
        """Note that a small commit took *seconds*, in whichever thread it ran."""


class Far:
    """A pace by which every commit runs in the writer thread, never in the reactor's thread."""

    near = False

    def took(self, seconds: float) -> None:
        """Do nothing, because this pace does not depend on how long a commit took."""


@attrs.define(eq=False)
class Measured:
    """A pace by which small commits run in the reactor's thread while they are measured to be fast.

    :ivar seconds: a monotonic clock
    """

    seconds: Callable[[], float] = time.monotonic
    near: bool = attrs.field(default=False, init=False)
    #: Moving average of the duration of commits, in seconds; the disk counts as slow until some commits were fast.
    _average: float = attrs.field(default=2 * SLOW, init=False)
    _calm_at: float = attrs.field(default=float("-inf"), init=False)
    _log_again_at: float = attrs.field(default=float("-inf"), init=False)

    def took(self, seconds: float) -> None:
        """Note that a commit took *seconds*, and decide from the average in which thread the next ones run."""
        # A single slow commit counts as twice the limit at most.  On a busy machine it has mostly waited for a
        # processor, which says nothing about how long the disk takes.
        self._average += WEIGHT * (min(seconds, 2 * SLOW) - self._average)
        now = self.seconds()
        stalled_again = False
        if seconds > STALL:
            stalled_again = now < self._calm_at
            self._calm_at = now + CALM
        if self.near and (stalled_again or self._average > SLOW):
            self.near = False
            self._log("a commit took {ms:.1f} ms; commits run in the writer thread", now, seconds)
        elif not self.near and self._average < FAST and now >= self._calm_at:
            self.near = True
            self._log("commits take {ms:.2f} ms, and run in the reactor's thread", now, self._average)

    def _log(self, text: str, now: float, seconds: float) -> None:
        if now >= self._log_again_at:
            self._log_again_at = now + QUIET
            log.info(text, ms=seconds * 1e3)


# The writer thread.


class Worker(Protocol):
    """A queue of blocking functions that run one after another."""

    @property
    def idle(self) -> bool:
        """Return whether all jobs have run and their Deferreds have fired; if so, the caller may run a job itself."""

    def call(self, job: Callable[[], T]) -> Deferred[T]:
        """Run *job* after all earlier jobs; its result or exception fires the Deferred in the reactor thread."""

    def stop(self) -> None:
        """Accept no more jobs, and block until all accepted jobs have run."""


class ThreadWorker:
    """A worker with a thread of its own.

    :param meters: have the time when the thread began with its present job
    """

    def __init__(self, call_from_thread: Callable[..., Any], name: str, meters: JournalMeters | None = None) -> None:
        self._call_from_thread, self._meters = call_from_thread, meters or JournalMeters()
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Deferred[Any]] | None] = SimpleQueue()
        self._unsettled = 0
        self.idle = True
        # A daemon thread: a program that exits without closing its journal must not hang.
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def call(self, job: Callable[[], T]) -> Deferred[T]:
        done: Deferred[T] = Deferred()
        self._unsettled += 1
        self.idle = False
        self._jobs.put((job, done))
        return done

    def stop(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        result: Any
        meters = self._meters
        while (item := self._jobs.get()) is not None:
            job, done = item
            meters.write_began = meters.seconds()
            try:
                result = job()
            except Exception:
                result = Failure()
            meters.write_began = None
            self._call_from_thread(self._settle, done, result)

    def _settle(self, done: Deferred[Any], result: Any) -> None:
        self._unsettled -= 1
        self.idle = not self._unsettled
        done.callback(result)  # a Failure, too


class InlineWorker:
    """A worker that runs each job immediately in the caller's thread, for tests and for tools without a reactor."""

    idle = True

    def call(self, job: Callable[[], T]) -> Deferred[T]:
        return maybeDeferred(job)

    def stop(self) -> None:
        """Do nothing: every job has run already."""
