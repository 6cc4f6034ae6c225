"""The incoming half of every connection: whether it is read, its input that waits for a turn, its incomplete frame.

    Reading        why the connection is not read at present
    WaitingInput   data that arrived while other connections had turns, up to the end of the input
    FrameWatch     the incomplete frame: it has to be complete in time and, if memory is short, to arrive fast

    timeout    the whole frame has this long, plus a second for each 64 KiB of it that has arrived
    slow       the frame is more than SLOW_FRAME_S behind a link of 64 KiB per second

Time in which the server does not read the connection does not count.  While the reactor is busy, arrived data waits in
the kernel; therefore a frame counts as slow only after it has been observed to be behind for CERTAINTY.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from fyrehose.errors import RemoteProtocolError
from fyrehose.net.inflight import Account
from fyrehose.net.lifecycle import Phase
from fyrehose.net.turns import Turns

if TYPE_CHECKING:
    from fyrehose.net.tcp import SessionProtocol

#: The lowest rate at which a peer may send a large frame, or read a large delivery, in bytes per second.
SLOWEST = 64 << 10
#: How far a frame may fall behind :data:`SLOWEST` before it counts as slow, in seconds.
SLOW_FRAME_S = 5.0
#: How long a frame must be observed to be that far behind before it is slow, in seconds: many turns of the reactor.
CERTAINTY = 0.5
#: The largest input that does not wait behind larger input of its network, in bytes.
SMALL = 16 << 10
#: How often a frame that waits for memory checks whether other frames have become slow, in seconds.
RETRY = 1.0


@attrs.define(eq=False)
class Reading:
    """The reading half of a connection: it is read as long as there is no reason to pause it.

    :ivar pause: stops reading
    :ivar resume: starts reading again
    :ivar reasons: why reading is paused; each reason is added and removed by the part of the server that it belongs to
    """

    pause: Callable[[], object]
    resume: Callable[[], object]
    reasons: set[str] = attrs.field(factory=set, init=False)

    @property
    def paused(self) -> bool:
        """Return whether reading is paused, for whatever reason."""
        return bool(self.reasons)

    def pause_for(self, reason: str) -> None:
        """Pause reading for *reason*, until :meth:`resume_after`; do nothing if that reason is known already."""
        if reason not in self.reasons:
            self.reasons.add(reason)
            if len(self.reasons) == 1:
                self.pause()

    def resume_after(self, reason: str) -> None:
        """Remove *reason*; reading continues when no other reason is left."""
        if reason in self.reasons:
            self.reasons.remove(reason)
            if not self.reasons:
                self.resume()

    # Called by the account.

    def pauseProducing(self) -> None:
        self.pause_for("memory")

    def resumeProducing(self) -> None:
        self.resume_after("memory")


class WaitingInput:
    """The input of one connection that waits for a turn of the connection.

    It stays in its order: first the events that the session has left, then the data that arrived, then the end.  Data
    that waits is charged to the account.  The connection waits for one turn at most, and reading continues after the
    turn that leaves nothing.

    :ivar turns: the turns of all work of the server
    :ivar share: the share of turns that pays for small input of the peer's network
    :ivar bulk_share: the one that pays for its large input, so that small input does not wait behind it
    :ivar waits: whether the connection waits for a turn
    :ivar ended: whether the peer has closed its sending side behind the input that waits
    """

    __slots__ = ("_data", "_owner", "_size", "bulk_share", "ended", "share", "turns", "waits")

    def __init__(self, owner: SessionProtocol, turns: Turns) -> None:
        self._owner = owner
        self.turns = turns
        self.share, self.bulk_share = f"<{owner.network}", f"<<{owner.network}"
        self._data: list[bytes] = []
        self._size = 0
        self.waits = False
        self.ended = False

    def postpone(self, data: bytes) -> None:
        """Keep *data*, which has just arrived, for the next turn."""
        self._data.append(data)
        self._size += len(data)
        self._owner.account.hold(len(data))
        self.wait()

    def wait(self) -> None:
        """Queue the connection for a turn.

        It is not read meanwhile if the session has further events, if a frame is incomplete, whose time must not pass
        while it waits, or once more data arrives.  A peer that sends one request at a time has no more, and pausing
        costs two calls of the kernel.
        """
        owner, waited, self.waits = self._owner, self.waits, True
        if not waited:
            self._proceed()
        if waited or owner.incomplete.size or owner.has_more:
            owner.reading.pause_for("turn")

    def end(self) -> None:
        """Record that the peer has closed its sending side, which is handled after the input that waits."""
        self.ended = True

    # Called by the server's turns.

    def take_turn(self) -> int:
        """Handle the session's next events, then data that arrived meanwhile; read again when nothing is left."""
        owner = self._owner
        if owner.park(self._proceed):
            return 0
        self.waits = False
        if owner.phase is Phase.OPEN and owner.has_more:
            owner.received(owner.session.next_events())
            size = 0
        else:
            data, self._data = b"".join(self._data), []
            size, self._size = self._size, 0
            owner.account.release(size)
            if data and owner.phase is Phase.OPEN:
                owner.take(data)
        if self._data:
            self.wait()
        if not self.waits:
            owner.reading.resume_after("turn")
            if self.ended and owner.phase is Phase.OPEN:
                owner.take_eof()
        return size

    def _proceed(self) -> None:
        """Ask for a turn; small input does not wait behind large input of its network."""
        owner = self._owner
        bulk = self._size > SMALL or owner.has_more
        self.turns.ready(self, self.bulk_share if bulk else self.share)

    def failed(self, failure: Failure) -> None:
        """Log *failure*, by which handling the input has ended, and end the connection."""
        self._owner.failed(failure)


