"""Exclusive subscriptions: one consumer at a time, which acknowledges all records up to a number.

attach -> acknowledge ... -> detach

A number that is acknowledged counts when it is appended, and is answered when it is durable, as everything else.  While
one change of a subscription is being written, the numbers that are acknowledged wait, and are written together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred, fail
from twisted.python.failure import Failure

from fyrehose.errors import FyrehoseError, InvalidPosition, NoSuchSubscription, SubscriptionInUse
from fyrehose.subscriptions.lane import Draft, Track
from fyrehose.subscriptions.progress import StreamProgress
from fyrehose.subscriptions.subscription import NamedSubscription, refusal_of


class Consumer(Protocol):
    """The connection that a subscription delivers to at present."""

    def displaced(self, reason: FyrehoseError) -> None:
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


@attrs.frozen
class ConsumerReport:
    """The last report of a consumer about itself.

    :ivar text: a JSON object of texts and numbers, which the server passes on as they are
    :ivar at: when the report came (monotonic, seconds)
    """

    text: bytes
    at: float


@attrs.define(eq=False)
class ExclusiveSubscription(NamedSubscription):
    """A subscription with one consumer; its epoch is the *generation* of that.

    :ivar consumer: the present consumer; None: there is none
    :ivar lease: the lease of a polling consumer between an answer and its acknowledgement; None: there is none
    :ivar report: the last report of a consumer since the server started; None: there was none
    """

    tracks: dict[str, Track] = attrs.field(factory=dict, init=False)
    consumer: Consumer | None = attrs.field(default=None, init=False)
    lease: PollLease | None = attrs.field(default=None, init=False)
    report: ConsumerReport | None = attrs.field(default=None, init=False)
    #: the numbers that were acknowledged, and wait until the change before them is durable
    _wanted: dict[str, int] = attrs.field(factory=dict, init=False)

    @property
    def owner(self) -> str:
        """Return the name of the consumer that may continue without taking over; empty if there is none."""
        return self.saved.owner

    @property
    def seq(self) -> int:
        """Return the durable number of the last acknowledged record, if the subscription has a single stream."""
        return self.tracks[self.options.stream].durable_floor

    def last(self, stream: str) -> int:
        """Return the number of the last acknowledged record of *stream*, durable or not."""
        track = self.tracks.get(stream)
        return max(self._wanted.get(stream, 0), 0 if track is None else track.progress.final.floor)

    def add_stream(self, stream: str, progress: StreamProgress) -> None:
        self.tracks[stream] = Track(stream, progress)

    def remove_stream(self, stream: str) -> None:
        del self.tracks[stream]

    def may_forget(self, track: Track) -> bool:
        """Return whether no number is to be written for a stream that was retired."""
        return self._wanted.get(track.stream, 0) <= track.progress.final.floor

    def attach(self, consumer: Consumer, owner: str = "", takeover: bool = False, holder: str = "") -> int:
        """Make *consumer* the consumer, and return the generation.

        :param owner: name of a consumer that outlives its connections; the same owner may always continue
        :param takeover: whether to displace the present consumer
        :param holder: name of a polling consumer, which may continue while it has the lease
        :raises SubscriptionInUse: another consumer is connected, or has the lease
        """
        changes = owner != self.owner
        if self.lease is not None and self.lease.holder != holder:
            self._end_lease(self.lease, takeover)
            changes = True
        if self.consumer not in (None, consumer) and not (owner and owner == self.owner):
            if not takeover:
                raise SubscriptionInUse(
                    f"subscription {self.name!r} has a consumer; stop it, or take the subscription over"
                )
            self.end(SubscriptionInUse(f"another consumer has taken over subscription {self.name!r}"))
            changes = True
        if changes:
            draft = Draft(epoch=self.epoch + 1, whole={"owner": owner})
            self.append_by_itself(draft)
        self.consumer, self.active = consumer, self.table.now()
        return self.epoch

    def detach(self, consumer: Consumer) -> None:
        """Record that *consumer* has disconnected; do nothing if it is not the present consumer."""
        if self.consumer is consumer:
            self.consumer = None

    def take_report(self, text: bytes) -> None:
        """Keep what a consumer says about itself, in memory, until the next report."""
        self.report = ConsumerReport(text, self.table.clock.seconds())

    def hold(self, holder: str, seconds: float, sent: Mapping[str, int]) -> None:
        """Reserve the subscription for *holder* for some *seconds*, or until it has acknowledged what was *sent*.

        :param sent: number of the last record that was sent to the consumer, by stream
        """
        if any(seq > self.last(stream) for stream, seq in sent.items() if stream in self.tracks):
            self.lease = PollLease(holder, self.table.clock.seconds() + seconds, seconds, sent)

    def _end_lease(self, lease: PollLease, takeover: bool) -> None:
        """End the *lease* of a polling consumer, because another consumer takes over.

        :raises SubscriptionInUse: the lease has not expired, and *takeover* is false
        """
        left = lease.until - self.table.clock.seconds()
        if left > 0 and not takeover:
            raise SubscriptionInUse(
                f"a consumer of subscription {self.name!r} has records that it has not acknowledged; ask again in "
                f"{left:.0f} s, or take the subscription over"
            )
        self.lease = None

    def acknowledge(self, seq: int | Mapping[str, int], generation: int | None = None) -> Deferred[Any]:
        """Move the position forward to *seq*; a number that was acknowledged already changes nothing.

        :param seq: a number; for a pattern, numbers by stream
        :param generation: the generation that the consumer knows; None: any generation is accepted
        :return: a Deferred that fires when that is durable; fails with InvalidPosition or a PublishError
        """
        if self.gone:
            return fail(NoSuchSubscription(f"subscription {self.name!r} was deleted"))
        try:
            if generation not in (None, self.epoch):
                raise InvalidPosition(
                    f"subscription {self.name!r} was rewound or taken over: its generation is {self.epoch}, "
                    f"not {generation}; read again before acknowledging"
                )
            numbers = self.numbers(seq)
        except InvalidPosition as refusal:
            return fail(refusal)
        self.active = self.table.now()
        ahead = {stream: number for stream, number in numbers.items() if number > self.last(stream)}
        if ahead and not self._wanted and self.durable == self.appended:
            self._wanted = ahead
            written = self.append(Draft())
            self._wanted = {}
            if refusal_of(written) is None:
                self._renew_lease()
            return written
        self._wanted |= ahead
        if ahead:
            self._renew_lease()
        return self.when_durable(self.appended + bool(self._wanted))

    def _renew_lease(self) -> None:
        """Renew the lease of a polling consumer that has acknowledged records; end it if it has acknowledged all."""
        lease, self.lease = self.lease, None
        if lease is not None:
            self.hold(lease.holder, lease.seconds, lease.sent)

    def append(self, draft: Draft) -> Deferred[Any]:
        return super().append(self._with_wanted(draft))

    def append_by_itself(self, draft: Draft) -> BaseException | None:
        return super().append_by_itself(self._with_wanted(draft))

    def _with_wanted(self, draft: Draft) -> Draft:
        """Return *draft* with the numbers that wait to be written, except in streams that it rewinds."""
        for stream, seq in self._wanted.items():
            track = self.tracks.get(stream)
            if track is not None and track not in draft.changes and seq > track.progress.final.floor:
                draft.of(track).settled = [(track.progress.final.floor + 1, seq)]
        return draft

    def rewind(self, numbers: Mapping[str, int]) -> Deferred[Any]:
        written = super().rewind(numbers)
        if refusal_of(written) is None:
            self.end(SubscriptionInUse(f"subscription {self.name!r} was rewound"))
        return written

    def accept(self, draft: Draft) -> None:
        super().accept(draft)
        self._wanted = {}

    def one_durable(self) -> None:
        super().one_durable()
        if self._wanted and self.durable == self.appended and not self.gone:
            refusal = self.append_by_itself(Draft())
            if refusal is not None:
                self._wanted = {}
                while self._after:
                    self._after.popleft()[1].errback(Failure(refusal))

    def end(self, reason: FyrehoseError) -> None:
        consumer, self.consumer, self.lease = self.consumer, None, None
        if consumer is not None:
            consumer.displaced(reason)
