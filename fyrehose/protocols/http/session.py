"""The server's side of one connection of the HTTP protocol, sans-I/O: turns requests into events, refuses invalid ones.

    POST /streams/NAME                 publish the body, or each line of it  -> PublishPart ..., PublishEnd
    POST /v1/logs                      publish OTLP logs                     -> PublishPart ..., PublishEnd
    GET  /streams/NAME?from=N&limit=N  read records as NDJSON                -> Read
    GET  /streams/NAME/live?from=N     follow as server-sent events          -> Live
    GET  /streams?match=PATTERN        list streams                          -> List
    GET  /streams/*/live?match=PATTERN follow all streams that match         -> Live
    GET  /streams/*?match=PATTERN&subscription=S   read all that match       -> Read
    DELETE /streams/NAME               retire the stream                     -> Retire
    GET  /subscriptions ...            named subscriptions: see managing.py  -> Manage
    GET  /                             a description of these paths

NAME is percent-encoded, including its slashes.  Everything else is refused with a status and ``{"error": ...}``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import attrs

from fyrehose.broker.signed import is_signed
from fyrehose.errors import InvalidPattern, RemoteProtocolError
from fyrehose.imports import OTLP
from fyrehose.inflate import CODINGS, SLICE, Inflation
from fyrehose.ndjson import MOST_PARSED
from fyrehose.options import moment
from fyrehose.patterns import Pattern
from fyrehose.protocols.http import otlp
from fyrehose.protocols.http.bodies import SMALL, LineBody, TooLarge, Whole, split_lengths, split_lines
from fyrehose.protocols.http.managing import LARGEST, Manage, Managing, manage
from fyrehose.records import LAST_SEQ, MAX_NAME, is_label
from fyrehose.web.origins import READING
from fyrehose.web.session import JSON, WEB_REFUSALS, RequestBody, RequestHead, RequestRefused, WebSession

PROTOCOL = "http"
#: The content types of newline-delimited JSON.
NDJSON = "application/x-ndjson"
NDJSONS = frozenset({NDJSON, "application/ndjson", "application/jsonl", "application/json-lines"})
#: The content type of a body of messages of any bytes, each of which follows its length.
LENGTHS = "application/vnd.fyrehose.messages"
#: The content type that curl sends by default; it says nothing about the body.
FORM = "application/x-www-form-urlencoded"
#: The largest ``limit`` of records of a GET, and the limit of a GET that states none.
MOST_RECORDS = 1_000_000
RECORDS = 1_000
#: Why a request of a page that may only read is refused.
READS_ONLY = (
    "a page that may only read, because its origin is not listed or its browser does not name it, cannot use named "
    "subscriptions or tokens; add the origin to the option origins"
)
#: How many streams one answer lists at most, and the largest page number.
MOST_LISTED, MOST_PAGES = 1_000, 10**7
#: The largest body of several messages that are one publish, in bytes: lines with an Idempotency-Key, or with lengths.
KEYED = 1 << 20
#: The longest time that a GET waits for a record, in seconds.
LONGEST_WAIT = 300
#: How long a GET with ``at-least`` and without ``wait`` waits, in seconds.
ARRIVAL_WAIT = 10
#: How long a polling consumer keeps its subscription without acknowledging, and the longest time that it may ask for,
#: in seconds.
LEASE, LONGEST_LEASE = 30, 3_600
#: How many parts of OTLP logs one turn converts; a log record is one.
STEPS = 200
#: The causes for which requests are refused.
REFUSALS = (
    *WEB_REFUSALS,
    "bad-body",
    "bad-compression",
    "bad-content-type",
    "bad-key",
    "bad-method",
    "bad-name",
    "bad-query",
    "closing",
    "encoded-body",
    "length-required",
    "multipart-body",
    "no-otlp",
    "no-such-path",
    "no-such-stream",
    "not-here-yet",
    "stream-not-followed",
    "too-large",
)

USAGE = {
    "POST /streams/NAME": f"publish the body; with Content-Type: {NDJSON} publish each line, and with {LENGTHS} each "
    "message behind its length",
    "POST /v1/logs": "publish OTLP logs, as an OpenTelemetry exporter sends them",
    "GET /streams/NAME?from=SEQ&limit=N": "read records from SEQ, a time such as 2026-11-28T12:00 or -1h, or the "
    "oldest one, as one JSON object per line; at-least=SEQ waits until this server has that one",
    "GET /streams/NAME/live?from=SEQ&epoch=EPOCH": "follow the stream from now, or from SEQ, as server-sent events; "
    "EPOCH is the header Fyrehose-Epoch of the answer that SEQ is from",
    "GET /streams?match=PATTERN&limit=N&page=N": "list the streams that match, such as logs.*",
    "GET /streams/*/live?match=PATTERN": "follow all streams that match, also new ones, as server-sent events",
    "DELETE /streams/NAME": "retire the stream",
    "GET /streams/NAME?subscription=S&limit=N&wait=SECONDS": "read behind the position of a named subscription",
    "GET /streams/NAME/live?subscription=S": "the same as server-sent events",
    "GET /streams/*?match=PATTERN&subscription=S": "the same of all streams that match; or /streams/*/live",
    "POST /subscriptions/S/ack": 'move the position: {"seq": SEQ}',
    "PUT /subscriptions/S": 'create a shared subscription: {"stream": NAME, "shared": true}',
    "POST /subscriptions/S/lease": 'lease its records: {"consumer": NAME, "most": N, "wait": SECONDS}',
    "POST /subscriptions/S/settle": 'settle them: {"done": [[SEQ, TOKEN], ...]}',
    "GET /subscriptions": "list the named subscriptions; DELETE and POST .../rewind change one",
}


@attrs.frozen(slots=True, kw_only=True)
class PublishPart:
    """An event: publish these messages of a POST; more may follow for the same request."""

    request: RequestHead
    stream: str
    content_type: str | None
    payloads: Sequence[bytes]
    key: str | None = None  #: the Idempotency-Key; with a key, these are all messages of the body


@attrs.frozen(slots=True)
class BodyRefused:
    """An event: the rest of a POST is refused; answer it when the messages before that are durable or refused."""

    refusal: RequestRefused


@attrs.frozen(slots=True)
class PublishEnd:
    """An event: the body of a POST is complete; answer it when all of its messages are durable.

    :ivar content: the body of the answer; None: it says the numbers of the messages
    :ivar rejected: how many log records of the body were rejected
    """

    content: bytes | None = None
    rejected: int = 0
    content_type: str = JSON


@attrs.frozen(slots=True, kw_only=True)
class Read:
    """A request to read up to *limit* records, starting at number *first*, or at the oldest if that is later.

    :ivar subscription: the named subscription, from whose position to read; None: read without one
    :ivar wait: how long to wait for a record if the subscription has none, in seconds
    :ivar takeover: whether to displace another consumer
    :ivar consumer: the name that the client gave itself; empty: it gave none
    :ivar lease: how long no other consumer may have the subscription if the client does not acknowledge, in seconds
    :ivar pattern: the pattern, if *stream* is the text of one; *subscription* is then a subscription to that pattern
    :ivar since: a time in place of *first*, in microseconds since 1970 UTC
    :ivar at_least: the number of the record for which the request waits until this server has it; 0: it does not wait
    """

    request: RequestHead
    stream: str
    first: int
    limit: int
    subscription: str | None = None
    wait: float = 0
    takeover: bool = False
    consumer: str = ""
    lease: int = LEASE
    pattern: Pattern | None = None
    at_least: int = 0
    since: int | None = None

    @property
    def after(self) -> int:
        """Return the number of the record behind which a new subscription begins."""
        return max(0, self.first - 1)


@attrs.frozen(slots=True, kw_only=True)
class Live:
    """A request to follow a stream, or all that match a pattern, behind number *after*; None: from now on.

    :ivar pattern: the pattern, if *stream* is its text
    :ivar last_event: the number of the last record that the peer has received; None: unknown
    :ivar since: a time in place of *after*, in microseconds since 1970 UTC
    :ivar epoch: the epoch of these two numbers; empty: unknown
    :ivar subscription: the named subscription, from whose position to begin; None: follow without one
    :ivar takeover: whether to displace another consumer
    """

    request: RequestHead
    stream: str
    after: int | None
    pattern: Pattern | None = None
    since: int | None = None
    last_event: int | None = None
    epoch: str = ""
    subscription: str | None = None
    takeover: bool = False


@attrs.frozen(slots=True, kw_only=True)
class List:
    """A request to list the streams that match *pattern*: page *page* (from 0) of *limit* streams."""

    request: RequestHead
    pattern: Pattern
    limit: int
    page: int


@attrs.frozen(slots=True, kw_only=True)
class Retire:
    """A request to retire a stream."""

    request: RequestHead
    stream: str


@attrs.frozen(slots=True, kw_only=True)
class RequestLimits:
    """The limits of one request.

    :ivar message: the largest message, in bytes
    :ivar body: the largest body of lines with a Content-Length, in bytes
    :ivar wait: the longest time that it waits for records, in seconds, also if it asks for more
    :ivar key_header: the lower-case name of a header that is the key of a message without an Idempotency-Key; or empty
    :ivar logs: the stream of OTLP logs
    """

    message: int
    body: int
    wait: float = LONGEST_WAIT
    key_header: str = ""
    logs: str = "otlp"


@attrs.define(eq=False)
class Posting(RequestBody):
    """The body of a POST to a stream: its messages become events as they arrive, or all of them together at its end.

    :ivar part: makes an event from messages
    :ivar content: collects the body, or divides it into messages
    :ivar split: divides the whole body into messages that are published together; None: *content* does
    """

    session: HttpSession
    part: Callable[..., PublishPart]
    content: Whole | LineBody
    split: Callable[[bytes, int], list[bytes]] | None
    _partly_processed: bool = attrs.field(default=False, init=False)

    def add(self, data: bytes) -> Iterable[object]:
        """Return the messages that *data* completes, or refuse a body that is too large."""
        try:
            messages: Sequence[bytes] = self.content.add(data)
        except TooLarge as error:
            if self.split is not None:
                return self.session.refuse(
                    413, "too-large", f"body that is one publish exceeds the limit of {KEYED} bytes"
                )
            return [*self._parts(error.before), *self._refuse_message()]
        return self._parts(messages) if messages else ()

    def end(self) -> Iterable[object]:
        try:
            messages = self.content.end()
            if self.split is not None:
                messages = self.split(messages[0], self.session.limits.message)
        except TooLarge:
            return self._refuse_message()
        except ValueError as error:
            return self.session.refuse(400, "bad-body", str(error))
        return [self.part(payloads=messages), PublishEnd()] if messages else (PublishEnd(),)

    @property
    def expected(self) -> int:
        return self.content.expected

    @property
    def buffered(self) -> int:
        return self.content.buffered

    @property
    def partly_processed(self) -> bool:
        return self._partly_processed

    def _parts(self, messages: Sequence[bytes]) -> Iterable[PublishPart]:
        if not messages:
            return ()
        self._partly_processed = True
        return (self.part(payloads=messages),)

    def _refuse_message(self) -> Iterable[object]:
        """Refuse the rest of a body with a message above the limit, and return the event for it."""
        return self.refuse_rest(413, "too-large", f"message exceeds the limit of {self.session.limits.message} bytes")

    def refuse_rest(self, status: int, cause: str, detail: str) -> Iterable[object]:
        """Refuse the rest of the body, whose first messages may be published already; return the event for it."""
        if not self._partly_processed:
            return self.session.refuse(status, cause, detail)
        refusal = RequestRefused(status=status, cause=cause, detail=detail)
        self.session.exchange.drop_body(refusal)
        return [BodyRefused(refusal)]


@attrs.define(eq=False)
class LogsBody(Posting):
    """The body of a POST of OTLP logs, whose log records become messages once it is complete, a few at a time.

    :ivar kind: the content type of the body
    """

    split: None = attrs.field(default=None, init=False)
    kind: str = attrs.field(kw_only=True)
    more: bool = attrs.field(default=False, init=False)
    _records: otlp.LogRecords = attrs.field(factory=otlp.LogRecords, init=False)
    _messages: Iterator[bytes] = attrs.field(default=iter(()), init=False)

    def add(self, data: bytes) -> Iterable[object]:
        return self._convert() if self.more else super().add(data)

    def end(self) -> Iterable[object]:
        (body,) = self.content.end()
        self._messages, self.more = self._records.messages(body, self.kind), True
        return self._convert()

    def _convert(self) -> Iterable[object]:
        """Return the next messages, as many as one turn converts."""
        messages: list[bytes] = []
        size = 0
        try:
            for _ in range(STEPS):
                message = next(self._messages)
                messages += [message] if message else []
                size += len(message)
                if size > SLICE:
                    return self._parts(messages)
            return self._parts(messages)
        except StopIteration:
            self.more = False
            records = self._records
            end = PublishEnd(records.answer(self.kind), records.rejected, content_type=self.kind)
            return [*self._parts(messages), end]
        except ValueError as error:
            self.more = False
            return [*self._parts(messages), *self.refuse_rest(400, "bad-body", str(error))]


@attrs.define(eq=False)
class InflatedBody(RequestBody):
    """A compressed body: it is inflated a slice at a time, which then is a piece of *body*."""

    body: Posting
    inflation: Inflation
    more: bool = attrs.field(default=False, init=False)
    _data: bytearray = attrs.field(factory=bytearray, init=False)

    def add(self, data: bytes) -> Iterable[object]:
        inflation, most = self.inflation, self.body.session.limits.body
        self._data += data
        inflation.left += len(data)
        stop, refusal = inflation.inflated + SLICE, None
        try:
            del self._data[: inflation.inflate(self._data, 0, SLICE)]
        except RemoteProtocolError as error:
            refusal = 400, "bad-compression", str(error)
        if inflation.done and (inflation.trailing or self._data):
            refusal = 400, "bad-compression", "bytes follow the end of the compressed body"
        if inflation.inflated > most:
            refusal = 413, "too-large", f"inflated body exceeds the limit of {most} bytes"
        self.more = inflation.inflated >= stop and not inflation.done and refusal is None
        piece = bytes(inflation.data)
        inflation.data.clear()
        events = [*self.body.add(piece)] if piece else []
        if refusal is not None and not self.body.session.exchange.refused:
            events += self.body.refuse_rest(*refusal)
        return events

    def end(self) -> Iterable[object]:
        self.inflation.whole = True
        exchange = self.body.session.exchange
        events = [*self.add(b"")]
        if exchange.refused:
            return events
        exchange.body = self.body
        return [*events, *self.body.end()]

    @property
    def expected(self) -> int:
        return max(self.body.expected, self.buffered)

    @property
    def buffered(self) -> int:
        return self.body.buffered + len(self._data) + self.inflation.held

    @property
    def partly_processed(self) -> bool:
        return self.body.partly_processed


@attrs.define(eq=False)
class HttpSession(WebSession):
    """The server's side of one connection of the HTTP protocol: requests become events.

    :ivar judge: called with the head of a request whose body is not small, with the limit of the body, and with the
        stream of the messages, or the request if it is about subscriptions; returns the limit for this peer, or a
        refusal.  None: the limit is that of all peers
    """

    limits: RequestLimits = attrs.field(kw_only=True)
    judge: Callable[[RequestHead, int, str | Manage], int | RequestRefused] | None = attrs.field(
        default=None, kw_only=True
    )

    def on_request(self, request: RequestHead) -> Iterable[object]:
        """Return the events of a request's head, or refuse a path or a method that does not exist."""
        path, method = request.path, request.method
        if self.exchange.page.reads_only and request.query.keys() & {"subscription", "token"}:
            return self.refuse(403, "foreign-origin", READS_ONLY)
        handle: Callable[[RequestHead], Iterable[object]]
        if "subscriptions" in (path[0], *path[2:3]) and (managed := manage(request)) is not None:
            methods, handle = managed.methods, partial(self._manage, event=managed)
        elif path == otlp.PATH:
            methods, handle = ("POST",), self._post_logs
        elif path in (("",), ("streams",)):
            methods, handle = READING, self._list if path[0] else self._usage
        elif path[0] != "streams" or path[2:] not in ((), ("live",)):
            paths = ", ".join(USAGE)
            return self.refuse(404, "no-such-path", f"unknown path; use one of {paths}; write a slash in NAME as %2F")
        elif not 1 <= len(path[1].encode()) <= MAX_NAME:
            return self.refuse(400, "bad-name", f"invalid stream name: expected 1 to {MAX_NAME} bytes of UTF-8")
        else:
            methods = READING if path[2:] else (*READING, "POST", "DELETE")
            handle = {"POST": self._post, "DELETE": self._delete}.get(method, self._get)
        if method not in methods:
            allow = {"Allow": ", ".join(methods)}
            if method == "OPTIONS" and not self.exchange.body_incomplete:
                self.respond_without_content(allow)
                return ()
            return self.refuse(405, "bad-method", f"method not allowed; use {allow['Allow']}", allow)
        if method in ("POST", "PUT"):
            if not request.framed:
                return self.refuse(411, "length-required", "missing length: send Content-Length, or a chunked body")
        elif request.length != 0:
            return self.refuse(413, "unexpected-body", f"unexpected body: send {method} without one")
        return handle(request)

    # Internals.

    def time_of(self, text: str) -> int:
        """Return the time *text* in microseconds since 1970 UTC.

        :raises ValueError: it is none; the message is for the peer
        """
        try:
            return moment(text, 0.0 if self.now is None else self.now())
        except ValueError as error:
            raise ValueError(f"invalid time: expected a number from 0 to {LAST_SEQ}, or {error}") from None

    def _usage(self, request: RequestHead) -> Iterable[object]:
        self.respond(200, json.dumps(USAGE, indent=2).encode() + b"\n")
        return ()

    def _refuse_parameters(self, request: RequestHead, what: str) -> Iterable[object]:
        name = next(iter(request.query))
        return self.refuse(400, "bad-query", f"unknown parameter {name[:80]!r}: {what} has no parameters")

    def _post(self, request: RequestHead) -> Iterable[object]:
        content_type, kind = _content_type(request)
        if kind.startswith("multipart/"):
            return self.refuse(415, "multipart-body", "multipart body: send one message, or one message per line")
        if content_type and not is_label(content_type):
            detail = f"invalid content type: expected at most {MAX_NAME} bytes without control characters"
            return self.refuse(400, "bad-content-type", detail)
        key = request.headers.get("idempotency-key", request.headers.get(self.limits.key_header))
        if key is not None and not (1 <= len(key) <= MAX_NAME and key.isascii()):
            detail = f"invalid key of a message: expected 1 to {MAX_NAME} ASCII characters"
            return self.refuse(400, "bad-key", detail)
        lines = kind in NDJSONS
        split = split_lengths if kind == LENGTHS else split_lines if lines and key is not None else None
        largest = self.limits.body if lines else self.limits.message
        if split is not None:
            largest = min(KEYED, self.limits.message)
        stored = JSON if lines else content_type if kind not in ("", FORM, LENGTHS) else None
        part = partial(PublishPart, request=request, stream=request.path[1], content_type=stored, key=key)

        def body(length: int | None) -> Posting:
            whole = not lines or split is not None
            return Posting(self, part, Whole(largest, length) if whole else LineBody(self.limits.message), split)

        return self._receive(request, request.path[1], largest, body)

    def _post_logs(self, request: RequestHead) -> Iterable[object]:
        """Receive OTLP logs, see :mod:`.otlp`."""
        _, kind = _content_type(request)
        if request.query:
            return self._refuse_parameters(request, "this path")
        if kind not in (otlp.PROTOBUF, otlp.JSON):
            detail = f"invalid content type of OTLP logs: expected {otlp.PROTOBUF} or {otlp.JSON}"
            return self.refuse(415, "bad-content-type", detail)
        if not OTLP.installed:
            return self.refuse(501, "no-otlp", OTLP.missing("this path"))
        largest, stream = self.limits.message, self.limits.logs
        if kind == otlp.JSON:
            largest = min(largest, MOST_PARSED)
        part = partial(PublishPart, request=request, stream=stream, content_type=JSON)
        return self._receive(
            request, stream, largest, lambda length: LogsBody(self, part, Whole(largest, length), kind=kind)
        )

    def _receive(
        self, request: RequestHead, stream: str, largest: int, body: Callable[[int | None], Posting]
    ) -> Iterable[object]:
        """Receive a body of at most *largest* bytes, perhaps compressed, for *stream*.

        :param body: makes the receiver, given the length of the body, if it is known
        """
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding != "identity" and coding not in CODINGS:
            known = ", ".join(CODINGS)
            detail = f"encoded body: send it without a Content-Encoding, or with one of {known}"
            return self.refuse(415, "encoded-body", detail, {"Accept-Encoding": known})
        inflate = CODINGS.get(coding)  # None: the body is as it is
        length = request.length if inflate is None else None
        if length is None or length > min(SMALL, largest):
            judged = self._judge(request, largest, length, stream)
            if not isinstance(judged, int):
                return judged
        made = body(length)
        self.exchange.body = made if inflate is None else InflatedBody(made, inflate())
        return ()

    def _judge(
        self, request: RequestHead, largest: int, length: int | None, target: str | Manage
    ) -> int | list[RequestRefused]:
        """Judge a body that is not small by the head of its request: return its limit, or refuse the request.

        :param length: the length of the body, in bytes; None if it is unknown, or that of the compressed body
        :param target: the stream of the messages, or the request if it is about subscriptions
        """
        verdict = largest if self.judge is None else self.judge(request, largest, target)
        if isinstance(verdict, RequestRefused):
            return self.refuse(verdict.status, verdict.cause, verdict.detail, self.elsewhere(verdict.elsewhere))
        if length is not None and length > verdict:
            detail = f"body of {length} bytes exceeds the limit of {verdict} bytes"
            return self.refuse(413, "too-large", detail)
        return verdict

    def _list(self, request: RequestHead) -> Iterable[object]:
        try:
            numbers = _numbers(request, {"limit": MOST_LISTED, "page": MOST_PAGES}, ("match",))
            pattern = Pattern.of_peer(request.query.get("match", "*"))
        except (ValueError, InvalidPattern) as error:
            return self.refuse(400, "bad-query", str(error))
        limit, page = numbers.get("limit", MOST_LISTED), numbers.get("page", 0)
        return (List(request=request, pattern=pattern, limit=limit, page=page),)

    def _manage(self, request: RequestHead, event: Manage) -> Iterable[object]:
        if request.query:
            return self._refuse_parameters(request, "this path")
        if request.method not in ("POST", "PUT"):
            return (event,)
        largest = self.limits.message if event.action == "settle" else LARGEST  # settling may also publish results
        if request.length is None or request.length > min(SMALL, largest):
            judged = self._judge(request, largest, request.length, event)
            if not isinstance(judged, int):
                return judged
            largest = judged
        self.exchange.body = Managing(largest, request.length, session=self, event=event, time=self.time_of)
        return ()

    def _delete(self, request: RequestHead) -> Iterable[object]:
        if request.query:
            return self._refuse_parameters(request, "DELETE")
        return (Retire(request=request, stream=request.path[1]),)

    def _get(self, request: RequestHead) -> Iterable[object]:
        query, name, live = request.query, request.path[1], request.path[2:] == ("live",)
        subscription, matching = query.get("subscription"), "match" in query
        if matching and (name != "*" or not query["match"] or not (live or subscription)):
            detail = (
                "match needs a pattern such as logs.*, and the path /streams/*/live, or /streams/* and subscription"
            )
            return self.refuse(400, "bad-query", detail)
        last = "" if matching or not live else request.headers.get("last-event-id", "")
        try:
            known, others = _parameters(live, matching, subscription is not None)
            since = self.time_of(query["from"]) if "from" in known and not query.get("from", "0").isdecimal() else None
            numbers = _numbers(request, known, others if since is None else [*others, "from"])
            if since is not None and matching:
                raise ValueError("invalid from: a time has another number in each stream; expected a number")
            pattern = Pattern.of_peer(query["match"]) if matching else None
            if "token" in query:
                _check_token(request)
            if query.get("payload", "json") not in ("json", "text"):
                raise ValueError("invalid payload: expected json, or text, the default")
            if subscription is None and "wait" in numbers and "at-least" not in numbers:
                raise ValueError("wait without at-least: expected at-least=SEQ, the number of the record to wait for")
            epoch, last = _last_event(last) if last else (query.get("epoch", ""), "")
        except (ValueError, InvalidPattern) as error:
            return self.refuse(400, "bad-query", str(error))
        stream, takeover = name if pattern is None else pattern.text, bool(numbers.get("takeover"))
        if not live:
            return (
                Read(
                    request=request,
                    stream=stream,
                    first=numbers.get("from", 0),
                    limit=numbers.get("limit", RECORDS),
                    subscription=subscription,
                    wait=min(numbers.get("wait", ARRIVAL_WAIT if "at-least" in numbers else 0), self.limits.wait),
                    takeover=takeover,
                    consumer=query.get("consumer", ""),
                    lease=max(1, numbers.get("lease", LEASE)),
                    pattern=pattern,
                    at_least=numbers.get("at-least", 0),
                    since=since,
                ),
            )
        last_event = int(last) if last else None
        after = max(0, numbers["from"] - 1) if "from" in numbers else None
        if last_event is not None and subscription is None:
            after, since = last_event, None
        return (
            Live(
                request=request,
                stream=stream,
                after=after,
                pattern=pattern,
                since=since,
                last_event=last_event,
                epoch=epoch,
                subscription=subscription,
                takeover=takeover,
            ),
        )


