"""Find out which connections of a port never became ones of ZeroMQ: port scans, browsers, other protocols, garbage.

    accepted(descriptor) -> succeeded() or failed(cause) -> ended(descriptor)

A monitor says which descriptor was accepted and which has ended, and of a handshake only that one succeeded or failed.
A connection that fails ends at once, so the next end is its own; some fail without a word.  While several handshakes
are under way it is not known which of them has succeeded; then an end without a word counts as that of a good one.

in: what one monitor says, in its order      out: why a connection that ended was none of ZeroMQ's
"""

from __future__ import annotations

import errno

import attrs

#: The peer has ended the connection before it said anything that is wrong.
LEFT = "handshake-left"
#: The peer has taken too long.
TIMEOUT = "handshake-timeout"
#: What the peer has sent is no handshake of ZeroMQ's.
BAD = "bad-handshake"


@attrs.define(eq=False)
class Handshakes:
    """The handshakes of one port."""

    _pending: set[int] = attrs.field(factory=set, init=False)
    _succeeded: int = attrs.field(default=0, init=False)
    _failure: str | None = attrs.field(default=None, init=False)

    def accepted(self, descriptor: int) -> None:
        """A handshake begins."""
        self._pending.add(descriptor)

    def succeeded(self) -> None:
        """Note that one handshake has succeeded."""
        self._succeeded += 1
        if self._succeeded >= len(self._pending):
            self._pending.clear()
            self._succeeded = 0

    def failed(self, number: int, *, protocol: bool = False, refused: bool = False) -> None:
        """Note that a handshake has failed: that of the connection that ends next.

        :param number: the number of the system's error
        :param protocol: the peer has broken the protocol, and *number* says how
        :param refused: the peer was refused, which was counted where that was decided
        """
        if refused:
            self._failure = ""
        elif protocol:
            self._failure = BAD
        else:
            self._failure = TIMEOUT if number == errno.EAGAIN else LEFT

    def ended(self, descriptor: int) -> str | None:
        """Return why the handshake of a connection that has ended had failed; None if it had not."""
        failure, self._failure = self._failure, None
        pending = descriptor in self._pending
        self._pending.discard(descriptor)
        if failure is None and pending and self._succeeded:
            self._succeeded -= 1
        elif failure is None and pending:
            failure = BAD
        return failure or None
