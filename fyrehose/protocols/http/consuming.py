"""Requests that wait for records: those that consume a named subscription, and reads with ``at-least``.

GET ?at-least=SEQ           wait -> the record has come: answer, so that clients read their own writes at any server
                                 -> the time is over: 503
GET ?subscription=S         open -> attach -> wait -> records behind the position
GET /live?subscription=S    Last-Event-ID acknowledges -> open -> attach -> events behind the position
    with a pattern          the same, from the position of each matching stream
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred
from zope.interface import implementer

from fyrehose.errors import Forbidden, SubscriptionError
from fyrehose.interfaces import IConnectedSink, ISubscription
from fyrehose.protocols.http.session import Live, Read
from fyrehose.records import Delivery

if TYPE_CHECKING:
    from fyrehose.protocols.http.server import HttpProtocol


@implementer(IConnectedSink)
@attrs.define(eq=False)
class Consumption:
    """One request that consumes a named subscription, which no other consumer may have until the answer is sent.

    :ivar event: the request; its ``subscription`` is not None
    """

    connection: HttpProtocol
    event: Read | Live
    _named: Any = attrs.field(default=None, init=False)
    _generation: int = attrs.field(default=0, init=False)
    #: the number that a live request acknowledges, once the subscription is its own
    _seen: int | None = attrs.field(default=None, init=False)
    #: the subscriptions that report new records while the request waits for one
    _waiting: list[ISubscription] = attrs.field(factory=list, init=False)
    #: by stream, the number of the last record that the answer contains or may contain
    _sent: dict[str, int] = attrs.field(factory=dict, init=False)
    _stop_watching: Callable[[], None] | None = attrs.field(default=None, init=False)

    def start(self) -> None:
        """Open the subscription, create it if necessary, and answer when that is durable."""
        event, connection = self.event, self.connection
        broker, matching = connection.broker, event.pattern is not None
        opened: Deferred[Any] = connection.named.open(event.subscription, event.stream, event.after, matching)
        end = broker.bounds(event.stream)[1]
        if (
            isinstance(event, Live)
            and (seen := event.last_event) is not None
            and seen <= end  # a number beyond the end is of another journal, as one of another epoch is
            and event.epoch in ("", broker.epoch)
        ):
            self._seen = seen
        connection.call(opened, self._opened)

    def end(self) -> None:
        """End the consumption, so that another consumer may take the subscription."""
        self._stop_waiting()
        named, self._named = self._named, None
        if named is not None:
            named.detach(self)
            if isinstance(self.event, Read):
                named.hold(self._holder, self.event.lease, self._sent)

    def sent(self, stream: str, seq: int) -> None:
        """Record that the answer was sent completely, and that record *seq* of *stream* was its last one."""
        self._sent[stream] = seq

    def displaced(self, reason: SubscriptionError) -> None:
        """End the answer, because the subscription was rewound or deleted, or another consumer has taken it over."""
        self._stop_waiting()
        self._named = None
        self.connection.displace(reason)

    @property
    def waits(self) -> bool:
        """Return whether the request waits for a record."""
        return bool(self._waiting) or self._stop_watching is not None

    # While it waits for records.

    def deliver(self, delivery: Delivery) -> None:
        self._answer()

    def skipped(self, first: int, last: int) -> None:
        """Do nothing: the delivery that follows answers the request."""

    def ended(self, reason: Exception) -> None:
        self.end()
        self.connection.displace(reason)

    # Internals.

    def _opened(self, named: Any) -> None:
        connection, event = self.connection, self.event
        if not connection.answering:
            return
        self._generation = connection.named.attach(named, self, takeover=event.takeover, holder=self._holder)
        self._named = named
        if isinstance(event, Live) and self._seen is not None:
            connection.call(connection.named.acknowledge(named, self._seen), self._follow)
        elif isinstance(event, Live):
            self._follow()
        elif not event.wait or any(self._unread(stream) for stream in self._streams):
            self._answer()
        else:
            self._wait(event.wait)

    def _follow(self, _: object = None) -> None:
        event = self.event
        if self._named is not None:  # else it was displaced while the acknowledgement was written
            assert isinstance(event, Live), "a read is answered"
            self.connection.follow(event, self._named.last(event.stream), self._headers, self._place)

    @property
    def _holder(self) -> str:
        """Return the name of the polling consumer: the name in the request, or else the connection's."""
        if isinstance(self.event, Read) and self.event.consumer:
            return f"consumer {self.event.consumer}"
        return self.connection.label

    @property
    def _headers(self) -> dict[str, str]:
        return {"Fyrehose-Generation": str(self._generation)}

    @property
    def _streams(self) -> list[str]:
        return list(self._named.tracks)

    def _place(self, stream: str) -> int | None:
        """Return the acknowledged number of *stream*; None if the subscription does not cover *stream*."""
        return int(self._named.last(stream)) if stream in self._named.tracks else None

    def _unread(self, stream: str) -> int:
        """Return the number of records of *stream* that are not acknowledged."""
        oldest, last = self.connection.broker.bounds(stream)
        return int(max(0, last - max(self._named.last(stream), oldest - 1)))

    def _wait(self, seconds: float) -> None:
        """Answer as soon as there is a record to read, or after *seconds*."""
        broker = self.connection.broker
        if self.event.pattern is not None:
            self._stop_watching = broker.watch_streams(self._created)
        for stream in self._streams:
            self._watch(stream)
        self.connection.timers.start(seconds, self._answer)

    def _watch(self, stream: str) -> None:
        waiting = self.connection.broker.subscribe(stream, self._named.last(stream), self)
        self._waiting.append(waiting)
        waiting.resumeProducing()

    def _created(self, stream: str) -> None:
        if stream not in self._named.tracks:
            return
        try:
            self._watch(stream)
        except Forbidden:  # No further subscription is permitted: the client asks again, and then finds the record.
            self._answer()

    def _answer(self) -> None:
        assert isinstance(self.event, Read), "nothing else waits"
        self._stop_waiting()
        if self.event.pattern is not None:
            parts = self._parts(self.event.limit)
        else:
            stream, (oldest, last) = self.event.stream, self.connection.broker.bounds(self.event.stream)
            parts = [(stream, max(self._named.last(stream) + 1, oldest), last)]
        self._sent = {stream: last for stream, first, last in parts if self.event.limit and first <= last}
        self.connection.read(self.event, parts, self._headers)

    def _parts(self, limit: int) -> list[tuple[str, int, int]]:
        """Share *limit* records between the streams of a pattern; those with the fewest unread records go first.

        :return: each stream, with the numbers of its first and its last record to send
        """
        unread = sorted((count, stream) for stream in self._streams if (count := self._unread(stream)))
        parts = []
        for at, (count, stream) in enumerate(unread):
            take = min(count, max(1, limit // (len(unread) - at)))
            if take > limit:
                break
            limit -= take
            first = max(self._named.last(stream) + 1, self.connection.broker.bounds(stream)[0])
            parts.append((stream, first, first + take - 1))
        return parts

    def _stop_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        watching, self._stop_watching = self._stop_watching, None
        self.connection.timers.stop(self._answer)
        if watching is not None:
            watching()
        for each in waiting:
            each.stopProducing()


@implementer(IConnectedSink)
@attrs.define(eq=False)
class Arrival:
    """One read that waits for record ``at_least`` of its stream; while it waits, it counts as a subscription."""

    connection: HttpProtocol
    event: Read
    _waiting: ISubscription | None = attrs.field(default=None, init=False)

    def start(self) -> None:
        """Answer now if the record is durable, or else as soon as it is.

        :raises Forbidden: the peer may not read the stream, or has the largest permitted number of subscriptions
        """
        if self._is_here():
            self.connection.read_arrived(self.event)
            return
        self._waiting = self.connection.broker.subscribe(self.event.stream, None, self)
        self.connection.timers.start(self.event.wait, self._late)
        self._waiting.resumeProducing()

    @property
    def waits(self) -> bool:
        """Return whether the read waits for its record."""
        return self._waiting is not None

    def end(self) -> None:
        """Stop waiting for the record, without an answer."""
        waiting, self._waiting = self._waiting, None
        self.connection.timers.stop(self._late)
        if waiting is not None:
            waiting.stopProducing()

    def _is_here(self) -> bool:
        return bool(self.connection.broker.bounds(self.event.stream)[1] >= self.event.at_least)

    def _late(self) -> None:
        self.end()
        self.connection.refuse_late(self.event)

    # Called by the broker.

    def deliver(self, delivery: Delivery) -> None:
        if self._is_here():
            self.end()
            self.connection.read_arrived(self.event)

    def skipped(self, first: int, last: int) -> None:
        """Do nothing: a delivery follows, which ends the wait."""

    def ended(self, reason: Exception) -> None:
        self.end()
        self.connection.displace(reason)
