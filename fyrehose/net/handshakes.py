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

from fyrehose.identity import network_of
from fyrehose.net.foreign import IBegun, without_tls
from fyrehose.observe.counters import Counters

#: The shortest time between two log lines about one cause of failed handshakes of one network, in seconds.
LOG_EVERY = 60.0


@attrs.define(eq=False)
class Handshake:
    """The TLS handshake of one connection; without TLS it counts as complete from the beginning."""

    protocol: str
    peer: str
    log: Logger
    counters: Counters
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)
    _transport: Any = attrs.field(default=None, init=False)

    def begin(self, transport: Any, clock: IReactorTime, timeout: float) -> None:
        """Abort the connection if the handshake is not over within *timeout* seconds."""
        if ISSLTransport.providedBy(transport):
            self._transport = transport
            self._timer = clock.callLater(timeout, self._time_out, transport)

    def end(self) -> bool:
        """Record the end of the handshake: stop its timer; return whether it was still in progress."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        return timer is not None

    def lost(self, reason: Failure) -> bool:
        """Count and log the failure of a handshake that was in progress when the connection was lost.

        Each cause is logged once in :data:`LOG_EVERY` for each network.

        :return: whether the handshake has failed; False if it was complete, or if the peer has only disconnected, as a
            port scan or a health check does
        """
        if not self.end():
            return False
        if reason.check(ConnectionDone, ConnectionLost):
            self.counters.add(self.protocol, "handshake-aborted")
            return False
        why = reason_of(reason.value)
        self.counters.refuse(
            self.log,
            self.protocol,
            "handshake-failed",
            self.peer,
            self._plain() or why,
            apart=f"{network_of(self.peer)} {why}",
            every=LOG_EVERY,
        )
        return True

    def _time_out(self, transport: Any) -> None:
        self._timer = None
        plain = self._plain()
        self.counters.refuse(self.log, self.protocol, "handshake-timeout", self.peer, plain, apart=self.peer)
        transport.abortConnection()

    def _plain(self) -> str:
        return without_tls(self._transport.beginning, self.protocol) if IBegun.providedBy(self._transport) else ""


def reason_of(error: BaseException | None) -> str:
    """Return the reasons in OpenSSL's error queue as text, or the text of *error* if it is another error."""
    queue = error.args[0] if error is not None and error.args else ()
    if not isinstance(queue, list | tuple):
        return str(error)
    reasons = [str(part[-1]) for part in queue if part[-1]]
    return "; ".join(dict.fromkeys(reasons)) or "OpenSSL gives no reason"
