"""Every session of a byte stream returns all events of its bytes to a loop."""

from __future__ import annotations

import zlib
from struct import pack

import pytest

from fyrehose.protocols.lumberjack.session import LumberjackServerSession
from fyrehose.testing import feed


@pytest.mark.xfail(
    strict=True, reason="receive_data returns the events of one turn, and nothing says that there are more"
)
def test_feed_returns_the_events_of_compressed_windows() -> None:
    frame = zlib.compress(b"2J" + pack(">II", 1, 2) + b"{}")
    found = feed(LumberjackServerSession(), [b"2W" + pack(">I", 1) + b"2C" + pack(">I", len(frame)) + frame])
    assert len(found) == 1
