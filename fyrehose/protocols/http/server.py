"""The Twisted protocol of HTTP: connects an :class:`HttpSession` with a transport and the broker.

PublishPart -> broker.publish -> {"stream": ..., "first": ..., "last": ...}, when the whole body is durable
Read    -> broker.read, up to the last record at the time of the request -> one JSON object per line
List    -> broker.streams -> one JSON object
Live    -> broker.subscribe -> server-sent events, until the peer disconnects
Retire  -> broker.retire -> 204, when the retirement is durable
Manage  -> broker.named -> a JSON object, when the change is durable
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from math import inf
from typing import Any, ClassVar, TypeVar

import attrs
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import ISSLTransport
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose import errors
from fyrehose.broker.stream_statistics import Ends
from fyrehose.errors import FyrehoseError
from fyrehose.identity import Action
from fyrehose.interfaces import IBroker
from fyrehose.jsontext import dumped
from fyrehose.ndjson import TextChecks
from fyrehose.net.connections import SessionFactory
from fyrehose.net.lifecycle import Phase
from fyrehose.net.peers import PROOFS
from fyrehose.net.tcp import on
from fyrehose.net.turns import SteppedWork
from fyrehose.options import duration, exact_size, fixed, name, option, size
from fyrehose.protocols.http.answers import LINE, UNNUMBERED, Form, LiveAnswer, ReadAnswer, event_form, with_values
from fyrehose.protocols.http.bodies import by_content_type
from fyrehose.protocols.http.consuming import Arrival, Consumption
from fyrehose.protocols.http.leasing import carry_out
from fyrehose.protocols.http.listing import Listing, described, matching
from fyrehose.protocols.http.managing import LARGEST_SETTLING, Manage
from fyrehose.protocols.http.patterns import PatternAnswer
from fyrehose.protocols.http.runs import run_form
from fyrehose.protocols.http.session import (
    LONGEST_WAIT,
    NDJSON,
    PROTOCOL,
    REFUSALS,
    BodyRefused,
    HttpSession,
    List,
    Live,
    PublishEnd,
    PublishPart,
    Read,
    RequestLimits,
    Retire,
)
from fyrehose.records import MAX_PAYLOAD, Publish, Run
from fyrehose.web.hosts import hosts_of, url_of
from fyrehose.web.origins import READING, Origins, origins
from fyrehose.web.session import EVENTS, RUNS, RequestHead, RequestRefused
from fyrehose.web.shell import WebProtocol, WebSettings, token_of, with_token

T = TypeVar("T")

#: The HTTP status for each error of the broker; 503 for all others.
_STATUS: dict[type[FyrehoseError], int] = {
    errors.InvalidName: 400,
    errors.InvalidPattern: 400,
    errors.PayloadTooLarge: 413,
    errors.TooManyStreams: 507,
    errors.NewStreamForbidden: 403,
    errors.StreamFull: 507,
    errors.KeyReused: 422,
    errors.NoSuchStream: 404,
    errors.StreamInUse: 409,
    errors.SubscriptionGone: 410,
    errors.NoSuchSubscription: 404,
    errors.NoRoomForSubscription: 503,
    errors.TooManyNamedSubscriptions: 507,
    errors.SubscriptionInUse: 409,
    errors.SubscriptionConflict: 409,
    errors.InvalidPosition: 409,
    errors.SubscriptionError: 400,
}


def _header(text: str) -> str:
    """Convert the name of a header, or nothing, to lower case."""
    if text and not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", text):
        raise ValueError("the name of a header, such as X-GitHub-Delivery")
    return text.lower()


@attrs.frozen(kw_only=True)
class HttpSettings(WebSettings):
    """The options of HTTP listeners."""

    max_payload: int = option(MAX_PAYLOAD, size, "largest message accepted")
    origins: tuple[str, ...] = option(
        (), origins, "origins whose pages may use this listener, such as https://dash.example; *: all others may read"
    )
    key_header: str = option(
        "", _header, "header that is the key of a message, besides Idempotency-Key, such as X-GitHub-Delivery"
    )
    otlp_stream: str = option("otlp", name, "stream of OTLP logs, which exporters send to /v1/logs")
    longest_wait: float = option(
        50.0,
        duration,
        "longest time that a request waits for records; most proxies end it if it has no answer for 60 s",
    )
    #: the largest body of lines with a Content-Length; its messages are stored as they arrive, so a large body takes no
    #: memory
    max_body: int = fixed(16 << 30)

    def __attrs_post_init__(self) -> None:
        if not 0 < self.max_payload <= MAX_PAYLOAD:
            most, found = exact_size(MAX_PAYLOAD), exact_size(self.max_payload)
            raise ValueError(f"max-payload must be from 1 to {most}, not {found}")
        if not 1 <= self.longest_wait <= LONGEST_WAIT:
            raise ValueError(f"longest-wait must be from 1 to {LONGEST_WAIT} s, not {self.longest_wait:g}")


#: How many ranges of numbers an answer to a POST contains; if there are more, the answer contains only the first and
#: last number.
MOST_RANGES = 1_000


@attrs.define(eq=False)
class Upload:
    """The progress of a POST: which of its messages are durable, and whether it was refused.

    :ivar complete: the end of the body; None: it was not received yet
    :ivar refusal: why the rest of the body is refused; None if it is accepted so far
    :ivar pending: how many publishes are not durable yet
    :ivar count: how many messages are durable
    :ivar ranges: first and last number of each contiguous range of durable messages
    """

    stream: str
    complete: PublishEnd | None = None
    refusal: RequestRefused | None = None
    pending: int = 0
    count: int = 0
    ranges: list[tuple[int, int]] = attrs.field(factory=list)

    def add_durable(self, first: int, count: int) -> None:
        """Record that one publish of *count* messages became durable, starting at number *first*."""
        self.pending -= 1
        self.count += count
        begin = first
        if self.ranges and (self.ranges[-1][1] + 1 == first or len(self.ranges) > MOST_RANGES):
            begin, _ = self.ranges.pop()
        self.ranges.append((begin, first + count - 1))

    def answer(self) -> dict[str, Any]:
        """Return the JSON object that answers the POST."""
        answer: dict[str, Any] = {"stream": self.stream, "count": self.count}
        if self.ranges:
            answer |= {"first": self.ranges[0][0], "last": self.ranges[-1][1]}
        if 1 < len(self.ranges) <= MOST_RANGES:  # Other publishers used the numbers in between.
            answer["ranges"] = self.ranges
        return answer


def _form_of(event: Read | Live, form: Form) -> Form:
    """Return *form* as the request wants it: binary, or with JSON messages as values or as texts."""
    if isinstance(event, Live) and RUNS in event.request.headers.get("accept", ""):
        return run_form(form.epoch)
    return with_values(form) if event.request.query.get("payload") == "json" else form


class HttpProtocol(WebProtocol):
    """The server's side of one HTTP connection."""

    protocol_name: ClassVar[str] = PROTOCOL
    log: ClassVar[Logger] = Logger()

    session: HttpSession
    settings: HttpSettings
    named: Any  #: the subscriptions, as the peer may use them

    def __init__(self, factory: HttpFactory) -> None:
        limits, now = factory.limits, factory.now
        session = HttpSession(factory.hosts, factory.origins, now=now, limits=limits, judge=self.judge)
        super().__init__(factory, session)
        self._upload: Upload | None = None
        self._streamed: ReadAnswer | LiveAnswer | None = None
        self._consumption: Consumption | Arrival | None = None
        self._leasing: Deferred[Any] | None = None  #: a request that waits for records to lease
        self._input_ended = False
        self.label = f"connection {next(factory.labels)}"

    def judge(self, request: RequestHead, largest: int, target: str | Manage) -> int | RequestRefused:
        """Judge a large body by the rights of the peer, before any of it is kept; see :attr:`HttpSession.judge`."""
        try:
            self._authenticate(request)
            if isinstance(target, str):
                self.broker.check(Action.PUBLISH, target)
            elif target.action == "settle":
                self.named.shared(target.name)
                return largest if self.broker.has(Action.PUBLISH) else min(largest, LARGEST_SETTLING)
        except FyrehoseError as error:
            return self._refusal_of(error)
        return largest

    # Handlers of the session's events.

    def on_publish(self, event: PublishPart) -> None:
        """Publish messages of a body; :meth:`settled` answers the request when all of them are durable."""
        if not self.session.answering or (self._upload is not None and self._upload.refusal is not None):
            return  # An earlier part of the body was refused.
        if self._upload is None:
            self._upload = Upload(event.stream)
            self._authenticate(event.request)
        upload = self._upload
        upload.pending += 1
        runs, wrong = [], 0
        for content_type, messages in by_content_type(event.content_type, event.payloads):
            runs.append(
                Run(
                    stream=event.stream,
                    source=PROTOCOL,
                    producer=self.producer,
                    content_type=content_type,
                    lengths=messages.lengths,
                    payload=messages.payload,
                )
            )
            if content_type != event.content_type:
                wrong += len(messages)
        if wrong:
            self.broker.counters.add(PROTOCOL, "not-json", wrong)

        self.publish(runs, key=event.key)

    def durable(self, items: Sequence[Publish]) -> None:
        """Add the numbers of durable publishes to the answer of the request, which is sent when all are durable."""
        assert self._upload is not None, "an upload stays until all of its publishes are settled"
        for item in items:
            messages, count = item.runs[: item.counted] if item.counted else item.runs, 0
            for run in messages:
                count += len(run.lengths) // 4
            # Runs of one stream have consecutive numbers.
            self._upload.add_durable(messages[0].first_seq, count)
        self._answer_upload()

    def on_publish_end(self, event: PublishEnd) -> None:
        """Answer a complete body, as soon as all of its messages are durable."""
        if event.rejected:
            self.broker.counters.add(PROTOCOL, "rejected-log-records", event.rejected)
        if self._upload is None and self.session.answering:  # The body had no message.
            self.session.respond(200, event.content or b'{"count": 0}\n', event.content_type)
        elif self._upload is not None:
            self._upload.complete = event
            if not self._upload.pending:
                self._answer_upload()

    def on_body_refused(self, event: BodyRefused) -> None:
        """Refuse a POST because of a part of its body; the answer counts the messages before that part."""
        if self._upload is not None and self._upload.refusal is None:
            self.count_refusal(event.refusal)
            self.refuse_request(event.refusal)
            self._answer_upload()

    def settled(self) -> None:
        self._answer_upload()
        super().settled()

    def _answer_upload(self) -> None:
        """Answer a POST, if it is complete or refused, and all of its publishes are settled."""
        upload = self._upload
        if upload is None or upload.pending or not self.session.answering:
            return
        if upload.refusal is not None:
            self._answer_refusal(upload.refusal)
        elif upload.complete is not None:
            self._upload, end = None, upload.complete
            content = json.dumps(upload.answer()).encode() + b"\n" if end.content is None else end.content
            self.session.respond(200, content, end.content_type)
        else:
            return
        self.proceed()

    def on_read(self, event: Read) -> None:
        """Start the answer to a GET."""
        self._authenticate(event.request)
        if event.since is not None:
            event = attrs.evolve(event, first=self.broker.first_since(event.stream, event.since))
        if event.subscription is not None and event.request.method != "HEAD":
            self._consume(event)
        elif event.pattern is not None:  # a HEAD
            self._send_records(event, [], {})
        elif event.at_least:
            self._consumption = Arrival(self, event)
            self._consumption.start()
        else:
            self._read(event)

    def _read(self, event: Read) -> None:
        if not self.broker.exists(event.stream):
            self.count_refusal(*self.session.refuse(404, "no-such-stream", f"there is no stream {event.stream!r}"))
        else:
            first, last = self.broker.bounds(event.stream, event.first - 1)
            found = {} if event.since is None else {"Fyrehose-From": str(event.first)}
            self._send_records(event, [(event.stream, max(event.first, first), last)], found)

    def _origin(self) -> dict[str, str]:
        """Return the headers that say of which epoch the numbers are, and, in a cluster, how old they may be."""
        age, epoch = self.broker.standing.age, self.broker.epoch
        found = {"Fyrehose-Epoch": epoch} if epoch else {}
        if age is not None:
            found["Fyrehose-Age"] = "unknown" if age == inf else f"{max(0.0, age):.3f}"
        return found

    def _send_records(self, event: Read, parts: list[tuple[str, int, int]], headers: Mapping[str, str]) -> None:
        """Start an answer with the records of some streams.

        :param parts: each stream, and the numbers of its first and its last record to send
        """
        if event.pattern is None:
            oldest, last = self.broker.bounds(event.stream)
            headers = {"Fyrehose-Oldest": str(oldest), "Fyrehose-Last": str(last), **headers}
        self.session.start(200, NDJSON, {**self._origin(), **headers})
        parts = [(stream, first, last) for stream, first, last in parts if first <= last]
        if not parts or not event.limit or event.request.method == "HEAD":
            self.session.end()
            self._end_consumption()
        else:
            self._streamed = ReadAnswer(self, *parts[0], event.limit, parts[1:], _form_of(event, LINE))
            self.attach(self._streamed)

    def on_list(self, event: List) -> None:
        """List the streams that the peer may read, in the order of their creation."""
        self._authenticate(event.request)

        self.call(SteppedWork(self.broker.turns, self._list(event), self.network).begin(), self._listed)

    def _list(self, event: List) -> Listing[dict[str, object]]:
        names = yield from matching(event.pattern, self.broker.streams())
        page = names[event.page * event.limit : (event.page + 1) * event.limit]
        streams = yield from described(self.broker, self.factory.ends, page, self.factory.now)
        return {"matching": len(names), "page": event.page, "epoch": self.broker.epoch, "streams": streams}

    def on_live(self, event: Live) -> None:
        """Subscribe, and start the answer to a live GET."""
        self._authenticate(event.request, event.request.query.get("token"))
        begin: dict[str, str] = {}
        if event.since is not None:
            first = self.broker.first_since(event.stream, event.since)
            event, begin = attrs.evolve(event, after=first - 1), {"Fyrehose-From": str(first)}
        if event.subscription is not None and event.request.method != "HEAD":
            self._consume(event)
        else:
            self._send_events(event, event.after, begin)

    def _send_events(
        self,
        event: Live,
        after: int | None,
        headers: Mapping[str, str],
        place: Callable[[str], int | None] | None = None,
    ) -> None:
        """Start an answer with the events of a stream behind number *after*, or of all streams that match.

        :param place: see :meth:`PatternAnswer.follow`
        """
        headers = {**self._origin(), **headers}
        if event.pattern is not None and event.request.method != "HEAD":
            answer = PatternAnswer(self, event.pattern, _form_of(event, UNNUMBERED))
            steps = SteppedWork(self.broker.turns, answer.follow(place, headers), self.network)
            self.call(steps.begin(), partial(self._following, answer))
            return
        if event.pattern is not None:
            self.session.start(200, EVENTS, headers)
            self.session.end()
        else:
            self._send_stream(event, after, headers)
        if self._input_ended:
            self.timers.start(0, self._end_follower)

    def _following(self, answer: PatternAnswer, begun: bool) -> None:
        if begun:
            self._streamed = answer
            if self._input_ended:
                self.timers.start(0, self._end_follower)
            self.proceed()

    def _send_stream(self, event: Live, after: int | None, headers: Mapping[str, str]) -> None:
        """Start an answer with the events of one stream behind number *after*.

        If the client names a number beyond the end or of another epoch, the answer says that the numbers have begun
        again, and begins at the start of the stream, or at the position of the named subscription.
        """
        answer = LiveAnswer(self, _form_of(event, event_form(self.broker.epoch)))
        end, named = self.broker.bounds(event.stream)[1], event.subscription is not None
        asked = event.after if event.last_event is None else event.last_event
        other = asked is not None and event.epoch not in ("", self.broker.epoch)
        subscription = self.broker.subscribe(event.stream, 0 if other and not named else after, answer)
        self.session.start(200, answer.form.media_type, {**headers, "Fyrehose-Last": str(end)})
        if event.request.method == "HEAD":
            subscription.stopProducing()
            self.session.end()
            return
        # A server that follows another one may lag behind, so that it subscribes beyond the end.
        restarted = asked is not None and (other or asked > max(end, subscription.position))
        if after is None or (restarted and not named):
            after = 0 if restarted else subscription.position
        answer.begin(after, known=not restarted)
        if restarted:
            answer.restarted(end, after)
        if subscription.position > after:
            answer.skipped(after + 1, subscription.position)
        self._streamed = answer
        answer.start(subscription)

    def on_retire(self, event: Retire) -> None:
        """Retire a stream, and answer when that is durable."""
        self._authenticate(event.request)
        self.call(self.broker.retire([event.stream]), self._managed)

    def on_manage(self, event: Manage) -> None:
        """Carry out a request about named subscriptions; the answer to a read says of which epoch its numbers are."""
        self._authenticate(event.request)
        called = maybeDeferred(carry_out, event, self.named, self)
        self._leasing = called if event.action == "lease" else None
        self.call(called, self._listed if event.request.method in READING else self._managed)

    def _managed(self, shown: dict[str, object] | bytes | None, headers: Mapping[str, str] | None = None) -> None:
        if self.writable and self.session.unanswered:
            if shown is None:
                self.session.respond_without_content()
            elif isinstance(shown, bytes):
                self.session.respond(200, shown, headers=headers)
            else:
                self.session.respond(409 if "error" in shown else 200, dumped(shown) + b"\n", headers=headers)
            self.proceed()

    def _listed(self, shown: dict[str, object] | bytes) -> None:
        self._managed(shown, self._origin())

    handlers = (
        WebProtocol.handlers
        | on(PublishPart, on_publish)
        | on(PublishEnd, on_publish_end)
        | on(BodyRefused, on_body_refused)
        | on(Read, on_read)
        | on(Live, on_live)
        | on(List, on_list)
        | on(Retire, on_retire)
        | on(Manage, on_manage)
    )

    # Called by the answers, and by a consumption.

    @property
    def answering(self) -> bool:
        """Return whether the present request can still be answered: the peer is connected, and no answer has begun."""
        return self.writable and self.session.unanswered

    def read(self, event: Read, parts: list[tuple[str, int, int]], headers: Mapping[str, str]) -> None:
        """Answer with the records of a named subscription, see :meth:`_send_records`."""
        self._send_records(event, parts, headers)
        self.proceed()

    def read_arrived(self, event: Read) -> None:
        """Answer a read that waited for a record, which is durable now."""
        self._consumption = None
        self._read(event)
        self.proceed()

    def refuse_late(self, event: Read) -> None:
        """Refuse a read whose record has not arrived in time."""
        self._consumption = None
        last = self.broker.bounds(event.stream)[1]
        detail = (
            f"stream {event.stream!r} ends at number {last} on this server, and {event.at_least} has not come within "
            f"{event.wait:g} s"
        )
        self.count_refusal(*self.session.refuse(503, "not-here-yet", detail))
        self.proceed()

    def follow(self, event: Live, after: int, headers: Mapping[str, str], place: Callable[[str], int | None]) -> None:
        """Answer with the events of a named subscription, see :meth:`_send_events`."""
        self._send_events(event, after, headers, place)
        self.proceed()

    def displace(self, reason: Exception) -> None:
        """End the answer of a consumer: another one took its subscription over, or the subscription was deleted."""
        self._consumption = None
        if isinstance(self._streamed, LiveAnswer):
            self._streamed.displaced(reason)
        elif self._streamed is not None:
            self.abort_answer(reason)
        else:
            self.refuse_call(Failure(reason))

    def complete_answer(self) -> None:
        """End the answer to a GET, and process the next request."""
        streamed, self._streamed = self._streamed, None
        if isinstance(self._consumption, Consumption) and isinstance(streamed, ReadAnswer):
            self._consumption.sent(streamed.stream, streamed.position)
        self._end_consumption()
        if self.phase is Phase.OPEN:
            self.session.end()
            self.proceed()

    def abort_answer(self, reason: Exception) -> None:
        """Abort the connection, so that the peer does not mistake an incomplete answer for a complete one."""
        self.log.warn(
            "{protocol}: aborted an answer to {peer}: {reason}",
            protocol=PROTOCOL,
            peer=self.peer,
            reason=str(reason),
        )
        self.flush()
        self.abort()

    # Called by the base class.

    def use_rights(self) -> None:
        super().use_rights()
        self.named = self.broker.named

    def finish(self) -> None:
        """Close the connection; a live answer is completed first."""
        if self.phase is Phase.OPEN and isinstance(self._streamed, LiveAnswer) and self.session.streaming:
            self._streamed.close()
            self.session.end()
        self._end_consumption()
        self._cancel_lease()
        super().finish()

    def refuse_request(self, refusal: RequestRefused) -> None:
        """Answer with *refusal*, as soon as it is known how many messages of the body are durable."""
        if self._upload is None:
            self._answer_refusal(refusal)
        elif self._upload.refusal is None:
            self._upload.refusal = refusal

    def hang_up(self) -> None:
        if self.session.unanswered:
            refusal = self._upload.refusal if self._upload is not None else None
            if refusal is None:
                refusal = RequestRefused(status=503, cause="closing", detail="the server is closing")
                self.count_refusal(refusal)
            self._answer_refusal(refusal)
        super().hang_up()

    def take_eof(self) -> None:
        """Handle the end of input; end a live answer, and a request that waits for records.

        The peer may have disconnected, which the server would otherwise notice only when it writes, perhaps much later.
        """
        self._input_ended = True
        super().take_eof()
        self._cancel_lease()
        if self._consumption is not None and self._consumption.waits:
            self._end_consumption()
            self.abort()
        else:
            self._end_follower()

    def _end_follower(self) -> None:
        """End a live answer if the peer has finished sending; if the peer does not read, abort it."""
        if not self._input_ended or not isinstance(self._streamed, LiveAnswer):
            return
        if self.outgoing.paused:
            self._end_consumption()
            self.abort()
        else:
            self.finish()

    def connectionLost(self, reason: Any = None) -> None:
        if self._streamed is not None:
            self._streamed.stop()
        self._cancel_lease()
        self._end_consumption()
        super().connectionLost(reason)

    def refused(self, error: FyrehoseError) -> None:
        """Record that a publish was refused; :meth:`settled` answers with the count of durable messages."""
        upload = self._upload
        assert upload is not None, "an upload stays until all of its publishes are settled"
        upload.pending -= 1
        if not self.writable or upload.refusal is not None:
            self.broker.counters.add(PROTOCOL, "refused-after-refusal")
            return
        upload.refusal = self._refusal_of(error)
        self.count_refusal(upload.refusal)

    # Internals.

    def _refusal_of(self, error: BaseException | None) -> RequestRefused:
        """Return the status, the cause and the text with which an error of the broker is answered."""
        status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 503)
        if isinstance(error, errors.Forbidden):
            status = self.forbidden_status(error)
        leader = error.leader if isinstance(error, errors.Following) else ""
        elsewhere = url_of(leader, ISSLTransport.providedBy(self.transport))
        return RequestRefused(status=status, cause=type(error).__name__, detail=str(error), elsewhere=elsewhere)

    def _cancel_lease(self) -> None:
        """Cancel a request that waits for records, because the peer has disconnected, or the connection closes."""
        leasing, self._leasing = self._leasing, None
        if leasing is not None:
            leasing.cancel()

    def _consume(self, event: Read | Live) -> None:
        self._consumption = Consumption(self, event)
        self._consumption.start()

    def _end_consumption(self) -> None:
        consumption, self._consumption = self._consumption, None
        if consumption is not None:
            consumption.end()

    def refuse_call(self, failure: Failure) -> None:
        failure.trap(FyrehoseError)
        self._end_consumption()
        refusal = self._refusal_of(failure.value)
        self.count_refusal(refusal)
        if self.session.answering and self.writable:
            headers = self.session.elsewhere(refusal.elsewhere)
            self.session.refuse(refusal.status, refusal.cause, refusal.detail, headers)
            self.proceed()

    def _answer_refusal(self, refusal: RequestRefused) -> None:
        """Answer a POST with *refusal* and the number of its messages that were published."""
        upload, self._upload = self._upload, None
        published = 0 if upload is None else upload.count
        headers = self.session.elsewhere(refusal.elsewhere)
        self.session.refuse(refusal.status, refusal.cause, refusal.detail, headers, published=published)

    def _authenticate(self, request: RequestHead, token: str | None = None) -> None:
        """Apply the access policy for *token*; if that is None, for the token in the header of *request*, if any."""
        if token is None and self.identity.token is None and "authorization" not in request.headers:
            return
        identity = with_token(self.identity, token_of(request) if token is None else token)
        if identity is not self.identity:
            self.identity = identity
            self.use_rights()


