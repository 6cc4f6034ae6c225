"""Pings for a silent peer."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock

from fyrehose.net.keepalive import PingsSilentPeer
from fyrehose.net.lifecycle import Timers


class Connection(PingsSilentPeer):
    """Notes when it was to ping its peer, and to give it up."""

    unheard = False
    ping_after, drop_after = 15, 45

    def __init__(self, unheard: bool = False) -> None:
        self.clock, self.done, self.unheard = Clock(), list[Any](), unheard
        self.timers = Timers(self.clock)

    def ping(self) -> None:
        self.done.append(self.clock.seconds())

    def give_up(self, silence: float) -> None:
        self.done.append((self.clock.seconds(), silence))


def test_silent_peer_is_pinged_and_then_disconnected() -> None:
    connection = Connection()
    clock = connection.clock
    connection.keep_alive()
    clock.pump([10])
    connection.heard_at = clock.seconds()
    clock.pump([1] * 14)
    assert connection.done == [], "15 s have passed since the start, but not since data arrived"
    clock.pump([1] * 31)
    assert connection.done == [25.0, 40.0, (55.0, 45.0)]
    assert not clock.getDelayedCalls()


def test_silence_counts_from_the_start() -> None:
    connection = Connection()
    connection.clock.pump([100])
    connection.keep_alive()
    connection.clock.pump([1] * 20)
    assert connection.done == [115.0]


def test_peer_is_pinged_but_not_given_up_while_it_is_not_read() -> None:
    connection = Connection(unheard=True)
    connection.keep_alive()
    connection.clock.pump([1] * 100)
    assert connection.done == [15, 30, 45, 60, 75, 90]
