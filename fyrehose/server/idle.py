"""Retire streams that have been empty for long enough.

    all streams, a slice in each turn -> those that are empty for long enough -> broker.retire

A stream is empty when none of its records is served: retention has deleted its last segment, or its records are too
old.  The journal does not store when a stream became empty.  So the time counts from the moment when this process first
finds the stream empty, and begins again after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from twisted.application.service import Service
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.broker.broker import Broker
from fyrehose.errors import FyrehoseError, JournalCorrupt
from fyrehose.interfaces import JournalState
from fyrehose.periodic import Checks

log = Logger()

#: Limit of the streams that are checked and retired in one turn, because a check may read an index from disk.
SLICE = 500
#: Interval of the turns, in each of which a slice of the streams is checked, in seconds.
TURN = 1.0
#: Seconds from the start of one check of all streams to the next.
ROUND = 60.0


class IdleStreams(Service):
    """A service that retires the streams of *broker* that have been empty for *after* seconds."""

    def __init__(self, clock: Any, broker: Broker, after: float) -> None:
        self.clock = clock
        self._checks = Checks(clock, self._check, TURN, "streams that may be idle")
        self._broker = broker
        self._after = after
        #: For each empty stream: its last number, and when it was first found empty (monotonic clock, seconds).
        self._empty: dict[str, tuple[int, float]] = {}
        self._round: Iterator[str] | None = None
        self._next_round = 0.0

    def startService(self) -> None:
        Service.startService(self)
        self._checks.start(now=True)

    def stopService(self) -> None:
        Service.stopService(self)
        self._checks.stop()

    def _check(self) -> None:
        """Check the next streams, and retire those that have been empty for long enough."""
        now = self.clock.seconds()
        if self._broker.journal.state is not JournalState.WRITABLE:
            return
        if self._round is None:
            if now < self._next_round:
                return
            ends = self._broker.journal.ends()
            self._empty = {stream: seen for stream, seen in self._empty.items() if stream in ends}
            self._round, self._next_round = iter(list(ends)), now + min(ROUND, self._after)
        streams = list(islice(self._round, SLICE))
        if len(streams) < SLICE:
            self._round = None
        idle: list[str] = []
        for stream in streams:
            self._checks.isolation.call(f"whether stream {stream!r} is idle", self._check_one, stream, now, idle)
        if idle:
            self._broker.retire_as("server.retire-idle", idle).addErrback(self._refused)

    def _check_one(self, stream: str, now: float, idle: list[str]) -> None:
        """Add *stream* to *idle* if it has been empty for long enough."""
        try:
            empty = self._broker.retirable(stream) and self._broker.is_empty(stream)
        except JournalCorrupt as damage:
            self._broker.counters.refuse(log, "server", "idle-stream-unreadable", stream, str(damage))
            empty = False
        if not empty:
            self._empty.pop(stream, None)
            return
        last = self._broker.journal.ends()[stream]
        seen, since = self._empty.get(stream, (None, now))
        if seen != last:
            self._empty[stream] = last, now
        elif now - since >= self._after:
            idle.append(stream)

    def _refused(self, failure: Failure) -> None:
        failure.trap(FyrehoseError)
        log.warn("idle streams were not retired: {why}", why=failure.getErrorMessage())
