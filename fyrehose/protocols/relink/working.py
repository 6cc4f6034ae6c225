"""The endpoint of a worker of a shared subscription (``subscribe:STREAM?name=NAME&share``).

    room -> lease -> messages on channel 0 -> consumed -> settle
                     messages of the worker -----------> settle, return, reject, extend -> durable -> consumed

The link ends with its connection.  If the peer ended the connection, its records are returned as not tried.  Otherwise
the peer may not know yet that the connection is lost, and may still work on its records: other workers get them when
their leases end.

The records that the worker has are kept in :class:`HeldRecords`:

    server -> worker   channel 0   a head (HEAD), then the parts of the record
                       channel 1   JSON: what was refused, and new tokens
    worker -> server   consumed    settles the records of these messages that the worker has still
                       messages    JSON: settle, return, reject or extend records, and publish results

    sent(message, record) -> taken(work) or consumed(first, last) -> released() at the end: what the worker still has

If a message of the worker has named a record, ``consumed`` does not settle that record: it only makes room for another.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import Following, FyrehoseError, PublishError, RemoteProtocolError
from fyrehose.interfaces import ISubscription
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.channels import Sending
from fyrehose.protocols.relink.endpoints import RETRY
from fyrehose.protocols.relink.frames import PROTOCOL
from fyrehose.protocols.relink.messages import CONTENT_TYPE, views
from fyrehose.protocols.relink.names import EndpointName
from fyrehose.protocols.relink.registry import LinkEntry
from fyrehose.protocols.relink.server import Endpoint, RelinkProtocol
from fyrehose.subscriptions.settling import Settling, answer_to, settling
from fyrehose.subscriptions.table import LeasedRun
from fyrehose.subscriptions.work import Item, WorkOutcome

log = Logger()


#: The head of a message with a record: its number, epoch and number of the token, its failures, and how long the lease
#: lasts in seconds.  The name of its stream follows, if the subscription has a pattern.
HEAD = struct.Struct("<QQIII")
#: The channels of the server: one for records, one for notices to the worker (refused records, new tokens).
RECORDS, NOTICES = 0, 1
#: The kinds of actions that end the lease of a record.
ENDING = ("done", "failed", "untried", "reject")


#: How long a request for records waits, in seconds; then the request is repeated.
WAIT = 30.0
#: How many records one request leases at most.
MOST_LEASED = 1_000


@attrs.frozen(slots=True)
class HeldRecord:
    """One record that was sent to the worker.

    :ivar stream: the stream of the record; empty: the only stream of the subscription
    """

    stream: str
    seq: int
    token: tuple[int, int]
    failures: int = 0

    def head(self, lease: int) -> bytes:
        """Return the first part of the message that carries the record: its number, token and lease."""
        return HEAD.pack(self.seq, *self.token, self.failures, lease) + self.stream.encode()

    def item(self, kind: str, delay: float | None = None) -> Item:
        """Return the action *kind* on the record, such as ``done``, with the token of the record's lease."""
        return Item(kind, self.seq, self.seq, self.token, self.stream, delay)


@attrs.define(eq=False)
class HeldRecords:
    """The records that the worker of one link has leased.

    :ivar most: how many records the worker may have at a time
    """

    most: int
    _sent: dict[int, HeldRecord] = attrs.field(factory=dict, init=False)  #: by message on channel 0
    _held: dict[tuple[str, int], HeldRecord] = attrs.field(factory=dict, init=False)

    @property
    def room(self) -> int:
        """Return how many more records the worker may have."""
        return max(0, self.most - len(self._held))

    def sent(self, message: int, record: HeldRecord) -> None:
        """Record that *message* on channel 0 carries *record*."""
        self._sent[message] = self._held[record.stream, record.seq] = record

    def taken(self, work: Settling) -> None:
        """Forget the records that *work* settles or returns, so that ``consumed`` does not settle them again."""
        for item in work.items:
            if item.kind in ENDING:
                for seq in range(item.first, item.last + 1):
                    held = self._held.get((item.stream, seq))
                    if held is not None and held.token == item.token:
                        del self._held[item.stream, seq]

    def consumed(self, first: int, last: int) -> list[Item]:
        """Return the actions that settle the records of consumed messages; consecutive records share an action."""
        found: list[Item] = []
        for message in range(first, last + 1):
            record = self._sent.pop(message, None)
            if record is not None and self._held.get((record.stream, record.seq)) is record:
                del self._held[record.stream, record.seq]
                before = found[-1] if found else None
                if (
                    before is not None
                    and (before.stream, before.token) == (record.stream, record.token)
                    and before.last + 1 == record.seq
                ):
                    found[-1] = attrs.evolve(before, last=record.seq)
                else:
                    found.append(record.item("done"))
        return found

    def released(self) -> list[Item]:
        """Return the actions at the end of the link: they give the worker's remaining records back as not tried."""
        held = [record.item("untried", 0.0) for record in self._held.values()]
        self._held.clear()
        self._sent.clear()
        return held


