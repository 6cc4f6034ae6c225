"""One named subscription: its state on disk, the state that is being written, and its present consumer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs
from twisted.internet.defer import Deferred

from fyrehose.errors import NoSuchSubscription, SubscriptionError
from fyrehose.patterns import Pattern
from fyrehose.subscriptions.positions import Position


class Consumer(Protocol):
    """The connection that a subscription delivers to at present."""

    def displaced(self, reason: SubscriptionError) -> None:
        """Stop consuming, because the subscription was rewound or deleted, or another consumer has taken it over."""


@attrs.frozen
class PollLease:
    """The lease of a polling consumer, which works on records that were sent to it, and has not acknowledged them.

    :ivar holder: the consumer
    :ivar until: the time from which another consumer may continue (monotonic, seconds)
    :ivar seconds: how long the lease is
    :ivar sent: number of the last record that was sent to it, by stream
    """

    holder: str
    until: float
    seconds: float
    sent: Mapping[str, int]


@attrs.define(eq=False)
class Named:
    """A named subscription.

    :ivar stored: the durable state; None: the subscription is being created
    :ivar wanted: the state after all changes that wait to be written; None: the subscription is being deleted
    :ivar appended: the state that was passed to the journal last
    :ivar consumer: the present consumer; None: there is none
    :ivar lease: the lease of a polling consumer between an answer and its acknowledgement; None: there is none
    :ivar active: when a consumer last used it or had nothing left to read, in microseconds since 1970 UTC
    :ivar pattern: the pattern of the streams; None: the subscription has a single stream
    :ivar members: the streams that match the pattern; None: the subscription has a single stream
    :ivar oldest: number and time of the oldest record that is not acknowledged, by stream, when it was last looked up
    """

    name: str
    wanted: Position | None
    stored: Position | None = None
    appended: Position | None = None
    consumer: Consumer | None = None
    lease: PollLease | None = None
    active: int = 0
    pattern: Pattern | None = None
    members: set[str] | None = None
    oldest: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    writing: bool = False
    #: the network for which the subscription counts
    creator: str = ""
    #: whether a stream that matches the pattern was left out, because the limit leaves no room for it
    full: bool = False
    waiting: list[Deferred[None]] = attrs.field(factory=list)

    @property
    def state(self) -> Position:
        """Return the state that is on disk.

        :raises NoSuchSubscription: the subscription was deleted
        """
        if self.stored is None:
            raise NoSuchSubscription(f"subscription {self.name!r} was deleted")
        return self.stored

    @property
    def owner(self) -> str:
        """Return the name of the consumer that may continue without taking over; empty if there is none."""
        return "" if self.wanted is None else self.wanted.owner

    def detach(self, consumer: Consumer) -> None:
        """Record that *consumer* has disconnected; do nothing if it is not the present consumer."""
        if self.consumer is consumer:
            self.consumer = None

    @property
    def places(self) -> Mapping[str, int]:
        """Return the durable number of each stream's last acknowledged record; empty before the creation is durable."""
        if self.stored is None:
            return {}
        streams = (self.stored.stream,) if self.members is None else self.members
        return {stream: self.stored.last(stream) for stream in streams}
