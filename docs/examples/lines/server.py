"""The server of the lines protocol: pass each event to the broker, and each answer back through the session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from twisted.logger import Logger
from zope.interface import implementer

from fyrehose.interfaces import ISink
from fyrehose.net import SessionFactory, SessionProtocol, TCPSettings, on
from fyrehose.records import Delivery, Publish, Run
from lines.session import LineSession, Published, Subscribed, encode


@implementer(ISink)
class LineProtocol(SessionProtocol):
    """One connection; its base class handles limits, deadlines, slow subscribers and closing."""

    protocol_name: ClassVar[str] = "lines"
    log: ClassVar[Logger] = Logger()

    session: LineSession

    def __init__(self, factory: SessionFactory) -> None:
        super().__init__(factory, LineSession())

    def published(self, event: Published) -> None:
        """Publish the line; `durable` acknowledges it when it is on disk."""
        run = Run.of(event.stream, [event.payload], source=self.protocol_name, producer=self.peer)
        self.publish([run])

    def durable(self, items: Sequence[Publish]) -> None:
        for item in items:
            self.session.send_ok(item.runs[0].first_seq)
        self.flush()

    def subscribed(self, event: Subscribed) -> None:
        """Subscribe, and deliver records as fast as the peer reads."""
        self.attach(self.broker.subscribe(event.stream, event.after, self))

    handlers = SessionProtocol.handlers | on(Published, published) | on(Subscribed, subscribed)

    # Methods of ISink, which the broker calls for the subscription.

    def deliver(self, delivery: Delivery) -> None:
        self.session.send_records(delivery.encoded(encode))
        self.flush()

    def skipped(self, first: int, last: int) -> None:
        """Do nothing: the number of the next record shows the gap."""

    def ended(self, reason: Exception) -> None:
        self.finish()


class LineFactory(SessionFactory):
    """Listens for clients: ``endpoint.listen(LineFactory(broker))``."""

    protocol = LineProtocol
    defaults = TCPSettings()
