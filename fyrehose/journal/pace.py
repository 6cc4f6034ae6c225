"""Decides in which thread the journal commits: in the reactor's while the disk is fast, else in the writer thread.

    in: how long each small commit took      out: whether the next one may block the reactor

Handing a commit to another thread, and its result back, costs more than a sync of a fast disk: four context switches,
and two wake-ups of the interpreter.  A slow disk, however, would make every connection wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import attrs
from twisted.logger import Logger

log = Logger()

#: Commits of more bytes than this run in the writer thread: while they are written, the reactor receives the next.
SMALL = 16 << 10
#: Commits move to the reactor's thread when they take less than the first on average, and back above the second.
FAST, SLOW = 300e-6, 600e-6
#: Weight of one commit in that average.
WEIGHT = 1 / 16
#: A commit that takes longer than this, in seconds, is a stall.
STALL = 10e-3
#: After a stall, commits run in the writer thread until there was none for so many seconds.
CALM = 10.0
#: A change is logged unless one was in the last so many seconds: on a busy machine there may be one each second.
QUIET = 60.0


class Pace(Protocol):
    """Decides whether a commit runs in the reactor's thread."""

    @property
    def near(self) -> bool:
        """Return whether the next small commit should run in the reactor's thread."""

    def took(self, seconds: float) -> None:
        """Process how long a small commit took, wherever it ran."""


class Far:
    """Run all commits in the worker."""

    near = False

    def took(self, seconds: float) -> None:
        """Nothing depends on it."""


@attrs.define(eq=False)
class Measured:
    """Follows the disk.

    :ivar seconds: a monotonic clock
    """

    seconds: Callable[[], float] = time.monotonic
    near: bool = attrs.field(default=False, init=False)
    #: Moving average of commits; the disk counts as slow until some fast ones have been seen.
    _average: float = attrs.field(default=2 * SLOW, init=False)
    _calm_at: float = attrs.field(default=float("-inf"), init=False)
    _log_again_at: float = attrs.field(default=float("-inf"), init=False)

    def took(self, seconds: float) -> None:
        """Note that a commit took *seconds*, and decide from the average in which thread the next ones run."""
        # A slow commit counts little more than one at the limit: it says nothing about how long the others take.  On a
        # busy machine it is mostly the time that this thread waited for a processor.
        self._average += WEIGHT * (min(seconds, 2 * SLOW) - self._average)
        now = self.seconds()
        if seconds > STALL:
            self._calm_at = now + CALM
        if self.near and (seconds > STALL or self._average > SLOW):
            self.near = False
            self._log("a commit took {ms:.1f} ms; commits run in the writer thread", now, seconds)
        elif not self.near and self._average < FAST and now >= self._calm_at:
            self.near = True
            self._log("commits take {ms:.2f} ms, and run in the reactor's thread", now, self._average)

    def _log(self, text: str, now: float, seconds: float) -> None:
        if now >= self._log_again_at:
            self._log_again_at = now + QUIET
            log.info(text, ms=seconds * 1e3)


def chosen(measured: bool) -> Pace:
    """Return the pace of a journal.

    :param measured: whether each commit is synced, by a writer thread; otherwise its duration says nothing of the disk
    """
    return Measured() if measured else Far()
