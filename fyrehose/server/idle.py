"""Retire streams that have been empty for long enough.

    all streams, some in each turn -> those that are empty for long enough -> broker.retire

A stream is empty when none of its records is served: retention has deleted its last segment, or its records are too
old.  The journal does not store when a stream became empty.  So the time counts from the moment when this process first
finds the stream empty, and begins again after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twisted.application.service import Service
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.broker.broker import Broker
from fyrehose.errors import FyrehoseError, JournalCorrupt
from fyrehose.interfaces import JournalState
from fyrehose.periodic import Checks

log = Logger()

#: How many streams are retired together at most.
SLICE = 500
#: Seconds from the start of one check of all streams to the next.
ROUND = 60.0


class IdleStreams(Service):
    """A service that retires the streams of *broker* that have been empty for *after* seconds."""

    def __init__(self, clock: Any, broker: Broker, after: float) -> None:
        self.clock = clock
        self._checks = Checks(clock, self._check, min(ROUND, after), "streams that may be idle", broker.turns)
        self._broker = broker
        self._after = after
        #: For each empty stream: its last number, and when it was first found empty (monotonic clock, seconds).
        self._empty: dict[str, tuple[int, float]] = {}

    def startService(self) -> None:
        Service.startService(self)
        self._checks.start()

    def stopService(self) -> None:
        Service.stopService(self)
        self._checks.stop()

    def _check(self) -> Iterator[None]:
        """Check all streams, and retire those that have been empty for long enough."""
        ends = self._broker.journal.ends()
        self._empty = {stream: seen for stream, seen in self._empty.items() if stream in ends}
        idle: list[str] = []
        for stream in list(ends):
            if self._broker.journal.state is not JournalState.WRITABLE:
                return
            now = self.clock.seconds()
            self._checks.isolation.call(f"whether stream {stream!r} is idle", self._check_one, stream, now, idle)
            if len(idle) >= SLICE:
                self._retire(idle)
            yield
        self._retire(idle)

    def _retire(self, idle: list[str]) -> None:
        if idle:
            self._broker.retire_as("server.retire-idle", idle).addErrback(self._refused)
            idle.clear()

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
