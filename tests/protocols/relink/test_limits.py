"""The limits, as RELINK has them."""

from __future__ import annotations

from fyrehose.protocols.relink.limits import Limits


def test_defaults() -> None:
    limits = Limits()
    assert (limits.targets, limits.parts, limits.message_size) == (1_024, 1_024, 16 << 20)
    assert (limits.channels, limits.backlog, limits.backlog_size, limits.window) == (4_096, 1_024, 16 << 20, 1_024)
    assert limits.results == 256
