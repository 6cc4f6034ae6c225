"""Ping a silent peer, and end its connection if it stays silent; the server and the client share this code."""

from __future__ import annotations

from fyrehose.net.lifecycle import Timers

#: The shortest time between two checks, in seconds: a silence may be too short by a rounding error of the clock, and a
#: timer of that error would be due at the same time again and again.
LEAST = 0.001


class PingsSilentPeer:
    """A mixin for connections: it pings a silent peer, and gives the peer up if the silence lasts.

    :ivar timers: the timers of the connection; pings stop when these are stopped
    :ivar heard_at: when the peer's data last arrived, on the clock of *timers*
    :ivar ping_after: silence after which a ping is sent, and the interval of further pings, in seconds
    :ivar drop_after: silence after which the peer is given up, in seconds
    """

    timers: Timers
    heard_at: float
    ping_after: float
    drop_after: float

    @property
    def unheard(self) -> bool:
        """Return whether the connection is not being read at present, so that silence means nothing."""
        raise NotImplementedError

    def ping(self) -> None:
        """Send a ping."""
        raise NotImplementedError

    def give_up(self, silence: float) -> None:
        """End the connection, because the peer was silent for *silence* seconds."""
        raise NotImplementedError

    def keep_alive(self) -> None:
        """Start the pings, because the handshake is complete."""
        self.heard_at = self.timers.clock.seconds()
        self.timers.start(self.ping_after, self._check_silence)

    def stop_pings(self) -> None:
        """Stop the pings, because the peer owes nothing."""
        self.timers.stop(self._check_silence)

    def _check_silence(self) -> None:
        now = self.timers.clock.seconds()
        silence = now - self.heard_at
        if self.unheard:
            self.heard_at = now
        elif silence >= self.drop_after:
            self.give_up(silence)
            return
        if silence >= self.ping_after:
            self.ping()
        left = self.ping_after - silence if silence < self.ping_after else self.ping_after
        # Without the minimum, a silence that is no multiple of `ping_after` would be noticed late.
        left = left if self.unheard else min(left, self.drop_after - silence)
        self.timers.start(max(left, LEAST), self._check_silence)
