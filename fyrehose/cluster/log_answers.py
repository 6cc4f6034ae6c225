"""Refuse publishes while the shared log does not answer the leader or is too large, and say each reason once.

in: answers of the shared log, warnings, measurements
out: ReplicatedGate.suspend and resume, lines for the log
"""

from __future__ import annotations

from collections import deque

import attrs
from twisted.logger import Logger

from fyrehose.cluster.gate import ReplicatedGate
from fyrehose.cluster.role import Role

log = Logger()

#: How long the leader waits for the shared log before it refuses messages, in seconds.
QUIET = 5.0
#: How many warnings about the shared log are remembered, so that each is logged once.
REASONS = 10


@attrs.define(eq=False)
class LogAnswers:
    """The answers of the shared log.  A leader accepts messages only while it answers and is not too large."""

    gate: ReplicatedGate
    #: When the shared log last answered this leader, or this leader had no request under way.
    _answered: float = attrs.field(default=0.0, init=False)
    #: Whether messages are refused, because the shared log is too large.
    _overfull: bool = attrs.field(default=False, init=False)
    #: Why the shared log accepts nothing; empty while it accepts entries.
    _unavailable: str = attrs.field(default="", init=False)
    #: The warnings since the shared log last answered, so that each warning is logged once.
    _said: deque[str] = attrs.field(factory=lambda: deque(maxlen=REASONS), init=False)

    def begin(self, now: float) -> None:
        """Wait for an answer from *now* on, because nothing was asked before."""
        self._answered = now

    def lead(self) -> None:
        """Accept messages whatever the size of the shared log, because this server leads from now on."""
        self._overfull = False

    def answered(self, now: float) -> None:
        """Take note of an answer; accept messages again."""
        self._answered, self._unavailable = now, ""
        self._said.clear()
        if not self._overfull and self.gate.resume():
            log.info("replication: the shared log answers again")

    def read(self) -> None:
        """Take note that a follower has compared the shared log with its own journal: log later warnings again."""
        self._said.clear()

    def unavailable(self, why: str) -> None:
        """Take note of *why* the shared log is unavailable."""
        self._unavailable = why
        self.warn(why)

    def warn(self, why: str) -> None:
        """Log *why* the shared log cannot be used; log each reason only once until the shared log answers again."""
        if why not in self._said:
            self._said.append(why)
            log.warn("replication: {why}", why=why)

    def note_idle(self, role: Role, now: float) -> None:
        """Count silence from *now* on if nothing waits for an answer."""
        if not role.pending and not self._unavailable:
            self._answered = now

    def refuse_when_silent(self, now: float) -> None:
        """Refuse messages if the shared log has not answered for :data:`QUIET` seconds."""
        why = self._unavailable or "the shared log does not answer"
        if now - self._answered > QUIET and self.gate.suspend(why):
            log.warn("replication: {why}; messages are refused until it accepts them", why=why)

    def measured(self, why: str, role: Role, now: float) -> None:
        """Refuse messages if the shared log is too large; else accept them again.

        :param why: why it is too large; empty: it is not
        """
        was, self._overfull = self._overfull, bool(why)
        if why and self.gate.suspend(why):
            log.warn("replication: {why}; messages are refused until another server confirms", why=why)
        elif not why and (was or not role.pending):
            self.answered(now)
