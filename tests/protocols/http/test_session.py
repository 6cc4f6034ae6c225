"""What is asked of the HTTP listener, as events, and what is refused there."""

from __future__ import annotations

import json

import pytest

from fyrehose.protocols.http.session import (
    NDJSON,
    HttpSession,
    Limits,
    Live,
    Publish,
    Published,
    Read,
)
from fyrehose.records import LAST_SEQ
from fyrehose.testing import every_chunking
from fyrehose.web.session import Refused


def make() -> HttpSession:
    return HttpSession(None, limits=Limits(message=10, body=100))


def request(line: str, *headers: str, body: bytes | None = None) -> bytes:
    lines = [f"{line} HTTP/1.1", "Host: x", *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def refused(session: HttpSession, data: bytes) -> tuple[int, str]:
    *_, event = session.receive_data(data)
    assert isinstance(event, Refused)
    said = b"".join(session.data_to_send())
    assert said.startswith(b"HTTP/1.1 %d " % event.status)
    assert json.loads(said.partition(b"\r\n\r\n")[2]) == {"error": event.detail}
    return event.status, event.cause


@pytest.mark.parametrize(
    ("said", "content_type"),
    [
        ("text/plain; charset=utf-8", "text/plain; charset=utf-8"),
        ("Application/JSON", "Application/JSON"),
        ("application/x-www-form-urlencoded", None),
        ("x" * 255, "x" * 255),
        (None, None),
    ],
)
def test_a_message(said: str | None, content_type: str | None) -> None:
    headers = () if said is None else (f"Content-Type: {said}",)
    for chunks in every_chunking(request("POST /streams/a%20%2f%C3%A4", *headers, body=b"a\nb")):
        session = make()
        events = [event for chunk in chunks for event in session.receive_data(chunk)]
        publish, published = events
        assert isinstance(publish, Publish)
        assert (publish.stream, publish.payloads, publish.content_type) == ("a /ä", [b"a\nb"], content_type)
        assert isinstance(published, Published)


@pytest.mark.parametrize(("kind", "payloads"), [("text/plain", [b"123456789\n"]), (NDJSON, [b"123456789"] * 10)])
def test_bodies_may_be_exactly_as_large_as_the_limits(kind: str, payloads: list[bytes]) -> None:
    body = b"123456789\n" * len(payloads)
    events = make().receive_data(request("POST /streams/s", f"Content-Type: {kind}", body=body))
    assert isinstance(events.pop(), Published)
    assert [p for event in events for p in event.payloads] == payloads


def test_an_empty_body_is_an_empty_message() -> None:
    publish, _ = make().receive_data(request("POST /streams/s", body=b""))
    assert isinstance(publish, Publish)
    assert publish.payloads == [b""]


@pytest.mark.parametrize("kind", [NDJSON, "application/jsonl", "APPLICATION/X-NDJSON; charset=utf-8"])
def test_a_message_a_line(kind: str) -> None:
    data = request("POST /streams/s", f"Content-Type: {kind}", body=b'{"a":1}\r\n\n{"b":2}\n[]')
    for chunks in every_chunking(data):
        session = make()
        events = [event for chunk in chunks for event in session.receive_data(chunk)]
        assert isinstance(events.pop(), Published)
        assert [p for event in events for p in event.payloads] == [b'{"a":1}', b'{"b":2}', b"[]"]
        assert {event.content_type for event in events} == {"application/json"}


def test_lines_are_events_before_the_body_is_over() -> None:
    session = make()
    head = request("POST /streams/s", f"Content-Type: {NDJSON}", "Transfer-Encoding: chunked")
    (publish,) = session.receive_data(head + b"8\r\none\ntwo\n\r\n")
    assert isinstance(publish, Publish)
    assert publish.payloads == [b"one", b"two"]
    assert session.expected == 0, "it may be silent for as long as it likes"
    assert session.receive_data(b"1\r\nx\r\n") == []
    assert session.expected > 0


@pytest.mark.parametrize(
    ("data", "status", "cause"),
    [
        (request("GET /streams"), 404, "no-such-path"),
        (request("GET /elsewhere/s"), 404, "no-such-path"),
        (request("GET /streams/a/b"), 404, "no-such-path"),
        (request("GET /streams/a/live/x"), 404, "no-such-path"),
        (request("GET /streams/"), 400, "bad-name"),
        (request("GET /streams/" + "x" * 256), 400, "bad-name"),
        (request("PUT /streams/s", body=b""), 405, "bad-method"),
        (request("DELETE /streams/s/live"), 405, "bad-method"),
        (request("DELETE /streams/s", body=b"x"), 413, "body-not-wanted"),
        (request("DELETE /streams/s?from=1"), 400, "bad-query"),
        (request("POST /streams/s/live", body=b""), 405, "bad-method"),
        (request("POST /", body=b""), 405, "bad-method"),
        (request("POST /streams/s"), 411, "length-required"),
        (request("POST /streams/s", "Content-Encoding: gzip", body=b"x"), 415, "encoded-body"),
        (request("POST /streams/s", "Content-Type: multipart/form-data; boundary=x", body=b"x"), 415, "multipart-body"),
        (request("POST /streams/s", "Content-Type: " + "x" * 256, body=b"x"), 400, "bad-content-type"),
        (request("POST /streams/s", body=b"x" * 11), 413, "too-large"),
        (request("POST /streams/s", f"Content-Type: {NDJSON}", "Content-Length: 101"), 413, "too-large"),
        (request("POST /streams/s", f"Content-Type: {NDJSON}", body=b"x" * 11 + b"\n"), 413, "too-large"),
        (request("POST /streams/s", f"Content-Type: {NDJSON}", body=b"x" * 11), 413, "too-large"),
        (request("POST /streams/s", "Transfer-Encoding: chunked") + b"b\r\n" + b"x" * 11, 413, "too-large"),
        (request("GET /streams/s", body=b"x"), 413, "body-not-wanted"),
        (request("GET /", body=b"x"), 413, "body-not-wanted"),
        (request("GET /streams/s?from=x"), 400, "bad-query"),
        (request("GET /streams/s?from=-1"), 400, "bad-query"),
        (request("GET /streams/s?from=%D9%A3"), 400, "bad-query"),
        (request(f"GET /streams/s?from={LAST_SEQ + 1}"), 400, "bad-query"),
        (request("GET /streams/s?limit=" + "9" * 5000), 400, "bad-query"),
        (request("GET /streams/s?limit=1000001"), 400, "bad-query"),
        (request("GET /streams/s?offset=1"), 400, "bad-query"),
        (request("GET /streams/s/live?limit=1"), 400, "bad-query"),
        (request("GET /streams/s/live", "Last-Event-ID: x"), 400, "bad-query"),
    ],
)
def test_refusals(data: bytes, status: int, cause: str) -> None:
    assert refused(make(), data) == (status, cause)


def test_a_length_is_judged_before_anything_of_the_body_has_come() -> None:
    session = make()
    (event,) = session.receive_data(request("POST /streams/s", "Content-Length: 99999999999"))
    assert isinstance(event, Refused)
    assert event.status == 413
    assert session.unread


@pytest.mark.parametrize(
    ("target", "first", "limit"),
    [
        ("/streams/s", 0, 1_000),
        ("/streams/s?from=7", 7, 1_000),
        ("/streams/s?from=7&limit=0", 7, 0),
        (f"/streams/s?limit=1000000&from={LAST_SEQ}", LAST_SEQ, 1_000_000),
    ],
)
def test_reading(target: str, first: int, limit: int) -> None:
    (read,) = make().receive_data(request(f"GET {target}"))
    assert isinstance(read, Read)
    assert (read.stream, read.first, read.limit) == ("s", first, limit)


@pytest.mark.parametrize(
    ("target", "headers", "after"),
    [
        ("/streams/s/live", (), None),
        ("/streams/s/live?from=0", (), 0),
        ("/streams/s/live?from=7", (), 6),
        ("/streams/s/live", ("Last-Event-ID: 7",), 7),
        ("/streams/s/live?from=1", ("Last-Event-ID: 7",), 7),
        ("/streams/s/live?from=3", ("Last-Event-ID: ",), 2),
    ],
)
def test_listening(target: str, headers: tuple[str, ...], after: int | None) -> None:
    (live,) = make().receive_data(request(f"GET {target}", *headers))
    assert isinstance(live, Live)
    assert (live.stream, live.after) == ("s", after)


def test_what_there_is() -> None:
    session = make()
    assert session.receive_data(request("GET /")) == []
    said = b"".join(session.data_to_send())
    assert said.startswith(b"HTTP/1.1 200 ")
    assert "POST /streams/NAME" in json.loads(said.partition(b"\r\n\r\n")[2])
