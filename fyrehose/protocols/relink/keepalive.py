"""Pings for a silent peer: both sides of a connection use the same timer."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from fyrehose.net.lifecycle import Timers


@attrs.define(eq=False)
class KeepAliveTimer:
    """Ping a peer that is silent, and give up if the silence lasts.

    :ivar timers: the timers of the connection, with which the pings end
    :ivar ping_after: silence after which a ping is sent, and after which another one is, in seconds
    :ivar drop_after: silence after which the peer is given up, in seconds
    :ivar ping: sends a ping
    :ivar drop: called with the length of the silence in seconds; pings end
    :ivar heard_at: when data of the peer arrived last, on the clock of *timers*
    :ivar paused: returns whether the connection is not being read at present, so that silence means nothing
    """

    timers: Timers
    ping_after: float
    drop_after: float
    ping: Callable[[], object]
    drop: Callable[[float], object]
    paused: Callable[[], bool]
    heard_at: float = attrs.field(default=0.0, init=False)

    def start(self) -> None:
        """Begin, because the handshake is complete."""
        self.heard()
        self.timers.start(self.ping_after, self._check)

    def heard(self) -> None:
        """Record that data of the peer has arrived."""
        self.heard_at = self.timers.clock.seconds()

    def _check(self) -> None:
        silence = self.timers.clock.seconds() - self.heard_at
        if self.paused():
            self.heard()
        elif silence >= self.drop_after:
            self.drop(silence)
            return
        if silence >= self.ping_after:
            self.ping()
        left = self.ping_after - silence
        self.timers.start(left if left > 0 else self.ping_after, self._check)
