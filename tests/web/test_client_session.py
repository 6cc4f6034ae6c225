"""The client's side of HTTP: which answers are the server's own, and how long an answer asks to wait."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from fyrehose.errors import RemoteProtocolError
from fyrehose.web.client_session import (
    END,
    LONGEST_RETRY_AFTER,
    MOST_DETAIL,
    ClientSession,
    CollectedAnswer,
    ServerAnswer,
)

JSON = {b"content-type": b"application/json; charset=utf-8"}
HTML = {b"content-type": b"text/html"}


@pytest.mark.parametrize(
    ("status", "headers", "body", "found"),
    [
        (200, JSON, b'{"a": 1}', {"a": 1}),
        (403, JSON, b'{"error": "no"}', {"error": "no"}),
        (503, JSON, b'{"error": "later"}', {"error": "later"}),
        (204, {}, b"", {}),
        (200, HTML, b'{"a": 1}', None),
        (200, {}, b'{"a": 1}', None),
        (200, JSON, b'{"a": ', None),  # cut
        (200, JSON, b"[1]", None),
        (200, JSON, b"[" * 100_000, None),
        (403, JSON, b'{"message": "Forbidden"}', None),  # as API gateways answer
        (403, JSON, b'{"error": {"code": 403}}', None),
        (403, JSON, b"[1]", None),
        (502, JSON, b'{"error": "bad gateway"}', None),  # the server never answers 502 or 504
        (504, JSON, b'{"error": "timeout"}', None),
        (502, HTML, b"<html>", None),
    ],
)
def test_an_answer_is_the_servers_own_if_it_is_an_object_of_the_server(
    status: int, headers: dict[bytes, bytes], body: bytes, found: object
) -> None:
    assert ServerAnswer(status, headers, body).json_object == found


@pytest.mark.parametrize(
    ("status", "own", "met", "passes"),
    [
        (403, True, True, False),
        (500, True, True, False),
        (503, True, False, True),
        (429, True, False, True),
        (408, False, False, True),
        (502, False, False, True),
        (500, False, False, True),  # the program at this address has trouble
        (404, False, False, False),  # the address is another program's
        (200, False, False, False),
        (404, False, True, True),  # a proxy that was told of no server, for now
        (200, False, True, True),
    ],
)
def test_an_answer_passes_if_the_server_did_not_give_it(status: int, own: bool, met: bool, passes: bool) -> None:
    assert ServerAnswer(status).passes(own, met) is passes


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0),
        ({b"retry-after": b"3"}, 3),
        ({b"retry-after": b"0"}, 0),
        ({b"retry-after": b"86400"}, LONGEST_RETRY_AFTER),
        ({b"retry-after": b"9" * 5_000}, LONGEST_RETRY_AFTER),
        ({b"retry-after": b"-5"}, 0),
        ({b"retry-after": b"inf"}, 0),
        ({b"retry-after": b"1e3"}, 0),
        ({b"retry-after": b"\xb2"}, 0),
        ({b"retry-after": b"Wed, 21 Oct 2026 07:28:07 GMT", b"date": b"Wed, 21 Oct 2026 07:28:00 GMT"}, 7),
        ({b"retry-after": b"Wed, 21 Oct 2026 07:28:07 GMT", b"date": b"Wed, 21 Oct 2026 08:28:00 GMT"}, 0),
        ({b"retry-after": b"Wed, 21 Oct 2026 07:28:07 GMT"}, 0),
        ({b"retry-after": b"Wed, 21 Oct 2026 07:28:07", b"date": b"Wed, 21 Oct 2026 07:28:00 GMT"}, 0),
    ],
)
def test_retry_after_is_a_number_or_a_date_and_has_a_limit(headers: dict[bytes, bytes], seconds: float) -> None:
    assert ServerAnswer(503, headers).retry_after == seconds


def test_an_answer_whose_json_ends_early_passes_although_it_is_the_first() -> None:
    assert ServerAnswer(200, JSON, b'{"a": ').passes(own=False, met=False)
    assert not ServerAnswer(200, HTML, b'{"a": ').passes(own=False, met=False)
    assert not ServerAnswer(200, JSON, b"[1]").passes(own=False, met=False)


def test_a_long_reason_is_shown_in_part() -> None:
    assert ServerAnswer(500, JSON, b'{"error": "%b"}' % (b"x" * 9_999)).detail == "x" * MOST_DETAIL
    assert "not that of a Fyrehose server" in ServerAnswer(500, HTML, b"<html>").detail


def collected(session: ClientSession, *pieces: bytes, largest: int = 100) -> list[Any]:
    answer = CollectedAnswer(largest)
    events = [event for piece in pieces for event in session.events(piece)]
    return [(each.status, each.body) for event in events if (each := answer.add(event)) is not None]


def test_a_session_sends_a_request_and_collects_its_answer() -> None:
    session = ClientSession("h:1", "tök")
    sent = session.request("POST", "/x", b"ab", (("Content-Type", "t"),))
    assert sent.startswith(b"POST /x HTTP/1.1\r\nHost: h:1\r\n")
    assert "Authorization: Bearer tök\r\n".encode() in sent
    assert sent.endswith(b"Content-Length: 2\r\nContent-Type: t\r\n\r\nab")
    assert collected(session, b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-", b"Length: 2\r\n\r\nh") == []
    assert collected(session, b"i") == [(0, b"i")], "the head came to another collector"
    assert session.next_request()
    session.request("GET", "/y")
    assert collected(session, b"HTTP/1.0 200 OK\r\n\r\nhi", b"") == [(200, b"hi")]
    assert not session.next_request()


def test_a_session_reports_input_that_ends_early_or_is_not_http_and_answers_that_are_too_large() -> None:
    for pieces in ((b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", b""), (b"SSH-2.0\r\n\r\n",), (b"",)):
        session = ClientSession("h:1")
        session.request("GET", "/")
        with pytest.raises(RemoteProtocolError):
            collected(session, *pieces)
    session = ClientSession("h:1")
    session.request("GET", "/")
    with pytest.raises(RemoteProtocolError, match="exceeds 1 bytes"):
        collected(session, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", largest=1)


def test_a_body_in_pieces_of_two_bytes_takes_no_object_for_each() -> None:
    pieces = [b"%02d" % (n % 100) for n in range(100)]
    tracemalloc.start()
    try:
        collected = CollectedAnswer()
        collected.add(ServerAnswer(200))
        for _ in range(2000):
            for piece in pieces:
                collected.add(bytearray(piece))
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
        complete = collected.add(END)
    finally:
        tracemalloc.stop()
    assert complete is not None
    assert complete.body == b"".join(pieces) * 2000


def test_each_answer_may_be_as_large_as_the_limit() -> None:
    collected = CollectedAnswer(largest=3)
    for body in (b"abc", b"", b"def"):
        events = (ServerAnswer(200), *(body[at : at + 1] for at in range(len(body))), END)
        *none, complete = map(collected.add, events)
        assert (none, complete) == ([None] * (1 + len(body)), ServerAnswer(200, body=body))
        assert collected.size == 0


def test_small_and_large_pieces_of_a_body_stay_in_order() -> None:
    pieces = [b"a", b"b" * 5000, b"c", b"d", bytearray(b"e" * 5000), b"f", b"g" * 3000, b"h" * 3000, b"i"]
    collected = CollectedAnswer()
    collected.add(ServerAnswer(200))
    for piece in pieces:
        assert collected.add(piece) is None
    complete = collected.add(END)
    assert complete is not None
    assert complete.body == b"".join(pieces)
    assert pieces[4] == b"e" * 5000
