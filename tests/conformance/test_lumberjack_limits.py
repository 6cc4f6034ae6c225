"""Test the limits of lumberjack at their defaults: one below, at, one above."""

from __future__ import annotations

import pytest

from fyrehose.errors import Broken
from fyrehose.protocols.lumberjack.frames import Json, Window
from fyrehose.protocols.lumberjack.server import LumberjackSettings
from fyrehose.protocols.lumberjack.session import LumberjackServerSession

SEARCH = LumberjackSettings().topic_search


@pytest.mark.parametrize("end", [SEARCH - 1, SEARCH, SEARCH + 1])
def test_a_topic_is_found_within_the_limit_of_searched_bytes_and_not_behind_it(end: int) -> None:
    """The string with the topic ends at byte ``end`` of the event."""
    head, tail = b'{"x":"', b'","@metadata":{"beat":"t"'
    payload = head + b"." * (end - len(head) - len(tail)) + tail
    assert len(payload) == end
    session = LumberjackServerSession(LumberjackSettings().limits)
    events = session.receive_data(
        Window(version=2, number=1).serialize() + Json(sequence=1, payload=payload + b"}}").serialize()
    )
    assert [event.topic for event in events] == ["t" if end <= SEARCH else None]


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("header", [b"2J\0\0\0\1", b"2C"])
def test_a_frame_may_be_as_large_as_the_limit(header: bytes, more: int) -> None:
    """The size is checked as soon as it is known."""
    session = LumberjackServerSession(LumberjackSettings().limits)
    size = (LumberjackSettings().max_frame + more).to_bytes(4, "big")
    events = session.receive_data(Window(version=2, number=1).serialize() + header + size)
    assert [type(event) for event in events] == ([Broken] if more > 0 else [])
