"""HTTP connections without a socket: requests, refusals, and independence of how the input is split."""

from __future__ import annotations

import json
from collections.abc import Iterable
from random import Random

import attrs
import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import Broken, LocalProtocolError
from fyrehose.testing import every_chunking, feed
from fyrehose.web.requests import MAX_HEAD
from fyrehose.web.session import MAX_AHEAD, MOST_EVENTS, RequestBody, RequestHead, RequestRefused, WebSession

GET = b"GET /a%2Fb/c?x=1&y= HTTP/1.1\r\nHost: localhost:80\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"


@attrs.define(eq=False)
class EchoedBody(RequestBody):
    """A body with which its request is answered."""

    session: Echo
    got: bytes = b""

    def add(self, data: bytes) -> Iterable[object]:
        self.got += data
        self.session.collected = len(self.got)
        return ()

    def end(self) -> Iterable[object]:
        self.session.respond(200, self.got, "text/plain")
        return (self.got,)


@attrs.define(eq=False)
class Echo(WebSession):
    """A session that answers each request with its body.

    :ivar collected: how many bytes of the present body have arrived
    """

    collected: int = 0

    def on_request(self, request: RequestHead) -> Iterable[object]:
        self.exchange.body, self.collected = EchoedBody(self), 0
        return (request,)


def sent(session: WebSession) -> bytes:
    return b"".join(session.data_to_send())


def answer(session: WebSession) -> tuple[int, dict[str, str], bytes]:
    head, _, body = sent(session).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}, body


def test_a_request_is_parsed_and_answered() -> None:
    session = WebSession()
    (request,) = session.receive_data(GET)
    assert request == RequestHead(
        method="GET",
        path=("a/b", "c"),
        query={"x": "1", "y": ""},
        headers={"host": "localhost:80"},
        length=0,
        framed=False,
    )
    assert session.answering
    session.respond(200, b"{}\n")
    status, headers, body = answer(session)
    assert (status, body) == (200, b"{}\n")
    assert headers["content-type"] == "application/json"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert not session.answering
    assert not session.more


@attrs.define(eq=False)
class Choosy(Echo):
    """A session that refuses requests for /refused before it has read their bodies; a body is one event."""

    def on_request(self, request: RequestHead) -> Iterable[object]:
        self.exchange.body = Whole(self)
        return (request,) if request.path == ("",) else self.refuse(404, "no-such", "nothing here")


class Whole(EchoedBody):
    def end(self) -> Iterable[object]:
        return (self.got,)


