"""Test the limits of lumberjack at their defaults: one below, at, one above."""

from __future__ import annotations

import pytest

from fyrehose.errors import Broken
from fyrehose.protocols.lumberjack.frames import Window
from fyrehose.protocols.lumberjack.server import LumberjackSettings
from fyrehose.protocols.lumberjack.session import LumberjackServerSession


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_an_event_may_be_as_large_as_the_limit(more: int) -> None:
    """The size is checked as soon as it is known."""
    session = LumberjackServerSession(LumberjackSettings(refused="close").limits)
    size = (LumberjackSettings().max_frame + more).to_bytes(4, "big")
    events = session.receive_data(Window(version=2, number=1).serialize() + b"2J\0\0\0\1" + size)
    assert [type(event) for event in events] == ([Broken] if more > 0 else [])
