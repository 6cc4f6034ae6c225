"""How much memory a socket has borrowed: what bounds large events, of which ZeroMQ counts the number only.

in: what is sent, with something that says when the socket has done with it      out: whether more may be lent
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import attrs

#: Data from this size on is lent to the socket; what is smaller is copied, and its number is bound enough, in bytes.
LEAST = 8 << 10


class Tracker(Protocol):
    """Knows when the socket has done with a message."""

    @property
    def done(self) -> bool: ...


@attrs.define(eq=False)
class Lent:
    """Memory that is lent and not given back.

    :ivar limit: how much may be, in bytes; a message of any size may be the first
    """

    limit: int
    size: int = attrs.field(default=0, init=False)
    _trackers: deque[tuple[Tracker, int]] = attrs.field(factory=deque, init=False)

    def add(self, tracker: Tracker, size: int) -> None:
        """``size`` bytes are lent until ``tracker`` says that they are not."""
        self._trackers.append((tracker, size))
        self.size += size

    def fits(self, size: int) -> bool:
        """Whether a message of ``size`` bytes may be lent, too."""
        # Peers take messages in order, so what is given back is at the front.
        while self._trackers and self._trackers[0][0].done:
            self.size -= self._trackers.popleft()[1]
        return not self.size or self.size + size <= self.limit
