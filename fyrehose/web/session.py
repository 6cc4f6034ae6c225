"""One HTTP/1.1 connection, sans-I/O: h11 reads and writes the messages, the limits and the refusals are ours.

    bytes -> Asked, then what a subclass makes of the body -> respond(), or start(), send() ..., end() -> bytes

One request at a time: what comes behind it is kept, a little of it, until its answer is over.  A refusal is an answer,
too: a status and ``{"error": ...}``.  Where the rest of a body would be read for nothing, the connection is closed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote_to_bytes

import attrs
import h11

from fyrehose.errors import Broken, LocalProtocolError, RemoteProtocolError
from fyrehose.web.places import FOREIGN_ORIGIN, foreign_host, host_in, same_origin

#: The largest head of a request, in bytes.
MAX_HEAD = 16 << 10
#: What is kept of what comes before its turn, in bytes; then the peer is read no further.
MAX_AHEAD = 64 << 10
#: What is made of what came in before others have their turn: heads, pieces and ends of bodies.
MOST_EVENTS = 256
#: The most parameters that a query may have.
MAX_PARAMETERS = 20

#: Goes with every answer: nothing of ours is to be guessed at or kept by a browser.
_ALWAYS = ((b"Cache-Control", b"no-store"), (b"X-Content-Type-Options", b"nosniff"))
JSON = "application/json"

Headers = Mapping[str, str]


@attrs.frozen(slots=True, kw_only=True)
class Asked:
    """The head of a request.

    :ivar path: the parts between the slashes, decoded
    :ivar headers: by lower-case name
    :ivar length: of the body, in bytes; None: it comes in chunks
    :ivar framed: whether anything was said of a body
    """

    method: str
    path: tuple[str, ...]
    query: Mapping[str, str]
    headers: Headers
    length: int | None
    framed: bool


@attrs.frozen(slots=True, kw_only=True)
class Refused:
    """A request was answered by a refusal.

    :ivar cause: a few words joined by dashes, for the counter and the log
    """

    status: int
    cause: str
    detail: str


@attrs.define(eq=False)
class WebSession:
    """A server's side of one connection.  Subclasses say what becomes of heads and bodies.

    :ivar hosts: the names by which it may be asked for, as ``Host`` says them; None: by any.  A page somewhere in the
        web may make a browser ask us under a name of its own.
    """

    hosts: frozenset[str] | None = None
    _h11: h11.Connection = attrs.field(init=False)
    _out: list[bytes] = attrs.field(factory=list, init=False)
    _ahead: bytearray = attrs.field(factory=bytearray, init=False)
    _eof: bool = attrs.field(default=False, init=False)
    _broken: bool = attrs.field(default=False, init=False)
    _refused: Refused | None = attrs.field(default=None, init=False)
    #: whether h11 has more than was asked of it
    _stopped: bool = attrs.field(default=False, init=False)
    #: whether there is a body that has not come in whole
    _bodied: bool = attrs.field(default=False, init=False)
    #: whether the answer has no body; one to HEAD has none
    _silent: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)

    # What a subclass says.

    def asked(self, asked: Asked) -> Iterable[object]:
        """The head is here; this may refuse."""
        if asked.length or asked.length is None:
            return self.refuse(413, "body-not-wanted", "nothing is taken here, so a request has no body")
        return (asked,)

    def body(self, data: bytes) -> Iterable[object]:
        """A piece of the body."""
        return ()

    def complete(self) -> Iterable[object]:
        """The body is over."""
        return ()

    @property
    def body_expected(self) -> int:
        """The size of what is being collected of a body, in bytes."""
        return 0

    @property
    def body_buffered(self) -> int:
        """How much of that is in memory, in bytes."""
        return 0

    @property
    def begun(self) -> bool:
        """Whether something was made of a body that is not over: who knows what became of it answers what is wrong."""
        return False

    # What comes in.

    def receive_data(self, data: bytes) -> list[object]:
        """The events that ``data`` completes."""
        if self.over:
            return []
        if self._behind:
            self._ahead += data
            return []
        self._h11.receive_data(data)
        return self._pull()

    def receive_eof(self) -> list[object]:
        """The peer has finished sending."""
        self._eof = True
        if self.over:
            self._forget()
        return [] if self.over or self._behind or self._stopped else self._end_of_input()

    def next_events(self) -> list[object]:
        """While there is :attr:`more`: what comes behind a request that was answered, or the rest of much."""
        if not self.more:
            return []
        if self.between:
            self._h11.start_next_cycle()
            self._silent = False
            data, self._ahead = bytes(self._ahead), bytearray()
            if data:
                self._h11.receive_data(data)
        events = self._pull()
        if self._eof and not (self._stopped or self._behind or self.over):
            events += self._end_of_input()
        return events

    @property
    def more(self) -> bool:
        """Whether :meth:`next_events` has something to do."""
        return self.between or (self._stopped and not self.over)

    @property
    def between(self) -> bool:
        """Whether an answer is over and another request may follow."""
        return not self._broken and self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

    @property
    def answering(self) -> bool:
        """Whether a request waits for its answer, or for the rest of it."""
        return self._h11.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)

    @property
    def streaming(self) -> bool:
        """Whether an answer has begun and is not over."""
        return self._h11.our_state is h11.SEND_BODY

    @property
    def over(self) -> bool:
        """Whether nothing more can be asked or answered here."""
        return self._broken or self._h11.our_state in (h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)

    @property
    def unread(self) -> bool:
        """Whether the peer is still sending what nobody wants."""
        return self.over and self._bodied and not self._eof

    @property
    def crowded(self) -> bool:
        """Whether too much has come before its turn."""
        return len(self._ahead) > MAX_AHEAD

    @property
    def expected(self) -> int:
        """The size of what is coming in, in bytes, as far as it is known; 0 between requests."""
        if self._broken:
            return 0
        if self._h11.their_state is h11.SEND_BODY:
            return self.body_expected
        return len(self._h11.trailing_data[0]) if self._h11.their_state is h11.IDLE else 0

    @property
    def buffered(self) -> int:
        """How much of that is in memory, in bytes."""
        return self.body_buffered if self._h11.their_state is h11.SEND_BODY else self.expected

    # What goes out.

    def respond(self, status: int, body: bytes, content_type: str = JSON, headers: Headers | None = None) -> None:
        """A whole answer."""
        self.start(status, content_type, {"Content-Length": str(len(body)), **(headers or {})})
        if body:
            self.send(body)
        self.end()

    def respond_without_content(self) -> None:
        """Answer that a request was carried out, and that there is nothing to say about it (204)."""
        self.start(204, "")
        self.end()

    def start(self, status: int, content_type: str, headers: Headers | None = None) -> None:
        """The head of an answer; a *content_type* of "" is for one without a body."""
        said = [(b"Content-Type", content_type.encode()), *_ALWAYS] if content_type else [*_ALWAYS]
        said += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self._send(h11.Response(status_code=status, reason=HTTPStatus(status).phrase.encode(), headers=said))

    def send(self, data: bytes) -> None:
        """A piece of the answer's body."""
        if data and not self._silent:
            self._send(h11.Data(data=data))

    def end(self) -> None:
        """The answer is over."""
        self._send(h11.EndOfMessage())

    def refuse(
        self, status: int, cause: str, detail: str, headers: Headers | None = None, **more: object
    ) -> list[object]:
        """Answer ``detail`` as an error; the event that says so."""
        self._refused = Refused(status=status, cause=cause, detail=detail)
        said = {**(headers or {})}
        if self._bodied:
            said["Connection"] = "close"
        body = json.dumps({"error": detail, **more}, ensure_ascii=False).encode() + b"\n"
        self.respond(status, body, headers=said)
        return [self._refused]

    def data_to_send(self) -> list[bytes]:
        """What is to be written."""
        out, self._out = self._out, []
        return out

    # Inside.

    def _forget(self) -> None:
        """Let go of everything that came in and will not be looked at."""
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._ahead.clear()
        self._broken = True

    @property
    def _behind(self) -> bool:
        """Whether what comes in now comes behind a request that is not answered."""
        return self._h11.their_state is not h11.SEND_BODY and (self.answering or self.between)

    def _send(self, event: h11.Response | h11.Data | h11.EndOfMessage | h11.InformationalResponse) -> None:
        try:
            data = self._h11.send(event)
        except h11.LocalProtocolError as error:
            raise LocalProtocolError(str(error)) from error
        if data:
            self._out.append(data)

    def _pull(self) -> list[object]:
        """Events, until more bytes are needed or an answer is."""
        events: list[object] = []
        self._stopped = False
        for _ in range(MOST_EVENTS):
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                return events + self._offended(error)
            if event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return events
            if isinstance(event, h11.Request):
                events += self._requested(event)
                if self._h11.they_are_waiting_for_100_continue and not self.over and self.answering:
                    self._send(h11.InformationalResponse(status_code=100, headers=[]))
            elif self._refused is None and isinstance(event, h11.Data):
                events += self.body(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._bodied = False
                # What comes behind it has its turn when this is answered, also where nothing may come any more.
                return [*events, *(self.complete() if self._refused is None else ())]
            if self.over:
                return events
        self._stopped = True
        return events

    def _end_of_input(self) -> list[object]:
        self._h11.receive_data(b"")
        return self._pull()

    def _requested(self, request: h11.Request) -> Iterable[object]:
        self._refused, self._bodied = None, True
        self._silent = request.method == b"HEAD"
        if sum(len(name) + len(value) for name, value in request.headers) + len(request.target) > MAX_HEAD:
            return self.refuse(431, "head-too-large", f"the head of a request is {MAX_HEAD} bytes at the most")
        try:
            asked = _asked(request)
            self._bodied = asked.length != 0
        except ValueError as error:
            return self.refuse(400, "bad-request", str(error))
        if self.hosts is not None and host_in(asked.headers.get("host", "")) not in self.hosts:
            return self.refuse(421, "foreign-host", foreign_host(self.hosts))
        if not same_origin(asked.headers):
            return self.refuse(403, "foreign-origin", FOREIGN_ORIGIN)
        return self.asked(asked)

    def _offended(self, error: h11.RemoteProtocolError) -> list[object]:
        status = error.error_status_hint if error.error_status_hint in (400, 413, 431, 501) else 400
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.begun:
            body = json.dumps({"error": str(error)}).encode() + b"\n"
            self.respond(status, body, headers={"Connection": "close"})
        self._broken = True
        return [Broken(error=RemoteProtocolError("bad-http", str(error)))]


def _asked(request: h11.Request) -> Asked:
    """:raises ValueError: says what is wrong with it"""
    headers: dict[str, str] = {}
    for name, value in request.headers:
        key = name.decode("latin-1").lower()
        if key in ("host", "content-type", "authorization", "content-encoding", "origin") and key in headers:
            raise ValueError(f"two {key} headers are one too many")
        headers[key] = value.decode("latin-1")
    chunked = "transfer-encoding" in headers
    if chunked and "content-length" in headers:
        raise ValueError("a body has a length or comes in chunks, and not both")
    target = request.target.decode("latin-1")
    if target.lower().startswith(("http://", "https://")):  # as proxies are asked; the host is in it (RFC 9112, 3.2.2)
        headers["host"], _, rest = target.partition("://")[2].partition("/")
        target = f"/{rest}"
    path, _, query = target.partition("?")
    if not path.startswith("/"):
        raise ValueError("the target of a request is a path that begins with a slash")
    try:
        parts = tuple(unquote_to_bytes(part).decode() for part in path[1:].split("/"))
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except UnicodeDecodeError:
        raise ValueError("a path and its query are UTF-8, percent-encoded") from None
    return Asked(
        method=request.method.decode("latin-1"),
        path=parts,
        query=dict(pairs),
        headers=headers,
        length=None if chunked else int(headers.get("content-length", "0")),
        framed=chunked or "content-length" in headers,
    )