class HttpFactory(SessionFactory):
    """The factory of connections of HTTP clients: ``endpoint.listen(HttpFactory(broker))``.

    :param endpoint: the endpoint string at which the factory listens, which decides about the accepted host names;
        None: those of this machine, and the option ``hosts``
    """

    protocol = HttpProtocol
    defaults = HttpSettings()
    events = ("not-json", "refused-after-refusal", "rejected-log-records", "restarted", "skipped")
    refusals = REFUSALS
    proofs = PROOFS | {"token"}
    settings: HttpSettings

    def __init__(
        self, broker: IBroker, settings: HttpSettings | None = None, reactor: Any = None, endpoint: str | None = None
    ) -> None:
        super().__init__(broker, settings, reactor)
        self.ends, self.now, self.labels = Ends(broker), time.time, count(1)
        self.checks = TextChecks()
        self._endpoint = endpoint
        self.configure(self.settings)

    def configure(self, settings: HttpSettings) -> None:
        super().configure(settings)
        self.limits = RequestLimits(
            message=settings.max_payload,
            body=settings.max_body,
            wait=settings.longest_wait,
            key_header=settings.key_header,
            logs=settings.otlp_stream,
        )
        self.hosts = hosts_of(self._endpoint, settings.hosts)
        self.origins = Origins(settings.origins)
