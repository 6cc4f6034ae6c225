"""Figg's server: a session in the TCP shell, the broker behind it.

PUBLISH -> broker.publish -> durable -> ACK (one for all that one commit made durable)
           refused -> what came before it is published without it, and the connection is closed
ATTACH  -> waits for the PUBLISHes before it -> ATTACHED, then broker.subscribe
           -> deliver -> encoded once -> DATA, to everybody who stands there
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from functools import partial
from typing import Any, ClassVar

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import Closed, Forbidden, PublishError, ReadOnly, RemoteProtocolError
from fyrehose.interfaces import IBroker, ISink, ISubscription
from fyrehose.net.connections import SessionFactory
from fyrehose.net.tcp import SessionProtocol
from fyrehose.net.tls import TLSSettings
from fyrehose.options import count, option, size
from fyrehose.protocols.figg.frames import Attach, Detach, Ping, Published
from fyrehose.protocols.figg.session import FiggServerSession, encode_data
from fyrehose.records import MAX_PAYLOAD, Delivery, Run

PROTOCOL = "figg"


@attrs.frozen(kw_only=True)
class Settings(TLSSettings):
    """Figg's options."""

    max_payload: int = option(MAX_PAYLOAD, size, "largest message taken, in bytes")
    max_subscriptions: int = option(1_000, count, "topics that one connection is attached to")

    def __attrs_post_init__(self) -> None:
        if not 0 < self.max_payload <= MAX_PAYLOAD:
            raise ValueError(f"max_payload is 1 to {MAX_PAYLOAD} bytes")


@implementer(ISink)
@attrs.define(eq=False)
class Attachment:
    """One topic that a connection is attached to."""

    connection: FiggProtocol
    topic: str
    subscription: ISubscription = attrs.field(init=False)

    @property
    def subscriber(self) -> tuple[str, str]:
        return self.connection.subscriber

    def deliver(self, delivery: Delivery) -> None:
        self.connection.session.send_data(delivery.encoded(encode_data))
        self.connection.flush()

    def skipped(self, first: int, last: int) -> None:
        """Nothing to say in Figg: the next offset says it."""
        self.connection.broker.counters.add(PROTOCOL, "skipped", last - first + 1)

    def ended(self, reason: Exception) -> None:
        self.connection.finish()


