"""The server's side of one HTTP/1.1 connection, sans-I/O: reads requests by requests.py, limits, refuses and answers.

    bytes -> RequestHead, then a subclass's events for the body -> respond(), or start(), send() ..., end() -> bytes

Requests are processed one at a time.  Meanwhile, a limited number of bytes behind the request is kept.
A refusal is an answer with a status and ``{"error": ...}``.  If it comes before the end of the body, the rest of the
input is dropped, whether or not it was received already, and the connection is closed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from email.utils import formatdate
from enum import Enum
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote_to_bytes

import attrs

from fyrehose.errors import Broken, LocalProtocolError
from fyrehose.jsontext import dumped
from fyrehose.sessions import ByteSession
from fyrehose.web.hosts import foreign_host, host_in
from fyrehose.web.origins import OF_BROWSERS, SERVED, Origins, PageVerdict
from fyrehose.web.requests import Head, MalformedRequest, RequestPart, RequestReader

#: How many bytes behind the current request are kept before reading from the peer pauses.
MAX_AHEAD = 64 << 10
#: Limit of the heads, pieces and ends of bodies that one call processes, so that other connections get their turn.
MOST_EVENTS = 256
#: How many parameters a query may have.
MAX_PARAMETERS = 20
#: The causes for which every server of HTTP refuses requests.
WEB_REFUSALS = (
    "bad-http",
    "bad-request",
    "foreign-host",
    "foreign-origin",
    "head-too-large",
    "unexpected-body",
)

#: Headers that a request may have only once, because of several the server and a proxy might use different ones.
_SINGLE = frozenset({"host", "content-type", "authorization", "content-encoding", "origin", "idempotency-key"})

#: Headers of every answer: browsers must neither cache it nor guess its type.
_ALWAYS = "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
#: Characters that a header's value must not have, because they could end the header and forge another answer.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
JSON, EVENTS = "application/json", "text/event-stream"
#: Events whose records are in columns; see fyrehose/protocols/http/runs.py.
RUNS = "application/vnd.fyrehose.runs"
#: The target of a request that is about the whole server: OPTIONS * (RFC 9110, 9.3.7).
EVERYTHING = "*"
#: The statuses of refusals after which the same request may succeed later.
RETRIABLE = (408, 429, 503)
#: Further headers of refusals, by status; after the time in Retry-After, in seconds, the same request may succeed.
REFUSAL_HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": "5"},
    503: {"Retry-After": "5"},
}

Headers = Mapping[str, str]


class AnswerPart(Enum):
    """The part of an answer that comes next."""

    NONE = "nothing: no request waits"
    HEAD = "the head"
    BODY = "the body"
    DONE = "nothing: the answer is complete"


@attrs.frozen(slots=True, kw_only=True)
class RequestHead:
    """The head of a request.

    :ivar path: the segments of the path, percent-decoded
    :ivar headers: the headers, by lower-case name
    :ivar length: length of the body, in bytes; None if it is chunked
    :ivar framed: whether the head declares a body, with Content-Length or Transfer-Encoding
    """

    method: str
    path: tuple[str, ...]
    query: Mapping[str, str]
    headers: Headers
    length: int | None
    framed: bool


@attrs.frozen(slots=True, kw_only=True)
class RequestRefused:
    """The refusal of a request.

    :ivar status: the HTTP status
    :ivar cause: a few words joined by dashes, for the counter and the log
    :ivar detail: the error message for the peer
    :ivar elsewhere: the URL of the server that accepts the same request; empty if none is known
    """

    status: int
    cause: str
    detail: str
    elsewhere: str = ""


class RequestBody:
    """Receives the body of one request; this one has no use for it.  Subclasses turn it into events.

    :ivar more: whether :meth:`add` can return further events of the pieces that it was given already
    """

    __slots__ = ()
    more: bool = False

    def add(self, data: bytes) -> Iterable[object]:
        """Return the events that *data*, a piece of the body, completes."""
        return ()

    def end(self) -> Iterable[object]:
        """Return the events that the end of the body completes; more of them may follow, see :attr:`more`."""
        return ()

    @property
    def expected(self) -> int:
        """Return the size of the part of the body that is being collected, in bytes, as far as it is known."""
        return 0

    @property
    def buffered(self) -> int:
        """Return the number of bytes in memory of the part that :attr:`expected` measures."""
        return 0

    @property
    def partly_processed(self) -> bool:
        """Return whether events of the incomplete body were returned; if so, the session must not answer by itself."""
        return False


_NO_BODY = RequestBody()


@attrs.define(eq=False)
class Exchange:
    """One request and its answer, as far as both have come; each request of a connection has one of its own.

    :ivar answer: the part of the answer that comes next
    :ivar head: the head of the request; None: it has not arrived
    :ivar page: the verdict on the page that has sent the request
    :ivar body: receives the body of the request
    :ivar body_incomplete: whether the end of that body has not arrived
    :ivar refused: the refusal with which the request is answered; later input is dropped if the body is incomplete
    :ivar last: whether the connection ends with the answer
    :ivar without_body: whether the body of the answer is left out, because the method of the request is HEAD
    :ivar unsent: how many bytes of the body of the answer are still to be sent; None: its length is not known
    """

    answer: AnswerPart = AnswerPart.NONE
    head: Head | None = None
    page: PageVerdict = SERVED
    body: RequestBody = _NO_BODY
    body_incomplete: bool = False
    refused: RequestRefused | None = None
    last: bool = False
    without_body: bool = False
    unsent: int | None = None

    @property
    def rest_dropped(self) -> bool:
        """Return whether the request was refused before the end of its body, so that later input is not parsed."""
        return self.refused is not None and self.body_incomplete

    @property
    def chunked(self) -> bool:
        """Return whether a body of unknown length is sent in chunks, which HTTP/1.0 has not."""
        return self.head is not None and self.head.minor > 0

    def drop_body(self, refused: RequestRefused) -> None:
        """Ignore the rest of the body, because the request was refused."""
        self.refused, self.body = refused, _NO_BODY


@attrs.define(eq=False)
class WebSession(ByteSession):
    """The server's side of one connection; subclasses turn heads and bodies of requests into events.

    :ivar hosts: the values of ``Host`` that are accepted, without ports; None accepts any.  This protects against DNS
        rebinding, where a page of another site makes its own name resolve to this server.
    :ivar origins: the pages of other sites that may use the server
    :ivar now: returns the time for the header Date, in seconds since 1970 UTC; None: there is no such header
    :ivar exchange: the present request and its answer
    :ivar more: whether :meth:`next_events` may return events
    :ivar answering: whether a request waits for its answer or for the rest of it
    :ivar unanswered: whether a request waits for its answer, of which nothing was sent
    :ivar over: whether the connection allows neither requests nor answers any more
    :ivar read_ahead_full: whether more than :data:`MAX_AHEAD` bytes wait behind the current request
    :ivar expected: the size of the head or the part of a body that is being received, in bytes; 0 between requests
    """

    hosts: frozenset[str] | None = None
    origins: Origins = Origins()
    now: Callable[[], float] | None = attrs.field(default=None, kw_only=True)
    exchange: Exchange = attrs.field(factory=Exchange, init=False)
    more: bool = attrs.field(default=False, init=False)
    answering: bool = attrs.field(default=False, init=False)
    unanswered: bool = attrs.field(default=False, init=False)
    over: bool = attrs.field(default=False, init=False)
    read_ahead_full: bool = attrs.field(default=False, init=False)
    expected: int = attrs.field(default=0, init=False)
    out: list[bytes] = attrs.field(factory=list, init=False)
    _reader: RequestReader = attrs.field(factory=RequestReader, init=False)
    _eof: bool = attrs.field(default=False, init=False)
    _broken: bool = attrs.field(default=False, init=False)
    #: Whether further input belongs to the request after the one that is being answered.
    _behind: bool = attrs.field(default=False, init=False)
    #: Whether bytes, or the end of input, wait behind the last answer for the next turn.
    _waits: bool = attrs.field(default=False, init=False)
    #: Whether the last call stopped at MOST_EVENTS, so that the reader may have more parts of requests.
    _stopped: bool = attrs.field(default=False, init=False)

    def on_request(self, request: RequestHead) -> Iterable[object]:
        """Return the events for the head of a request, or refuse the request; a hook for subclasses.

        A subclass that accepts bodies sets ``exchange.body``.
        """
        if self.exchange.body_incomplete:
            return self.refuse(413, "unexpected-body", "unexpected body: this server accepts requests without one only")
        return (request,)

    # Input.

    def receive_data(self, data: bytes) -> list[object]:
        """Return events for the heads and parts of bodies that *data* completes."""
        if self.over or (self.exchange.refused is not None and self.exchange.rest_dropped):
            return []
        self._reader.add(data)
        if self._behind:
            self.read_ahead_full = self._reader.unread > MAX_AHEAD
            return []
        events = self._pull()
        self._note_state()
        return events

    def receive_eof(self) -> list[object]:
        """Record that the peer will send no more data, and return the events that follow from that."""
        self._eof = True
        if self.over:
            self._broken, self._reader = True, RequestReader()  # the new reader frees the bytes that will not be read
            self.read_ahead_full = False
            self._note_state()
        return self._end_of_input()

    def next_events(self) -> list[object]:
        """Return further events of bytes that were received already; to be called while :attr:`more` is true."""
        if not self.more:
            return []
        if self._waits:
            self._waits = self.read_ahead_full = False
        events = self._pull()
        self._note_state()
        return events + self._end_of_input() if self._eof else events

    @property
    def streaming(self) -> bool:
        """Return whether the head of an answer was sent whose body is incomplete."""
        return self.exchange.answer is AnswerPart.BODY

    @property
    def body_unread(self) -> bool:
        """Return whether the peer may still be sending a body that will not be read."""
        return self.over and self.exchange.body_incomplete and not self._eof

    @property
    def buffered(self) -> int:
        """Return the number of bytes in memory of the part that :attr:`expected` measures."""
        return self.exchange.body.buffered if self._reader.in_body else self.expected

    # Output.

    def respond(self, status: int, body: bytes, content_type: str = JSON, headers: Headers | None = None) -> None:
        """Send a complete answer."""
        self._begin(status, content_type, headers, len(body))
        if body and not self.exchange.without_body:
            self.out.append(body)
        self.exchange.answer = AnswerPart.DONE
        self._note_state()

    def respond_without_content(self, headers: Headers | None = None) -> None:
        """Send a complete answer with status 204, which has no body."""
        self._begin(204, "", headers)
        self.exchange.answer = AnswerPart.DONE
        self._note_state()

    def start(self, status: int, content_type: str, headers: Headers | None = None, length: int | None = None) -> None:
        """Send the head of an answer whose body follows by :meth:`send`.

        :param length: length of the body, in bytes; None: it is not known yet
        """
        self._begin(status, content_type, headers, length)
        self.exchange.unsent = None if self.exchange.without_body else length
        self._note_state()

    def send(self, data: bytes) -> None:
        """Send a piece of the answer's body."""
        exchange = self.exchange
        if exchange.answer is not AnswerPart.BODY:
            raise LocalProtocolError("the head of an answer must be sent before a piece of its body")
        if not data or exchange.without_body:
            return
        if exchange.unsent is None:
            self.out.append(b"%x\r\n%b\r\n" % (len(data), data) if exchange.chunked else data)
        elif exchange.unsent < len(data):
            raise LocalProtocolError(
                f"the body of an answer is {len(data) - exchange.unsent} bytes longer than its Content-Length"
            )
        else:
            exchange.unsent -= len(data)
            self.out.append(data)

    def end(self) -> None:
        """Complete the answer."""
        exchange = self.exchange
        if exchange.answer is not AnswerPart.BODY:
            raise LocalProtocolError("no answer was begun that could be completed")
        if exchange.unsent:
            raise LocalProtocolError(f"{exchange.unsent} bytes of the body of an answer were not sent")
        if exchange.chunked and exchange.unsent is None and not exchange.without_body:
            self.out.append(b"0\r\n\r\n")
        exchange.answer = AnswerPart.DONE
        self._note_state()

    def elsewhere(self, server: str) -> Headers:
        """Return the Location header that redirects this request to the URL *server*; no header if that is empty."""
        head = self.exchange.head
        return {"Location": server + head.target} if server and head is not None and head.target[0] == "/" else {}

    def refuse(
        self, status: int, cause: str, detail: str, headers: Headers | None = None, **more: object
    ) -> list[RequestRefused]:
        """Send a complete answer that refuses the request, and that says whether the same request may succeed later.

        :param cause: a few words joined by dashes, for the counter and the log
        :param detail: the error message for the peer
        :param more: further keys of the answer's JSON object
        :return: the event for the refusal
        """
        exchange, refused = self.exchange, RequestRefused(status=status, cause=cause, detail=detail)
        exchange.drop_body(refused)
        exchange.last = exchange.last or exchange.body_incomplete
        again = {"retriable": True} if status in RETRIABLE else {}
        body = dumped({"error": detail, **again, **more}) + b"\n"
        self.respond(status, body, headers={**REFUSAL_HEADERS.get(status, {}), **(headers or {})})
        return [refused]

    # Internals.

    def _note_state(self) -> None:
        """Update the attributes that follow from the request and its answer; called after each step of either."""
        exchange, reader = self.exchange, self._reader
        answer, part = exchange.answer, reader.part
        self.unanswered = answer is AnswerPart.HEAD
        self.answering = self.unanswered or answer is AnswerPart.BODY
        done = answer is AnswerPart.DONE
        self.over = self._broken or (done and exchange.last)
        if done and not self.over and part is RequestPart.DONE:
            self.exchange, self._waits = Exchange(), reader.begin() or self._eof
        self.more = not self.over and (self._waits or self._stopped)
        self._behind = self._waits or (self.answering and not reader.in_body)
        self.expected = 0
        if not (self._broken or self._waits or part is RequestPart.DONE):
            self.expected = exchange.body.expected if reader.in_body else reader.unread

    def _begin(self, status: int, content_type: str, headers: Headers | None, length: int | None = None) -> None:
        """Send the head of an answer.

        :param content_type: "" for an answer without a body
        :param length: length of the body, in bytes; None: it is not known yet
        """
        exchange = self.exchange
        if exchange.answer is not AnswerPart.HEAD:
            raise LocalProtocolError("an answer without a request, or a second one to the same request")
        coding = exchange.chunked if length is None and content_type else False
        second = 0 if self.now is None else int(self.now())
        head = _head_of(status, content_type, length, coding, exchange.last, second)
        more = {**exchange.page.headers, **(headers or {})}
        if more:
            lines = []
            for name, value in more.items():
                if _CONTROL.search(value):
                    raise LocalProtocolError(f"the value of the header {name} has a control character: {value!r}")
                lines.append(f"{name}: {value}\r\n")
            head += "".join(lines).encode()
        self.out.append(head + b"\r\n")
        exchange.answer = AnswerPart.BODY

    def _pull(self) -> list[object]:
        """Return the events up to the end of the request or of the received bytes, at most :data:`MOST_EVENTS`."""
        events: list[object] = []
        exchange, self._stopped = self.exchange, False
        if self._broken:
            return events
        for _ in range(MOST_EVENTS):
            found: Head | bytes | None = b""
            if not exchange.body.more:
                try:
                    found = self._reader.next()
                except MalformedRequest as error:
                    return events + self._break(error)
            if found is None:
                return events
            ended = not self._reader.in_body and (exchange.body_incomplete or isinstance(found, Head))
            if isinstance(found, Head):
                events += self._receive_head(found)
                if found.waits and exchange.answer is AnswerPart.HEAD:
                    self.out.append(b"HTTP/1.1 100 Continue\r\n\r\n")
            elif found or exchange.body.more:
                events += exchange.body.add(found)
            if self.over or (exchange.refused is not None and exchange.rest_dropped):
                return events
            if exchange.body.more:
                break
            if ended:
                # Bytes behind the request are parsed when its answer is complete, even if it is the last request.
                exchange.body_incomplete = False
                events += exchange.body.end()
                if exchange.body.more:
                    break
            if not self._reader.in_body:
                return events
        self._stopped = True
        return events

    def _end_of_input(self) -> list[object]:
        """Return the events caused by the end of input, once all bytes before the end were processed."""
        if self.over or self._behind or self._stopped or self.exchange.rest_dropped:
            return []
        events: list[object] = []
        try:
            self._reader.check_end()
            self._broken = self.exchange.answer is AnswerPart.NONE
        except MalformedRequest as error:
            events = self._break(error)
        self._note_state()
        return events

    def _receive_head(self, head: Head) -> Iterable[object]:
        """Return the events of a request; refuse it if its host or its page is foreign, and answer preflights."""
        exchange = self.exchange
        exchange.head, exchange.answer, exchange.last, exchange.body_incomplete = head, AnswerPart.HEAD, head.last, True
        exchange.without_body, self.answering, self.unanswered = head.method == "HEAD", True, True
        try:
            request = _parse(head)
        except ValueError as error:
            return self.refuse(400, "bad-request", str(error))
        exchange.body_incomplete = head.length != 0
        host = request.headers.get("host")  # only HTTP/1.0 may leave it out, and so no browser
        if self.hosts is not None and host is not None and host_in(host) not in self.hosts:
            return self.refuse(421, "foreign-host", foreign_host(self.hosts))
        preflight = request.headers.get("access-control-request-method") if head.method == "OPTIONS" else None
        if not OF_BROWSERS.isdisjoint(request.headers):
            exchange.page = self.origins.judge(preflight or head.method, request.headers)
        verdict = exchange.page
        if verdict.refusal:
            return self.refuse(403, "foreign-origin", verdict.refusal)
        if head.target != EVERYTHING and (preflight is None or not verdict.headers):
            return self.on_request(request)
        if exchange.body_incomplete:
            return self.refuse(413, "unexpected-body", "unexpected body: send OPTIONS without one")
        self.respond_without_content(None if preflight is None else self.origins.preflight(verdict))
        return ()

    def _break(self, error: MalformedRequest) -> list[object]:
        exchange = self.exchange
        if exchange.answer in (AnswerPart.NONE, AnswerPart.HEAD) and not exchange.body.partly_processed:
            exchange.answer, exchange.last = AnswerPart.HEAD, True
            self.respond(error.status, dumped({"error": error.detail}) + b"\n")
        self._broken = True
        self._note_state()
        return [Broken(error=error)]


