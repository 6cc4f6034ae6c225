"""Limits of Relink at their defaults: one below, at, one above (test_limits.py has those of channels and backlogs)."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest

from fyrehose.protocols.relink.settings import Settings
from fyrehose.records import Run

SETTINGS = Settings()
LARGEST = SETTINGS.max_message


@pytest.mark.parametrize(
    ("size", "closed"), [(LARGEST - 8, False), (LARGEST - 1, False), (LARGEST, False), (LARGEST + 1, True)]
)
def test_a_message_may_be_as_large_as_the_limit(make_server: Any, size: int, *, closed: bool) -> None:
    """The header alone decides; the padding counts."""
    server = make_server()
    peer = server.linked(connector_size=2)
    peer.say(pack("<BBH4xQ", 0x51, 1, 0, size))
    assert peer.closed is closed
    assert server.count("message-too-large") == closed


def test_as_many_messages_as_the_window_says_are_sent_to_a_subscriber(make_server: Any) -> None:
    server = make_server()
    server.broker.publish([Run.of("s", [b"x"] * (SETTINGS.window + 1), source="test")])
    peer = server.linked("subscribe:s@0", listener_size=0)
    for _ in range(20):
        server.clock.advance(0)
        peer.talk()
    assert peer.link.receiving[0].next == SETTINGS.window
    peer.link.consume(0, 0)
    for _ in range(20):
        peer.talk()
        server.clock.advance(0)
    assert peer.link.receiving[0].next == SETTINGS.window + 1