class FiggProtocol(SessionProtocol):
    """One connection."""

    protocol_name: ClassVar[str] = PROTOCOL
    log: ClassVar[Logger] = Logger()
    handlers: ClassVar[dict[type, str]] = {
        Published: "published",
        Attach: "attached",
        Detach: "detached",
        Ping: "pinged",
    }

    session: FiggServerSession
    settings: Settings

    def __init__(self, session: FiggServerSession, broker: IBroker, clock: IReactorTime, settings: Settings) -> None:
        super().__init__(session, broker, clock, settings)
        self._attachments: dict[str, Attachment] = {}
        self._ack_due: IDelayedCall | None = None
        self._refusable: list[Run] | None = None  #: what is being published, while it can be refused as a whole
        self._behind: deque[object] = deque()  #: an ATTACH that waits, and what came behind it
        self._behind_size = 0  #: what of that is charged, in bytes
        self._eof = False

    # What the reactor calls.

    def connectionLost(self, reason: Any = None) -> None:
        if self._ack_due is not None:
            self._ack_due.cancel()
            self._ack_due = None
        super().connectionLost(reason)
        self._forget_behind()

    def readConnectionLost(self) -> None:
        if self._behind and not self._closing:
            self._eof = True  # what came before it is dealt with first
        else:
            super().readConnectionLost()

    # What the session says.

    def published(self, event: Published) -> None:
        """Publish, and acknowledge the last of them when all are durable: there and nowhere else."""
        runs = [
            Run(
                stream=run.topic,
                source=PROTOCOL,
                producer=self.address,
                producer_seq=run.numbers,
                lengths=run.lengths,
                payload=run.payload,
            )
            for run in event.runs
        ]
        self._refusable = runs
        self.publish(runs, partial(self._durable, event.last))
        self._refusable = None  # a refusal that comes later is not because of one of them

    def attached(self, event: Attach) -> None:
        """Begin, or begin elsewhere."""
        if self._in_flight:
            self._put_behind(event)
            return
        old = self._attachments.pop(event.topic, None)
        if old is not None:
            self.detach(old.subscription)
        elif len(self._attachments) >= self.settings.max_subscriptions:
            self.drop(RemoteProtocolError("too-many-subscriptions", f"{self.settings.max_subscriptions} are the most"))
            return
        attachment = self._attachments[event.topic] = Attachment(self, event.topic)
        attachment.subscription = self.broker.subscribe(event.topic, event.offset, attachment)
        # Clients drop what comes before ATTACHED, so it goes first; nothing is delivered before attach() resumes.
        self.session.send_attached(event.topic, attachment.subscription.position)
        self.attach(attachment.subscription)

    def detached(self, event: Detach) -> None:
        """End; whether it had begun or not, the answer is the same."""
        attachment = self._attachments.pop(event.topic, None)
        if attachment is not None:
            self.detach(attachment.subscription)
        self.session.send_detached(event.topic)

    def pinged(self, event: Ping) -> None:
        """Alive."""
        self.session.send_pong(event.number)

    # What the shell calls.

    def finish(self) -> None:
        super().finish()
        self._forget_behind()

    def settled(self) -> None:
        # Nothing more of it is under way: the last one's ACK need not wait.
        if not self._in_flight:
            if self._ack_due is not None:
                self._ack_due.cancel()
            self._send_ack()
            if self._behind:
                self._go_on()

    def _refused(self, failure: Failure) -> None:
        runs, self._refusable = self._refusable, None
        one_by_one = not failure.check(ReadOnly, Closed) and failure.check(PublishError, Forbidden)
        if runs is None or not one_by_one or sum(map(len, runs)) == 1:
            super()._refused(failure)
            return
        # All of them were refused because of one: those before it are to be stored, as if they had come alone.
        for part, last in _halves(runs):
            if not self._closing:
                self._refusable = part
                self.publish(part, partial(self._durable, last))
        self._refusable = None

    # Inside.

    def _durable(self, last: int, firsts: tuple[int, ...]) -> None:
        self.session.send_ack(last)
        # One commit settles many publishes of a connection, one after the other: the last one's ACK covers them all.
        if self._ack_due is None and self._in_flight > 1:
            self._ack_due = self.clock.callLater(0, self._send_ack)

    def _send_ack(self) -> None:
        self._ack_due = None
        self.flush()

    def _put_behind(self, event: object) -> None:
        """Keep *event* until the publishes that came before an ATTACH are durable, so that ATTACHED counts them."""
        if self._closing:
            return
        if not self._behind:
            self.reading.pauseProducing()
            self._handle = self._put_behind  # type: ignore[method-assign] # what comes next has its turn behind it
        self._behind.append(event)
        if isinstance(event, Published) and self._account is not None:
            size = sum(len(run.payload) + len(run.lengths) for run in event.runs)
            self._behind_size += size
            self._account.hold(size)

    def _go_on(self) -> None:
        """Deal with an ATTACH that has waited, and with what came behind it, up to the next one that has to wait."""
        waiting, self._behind = self._behind, deque()
        self._release_behind()
        for event in waiting:
            self._handle(event)
        self._flush_replies()
        if not self._behind and self._eof:
            super().readConnectionLost()

    def _forget_behind(self) -> None:
        if self._behind:
            self._behind.clear()
            self._release_behind()

    def _release_behind(self) -> None:
        del self._handle
        size, self._behind_size = self._behind_size, 0
        if size and self._account is not None:
            self._account.release(size)
        if not self._disconnected():
            self.reading.resumeProducing()


def _halves(runs: list[Run]) -> list[tuple[list[Run], int]]:
    """Return *runs* of several messages in two parts, by their numbers, and the highest number of each part."""
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


def make_factory(broker: IBroker, clock: IReactorTime, settings: Settings) -> SessionFactory:
    """What listens."""

    def make() -> FiggProtocol:
        return FiggProtocol(FiggServerSession(settings.max_payload), broker, clock, settings)

    return SessionFactory(make, PROTOCOL, FiggProtocol.log, broker, clock, settings)
