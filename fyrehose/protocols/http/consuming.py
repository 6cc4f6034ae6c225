"""Requests that consume a named subscription: they open it, wait for records if there are none, and are answered.

GET ?subscription=S         open -> attach -> wait -> records behind the position
GET /live?subscription=S    Last-Event-ID acknowledges -> open -> attach -> events behind the position
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.core.inflight import InFlight
from fyrehose.errors import SubscriptionError
from fyrehose.interfaces import IBroker, ISink, ISubscription
from fyrehose.net.lifecycle import Timers
from fyrehose.protocols.http.session import Live, Read
from fyrehose.records import Delivery


class ConsumingConnection(Protocol):
    """The connection that a request came from, which is an HttpProtocol."""

    broker: IBroker
    timers: Timers
    in_flight: InFlight

    @property
    def subscriber(self) -> tuple[str, str]: ...

    @property
    def answering(self) -> bool: ...

    def read(self, event: Read, first: int, headers: Mapping[str, str]) -> None: ...

    def follow(self, event: Live, after: int, headers: Mapping[str, str]) -> None: ...

    def displace(self, reason: Exception) -> None: ...

    def refuse_call(self, failure: Failure) -> None: ...


@implementer(ISink)
@attrs.define(eq=False)
class Consumption:
    """One request that consumes a named subscription; it is the subscription's consumer until it is answered.

    :ivar event: the request; its ``subscription`` is not None
    """

    connection: ConsumingConnection
    event: Read | Live
    _named: Any = attrs.field(default=None, init=False)
    _after: int = attrs.field(default=0, init=False)
    _generation: int = attrs.field(default=0, init=False)
    #: tells of new records while the request waits for one
    _waiting: ISubscription | None = attrs.field(default=None, init=False)

    def start(self) -> None:
        """Open the subscription, create it if necessary, and answer when that is durable."""
        event, broker = self.event, self.connection.broker
        opened: Deferred[Any] = broker.named.open(event.subscription, event.stream, event.after)
        if isinstance(event, Live) and event.last_event is not None:
            seen = event.last_event

            def acknowledge(named: Any) -> Deferred[Any]:
                stored: Deferred[Any] = broker.named.acknowledge(named, seen)
                return stored.addCallback(lambda _: named)

            opened.addCallback(acknowledge)
        self.connection.in_flight.track(opened, self._opened, self.connection.refuse_call)

    def end(self) -> None:
        """Let another consumer have the subscription."""
        self._stop_waiting()
        named, self._named = self._named, None
        if named is not None:
            self.connection.broker.named.detach(named, self)

    def displaced(self, reason: SubscriptionError) -> None:
        """End the answer, because the subscription was rewound or deleted, or another consumer has taken it over."""
        self._stop_waiting()
        self._named = None
        self.connection.displace(reason)

    @property
    def waits(self) -> bool:
        """Whether the request waits for a record."""
        return self._waiting is not None

    # While it waits for records.

    @property
    def subscriber(self) -> tuple[str, str]:
        return self.connection.subscriber

    def deliver(self, delivery: Delivery) -> None:
        self._answer()

    def skipped(self, first: int, last: int) -> None:
        """Do nothing: a delivery follows."""

    def ended(self, reason: Exception) -> None:
        self._waiting = None
        self.connection.displace(reason)

    # Internals.

    def _opened(self, named: Any) -> None:
        connection, event = self.connection, self.event
        if not connection.answering:
            return
        position = connection.broker.named.attach(named, self, takeover=event.takeover)
        self._named, self._after, self._generation = named, position.seq, position.generation
        if isinstance(event, Live):
            connection.follow(event, self._after, self._headers)
        elif connection.broker.bounds(event.stream)[1] > self._after or not event.wait:
            self._answer()
        else:
            self._waiting = connection.broker.subscribe(event.stream, self._after, self)
            self._waiting.resumeProducing()
            connection.timers.start(event.wait, self._answer)

    @property
    def _headers(self) -> dict[str, str]:
        return {"Fyrehose-Generation": str(self._generation)}

    def _answer(self) -> None:
        self._stop_waiting()
        if isinstance(self.event, Read):
            self.connection.read(self.event, self._after + 1, self._headers)

    def _stop_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        self.connection.timers.stop(self._answer)
        if waiting is not None:
            waiting.stopProducing()
