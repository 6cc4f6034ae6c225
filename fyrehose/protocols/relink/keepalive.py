"""Pings for a silent peer: both sides of a connection use the same timer."""

from __future__ import annotations

from typing import Protocol

import attrs

from fyrehose.net.lifecycle import Timers


class Pinging(Protocol):
    """A connection that pings its peer.

    :ivar timers: the timers of the connection; pings stop when these are stopped
    :ivar heard_at: when the peer's data last arrived, on the clock of *timers*
    """

    timers: Timers
    heard_at: float

    @property
    def unheard(self) -> bool:
        """Return whether the connection is not being read at present, so that silence means nothing."""

    def ping(self) -> None:
        """Send a ping."""

    def give_up(self, silence: float) -> None:
        """End the connection, because the peer was silent for *silence* seconds."""


@attrs.define(eq=False)
class KeepAliveTimer:
    """Ping a peer that is silent, and give up if the silence lasts.

    :ivar ping_after: silence after which a ping is sent, and the interval of further pings, in seconds
    :ivar drop_after: silence after which the peer is given up, in seconds
    """

    connection: Pinging
    ping_after: float
    drop_after: float

    def start(self) -> None:
        """Start the timer, because the handshake is complete."""
        timers = self.connection.timers
        self.connection.heard_at = timers.clock.seconds()
        timers.start(self.ping_after, self._check)

    def _check(self) -> None:
        connection, timers = self.connection, self.connection.timers
        now = timers.clock.seconds()
        silence = now - connection.heard_at
        if connection.unheard:
            connection.heard_at = now
        elif silence >= self.drop_after:
            connection.give_up(silence)
            return
        if silence >= self.ping_after:
            connection.ping()
        left = self.ping_after - silence
        timers.start(left if left > 0 else self.ping_after, self._check)
