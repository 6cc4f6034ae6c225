"""Schedules commits: in the writer thread, or in the reactor's while the disk is fast (see pace.py).

schedule -> perhaps a short wait for a second append (see linger.py)
         -> the reactor's thread, at the end of its turn -> Pending.commit -> the journal settles its appends
         -> the writer thread                            ->
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from fyrehose.journal.linger import Fitting, Fixed, Linger
from fyrehose.journal.pace import SMALL, Far, Measured, Pace
from fyrehose.journal.pending import Commit, Pending
from fyrehose.journal.worker import Worker
from fyrehose.journal.writer import Committed, Writer

log = Logger()


def choose(pace: Pace | None, linger: float | None, measured: bool) -> tuple[Pace, Linger]:
    """Return what decides where and when commits run.

    :param pace: what decides where they run; None: the speed of the disk if it is measured, else all in the worker
    :param linger: the wait of a commit in seconds; None: as the traffic fits if it is measured, else none
    :param measured: whether commits are synced in a thread of their own, so that their durations mean something
    """
    follows = measured and pace is None
    where = pace or (Measured() if follows else Far())
    return where, Fitting() if follows and linger is None else Fixed(linger or 0.0)


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
            wait = self.linger.wait() if len(self.pending.appends) == 1 else 0.0
            if wait and self.worker.idle:
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

    def _commit_near(self) -> None:
        size = self.pending.size
        # More may have arrived meanwhile, and the worker may have got another job.
        if size > SMALL or not self.worker.idle or not self.writer.has_room(size):
            self._commit_far()
            return
        try:
            self._settle(self.pending.commit(self.writer))
        except Exception:
            log.failure("processing a durable commit failed; please report this bug")

    def _commit_far(self) -> None:
        committed = self.worker.call(partial(self.pending.commit, self.writer))
        committed.addCallback(self._settle)
        committed.addErrback(lambda f: log.failure("processing a durable commit failed; please report this bug", f))

    def _settle(self, commit: Commit) -> None:
        self.pending.processed(commit)
        if commit.size <= SMALL and isinstance(commit.result, Committed):
            seconds = commit.ended - commit.began
            self.pace.took(seconds)
            self.linger.committed(commit.result.batches[0][0].records, seconds)
        self.settle(commit)