class Sent:
    """A random request as a client sends it.

    :ivar fault: why the program does not answer it
    :ivar last: whether the connection ends with its answer
    :ivar unread: whether it is refused before its body is read
    :ivar events: its events: the method, the body, and the types of others
    :ivar answer: the status and the body of its answer, and how often the client is told to go on
    """

    def __init__(self, dice: Random) -> None:
        self.method, minor, body = (
            dice.choice(("GET", "HEAD")),
            dice.choice("0111"),
            b"x" * dice.choice((0, 0, 10, 300)),
        )
        self.fault = dice.choice([""] * 6 + ["refused"] * 2 + ["malformed", "incomplete" if body else ""])
        close, waits, chunked = dice.random() < 0.1, dice.random() < 0.5, minor == "1" and dice.random() < 0.5
        has_body = chunked or bool(body)
        self.unread = self.fault == "refused" and has_body
        self.last = close or minor == "0" or self.fault in ERRORS or self.unread
        status, said = (
            (400, ERRORS[self.fault]) if self.fault in ERRORS else (404, REFUSAL) if self.fault else (200, ANSWER)
        )
        self.events = [self.method, body] if not self.fault else [self.method, Broken]
        if self.fault == "malformed":
            self.data, self.method, self.events, waits = b"BAD\r\n\r\n", "GET", [Broken], False
            self.answer = 400, said, 0
            return
        if self.fault == "refused":
            self.events = [RequestRefused]
        goes_on = waits and minor == "1" and has_body and self.fault != "refused"
        self.answer = status, said * (self.method != "HEAD"), int(goes_on)
        path = self.fault if self.fault == "refused" else ""
        head = f"{self.method} /{path} HTTP/1.{minor}\r\nHost: x\r\n" + "Connection: close\r\n" * close
        head += "Expect: 100-continue\r\n" * waits
        head += "Transfer-Encoding: chunked\r\n\r\n" if chunked else f"Content-Length: {len(body)}\r\n\r\n"
        content = (b"a\r\nxxxxxxxxxx\r\n" * (len(body) // 10) + b"0\r\n\r\n") if chunked else body
        cut = dice.randint(1, len(content)) if self.fault == "incomplete" else 0
        self.data = head.encode() + content[: len(content) - cut] + b"BAD\r\n\r\n" * (self.last and not cut)

    def read_answer(self, data: bytes) -> bytes:
        """Check its answer at the beginning of *data*, and return the rest."""
        peer, goes_on, body = h11.Connection(h11.CLIENT), 0, b""
        peer.send(h11.Request(method=self.method, target="/", headers=[("Host", "x")]))
        peer.send(h11.EndOfMessage())
        peer.receive_data(data)
        while not isinstance(event := peer.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                peer.receive_data(b"")
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.InformationalResponse):
                goes_on += 1
            else:
                status, closes = event.status_code, (b"connection", b"close") in event.headers
        assert ((status, body, goes_on), closes) == (self.answer, self.last)
        return peer.trailing_data[0]


ANSWER, REFUSAL = b"the answer", b'{"error": "nothing here"}\n'
ERRORS = {
    "malformed": b'{"error": "the first line is not a request such as GET /path HTTP/1.1"}\n',
    "incomplete": b'{"error": "the connection ended within a request"}\n',
}


def answer_a_part(session: WebSession, left: bytes | None, dice: Random) -> bytes | None:
    """Answer at once, or begin to, or go on; return what is left to send of the answer; None: nothing was begun."""
    assert (session.unanswered, session.streaming) == (left is None, left is not None)
    if left is None and dice.random() < 0.5:
        session.respond(200, ANSWER, "text/plain")
    elif left is None:
        session.start(200, "text/plain", {}, dice.choice((None, len(ANSWER))))
        return ANSWER
    elif left:
        size = dice.randrange(len(left) + 1)
        session.send(left[:size])
        return left[size:]
    else:
        session.end()
    return None


def answer_in_pieces(dice: Random) -> None:
    """Send requests in random pieces, and answer each in random pieces; check the events and the answers."""
    session, requests = Choosy(), [Sent(dice)]
    while not requests[-1].last and dice.random() < 0.8:
        requests.append(Sent(dice))
    unsent = b"".join(b"\r\n" * dice.randrange(3) + each.data for each in requests)
    ended, got, out, left = False, list[object](), b"", None
    while unsent or not ended or session.more or session.answering:
        events: list[object] = []
        match dice.randrange(3):
            case 0 if unsent:
                size = dice.choice((1, 10, 100, len(unsent)))
                events, unsent = session.receive_data(unsent[:size]), unsent[size:]
            case 0 if not ended:
                events, ended = session.receive_eof(), True
            case 1:
                events = session.next_events()
            case _ if session.answering and isinstance(got[-1], bytes):
                left = answer_a_part(session, left, dice)
        for event in events:
            assert not isinstance(event, RequestHead) or left is None, "the answer before it is incomplete"
            got.append(getattr(event, "method", event if isinstance(event, bytes) else type(event)))
        out += sent(session)
        refused = got[-1:] == [RequestRefused] and len(got) == sum(len(each.events) for each in requests)
        assert session.body_unread == (refused and requests[-1].unread and not ended)
    assert got == [event for each in requests for event in each.events]
    for each in requests:
        out = each.read_answer(out)
    assert (out, session.over, session.expected, session.body_unread) == (b"", True, 0, False)


def test_requests_are_answered_one_after_the_other_however_they_arrive_and_are_answered() -> None:
    for seed in range(400):
        answer_in_pieces(Random(seed))


def test_answers_have_the_date_if_the_time_is_known() -> None:
    times = iter((0.5, 784_111_777.9, 784_111_778.0))
    session = WebSession(now=lambda: next(times))
    dates = []
    for _ in range(3):
        session.receive_data(GET)
        session.respond(200, b"")
        dates.append(answer(session)[1].get("date"))
        session.next_events()
    assert dates == [None, "Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:38 GMT"]


def test_events_are_not_buffered_by_nginx() -> None:
    for kind, header in (("text/event-stream", "no"), ("application/x-ndjson", None)):
        session = WebSession()
        session.receive_data(GET)
        session.start(200, kind)
        assert answer(session)[1].get("x-accel-buffering") == header


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_options_of_the_whole_server_are_answered(version: str) -> None:
    session = WebSession(frozenset({"x"}))
    assert session.receive_data(f"OPTIONS * HTTP/{version}\r\nHost: x\r\n\r\n".encode()) == []
    assert answer(session)[0] == 204
    assert (session.answering, session.over) == (False, version == "1.0")
    (event,) = WebSession().receive_data(b"GET * HTTP/1.1\r\nHost: x\r\n\r\n")
    assert isinstance(event, RequestRefused)


def test_http_1_0_request_without_a_host_is_answered() -> None:
    """Health checks of HAProxy send none; every browser does."""
    (event,) = WebSession(frozenset({"localhost"})).receive_data(b"GET / HTTP/1.0\r\n\r\n")
    assert isinstance(event, RequestHead)


def test_many_events_are_processed_in_batches() -> None:
    session = Echo()
    events = session.receive_data(CHUNKED + b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n" + GET)
    assert session.collected == MOST_EVENTS - 1
    assert session.receive_eof() == []
    while session.more:
        events += session.next_events()
    assert session.collected == 0
    assert events[-1] == b"", "the body of the GET"
    assert events[1] == b"x" * 1000
    assert session.over


def test_too_many_pipelined_bytes_are_reported() -> None:
    session = WebSession()
    session.receive_data(GET)
    session.receive_data(b"x" * MAX_AHEAD)
    assert not session.read_ahead_full
    session.receive_data(b"x")
    assert session.read_ahead_full


def test_a_streamed_answer_of_known_length_has_no_chunks() -> None:
    session = WebSession()
    session.receive_data(GET)
    session.start(200, "text/plain", {}, 7)
    session.send(b"four")
    with pytest.raises(LocalProtocolError, match="3 bytes of the body of an answer were not sent"):
        session.end()
    with pytest.raises(LocalProtocolError, match="is 1 bytes longer than its Content-Length"):
        session.send(b"more")
    session.send(b"333")
    session.end()
    status, headers, body = answer(session)
    assert (status, headers["content-length"], body) == (200, "7", b"four333")
    assert "transfer-encoding" not in headers
    assert not session.answering
    assert not session.more


def test_answer_to_head_has_no_body() -> None:
    session = WebSession()
    session.receive_data(GET.replace(b"GET", b"HEAD"))
    session.respond(200, b"four")
    status, headers, body = answer(session)
    assert (status, headers["content-length"], body) == (200, "4", b"")
    assert not session.answering
    assert not session.more


@pytest.mark.parametrize(
    ("status", "retriable", "more"),
    [
        (401, False, {"www-authenticate": "Bearer"}),
        (404, False, {}),
        (408, True, {}),
        (429, True, {"retry-after": "5"}),
        (503, True, {"retry-after": "5"}),
    ],
)
def test_refusal_is_an_answer_and_the_connection_stays_open(status: int, retriable: bool, more: dict[str, str]) -> None:
    session = WebSession()
    session.receive_data(GET)
    assert session.refuse(status, "no-such", "there is no ä", {"X": "y"}, more=1) == [
        RequestRefused(status=status, cause="no-such", detail="there is no ä")
    ]
    found, headers, body = answer(session)
    assert (found, headers["x"], "connection" in headers) == (status, "y", False)
    assert {name: headers[name] for name in ("www-authenticate", "retry-after") if name in headers} == more
    assert json.loads(body) == {"error": "there is no ä", "more": 1} | ({"retriable": True} if retriable else {})
    assert len(session.receive_data(GET) + session.next_events()) == 1


@pytest.mark.parametrize(("request_line", "url"), [("GET /a%2Fb?x=1", "http://h:1/a%2Fb?x=1"), ("GET http://x/", "")])
def test_request_is_redirected_to_the_same_path_of_another_server(request_line: str, url: str) -> None:
    session = WebSession()
    assert session.elsewhere("http://h:1") == {}, "no request has come"
    session.receive_data(f"{request_line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert session.elsewhere("http://h:1") == ({"Location": url} if url else {})
    assert session.elsewhere("") == {}


@pytest.mark.parametrize("target", ["http://localhost:80/a%2Fb/c?x=1", "HTTPS://LOCALHOST/a%2Fb/c?x=1"])
def test_target_in_absolute_form_replaces_the_host_header(target: str) -> None:
    session = WebSession(frozenset({"localhost"}))
    (request,) = session.receive_data(f"GET {target} HTTP/1.1\r\nHost: another.example\r\n\r\n".encode())
    assert isinstance(request, RequestHead)
    assert (request.path, request.query) == (("a/b", "c"), {"x": "1"})
    foreign = WebSession(frozenset({"localhost"}))
    (event,) = foreign.receive_data(b"GET http://rebound.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert isinstance(event, RequestRefused)
    assert event.status == 421


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET x HTTP/1.1\r\nHost: x", 400),
        ("GET /%ff HTTP/1.1\r\nHost: x", 400),
        ("GET /?%ff=1 HTTP/1.1\r\nHost: x", 400),
        ("GET /?" + "&".join("a" * 30) + " HTTP/1.1\r\nHost: x", 400),
        ("GET / HTTP/1.1\r\nHost: x\r\nAuthorization: a\r\nAuthorization: b", 400),
        ("POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: a\r\nidempotency-key: b", 400),
        ("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked", 400),
    ],
)
def test_invalid_request_is_refused(head: str, status: int) -> None:
    session = WebSession()
    (event,) = session.receive_data(f"{head}\r\n\r\n".encode())
    assert isinstance(event, RequestRefused)
    assert answer(session)[0] == status == event.status
    assert session.over


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * MAX_HEAD, 431),
        (b"GET /" + b"y" * MAX_HEAD + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (CHUNKED + b"zz\r\n", 400),
    ],
)
def test_invalid_http_breaks_the_connection(data: bytes, status: int) -> None:
    session = Echo()
    *_, last = session.receive_data(data)
    assert isinstance(last, Broken)
    assert last.error.cause == ("head-too-large" if status == 431 else "bad-http")
    assert answer(session)[0] == status
    assert session.over
    assert session.receive_data(GET) == []
    assert session.expected == 0


#: Heads that two parsers may read differently, and what is wrong with each.
AMBIGUOUS = {
    b"GET / HTTP/1.1\nHost: x\r\n\r\n": "bare LF",
    b"GET / HTTP/1.1\r\nHost: x\n\r\n": "bare LF",
    b"GET / HTTP/1.1\r\nHost: x\r\n\n": "bare LF",
    b"GET / HTTP/1.1\r\nHost: x\r\nA: b\nContent-Length: 3\r\n\r\nabc": "bare LF",
    b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n": "continues the line before it",
    b"GET / HTTP/1.1\r\nHost: x\r\nA:\r\n\tb\r\n\r\n": "continues the line before it",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n 3\r\n\r\nabc": "continues the line before it",
}


@pytest.mark.parametrize("data", AMBIGUOUS)
@pytest.mark.parametrize("before", [b"", POST], ids=["first", "second"])
def test_an_ambiguous_head_is_refused_however_the_bytes_are_cut(data: bytes, before: bytes) -> None:
    for chunks in every_chunking(before + data):
        session = Echo()
        events = feed(session, chunks)
        assert isinstance(events[-1], Broken)
        assert sum(isinstance(event, RequestHead) for event in events) == bool(before)
        said = sent(session).split(b"HTTP/1.1 ")[-1]
        assert said.startswith(b"400 ")
        assert AMBIGUOUS[data].encode() in said
        assert session.over


def test_bodies_may_have_any_line_ends() -> None:
    body = b"a\nb\r\n c\n\td\n\n"
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    for chunks in every_chunking(head + body):
        assert feed(Echo(), chunks)[-1] == body


@pytest.mark.parametrize("headers", ["", "Connection: keep-alive\r\n"])
def test_a_chunked_body_of_http_1_0_is_refused_and_not_read(headers: str) -> None:
    session = Echo()
    head = f"POST / HTTP/1.0\r\nHost: x\r\n{headers}Transfer-Encoding: chunked\r\n\r\n".encode()
    (event,) = session.receive_data(head + b"3\r\nabc\r\n0\r\n\r\n" + GET)
    assert isinstance(event, RequestRefused)
    assert event.status == 400
    assert answer(session)[0] == 400
    assert session.over
    assert session.next_events() == []


@pytest.mark.parametrize(
    ("hosts", "host", "status"),
    [
        (None, "anything.example", 200),
        (frozenset({"localhost", "::1"}), "localhost:8118", 200),
        (frozenset({"localhost", "::1"}), "LOCALHOST", 200),
        (frozenset({"localhost", "::1"}), "[::1]:8118", 200),
        (frozenset({"localhost", "::1"}), "rebound.example:8118", 421),
        (frozenset({"localhost", "::1"}), "localhost.example", 421),
        (frozenset({"localhost"}), "", 421),
        (frozenset({"localhost"}), "localhost.", 200),
        (frozenset({"localhost"}), "localhost.:80", 200),
        (frozenset({"localhost"}), "localhost..", 421),
        (frozenset({"localhost"}), "localhost:", 400),
        (frozenset({"localhost"}), "localhost:x", 400),
        (frozenset({"localhost"}), "localhost:80@evil.example", 400),
        (frozenset({"localhost"}), "localhost:80:80", 400),
        (frozenset({"localhost"}), "user@localhost", 400),
        (frozenset({"localhost"}), "localhost/evil", 400),
        (frozenset({"localhost"}), "local host", 400),
        (frozenset({"::1"}), "[::1]evil:80", 400),
        (frozenset({"::1"}), "[::1", 400),
        (frozenset({"::1"}), "::1", 400),
        (None, "localhost:80@evil.example", 400),
        (None, "caf\u00e9.example", 400),
        (None, "my_server:8117", 200),
        (None, "[fe80::1%25eth0]:80", 200),
        (None, "", 200),
    ],
)
def test_only_known_hosts_are_accepted(hosts: frozenset[str] | None, host: str, status: int) -> None:
    """A page of another site whose name resolves to this machine is refused (DNS rebinding)."""
    session = WebSession(hosts)
    (event,) = session.receive_data(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))
    assert (event.status if isinstance(event, RequestRefused) else 200) == status


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("Origin: http://localhost:80", True),
        ("Origin: https://localhost:80", True),
        ("Origin: http://evil.example", False),
        ("Origin: null", False),
        ("Sec-Fetch-Site: same-origin", True),
        ("Sec-Fetch-Site: none", True),
        ("Sec-Fetch-Site: cross-site", False),
        ("X: y", True),
    ],
)
def test_requests_of_foreign_pages_are_refused(header: str, allowed: bool) -> None:
    session = WebSession()
    (event,) = session.receive_data(f"GET / HTTP/1.1\r\nHost: localhost:80\r\n{header}\r\n\r\n".encode())
    assert isinstance(event, RequestHead) is allowed


def test_an_incomplete_head_reports_the_size_that_it_may_reach() -> None:
    session = WebSession()
    assert session.expected == 0
    session.receive_data(GET[:10])
    assert session.expected == 10
    session.receive_data(GET[10:])
    assert session.expected == 0


def test_an_answer_without_a_request_is_an_error_of_the_program() -> None:
    session = WebSession()
    session.receive_data(GET)
    session.respond(200, b"")
    with pytest.raises(LocalProtocolError):
        session.send(b"more")


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_random_bytes_never_raise(chunks: list[bytes]) -> None:
    session = Echo(frozenset({"x"}))
    for chunk in chunks:
        for event in session.receive_data(chunk):
            assert isinstance(event, RequestHead | RequestRefused | Broken | bytes)
        if session.more:
            session.next_events()
    session.receive_eof()
