"""Producers of streamed answers: stored records of a GET, and new records of a live GET.

    ReadAnswer  broker.read, a piece in each turn -> one JSON object per line
    LiveAnswer  broker.subscribe -> server-sent events, until the peer disconnects

The transport pauses both kinds of answer, and a paused answer keeps nothing but its position.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import attrs
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose import ndjson
from fyrehose.errors import FyrehoseError
from fyrehose.interfaces import IConnectedSink, ISubscription
from fyrehose.jsontext import dumped
from fyrehose.ndjson import TextChecks
from fyrehose.net.outgoing import LargeRecord
from fyrehose.protocols.http.session import PROTOCOL
from fyrehose.records import Delivery, Run
from fyrehose.sessions import PIECE, Encoded
from fyrehose.web.session import EVENTS

if TYPE_CHECKING:
    from fyrehose.protocols.http.server import HttpProtocol

#: Interval of the comments that keep a live answer alive, in seconds; some proxies close idle connections after 30.
KEEPALIVE = 15.0
#: How many records an answer sends in one turn at most, because small records cost more time than their bytes.
TURN_RECORDS = 2_000
#: Each record counts as this many more bytes in a turn, because encoding takes time for each record.
RECORD_COST = 512


@attrs.frozen
class Form:
    """The form of records in an answer: a line, or a server-sent event with or without the record's number.

    :ivar before: the text before the record's JSON object
    :ivar after: the text after the record's JSON object
    :ivar numbered: whether the record's number goes first, as the id of an event
    :ivar epoch: the epoch of the numbers, which precedes them in ids; empty: none does
    :ivar values: whether JSON messages that fit into a piece are values, not texts
    :ivar media_type: the content type of a live answer of this form
    """

    before: bytes
    after: bytes
    numbered: bool = False
    epoch: str = ""
    values: bool = False
    media_type: str = attrs.field(default=EVENTS, kw_only=True)

    def id_line(self, seq: int) -> bytes:
        """Return the line with the id of an event, which the peer sends back as its Last-Event-ID."""
        return b"id: %b:%d\n" % (self.epoch.encode(), seq) if self.epoch else b"id: %d\n" % seq

    def head(self, seq: int) -> bytes:
        """Return the text before the JSON object of record *seq*, with its number if the form has it."""
        return self.id_line(seq) + self.before if self.numbered else self.before

    def encode(self, runs: tuple[Run, ...]) -> Encoded:
        """Encode as many of the first records of *runs* as fit into a piece, and at most TURN_RECORDS."""
        found: list[bytes] = []
        room, last = PIECE, runs[0].first_seq - 1
        for run in runs:
            records = ndjson.objects(run, self.values)
            for seq, size in enumerate(run.sizes, run.first_seq):
                if size > room or len(found) == TURN_RECORDS:
                    return Encoded(b"".join(found), last, len(found))
                data = b"%b%b%b" % (self.head(seq), next(records), self.after)
                room -= len(data)
                if room < 0:
                    return Encoded(b"".join(found), last, len(found))
                found.append(data)
                last = seq
        return Encoded(b"".join(found), last, len(found))

    def large(self, run: Run, checks: TextChecks) -> LargeRecord:
        """Return the first record of *run*, which is larger than a piece, to be sent in pieces."""
        check = checks.of(run)

        def cut(run: Run, position: int) -> tuple[bytes, int | None]:
            """Return the bytes of the next piece, and where the piece after it begins; None after the last."""
            payload = memoryview(run.payload)
            if not position:
                check.proceed(payload)
                if check.text is None:
                    return b"", 0
                return self.head(run.first_seq) + ndjson.head_of(run, check.text), 1
            data, end = ndjson.piece_of(payload, position - 1, bool(check.text))
            return (data, end + 1) if end < len(payload) else (data + ndjson.END + self.after, None)

        return LargeRecord(run.stream, run.first_seq, cut, run.slice(0, 1))


LINE = Form(b"", b"\n")
#: The form of events from many streams: they have no id, because the streams have no common numbers.
UNNUMBERED = Form(b"data: ", b"\n\n")


@cache
def event_form(epoch: str) -> Form:
    """Return the form of the events of one stream, always the same object for an epoch.

    A delivery is encoded only once for all answers that share a form.
    """
    return Form(b"data: ", b"\n\n", numbered=True, epoch=epoch)


@cache
def with_values(form: Form) -> Form:
    """Return *form* with JSON messages as values, always the same object for a form."""
    return attrs.evolve(form, values=True)


@implementer(ISubscription)
@attrs.define(eq=False)
class ReadAnswer:
    """The answer to a GET: records *next* to *last*, but at most *left*, a piece in each turn of the reactor.

    :ivar then: further streams, with the first and the last record of each
    """

    connection: HttpProtocol
    stream: str
    next: int
    last: int
    left: int
    then: list[tuple[str, int, int]] = attrs.field(factory=list)
    form: Form = LINE
    _paused: bool = attrs.field(default=True, init=False)
    _queued: bool = attrs.field(default=False, init=False)

    @property
    def position(self) -> int:
        return self.next - 1

    def resumeProducing(self) -> None:
        self._paused = False
        if not self._queued:
            self._queued = True
            self.connection.broker.turns.ready(self, self.connection.network)

    def pauseProducing(self) -> None:
        self._paused = True

    def stopProducing(self) -> None:
        self.pauseProducing()

    def stop(self) -> None:
        """Stop sending records."""
        self.connection.detach(self)

    def take_turn(self) -> int:
        """Send the next piece of the answer, or end the answer after the last one."""
        self._queued = False
        if self._paused:
            return 0
        size = 0
        if not self._over:
            try:
                wanted = self._wanted(self.connection.broker.read(self.stream, self.next, PIECE))
                if wanted:
                    size = self._send(wanted)
                else:
                    self.next = self.last + 1
            except FyrehoseError as error:
                # The status 200 was sent already; aborting shows the peer that the answer is incomplete.
                self.connection.abort_answer(error)
                return 0
        if self._paused:  # also while a large record is sent
            return size
        if self._over and self.left and self.then:
            self.stream, self.next, self.last = self.then.pop(0)
        if self._over:
            self.stop()
            self.connection.complete_answer()
        else:
            self.resumeProducing()
        return size

    def failed(self, failure: Failure) -> None:
        """End the connection, because the rest of the answer cannot be sent."""
        self.connection.failed(failure)

    @property
    def _over(self) -> bool:
        return not self.left or self.next > self.last

    def _wanted(self, runs: tuple[Run, ...]) -> tuple[Run, ...]:
        """Return the records of *runs* that belong to the answer."""
        wanted, left = [], self.left
        for run in runs:
            part = run.slice(0, max(0, min(left, self.last + 1 - run.first_seq)))
            if not len(part):
                break
            wanted.append(part)
            left -= len(part)
        return tuple(wanted)

    def _send(self, runs: tuple[Run, ...]) -> int:
        """Send the first of *runs*, as many as fit into a piece, and return their cost in the turn, in bytes."""
        encoded = self.form.encode(runs)
        if not encoded.records:
            self.next, self.left = runs[0].first_seq + 1, self.left - 1
            self.connection.send_record(self.form.large(runs[0], self.connection.factory.checks))
            return len(runs[0].payload) // 16
        self.next, self.left = encoded.last + 1, self.left - encoded.records
        self.connection.session.send(encoded.data)
        self.connection.flush()
        return len(encoded.data) + RECORD_COST * encoded.records


@implementer(IConnectedSink, ISubscription)
class LiveAnswer:
    """The answer to a live GET: one server-sent event per record, with the record's number as the id.

    It relays pausing and resuming from the transport to the subscription.  If a delivery does not fit into a piece, the
    answer sends its first records, and the subscription delivers the others in its next turn.
    """

    def __init__(self, connection: HttpProtocol, form: Form | None = None) -> None:
        self.connection = connection
        #: the form of the records
        self.form = event_form(connection.broker.epoch) if form is None else form
        self._subscription: ISubscription | None = None
        self._paused = True
        self._ended = False

    def start(self, subscription: ISubscription | None) -> None:
        """Start sending the records of *subscription*; None: a subclass has subscriptions of its own."""
        self._subscription = subscription
        self.connection.timers.start(KEEPALIVE, self._send_keepalive)
        self.connection.attach(self)

    def begin(self, after: int, known: bool = True) -> None:
        """Send the first event, which says where the answer begins.

        An ``EventSource`` whose connection is lost before the first record would otherwise not know where to continue.

        :param after: the number of the record behind which the answer begins
        :param known: whether that number is where the client may continue; if not, an event ``restarted`` follows
        """
        self._send_event("begin", {"from": after + 1, "epoch": self.form.epoch}, after if known else None)

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
        if self._subscription is not None:
            self._subscription.pauseProducing()

    def resumeProducing(self) -> None:
        self._paused = False
        if self._subscription is not None:
            self._subscription.resumeProducing()

    def stopProducing(self) -> None:
        self.pauseProducing()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.stopProducing()

    # Called by the broker.

    def deliver(self, delivery: Delivery) -> int:
        """Send the first records as events, as many as fit into a piece."""
        encoded = delivery.encoded(self.form.encode)
        if not encoded.records:
            self.connection.send_record(self.form.large(delivery.runs[0], self.connection.factory.checks))
            return delivery.first_seq
        self.connection.session.send(encoded.data)
        self.connection.flush()
        return encoded.last

    def skipped(self, first: int, last: int) -> None:
        self.connection.broker.counters.add(PROTOCOL, "skipped", last - first + 1)
        self._send_event("gap", {"first": first, "last": last}, last)

    def restarted(self, end: int, after: int) -> None:
        """Send an event that the numbers have begun again, so that the records behind *after* follow.

        :param end: the last number of the stream
        """
        self.connection.broker.counters.add(PROTOCOL, "restarted")
        self._send_event("restarted", {"end": end, "epoch": self.form.epoch}, after)

    def ended(self, reason: Exception) -> None:
        self._send_ended({"error": str(reason)})
        self.connection.finish()

    def displaced(self, reason: Exception) -> None:
        """End the answer, and have the client forget its number: the position of its named subscription counts.

        An ``EventSource`` connects again by itself, and would acknowledge its number, and so undo a rewind.
        """
        self.connection.session.send(b"id\n")
        self.ended(reason)

    # Internals.

    def _send_ended(self, reason: dict[str, object]) -> None:
        if not self._ended:
            self._ended = True
            self._send_event("ended", reason)

    def _send_event(self, kind: str, value: object, seq: int | None = None) -> None:
        """Send an event that is no record.

        :param seq: the number behind which the client continues from now on; None: that does not change
        """
        number = b"" if seq is None else self.form.id_line(seq)
        self.connection.session.send(b"event: %b\n%bdata: %b\n\n" % (kind.encode(), number, dumped(value)))

    def _send_keepalive(self) -> None:
        self.connection.timers.start(KEEPALIVE, self._send_keepalive)
        if not self._paused:
            self.connection.session.send(b": still here\n\n")
            self.connection.flush()
