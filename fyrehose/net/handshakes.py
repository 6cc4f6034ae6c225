"""A TLS handshake that has to be over in time, and what is said of one that is not.

in: a transport, a clock      out: counters, log lines; the connection is aborted
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
    """That of one connection; over from the beginning where there is no TLS."""

    protocol: str
    peer: str
    log: Logger
    counters: Counters
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)

    def begin(self, transport: Any, clock: IReactorTime, timeout: float) -> None:
        """It has ``timeout`` seconds."""
        if ISSLTransport.providedBy(transport):
            self._timer = clock.callLater(timeout, self._too_late, transport)

    def end(self) -> bool:
        """It is over, one way or the other; whether it was under way."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        return timer is not None

    def lost(self, reason: Failure) -> None:
        """The connection is gone."""
        if not self.end():
            return
        if reason.check(ConnectionDone, ConnectionLost):  # somebody looked whether the port is open
            self.counters.add(self.protocol, "handshake-aborted")
        else:
            self.counters.refuse(self.log, self.protocol, "handshake-failed", self.peer, reason.getErrorMessage())

    def _too_late(self, transport: Any) -> None:
        self._timer = None
        self.counters.refuse(self.log, self.protocol, "handshake-timeout", self.peer)
        transport.abortConnection()
