"""The events of the HTTP session for valid requests, and its refusals of invalid ones."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable

import pytest
from backports import zstd

from fyrehose.inflate import SLICE
from fyrehose.protocols.http.session import (
    LENGTHS,
    NDJSON,
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
from fyrehose.records import LAST_SEQ
from fyrehose.sessions import events_of
from fyrehose.testing import every_chunking
from fyrehose.web.session import RequestRefused


def make() -> HttpSession:
    return HttpSession(None, limits=RequestLimits(message=10, body=100))


def request(line: str, *headers: str, body: bytes | None = None) -> bytes:
    lines = [f"{line} HTTP/1.1", "Host: x", *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def refused(session: HttpSession, data: bytes) -> tuple[int, str]:
    *_, event = session.receive_data(data)
    assert isinstance(event, RequestRefused)
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
        ("text/plain; title=\xe9", "text/plain; title=\xe9"),
        (None, None),
    ],
)
def test_post_publishes_one_message(said: str | None, content_type: str | None) -> None:
    headers = () if said is None else (f"Content-Type: {said}",)
    for chunks in every_chunking(request("POST /streams/a%20%2f%C3%A4", *headers, body=b"a\nb")):
        session = make()
        events = [event for chunk in chunks for event in session.receive_data(chunk)]
        publish, published = events
        assert isinstance(publish, PublishPart)
        assert (publish.stream, publish.payloads, publish.content_type) == ("a /ä", [b"a\nb"], content_type)
        assert isinstance(published, PublishEnd)


@pytest.mark.parametrize(("kind", "payloads"), [("text/plain", [b"123456789\n"]), (NDJSON, [b"123456789"] * 10)])
def test_body_of_exactly_the_limit_is_accepted(kind: str, payloads: list[bytes]) -> None:
    body = b"123456789\n" * len(payloads)
    events = make().receive_data(request("POST /streams/s", f"Content-Type: {kind}", body=body))
    assert isinstance(events.pop(), PublishEnd)
    assert [p for event in events for p in event.payloads] == payloads


def test_empty_body_is_an_empty_message() -> None:
    publish, _ = make().receive_data(request("POST /streams/s", body=b""))
    assert isinstance(publish, PublishPart)
    assert publish.payloads == [b""]


@pytest.mark.parametrize("kind", [NDJSON, "application/jsonl", "APPLICATION/X-NDJSON; charset=utf-8"])
def test_each_line_of_ndjson_is_a_message(kind: str) -> None:
    data = request("POST /streams/s", f"Content-Type: {kind}", body=b'{"a":1}\r\n\n{"b":2}\n[]')
    for chunks in every_chunking(data):
        session = make()
        events = [event for chunk in chunks for event in session.receive_data(chunk)]
        assert isinstance(events.pop(), PublishEnd)
        assert [p for event in events for p in event.payloads] == [b'{"a":1}', b'{"b":2}', b"[]"]
        assert {event.content_type for event in events} == {"application/json"}


def test_messages_with_lengths_are_one_publish() -> None:
    data = request("POST /streams/s", f"Content-Type: {LENGTHS}", body=b"\0\0\0\2\n\0\0\0\0\0")
    for chunks in every_chunking(data):
        session = make()
        publish, published = [event for chunk in chunks for event in session.receive_data(chunk)]
        assert isinstance(publish, PublishPart)
        assert (publish.payloads, publish.content_type) == ([b"\n\0", b""], None)
        assert isinstance(published, PublishEnd)


def test_lines_are_published_before_the_body_is_complete() -> None:
    session = make()
    head = request("POST /streams/s", f"Content-Type: {NDJSON}", "Transfer-Encoding: chunked")
    (publish,) = session.receive_data(head + b"8\r\none\ntwo\n\r\n")
    assert isinstance(publish, PublishPart)
    assert publish.payloads == [b"one", b"two"]
    assert session.expected == 0, "it may be silent for as long as it likes"
    assert session.receive_data(b"1\r\nx\r\n") == []
    assert session.expected > 0


@pytest.mark.parametrize(
    ("data", "status", "cause"),
    [
        (request("GET /other"), 404, "no-such-path"),
        (request("GET /elsewhere/s"), 404, "no-such-path"),
        (request("GET /streams/a/b"), 404, "no-such-path"),
        (request("GET /streams/a/live/x"), 404, "no-such-path"),
        (request("GET /streams/"), 400, "bad-name"),
        (request("GET /streams/" + "x" * 256), 400, "bad-name"),
        (request("PUT /streams/s", body=b""), 405, "bad-method"),
        (request("DELETE /streams/s/live"), 405, "bad-method"),
        (request("DELETE /streams/s", body=b"x"), 413, "unexpected-body"),
        (request("DELETE /streams/s?from=1"), 400, "bad-query"),
        (request("POST /streams/s/live", body=b""), 405, "bad-method"),
        (request("POST /", body=b""), 405, "bad-method"),
        (request("POST /streams/s"), 411, "length-required"),
        (request("POST /streams/s", "Content-Encoding: br", body=b"x"), 415, "encoded-body"),
        (request("POST /streams/s", "Content-Type: multipart/form-data; boundary=x", body=b"x"), 415, "multipart-body"),
        (request("POST /streams/s", "Content-Type: " + "x" * 256, body=b"x"), 400, "bad-content-type"),
        (request("POST /streams/s", "Content-Type: " + "\xe9" * 128, body=b"x"), 400, "bad-content-type"),
        (request("POST /streams/s", "Content-Type: a\tb", body=b"x"), 400, "bad-content-type"),
        (request("POST /streams/s", "Content-Type: a\x85b", body=b"x"), 400, "bad-content-type"),
        (request("POST /streams/s", body=b"x" * 11), 413, "too-large"),
        (request("POST /streams/s", f"Content-Type: {NDJSON}", "Content-Length: 101"), 413, "too-large"),
        (request("POST /streams/s", f"Content-Type: {NDJSON}", body=b"x" * 11 + b"\n"), 413, "too-large"),
        (request("POST /streams/s", f"Content-Type: {NDJSON}", body=b"x" * 11), 413, "too-large"),
        (request("POST /streams/s", "Transfer-Encoding: chunked") + b"b\r\n" + b"x" * 11, 413, "too-large"),
        (request("POST /streams/s", f"Content-Type: {LENGTHS}", body=b"\0\0\0\2x"), 400, "bad-body"),
        (request("POST /streams/s", f"Content-Type: {LENGTHS}", body=b"\0\0\0\7" + b"x" * 7), 413, "too-large"),
        (request("GET /streams/s", body=b"x"), 413, "unexpected-body"),
        (request("GET /", body=b"x"), 413, "unexpected-body"),
        (request("GET /streams", body=b"x"), 413, "unexpected-body"),
        (request("GET /streams?limit=1001"), 400, "bad-query"),
        (request("GET /streams?page=10000001"), 400, "bad-query"),
        (request("GET /streams?limit=x"), 400, "bad-query"),
        (request("GET /streams/s?from=x"), 400, "bad-query"),
        (request("GET /streams/s?from=-1"), 400, "bad-query"),
        (request("GET /streams/s?from=%D9%A3"), 400, "bad-query"),
        (request(f"GET /streams/s?from={LAST_SEQ + 1}"), 400, "bad-query"),
        (request("GET /streams/s?limit=" + "9" * 5000), 400, "bad-query"),
        (request("GET /streams/s?limit=1000001"), 400, "bad-query"),
        (request("GET /streams/s?offset=1"), 400, "bad-query"),
        (request("GET /streams/s/live?limit=1"), 400, "bad-query"),
        (request("GET /streams/s/live", "Last-Event-ID: x"), 400, "bad-query"),
        (request("GET /streams/s/live", f"Last-Event-ID: {LAST_SEQ + 1}"), 400, "bad-query"),
        (request("GET /streams/s/live", "Last-Event-ID: " + "9" * 5000), 400, "bad-query"),
    ],
)
def test_invalid_request_is_refused(data: bytes, status: int, cause: str) -> None:
    assert refused(make(), data) == (status, cause)


def test_length_above_the_limit_is_refused_before_the_body_arrives() -> None:
    session = make()
    (event,) = session.receive_data(request("POST /streams/s", "Content-Length: 99999999999"))
    assert isinstance(event, RequestRefused)
    assert event.status == 413
    assert session.body_unread


@pytest.mark.parametrize(
    ("target", "first", "limit"),
    [
        ("/streams/s", 0, 1_000),
        ("/streams/s?from=7", 7, 1_000),
        ("/streams/s?from=7&limit=0", 7, 0),
        (f"/streams/s?limit=1000000&from={LAST_SEQ}", LAST_SEQ, 1_000_000),
    ],
)
def test_get_reads_records(target: str, first: int, limit: int) -> None:
    (read,) = make().receive_data(request(f"GET {target}"))
    assert isinstance(read, Read)
    assert (read.stream, read.first, read.limit) == ("s", first, limit)


def test_get_lists_streams() -> None:
    (listed,) = make().receive_data(request("GET /streams?limit=1000&page=10000000&match=a*"))
    assert isinstance(listed, List)
    assert (listed.pattern.text, listed.limit, listed.page) == ("a*", 1_000, 10_000_000)


@pytest.mark.parametrize(
    ("target", "headers", "after"),
    [
        ("/streams/s/live", (), None),
        ("/streams/s/live?from=0", (), 0),
        ("/streams/s/live?from=7", (), 6),
        ("/streams/s/live?from=1", (), 0),
        (f"/streams/s/live?from={LAST_SEQ}", (), LAST_SEQ - 1),
        ("/streams/s/live", ("Last-Event-ID: 7",), 7),
        ("/streams/s/live", (f"Last-Event-ID: {LAST_SEQ}",), LAST_SEQ),
        ("/streams/s/live?from=1", ("Last-Event-ID: 7",), 7),
        ("/streams/s/live?from=3", ("Last-Event-ID: ",), 2),
    ],
)
def test_live_get_follows_a_stream(target: str, headers: tuple[str, ...], after: int | None) -> None:
    (live,) = make().receive_data(request(f"GET {target}", *headers))
    assert isinstance(live, Live)
    assert (live.stream, live.after) == ("s", after)


def test_get_of_the_root_describes_the_paths() -> None:
    session = make()
    assert session.receive_data(request("GET /")) == []
    said = b"".join(session.data_to_send())
    assert said.startswith(b"HTTP/1.1 200 ")
    assert "POST /streams/NAME" in json.loads(said.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("name", ["s", "x" * 255, "%C3%A4" * 127 + "x"])
def test_names_of_streams_may_have_255_bytes(name: str) -> None:
    (read,) = make().receive_data(request(f"GET /streams/{name}"))
    assert isinstance(read, Read)
    assert read.stream == name.replace("%C3%A4", "ä")
    assert refused(make(), request("GET /streams/" + "%C3%A4" * 128)) == (400, "bad-name")


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("PUT /streams/s", "GET, HEAD, POST, DELETE"),
        ("PUT /streams/s/live", "GET, HEAD"),
        ("DELETE /", "GET, HEAD"),
    ],
)
def test_refused_method_names_those_that_are_allowed(line: str, allowed: str) -> None:
    session = make()
    (event,) = session.receive_data(request(line))
    assert isinstance(event, RequestRefused)
    assert event.detail == f"method not allowed; use {allowed}"
    assert f"\r\nAllow: {allowed}\r\n".encode() in b"".join(session.data_to_send())


@pytest.mark.parametrize(
    ("target", "allowed"),
    [("/streams/s", "GET, HEAD, POST, DELETE"), ("/", "GET, HEAD"), ("/subscriptions/s/ack", "POST")],
)
def test_options_of_a_path_are_its_methods(target: str, allowed: str) -> None:
    session = make()
    assert session.receive_data(request(f"OPTIONS {target}")) == []
    said = b"".join(session.data_to_send())
    assert said.startswith(b"HTTP/1.1 204 ")
    assert f"\r\nAllow: {allowed}\r\n".encode() in said
    assert refused(make(), request(f"OPTIONS {target}", "Content-Length: 5")) == (405, "bad-method")


@pytest.mark.parametrize("first", [request("GET /"), request("POST /streams/s", body=b"a"), request("GET /other")])
def test_malformed_request_behind_any_other_is_answered(first: bytes) -> None:
    session = make()
    for event in session.receive_data(first):
        if isinstance(event, PublishEnd):
            session.respond(200, b"{}\n")
    session.data_to_send()
    session.next_events()
    session.receive_data(b"BAD\r\n\r\n")
    assert b"".join(session.data_to_send()).startswith(b"HTTP/1.1 400 ")


def test_head_is_answered_like_get_without_a_body() -> None:
    session = make()
    assert session.receive_data(request("HEAD /")) == []
    assert b"".join(session.data_to_send()).endswith(b"\r\n\r\n")
    (read,) = make().receive_data(request("HEAD /streams/s?from=3"))
    assert isinstance(read, Read)
    assert (read.request.method, read.first) == ("HEAD", 3)


def test_delete_retires_the_stream() -> None:
    (retire,) = make().receive_data(request("DELETE /streams/a%2fb"))
    assert isinstance(retire, Retire)
    assert (retire.stream, retire.request.method) == ("a/b", "DELETE")


def test_state_of_one_request_does_not_affect_the_next_on_its_connection() -> None:
    session = make()
    lines = request("POST /streams/a", f"Content-Type: {NDJSON}", body=b"one\n")
    text = request("POST /streams/b", "Content-Type: text/plain", "Transfer-Encoding: chunked")
    for _ in range(2):
        publish, published = session.receive_data(lines)
        assert isinstance(publish, PublishPart)
        assert (publish.stream, publish.content_type, publish.payloads) == ("a", "application/json", [b"one"])
        assert isinstance(published, PublishEnd)
        assert (session.expected, session.buffered) == (0, 0)
        session.respond(200, b"{}")
        assert session.next_events() == []
        assert session.receive_data(text + b"3\r\nxyz\r\n") == []
        assert (session.expected, session.buffered) == (64 << 10, 3)
        publish, published = session.receive_data(b"0\r\n\r\n")
        assert isinstance(publish, PublishPart)
        assert (publish.stream, publish.content_type, publish.payloads) == ("b", "text/plain", [b"xyz"])
        session.respond(200, b"{}")
        assert session.next_events() == []
    assert session.receive_data(request("GET /streams/c")) != []
    session.respond(200, b"{}")
    session.next_events()
    session.data_to_send()
    assert refused(session, text + b"b\r\n" + b"x" * 11) == (413, "too-large")


@pytest.mark.parametrize("chunked", [b"two\n" + b"x" * 12, b"two\n" + b"x" * 11 + b"\nthree\n", b"two\n" + b"x" * 11])
def test_too_large_message_refuses_the_rest_of_the_body_but_not_earlier_messages(chunked: bytes) -> None:
    session = make()
    head = request("POST /streams/s", f"Content-Type: {NDJSON}", "Transfer-Encoding: chunked")
    events = session.receive_data(head + b"4\r\none\n\r\n")
    events += session.receive_data(b"%x\r\n%b\r\n" % (len(chunked), chunked))
    if not isinstance(events[-1], BodyRefused):  # its last byte may have been a carriage return
        events += session.receive_data(b"0\r\n\r\n")
    else:
        assert (session.expected, session.buffered) == (0, 0)
        assert session.receive_data(b"5\r\nfour\n\r\n0\r\n\r\n") == []
    refused = events.pop()
    assert isinstance(refused, BodyRefused)
    assert (refused.refusal.status, refused.refusal.cause) == (413, "too-large")
    assert [payload for event in events for payload in event.payloads] == [b"one", b"two"]
    assert session.data_to_send() == [], "it is answered when what came before it is durable"


@pytest.mark.parametrize("rest", [b"0\r\n\r\nPUT / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"no chunk\r\n"])
def test_bytes_behind_a_refused_message_are_ignored_for_any_chunking(rest: bytes) -> None:
    body = b"one\n" + b"x" * 12
    head = request("POST /streams/s", f"Content-Type: {NDJSON}", "Transfer-Encoding: chunked")
    wire = head + b"%x\r\n%b\r\n" % (len(body), body) + rest
    for cut in range(len(head), len(wire)):
        session = make()
        kinds = []
        for piece in (wire[:cut], wire[cut:]):
            for event in events_of(session, piece):
                kinds.append(type(event))
                if isinstance(event, BodyRefused):
                    session.refuse(event.refusal.status, event.refusal.cause, event.refusal.detail)
        assert session.receive_eof() == []
        assert kinds == [PublishPart, BodyRefused], cut
        answer = b"".join(session.data_to_send())
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"\r\nConnection: close\r\n" in answer


def test_bytes_that_are_not_http_are_answered_with_400() -> None:
    session = make()
    session.receive_data(b"\x16\x03\x01 what is this\r\n\r\n")
    assert b"".join(session.data_to_send()).startswith(b"HTTP/1.1 400 ")


PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}


def messages(session: HttpSession, chunks: list[bytes]) -> tuple[list[bytes], object]:
    """Return the published messages of a request, and its last event."""
    events = [event for chunk in chunks for event in events_of(session, chunk)]
    return [each for event in events if isinstance(event, PublishPart) for each in event.payloads], events[-1]


@pytest.mark.parametrize("coding", PACK)
def test_compressed_body_is_published_inflated_in_every_chunking(coding: str) -> None:
    for body, kind, found in (
        (b"hello", "text/plain", [b"hello"]),
        (b"", "text/plain", [b""]),
        (b"one\ntwo\r\n\nthree", NDJSON, [b"one", b"two", b"three"]),
    ):
        head = f"Content-Encoding: {coding.upper()}", f"Content-Type: {kind}"
        for chunks in every_chunking(request("POST /streams/s", *head, body=PACK[coding](body)), sizes=(1, 7, 64)):
            assert messages(make(), chunks) == (found, PublishEnd())


@pytest.mark.parametrize("coding", PACK)
def test_compressed_lines_are_inflated_in_slices(coding: str) -> None:
    body = b"x" * 8 + b"\n"
    session = HttpSession(None, limits=RequestLimits(message=10, body=1 << 30))
    data = request(
        "POST /streams/s", f"Content-Encoding: {coding}", f"Content-Type: {NDJSON}", body=PACK[coding](body * 200_000)
    )
    events = session.receive_data(data)
    turns = 1
    while session.more:
        assert (
            sum(len(each) + 1 for event in events if isinstance(event, PublishPart) for each in event.payloads)
            <= 2 * SLICE
        )
        assert session.buffered <= 2 * SLICE + (8 << 20)
        events, turns = session.next_events(), turns + 1
    assert events[-1] == PublishEnd()
    assert turns >= 200_000 * len(body) // (2 * SLICE)


@pytest.mark.parametrize("coding", PACK)
@pytest.mark.parametrize("kind", ["text/plain", NDJSON])
def test_bomb_is_refused_once_its_message_is_too_large(coding: str, kind: str) -> None:
    session = make()
    head = f"Content-Encoding: {coding}", f"Content-Type: {kind}"
    data = request("POST /streams/s", *head, body=PACK[coding](bytes(50 << 20)))
    events = session.receive_data(data)
    assert [event.cause for event in events if isinstance(event, RequestRefused)] == ["too-large"]
    assert not session.more
    assert session.buffered < 1 << 20


@pytest.mark.parametrize("coding", PACK)
def test_damaged_compressed_body_is_refused(coding: str) -> None:
    packed = PACK[coding](bytes(range(250)))
    for body in (packed[:-1], packed + b"x", b"no such data", b""):
        data = request("POST /streams/s", f"Content-Encoding: {coding}", body=body)
        for chunks in every_chunking(data, sizes=(1, 64)):
            session = HttpSession(None, limits=RequestLimits(message=1000, body=1000))
            found, end = messages(session, chunks)
            assert isinstance(end, RequestRefused)
            assert (found, end.status, end.cause) == ([], 400, "bad-compression")


def test_lines_before_the_damage_of_a_compressed_body_are_published() -> None:
    packed = zlib.compressobj()
    begin, damage = packed.compress(b"one\ntwo\n") + packed.flush(zlib.Z_SYNC_FLUSH), b"\xff" * 20
    head = "Content-Encoding: deflate", f"Content-Type: {NDJSON}"
    data = request("POST /streams/s", *head, body=begin + damage)
    found, end = messages(make(), [data[: -len(damage)], damage])
    assert isinstance(end, BodyRefused)
    assert (found, end.refusal.cause) == ([b"one", b"two"], "bad-compression")


def test_inflated_lines_have_the_limit_of_a_body() -> None:
    head = "Content-Encoding: gzip", f"Content-Type: {NDJSON}"
    found, end = messages(make(), [request("POST /streams/s", *head, body=gzip.compress(b"x\n" * 51))])
    assert isinstance(end, BodyRefused)
    assert (found, end.refusal.status, end.refusal.cause) == ([b"x"] * 51, 413, "too-large")


def test_refusal_of_an_unknown_coding_lists_the_known_ones() -> None:
    session = make()
    session.receive_data(request("POST /streams/s", "Content-Encoding: br", body=b"x"))
    assert b"\r\nAccept-Encoding: gzip, deflate, zstd\r\n" in b"".join(session.data_to_send())


def test_body_may_say_that_it_has_no_coding() -> None:
    data = request("POST /streams/s", "Content-Encoding: identity", body=b"x")
    assert messages(make(), [data]) == ([b"x"], PublishEnd())


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        (["X-GitHub-Delivery: 1"], "1"),
        (["X-GitHub-Delivery: 1", "Idempotency-Key: 2"], "2"),
        (["X-Other: 1"], None),
    ],
)
def test_another_header_may_be_the_key(headers: list[str], key: str | None) -> None:
    limits = RequestLimits(message=10, body=100, key_header="x-github-delivery")
    part, _ = HttpSession(None, limits=limits).receive_data(request("POST /streams/s", *headers, body=b"x"))
    assert isinstance(part, PublishPart)
    assert part.key == key


@pytest.mark.parametrize(
    ("text", "since"),
    [("1970-01-01T00:00:02", 2_000_000), ("1970-01-01T02:00:02%2B02:00", 2_000_000), ("-1m", 40_000_000)],
)
def test_reads_may_begin_at_a_time(text: str, since: int) -> None:
    session = HttpSession(None, limits=RequestLimits(message=10, body=100), now=lambda: 100.0)
    (read,) = session.receive_data(request(f"GET /streams/s?from={text}"))
    assert isinstance(read, Read)
    assert (read.since, read.first) == (since, 0)
    session.respond(200, b"")
    session.next_events()
    (live,) = session.receive_data(request(f"GET /streams/s/live?from={text}"))
    assert isinstance(live, Live)
    assert (live.since, live.after) == (since, None)


def test_last_event_counts_more_than_a_time() -> None:
    (live,) = make().receive_data(request("GET /streams/s/live?from=-1h", "Last-Event-ID: 7"))
    assert isinstance(live, Live)
    assert (live.since, live.after) == (None, 7)


@pytest.mark.parametrize(
    "path",
    ["s?from=yesterday", "s/live?from=1h", "s?from=", "*?match=a*&subscription=x&from=-1h", "*/live?match=a*&from=-1h"],
)
def test_invalid_time_is_refused(path: str) -> None:
    assert refused(make(), request(f"GET /streams/{path}")) == (400, "bad-query")
