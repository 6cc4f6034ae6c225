"""Flow control of what comes in: one budget of bytes that all connections share.

What a connection holds - the frame that it has announced, and what it has published that is not durable yet - is
charged to its account.  An account that wants more than the budget has left stops reading and waits its turn; the
others go on, and as they finish those that wait are served in the order in which they asked.  A frame is granted whole,
from its announced length, so that accounts that wait never hold what others need to finish.

Announcing is cheap, so a part of the budget is not to be had by large frames: whoever announces many of them and sends
none keeps those from going on who do the same, and nobody with messages of a usual size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import attrs


class Pausable(Protocol):
    """The reading half of a transport."""

    def pauseProducing(self) -> None: ...

    def resumeProducing(self) -> None: ...


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
        """Whoever paused it takes that back."""
        self._pauses -= 1
        if not self._pauses:
            self.resume()


@attrs.define(eq=False)
class Budget:
    """Bytes that may be held in memory on behalf of all peers together.

    :ivar limit: the whole, in bytes; a quarter of it is not for large frames
    :ivar each: what one account may have published and not durable before it stops reading, in bytes
    :ivar small: what is larger than this is large, in bytes
    :ivar used: what is held at present, in bytes
    :ivar large: of that, what is large
    """

    limit: int = 512 << 20
    each: int = 8 << 20
    small: int = 128 << 10
    used: int = attrs.field(default=0, init=False)
    large: int = attrs.field(default=0, init=False)
    _queue: OrderedDict[Account, None] = attrs.field(factory=OrderedDict, init=False)
    _large_queue: OrderedDict[Account, None] = attrs.field(factory=OrderedDict, init=False)

    def account(self, transport: Pausable) -> Account:
        """A new account, for the connection that reads from ``transport``."""
        return Account(self, transport)

    @property
    def reserved(self) -> int:
        """What is not for large frames, in bytes."""
        return self.limit // 4

    def _serve(self) -> None:
        for queue in (self._large_queue, self._queue):
            while queue:
                account = next(iter(queue))
                if not account._grant():
                    break
                del queue[account]
                account._switch()


@attrs.define(eq=False)
class Account:
    """What one connection holds.

    :ivar held: published and not durable yet, in bytes
    :ivar frame: announced by the frame that is coming in, in bytes
    :ivar granted: how much of ``frame`` counts against the budget: all or nothing
    :ivar paused: whether its transport has been told to stop reading
    """

    budget: Budget
    transport: Pausable
    held: int = attrs.field(default=0, init=False)
    frame: int = attrs.field(default=0, init=False)
    granted: int = attrs.field(default=0, init=False)
    paused: bool = attrs.field(default=False, init=False)
    _large: int = attrs.field(default=0, init=False)
    _crowded: bool = attrs.field(default=False, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    def hold(self, size: int) -> None:
        """``size`` bytes were published: they count until they are released."""
        self.held += size
        self._charge(size)
        if self.held > self.budget.each:
            self._crowded = True
        if not self._closed and not self._fits(0):
            self._wait()
        self._switch()

    def release(self, size: int) -> None:
        """``size`` bytes became durable, or were refused: as much as one call of :meth:`hold` had."""
        self.held -= size
        self._charge(-size)
        # It reads again when half of its share is free: in large pieces, not in drops.
        if self.held <= self.budget.each // 2:
            self._crowded = False
        self.budget._serve()
        self._switch()

    def expect(self, size: int) -> None:
        """The frame that is coming in takes ``size`` bytes in all; 0 when none is."""
        if size == self.frame:
            return
        self._leave()
        self._charge(-self.granted)
        self.frame, self.granted = size, 0
        if not self._grant():
            self._wait()
        self.budget._serve()
        self._switch()

    def close(self) -> None:
        """The connection is gone; what it published still counts until it is released."""
        self._closed = True
        self._leave()
        self._charge(-self.granted)
        self.frame = self.granted = 0
        self.budget._serve()

    def _charge(self, size: int) -> None:
        """Take ``size`` bytes out of the budget, or give as many back as were taken at once."""
        self.budget.used += size
        if abs(size) > self.budget.small:
            self.budget.large += size
            self._large += size

    def _wait(self) -> None:
        budget = self.budget
        (budget._large_queue if self.frame > budget.small else budget._queue)[self] = None

    def _leave(self) -> None:
        self.budget._queue.pop(self, None)
        self.budget._large_queue.pop(self, None)

    def _grant(self) -> bool:
        """Take the whole frame out of the budget, if it fits."""
        needed = self.frame - self.granted
        fits = self._fits(needed)
        if fits:
            self._charge(-self.granted)
            self._charge(self.frame)
            self.granted = self.frame
        return fits

    def _fits(self, needed: int) -> bool:
        """Whether so many bytes more may be taken; what nobody else keeps from fitting always does."""
        budget = self.budget
        small = budget.used - budget.large
        if self.frame <= budget.small:
            # While a large frame waits for room, small ones do not take it.
            free = not budget._large_queue and budget.used + needed <= budget.limit
            return free or small + needed <= budget.reserved or budget.used == self.held + self.granted
        alone = budget.large == self._large
        if not alone and budget.large + needed > budget.limit - budget.reserved:
            return False
        return small <= budget.reserved or budget.used + needed <= budget.limit

    def _switch(self) -> None:
        waits = self in self.budget._queue or self in self.budget._large_queue
        wanted = not self._closed and (self._crowded or waits)
        if wanted and not self.paused:
            self.paused = True
            self.transport.pauseProducing()
        elif self.paused and not wanted and not self._closed:
            self.paused = False
            self.transport.resumeProducing()