def read_request(parts: Sequence[Any]) -> Settling:
    """Parse a message of the worker: actions on records, and results to publish.

    :raises RemoteProtocolError: the message is not a valid request
    """
    try:
        fields = json.loads(b"".join(parts))
        if not isinstance(fields, dict):
            raise ValueError("expected a JSON object")
        return settling(fields)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError("request-invalid", str(error)) from error


def notices_of(request: tuple[int, int] | None, answer: Mapping[str, object]) -> Iterator[bytes]:
    """Yield a notice for the worker if *answer* has an error, a refused record or a new token; otherwise nothing.

    :param request: channel and number of the request's message; None: the answer is about consumed records
    """
    told = {name: answer[name] for name in ("error", "retry", "refused", "extended") if answer.get(name)}
    if told:
        place = {} if request is None else {"channel": request[0], "message": request[1]}
        yield json.dumps({**place, **told}, ensure_ascii=False).encode()


@attrs.define(eq=False)
class WorkerRequest:
    """A request of the worker; its message is consumed when the request, and every request before it, is done."""

    channel: int
    message: int
    done: bool = False


@implementer(ISubscription)
class WorkerEndpoint(Endpoint):
    """The endpoint that leases records for the peer, and settles or returns them as the peer says.

    The connection treats this object as its subscription: records are leased only while the transport has room.
    """

    position = 0  #: a worker has no position

    def __init__(self, protocol: RelinkProtocol, entry: LinkEntry, place: EndpointName) -> None:
        super().__init__(protocol, entry, place)
        self._shared = protocol.shared
        self._consumer = place.consumer or entry.label
        window = self.link.limits.window
        self._records = HeldRecords(window if place.most is None else min(place.most, window))
        self._transport_ready = False
        self._waiting: Deferred[list[LeasedRun]] | None = None
        self._requests: deque[WorkerRequest] = deque()
        #: actions on records that the peer has consumed, which could not be written yet
        self._unwritten: list[Item] = []
        self._over = False

    @property
    def _sharing(self) -> Any:
        return self.protocol.broker.named.sharing

    # Events of the session.

    def begin(self) -> None:
        """Lease the first records."""
        self.link.channel(RECORDS)
        self.link.ping()
        self.protocol.attach(self)

    def handle(self, event: events.Event) -> None:
        match event:
            case events.Consumed():
                if event.channel == RECORDS:
                    self._settle(self._records.consumed(event.first, event.last))
                    self._lease()
            case events.Received():
                for message, parts in enumerate(event.messages, event.first):
                    if not self._receive(event.channel, message, parts):
                        break
            case events.Finished():
                self.protocol.handle_events(self.link.forget(event.channel))
            case events.PeerShutdown() | events.ChannelClosed():
                self._cancel()
                self._shut_down()

    def _shut_down(self) -> None:
        """End the link step by step: no new records, then no more notices, then shutdown."""
        link = self.link
        if self._over or not link.shutdown_received:
            return
        for channel in (RECORDS, NOTICES):
            found = link.sending.get(channel)
            if found is not None:
                if not found.next:
                    del link.sending[channel]  # Nothing was sent on it, so the peer never saw it open.
                else:
                    if found.mode is Sending.OPEN:
                        link.close(channel)
                    return
            if self.protocol.unsettled or self._unwritten:
                return  # A request that is not done yet may need a notice.
        self.protocol.handle_events(link.shutdown())

    def end(self) -> None:
        """Give the worker's records back for other workers, if the worker knows that its link is lost."""
        if self._over:
            return
        self._over = True
        self.protocol.timers.stop(self._lease)
        self.protocol.timers.stop(self._settle_again)
        self.protocol.detach(self)
        unwritten, self._unwritten = self._unwritten, []
        held = self._records.released() if self.protocol.peer_left else []
        if not self._shared.gone:
            for done in (
                self._sharing.act(self._shared, unwritten, self._consumer),
                self._sharing.give_back(self._shared, held, self._consumer),
            ):
                done.addErrback(self._not_returned)

    def _not_returned(self, failure: Failure) -> None:
        """Log that the worker's records are delivered again when their leases end, because no return was written."""
        failure.trap(FyrehoseError)
        log.info(
            "relink: the records of worker {worker!r} are delivered again when its leases end: {why}",
            worker=self._consumer,
            why=failure.getErrorMessage(),
        )

    # Called by the connection, as for any subscription.

    def pauseProducing(self) -> None:
        self._transport_ready = False
        self._cancel()

    def resumeProducing(self) -> None:
        self._transport_ready = True
        self._lease()

    def stopProducing(self) -> None:
        self._transport_ready = False
        self._cancel()

    # Leasing.

    def _cancel(self) -> None:
        """Cancel the request for leases, if one waits for records."""
        if self._waiting is not None:
            self._waiting.cancel()

    def _lease(self) -> None:
        """Request leases for as many records as the peer has room for."""
        channel = self.link.sending.get(RECORDS)
        idle = self._waiting is None and self._transport_ready and not self._over
        if not idle or channel is None or self.link.shutdown_received or self._ended():
            return
        room = min(channel.room, self._records.room, MOST_LEASED)
        if room:
            self._waiting = maybeDeferred(self._sharing.lease, self._shared, self._consumer, None, room, WAIT)
            self._waiting.addCallbacks(self._leased, self._not_leased)

    def _leased(self, found: list[LeasedRun]) -> None:
        self._waiting = None
        pattern, lease = bool(self._shared.options.pattern), self._shared.options.lease
        for part in found:
            stream = part.run.stream if pattern else ""
            for seq, payload in enumerate(part.run.payloads(), part.lease.first):
                record = HeldRecord(stream, seq, part.lease.token, part.lease.failures)
                parts = self._parts(payload, part.run.content_type)
                (message,) = self.link.send((RECORDS,), (record.head(lease), *parts))
                self._records.sent(message, record)
        if not self._over:
            self.protocol.flush()
            self.protocol.timers.start(0, self._lease)

    def _parts(self, payload: memoryview, content_type: str | None) -> tuple[bytes, ...]:
        if content_type == CONTENT_TYPE:
            return tuple(map(bytes, views(payload, self.link.limits.parts - 1)))
        return (bytes(payload),)

    def _not_leased(self, failure: Failure) -> None:
        self._waiting = None
        failure.trap(FyrehoseError)
        if self._over:
            return
        if failure.check(PublishError) and not failure.check(Following):
            self.protocol.timers.start(RETRY, self._lease)
        elif not self._ended():
            self.protocol.refuse_subscription(failure)

    def _ended(self) -> bool:
        """End the link if its subscription was deleted; return whether that is so."""
        if self._shared.gone and not self.entry.ending:
            self.protocol.reject(RemoteProtocolError("subscription-displaced", "the subscription was deleted"))
        return bool(self._shared.gone)

    # Settling.

    def _receive(self, channel: int, message: int, parts: tuple[bytes, ...]) -> bool:
        """Handle a message of the worker; return False if the link ends."""
        if self._ended():
            return False
        try:
            work = read_request(parts)
        except RemoteProtocolError as error:
            self.protocol.reject(error)
            return False
        self.link.stage(channel, message)
        self._records.taken(work)
        request = WorkerRequest(channel, message)
        self._requests.append(request)
        runs = work.runs(PROTOCOL, self.protocol.producer)
        self.protocol.unsettled += 1
        done = maybeDeferred(self._sharing.act, self._shared, work.items, work.consumer or self._consumer, runs)
        done.addCallbacks(lambda outcome: self._answer(work, outcome), self._refuse)
        done.addCallback(self._done, request)
        done.addErrback(self.protocol.failed)
        return True

    def _settle(self, items: list[Item]) -> None:
        """Apply the actions *items* on records that the worker has consumed."""
        if not items or self._ended():
            return
        work = Settling(items, [])
        self.protocol.unsettled += 1
        done = maybeDeferred(self._sharing.act, self._shared, items, self._consumer)
        done.addCallbacks(lambda outcome: self._answer(work, outcome), self._keep, errbackArgs=(items,))
        done.addCallback(self._done, None)
        done.addErrback(self.protocol.failed)

    def _keep(self, failure: Failure, items: list[Item]) -> dict[str, object]:
        """Keep *items* to settle them later, because settling could not be written now."""
        failure.trap(PublishError)
        self._unwritten += items
        if failure.check(Following) and not self._over:
            self.protocol.refuse_subscription(failure)
        elif not self._over:
            self.protocol.timers.start(RETRY, self._settle_again)
        return {}

    def _settle_again(self) -> None:
        items, self._unwritten = self._unwritten, []
        self._settle(items)

    def _answer(self, work: Settling, outcome: WorkOutcome) -> dict[str, object]:
        outcome.extended = [(item, token) for item, token in outcome.extended if item.token != token]
        return answer_to(work, bool(self._shared.options.pattern), outcome)

    def _refuse(self, failure: Failure) -> dict[str, object]:
        failure.trap(FyrehoseError)
        error = failure.value
        return {"error": str(error), "retry": isinstance(error, PublishError) and error.retriable}

    def _done(self, answer: dict[str, object], request: WorkerRequest | None) -> None:
        """Send the notice that *answer* needs, and consume the messages of requests that are done."""
        self.protocol.unsettled -= 1
        if not self._over:
            for notice in notices_of(None if request is None else (request.channel, request.message), answer):
                self._notify(notice)
        if request is not None:
            request.done = True
        while self._requests and self._requests[0].done:
            first = self._requests.popleft()
            if not self._over:
                self.link.settle(first.channel, first.message)
        if not self._over:
            self._shut_down()
            self._lease()
            self.protocol.flush_soon()
        self.protocol.settled()

    def _notify(self, notice: bytes) -> None:
        if self.link.channel(NOTICES).room:
            self.link.send((NOTICES,), (notice,))
        else:
            detail = f"{self.link.limits.window} notices are not consumed"
            self.protocol.reject(RemoteProtocolError("notices-unconsumed", detail))
