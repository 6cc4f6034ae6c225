"""Hold refused connections open for a while, so that clients that reconnect without a pause cannot keep a server busy.

Some clients, Figg's Go SDK among them, connect again in the moment in which a connection ends.  The server therefore
closes a refused connection late: 0.1 s after the first refusal of an address, twice as long after each further one,
:data:`LONGEST` at the most.  Nothing is read from a held connection, and nothing is kept for it except the socket.

    in: refusals by network, connections      out: ``close_held()`` when the time is over, ``abort_held()`` before it
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Protocol

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure

#: How long the first refused connection of an address is held, in seconds.
FIRST = 0.1
#: How long a refused connection is held at the most, in seconds.  Clients wait 4 s or longer for an answer.
LONGEST = 3.2
#: An address whose last refusal is so long ago starts again with :data:`FIRST`, in seconds.
FORGOTTEN = 60.0
#: How many addresses are remembered; the address whose last refusal is oldest gives way.
MOST_ADDRESSES = 4_096
#: How many connections of one network are held; beyond that the oldest is closed.
MOST_OF_ONE = 250


class Holdable(Protocol):
    """A connection that can be held."""

    def close_held(self) -> None:
        """Close the connection in good order: its time is over."""

    def abort_held(self) -> None:
        """Close the connection at once: its place is needed."""


@attrs.define(eq=False)
class Holding:
    """The refused connections of one listener, and how often each address was refused.

    :ivar longest: how long a connection is held at the most, in seconds; with 0 none is
    """

    clock: IReactorTime
    longest: float = LONGEST
    _held: OrderedDict[Holdable, tuple[str, IDelayedCall]] = attrs.field(factory=OrderedDict, init=False)
    _networks: dict[str, OrderedDict[Holdable, None]] = attrs.field(factory=dict, init=False)
    #: connections that were told to close and have not gone yet
    _leaving: set[Holdable] = attrs.field(factory=set, init=False)
    #: by network: how many refusals in a row, and when the last was
    _refusals: OrderedDict[str, tuple[int, float]] = attrs.field(factory=OrderedDict, init=False)
    _stopped: bool = attrs.field(default=False, init=False)

    def __len__(self) -> int:
        """Return how many sockets are held or about to close."""
        return len(self._held) + len(self._leaving)

    def delay(self, network: str) -> float:
        """Count a refusal of *network*, and return how long its connection should be held, in seconds."""
        now = self.clock.seconds()
        count, last = self._refusals.pop(network, (0, now))
        if now - last >= FORGOTTEN:
            count = 0
        self._refusals[network] = (count + 1, now)
        if len(self._refusals) > MOST_ADDRESSES:
            self._refusals.popitem(last=False)
        return min(FIRST * 2.0 ** min(count, 10), self.longest)

    def hold(self, connection: Holdable, network: str, seconds: float, most: int) -> None:
        """Close *connection* after *seconds*, or sooner if more than *most* connections are held."""
        if self._stopped or seconds <= 0:
            self._leaving.add(connection)
            connection.close_held()
            return
        self._held[connection] = (network, self.clock.callLater(seconds, self._end, connection))
        mine = self._networks.setdefault(network, OrderedDict())
        mine[connection] = None
        if len(mine) > MOST_OF_ONE:
            self._end(next(iter(mine)), abort=True)
        elif len(self._held) > most:
            self.abort_oldest()

    def part(self, connection: Holdable) -> None:
        """Take note of *connection*, which was told to close, until it is lost."""
        self._leaving.add(connection)

    def lost(self, connection: Holdable) -> None:
        """Forget *connection*, whose socket is closed."""
        self._leaving.discard(connection)
        if connection in self._held:
            self._forget(connection).cancel()

    def abort_oldest(self) -> None:
        """Close the connection that has been held longest, if any is, because its descriptor is needed."""
        if self._held:
            self._end(next(iter(self._held)), abort=True)

    def stop(self) -> None:
        """Close every connection, and hold none from now on: the server stops."""
        self._stopped = True
        for connection in list(self._held):
            self._end(connection)

    def _end(self, connection: Holdable, abort: bool = False) -> None:
        timer = self._forget(connection)
        if timer.active():
            timer.cancel()
        self._leaving.add(connection)
        if abort:
            connection.abort_held()
        else:
            connection.close_held()

    def _forget(self, connection: Holdable) -> IDelayedCall:
        network, timer = self._held.pop(connection)
        mine = self._networks[network]
        del mine[connection]
        if not mine:
            del self._networks[network]
        return timer


class RefusedConnection(TwistedProtocol):
    """Hold a connection that was refused when it was accepted: no byte of it is read, not even for TLS."""

    transport: Any

    def __init__(self, holding: Holding, network: str, seconds: float, most: int) -> None:
        self._holding = holding
        self._arguments = (network, seconds, most)

    def connectionMade(self) -> None:
        self.transport.pauseProducing()
        self._holding.hold(self, *self._arguments)

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        self._holding.lost(self)

    def close_held(self) -> None:
        self.transport.loseConnection()

    def abort_held(self) -> None:
        self.transport.abortConnection()
