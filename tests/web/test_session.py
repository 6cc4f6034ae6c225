"""One HTTP connection without a socket: what is asked, what is refused, and that the cuts do not matter."""

from __future__ import annotations

import json
from collections.abc import Iterable

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import Broken, LocalProtocolError
from fyrehose.testing import every_chunking
from fyrehose.web.session import MAX_AHEAD, MAX_HEAD, MOST_EVENTS, Asked, Refused, WebSession

GET = b"GET /a%2Fb/c?x=1&y= HTTP/1.1\r\nHost: localhost:80\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"


@attrs.define(eq=False)
class Taking(WebSession):
    """Takes bodies, and answers with them."""

    got: bytes = b""

    def asked(self, asked: Asked) -> Iterable[object]:
        self.got = b""
        return (asked,)

    def body(self, data: bytes) -> Iterable[object]:
        self.got += data
        return ()

    def complete(self) -> Iterable[object]:
        self.respond(200, self.got, "text/plain")
        return (self.got,)


def sent(session: WebSession) -> bytes:
    return b"".join(session.data_to_send())


def answer(session: WebSession) -> tuple[int, dict[str, str], bytes]:
    head, _, body = sent(session).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}, body


def test_a_request() -> None:
    session = WebSession()
    (asked,) = session.receive_data(GET)
    assert asked == Asked(
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
    assert session.between


@pytest.mark.parametrize("data", [POST, POST * 2, GET.replace(b"GET", b"HEAD")])
def test_cuts_do_not_matter(data: bytes) -> None:
    def run(chunks: Iterable[bytes]) -> tuple[list[object], bytes]:
        session, events = Taking(), []
        for chunk in chunks:
            events += session.receive_data(chunk)
            while session.between:
                events += session.next_events()
                if not session.answering:
                    break
        return events, sent(session)

    whole = run([data])
    for chunks in every_chunking(data):
        assert run(chunks) == whole


def test_chunks_are_put_together() -> None:
    session = Taking()
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    events = session.receive_data(head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    assert events[-1] == b"abcde"
    assert isinstance(events[0], Asked)
    assert events[0].length is None


def test_much_is_taken_in_parts() -> None:
    session = Taking()
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    events = session.receive_data(head + b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n" + GET)
    assert len(session.got) == MOST_EVENTS - 1
    assert session.receive_eof() == []
    while session.more:
        events += session.next_events()
    assert session.got == b""
    assert events[-1] == b"", "the GET, which has no body"
    assert events[1] == b"x" * 1000
    assert session.over


def test_what_comes_behind_a_request_waits_until_its_answer_is_over() -> None:
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


def test_too_much_ahead_is_said() -> None:
    session = WebSession()
    session.receive_data(GET)
    session.receive_data(b"x" * MAX_AHEAD)
    assert not session.crowded
    session.receive_data(b"x")
    assert session.crowded


def test_a_streamed_answer() -> None:
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


def test_an_answer_to_head_has_no_body() -> None:
    session = WebSession()
    session.receive_data(GET.replace(b"GET", b"HEAD"))
    session.respond(200, b"four")
    status, headers, body = answer(session)
    assert (status, headers["content-length"], body) == (200, "4", b"")
    assert session.between


def test_what_is_no_http_behind_a_head_is_answered_with_a_body() -> None:
    session = WebSession()
    session.receive_data(GET.replace(b"GET", b"HEAD") + b"nonsense\r\n\r\n")
    session.respond(200, b"")
    sent(session)
    assert isinstance(session.next_events()[-1], Broken)
    assert answer(session)[2].startswith(b'{"error"')


def test_what_comes_behind_the_last_request_does_not_spoil_its_answer() -> None:
    session = WebSession()
    (event,) = session.receive_data(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + b"\r\n\r\nmore")
    assert isinstance(event, Asked)
    session.respond(200, b"{}")
    assert answer(session)[0] == 200
    assert session.over


def test_http_1_0_is_answered_and_closed() -> None:
    session = WebSession()
    session.receive_data(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
    session.start(200, "text/plain")
    session.send(b"as it comes")
    session.end()
    assert sent(session).endswith(b"\r\n\r\nas it comes")
    assert session.over


def test_a_refusal_is_an_answer_and_the_connection_goes_on() -> None:
    session = WebSession()
    session.receive_data(GET)
    assert session.refuse(404, "no-such", "there is no ä", {"X": "y"}, more=1) == [
        Refused(status=404, cause="no-such", detail="there is no ä")
    ]
    status, headers, body = answer(session)
    assert (status, headers["x"]) == (404, "y")
    assert json.loads(body) == {"error": "there is no ä", "more": 1}
    assert "connection" not in headers
    assert len(session.receive_data(GET) + session.next_events()) == 1


def test_a_refusal_that_leaves_a_body_unread_closes() -> None:
    session = WebSession()
    events = session.receive_data(POST[:-3])
    assert [type(event) for event in events] == [Refused]
    status, headers, _ = answer(session)
    assert (status, headers["connection"]) == (413, "close")
    assert session.over
    assert session.unread
    assert session.receive_data(b"llo") == []
    session.receive_eof()
    assert not session.unread


def test_who_waits_before_sending_a_body_is_told_to_go_on() -> None:
    head = POST.replace(b"\r\n\r\nhello", b"\r\nExpect: 100-continue\r\n\r\n")
    session = Taking()
    session.receive_data(head)
    assert sent(session) == b"HTTP/1.1 100 \r\n\r\n"
    refusing = WebSession()
    refusing.receive_data(head)
    assert answer(refusing)[0] == 413


@pytest.mark.parametrize("target", ["http://localhost:80/a%2Fb/c?x=1", "HTTPS://LOCALHOST/a%2Fb/c?x=1"])
def test_a_request_as_proxies_are_asked(target: str) -> None:
    session = WebSession(frozenset({"localhost"}))
    (asked,) = session.receive_data(f"GET {target} HTTP/1.1\r\nHost: another.example\r\n\r\n".encode())
    assert isinstance(asked, Asked)
    assert (asked.path, asked.query) == (("a/b", "c"), {"x": "1"})
    foreign = WebSession(frozenset({"localhost"}))
    (event,) = foreign.receive_data(b"GET http://rebound.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert isinstance(event, Refused)
    assert event.status == 421


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET x HTTP/1.1\r\nHost: x", 400),
        ("GET /%ff HTTP/1.1\r\nHost: x", 400),
        ("GET /?%ff=1 HTTP/1.1\r\nHost: x", 400),
        ("GET /?" + "&".join("a" * 30) + " HTTP/1.1\r\nHost: x", 400),
        ("GET / HTTP/1.1\r\nHost: x\r\nAuthorization: a\r\nAuthorization: b", 400),
        ("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked", 400),
        ("GET / HTTP/1.1\r\nHost: x\r\nX: " + "y" * MAX_HEAD, 431),
        ("GET /" + "y" * MAX_HEAD + " HTTP/1.1\r\nHost: x", 431),
    ],
)
def test_requests_that_are_none(head: str, status: int) -> None:
    session = WebSession()
    (event,) = session.receive_data(f"{head}\r\n\r\n".encode())
    assert isinstance(event, Refused)
    assert answer(session)[0] == status == event.status
    assert session.over


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * MAX_HEAD, 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
)
def test_what_is_no_http_breaks_the_connection(data: bytes, status: int) -> None:
    session = Taking()
    *_, last = session.receive_data(data)
    assert isinstance(last, Broken)
    assert last.error.cause == "bad-http"
    assert answer(session)[0] == status
    assert session.over
    assert session.receive_data(GET) == []
    assert session.expected == 0


def test_a_body_that_ends_early_breaks_the_connection() -> None:
    session = Taking()
    session.receive_data(POST[:-1])
    assert isinstance(session.receive_eof()[-1], Broken)


def test_the_end_between_requests_is_the_end() -> None:
    session = WebSession()
    assert session.receive_eof() == []
    assert session.over


def test_the_end_behind_a_request_waits_for_its_answer() -> None:
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
    ],
)
def test_names_that_it_may_be_asked_for_by(hosts: frozenset[str] | None, host: str, status: int) -> None:
    """A page of a foreign site whose name was made to lead here gets nothing."""
    session = WebSession(hosts)
    (event,) = session.receive_data(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert (event.status if isinstance(event, Refused) else 200) == status


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
def test_pages_of_other_sites_may_not_ask(header: str, allowed: bool) -> None:
    session = WebSession()
    (event,) = session.receive_data(f"GET / HTTP/1.1\r\nHost: localhost:80\r\n{header}\r\n\r\n".encode())
    assert isinstance(event, Asked) is allowed


def test_what_is_coming_in_is_known() -> None:
    session = WebSession()
    assert session.expected == 0
    session.receive_data(GET[:10])
    assert session.expected == 10
    session.receive_data(GET[10:])
    assert session.expected == 0


def test_answering_what_was_not_asked_is_our_own_mistake() -> None:
    session = WebSession()
    session.receive_data(GET)
    session.respond(200, b"")
    with pytest.raises(LocalProtocolError):
        session.send(b"more")


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_random_bytes_end_in_an_answer_or_wait_for_more(chunks: list[bytes]) -> None:
    session = Taking(frozenset({"x"}))
    for chunk in chunks:
        for event in session.receive_data(chunk):
            assert isinstance(event, Asked | Refused | Broken | bytes)
        if session.between:
            session.next_events()
    session.receive_eof()
