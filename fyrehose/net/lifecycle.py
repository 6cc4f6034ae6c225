"""The phases of a connection, its timers, and the wait for its first byte.

OPEN -> SETTLING -> LINGERING -> GONE
           |            ^
           +-> GRACE ---+
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from fyrehose.net.foreign import BEGINNING


class Phase(Enum):
    """The phases of a connection, from reading to closed."""

    OPEN = "open"  #: the server reads and handles input
    SETTLING = "settling"  #: the server ignores input, and waits until all publishes are settled
    GRACE = "grace"  #: the peer was refused: only the socket is kept for a while (see holding.py)
    LINGERING = "lingering"  #: the server is closing the connection, and the peer reads the remaining data
    GONE = "gone"  #: the connection is lost or aborted: nothing can be sent any more


#: The phases that may follow each phase.
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.OPEN: frozenset({Phase.SETTLING, Phase.GONE}),
    Phase.SETTLING: frozenset({Phase.GRACE, Phase.LINGERING, Phase.GONE}),
    Phase.GRACE: frozenset({Phase.LINGERING, Phase.GONE}),
    Phase.LINGERING: frozenset({Phase.GONE}),
    Phase.GONE: frozenset(),
}


@attrs.define(eq=False)
class Timers:
    """The timers of a connection: each calls a function, and a function has one timer at most.

    :ivar clock: the reactor, or a Clock
    :ivar failed: called with the error of a function that a timer has called; None: the reactor logs the error
    """

    clock: IReactorTime
    failed: Callable[[Failure], object] | None = None
    _due: dict[Callable[[], object], IDelayedCall] = attrs.field(factory=dict, init=False)
    _ended: bool = attrs.field(default=False, init=False)

    def start(self, seconds: float, call: Callable[[], object]) -> None:
        """Call *call* after *seconds*, unless its timer is due earlier; do nothing if the connection has ended."""
        if self._ended:
            return
        timer = self._due.get(call)
        if timer is None:
            self._due[call] = self.clock.callLater(seconds, self._fire, call)
        elif timer.getTime() > self.clock.seconds() + seconds:
            timer.reset(seconds)

    def stop(self, call: Callable[[], object]) -> None:
        """Cancel the timer of *call*, if it is started."""
        timer = self._due.pop(call, None)
        if timer is not None:
            timer.cancel()

    def left(self, call: Callable[[], object]) -> float | None:
        """Return the seconds until the timer of *call* is due, or None if it is not started."""
        timer = self._due.get(call)
        return None if timer is None else max(0.0, timer.getTime() - self.clock.seconds())

    def clear(self) -> None:
        """Cancel all timers."""
        for timer in self._due.values():
            timer.cancel()
        self._due.clear()

    def end(self) -> None:
        """Cancel all timers, and start no other, because the connection is lost.

        A request of the connection may be refused later; a timer would then repeat the request, on a closed journal.
        """
        self.clear()
        self._ended = True

    def _fire(self, call: Callable[[], object]) -> None:
        del self._due[call]
        try:
            call()
        except Exception:
            if self.failed is None:
                raise
            self.failed(Failure())


@attrs.define(eq=False)
class FirstByte:
    """The wait for the first byte of a peer: the connection is given up unless the byte arrives in time.

    :ivar timeout: the time in seconds, from the end of the TLS handshake if there is one; 0: no limit
    :ivar give_up: called when the time is over
    :ivar awaited: True until the first byte has arrived
    :ivar beginning: the first bytes, until they prove to be those of the listener's protocol
    """

    timers: Timers
    timeout: float
    give_up: Callable[[], object]
    awaited: bool = attrs.field(default=True, init=False)
    beginning: bytes = attrs.field(default=b"", init=False)

    def start(self) -> None:
        """Begin to wait, or give the peer its whole time again; do nothing if the byte has arrived."""
        if self.awaited and self.timeout:
            self.timers.stop(self.give_up)
            self.timers.start(self.timeout, self.give_up)

    def arrived(self, data: bytes) -> None:
        """Stop waiting, and keep the beginning of *data*."""
        self.awaited, self.beginning = False, data[:BEGINNING]
        self.timers.stop(self.give_up)
