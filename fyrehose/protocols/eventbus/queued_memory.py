"""Account for the memory of messages that ZeroMQ queues, because the limits of ZeroMQ count messages and not bytes.

:class:`BroadcastMemory` bounds the events of PUBLISHER, which all subscribers share.  :class:`Pool` bounds the messages
that SNAPSHOT queues for its clients: the more memory is in use, the less one client may have, so that clients that do
not read leave memory for the others; one network never has more than half.

in: what sockets hold      out: whether another message may be sent
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import attrs

from fyrehose.broker.fairness import FairShare

#: Memory of an event in a PUB socket for each subscriber that has not received it, in bytes: 64 for each of six frames.
REFERENCES = 6 * 64
#: The subscribers' references to this many events are not counted.  Otherwise thousands of subscribers with topics of
#: their own would make the broadcasts wait.
LEAST_EVENTS = 32
#: The messages for one client may take 1/PART of the free memory of a pool.
PART = 32
#: Memory of a message besides its data, for its other frames and the bookkeeping of the socket, in bytes.
OVERHEAD = 512
#: After this many bytes of untracked messages the next message is tracked; tracking each message would cost too much.
TRACKED = 16 << 10


class Full(Exception):
    """The queue of the peer is full, or there is no peer; no part of the message was sent."""


class MemoryFull(Full):
    """The message would exceed the memory for queued messages; no part of it was sent."""


class Tracker(Protocol):
    """pyzmq's MessageTracker, which tells whether the socket has released a message."""

    @property
    def done(self) -> bool: ...


@attrs.define(eq=False)
class BroadcastMemory:
    """Events that a PUB socket holds for its subscribers: their bytes once, and a reference for each subscriber.

    :ivar limit: upper bound of the events' memory, in bytes; a single event may exceed it
    :ivar held: returns the number of events that the socket holds for any subscriber, and the bytes of their frames
    """

    limit: int
    held: Callable[[], tuple[int, int]]
    #: memory that is known to be free, so that not every event has to be counted
    _room: int = attrs.field(default=0, init=False)
    _taken: int = attrs.field(default=0, init=False)

    def take(self, size: int, subscribers: int) -> bool:
        """Return whether an event of *size* bytes may be sent now; if so, count the event's memory.

        :param subscribers: number of subscribers.  The socket does not report which of them receive the event, so it
            counts for all
        """
        size += OVERHEAD + REFERENCES * subscribers
        if size > self._room:
            held = self.size(subscribers)
            self._room = self.limit - held
            if held and size > self._room:
                return False
        self._room -= size
        self._taken += 1
        return True

    @property
    def released(self) -> int:
        """Return the number of events that the socket has released so far."""
        return self._taken - self.held()[0]

    def size(self, subscribers: int) -> int:
        """Return the memory that the socket holds, in bytes."""
        events, size = self.held()
        return size + max(events - LEAST_EVENTS, 0) * (OVERHEAD + REFERENCES * subscribers)


@attrs.define(eq=False)
class QueuedMessages:
    """Messages that a ROUTER socket holds for one client.

    Only some messages are tracked: messages are sent in order, so a released message implies the release of all before
    it.  An untracked message only reduces ``free``; the next tracked message counts its size.

    :ivar free: messages with less data than this are sent untracked, in bytes
    :ivar size: memory of the messages, in bytes
    """

    pool: Pool
    identity: bytes
    network: str
    free: int = attrs.field(default=TRACKED, init=False)
    size: int = attrs.field(default=0, init=False)
    _trackers: deque[tuple[Tracker, int]] = attrs.field(factory=deque, init=False)

    def tracks(self, size: int) -> bool:
        """Return whether to track a message of *size* bytes: if so, pass it to :meth:`add`, otherwise to :meth:`skip`.

        :raises MemoryFull: there is no memory for the message now
        """
        if size >= self.free and not self.fits(size):
            raise MemoryFull
        return size >= self.free

    def fits(self, size: int) -> bool:
        """Return whether another message of *size* bytes may be tracked."""
        self.settle()
        size += OVERHEAD + TRACKED - self.free
        room = self.pool.memory.room(self.network)
        # The share is computed from the free memory as it was before this client took some.
        return self.size + size <= (self.size + room) // PART or (not self.size and size <= room)

    def skip(self, size: int) -> None:
        """Count the memory of a message that is not tracked."""
        self.free -= size + OVERHEAD

    def add(self, tracker: Tracker, size: int) -> None:
        """Count a message of *size* bytes, and the untracked messages before it, until *tracker* is done."""
        size += OVERHEAD + TRACKED - self.free
        self.free = TRACKED
        self._trackers.append((tracker, size))
        self._change(size)

    def settle(self) -> None:
        """Subtract the messages that the socket has released."""
        # Messages are sent in order, so released ones are at the front.
        while self._trackers and self._trackers[0][0].done:
            self._change(-self._trackers.popleft()[1])

    def _change(self, size: int) -> None:
        self.size += size
        self.pool.update(self, size)


@attrs.define(eq=False)
class Pool:
    """Messages that a ROUTER socket holds for all clients; the clients of one network may take half of the memory.

    :ivar limit: upper bound of the memory, in bytes
    :ivar memory: the memory in use, by network
    """

    limit: int
    memory: FairShare[QueuedMessages] = attrs.field(init=False)
    _holding: dict[tuple[str, bytes], QueuedMessages] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.memory = FairShare(self.limit, each=self.limit // 2)

    def account(self, identity: bytes, network: str) -> QueuedMessages:
        """Return the account of a client; a new one, unless the socket still holds messages for the client."""
        return self._holding.get((network, identity)) or QueuedMessages(self, identity, network)

    def settle(self) -> None:
        """Subtract the messages that the socket has released."""
        for account in list(self._holding.values()):
            account.settle()

    def update(self, account: QueuedMessages, size: int) -> None:
        """Add *size* bytes, which may be negative, to the pool's memory; *account* has counted them already."""
        self.memory.take(account.network, size)
        if account.size:
            self._holding[account.network, account.identity] = account
        else:
            self._holding.pop((account.network, account.identity), None)
