"""Figg's server: a session in the TCP shell, the broker behind it.

PUBLISH -> broker.publish -> durable -> ACK (one for all that one commit made durable)
ATTACH  -> ATTACHED, then broker.subscribe -> deliver -> encoded once -> DATA, to everybody who stands there
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from fyrehose.connections import SessionFactory
from fyrehose.errors import RemoteProtocolError
from fyrehose.interfaces import IBroker, ISink, ISubscription
from fyrehose.protocols.figg.frames import Attach, Detach, Ping, Published
from fyrehose.protocols.figg.session import FiggServerSession, encode_data
from fyrehose.records import MAX_PAYLOAD, Delivery, Run
from fyrehose.settings import count, option, size
from fyrehose.tcp import SessionProtocol
from fyrehose.tls import TLSSettings

KIT = "figg"


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
    def reader(self) -> tuple[str, str]:
        return self.connection.reader

    def deliver(self, delivery: Delivery) -> None:
        self.connection.session.send_data(delivery.encoded(encode_data))
        self.connection.flush()

    def skipped(self, first: int, last: int) -> None:
        """Nothing to say in Figg: the next offset says it."""
        self.connection.broker.counters.add(KIT, "skipped", last - first + 1)

    def ended(self, reason: Exception) -> None:
        self.connection.finish()


class FiggProtocol(SessionProtocol):
    """One connection."""

    kit: ClassVar[str] = KIT
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

    def published(self, event: Published) -> None:
        """Publish, and acknowledge the last of them when all are durable: there and nowhere else."""
        runs = [
            Run(
                stream=run.topic,
                source=KIT,
                producer=self.address,
                producer_seq=run.numbers,
                lengths=run.lengths,
                payload=run.payload,
            )
            for run in event.runs
        ]
        self.publish(runs, partial(self._durable, event.last))

    def attached(self, event: Attach) -> None:
        """Begin, or begin elsewhere."""
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

    def connectionLost(self, reason: Any = None) -> None:
        if self._ack_due is not None:
            self._ack_due.cancel()
            self._ack_due = None
        super().connectionLost(reason)

    def _durable(self, last: int, firsts: tuple[int, ...]) -> None:
        self.session.send_ack(last)
        # One commit settles many publishes of a connection, one after the other: the last one's ACK covers them all.
        if self._ack_due is None and self._in_flight > 1:
            self._ack_due = self.clock.callLater(0, self._send_ack)

    def settled(self) -> None:
        # Nothing more of it is under way: the last one's ACK need not wait.
        if not self._in_flight:
            if self._ack_due is not None:
                self._ack_due.cancel()
            self._send_ack()

    def _send_ack(self) -> None:
        self._ack_due = None
        self.flush()


def make_factory(broker: IBroker, clock: IReactorTime, settings: Settings) -> SessionFactory:
    """What listens."""

    def make() -> FiggProtocol:
        return FiggProtocol(FiggServerSession(settings.max_payload), broker, clock, settings)

    return SessionFactory(make, KIT, FiggProtocol.log, broker, clock, settings)
