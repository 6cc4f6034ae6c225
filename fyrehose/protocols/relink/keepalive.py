"""Pings for a silent peer: both sides of a connection use the same timer."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime


@attrs.define(eq=False)
class KeepAlive:
    """Ping a peer that is silent, and give up if the silence lasts.

    :ivar ping_after: silence after which a ping is sent, and after which another one is, in seconds
    :ivar drop_after: silence after which the peer is given up, in seconds
    :ivar ping: sends a ping
    :ivar drop: called with the length of the silence in seconds; pings end
    :ivar paused: returns whether the connection is not being read at present, so that silence means nothing
    """

    clock: IReactorTime
    ping_after: float
    drop_after: float
    ping: Callable[[], object]
    drop: Callable[[float], object]
    paused: Callable[[], bool]
    _heard: float = attrs.field(default=0.0, init=False)
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)

    def start(self) -> None:
        """Begin, because the handshake is complete."""
        self.heard()
        self._timer = self.clock.callLater(self.ping_after, self._check)

    def heard(self) -> None:
        """Record that data of the peer has arrived."""
        self._heard = self.clock.seconds()

    def stop(self) -> None:
        """Send no more pings."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _check(self) -> None:
        silence = self.clock.seconds() - self._heard
        if self.paused():
            self.heard()
        elif silence >= self.drop_after:
            self.drop(silence)
            return
        if silence >= self.ping_after:
            self.ping()
        left = self.ping_after - silence
        self._timer = self.clock.callLater(left if left > 0 else self.ping_after, self._check)
