"""Flow control of what comes in: one budget of bytes that all connections share.

What a connection holds - the frame that it has announced, and what it has published that is not durable yet - is
charged to its account.  An account that wants more than the budget has left stops reading and waits its turn; the
others go on, and as they finish those that wait are served in the order in which they asked.  A frame is granted whole,
from its announced length, so that accounts that wait never hold what others need to finish.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import attrs


class Pausable(Protocol):
    """The reading half of a transport."""

    def pauseProducing(self) -> None: ...

    def resumeProducing(self) -> None: ...


@attrs.define(eq=False)
class Budget:
    """Bytes that may be held in memory on behalf of all peers together.

    :ivar limit: the whole, in bytes
    :ivar each: what one account may have published and not durable before it stops reading, in bytes
    """

    limit: int = 512 << 20
    each: int = 8 << 20
    used: int = attrs.field(default=0, init=False)
    _queue: OrderedDict[Account, None] = attrs.field(factory=OrderedDict, init=False)

    def account(self, transport: Pausable) -> Account:
        """A new account, for the connection that reads from ``transport``."""
        return Account(self, transport)

    def _serve(self) -> None:
        while self._queue:
            account = next(iter(self._queue))
            if not account._grant():
                return
            del self._queue[account]
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
    _crowded: bool = attrs.field(default=False, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    def hold(self, size: int) -> None:
        """``size`` bytes were published: they count until they are released."""
        self.held += size
        self.budget.used += size
        if self.held > self.budget.each:
            self._crowded = True
        if self.budget.used > self.budget.limit and not self._closed:
            self.budget._queue[self] = None
        self._switch()

    def release(self, size: int) -> None:
        """``size`` bytes became durable, or were refused."""
        self.held -= size
        self.budget.used -= size
        # It reads again when half of its share is free: in large pieces, not in drops.
        if self.held <= self.budget.each // 2:
            self._crowded = False
        self.budget._serve()
        self._switch()

    def expect(self, size: int) -> None:
        """The frame that is coming in takes ``size`` bytes in all; 0 when none is."""
        if size == self.frame:
            return
        self.budget.used -= self.granted
        self.frame, self.granted = size, 0
        if self._grant():
            self.budget._queue.pop(self, None)
        else:
            self.budget._queue[self] = None
        self.budget._serve()
        self._switch()

    def close(self) -> None:
        """The connection is gone; what it published still counts until it is released."""
        self._closed = True
        self.budget.used -= self.granted
        self.frame = self.granted = 0
        self.budget._queue.pop(self, None)
        self.budget._serve()

    def _grant(self) -> bool:
        """Take the whole frame out of the budget, if it fits; one that nobody else keeps from fitting always does."""
        budget = self.budget
        needed = self.frame - self.granted
        if budget.used + needed > budget.limit and budget.used > self.held + self.granted:
            return False
        budget.used += needed
        self.granted = self.frame
        return True

    def _switch(self) -> None:
        wanted = not self._closed and (self._crowded or self in self.budget._queue)
        if wanted and not self.paused:
            self.paused = True
            self.transport.pauseProducing()
        elif self.paused and not wanted and not self._closed:
            self.paused = False
            self.transport.resumeProducing()
