"""Hold refused connections open for a while, so that clients that reconnect without a pause cannot keep a server busy.

Some clients, Figg's Go SDK among them, reconnect at the moment in which a connection ends.  The server therefore
closes a refused connection late: 0.1 s after the first refusal of an address, twice as long after each further one, up
to :data:`LONGEST`.  Nothing is read from a held connection, and nothing is kept for it except the socket.

    refusals by network, connections -> ``close_held()`` when the time is over, ``abort()`` before
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Protocol

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure

from fyrehose.core.fairness import FairShare

#: How long the first refused connection of an address is held, in seconds.
FIRST = 0.1
#: The longest time that a refused connection is held, in seconds.  Clients wait at least 4 s for an answer.
LONGEST = 3.2
#: The time after which a refusal of an address is forgotten, in seconds.
FORGOTTEN = 60.0
#: The most addresses whose refusals are counted; beyond that, the oldest refusal is forgotten.
MOST_ADDRESSES = 4_096
#: The most held connections of one network; beyond that, the oldest is closed.
MOST_OF_ONE = 250


class Holdable(Protocol):
    """A connection that can be held."""

    def close_held(self) -> None:
        """Close the connection, because its time is over."""

    def abort(self) -> None:
        """Abort the connection, because its descriptor is needed."""


@attrs.define(eq=False)
class Holding:
    """The refused connections of one listener, and how often each address was refused.

    :ivar longest: the longest time that a connection is held, in seconds; 0: none is held
    """

    clock: IReactorTime
    longest: float = LONGEST
    _held: dict[Holdable, IDelayedCall] = attrs.field(factory=dict, init=False)
    _by_network: FairShare[Holdable] = attrs.field(factory=FairShare, init=False)
    #: connections that are closing
    _closing: set[Holdable] = attrs.field(factory=set, init=False)
    #: number and time of the latest refusals, by network
    _refusals: OrderedDict[str, tuple[int, float]] = attrs.field(factory=OrderedDict, init=False)
    _stopped: bool = attrs.field(default=False, init=False)

    def __len__(self) -> int:
        """Return how many connections are held or closing."""
        return len(self._held) + len(self._closing)

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
            self._closing.add(connection)
            connection.close_held()
            return
        self._held[connection] = self.clock.callLater(seconds, self._end, connection)
        self._by_network.add(connection, network)
        peers = self._by_network.of(network)
        if len(peers) > MOST_OF_ONE:
            self._end(next(iter(peers)), abort=True)
        elif len(self._held) > most:
            self.make_room()

    def await_close(self, connection: Holdable) -> None:
        """Count *connection*, which is closing, until it is lost."""
        self._closing.add(connection)

    def lost(self, connection: Holdable) -> None:
        """Forget *connection*, whose socket is closed."""
        self._closing.discard(connection)
        if connection in self._held:
            self._forget(connection).cancel()

    def make_room(self) -> None:
        """Abort the oldest held connection of the network with the most, if any, because its descriptor is needed."""
        oldest = self._by_network.first_out()
        if oldest is not None:
            self._end(oldest, abort=True)

    def stop(self) -> None:
        """Close every held connection, and hold none from now on, because the server stops."""
        self._stopped = True
        for connection in list(self._held):
            self._end(connection)

    def _end(self, connection: Holdable, abort: bool = False) -> None:
        timer = self._forget(connection)
        if timer.active():
            timer.cancel()
        self._closing.add(connection)
        if abort:
            connection.abort()
        else:
            connection.close_held()

    def _forget(self, connection: Holdable) -> IDelayedCall:
        self._by_network.discard(connection)
        return self._held.pop(connection)


class RefusedConnection(TwistedProtocol):
    """Holds a connection that was refused when it was accepted; no byte of it is read, not even for TLS."""

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

    def abort(self) -> None:
        self.transport.abortConnection()
