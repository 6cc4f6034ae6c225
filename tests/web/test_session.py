"""HTTP connections without a socket: requests, refusals, and independence of how the input is split."""

from __future__ import annotations

import json
from collections.abc import Iterable

import attrs
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


@pytest.mark.parametrize(
    "data",
    [
        POST,
        POST * 2,
        GET.replace(b"GET", b"HEAD"),
        b"\r\n" + POST + b"\r\n\r\n" + POST,
        CHUNKED + b"3\r\nabc\r\n0\r\n\r\n",
    ],
)
def test_events_do_not_depend_on_chunking(data: bytes) -> None:
    def run(chunks: list[bytes]) -> tuple[list[object], bytes]:
        session = Echo()
        return feed(session, chunks), sent(session)

    whole = run([data])
    for chunks in every_chunking(data):
        assert run(chunks) == whole


@pytest.mark.parametrize("cut", range(len(POST), len(POST) + 4))
def test_empty_lines_before_and_between_requests_are_skipped(cut: int) -> None:
    session, data = Echo(), b"\r\n" + POST + b"\r\n\r\n" + GET + b"\r\n"
    for piece in (data[: cut + 2], data[cut + 2 :]):
        session.receive_data(piece)
        session.next_events()
    assert sent(session).count(b"HTTP/1.1 200 ") == 2
    assert session.receive_eof() == []
    assert session.over


def test_malformed_request_behind_any_other_is_answered() -> None:
    for before in (b"", GET, POST, POST * 2, POST.replace(b"hello", b"")[:-1] + b"\nhello"):
        for chunks in ([before + b"BAD\r\n\r\n"], [before, b"BAD\r\n\r\n"]):
            session = Echo()
            assert isinstance(feed(session, chunks)[-1], Broken)
            assert sent(session).count(b"HTTP/1.1 400 ") == 1


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


def test_pipelined_request_waits_until_the_answer_before_it_is_complete() -> None:
    session = WebSession()
    first = session.receive_data(GET + GET)
    assert len(first) == 1
    assert session.next_events() == []
    assert session.receive_data(GET) == []
    for _ in range(2):
        session.respond(200, b"")
        assert len(session.next_events()) == 1
    session.respond(200, b"")
    assert session.next_events() == []
    assert not session.over


def test_too_many_pipelined_bytes_are_reported() -> None:
    session = WebSession()
    session.receive_data(GET)
    session.receive_data(b"x" * MAX_AHEAD)
    assert not session.read_ahead_full
    session.receive_data(b"x")
    assert session.read_ahead_full


def test_answer_can_be_streamed() -> None:
    session = WebSession()
    session.receive_data(GET)
    session.start(200, "text/event-stream")
    assert session.streaming
    session.send(b"data: 1\n\n")
    session.send(b"")
    assert session.streaming
    session.end()
    assert not session.streaming
    assert b"9\r\ndata: 1\n\n\r\n0\r\n\r\n" in sent(session)


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


def test_invalid_request_behind_a_head_is_answered_with_a_body() -> None:
    session = WebSession()
    session.receive_data(GET.replace(b"GET", b"HEAD") + b"nonsense\r\n\r\n")
    session.respond(200, b"")
    sent(session)
    assert isinstance(session.next_events()[-1], Broken)
    assert answer(session)[2].startswith(b'{"error"')


def test_bytes_behind_the_last_request_do_not_affect_its_answer() -> None:
    session = WebSession()
    (event,) = session.receive_data(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + b"\r\n\r\nmore")
    assert isinstance(event, RequestHead)
    session.respond(200, b"{}")
    assert answer(session)[0] == 200
    assert session.over


def test_http_1_0_request_is_answered_and_the_connection_closed() -> None:
    session = WebSession()
    session.receive_data(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
    session.start(200, "text/plain")
    session.send(b"as it comes")
    session.end()
    assert sent(session).endswith(b"\r\n\r\nas it comes")
    assert session.over


def test_refusal_is_an_answer_and_the_connection_stays_open() -> None:
    session = WebSession()
    session.receive_data(GET)
    assert session.refuse(404, "no-such", "there is no ä", {"X": "y"}, more=1) == [
        RequestRefused(status=404, cause="no-such", detail="there is no ä")
    ]
    status, headers, body = answer(session)
    assert (status, headers["x"]) == (404, "y")
    assert json.loads(body) == {"error": "there is no ä", "more": 1}
    assert "connection" not in headers
    assert len(session.receive_data(GET) + session.next_events()) == 1


def test_refusal_that_leaves_a_body_unread_closes_the_connection() -> None:
    session = WebSession()
    events = session.receive_data(POST[:-3])
    assert [type(event) for event in events] == [RequestRefused]
    status, headers, _ = answer(session)
    assert (status, headers["connection"]) == (413, "close")
    assert session.over
    assert session.body_unread
    assert session.receive_data(b"llo") == []
    session.receive_eof()
    assert not session.body_unread


def test_expect_100_continue_is_answered_unless_the_request_is_refused() -> None:
    head = POST.replace(b"\r\n\r\nhello", b"\r\nExpect: 100-continue\r\n\r\n")
    session = Echo()
    session.receive_data(head)
    assert sent(session) == b"HTTP/1.1 100 Continue\r\n\r\n"
    refusing = WebSession()
    refusing.receive_data(head)
    assert answer(refusing)[0] == 413


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


def test_truncated_body_breaks_the_connection() -> None:
    session = Echo()
    session.receive_data(POST[:-1])
    assert isinstance(session.receive_eof()[-1], Broken)


def test_end_of_input_between_requests_ends_the_connection() -> None:
    session = WebSession()
    assert session.receive_eof() == []
    assert session.over


def test_end_of_input_behind_requests_waits_for_their_answers() -> None:
    session = WebSession()
    session.receive_data(GET + GET)
    assert session.receive_eof() == []
    session.respond(200, b"")
    assert len(session.next_events()) == 1
    session.respond(200, b"")
    assert session.next_events() == []
    assert session.over


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
