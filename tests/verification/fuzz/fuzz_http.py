"""Fuzz the HTTP listener: requests of every kind, some of them damaged, and random bytes, whole and in pieces.

Every request must get one answer, and publish the same messages however it is cut.
"""

from __future__ import annotations

from typing import Any

import harness

with harness.instrumented("fyrehose.web", "fyrehose.protocols.http"):
    from fyrehose.errors import Broken
    from fyrehose.protocols.http.bodies import SMALL
    from fyrehose.protocols.http.server import HttpSettings
    from fyrehose.protocols.http.session import (
        BodyRefused,
        HttpSession,
        Live,
        PublishEnd,
        PublishPart,
        Read,
        RequestLimits,
    )
    from fyrehose.web.session import RequestRefused

METHODS = ("GET", "POST", "HEAD", "PUT", "get", "CONNECT")
TARGETS = ("/", "/streams/s", "/streams/a%2Fb", "/streams/s/live", "/streams/%ff", "/streams/", "*", "//x", "/x?y", "")
QUERIES = ("", "?from=1", "?limit=2&from=3", "?from=x", "?limit=", "?from=281474976710656", "?" + "a&" * 30)
HEADERS = (
    "Content-Type: application/x-ndjson",
    "Content-Type: text/plain",
    "Expect: 100-continue",
    "Connection: close",
    "Origin: http://evil.example",
    "Last-Event-ID: 4",
    "Authorization: Bearer x",
    "Content-Encoding: gzip",
    "X: " + "y" * 300,
)
#: Small limits, which inputs reach.
LIMITS = RequestLimits(message=40, body=120)
DEFAULTS = RequestLimits(message=HttpSettings().max_payload, body=HttpSettings().max_body)


def body(dice: harness.Dice) -> bytes:
    """Return a body of lines of random lengths."""
    return b"".join(dice.blob()[:50] + dice.choice((b"\n", b"\r\n", b"", b"\n\n")) for _ in range(dice.below(4)))


def request(dice: harness.Dice) -> bytes:
    """Return a request, whose body mostly has the length that its head announces."""
    content = body(dice)
    lines = [f"{dice.choice(METHODS)} {dice.choice(TARGETS)}{dice.choice(QUERIES)} HTTP/1.{dice.choice('110')}"]
    lines += ["Host: localhost"] if not dice.one_in(8) else []
    lines += [dice.choice(HEADERS) for _ in range(dice.below(3))]
    how = dice.byte() % 4
    if how == 0:
        lines.append(f"Content-Length: {len(content)}")
    elif how == 1:
        lines.append("Transfer-Encoding: chunked")
        pieces = dice.pieces(content) if content else []
        content = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece) + b"0\r\n\r\n"
    elif how == 2:
        lines.append(f"Content-Length: {dice.number(16)}")
    else:
        content = b""
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


def said(chunks: list[bytes], limits: RequestLimits = LIMITS) -> list[Any]:
    """Return the session's events, with the messages of one request joined; check that each request gets an answer."""
    session = HttpSession(frozenset({"localhost"}), limits=limits)
    events: list[Any] = []

    def take(found: list[Any]) -> None:
        for event in found:
            assert not events or not isinstance(events[-1], str), "an event follows Broken"
            if isinstance(event, Broken):
                events.append(event.error.cause)
            elif isinstance(event, PublishPart):
                if not (events and isinstance(events[-1], list)):
                    events.append([event.stream, event.content_type])
                events[-1] += event.payloads
                assert all(len(payload) <= limits.message for payload in event.payloads)
            elif isinstance(event, PublishEnd | Read | Live):
                events.append((type(event).__name__,))
                if session.answering:
                    session.respond(200, b"{}")
            elif isinstance(event, BodyRefused):
                events.append((event.refusal.status, event.refusal.cause))
                session.refuse(event.refusal.status, event.refusal.cause, event.refusal.detail)
            else:
                assert isinstance(event, RequestRefused), event
                events.append((event.status, event.cause))

    for chunk in chunks:
        take(session.receive_data(chunk))
        while session.more:
            take(session.next_events())
        assert session.expected <= max(SMALL, limits.message) or session.over
    take(session.receive_eof())
    while session.more:
        take(session.next_events())
    wire = b"".join(session.data_to_send())
    answers = wire.count(b"HTTP/1.1 ") - wire.count(b"HTTP/1.1 100 ")
    assert answers >= sum(isinstance(event, tuple) for event in events)
    return events


def requests(data: bytes) -> None:
    """Check that requests, some of them damaged, have the same result whole and in pieces."""
    for limits in (LIMITS, DEFAULTS):
        dice = harness.Dice(data)
        wire = b""
        while dice and len(wire) < 6000:
            wire += dice.damaged(request(dice))
        assert said(dice.pieces(wire), limits) == said([wire], limits)


def raw(data: bytes) -> None:
    """Check that random bytes have the same result whole and in pieces."""
    for limits in (LIMITS, DEFAULTS):
        assert said([data], limits) == said([data[:3], data[3:]], limits)


def ambiguous(data: bytes) -> None:
    """Check that a head is refused if one line ends without CR or is folded, and that no message of it is published."""
    dice = harness.Dice(data)
    head, end, content = request(dice).partition(b"\r\n\r\n")
    lines = (head + end).split(b"\r\n")[:-1]
    at = dice.below(len(lines))
    ends = [b"\r\n"] * len(lines)
    ends[at] = dice.choice((b"\n", b"\r\n ", b"\r\n\t")) if at < len(lines) - 1 else b"\n"
    wire = b"".join(line + end for line, end in zip(lines, ends, strict=True)) + content
    assert said(dice.pieces(wire)) == said([wire]) == ["bad-http"]


DECODERS = {"requests": requests, "raw": raw, "ambiguous": ambiguous}
