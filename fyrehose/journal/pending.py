"""Appends that wait to become durable.

The reactor thread adds them; a commit, mostly in the writer thread, takes everything that waits and syncs it once.

    add -> (a commit is scheduled: commits.py) -> commit: all pending appends with one sync -> Commit

While one commit is being synced, the next one fills.  Once it is as large as the last one, the writer thread is
scheduled to take it immediately, so that the disk stays busy.  Otherwise, and if commits are large, it is scheduled
when the reactor has processed the commit under way, because many small commits cost more than that delay.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from fyrehose.journal import format as fmt
from fyrehose.journal.writer import Committed, Writer
from fyrehose.records import Run

#: Upper bound of a commit, in bytes; keeps a single sync short.
COMMIT = 16 << 20
#: Commits larger than this, in bytes, are not scheduled ahead: the delay of the reactor is small compared with them.
AHEAD = 256 << 10


@attrs.define(eq=False)
class PendingAppend:
    """One call of ``append()`` that is not durable yet.

    :ivar size: of its runs, in bytes
    :ivar done: fires when the append is durable, or failed
    """

    runs: Sequence[Run]
    first_seqs: Sequence[int]
    size: int
    done: Deferred[None] = attrs.field(factory=Deferred)


@attrs.frozen(slots=True)
class Commit:
    """Result of one commit.

    :ivar size: of its appends, in bytes
    :ivar began, ended: when the commit itself ran (monotonic clock, seconds)
    :ivar result: None if the commit was not attempted, because nothing was waiting or an earlier commit failed
    """

    appends: list[PendingAppend]
    size: int
    began: float
    ended: float
    result: Committed | Failure | None


@attrs.define(eq=False)
class Pending:
    """FIFO of pending appends.

    :ivar now: the wall clock, in microseconds since 1970 UTC
    :ivar failed: set after a failed commit: later appends must not be written without it
    :ivar size: size of everything that waits or is being written, in bytes; belongs to the reactor thread
    :ivar appends: what waits, the oldest first
    """

    now: Callable[[], int]
    failed: bool = False
    size: int = attrs.field(default=0, init=False)
    appends: deque[PendingAppend] = attrs.field(factory=deque, init=False)
    #: True while a commit is scheduled but not started.
    _scheduled: bool = attrs.field(default=False, init=False)
    #: Size of the appends since a commit was scheduled last, and of the last commit, in bytes.
    _added: int = attrs.field(default=0, init=False)
    _last: int = attrs.field(default=0, init=False)

    def add(self, append: PendingAppend) -> None:
        """Add an append; the caller then checks :attr:`full` and :meth:`needs_commit`."""
        self.appends.append(append)
        self._added += append.size
        self.size += append.size

    @property
    def full(self) -> bool:
        """Return whether the next commit is large enough to be scheduled while another is under way."""
        return self._last <= self._added and self._last <= AHEAD

    def needs_commit(self) -> bool:
        """Return True if the caller must schedule a commit, which then counts as scheduled."""
        if self._scheduled or not self.appends:
            return False
        self._scheduled = True
        self._added = 0
        return True

    def processed(self, commit: Commit) -> None:
        """Record that the reactor has processed *commit*."""
        self._last = commit.size
        self.size -= commit.size

    def commit(self, writer: Writer) -> Commit:
        """Write everything that is pending (called in the thread that writes)."""
        # The flag is reset before the queue is read: an append that is added from now on is either taken here, or
        # schedules the next commit.
        self._scheduled = False
        appends: list[PendingAppend] = []
        size = 0
        while self.appends and size < COMMIT:
            appends.append(self.appends.popleft())
            size += appends[-1].size
        began = time.monotonic()
        if appends and not self.failed and not writer.may_commit(size + len(appends) * fmt.BATCH_HEADER.size):
            self.appends.extendleft(reversed(appends))
            appends, size = [], 0
        result = None if self.failed or not appends else self._write(writer, appends)
        return Commit(appends, size, began, time.monotonic(), result)

    def _write(self, writer: Writer, appends: Sequence[PendingAppend]) -> Committed | Failure:
        clock = self.now()
        accepted = max(writer.time, clock)
        try:
            return writer.commit(batches(appends, accepted), accepted, clock)
        except Exception:
            self.failed = True
            return Failure()


def batches(appends: Sequence[PendingAppend], accepted: int) -> list[list[Run]]:
    """Distribute the runs of *appends* over batches of at most ``fmt.BATCH`` bytes, unless one append is larger.

    :param accepted: time of the records, in microseconds since 1970 UTC
    :return: the numbered runs of each batch
    """
    found: list[list[Run]] = []
    filled = fmt.BATCH
    for append in appends:
        if filled + append.size > fmt.BATCH:
            found.append([])
            filled = 0
        batch = found[-1]
        for run, first in zip(append.runs, append.first_seqs, strict=True):
            batch.append(run.numbered(first, accepted))
        filled += append.size
    return found
