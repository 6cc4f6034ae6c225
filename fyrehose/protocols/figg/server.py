"""Figg's server: connects a session in the TCP shell to the broker.

PUBLISH -> broker.publish -> durable -> ACK (one for all messages of a commit)
                          -> refused -> the messages before it are published without it, and the connection is closed
ATTACH  -> waits for the PUBLISHes before it -> ATTACHED, then broker.subscribe
           -> deliver -> DATA, encoded once for all subscribers at the same position
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, ClassVar

import attrs
from twisted.logger import Logger
from zope.interface import implementer

from fyrehose.errors import Closed, Forbidden, PublishError, ReadOnly, RemoteProtocolError
from fyrehose.interfaces import IConnectedSink, ISubscription
from fyrehose.net.connections import SessionFactory
from fyrehose.net.lifecycle import Phase
from fyrehose.net.outgoing import LargeRecord
from fyrehose.net.tcp import SessionProtocol, on
from fyrehose.net.tls import TLSSettings
from fyrehose.options import exact_size, fixed, option, size
from fyrehose.protocols.figg.frames import PROTOCOL, Attach, Attached, Detach, Detached, Ping, Pong, Published
from fyrehose.protocols.figg.session import FiggServerSession, encode_data, head_of_data
from fyrehose.records import MAX_PAYLOAD, Delivery, Publish, Run
from fyrehose.sessions import piece_of
from fyrehose.subscriptions import letters


@attrs.frozen(kw_only=True)
class FiggSettings(TLSSettings):
    """Figg's options."""

    max_payload: int = option(MAX_PAYLOAD, size, "largest message accepted")
    refused: str = option(letters.CLOSE, letters.choice, "refused messages: close, dead-letter or dead-letter+policy")
    max_subscriptions: int = fixed(1_000)  #: of a connection; server.subscriptions-per-address bounds those of a peer

    def __attrs_post_init__(self) -> None:
        if not 0 < self.max_payload <= MAX_PAYLOAD:
            most, found = exact_size(MAX_PAYLOAD), exact_size(self.max_payload)
            raise ValueError(f"max-payload must be from 1 to {most}, not {found}")


@implementer(IConnectedSink)
@attrs.define(eq=False)
class Attachment:
    """One subscription of a connection."""

    connection: FiggProtocol
    topic: str
    subscription: ISubscription = attrs.field(init=False)

    def deliver(self, delivery: Delivery) -> int:
        encoded = delivery.encoded(encode_data)
        if not encoded.records:
            self.connection.send_record(_large(delivery.runs[0]))
            return delivery.first_seq
        self.connection.flush(encoded.data)
        return encoded.last

    def skipped(self, first: int, last: int) -> None:
        """Count skipped records; Figg has no frame for them, so the next DATA only has a higher offset."""
        self.connection.broker.counters.add(PROTOCOL, "skipped", last - first + 1)

    def ended(self, reason: Exception) -> None:
        self.connection.finish()


