"""The server's side of one HTTP/1.1 connection, sans-I/O: h11 parses and serializes, this module limits and refuses.

    bytes -> RequestHead, then a subclass's events for the body -> respond(), or start(), send() ..., end() -> bytes

Requests are processed one at a time: a limited number of bytes behind a request is kept until its answer is complete.
A refusal is an answer with a status and ``{"error": ...}``.  If it comes before the end of the body, the rest of the
input is dropped, whether or not it was received already, and the connection is closed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote_to_bytes

import attrs
import h11

from fyrehose.errors import Broken, LocalProtocolError, RemoteProtocolError
from fyrehose.sessions import ByteSession
from fyrehose.web.hosts import foreign_host, host_in
from fyrehose.web.origins import Origins

#: The largest head of a request, in bytes.
MAX_HEAD = 16 << 10
#: Bytes kept behind the current request; with more than these, reading from the peer pauses.
MAX_AHEAD = 64 << 10
#: The most h11 events (heads, pieces and ends of bodies) that one call processes, so that others get their turn.
MOST_EVENTS = 256
#: The most parameters that a query may have.
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

#: The states of h11 in which nothing more can be answered, and those in which an answer is due.
_OVER = frozenset({h11.MUST_CLOSE, h11.CLOSED, h11.ERROR})
_ANSWERING = frozenset({h11.SEND_RESPONSE, h11.SEND_BODY})
#: Ambiguous heads of requests: LF without CR, and a line that continues the line before.  h11 accepts both, but a proxy
#: in front of the server may understand another request (RFC 9112, 2.2 and 5.2, lets a server refuse them).
_AMBIGUOUS = re.compile(rb"(?<!\r)\n|\n[ \t]")
#: Headers that a request may have only once, because the server and a proxy might each use another one of several.
_SINGLE = frozenset({"host", "content-type", "authorization", "content-encoding", "origin", "idempotency-key"})

#: Headers of every answer: browsers must neither cache it nor guess its type.
_ALWAYS = ((b"Cache-Control", b"no-store"), (b"X-Content-Type-Options", b"nosniff"))
JSON = "application/json"
#: The statuses of refusals that say that the same request may succeed later.
RETRIABLE = (408, 429, 503)

Headers = Mapping[str, str]


@attrs.frozen(slots=True, kw_only=True)
class RequestHead:
    """The head of a request.

    :ivar path: the segments of the path, percent-decoded
    :ivar headers: by lower-case name
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


