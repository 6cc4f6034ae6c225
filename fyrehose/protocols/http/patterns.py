"""The answer to a live GET of all streams that match a pattern, including streams that are created later.

    streams that exist -> subscribe from now on; streams that are created -> subscribe from their first record
    with a named subscription -> subscribe behind its position in each stream

An event has no id, because one number cannot say where to continue in many streams; its record names the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs
from twisted.logger import Logger
from zope.interface import implementer

from fyrehose.errors import Closed, Forbidden
from fyrehose.interfaces import IConnectedSink, ISubscription
from fyrehose.patterns import Pattern
from fyrehose.protocols.http.answers import UNNUMBERED, Form, LiveAnswer
from fyrehose.protocols.http.listing import Listing, matching
from fyrehose.protocols.http.session import PROTOCOL
from fyrehose.records import Delivery

if TYPE_CHECKING:
    from fyrehose.protocols.http.server import HttpProtocol

log = Logger()

#: How many streams one answer follows at most.
MOST_STREAMS = 1_000


@implementer(IConnectedSink)
@attrs.frozen(eq=False)
class _Part:
    """The sink of one stream in an answer about many streams, which passes the deliveries on to the answer."""

    answer: PatternAnswer
    stream: str

    @property
    def connection(self) -> HttpProtocol:
        return self.answer.connection

    def deliver(self, delivery: Delivery) -> int:
        return self.answer.deliver(delivery)

    def skipped(self, first: int, last: int) -> None:
        self.answer.skipped_in(self.stream, first, last)

    def ended(self, reason: Exception) -> None:
        self.answer.lost(self.stream, reason)


@implementer(ISubscription)
class PatternAnswer(LiveAnswer):
    """The answer with the new records of every stream that matches *pattern*; it manages all its subscriptions."""

    def __init__(self, connection: HttpProtocol, pattern: Pattern, form: Form = UNNUMBERED) -> None:
        super().__init__(connection, form)
        self._pattern = pattern
        self._place: Callable[[str], int | None] | None = None
        self._parts: dict[str, ISubscription] = {}
        self._stop_watching: Callable[[], None] = lambda: None
        self._full = False
        self._begun = False
        #: events that were reported before the answer began; they are sent when it begins
        self._early: list[tuple[str, object]] = []

    def follow(
        self, place: Callable[[str], int | None] | None = None, headers: Mapping[str, str] | None = None
    ) -> Listing[bool]:
        """Subscribe to the streams, and start sending, in steps.

        Streams that begin meanwhile are followed, too.

        :return: whether the answer has begun; False: the peer left, or the request was answered otherwise
        :param place: returns the acknowledged number of a stream, or None if the named subscription does not cover it;
            None: there is no named subscription
        :raises TooManySubscriptions: the peer's address, or the memory budget, has no room for subscriptions to all
            streams
        """
        broker = self.connection.broker
        self._place = place
        self._stop_watching = broker.watch_streams(self._created)
        try:
            for stream in (yield from matching(self._pattern, broker.streams())):
                if stream not in self._parts:  # it may have begun just before, and be told late
                    self._add(stream, None)
                yield
                if not self.connection.answering:
                    break
        except Forbidden:
            self.stopProducing()
            raise
        if not self.connection.answering:
            self.stopProducing()
            return False
        self.connection.session.start(200, self.form.media_type, headers)
        self._begun = True
        self._send_event("begin", {"epoch": broker.epoch})
        self.start(None)
        early, self._early = self._early, []
        for kind, value in early:
            self._emit(kind, value)
        return True

    def pauseProducing(self) -> None:
        super().pauseProducing()
        for part in self._parts.values():
            part.pauseProducing()

    def resumeProducing(self) -> None:
        super().resumeProducing()
        for part in list(self._parts.values()):
            part.resumeProducing()

    def stopProducing(self) -> None:
        self._begun = False
        self._stop_watching()
        self._stop_watching = lambda: None
        super().stopProducing()
        self._end_parts()

    def skipped_in(self, stream: str, first: int, last: int) -> None:
        """Send an event that records *first* to *last* of *stream* are missing."""
        self.connection.broker.counters.add(PROTOCOL, "skipped", last - first + 1)
        self._emit("gap", {"stream": stream, "first": first, "last": last})

    def lost(self, stream: str, reason: Exception) -> None:
        """End the answer if the server closes or no stream is left, otherwise report that *stream* is lost."""
        self._parts.pop(stream, None)
        if self._begun and (isinstance(reason, Closed) or not self._parts):
            self.ended(reason)
            return
        self._report(f"stream {stream!r} is not followed any more: {reason}")

    # Internals.

    def _created(self, stream: str) -> None:
        if stream in self._parts or not self._pattern.covers(stream):
            return
        try:
            self._add(stream, 0)
        except Forbidden as error:
            self._report(f"stream {stream!r} is not followed: {error}")
        if not self._paused and stream in self._parts:
            self._parts[stream].resumeProducing()

    def _add(self, stream: str, after: int | None) -> None:
        if len(self._parts) >= MOST_STREAMS:
            if not self._full:
                self._full = True
                self._report(f"more than {MOST_STREAMS} streams match, and the others are not followed")
            return
        if self._place is not None:
            after = self._place(stream)
            if after is None:
                self._report(f"stream {stream!r} is not followed: the limit server.named-subscriptions is reached")
                return
        part = self._parts[stream] = self.connection.broker.subscribe(stream, after, _Part(self, stream))
        if self._place is not None and after is not None and part.position > after:
            self.skipped_in(stream, after + 1, part.position)

    def _report(self, error: str) -> None:
        counters = self.connection.broker.counters
        counters.refuse(log, PROTOCOL, "stream-not-followed", self.connection.peer, error)
        self._emit("error", {"error": error})

    def _emit(self, kind: str, value: object) -> None:
        if not self._begun:
            self._early.append((kind, value))
            return
        self._send_event(kind, value)
        self.connection.flush()

    def _end_parts(self) -> None:
        parts = list(self._parts.values())
        self._parts.clear()
        for part in parts:
            part.stopProducing()