class FiggProtocol(SessionProtocol):
    """One client connection."""

    protocol_name: ClassVar[str] = PROTOCOL
    log: ClassVar[Logger] = Logger()

    session: FiggServerSession
    settings: FiggSettings

    def __init__(self, factory: FiggFactory) -> None:
        super().__init__(factory, FiggServerSession(factory.settings.max_payload))
        self._attachments: dict[str, Attachment] = {}
        self._postponed: list[object] = []  #: an ATTACH that waits for commits, and all later events
        self._postponed_size = 0  #: bytes of them that are charged to the account

    # Called by the reactor.

    def connectionLost(self, reason: Any = None) -> None:
        super().connectionLost(reason)
        self._drop_postponed()

    def take_eof(self) -> None:
        if self._postponed and self.phase is Phase.OPEN:
            self.waiting_input.end()  # process the postponed events first
        else:
            super().take_eof()

    @property
    def has_more(self) -> bool:
        return self.session.more and not self._postponed

    # Handlers of the session's events.

    def published(self, event: Published) -> None:
        self.publish(event.runs, event.last)

    def attached(self, event: Attach) -> None:
        """Handle ATTACH: subscribe, or move the subscription; wait until earlier publishes are durable."""
        if self.unsettled:
            self._postpone(event)
            return
        old = self._attachments.pop(event.topic, None)
        if old is not None:
            self.detach(old.subscription)
        elif len(self._attachments) >= self.settings.max_subscriptions:
            limit = self.settings.max_subscriptions
            self.drop(RemoteProtocolError("too-many-subscriptions", f"limit of {limit} per connection"))
            return
        attachment = self._attachments[event.topic] = Attachment(self, event.topic)
        attachment.subscription = self.broker.subscribe(event.topic, event.offset, attachment)
        # Send ATTACHED first, because clients drop DATA before it; nothing is delivered before attach() resumes.
        self.session.send(Attached(topic=event.topic, offset=attachment.subscription.position))
        self.attach(attachment.subscription)

    def detached(self, event: Detach) -> None:
        """Handle DETACH; answer DETACHED even if the topic is not attached."""
        attachment = self._attachments.pop(event.topic, None)
        if attachment is not None:
            self.detach(attachment.subscription)
        self.session.send(Detached(topic=event.topic))

    def pinged(self, event: Ping) -> None:
        """Answer a PING."""
        self.session.send(Pong(number=event.number))

    handlers = (
        SessionProtocol.handlers
        | on(Published, published)
        | on(Attach, attached)
        | on(Detach, detached)
        | on(Ping, pinged)
    )

    # Called by the TCP shell.

    def use_rights(self) -> None:
        super().use_rights()
        self.session.producer = self.producer

    def finish(self) -> None:
        super().finish()
        self._drop_postponed()

    def not_published(self, runs: list[Run], note: Any, error: PublishError | Forbidden) -> None:
        """Handle the refusal of *runs*: publish several messages again in halves, so that few are lost."""
        if isinstance(error, ReadOnly | Closed) or sum(map(len, runs)) == 1:
            super().not_published(runs, note, error)
            return
        # The broker refuses all messages because of one.  Publish them in halves, so that the messages before it are
        # stored, as they would be if they had arrived alone.
        for part, last in _split_in_half(runs):
            if self.phase is Phase.OPEN:
                self.publish(part, last)

    def durable(self, items: Sequence[Publish]) -> None:
        numbers = []
        for item in items:
            numbers.append(item.note)
        self.session.send_acks(numbers)
        self.flush()
        if self._postponed and not self.unsettled:
            self._process_postponed()

    # Helpers.

    def _postpone(self, event: object) -> None:
        """Keep *event* until the publishes before an ATTACH are durable, so that ATTACHED's offset includes them."""
        if not self._postponed:
            self.reading.pause_for("attach")
            self.handlers = dict.fromkeys(self.handlers, FiggProtocol._postpone)  # keep later events in order
        self._postponed.append(event)
        if isinstance(event, Published):
            size = sum(len(run.payload) + len(run.lengths) for run in event.runs)
            self._postponed_size += size
            self.account.hold(size)

    def _process_postponed(self) -> None:
        """Process the postponed events, up to the next ATTACH that has to wait."""
        waiting, self._postponed = self._postponed, []
        self._release_postponed()
        self.received(waiting)
        if self.waiting_input.ended and not self._postponed and not self.has_more:
            self.take_eof()

    def _drop_postponed(self) -> None:
        if self._postponed:
            self._postponed.clear()
            self._release_postponed()

    def _release_postponed(self) -> None:
        self.handlers = FiggProtocol.handlers
        size, self._postponed_size = self._postponed_size, 0
        self.account.release(size)
        self.reading.resume_after("attach")


def _large(run: Run) -> LargeRecord:
    """Return the first record of *run*, which is larger than a piece, as a DATA frame to be sent in pieces."""
    head = head_of_data(run)
    return LargeRecord(
        run.stream, run.first_seq, lambda one, position: piece_of((head, one.payload), position), run.slice(0, 1)
    )


def _split_in_half(runs: list[Run]) -> list[tuple[list[Run], int]]:
    """Split *runs* into the lower and the higher half of their numbers; return each half with its highest number."""
    numbers = sorted(number for run in runs for number in run.producer_seqs() or ())
    middle = numbers[len(numbers) // 2]
    first, second = [], []
    for run in runs:
        count = bisect_left(run.producer_seqs() or (), middle)
        if count:
            first.append(run.slice(0, count))
        if count < len(run):
            second.append(run.slice(count, len(run)))
    return [(first, numbers[len(numbers) // 2 - 1]), (second, numbers[-1])]


class FiggFactory(SessionFactory):
    """The factory of connections of Figg clients: ``endpoint.listen(FiggFactory(broker))``."""

    protocol = FiggProtocol
    defaults = FiggSettings()
    events = ("skipped",)
    refusals = (
        "bad-length",
        "bad-topic",
        "frame-too-large",
        "too-many-subscriptions",
        "truncated-frame",
        "unknown-type",
        "wrong-direction",
        "wrong-version",
    )
    settings: FiggSettings
