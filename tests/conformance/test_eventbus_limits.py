"""Each limit of the event bus at its default: one below it, at it, one above it."""

from __future__ import annotations

import pytest

from fyrehose.protocols.eventbus.frames import MAX_LABEL
from fyrehose.protocols.eventbus.session import ServerSession
from fyrehose.protocols.eventbus.settings import Settings

TIME = b"2024-05-01T10:20:30.123Z"
UUID = b"7d444840-9dc0-41d1-b245-5ffdce74fad2"
LARGEST = Settings().max_payload


def refused(*frames: bytes) -> str | None:
    found = ServerSession(Settings()).receive_pub([b"c", *frames], 1 + len(frames), 0.0)
    return None if found is None else found.error.cause


@pytest.mark.parametrize(("size", "cause"), [(LARGEST - 1, None), (LARGEST, None), (LARGEST + 1, "data-too-large")])
def test_an_event_may_be_as_large_as_the_limit(size: int, cause: str | None) -> None:
    assert refused(b"/a/", b"null", b"me", TIME, UUID, bytes(size)) == cause


@pytest.mark.parametrize("size", [MAX_LABEL - 1, MAX_LABEL, MAX_LABEL + 1])
@pytest.mark.parametrize("place", [2, 3, 4])
def test_a_label_may_be_as_long_as_the_limit(place: int, size: int) -> None:
    frames = [b"/a/", b"null", b"me", TIME, UUID, b"\x01"]
    frames[place] = b"x" * size
    assert (refused(*frames) is None) is (size <= MAX_LABEL)