@attrs.define(eq=False)
class WebSession(ByteSession):
    """The server's side of one connection; subclasses turn heads and bodies of requests into events.

    :ivar hosts: the values of ``Host`` that are accepted, without ports; None accepts any.  This protects against DNS
        rebinding, where a page of another site makes its own name resolve to this server.
    :ivar more: whether :meth:`next_events` may return events
    :ivar answering: whether a request waits for its answer or for the rest of it
    :ivar between_requests: whether an answer is complete and another request may follow
    :ivar over: whether the connection allows neither requests nor answers any more
    :ivar read_ahead_full: whether more than :data:`MAX_AHEAD` bytes wait behind the current request
    """

    hosts: frozenset[str] | None = None
    #: the pages of other sites that may use the server
    origins: Origins = Origins()
    #: whether the request comes from a page that may only read
    reads_only: bool = attrs.field(default=False, init=False)
    #: headers of the answer for the page that sent the request
    _for_page: Headers = attrs.field(factory=dict, init=False)
    _h11: h11.Connection = attrs.field(init=False)
    more: bool = attrs.field(default=False, init=False)
    answering: bool = attrs.field(default=False, init=False)
    between_requests: bool = attrs.field(default=False, init=False)
    over: bool = attrs.field(default=False, init=False)
    read_ahead_full: bool = attrs.field(default=False, init=False)
    out: list[bytes] = attrs.field(factory=list, init=False)
    _ahead: bytearray = attrs.field(factory=bytearray, init=False)
    #: the last bytes of the head that is being received; None: it is complete
    _head: bytes | None = attrs.field(default=b"", init=False)
    _eof: bool = attrs.field(default=False, init=False)
    _broken: bool = attrs.field(default=False, init=False)
    _refused: RequestRefused | None = attrs.field(default=None, init=False)
    #: whether the last call stopped at MOST_EVENTS, so that h11 may have more events
    _stopped: bool = attrs.field(default=False, init=False)
    #: whether the body of the request is incomplete
    _body_incomplete: bool = attrs.field(default=False, init=False)
    #: the path and query of the request, as the peer sent them
    _target: str = attrs.field(default="", init=False)
    #: whether the body of the answer is left out, because the request is a HEAD
    _without_body: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)

    # Hooks for subclasses.

    def on_request(self, request: RequestHead) -> Iterable[object]:
        """Return the events for the head of a request; the hook may refuse it."""
        if request.length or request.length is None:
            return self.refuse(413, "unexpected-body", "unexpected body: this server accepts requests without one only")
        return (request,)

    def on_body(self, data: bytes) -> Iterable[object]:
        """Return the events that a piece of the body completes."""
        return ()

    def on_body_end(self) -> Iterable[object]:
        """Return the events that the end of the body completes."""
        return ()

    @property
    def body_expected(self) -> int:
        """Return the size of the part of a body that is being collected, in bytes, as far as it is known."""
        return 0

    @property
    def body_buffered(self) -> int:
        """Return how many bytes of :attr:`body_expected` are in memory."""
        return 0

    @property
    def partly_processed(self) -> bool:
        """Return whether events of an incomplete body were returned, so that the session must not answer for it."""
        return False

    # Input.

    def receive_data(self, data: bytes) -> list[object]:
        """Return the events of the requests that *data* completes, or a part of their bodies."""
        if self.over or self._rest_dropped:
            return []
        if self._behind:
            self._ahead += data
            self.read_ahead_full = len(self._ahead) > MAX_AHEAD
            return []
        events = self._receive(data, data) + self._pull()
        self._note_state()
        return events

    def receive_eof(self) -> list[object]:
        """Record that the peer will send nothing more, and return the events that follow from that."""
        self._eof = True
        if self.over:
            self._discard_input()
        return self._end_of_input()

    def next_events(self) -> list[object]:
        """Return further events of bytes that were received already; call it while :attr:`more` is true."""
        events: list[object] = []
        if not self.more:
            return events
        if self.between_requests:
            self._h11.start_next_cycle()
            self._without_body, self._head, self._for_page = False, b"", {}
            data, self._ahead, self.read_ahead_full = bytes(self._ahead), bytearray(), False
            unparsed = self._h11.trailing_data[0] + data
            if not unparsed and not self._eof:  # The next request has not begun, so h11 has no events.
                self._note_state()
                return events
            events = self._receive(data, unparsed)
        events += self._pull()
        self._note_state()
        return events + self._end_of_input() if self._eof else events

    @property
    def streaming(self) -> bool:
        """Return whether the head of an answer was sent and its body is incomplete."""
        return self._h11.our_state is h11.SEND_BODY

    @property
    def body_unread(self) -> bool:
        """Return whether the peer may still be sending a body that will not be read."""
        return self.over and self._body_incomplete and not self._eof

    @property
    def expected(self) -> int:
        """Return the size of the head or the part of a body that is being received, in bytes; 0 between requests."""
        if self._broken:
            return 0
        if self._h11.their_state is h11.SEND_BODY:
            return self.body_expected
        return len(self._h11.trailing_data[0]) if self._h11.their_state is h11.IDLE else 0

    @property
    def buffered(self) -> int:
        """Return the bytes of :attr:`expected` that are in memory."""
        return self.body_buffered if self._h11.their_state is h11.SEND_BODY else self.expected

    # Output.

    def respond(self, status: int, body: bytes, content_type: str = JSON, headers: Headers | None = None) -> None:
        """Send a complete answer."""
        head = self._head_of(status, content_type, headers, len(body))
        if body and not self._without_body:
            self._send(head, h11.Data(data=body), h11.EndOfMessage())
        else:
            self._send(head, h11.EndOfMessage())

    def respond_without_content(self, headers: Headers | None = None) -> None:
        """Send a complete answer with status 204, which has no body."""
        self.start(204, "", headers)
        self.end()

    def start(self, status: int, content_type: str, headers: Headers | None = None) -> None:
        """Send the head of an answer.

        :param content_type: "" for an answer without a body
        """
        self._send(self._head_of(status, content_type, headers))

    def send(self, data: bytes) -> None:
        """Send a piece of the answer's body."""
        if data and not self._without_body:
            self._send(h11.Data(data=data))

    def end(self) -> None:
        """Complete the answer."""
        self._send(h11.EndOfMessage())

    def elsewhere(self, server: str) -> Headers:
        """Return the Location header that redirects this request to *server*, a URL; none if that is empty."""
        return {"Location": server + self._target} if server else {}

    def refuse(
        self, status: int, cause: str, detail: str, headers: Headers | None = None, **more: object
    ) -> list[RequestRefused]:
        """Send a complete answer that refuses the request, and says if the same request may succeed later.

        :param cause: a few words joined by dashes, for the counter and the log
        :param detail: the error message for the peer
        :param more: further keys of the answer's JSON object
        :return: the event for the refusal
        """
        self._refused = RequestRefused(status=status, cause=cause, detail=detail)
        fields = {**(headers or {})}
        if self._body_incomplete:
            fields["Connection"] = "close"
        again = {"retriable": True} if status in RETRIABLE else {}
        body = json.dumps({"error": detail, **again, **more}, ensure_ascii=False).encode() + b"\n"
        self.respond(status, body, headers=fields)
        return [self._refused]

    # Internals.

    def _discard_input(self) -> None:
        """Free the memory of received bytes that will not be parsed."""
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._ahead.clear()
        self._broken, self.read_ahead_full = True, False
        self._note_state()

    def _note_state(self) -> None:
        """Update the attributes that follow from the states of h11, after a step that may have changed these."""
        ours = self._h11.our_state
        self.answering = ours in _ANSWERING
        self.over = self._broken or ours in _OVER
        self.between_requests = ours is h11.DONE and self._h11.their_state is h11.DONE and not self._broken
        self.more = self.between_requests or (self._stopped and not self.over)

    @property
    def _behind(self) -> bool:
        """Return whether further input belongs to a request after the one that is being answered."""
        return self._h11.their_state is not h11.SEND_BODY and (self.answering or self.between_requests)

    @property
    def _rest_dropped(self) -> bool:
        """Return whether the request was refused before the end of its body, so that later input is not parsed."""
        return self._refused is not None and self._body_incomplete

    def _head_of(
        self, status: int, content_type: str, headers: Headers | None, length: int | None = None
    ) -> h11.Response:
        if headers or self._for_page:
            return _response(status, content_type, length, {**self._for_page, **(headers or {})})
        return _usual_response(status, content_type, length)

    def _send(self, *events: h11.Response | h11.Data | h11.EndOfMessage | h11.InformationalResponse) -> None:
        try:
            for event in events:
                data = self._h11.send(event)
                if data:
                    self.out.append(data)
        except h11.LocalProtocolError as error:
            raise LocalProtocolError(str(error)) from error
        finally:
            self._note_state()

    def _receive(self, data: bytes, unparsed: bytes) -> list[object]:
        """Pass *data* to h11; if it makes the head ambiguous, refuse the request, and return the events of that.

        :param unparsed: the bytes that were not checked yet, of which *data* is the end
        """
        if self._head is not None:
            text, searched = self._head + unparsed, max(0, len(self._head) - 1)
            end = text.find(b"\r\n\r\n")
            found = _AMBIGUOUS.search(text, searched, len(text) if end < 0 else end + 4)
            self._head = text[-3:] if end < 0 else None
            if found is not None:
                folded = "a line of the head continues the line before it; write both as one line"
                bare = "a line of the head ends with a bare LF; end each with CR LF"
                return self._break(h11.RemoteProtocolError(folded if len(found[0]) > 1 else bare))
        if data:
            self._h11.receive_data(data)
        return []

    def _pull(self) -> list[object]:
        """Return the events up to the end of the request or of the received bytes, at most :data:`MOST_EVENTS`."""
        events: list[object] = []
        self._stopped = False
        if self._broken:
            return events
        for _ in range(MOST_EVENTS):
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                return events + self._break(error)
            if event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return events
            if isinstance(event, h11.Request):
                self._note_state()
                events += self._receive_head(event)
                if self._h11.they_are_waiting_for_100_continue and not self.over and self.answering:
                    self._send(h11.InformationalResponse(status_code=100, headers=[]))
            elif isinstance(event, h11.Data):
                events += self.on_body(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._body_incomplete = False
                # Bytes behind the request are parsed when its answer is complete, even if it is the last request.
                return [*events, *(self.on_body_end() if self._refused is None else ())]
            if self.over or (self._refused is not None and self._body_incomplete):
                return events
        self._stopped = True
        return events

    def _end_of_input(self) -> list[object]:
        """Return the events caused by the end of input, if all bytes before it were processed."""
        if self.over or self._behind or self._stopped or self._rest_dropped:
            return []
        self._h11.receive_data(b"")
        events = self._pull()
        self._note_state()
        return events

    def _receive_head(self, head: h11.Request) -> Iterable[object]:
        self._refused, self._body_incomplete = None, True
        self._without_body = head.method == b"HEAD"
        self._target = head.target.decode("latin-1") if head.target.startswith(b"/") else ""
        size = len(head.target)
        for name, value in head.headers:
            size += len(name) + len(value)
        if size > MAX_HEAD:
            return self.refuse(431, "head-too-large", f"request head exceeds the limit of {MAX_HEAD} bytes")
        try:
            request = _parse(head)
            self._body_incomplete = request.length != 0
        except ValueError as error:
            return self.refuse(400, "bad-request", str(error))
        if self.hosts is not None and host_in(request.headers.get("host", "")) not in self.hosts:
            return self.refuse(421, "foreign-host", foreign_host(self.hosts))
        return self._receive_from_page(request)

    def _receive_from_page(self, request: RequestHead) -> Iterable[object]:
        """Return the events of a request, unless it comes from a page that may not send it; answer preflights."""
        preflight = request.headers.get("access-control-request-method") if request.method == "OPTIONS" else None
        verdict = self.origins.judge(preflight or request.method, request.headers)
        self._for_page, self.reads_only = verdict.headers, verdict.reads_only
        if verdict.refusal:
            return self.refuse(403, "foreign-origin", verdict.refusal)
        if preflight is None or not verdict.headers:
            return self.on_request(request)
        if self._body_incomplete:
            return self.refuse(413, "unexpected-body", "unexpected body: send OPTIONS without one")
        self.respond_without_content(self.origins.preflight(verdict))
        return ()

    def _break(self, error: h11.RemoteProtocolError) -> list[object]:
        status = error.error_status_hint if error.error_status_hint in (400, 413, 431, 501) else 400
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.partly_processed:
            body = json.dumps({"error": str(error)}).encode() + b"\n"
            self.respond(status, body, headers={"Connection": "close"})
        self._broken = True
        self._note_state()
        return [Broken(error=RemoteProtocolError("bad-http", str(error)))]


def _response(status: int, content_type: str, length: int | None, headers: Headers) -> h11.Response:
    """Return the head of an answer.

    :param content_type: "" for an answer without a body
    :param length: length of the body, in bytes; None: it is not known yet
    """
    fields = [(b"Content-Type", content_type.encode()), *_ALWAYS] if content_type else [*_ALWAYS]
    if length is not None:
        fields.append((b"Content-Length", b"%d" % length))
    fields += ((name.encode(), value.encode()) for name, value in headers.items())
    return h11.Response(status_code=status, reason=HTTPStatus(status).phrase.encode(), headers=fields)


@lru_cache(maxsize=256)
def _usual_response(status: int, content_type: str, length: int | None) -> h11.Response:
    """Return the head of an answer without further headers, from a cache: most answers repeat earlier lengths.

    h11 checks each header of an answer, which costs more than all the rest of a head.
    """
    return _response(status, content_type, length, {})


def _parse(head: h11.Request) -> RequestHead:
    """Convert the head of a request from h11, decoding its path and query.

    :raises ValueError: the head is invalid; the message is for the peer
    """
    headers: dict[str, str] = {}
    for name, value in head.headers:
        key = name.decode("latin-1").lower()
        if key in _SINGLE and key in headers:
            raise ValueError(f"duplicate {key} header")
        headers[key] = value.decode("latin-1")
    chunked = "transfer-encoding" in headers
    if chunked and head.http_version < b"1.1":
        raise ValueError("Transfer-Encoding in a request of HTTP/1.0, which has none; send Content-Length, or HTTP/1.1")
    if chunked and "content-length" in headers:
        raise ValueError("both Content-Length and Transfer-Encoding are present; send one of them")
    target = head.target.decode("latin-1")
    if target.lower().startswith(("http://", "https://")):  # This absolute form contains the host (RFC 9112, 3.2.2).
        headers["host"], _, rest = target.partition("://")[2].partition("/")
        target = f"/{rest}"
    path, _, query = target.partition("?")
    if not path.startswith("/"):
        raise ValueError("invalid request target: expected a path that begins with a slash")
    try:
        parts = tuple(map(bytes.decode, map(unquote_to_bytes, path[1:].split("/"))))
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except UnicodeDecodeError:
        raise ValueError("invalid path or query: expected percent-encoded UTF-8") from None
    return RequestHead(
        method=head.method.decode("latin-1"),
        path=parts,
        query=dict(pairs),
        headers=headers,
        length=None if chunked else int(headers.get("content-length", "0")),
        framed=chunked or "content-length" in headers,
    )