@attrs.define(eq=False)
class FrameWatch:
    """A watch over the frames of one connection, which have to arrive in time, one after the other.

    After each read the account is charged for the incomplete frame, or for none between two frames.  A frame that is
    late, or slow while memory is short, ends the connection.

    :ivar clock: the reactor, or a Clock
    :ivar timeout: how long a frame may take, in seconds
    :ivar late: called when a frame takes longer
    :ivar give_way: called when memory is short and the frame is slow
    :ivar account: the connection's account; set when the connection is made
    :ivar size: the size of the incomplete frame in bytes, as far as it is known; 0 between frames
    """

    clock: IReactorTime
    timeout: float
    late: Callable[[RemoteProtocolError], object]
    give_way: Callable[[RemoteProtocolError], object]
    account: Account | None = None
    size: int = attrs.field(default=0, init=False)
    #: when the frame began, or reading was resumed last; None: no frame is incomplete
    _since: float | None = attrs.field(default=None, init=False)
    _arrived: int = attrs.field(default=0, init=False)  #: bytes of the frame since its first read
    _due: float = attrs.field(default=0.0, init=False)  #: when the frame falls behind if no more arrives
    _behind_at: float | None = attrs.field(default=None, init=False)  #: when the frame was first seen to be behind
    _paused_at: float | None = attrs.field(default=None, init=False)
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)

    def received(self, got: int, size: int, buffered: int, another: bool) -> None:
        """Record that the connection has received *got* bytes, and charge its account for the incomplete frame.

        :param size: the size of the frame that is incomplete now, as far as it is known; 0: no frame is
        :param buffered: how many of its bytes are in memory
        :param another: True if another frame was incomplete before
        """
        self.size = size
        now = self.clock.seconds()
        if not size:
            self._since = None
        elif another or self._since is None:
            self._since, self._arrived, self._due = now, 0, now + SLOW_FRAME_S
            # The bytes of a large frame before this one have given time to that frame only.
            if self._timer is not None and self._timer.getTime() > now + self.timeout:
                self._timer.reset(self.timeout)
        else:
            self._arrived += got
            self._due = min(now + SLOW_FRAME_S, max(self._due, now - SLOW_FRAME_S) + got / SLOWEST)
        if size:
            self._is_behind(now)
            if self._timer is None:
                self._timer = self.clock.callLater(self.timeout, self._check)
        if self.account is not None:
            self.account.expect(size, buffered if size else 0)

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
            self.account.retry(self.clock.seconds())
        if self._paused_at is not None:
            self._since = self.clock.seconds()
        # Arrived bytes give the frame more time, its announced size does not, because announcing costs the peer
        # nothing.
        left = self._since + self.timeout + self._arrived / SLOWEST - self.clock.seconds()
        if left <= 0:
            self.late(RemoteProtocolError("frame-timeout", "a frame was not complete in time"))
        else:
            self._timer = self.clock.callLater(min(left, RETRY) if self._waits else left, self._check)
