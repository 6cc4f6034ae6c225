"""Find the subscribers that keep everybody else from getting large events, by the send queues of their connections.

ZeroMQ keeps one copy of an event until every subscriber has it or was disconnected, and does not say who is missing.
The kernel does: while nothing more is broadcast the queue of a subscriber that reads becomes empty, and that of one
that does not read stays.

    begin(now), look() ... look() -> slow(now)

in: the connections of PUBLISHER      out: those to end
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection
from fcntl import ioctl
from struct import unpack_from
from termios import TIOCOUTQ

import attrs

#: A subscriber that others wait for has to take so much in a second, or it is slow at once, in bytes.
LEAST_RATE = 4 << 20
#: A subscriber that takes less than the fastest of those that are behind, divided by this, is slow at once.
FACTOR = 4
#: How long others wait for subscribers that are behind and not slow, in seconds.
LONGEST = 4.0

#: The address of a subscriber, and the descriptor of its connection.
Subscriber = tuple[str, int]


@attrs.define(eq=False)
class Laggards:
    """Subscribers that have been behind all the time since :meth:`begin`.

    :ivar connected: returns all that are connected
    """

    connected: Callable[[], Collection[Subscriber]]
    _since: float = attrs.field(default=0.0, init=False)
    #: those that were behind at every look, and how many bytes they had taken at the first
    _behind: dict[Subscriber, int] = attrs.field(factory=dict, init=False)

    def begin(self, now: float) -> None:
        """Start to look."""
        self._since = now
        self._behind = {each: _taken(each[1]) for each in self.connected() if _unsent(each[1])}

    def look(self) -> None:
        """Leave out those that have taken everything."""
        for each in [each for each in self._behind if not _unsent(each[1])]:
            del self._behind[each]

    @property
    def waits(self) -> bool:
        """Whether any subscriber is known to be behind."""
        return bool(self._behind)

    def slow(self, now: float) -> list[Subscriber]:
        """Return those that are to be ended, so that the others go on."""
        elapsed = now - self._since
        taken = {each: _taken(each[1]) - before for each, before in self._behind.items()}
        best = max(taken.values(), default=0)
        others_wait = len(taken) < len(self.connected())
        least = max(best // FACTOR, int(LEAST_RATE * elapsed) if others_wait else 1)
        slow = [each for each, size in taken.items() if size < least]
        return list(taken) if not slow and others_wait and elapsed >= LONGEST else slow


def _unsent(descriptor: int) -> int:
    """Return how much waits in the kernel for the peer, in bytes; 0 where it is not known."""
    try:
        (size,) = unpack_from("i", ioctl(descriptor, TIOCOUTQ, b"\0" * 4))
    except OSError:
        return 0
    return int(size)


def _taken(descriptor: int) -> int:
    """Return how many bytes the peer has acknowledged; 0 where it is not known."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as found:
            info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
    except (OSError, AttributeError):
        return 0
    return int(unpack_from("Q", info, 120)[0]) if len(info) >= 128 else 0
