"""Run a job that copies a journal in rounds, even while the journal or an object store cannot be reached.

    journal -> round of bounded size -> committed -> state for metrics, subscription of the journal -> next round

Archives and typed tables are such jobs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import attrs

from fyrehose.errors import JournalUnreachable
from fyrehose.offline.places import Place, check_identity
from fyrehose.offline.view import View
from fyrehose.spark import memory
from fyrehose.spark.counting import Ahead, Behind
from fyrehose.spark.plan import check_beginning

log = logging.getLogger(__name__)
S = TypeVar("S")

#: The first and the longest pause after the journal or the lake could not be reached, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
#: How often the state is passed to ``monitor``, in seconds, while there is nothing to copy.
MONITORED = 5.0
#: How often the progress is reported to the journal, in seconds, while there is nothing to copy.
HEARTBEAT = 60.0


@attrs.define
class Done:
    """The progress of a job.

    :ivar position: every record of the journal before this position is copied
    :ivar rounds: number of committed rounds
    :ivar seconds: duration of all rounds together
    :ivar last_seconds: duration of the last round
    """

    position: int
    rounds: int = 0
    seconds: float = 0.0
    last_seconds: float = 0.0


@attrs.define(eq=False, kw_only=True)
class RoundJob(Generic[S]):
    """A job that copies a journal in rounds; a subclass says how a round is copied.

    :ivar journal: the journal as the user named it
    :ivar target: the lake or the directory of tables that the job fills, for messages
    :ivar identity: the identity of the journal when the job began
    :ivar round_bytes: size of a round, in bytes of the journal
    :ivar subscription: name of the job's subscription to the journal's files; None: the job has none
    :ivar optimize_every: merge small files this often, in seconds; 0: never
    :ivar monitor: called with the state before the first round, after each, and every few seconds in between
    """

    journal: str
    target: str
    source: Place
    identity: bytes
    round_bytes: int
    subscription: str | None = None
    optimize_every: float = 0.0
    monitor: Callable[[S], object] | None = None
    done: Done = attrs.field(init=False)
    _ahead: Ahead = attrs.field(init=False)
    #: When the last round began, and when the monitor, settle() and optimize() were last called.
    _began: float = attrs.field(default=float("-inf"), init=False)
    _monitored: float = attrs.field(default=float("-inf"), init=False)
    _settled: float = attrs.field(default=float("-inf"), init=False)
    _optimized: float = attrs.field(factory=time.monotonic, init=False)
    #: The position at which the journal was last checked to have the beginning of a batch.
    _compared: int = attrs.field(default=-1, init=False)

    def __attrs_post_init__(self) -> None:
        self._ahead = Ahead(self.source, self.round_bytes)

    def copy(self, view: View) -> None:
        """Copy one round, completely or not at all, and move ``done.position`` to its end."""
        raise NotImplementedError

    def state(self, behind: Behind) -> S:
        """Return the state for the monitor."""
        raise NotImplementedError

    def settle(self) -> None:
        """Report the progress to the journal, whose retention then may delete what was copied."""
        if self.subscription is not None:
            self.source.update_subscription(self.subscription, self.done.position, self.identity)
        self._settled = time.monotonic()

    def idle(self) -> None:
        """Do the remaining work of the job when no round is due."""

    def optimize(self) -> None:
        """Merge small files, and remove files that are not used any more."""
        raise NotImplementedError

    def run(
        self, follow: bool, every: float, progress: Callable[[Any, View], object], stop: Callable[[], bool]
    ) -> None:
        """Copy the journal in rounds to its end, or with *follow* until *stop* returns True.

        :param every: interval of rounds with *follow*, in seconds; a full round begins earlier
        :param progress: called with the progress and the view of the journal, at the start and after each round
        :raises JournalCorrupt: the journal is damaged, or is another one than that of the earlier rounds
        """
        progress(self.done, self.source.view())
        interval = every if follow else None
        try:
            repeated(lambda: self.step(interval, progress), follow, stop, f"copying {self.journal} into {self.target}")
        finally:
            memory.release()
        with suppress(JournalUnreachable):  # All committed rounds are durable in any case.
            self.settle()
            self.observe(self.source.view(), 0)

    def step(self, every: float | None, progress: Callable[[Any, View], object]) -> float | None:
        """Copy a round if one is due; return the pause before the next step in seconds, or None at the end.

        :param every: interval of rounds, in seconds; None: do not wait for new records
        :raises JournalUnreachable: the journal or the lake is not available at present
        """
        view = self.source.view()
        check_identity(self.source, self.identity, view)
        behind, waited = view.mark - self.done.position, time.monotonic() - self._began
        if behind < 0:
            raise JournalUnreachable(
                f"{self.journal} ends at position {view.mark}, but {self.target} was made from a journal up to "
                f"position {self.done.position}: if a server of a cluster has not caught up yet, wait; if the journal "
                "was put back from an older copy, or is a promoted standby that lacks the end, put the newer journal "
                "back, or give this one a lake or output of its own"
            )
        if behind and self._compared != self.done.position:
            check_beginning(self.source, view, self.done.position)
            self._compared = self.done.position
        self.observe(view, MONITORED)
        pause = 0.0
        if behind and (every is None or behind >= self.round_bytes or waited >= every):
            self._began = time.monotonic()
            self.copy(view)
            self.done.rounds += 1
            self.done.last_seconds = time.monotonic() - self._began
            self.done.seconds += self.done.last_seconds
            progress(self.done, view)
            self.observe(view, 0)
        else:
            self.idle()
            if every is None:
                return None
            memory.release()
            if self.optimize_every and time.monotonic() - self._optimized >= self.optimize_every:
                self.optimize()
                self._optimized = time.monotonic()
            pause = min(1.0, max(0.05, every - waited)) if behind else min(0.5, max(0.05, every / 4))
        if time.monotonic() - self._settled >= HEARTBEAT:
            self.settle()
        return pause

    def observe(self, view: View, at_least: float) -> None:
        """Pass the state to the monitor, if there is one, unless that was done less than *at_least* seconds ago."""
        if self.monitor is None or time.monotonic() - self._monitored < at_least or view.mark < self.done.position:
            return
        self.monitor(self.state(self._ahead.behind(view, self.done.position)))
        self._monitored = time.monotonic()


def repeated(
    step: Callable[[], float | None],
    follow: bool,
    stop: Callable[[], bool],
    what: str,
    first_pause: float = FIRST_PAUSE,
) -> None:
    """Call ``step`` again and again until it returns None, or until ``stop()`` returns true.

    :param step: returns the pause before the next step in seconds; None: this was the last step
    :param follow: if the journal or a store cannot be reached, log this once, and try again after growing pauses
    :param what: the job, for the log
    :param first_pause: the pause after the first failure in seconds; it is doubled after each further one
    :raises JournalUnreachable: the journal or a store cannot be reached, and ``follow`` is not set
    """
    failures = 0
    while not stop():
        try:
            pause = step()
        except JournalUnreachable as error:
            if not follow:
                raise
            failures += 1
            if failures == 1:
                log.warning("%s; trying again until that is over", error)
            pause = min(LONGEST_PAUSE, first_pause * 2.0 ** min(failures - 1, 16))
        else:
            if failures:
                log.info("%s continues after %d failed attempts", what, failures)
            failures = 0
        if pause is None:
            break
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0 and not stop():
            time.sleep(min(0.5, left))
