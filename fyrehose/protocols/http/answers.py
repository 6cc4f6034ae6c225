"""Producers of streamed answers: stored records of a GET, and new records of a live GET.

    ReadAnswer  broker.read, a part in each turn of the reactor -> one JSON object per line
    LiveAnswer  broker.subscribe -> server-sent events, until the peer disconnects

The transport pauses both, and a paused answer buffers little.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Protocol

import attrs
from zope.interface import implementer

from fyrehose import ndjson
from fyrehose.errors import FyrehoseError
from fyrehose.interfaces import IBroker, ISink, ISubscription
from fyrehose.net.lifecycle import Timers
from fyrehose.protocols.http.session import PROTOCOL, HttpSession
from fyrehose.records import Delivery, Run

#: Interval of the comments that keep a live answer alive, in seconds; some proxies close idle connections after 30.
KEEPALIVE = 15.0
#: Payload that an answer reads and sends in one turn of the reactor, in bytes.
TURN_BYTES = 256 << 10
#: The most records that an answer sends in one turn: small records cost more than their bytes.
TURN_RECORDS = 2_000


class AnsweredConnection(Protocol):
    """The connection that an answer is sent to, which is an HttpProtocol."""

    broker: IBroker
    session: HttpSession
    timers: Timers
    peer: str

    @property
    def subscriber(self) -> tuple[str, str]: ...

    def attach(self, subscription: ISubscription) -> None: ...

    def detach(self, subscription: ISubscription) -> None: ...

    def flush(self) -> None: ...

    def finish(self) -> None: ...

    def complete_answer(self) -> None: ...

    def abort_answer(self, reason: Exception) -> None: ...


@implementer(ISubscription)
@attrs.define(eq=False)
class ReadAnswer:
    """The answer to a GET: records *next* to *last*, at most *left* of them, a part in each turn of the reactor.

    :ivar then: further streams, with the first and the last record of each
    """

    connection: AnsweredConnection
    stream: str
    next: int
    last: int
    left: int
    then: list[tuple[str, int, int]] = attrs.field(factory=list)

    @property
    def position(self) -> int:
        return self.next - 1

    def resumeProducing(self) -> None:
        self.connection.timers.start(0, self._send_part)

    def pauseProducing(self) -> None:
        self.connection.timers.stop(self._send_part)

    def stopProducing(self) -> None:
        self.pauseProducing()

    def stop(self) -> None:
        """Stop sending records."""
        self.connection.detach(self)

    def _send_part(self) -> None:
        try:
            runs = self.connection.broker.read(self.stream, self.next, TURN_BYTES)
        except FyrehoseError as error:
            # The status 200 was sent already; aborting the connection shows the peer that the answer is incomplete.
            self.connection.abort_answer(error)
            return
        room = TURN_RECORDS
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
        ended = not runs or self.next > self.last
        if ended and self.then:
            ended = False
            self.stream, self.next, self.last = self.then.pop(0)
        if ended or not self.left:
            self.stop()
            self.connection.complete_answer()
        else:
            self.resumeProducing()
            self.connection.flush()


def events(runs: tuple[Run, ...]) -> bytes:
    """Return *runs* as server-sent events, one per record."""
    return b"".join(
        b"id: %d\ndata: %b\n\n" % (seq, record)
        for run in runs
        for seq, record in enumerate(ndjson.objects(run), run.first_seq)
    )


@implementer(ISink, ISubscription)
class LiveAnswer:
    """The answer to a live GET: one server-sent event per record, with the record's number as the id.

    It relays pausing and resuming from the transport to the subscription.  A delivery of many small records is sent in
    several turns of the reactor, and the subscription stays paused until all of them are sent.
    """

    def __init__(self, connection: AnsweredConnection, encode: Callable[[tuple[Run, ...]], bytes] = events) -> None:
        self.connection = connection
        self._encode = encode
        self._subscription: ISubscription | None = None
        self._pending: deque[Run] = deque()
        self._paused = True
        self._ended = False

    def start(self, subscription: ISubscription) -> None:
        """Start sending the records of *subscription*."""
        self._subscription = subscription
        self.connection.session.send(b": from %d on\n\n" % (subscription.position + 1))
        self.connection.timers.start(KEEPALIVE, self._send_keepalive)
        self.connection.attach(self)

    def close(self) -> None:
        """Send the last event, because the server closes the connection; the client may connect again."""
        self._send_ended({"error": "the server closes the connection; connect again to continue", "retry": True})

    def stop(self) -> None:
        """Stop sending records, and end the subscription."""
        self.connection.timers.stop(self._send_keepalive)
        self.connection.detach(self)

    # Called by the transport, through the connection.

    @property
    def position(self) -> int:
        return 0 if self._subscription is None else self._subscription.position

    def pauseProducing(self) -> None:
        self._paused = True
        self.connection.timers.stop(self._send_pending)
        if self._subscription is not None:
            self._subscription.pauseProducing()

    def resumeProducing(self) -> None:
        self._paused = False
        if self._pending:
            self.connection.timers.start(0, self._send_pending)
        elif self._subscription is not None:
            self._subscription.resumeProducing()

    def stopProducing(self) -> None:
        self.pauseProducing()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.stopProducing()

    # Called by the broker.

    @property
    def subscriber(self) -> tuple[str, str]:
        return self.connection.subscriber

    def deliver(self, delivery: Delivery) -> None:
        """Send the records as events; of many records, a part in each turn of the reactor."""
        if len(delivery) <= TURN_RECORDS:
            self.connection.session.send(delivery.encoded(self._encode))
            self.connection.flush()
            return
        for run in delivery.runs:
            self._pending.extend(run.slice(at, at + TURN_RECORDS) for at in range(0, len(run), TURN_RECORDS))
        if self._subscription is not None:
            self._subscription.pauseProducing()
        self.resumeProducing()

    def skipped(self, first: int, last: int) -> None:
        self.connection.broker.counters.add(PROTOCOL, "skipped", last - first + 1)
        gap = json.dumps({"first": first, "last": last}).encode()
        self.connection.session.send(b"event: gap\nid: %d\ndata: %b\n\n" % (last, gap))

    def ended(self, reason: Exception) -> None:
        self._send_ended({"error": str(reason)})
        self.connection.finish()

    # Internals.

    def _send_ended(self, reason: dict[str, object]) -> None:
        if not self._ended:
            self._ended = True
            self.connection.session.send(b"event: ended\ndata: %b\n\n" % json.dumps(reason).encode())

    def _send_pending(self) -> None:
        self.connection.session.send(self._encode((self._pending.popleft(),)))
        self.connection.flush()
        if not self._paused:  # The transport may have called pauseProducing during the flush.
            self.resumeProducing()

    def _send_keepalive(self) -> None:
        self.connection.timers.start(KEEPALIVE, self._send_keepalive)
        if not self._paused:
            self.connection.session.send(b": still here\n\n")
            self.connection.flush()
