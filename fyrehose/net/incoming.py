"""Watch the frame that is coming in on a connection: it must be whole in time, and not slow when memory is short.

    timeout    the whole frame has this long, and a second more for each 64 KiB of it that has arrived
    slow       it is behind what a link of 64 KiB a second would have brought by more than PATIENCE

Time in which the connection is not read does not count, for either.  When the reactor was busy for long, what has
arrived is still in the kernel; therefore a frame is slow only if it has been seen to be behind for CERTAINTY.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from fyrehose.core.budget import Account
from fyrehose.errors import RemoteProtocolError

#: A slow link may still send a large frame, or take a large delivery: this many bytes a second are enough.
SLOWEST = 64 << 10
#: How far a frame may fall behind that rate before it counts as slow, in seconds.
PATIENCE = 5.0
#: How long a frame must have been seen to be behind before it is slow, in seconds: many turns of the reactor.
CERTAINTY = 0.5
#: How often a frame that waits for memory looks whether others have become slow, in seconds.
RETRY = 1.0


@attrs.define(eq=False)
class Reading:
    """The reading half of a connection, which several may pause: it reads when none of them wants it paused.

    :ivar pause: pauses it
    :ivar resume: lets it go on
    """

    pause: Callable[[], object]
    resume: Callable[[], object]
    _pauses: int = attrs.field(default=0, init=False)

    @property
    def paused(self) -> bool:
        """Whether anybody wants it paused."""
        return self._pauses > 0

    def pauseProducing(self) -> None:
        self._pauses += 1
        if self._pauses == 1:
            self.pause()

    def resumeProducing(self) -> None:
        """Take one pause back; reading goes on when none is left."""
        self._pauses -= 1
        if not self._pauses:
            self.resume()


@attrs.define(eq=False)
class FrameWatch:
    """Watch the frames of one connection, one after the other.

    :ivar clock: the reactor, or a Clock
    :ivar timeout: how long a frame may take, in seconds
    :ivar late: is called when a frame took longer
    :ivar give_way: is called when memory is short and the frame is slow
    :ivar account: the connection's account
    """

    clock: IReactorTime
    timeout: float
    late: Callable[[RemoteProtocolError], object]
    give_way: Callable[[RemoteProtocolError], object]
    account: Account | None = None
    _since: float | None = attrs.field(default=None, init=False)
    _arrived: int = attrs.field(default=0, init=False)  #: since then, in bytes
    _due: float = attrs.field(default=0.0, init=False)  #: when more has to arrive, or the frame is slow
    _behind_at: float | None = attrs.field(default=None, init=False)  #: when it was first seen to be behind that
    _paused_at: float | None = attrs.field(default=None, init=False)
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)

    def received(self, size: int, coming: bool, another: bool) -> None:
        """Note that *size* bytes arrived.

        :param coming: whether there is a frame that is not whole
        :param another: whether that is not the one that there was before
        """
        if not coming:
            self._since = None
            return
        now = self.clock.seconds()
        if another or self._since is None:
            self._since, self._arrived, self._due = now, 0, now + PATIENCE
        else:
            self._arrived += size
            self._due = min(now + PATIENCE, max(self._due, now - PATIENCE) + size / SLOWEST)
        self._is_behind(now)
        if self._timer is None:
            self._timer = self.clock.callLater(self.timeout, self._check)

    def pause(self) -> None:
        """Note that the connection is not read any more."""
        self._paused_at = self.clock.seconds()
        if self._timer is not None and self._waits and self._timer.getTime() > self._paused_at + RETRY:
            self._timer.reset(RETRY)

    def resume(self) -> None:
        """Note that the connection is read again: its frame has the whole of its time again."""
        now = self.clock.seconds()
        if self._paused_at is not None:
            self._due = max(self._due + now - self._paused_at, now + PATIENCE / 2)
            self._paused_at = self._behind_at = None
        if self._since is not None:
            self._since = now

    def close(self) -> None:
        """Watch no more."""
        self._since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # What the account calls.

    @property
    def slow(self) -> bool:
        """Whether the frame comes more slowly than a slow link brings it."""
        if self._since is None or self._paused_at is not None:
            return False
        now = self.clock.seconds()
        return self._is_behind(now) and self._behind_at is not None and now >= self._behind_at + CERTAINTY

    def drop(self) -> None:
        """End the connection, because memory is short and the frame is slow."""
        self.give_way(
            RemoteProtocolError(
                "slow-frame",
                f"{self._arrived} bytes of a frame came more slowly than {SLOWEST >> 10} KiB a second while others "
                "waited for memory; the peer has to send it again; a larger server.memory lets more frames wait",
            )
        )

    # Inside.

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
        # By what arrived and not by what was announced, because announcing is cheap.
        left = self._since + self.timeout + self._arrived / SLOWEST - self.clock.seconds()
        if left <= 0:
            self.late(RemoteProtocolError("frame-timeout", "a frame did not come in whole in time"))
        else:
            self._timer = self.clock.callLater(min(left, RETRY) if self._waits else left, self._check)
