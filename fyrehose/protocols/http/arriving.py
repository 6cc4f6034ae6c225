"""Wait until this server has a record (a read with ``at-least``), so that clients read their own writes at any server.

GET ?at-least=SEQ  -> the record is here: answer
                   -> it is not: subscribe -> it has come: answer | the time is over: 503
"""

from __future__ import annotations

from typing import Protocol

import attrs
from zope.interface import implementer

from fyrehose.interfaces import IBroker, INamedSink, ISubscription
from fyrehose.net.lifecycle import Timers
from fyrehose.protocols.http.session import Read
from fyrehose.records import Delivery


class WaitingConnection(Protocol):
    """The connection that a request came from, which is an HttpProtocol."""

    broker: IBroker
    timers: Timers

    @property
    def subscriber(self) -> tuple[str, str]: ...

    def read_arrived(self, event: Read) -> None: ...

    def refuse_late(self, event: Read) -> None: ...

    def displace(self, reason: Exception) -> None: ...


@implementer(INamedSink)
@attrs.define(eq=False)
class Arrival:
    """One read that waits for record ``at_least`` of its stream; while it waits, it counts as a subscription."""

    connection: WaitingConnection
    event: Read
    _waiting: ISubscription | None = attrs.field(default=None, init=False)

    def start(self) -> None:
        """Answer now if the record is durable, or else as soon as it is.

        :raises Forbidden: the peer may not read the stream, or has the largest permitted number of subscriptions
        """
        if self._is_here():
            self.connection.read_arrived(self.event)
            return
        self._waiting = self.connection.broker.subscribe(self.event.stream, self.event.at_least - 1, self)
        self.connection.timers.start(self.event.wait, self._late)
        self._waiting.resumeProducing()

    @property
    def waits(self) -> bool:
        """Return whether the request waits for the record."""
        return self._waiting is not None

    def end(self) -> None:
        """Stop waiting."""
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

    @property
    def subscriber(self) -> tuple[str, str]:
        return self.connection.subscriber

    def deliver(self, delivery: Delivery) -> None:
        if self._is_here():
            self.end()
            self.connection.read_arrived(self.event)

    def skipped(self, first: int, last: int) -> None:
        """Do nothing: a delivery follows, which ends the wait."""

    def ended(self, reason: Exception) -> None:
        self.end()
        self.connection.displace(reason)
