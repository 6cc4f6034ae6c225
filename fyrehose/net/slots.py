"""Let only so many bytes of large frames arrive at a time, shared between networks; a slow frame gives way.

A frame that needs more memory than its connection may have waits for a *slot* of its whole size.  While it has the
slot, its connection is read whatever else is in memory.

1. Slots take at most *capacity* bytes, except that a frame gets one of any size if nobody has one.
2. A network takes at most twice what it leaves free, except for a single slot.
3. Networks that wait take turns, and the next one that has no slot keeps its turn until its frame fits.  Of one network
   every second frame is its smallest, so that small frames need not wait for many large ones.
4. While a frame waits that does not fit, slow ones give way: their connections end.  That is checked once a second.
5. A frame that outgrows its slot waits until more fits; the oldest slot may always grow.

So every frame gets its slot: a slot ends when its frame is complete, late or slow, the oldest can always be completed,
and what becomes free goes to the networks in turn.

    slots.wait(frame)      frame.proceed() is called when it has a slot, maybe at once
    slots.leave(frame)     it is complete, or needs no slot any more
    slots.relieve(now)     slow ones give way
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from fyrehose.net.inflight import Account

#: The shortest time between two searches for slow frames, in seconds.
RELIEF_S = 1.0


@attrs.define(eq=False)
class _Queue:
    """The frames of one network that wait for a first slot, the oldest first, and how many got one."""

    frames: dict[Account, None] = attrs.field(factory=dict, init=False)
    given: int = attrs.field(default=0, init=False)

    def next(self) -> Account:
        """Return the frame that gets a slot next."""
        return min(self.frames, key=lambda each: each.frame) if self.given % 2 else next(iter(self.frames))


@attrs.define(eq=False)
class Slots:
    """The slots of all frames; all sizes are in bytes.

    :ivar capacity: what the slots take together
    :ivar held_up: whether no slot is given at present, because memory becomes free without one
    :ivar used: what they take now
    :ivar waiting: whether any frame waits for a slot, or for a larger one
    """

    capacity: int
    held_up: Callable[[], bool] = lambda: False
    used: int = attrs.field(default=0, init=False)
    waiting: bool = attrs.field(default=False, init=False)
    #: the frames that have slots and their sizes, the oldest first
    _slots: dict[Account, int] = attrs.field(factory=dict, init=False)
    _of: dict[str, int] = attrs.field(factory=dict, init=False)  #: what the slots of each network take
    _growing: dict[Account, None] = attrs.field(factory=dict, init=False)  #: those that have outgrown their slots
    #: the queues of the networks, the one whose turn is next first
    _waiting: dict[str, _Queue] = attrs.field(factory=dict, init=False)
    _relieved: float = attrs.field(default=-1.0, init=False)
    _serving: bool = attrs.field(default=False, init=False)
    _again: bool = attrs.field(default=False, init=False)

    def waits(self, frame: Account) -> bool:
        """Return whether *frame* waits for a slot, or for a larger one."""
        if frame in self._growing:
            return True
        queue = self._waiting.get(frame.network)
        return queue is not None and frame in queue.frames

    def covers(self, frame: Account) -> bool:
        """Return whether *frame* has a slot of its size."""
        return self._slots.get(frame, -1) >= frame.frame

    def wait(self, frame: Account) -> None:
        """Give *frame* a slot of its size as soon as possible, in the place of the smaller one that it may have."""
        if frame in self._slots:
            self._growing[frame] = None
        else:
            self._waiting.setdefault(frame.network, _Queue()).frames[frame] = None
        self.serve()

    def leave(self, frame: Account) -> None:
        """End the slot of *frame*, or its wait for one; do nothing if it has neither."""
        queue = self._waiting.get(frame.network)
        if queue is not None and queue.frames.pop(frame, self) is None and not queue.frames:
            del self._waiting[frame.network]
        self._growing.pop(frame, None)
        size = self._slots.pop(frame, 0)
        if size:
            self._take(frame.network, -size)
        if size or self.waiting:
            self.serve()

    def relieve(self, now: float) -> None:
        """Let slow frames give way to those that wait; each of these calls this every second, and one call counts.

        :param now: a time that never steps, in seconds
        """
        if self.waiting and now >= self._relieved + RELIEF_S:
            self._relieved = now
            self.serve(relieve=True)

    def serve(self, relieve: bool = False) -> None:
        """Give slots to the frames that wait; call this when slots may be held up no more.

        :param relieve: whether slow frames give way
        """
        if self._serving:  # a frame that is continued or ended below calls this again
            self._again = True
            return
        self._serving = self._again = True
        try:
            while self._again:
                self._again = False
                self._grow(relieve)
                while self._waiting and not self.held_up() and self._give(relieve):
                    pass
        finally:
            self._serving = False
            self.waiting = bool(self._waiting or self._growing)

    def _grow(self, relieve: bool) -> None:
        """Enlarge the slots of frames that have outgrown theirs, as far as they fit."""
        for frame in list(self._growing):
            more = frame.frame - self._slots.get(frame, frame.frame)
            if relieve:
                self._end_slow(self.used + more - self.capacity)
            if frame not in self._growing:
                continue  # its connection gave way to another one of this loop
            if self.used + more <= self.capacity or frame is next(iter(self._slots)):
                del self._growing[frame]
                self._slots[frame] += more
                self._take(frame.network, more)
                frame.proceed()

    def _give(self, relieve: bool) -> bool:
        """Give a slot to the next frame; return False if it does not fit, or no frame of any network fits."""
        for network in list(self._waiting):
            queue = self._waiting[network]
            frame = queue.next()
            if relieve:
                self._end_slow(self._over(frame, alone=True))
                self._end_slow(self._over(frame), network)
            if self._over(frame) > 0:
                if network in self._of:
                    continue
                return False  # the network keeps its turn: otherwise smaller frames would take all that becomes free
            del self._waiting[network], queue.frames[frame]
            if queue.frames:
                self._waiting[network] = queue
            queue.given += 1
            self._slots[frame] = frame.frame
            self._take(network, frame.frame)
            frame.proceed()
            return True
        return False

    def _over(self, frame: Account, alone: bool = False) -> int:
        """Return how many bytes too large *frame* is for a slot.

        :param alone: whether the share of its network is left out of account
        """
        share = 0 if alone else self._of.get(frame.network, 0) // 2
        return self.used + frame.frame + share - self.capacity if self.used else 0

    def _end_slow(self, needed: int, network: str | None = None) -> None:
        """End connections whose frames have slots and are slow, the oldest first, until *needed* bytes are free.

        Each leaves its slot at once, and nothing is given before this returns.

        :param network: only those of this network
        """
        for frame, size in list(self._slots.items()):
            if needed <= 0:
                return
            if network in (None, frame.network) and frame.slow:
                needed -= size
                frame.give_way()

    def _take(self, network: str, size: int) -> None:
        self.used += size
        self._of[network] = self._of.get(network, 0) + size
        if not self._of[network]:
            del self._of[network]
