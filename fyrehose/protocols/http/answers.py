"""Answers that take their time: records that are there, and records as they come.

    Reading    broker.read, some each turn of the reactor -> a JSON object a line
    Listening  broker.subscribe -> server-sent events, for as long as somebody reads them

Both are paused by the transport, and hold next to nothing while they are.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING

import attrs
from twisted.internet.interfaces import IDelayedCall
from zope.interface import implementer

from fyrehose import ndjson
from fyrehose.errors import FyrehoseError
from fyrehose.interfaces import ISink, ISubscription
from fyrehose.protocols.http.session import PROTOCOL
from fyrehose.records import Delivery, Run

if TYPE_CHECKING:
    from fyrehose.protocols.http.server import HttpProtocol

#: How often who listens hears that we are still there, in seconds: some of what lies between gives up after 30.
PULSE = 15.0
#: What of an answer is read and sent at once, in bytes of payload.
TURN = 256 << 10
#: And how many records, which cost more than their bytes where they are small.
RECORDS = 2_000


@implementer(ISubscription)
@attrs.define(eq=False)
class Reading:
    """An answer to a GET: records ``next`` to ``last``, ``left`` of them at the most, some each turn of the reactor."""

    connection: HttpProtocol
    stream: str
    next: int
    last: int
    left: int
    _turn: IDelayedCall | None = attrs.field(default=None, init=False)

    @property
    def position(self) -> int:
        return self.next - 1

    def resumeProducing(self) -> None:
        if self._turn is None:
            self._turn = self.connection.clock.callLater(0, self._go_on)

    def pauseProducing(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def stopProducing(self) -> None:
        self.pauseProducing()

    def stop(self) -> None:
        """Nothing more."""
        self.connection.detach(self)

    def _go_on(self) -> None:
        self._turn = None
        try:
            runs = self.connection.broker.read(self.stream, self.next, TURN)
        except FyrehoseError as error:
            # What was promised cannot be kept, and an answer that stops short must not look whole.
            self.connection.cut_off(error)
            return
        room = RECORDS
        for run in runs:
            part = run.slice(0, max(0, min(room, self.left, self.last + 1 - run.first_seq)))
            if len(part):
                self.connection.session.send(ndjson.lines((part,)))
            room -= len(part)
            self.left -= len(part)
            self.next = run.first_seq + len(part)
            if not room:
                break
            self.next = run.last_seq + 1
        if not runs or self.next > self.last or not self.left:
            self.stop()
            self.connection.over()
        else:
            self.resumeProducing()
            self.connection.flush()


@implementer(ISink, ISubscription)
class Listening:
    """Server-sent events: a record each, with its number as the id; of many small ones some each turn of the reactor.

    It stands between the subscription and the transport, so that what is pending goes out before anything else comes.
    """

    def __init__(self, connection: HttpProtocol) -> None:
        self.connection = connection
        self._subscription: ISubscription | None = None
        self._pending: deque[Run] = deque()
        self._paused = True
        self._turn: IDelayedCall | None = None
        self._pulse: IDelayedCall | None = None

    def begin(self, subscription: ISubscription) -> None:
        """From here on."""
        self._subscription = subscription
        self.connection.session.send(b": from %d on\n\n" % (subscription.position + 1))
        self._pulse = self.connection.clock.callLater(PULSE, self._beat)
        self.connection.attach(self)

    def stop(self) -> None:
        """Nothing more."""
        if self._pulse is not None:
            self._pulse.cancel()
            self._pulse = None
        self.connection.detach(self)

    # What the transport says, by way of the connection.

    @property
    def position(self) -> int:
        return 0 if self._subscription is None else self._subscription.position

    def pauseProducing(self) -> None:
        self._paused = True
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        if self._subscription is not None:
            self._subscription.pauseProducing()

    def resumeProducing(self) -> None:
        self._paused = False
        if self._pending:
            if self._turn is None:
                self._turn = self.connection.clock.callLater(0, self._go_on)
        elif self._subscription is not None:
            self._subscription.resumeProducing()

    def stopProducing(self) -> None:
        self.pauseProducing()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.stopProducing()

    # What the broker says.

    @property
    def subscriber(self) -> tuple[str, str]:
        return self.connection.subscriber

    def deliver(self, delivery: Delivery) -> None:
        if len(delivery) <= RECORDS:
            self.connection.session.send(delivery.encoded(events))
            self.connection.flush()
            return
        for run in delivery.runs:
            self._pending.extend(run.slice(at, at + RECORDS) for at in range(0, len(run), RECORDS))
        if self._subscription is not None:
            self._subscription.pauseProducing()
        self.resumeProducing()

    def skipped(self, first: int, last: int) -> None:
        self.connection.broker.counters.add(PROTOCOL, "skipped", last - first + 1)
        said = json.dumps({"first": first, "last": last}).encode()
        self.connection.session.send(b"event: gap\nid: %d\ndata: %b\n\n" % (last, said))

    def ended(self, reason: Exception) -> None:
        said = json.dumps({"error": str(reason)}).encode()
        self.connection.session.send(b"event: ended\ndata: %b\n\n" % said)
        self.connection.finish()

    # Inside.

    def _go_on(self) -> None:
        self._turn = None
        self.connection.session.send(events((self._pending.popleft(),)))
        self.connection.flush()
        if not self._paused:  # which the transport may just have said
            self.resumeProducing()

    def _beat(self) -> None:
        self._pulse = self.connection.clock.callLater(PULSE, self._beat)
        if not self._paused:
            self.connection.session.send(b": still here\n\n")
            self.connection.flush()


def events(runs: tuple[Run, ...]) -> bytes:
    """An event for each record."""
    return b"".join(
        b"id: %d\ndata: %b\n\n" % (seq, said)
        for run in runs
        for seq, said in enumerate(ndjson.objects(run), run.first_seq)
    )
