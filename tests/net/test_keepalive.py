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


class EndlessTurn(Clock):
    """A clock that fails instead of calling functions for ever at one time."""

    started = 0

    def callLater(self, delay: float, call: Any, *args: object, **kw: object) -> Any:
        self.started += 1
        assert self.started < 100, "the check starts itself again and again at the same time"
        return super().callLater(delay, call, *args, **kw)


def test_a_silence_that_is_too_short_by_a_rounding_error_ends_a_moment_later() -> None:
    connection = Connection()
    connection.clock = EndlessTurn()
    connection.timers = Timers(connection.clock)
    connection.ping_after, connection.drop_after = 1, 3
    connection.clock.advance(3.1)
    connection.keep_alive()
    connection.clock.pump([1, 1, 1])
    assert 6.1 - 3.1 < 3, "the clock adds and subtracts with rounding errors"
    connection.clock.advance(0.01)
    (_, silence) = connection.done[-1]
    assert silence >= 3, "the peer is given up"
