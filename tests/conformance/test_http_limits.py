"""Test each limit of HTTP at its default: one below it, at it, one above it."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.protocols.http.bodies import LineBody, TooLarge, Whole
from fyrehose.protocols.http.server import HttpSettings
from fyrehose.protocols.http.session import NDJSON, HttpSession, RequestLimits
from fyrehose.web.session import RequestRefused

SETTINGS = HttpSettings()
LARGEST = SETTINGS.max_payload


@pytest.mark.parametrize(("size", "taken"), [(LARGEST - 1, True), (LARGEST, True), (LARGEST + 1, False)])
@pytest.mark.parametrize("make", [lambda: Whole(LARGEST, None), lambda: LineBody(LARGEST)], ids=["whole", "lines"])
def test_a_message_may_be_as_large_as_the_limit(make: Any, size: int, *, taken: bool) -> None:
    body, piece, found = make(), bytes(1 << 20), []
    try:
        for at in range(0, size, len(piece)):
            found += body.add(piece[: size - at])
        found += body.end()
    except TooLarge:
        found = []
    assert [len(message) for message in found] == ([size] if taken else [])


@pytest.mark.parametrize(
    ("kind", "size", "status"),
    [
        ("text/plain", LARGEST, None),
        ("text/plain", LARGEST + 1, 413),
        (NDJSON, SETTINGS.max_body - 1, None),
        (NDJSON, SETTINGS.max_body, None),
        (NDJSON, SETTINGS.max_body + 1, 413),
    ],
)
def test_a_body_above_the_limit_is_refused_by_the_head_of_its_request(kind: str, size: int, status: int | None) -> None:
    session = HttpSession(
        frozenset({"localhost"}), limits=RequestLimits(message=SETTINGS.max_payload, body=SETTINGS.max_body)
    )
    head = f"POST /streams/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n"
    events = list(session.receive_data(head.encode()))
    while session.more:
        events += session.next_events()
    assert [event.status for event in events if isinstance(event, RequestRefused)] == (
        [] if status is None else [status]
    )
