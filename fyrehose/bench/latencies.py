"""Measure the latency of each message, from when it was due (or sent) to when it was acknowledged or received.

With a rate, message *i* is due at start + *i* / rate, however late earlier messages are.  So the latencies include the
time that messages wait while a server stalls.
"""

from __future__ import annotations

import numpy as np

from fyrehose.bench.results import PERCENTILES


class Latencies:
    """Latencies of the messages of one connection, in order.

    :param rate: messages a second; 0: one at a time, each due when :meth:`sent` says so
    """

    def __init__(self, count: int, rate: float) -> None:
        self._rate = rate
        self._due = np.arange(count) / rate if rate else np.zeros(count)
        self._took = np.empty(count)
        self._sent = self._done = 0

    def begin(self, start: float) -> None:
        """Set the beginning of the measurement."""
        if self._rate:
            self._due += start

    def due(self, now: float) -> int:
        """Return the number of messages that are due by ``now``."""
        return int(np.searchsorted(self._due, now, side="right"))

    def when(self, number: int) -> float:
        """Return the time at which message ``number`` (from 0) is due."""
        return float(self._due[number])

    def sent(self, upto: int, now: float) -> None:
        """Record that all messages below ``upto`` were sent."""
        if not self._rate:
            self._due[self._sent : upto] = now
        self._sent = upto

    def done(self, upto: int, now: float) -> None:
        """Record that all messages below ``upto`` were acknowledged or received."""
        self._took[self._done : upto] = now - self._due[self._done : upto]
        self._done = max(self._done, upto)

    @property
    def percentiles(self) -> list[float]:
        """Return the latencies at :data:`~fyrehose.bench.results.PERCENTILES`, in seconds; empty if none is done."""
        took = self._took[: self._done]
        return [float(value) for value in np.percentile(took, PERCENTILES)] if len(took) else []
