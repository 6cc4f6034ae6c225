"""How long each message took: from when it was due, or sent, to when it was acknowledged or came in.

With a rate, message *i* is due at start + *i* / rate whatever happened to those before, so a server that stalls is not
forgiven the messages that waited for it.
"""

from __future__ import annotations

import numpy as np

from benchmarks.results import PERCENTILES


class Latencies:
    """Of the messages of one connection, in their order.

    :param rate: messages a second; 0: one at a time, each due when :meth:`sent` says so
    """

    def __init__(self, count: int, rate: float) -> None:
        self._rate = rate
        self._due = np.arange(count) / rate if rate else np.zeros(count)
        self._took = np.empty(count)
        self._sent = self._done = 0

    def begin(self, start: float) -> None:
        """The clock began at ``start``."""
        if self._rate:
            self._due += start

    def due(self, now: float) -> int:
        """How many should have been sent by ``now``."""
        return int(np.searchsorted(self._due, now, side="right"))

    def when(self, number: int) -> float:
        """When message ``number`` (from 0) is due."""
        return float(self._due[number])

    def sent(self, upto: int, now: float) -> None:
        """All below ``upto`` are under way."""
        if not self._rate:
            self._due[self._sent : upto] = now
        self._sent = upto

    def done(self, upto: int, now: float) -> None:
        """All below ``upto`` are there."""
        self._took[self._done : upto] = now - self._due[self._done : upto]
        self._done = max(self._done, upto)

    @property
    def percentiles(self) -> list[float]:
        """Seconds, at :data:`~benchmarks.results.PERCENTILES`; empty if nothing was done."""
        took = self._took[: self._done]
        return [float(value) for value in np.percentile(took, PERCENTILES)] if len(took) else []
