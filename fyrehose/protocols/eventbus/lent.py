"""Account for the memory that ZeroMQ holds: it counts the messages that wait for a peer, and not their bytes.

:class:`Lent` bounds the large events of a socket that all peers share.  :class:`Pool` bounds what waits for the clients
of a ROUTER, all of it, and shares that between them: the more is held, the less each client may have, so that clients
which do not read leave something to the others, and one network never has more than half.

in: what is sent, with something that says when the socket has done with it      out: whether more may be sent
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Protocol

import attrs

#: Data from this size on is lent to the socket; what is smaller is copied, and its number is bound enough, in bytes.
LEAST = 8 << 10
#: Which part of the room in a pool one client may take.
PART = 32
#: What a message takes besides its data: its other frames, and what the socket keeps of each, in bytes.
OVERHEAD = 512
#: The socket says that it has done with a message after so many bytes; more often would cost more than it tells.
TRACKED = 16 << 10


class Tracker(Protocol):
    """Knows when the socket has done with a message."""

    @property
    def done(self) -> bool: ...


@attrs.define(eq=False)
class Lent:
    """Memory that is lent and not given back.

    :ivar limit: how much may be, in bytes; a message of any size may be the first
    :ivar free: smaller messages are copied, and not accounted for, in bytes
    :ivar toll: how often a smaller one is taken off ``free``
    """

    limit: int
    free: int = attrs.field(default=LEAST, init=False)
    toll: int = attrs.field(default=0, init=False)
    size: int = attrs.field(default=0, init=False)
    _trackers: deque[tuple[Tracker, int]] = attrs.field(factory=deque, init=False)

    def add(self, tracker: Tracker, size: int) -> None:
        """Account for a message of *size* bytes until *tracker* says that the socket has done with it."""
        self._trackers.append((tracker, size))
        self.size += size

    def fits(self, size: int) -> bool:
        """Whether a message of ``size`` bytes may be lent, too."""
        # Peers take messages in order, so what is given back is at the front.
        while self._trackers and self._trackers[0][0].done:
            self.size -= self._trackers.popleft()[1]
        return not self.size or self.size + size <= self.limit


@attrs.define(eq=False)
class Account:
    """Messages that the socket holds for one client.

    Only some messages are tracked: a client takes its messages in order, so one that is done tells of all before it.
    Those before a tracked one are only taken off ``free``, which costs next to nothing, and accounted for with it.

    :ivar size: how much that is, in bytes
    :ivar free: how much may be sent before the next message that is tracked
    :ivar toll: how often a message that is not tracked is taken off ``free``
    """

    pool: Pool
    identity: bytes
    network: str
    size: int = attrs.field(default=0, init=False)
    free: int = attrs.field(default=TRACKED, init=False)
    toll: int = attrs.field(default=1, init=False)
    _trackers: deque[tuple[Tracker, int]] = attrs.field(factory=deque, init=False)

    def fits(self, size: int) -> bool:
        """Return whether a message of *size* bytes may be sent, too; a client that holds nothing may have any."""
        self.settle()
        size += OVERHEAD + TRACKED - self.free
        room = self.pool.room(self.network)
        # What it holds already was room, too.
        return self.size + size <= (self.size + room) // PART or (not self.size and size <= room)

    def add(self, tracker: Tracker, size: int) -> None:
        """Account for a message of *size* bytes, and for those before it, until *tracker* says that it is done."""
        size += OVERHEAD + TRACKED - self.free
        self.free = TRACKED
        self._trackers.append((tracker, size))
        self._change(size)

    def settle(self) -> None:
        """Take off what the socket has done with."""
        while self._trackers and self._trackers[0][0].done:
            self._change(-self._trackers.popleft()[1])

    def _change(self, size: int) -> None:
        self.size += size
        self.pool.change(self, size)


@attrs.define(eq=False)
class Pool:
    """Messages that a ROUTER holds for all clients.

    :ivar limit: the most, in bytes; one network has half of it at the most
    :ivar size: how much it is, in bytes
    """

    limit: int
    size: int = attrs.field(default=0, init=False)
    networks: Counter[str] = attrs.field(factory=Counter, init=False)
    _holding: dict[tuple[str, bytes], Account] = attrs.field(factory=dict, init=False)

    def account(self, identity: bytes, network: str) -> Account:
        """Return the account of the client *identity*: a new one, unless something is still held for it."""
        return self._holding.get((network, identity)) or Account(self, identity, network)

    def settle(self) -> None:
        """Take off what the socket has done with."""
        for account in list(self._holding.values()):
            account.settle()

    def room(self, network: str) -> int:
        """Return how much more may be held for *network*, in bytes."""
        return min(self.limit - self.size, self.limit // 2 - self.networks[network])

    def change(self, account: Account, size: int) -> None:
        """Count *size* bytes more, or less, for *account*, which has counted them."""
        network = account.network
        if account.size:
            self._holding[network, account.identity] = account
        else:
            self._holding.pop((network, account.identity), None)
        self.size += size
        self.networks[network] += size
        if not self.networks[network]:
            del self.networks[network]
