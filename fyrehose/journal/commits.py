"""Schedules commits: in the writer thread, or in the reactor's while the disk is fast (see pace.py).

schedule -> perhaps a short wait for a second append (see linger.py)
         -> the reactor's thread, at the end of its turn -> Pending.commit -> the journal settles its appends
         -> the writer thread                            ->
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from fyrehose.journal.linger import Linger
from fyrehose.journal.pace import SMALL, Pace
from fyrehose.journal.pending import Commit, Pending
from fyrehose.journal.worker import Worker
from fyrehose.journal.writer import Committed, Writer

log = Logger()


@attrs.define(eq=False)
class Commits:
    """The commits of one journal, one after another.

    :ivar reactor: calls back at the end of its turn
    :ivar settle: called in the reactor's thread with the result of each commit
    :ivar lingering: the timer of a commit that waits for a second append; :meth:`schedule` ends its wait
    """

    reactor: Any
    pending: Pending
    writer: Writer
    worker: Worker
    pace: Pace
    linger: Linger
    settle: Callable[[Commit], None]
    lingering: IDelayedCall | None = attrs.field(default=None, init=False)

    def schedule(self) -> None:
        """Schedule a commit of what is pending, unless one is scheduled already or nothing is pending."""
        if self.lingering is not None:
            self.lingering.cancel()
            self._end_wait(company=True)
        elif self.pending.needs_commit():
            wait = self.linger.wait() if len(self.pending) == 1 and self.worker.idle else 0.0
            if wait:
                self.lingering = self.reactor.callLater(wait, self._end_wait, company=False)
            else:
                self._commit()

    def _end_wait(self, company: bool) -> None:
        self.lingering = None
        self.linger.waited(company)
        self._commit()

    def _commit(self) -> None:
        if self.pace.near and self.worker.idle and self.pending.size <= SMALL:
            # What else arrives in this turn of the reactor belongs to the same commit.
            self.reactor.callLater(0, self._commit_near)
        else:
            self._commit_far()

    def _is_near(self) -> bool:
        """Return whether a commit may run in this thread: it takes little time, and no other job is writing."""
        if not self.pace.near or not self.worker.idle:
            return False
        size = self.pending.size
        return size <= SMALL and self.writer.has_room(size)

    def _commit_near(self) -> None:
        if not self._is_near():  # more may have arrived meanwhile, or the worker may have got another job
            self._commit_far()
            return
        try:
            self._settle(self.pending.commit(self.writer))
        except Exception:
            log.failure("an observer of the journal failed")

    def _commit_far(self) -> None:
        committed = self.worker.call(lambda: self.pending.commit(self.writer))
        committed.addCallback(self._settle)
        committed.addErrback(lambda f: log.failure("an observer of the journal failed", f))

    def _settle(self, commit: Commit) -> None:
        self.pending.processed(commit)
        if commit.size <= SMALL and isinstance(commit.result, Committed):
            seconds = commit.ended - commit.began
            self.pace.took(seconds)
            self.linger.committed(commit.result.batches[0][0].records, seconds)
        self.settle(commit)
