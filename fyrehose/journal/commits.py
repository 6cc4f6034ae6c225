"""Schedules commits: in the writer thread, or in the reactor's while the disk is fast (see pace.py).

schedule -> perhaps a short wait for a second append
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

from fyrehose.journal.pace import SMALL, Pace
from fyrehose.journal.pending import Commit, Pending
from fyrehose.journal.worker import Worker
from fyrehose.journal.writer import Committed, Writer

log = Logger()


@attrs.define(eq=False)
class Commits:
    """The commits of one journal, one after another.

    :ivar reactor: calls back at the end of its turn
    :ivar pace: decides in which thread commits run
    :ivar linger: how long the commit of a single append waits for a second one, in seconds
    :ivar settle: called in the reactor's thread with the result of each commit
    :ivar lingering: the timer of a commit that waits for a second append; :meth:`schedule` ends its wait
    """

    reactor: Any
    pending: Pending
    writer: Writer
    worker: Worker
    pace: Pace
    linger: float
    settle: Callable[[Commit], None]
    lingering: IDelayedCall | None = attrs.field(default=None, init=False)

    def schedule(self) -> None:
        """Schedule a commit of what is pending, unless one is scheduled already or nothing is pending."""
        if self.lingering is not None:
            self.lingering.cancel()
            self._end_wait()
        elif self.pending.needs_commit():
            if self.linger and len(self.pending.appends) == 1 and self.worker.idle:
                self.lingering = self.reactor.callLater(self.linger, self._end_wait)
            else:
                self._commit()

    def _end_wait(self) -> None:
        self.lingering = None
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
            self.pace.took(commit.ended - commit.began)
        self.settle(commit)
