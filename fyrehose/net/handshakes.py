"""Limit the time of TLS handshakes, and count those that fail.

a transport, a clock -> counters, log lines; a late connection is aborted
"""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IDelayedCall, IReactorTime, ISSLTransport
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.observe.counters import Counters


@attrs.define(eq=False)
class Handshake:
    """The TLS handshake of one connection; without TLS it is over from the beginning."""

    protocol: str
    peer: str
    log: Logger
    counters: Counters
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)

    def begin(self, transport: Any, clock: IReactorTime, timeout: float) -> None:
        """Abort the connection if the handshake is not over within *timeout* seconds."""
        if ISSLTransport.providedBy(transport):
            self._timer = clock.callLater(timeout, self._time_out, transport)

    def end(self) -> bool:
        """Stop the timer; return whether the handshake was in progress."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        return timer is not None

    def lost(self, reason: Failure) -> None:
        """Count a handshake that the loss of the connection has ended."""
        if not self.end():
            return
        if reason.check(ConnectionDone, ConnectionLost):  # a port scan or a health check
            self.counters.add(self.protocol, "handshake-aborted")
        else:
            self.counters.refuse(self.log, self.protocol, "handshake-failed", self.peer, reason.getErrorMessage())

    def _time_out(self, transport: Any) -> None:
        self._timer = None
        self.counters.refuse(self.log, self.protocol, "handshake-timeout", self.peer)
        transport.abortConnection()
