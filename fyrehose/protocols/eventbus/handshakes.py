"""Find connections that never completed the ZeroMQ handshake: port scans, browsers, other protocols, garbage.

    accepted(descriptor) -> succeeded() or failed(cause) -> ended(descriptor)

A monitor reports the descriptors of accepted and ended connections.  It reports the outcome of a handshake without the
descriptor, and some failures not at all.  A connection whose handshake fails ends at once, so a failure belongs to the
next connection that ends.  While several handshakes are in progress, it is unknown which of them has succeeded; then
the end of a connection without a reported failure counts as the end of a successful one.

in: the events of one monitor, in order      out: the cause of a failed handshake
"""

from __future__ import annotations

import errno

import attrs

#: The peer closed the connection before it sent anything invalid.
LEFT = "handshake-left"
#: The peer did not complete the handshake in time.
TIMEOUT = "handshake-timeout"
#: The peer sent something other than a ZeroMQ handshake.
BAD = "bad-handshake"


@attrs.define(eq=False)
class Handshakes:
    """The handshakes in progress at one port."""

    _pending: set[int] = attrs.field(factory=set, init=False)
    _succeeded: int = attrs.field(default=0, init=False)
    _failure: str | None = attrs.field(default=None, init=False)

    def accepted(self, descriptor: int) -> None:
        """Record an accepted connection, whose handshake begins."""
        self._pending.add(descriptor)

    def succeeded(self) -> None:
        """Record that one of the handshakes in progress has succeeded."""
        self._succeeded += 1
        if self._succeeded >= len(self._pending):
            self._pending.clear()
            self._succeeded = 0

    def failed(self, number: int, *, protocol: bool = False, refused: bool = False) -> None:
        """Record that the handshake of the next connection that ends has failed.

        :param number: errno, or the number of the protocol error
        :param protocol: the peer violated the protocol
        :param refused: the ZAP handler refused the peer and has counted that already
        """
        if refused:
            self._failure = ""
        elif protocol:
            self._failure = BAD
        else:
            self._failure = TIMEOUT if number == errno.EAGAIN else LEFT

    def ended(self, descriptor: int) -> str | None:
        """Record that a connection has ended; return the cause if its handshake failed, or None."""
        failure, self._failure = self._failure, None
        pending = descriptor in self._pending
        self._pending.discard(descriptor)
        if failure is None and pending and self._succeeded:
            self._succeeded -= 1
        elif failure is None and pending:
            failure = BAD
        return failure or None
