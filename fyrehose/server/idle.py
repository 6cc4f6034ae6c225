"""Streams that retire by themselves, when nothing of them is kept and nothing is published to them.

    every stream, some each turn -> without records for long enough -> broker.retire

When a stream had its last record is stored nowhere, so time is counted from when this process first sees it without any
record that is served: retention has to have deleted its last segment, or its records have to be too old.  A restart
begins to count anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.core.broker import Broker
from fyrehose.errors import FyrehoseError, JournalCorrupt
from fyrehose.interfaces import JournalState

log = Logger()

#: Streams that are looked at, and retired at the most, in one turn; to look at one may mean to look into an index.
SLICE = 500
#: How often there is a turn, in seconds.
TURN = 1.0
#: From the beginning of one look at all streams to that of the next, in seconds.
ROUND = 60.0


@attrs.define(eq=False)
class _Seen:
    """A stream without records: its last number, and since when it is known to have none (monotonic, seconds)."""

    last: int
    since: float


class IdleStreams(Service):
    """Retires the streams of *broker* that have had no records for *after* seconds."""

    def __init__(self, clock: Any, broker: Broker, after: float) -> None:
        self._clock = clock
        self._broker = broker
        self._after = after
        self._empty: dict[str, _Seen] = {}
        self._round: Iterator[str] | None = None
        self._next_round = 0.0
        self._looking = LoopingCall(self._look)
        self._looking.clock = clock
        self._looked: Deferred[Any] | None = None

    def startService(self) -> None:
        """Begin to look."""
        Service.startService(self)
        self._looked = self._looking.start(TURN, now=False)
        self._looked.addErrback(lambda failure: log.failure("idle streams are not retired any more", failure))

    def stopService(self) -> Deferred[Any]:
        """Look no more."""
        Service.stopService(self)
        if self._looking.running:
            self._looking.stop()
        return maybeDeferred(lambda: self._looked)

    def _look(self) -> None:
        """Look at some streams, and retire those that have been idle for long enough."""
        now = self._clock.seconds()
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
        idle = [stream for stream in streams if self._is_idle(stream, now)]
        if idle:
            self._broker.retire(idle, "server.retire-idle").addErrback(self._failed)

    def _is_idle(self, stream: str, now: float) -> bool:
        try:
            empty = self._broker.retirable(stream) and self._broker.is_empty(stream)
        except JournalCorrupt as damage:
            self._broker.counters.refuse(log, "server", "idle-stream-unreadable", stream, str(damage))
            empty = False
        if not empty:
            self._empty.pop(stream, None)
            return False
        last = self._broker.journal.ends()[stream]
        seen = self._empty.get(stream)
        if seen is None or seen.last != last:
            self._empty[stream] = _Seen(last, now)
            return False
        return now - seen.since >= self._after

    def _failed(self, failure: Failure) -> None:
        failure.trap(FyrehoseError)
        log.warn("idle streams were not retired: {why}", why=failure.getErrorMessage())
