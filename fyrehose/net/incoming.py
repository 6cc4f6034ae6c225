"""Watch the incomplete frame of a connection: it has to be complete in time and, if memory is short, to arrive fast.

    timeout    the whole frame has this long, plus a second for each 64 KiB of it that has arrived
    slow       the frame is more than SLOW_FRAME_S behind a link of 64 KiB per second

Time in which the server does not read the connection does not count.  While the reactor is busy, arrived data waits in
the kernel; therefore a frame counts as slow only after it has been observed to be behind for CERTAINTY.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from fyrehose.broker.budget import Account
from fyrehose.errors import RemoteProtocolError

#: The lowest rate at which a peer may send a large frame, or read a large delivery, in bytes per second.
SLOWEST = 64 << 10
#: How far a frame may fall behind :data:`SLOWEST` before it counts as slow, in seconds.
SLOW_FRAME_S = 5.0
#: How long a frame must be observed to be that far behind before it is slow, in seconds: many turns of the reactor.
CERTAINTY = 0.5
#: How often a frame that waits for memory checks whether other frames have become slow, in seconds.
RETRY = 1.0


@attrs.define(eq=False)
class Reading:
    """The reading half of a connection, which several parties may pause; it reads while none of them pauses it.

    :ivar pause: stops reading
    :ivar resume: starts reading again
    """

    pause: Callable[[], object]
    resume: Callable[[], object]
    _pauses: int = attrs.field(default=0, init=False)

    @property
    def paused(self) -> bool:
        """Return whether any party has paused reading."""
        return self._pauses > 0

    def pauseProducing(self) -> None:
        self._pauses += 1
        if self._pauses == 1:
            self.pause()

    def resumeProducing(self) -> None:
        """End one pause; reading continues when no other party pauses it."""
        self._pauses -= 1
        if not self._pauses:
            self.resume()


@attrs.define(eq=False)
class FrameWatch:
    """A watch over the frames of one connection, which have to arrive in time, one after the other.

    :ivar clock: the reactor, or a Clock
    :ivar timeout: how long a frame may take, in seconds
    :ivar late: called when a frame takes longer
    :ivar give_way: called when memory is short and the frame is slow
    :ivar account: the connection's account
    """

    clock: IReactorTime
    timeout: float
    late: Callable[[RemoteProtocolError], object]
    give_way: Callable[[RemoteProtocolError], object]
    account: Account | None = None
    #: when the frame began, or reading was resumed last; None: no frame is incomplete
    _since: float | None = attrs.field(default=None, init=False)
    _arrived: int = attrs.field(default=0, init=False)  #: bytes of the frame since its first read
    _due: float = attrs.field(default=0.0, init=False)  #: when the frame falls behind if no more arrives
    _behind_at: float | None = attrs.field(default=None, init=False)  #: when the frame was first seen to be behind
    _paused_at: float | None = attrs.field(default=None, init=False)
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)

    def received(self, size: int, incomplete: bool, another: bool) -> None:
        """Record that the connection has received *size* bytes.

        :param incomplete: True if a frame is incomplete now
        :param another: True if another frame was incomplete before
        """
        if not incomplete:
            self._since = None
            return
        now = self.clock.seconds()
        if another or self._since is None:
            self._since, self._arrived, self._due = now, 0, now + SLOW_FRAME_S
        else:
            self._arrived += size
            self._due = min(now + SLOW_FRAME_S, max(self._due, now - SLOW_FRAME_S) + size / SLOWEST)
        self._is_behind(now)
        if self._timer is None:
            self._timer = self.clock.callLater(self.timeout, self._check)

    def pause(self) -> None:
        """Record that the server has paused reading, so that the time does not count for the frame."""
        self._paused_at = self.clock.seconds()
        if self._timer is not None and self._waits and self._timer.getTime() > self._paused_at + RETRY:
            self._timer.reset(RETRY)

    def resume(self) -> None:
        """Record that reading continues, which gives the frame its full time again."""
        now = self.clock.seconds()
        if self._paused_at is not None:
            self._due = max(self._due + now - self._paused_at, now + SLOW_FRAME_S / 2)
            self._paused_at = self._behind_at = None
        if self._since is not None:
            self._since = now

    def close(self) -> None:
        """Stop watching the frame, and cancel its timer."""
        self._since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Called by the account.

    @property
    def slow(self) -> bool:
        """Return whether the frame is slow, which means behind the lowest rate for at least :data:`CERTAINTY`."""
        if self._since is None or self._paused_at is not None:
            return False
        now = self.clock.seconds()
        return self._is_behind(now) and self._behind_at is not None and now >= self._behind_at + CERTAINTY

    def drop(self) -> None:
        """End the connection, because memory is short and the frame is slow."""
        self.give_way(
            RemoteProtocolError(
                "slow-frame",
                f"{self._arrived} bytes of a frame arrived at less than {SLOWEST >> 10} KiB per second while others "
                "waited for memory; the peer has to send it again; raise server.memory to let more frames wait",
            )
        )

    # Private.

    def _is_behind(self, now: float) -> bool:
        if now <= self._due:
            self._behind_at = None
        elif self._behind_at is None:
            self._behind_at = now
        return self._behind_at is not None

    @property
    def _waits(self) -> bool:
        return self.account is not None and self.account.waits

    def _check(self) -> None:
        self._timer = None
        if self._since is None:
            return
        if self._waits and self.account is not None:
            self.account.retry()
        if self._paused_at is not None:
            self._since = self.clock.seconds()
        # Arrived bytes give the frame more time, its announced size does not, because announcing costs the peer
        # nothing.
        left = self._since + self.timeout + self._arrived / SLOWEST - self.clock.seconds()
        if left <= 0:
            self.late(RemoteProtocolError("frame-timeout", "a frame was not complete in time"))
        else:
            self._timer = self.clock.callLater(min(left, RETRY) if self._waits else left, self._check)
