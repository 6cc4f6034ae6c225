"""Account for the memory of messages that ZeroMQ queues, because its own limits count messages and not bytes.

:class:`Lent` bounds the large events of PUBLISHER, which all subscribers share.  :class:`Pool` bounds the messages that
SNAPSHOT queues for its clients: the more memory is in use, the less one client may have, so that clients that do not
read leave memory for the others; one network never has more than half.

in: sent messages with their trackers      out: whether another message may be sent
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Protocol

import attrs

#: Data of this size or more is lent to the socket without a copy, in bytes; smaller data is copied, and the high-water
#: mark of the socket bounds it.
LEAST = 8 << 10
#: One client may take the free memory of a pool divided by this.
PART = 32
#: Memory of a message besides its data, for its other frames and the bookkeeping of the socket, in bytes.
OVERHEAD = 512
#: A message is tracked after so many bytes of untracked messages, because tracking every message costs too much.
TRACKED = 16 << 10


class Full(Exception):
    """The queue of the peer is full, or there is no peer; no part of the message was sent."""


class MemoryFull(Full):
    """The message would exceed the memory for queued messages; no part of it was sent."""


class Tracker(Protocol):
    """Reports whether the socket has released a message; pyzmq's MessageTracker."""

    @property
    def done(self) -> bool: ...


@attrs.define(eq=False)
class Tracked:
    """Messages that a socket has not released yet.

    :ivar free: messages with less data than this are sent untracked, in bytes
    :ivar size: memory of the messages, in bytes
    """

    free: int = attrs.field(default=LEAST, init=False)
    size: int = attrs.field(default=0, init=False)
    _trackers: deque[tuple[Tracker, int]] = attrs.field(factory=deque, init=False)

    def tracks(self, size: int) -> bool:
        """Return whether a message with *size* bytes of data has to be tracked: pass it to :meth:`add` or :meth:`skip`.

        :raises MemoryFull: the message may not be sent now
        """
        if size >= self.free and not self.fits(size):
            raise MemoryFull
        return size >= self.free

    def fits(self, size: int) -> bool:
        """Return whether another message of *size* bytes may be tracked."""
        raise NotImplementedError

    def skip(self, size: int) -> None:
        """Account for a message that is not tracked."""

    def add(self, tracker: Tracker, size: int) -> None:
        """Account for a message of *size* bytes until *tracker* reports that the socket has released it."""
        self._trackers.append((tracker, size))
        self._change(size)

    def settle(self) -> None:
        """Subtract the messages that the socket has released."""
        # Messages are sent in order, so released ones are at the front.
        while self._trackers and self._trackers[0][0].done:
            self._change(-self._trackers.popleft()[1])

    def _change(self, size: int) -> None:
        self.size += size


@attrs.define(eq=False)
class Lent(Tracked):
    """Large messages that a PUB socket holds for all subscribers; small ones are copied and not accounted for.

    :ivar limit: upper bound of their memory, in bytes; a single message may exceed it
    """

    limit: int

    def fits(self, size: int) -> bool:
        self.settle()
        return not self.size or self.size + size <= self.limit


@attrs.define(eq=False)
class LentMessages(Tracked):
    """Messages that a ROUTER socket holds for one client.

    Only some messages are tracked: messages are sent in order, so a released message implies the release of all before
    it.  An untracked message only reduces ``free``; the next tracked message accounts for its size.
    """

    pool: Pool
    identity: bytes
    network: str
    free: int = attrs.field(default=TRACKED, init=False)

    def fits(self, size: int) -> bool:
        self.settle()
        size += OVERHEAD + TRACKED - self.free
        room = self.pool.room(self.network)
        # The share is computed from the free memory as it was before this client took some.
        return self.size + size <= (self.size + room) // PART or (not self.size and size <= room)

    def skip(self, size: int) -> None:
        self.free -= size + OVERHEAD

    def add(self, tracker: Tracker, size: int) -> None:
        """Account for a message of *size* bytes, and the untracked ones before it, until *tracker* is done."""
        size += OVERHEAD + TRACKED - self.free
        self.free = TRACKED
        super().add(tracker, size)

    def _change(self, size: int) -> None:
        self.size += size
        self.pool.update(self, size)


@attrs.define(eq=False)
class Shared:
    """Memory that clients share; those of one network may have half of it.

    :ivar limit: upper bound of the memory, in bytes
    :ivar size: memory in use, in bytes
    :ivar networks: memory in use by each network, in bytes
    """

    limit: int
    size: int = attrs.field(default=0, init=False)
    networks: Counter[str] = attrs.field(factory=Counter, init=False)

    def room(self, network: str) -> int:
        """Return the memory that is free for *network*, in bytes."""
        return min(self.limit - self.size, self.limit // 2 - self.networks[network])

    def change(self, network: str, size: int) -> None:
        """Add *size* bytes, which may be negative, to the memory of *network*."""
        self.size += size
        self.networks[network] += size
        if not self.networks[network]:
            del self.networks[network]


@attrs.define(eq=False)
class Pool(Shared):
    """Messages that a ROUTER socket holds for all clients."""

    _holding: dict[tuple[str, bytes], LentMessages] = attrs.field(factory=dict, init=False)

    def account(self, identity: bytes, network: str) -> LentMessages:
        """Return the account of a client; a new one, unless the socket still holds messages for the client."""
        return self._holding.get((network, identity)) or LentMessages(self, identity, network)

    def settle(self) -> None:
        """Subtract the messages that the socket has released."""
        for account in list(self._holding.values()):
            account.settle()

    def update(self, account: LentMessages, size: int) -> None:
        """Add *size* bytes, which may be negative and which *account* has added to its own size already."""
        self.change(account.network, size)
        if account.size:
            self._holding[account.network, account.identity] = account
        else:
            self._holding.pop((account.network, account.identity), None)