@lru_cache(maxsize=256)
def _head_of(status: int, content_type: str, length: int | None, chunked: bool, last: bool, second: int) -> bytes:
    """Return the head of an answer without further headers, and without the empty line at its end.

    :param length: length of the body, in bytes; None: it is not known yet
    :param chunked: whether the body is sent in chunks
    :param last: whether the connection ends after the answer
    :param second: the time, in seconds since 1970 UTC; 0: unknown
    """
    kind = f"Content-Type: {content_type}\r\n" if content_type else ""
    size = f"Content-Length: {length}\r\n" if length is not None else ""
    coding = "Transfer-Encoding: chunked\r\n" if chunked else ""
    close = "Connection: close\r\n" if last else ""
    # nginx would otherwise collect the events until its buffer is full.
    prompt = "X-Accel-Buffering: no\r\n" if content_type in (EVENTS, RUNS) else ""
    date = f"Date: {formatdate(second, usegmt=True)}\r\n" if second else ""
    line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
    return f"{line}{date}{kind}{_ALWAYS}{size}{coding}{close}{prompt}".encode()


def _parse(head: Head) -> RequestHead:
    """Convert the head of a request to a RequestHead, with its path and query decoded.

    :raises ValueError: the head is invalid; the message is for the peer
    """
    headers: dict[str, str] = {}
    for name, value in head.fields:
        if name in _SINGLE and name in headers:
            raise ValueError(f"duplicate {name} header")
        headers[name] = value
    chunked = "transfer-encoding" in headers
    if chunked and not head.minor:
        raise ValueError("Transfer-Encoding in a request of HTTP/1.0, which has none; send Content-Length, or HTTP/1.1")
    if chunked and "content-length" in headers:
        raise ValueError("both Content-Length and Transfer-Encoding are present; send one of them")
    target = head.target
    if target.lower().startswith(("http://", "https://")):  # This absolute form contains the host (RFC 9112, 3.2.2).
        headers["host"], _, rest = target.partition("://")[2].partition("/")
        target = f"/{rest}"
    if host_in(headers.get("host", "")) is None:
        raise ValueError("invalid Host header: expected a name or an address, and perhaps a port")
    path, _, query = target.partition("?")
    if not path.startswith("/") and (target != EVERYTHING or head.method != "OPTIONS"):
        raise ValueError("invalid request target: expected a path that begins with a slash")
    try:
        parts = tuple(map(bytes.decode, map(unquote_to_bytes, path[1:].split("/"))))
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except UnicodeDecodeError:
        raise ValueError("invalid path or query: expected percent-encoded UTF-8") from None
    return RequestHead(
        method=head.method,
        path=parts,
        query=dict(pairs),
        headers=headers,
        length=head.length,
        framed=chunked or "content-length" in headers,
    )
