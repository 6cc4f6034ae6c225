"""The lines protocol on a socket: each event to the broker, each answer back through the session."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from fyrehose.interfaces import IBroker, ISink
from fyrehose.net.connections import SessionFactory
from fyrehose.net.tcp import SessionProtocol, TCPSettings
from fyrehose.records import Delivery, Run
from lines.session import LineSession, Published, Subscribed, encode


@implementer(ISink)
class LineProtocol(SessionProtocol):
    """One connection; the shell around it does limits, deadlines, slow readers and closing."""

    protocol_name: ClassVar[str] = "lines"
    log: ClassVar[Logger] = Logger()
    handlers: ClassVar[dict[type, str]] = {Published: "published", Subscribed: "subscribed"}

    session: LineSession

    def published(self, event: Published) -> None:
        """Publish, and say ok when it is durable: there and nowhere else."""
        run = Run.of(event.stream, [event.payload], source=self.protocol_name, producer=self.peer)
        self.publish([run], self._durable)

    def _durable(self, first_seqs: tuple[int, ...]) -> None:
        self.session.send_ok(first_seqs[0])
        self.flush()

    def subscribed(self, event: Subscribed) -> None:
        """Deliver what follows, as fast as the peer reads."""
        self.attach(self.broker.subscribe(event.stream, event.after, self))

    # What the broker calls for the subscription.

    def deliver(self, delivery: Delivery) -> None:
        self.session.send_records(delivery.encoded(encode))
        self.flush()

    def skipped(self, first: int, last: int) -> None:
        """Nothing to say: the number of the next record says it."""

    def ended(self, reason: Exception) -> None:
        self.finish()


def make_factory(broker: IBroker, clock: IReactorTime, settings: TCPSettings) -> SessionFactory:
    """What listens."""
    make: Any = partial(LineProtocol, broker=broker, clock=clock, settings=settings)
    return SessionFactory(
        lambda: make(LineSession()), LineProtocol.protocol_name, LineProtocol.log, broker, clock, settings
    )
