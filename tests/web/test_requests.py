"""Read requests from bytes, and agree with h11 about every request that both accept."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import product

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.testing import every_chunking
from fyrehose.web.requests import MAX_HEAD, Head, MalformedRequest, RequestPart, RequestReader

HEAD = b"POST /a?b HTTP/1.1\r\nHost: x\r\nX-Y:\t 1, 2 \r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

#: Everything that the peer sent in one request: its head, its body, and whether it was complete.
Read = tuple[Head | None, bytes, bool]


def read(chunks: Iterable[bytes]) -> list[Read | str]:
    """Return what the reader finds in *chunks*: requests, and the error that ends them."""
    reader, found = RequestReader(), []
    head, body = None, b""
    try:
        for chunk in chunks:
            reader.add(chunk)
            while (part := reader.next()) is not None:
                if isinstance(part, Head):
                    head = part
                else:
                    body += part
                if not reader.in_body:
                    found.append((head, body, True))
                    head, body = None, b""
                    reader.begin()
        if head is not None:
            found.append((head, body, False))
    except MalformedRequest as error:
        return [*found, f"{error.status} {error.detail}"]
    return found


def only(data: bytes) -> Read:
    (found,) = read([data])
    assert isinstance(found, tuple), found
    return found


def test_a_head_is_returned_as_it_was_sent() -> None:
    head, body, complete = only(HEAD + b"Content-Length: 3\r\n\r\nabc")
    fields = [("host", "x"), ("x-y", "1, 2"), ("content-length", "3")]
    assert head == Head("POST", "/a?b", 1, fields, 3, last=False, waits=False)
    assert (body, complete) == (b"abc", True)


@pytest.mark.parametrize(("minor", "first"), [*product((0, 1), ("", "close", "a, Close", "keep-alive", "closed"))])
def test_request_is_the_last_if_any_line_says_close_or_it_is_of_http_1_0(minor: int, first: str) -> None:
    for second in ("", "close", "keep-alive"):
        lines = [f"Connection: {each}\r\n" for each in (first, second) if each]
        head, _, _ = only(f"GET / HTTP/1.{minor}\r\nHost: x\r\n{''.join(lines)}\r\n".encode())
        assert head is not None
        assert head.last == (not minor or "close" in (first[-5:].lower(), second)), f"after {lines}"


@pytest.mark.parametrize(
    ("line", "waits"),
    [
        ("Content-Length: 3\r\nExpect: 100-Continue", True),
        ("Content-Length: 3\r\nExpect: 100-continue-not", False),
        ("Expect: 100-continue", False),
    ],
)
def test_a_head_says_whether_the_peer_waits_to_send_a_body(line: str, waits: bool) -> None:
    head, _, _ = only(HEAD + f"{line}\r\n\r\n".encode())
    assert head is not None
    assert head.waits == waits


def test_a_request_of_http_1_0_is_the_last_and_needs_no_host() -> None:
    head, _, complete = only(b"GET / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab")
    assert head is not None
    assert (head.last, head.waits, complete) == (True, False, True)


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"\r\n" + HEAD + b"Content-Length: 3\r\n\r\nabc" + HEAD,
        CHUNKED + b"3\r\nabc\r\n0A;x=y\r\n0123456789\r\n0\r\nX: y\r\n\r\n" + HEAD + b"\r\n",
        CHUNKED + b"3\r\nabcd\r\n",
        CHUNKED + b"3 ;a\r\nabc\r\n0\r\n y: z\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nabc\r\n\r\n",
    ],
)
def test_what_is_read_does_not_depend_on_how_the_bytes_are_cut(data: bytes) -> None:
    whole = read([data])
    for chunks in every_chunking(data):
        assert read(chunks) == whole


def test_a_chunked_body_ends_behind_its_trailer() -> None:
    head, body, complete = only(CHUNKED + b"3\r\nabc\r\n02;x\r\nde\r\n0\r\nX: y\r\nZ:\r\n\r\n")
    assert head is not None
    assert (head.length, body, complete) == (None, b"abcde", True)


#: Requests that are refused, and words of the reason.
REFUSED = {
    b"\x16\x03\x01\x02": "not a request",
    b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n": "not a request",
    b"GET / HTTP/2.0\r\nHost: x\r\n\r\n": "not a request",
    b"GET / HTTP/1.1 \r\nHost: x\r\n\r\n": "not a request",
    b"G\x00T / HTTP/1.1\r\nHost: x\r\n\r\n": "not a request",
    HEAD + b"a b: c\r\n\r\n": "not a header",
    HEAD + b"a : c\r\n\r\n": "not a header",
    HEAD + b": c\r\n\r\n": "not a header",
    HEAD + b"a\r\n\r\n": "not a header",
    HEAD + b"a" * (MAX_HEAD - 100) + b"\r\n\r\n": "not a header",
    HEAD + b"a: b\x00c\r\n\r\n": "not a header",
    HEAD + b"a: b\rc\r\n\r\n": "not a header",
    HEAD + b"a: b\nc: d\r\n\r\n": "bare LF",
    HEAD + b" c: d\r\n\r\n": "continues the line before it",
    HEAD + b"Host: y\r\n\r\n": "several Host headers",
    b"GET / HTTP/1.1\r\nA: b\r\n\r\n": "no Host header",
    HEAD + b"Content-Length: -1\r\n\r\n": "Content-Length is not a number",
    HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n": "several Content-Lengths differ",
    HEAD + b"Content-Length: 1, 1\r\n\r\n": "Content-Length is not a number",
    HEAD + b"Content-Length: +1\r\n\r\n": "Content-Length is not a number",
    HEAD + b"Content-Length: 1_0\r\n\r\n": "Content-Length is not a number",
    HEAD + "Content-Length: \u0661\r\n\r\n".encode(): "Content-Length is not a number",
    HEAD + b"Content-Length:\r\n\r\n": "Content-Length is not a number",
    HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n": "501",
    HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n": "501",
    HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n": "not a header",
    HEAD + b"X: " + b"y" * MAX_HEAD: "431",
    HEAD + b"X: " + b"y" * MAX_HEAD + b"\r\n\r\n": "431",
    CHUNKED + b"+3\r\nabc\r\n": "hexadecimal",
    CHUNKED + b"0x3\r\nabc\r\n": "hexadecimal",
    CHUNKED + b"\r\n": "hexadecimal",
    CHUNKED + b"3\nabc\r\n": "hexadecimal",
    CHUNKED + b"3;" + b"x" * MAX_HEAD: "exceeds the limit",
    CHUNKED + b"3\r\nabcd\r\n": "longer than the line before it says",
    CHUNKED + b"0\r\nX: y\n\nGET / HTTP/1.1\r\n\r\n": "behind the last chunk",
    CHUNKED + b"0\r\n" + b"X: y\r\n" * (MAX_HEAD // 6 + 1): "behind the last chunk",
}


@pytest.mark.parametrize("data", REFUSED)
def test_a_request_that_could_be_read_in_two_ways_is_refused(data: bytes) -> None:
    *_, reason = read([data])
    assert isinstance(reason, str)
    assert REFUSED[data] in reason


def test_a_head_at_the_limit_is_read() -> None:
    padding = MAX_HEAD - len(HEAD) - len(b"X: \r\n\r\n")
    data = HEAD + b"X: " + b"y" * padding + b"\r\n\r\n"
    assert len(data) == MAX_HEAD
    assert only(data)[2]
    assert read([data[:-1], data[-1:]]) == read([data])
    assert "431" in str(read([data.replace(b"X: ", b"X: y")]))


@pytest.mark.parametrize("data", [HEAD, HEAD + b"Content-Length: 3\r\n\r\nab", CHUNKED, CHUNKED + b"0\r\n"])
def test_a_connection_must_not_end_within_a_request(data: bytes) -> None:
    reader = RequestReader()
    reader.check_end()
    reader.add(data)
    while reader.next() is not None:
        pass
    with pytest.raises(MalformedRequest, match="ended within a request"):
        reader.check_end()


def test_the_next_request_is_not_read_before_begin() -> None:
    reader = RequestReader()
    reader.add((HEAD + b"\r\n") * 2)
    assert isinstance(reader.next(), Head)
    assert reader.part is RequestPart.DONE
    assert reader.next() is None
    assert reader.unread == len(HEAD) + 2
    reader.begin()
    assert isinstance(reader.next(), Head)


@pytest.mark.parametrize("behind", [b"", HEAD])
def test_a_reader_keeps_no_bytes_that_were_read(behind: bytes) -> None:
    data = HEAD + b"Content-Length: 100000\r\n\r\n" + bytes(100_000) + behind
    before = sys.getrefcount(data)
    reader = RequestReader()
    reader.add(data)
    while reader.next():
        pass
    assert reader.unread == len(behind)
    assert sys.getrefcount(data) == before


TOKENS = st.text("abcXYZ019-_!", min_size=1, max_size=6)
VALUES = st.text("ab ,\t;=\u00e4\x7f", max_size=8)
LINES = st.one_of(
    st.tuples(TOKENS, st.sampled_from([":", ": ", ":\t", " :"]), VALUES).map("".join),
    st.sampled_from(
        [
            "Host: y",
            "Content-Length: 3",
            "content-length: 3, 3",
            "Content-Length: 4",
            "Content-Length: x",
            "Transfer-Encoding: chunked",
            "Transfer-Encoding: CHUNKED",
            "Transfer-Encoding: gzip",
            "Connection: close",
            "connection: a, close",
            "Expect: 100-continue",
        ]
    ),
)
BODIES = st.sampled_from(
    [b"", b"abc", b"abcd", b"3\r\nabc\r\n0\r\n\r\n", b"2;x\r\nab\r\n1\r\nc\r\n0\r\nA: b\r\n\r\n", b"3\r\nabc0\r\n\r\n"]
)


def read_by_h11(data: bytes) -> Read | None:
    """Return the first request in *data* as h11 reads it; None: h11 refuses it."""
    peer = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
    peer.receive_data(data)
    head, body = None, b""
    try:
        while True:
            event = peer.next_event()
            if isinstance(event, h11.Request):
                fields = [
                    (bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in event.headers
                ]
                lengths = [int(value) for name, value in fields if name == "content-length"]
                chunked = any(name == "transfer-encoding" for name, _ in fields)
                last = event.http_version < b"1.1" or any(
                    name == "connection" and "close" in [each.strip() for each in value.lower().split(",")]
                    for name, value in fields
                )
                length = None if chunked else lengths[0] if lengths else 0
                waits = peer.they_are_waiting_for_100_continue and length != 0
                method, target = event.method.decode(), event.target.decode()
                head = Head(method, target, int(event.http_version[2:]), fields, length, last, waits)
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                return head, body, isinstance(event, h11.EndOfMessage)
    except h11.RemoteProtocolError:
        return None


def without_framing(head: Head | None) -> Head:
    """Return *head* without the headers about its body: h11 joins equal lengths, and drops a length beside chunks."""
    assert head is not None
    fields = [field for field in head.fields if field[0] not in ("content-length", "transfer-encoding")]
    return head._replace(fields=fields)


@given(
    st.sampled_from(["GET", "POST", "a!"]),
    st.sampled_from(["/", "*", "/a?b=%20", "http://h/", "/\u00e4", ""]),
    st.sampled_from(["1.0", "1.1", "1.2", "1", "1.10"]),
    st.lists(LINES, max_size=5),
    BODIES,
)
def test_h11_reads_the_same_requests(method: str, target: str, version: str, lines: list[str], body: bytes) -> None:
    start = f"{method} {target} HTTP/{version}\r\nHost: x\r\n"
    data = start.encode("latin-1") + "".join(f"{line}\r\n" for line in lines).encode("latin-1") + b"\r\n" + body
    ours, theirs = read([data])[0], read_by_h11(data)
    if isinstance(ours, str):
        assert theirs is None or b"\x7f" in data or b"3, 3" in data, f"{ours}, and h11 accepts it"
        return
    assert theirs is not None, ours
    assert [without_framing(ours[0]), *ours[1:]] == [without_framing(theirs[0]), *theirs[1:]]
