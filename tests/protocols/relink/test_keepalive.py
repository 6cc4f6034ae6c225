"""Pings for a silent peer."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock

from fyrehose.net.lifecycle import Timers
from fyrehose.protocols.relink.keepalive import KeepAliveTimer


def test_silent_peer_is_pinged_and_then_given_up() -> None:
    clock, done, paused = Clock(), [], []

    def note(*what: Any) -> None:
        done.append((clock.seconds(), *what))

    keepalive = KeepAliveTimer(Timers(clock), 15, 45, note, note, lambda: bool(paused))
    keepalive.start()
    clock.pump([10])
    keepalive.heard()
    clock.pump([1] * 14)
    assert done == [], "15 s have passed since the start, but not since data arrived"
    clock.pump([1] * 31)
    assert done == [(25.0,), (40.0,), (55.0, 45.0)]
    assert not clock.getDelayedCalls()


def test_peer_is_pinged_but_not_given_up_while_it_is_not_read() -> None:
    clock, pings = Clock(), []
    keepalive = KeepAliveTimer(
        Timers(clock), 15, 45, lambda: pings.append(clock.seconds()), lambda _: 1 / 0, lambda: True
    )
    keepalive.start()
    clock.pump([1] * 100)
    assert pings == [15, 30, 45, 60, 75, 90]