def _content_type(request: RequestHead) -> tuple[str, str]:
    """Return the content type as the peer sent it, and without its parameters, in lower case."""
    content_type = request.headers.get("content-type", "")
    return content_type, content_type.partition(";")[0].strip().lower()


def _parameters(live: bool, matching: bool, named: bool) -> tuple[dict[str, int], list[str]]:
    """Return the parameters that a GET may have: numbers, with the largest number of each, and the names of others.

    :param live: whether the GET follows new records
    :param matching: whether the GET reads the streams that match a pattern, not one stream
    :param named: whether the GET has a named subscription
    """
    numbers = (
        ("from", LAST_SEQ, named or not matching),
        ("limit", MOST_RECORDS, not live),
        ("takeover", 1, named),
        ("wait", LONGEST_WAIT, not live),
        ("lease", LONGEST_LEASE, named and not live),
        ("at-least", LAST_SEQ, not named and not live),
    )
    others = (
        ("match", matching),
        ("subscription", True),
        ("payload", True),
        ("token", live and not matching),
        ("epoch", live and not matching),
        ("consumer", named and not live),
    )
    return {name: most for name, most, usable in numbers if usable}, [name for name, usable in others if usable]


def _last_event(text: str) -> tuple[str, str]:
    """Return the epoch of a Last-Event-ID, empty if it has none, and the digits of its number.

    :raises ValueError: it is neither a number nor ``EPOCH:NUMBER``
    """
    epoch, _, last = text.rpartition(":")
    if not (last.isascii() and last.isdecimal() and len(last) < 20 and int(last) <= LAST_SEQ):
        raise ValueError("invalid Last-Event-ID: expected the id of the last event, or the number of the last record")
    return epoch, last


def _check_token(request: RequestHead) -> None:
    """Check the token of a query, which only browsers need, because their EventSource cannot send a header.

    :raises ValueError: the request has an Authorization header, too, or the token is not a signed one, which expires
    """
    if "authorization" in request.headers:
        raise ValueError("a token in the query and an Authorization header: send one of them")
    if not is_signed(request.query["token"]):
        raise ValueError(
            "invalid token: a query may have a signed token only, because URLs are often logged; create one with "
            "`fyrehose token create`"
        )


def _numbers(request: RequestHead, known: Mapping[str, int], others: Sequence[str]) -> dict[str, int]:
    """Return the parameters of *request* that are numbers.

    :param known: the names of these parameters, with the largest number of each
    :param others: the names of parameters that are not numbers
    :raises ValueError: a parameter is unknown or invalid; the message says what is expected
    """
    numbers = {}
    for name, text in request.query.items():
        if name in others:
            continue
        if name not in known:
            usable = [*known, *others]
            raise ValueError(f"unknown parameter {name[:80]!r}: use {', '.join(usable[:-1])} and {usable[-1]}")
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= known[name]):
            raise ValueError(f"invalid {name}: expected a number from 0 to {known[name]}")
        numbers[name] = int(text)
    return numbers
