"""Find the slow subscribers that delay events for all others, by the send queues of their connections.

ZeroMQ keeps one copy of an event until every subscriber has received it or is disconnected, and does not report which
subscribers are missing.  The kernel does: while nothing is broadcast, the send queue of a subscriber that reads
becomes empty, and the send queue of one that does not read stays full.

    slow(now) ... slow(now) -> forget()

in: the connections of PUBLISHER      out: the connections to close
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from fcntl import ioctl
from struct import unpack_from
from termios import TIOCOUTQ

import attrs

from fyrehose.protocols.eventbus.connections import AcceptedConnection, socket_of

#: How long the other subscribers wait before the send queues are looked at, in seconds.  Most waits are shorter,
#: because only ZeroMQ is busy; and looking at thousands of queues takes long.
SOON = 0.125
#: How long after that slow subscribers may delay the others until they are disconnected, in seconds.
WAIT = 1.0
#: A subscriber that acknowledges less than this while others wait is slow, in bytes per second.
LEAST_RATE = 4 << 20
#: A subscriber is slow if it acknowledges less than the fastest subscriber that is behind, divided by this.
FACTOR = 4
#: How long others wait for subscribers that are behind but not slow, in seconds.
LONGEST = 4.0


@attrs.define(eq=False)
class SlowSubscribers:
    """The subscribers whose send queue has not been empty since the other subscribers began to wait for them.

    :ivar connected: returns the connections of all subscribers
    """

    connected: Callable[[], Collection[AcceptedConnection]]
    #: when the other subscribers began to wait, and when the send queues were first looked at, or None; and when slow
    #: subscribers were last looked for
    _waiting: float | None = attrs.field(default=None, init=False)
    _since: float | None = attrs.field(default=None, init=False)
    _checked: float = attrs.field(default=0.0, init=False)
    #: subscribers that were behind at every call, and the bytes that each had acknowledged at the beginning
    _behind: dict[AcceptedConnection, int] = attrs.field(factory=dict, init=False)
    #: events that had been released when the others began to wait
    _released: int = attrs.field(default=0, init=False)

    def forget(self) -> None:
        """Forget the wait and all measurements, because no subscriber waits any more."""
        self._waiting = self._since = None

    def slow(self, now: float, released: int = 0) -> list[AcceptedConnection] | None:
        """Return the subscribers to disconnect, so that the others can continue; call this often while the others wait.

        :param released: number of events that all subscribers have received, or left, so far
        :return: None if no subscriber is known to be behind, and waiting does not help
        """
        if self._waiting is None:
            self._waiting, self._released = now, released
        if now - self._waiting < SOON:
            return []
        if self._since is None:
            self._since = self._checked = now
            self._behind = {
                each: _acknowledged(each.descriptor) for each in self.connected() if _queued(each.descriptor)
            }
        self._behind = {each: before for each, before in self._behind.items() if _queued(each.descriptor)}
        if now - self._checked < WAIT:
            return []
        self._checked, elapsed = now, now - self._since
        taken = {each: _acknowledged(each.descriptor) - before for each, before in self._behind.items()}
        best = max(taken.values(), default=0)
        others_wait = len(taken) < len(self.connected())
        least = max(best // FACTOR, int(LEAST_RATE * elapsed) if others_wait else 1)
        slow = [each for each, size in taken.items() if size < least]
        if not slow and others_wait and elapsed >= LONGEST:
            slow = list(taken)
        if slow or (not taken and released > self._released):  # every subscriber reads; only ZeroMQ is busy
            self.forget()
            return slow
        return slow if taken else None


def _queued(descriptor: int) -> int:
    """Return the size of the send queue in the kernel, in bytes; 0 if it is unknown."""
    try:
        (size,) = unpack_from("i", ioctl(descriptor, TIOCOUTQ, b"\0" * 4))
    except OSError:
        return 0
    return int(size)


def _acknowledged(descriptor: int) -> int:
    """Return the number of bytes that the peer has acknowledged; 0 if it is unknown."""
    try:
        with socket_of(descriptor) as found:
            info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
    except (OSError, AttributeError):
        return 0
    return int(unpack_from("Q", info, 120)[0]) if len(info) >= 128 else 0
