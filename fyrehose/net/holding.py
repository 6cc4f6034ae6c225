"""Delay connections of networks that were refused, so that clients that return without a pause keep no server busy.

Some clients, Figg's Go SDK among them, reconnect at the moment in which a connection ends.  So the server counts the
recent refusals of each network, and delays its connections: for 0.1 s after the first refusal, twice as long after each
further one, up to :data:`LONGEST`.  A delayed connection is *held*: it stays open, and the server does nothing with it.

- A *refused* connection is held for that delay before it is closed.
- A connection that comes after *failed TLS handshakes* of its network is held for that delay before its own handshake
  begins.  An honest client behind the same address never waits longer than that, however often others fail.

Nothing is read from a held connection, no TLS object is made, and nothing is kept for it except the socket.

    refusals by network, connections -> ``end_delay()`` when the time is over, ``abort()`` before
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import attrs
from twisted.internet.interfaces import IDelayedCall, IProtocol, IReactorTime
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure

from fyrehose.broker.fairness import FairShare
from fyrehose.net.twisted_private import hand_over

#: The delay after the first refusal of a network, in seconds.
FIRST = 0.1
#: The longest delay, in seconds.  Clients wait at least 4 s for an answer.
LONGEST = 3.2
#: The time after which the refusals of a network are forgotten, in seconds.
FORGOTTEN = 60.0
#: The number of networks whose refusals are counted; beyond that, the oldest refusal is forgotten.
MOST_ADDRESSES = 4_096
#: How many connections of one network are held; beyond that, the oldest is closed.
MOST_OF_ONE = 250


class Holdable(Protocol):
    """A connection that the server keeps open for a while without reading from it."""

    def end_delay(self) -> None:
        """Close or admit the connection, because its delay has passed."""

    def abort(self) -> None:
        """Abort the connection, because its descriptor is needed."""


@attrs.define(eq=False)
class Delays:
    """The counts of the recent refusals of each network, from which the delays of its next connections are computed.

    :ivar longest: the longest delay, in seconds; 0: there is none
    """

    clock: IReactorTime
    longest: float = LONGEST
    #: for each network: how often it was refused lately, and when it was refused last
    _refusals: OrderedDict[str, tuple[int, float]] = attrs.field(factory=OrderedDict, init=False)

    def count(self, network: str) -> float:
        """Count a refusal of *network*, and return the delay of its connections, in seconds."""
        count = self._lately(network) + 1
        self._refusals[network] = (count, self.clock.seconds())
        self._refusals.move_to_end(network)
        if len(self._refusals) > MOST_ADDRESSES:
            self._refusals.popitem(last=False)
        return self._after(count)

    def of(self, network: str) -> float:
        """Return the present delay for connections of *network*, in seconds; 0 without recent refusals."""
        return self._after(self._lately(network))

    def _lately(self, network: str) -> int:
        count, last = self._refusals.get(network, (0, 0.0))
        return count if self.clock.seconds() - last < FORGOTTEN else 0

    def _after(self, count: int) -> float:
        return min(FIRST * 2.0 ** min(count - 1, 10), self.longest) if count else 0.0


@attrs.define(eq=False)
class Holding:
    """The held connections of one listener, and how often each network was refused.

    :ivar longest: the longest time that a connection is held, in seconds; 0: none is held
    :ivar refusals: the delays after refused connections
    :ivar handshakes: the delays after failed TLS handshakes
    :ivar freed: called when one more connection is neither held nor closing
    :ivar stopped: whether the server stops, so that no delayed connection is admitted any more
    """

    clock: IReactorTime
    longest: float = LONGEST
    freed: Callable[[], object] = lambda: None
    refusals: Delays = attrs.field(init=False)
    handshakes: Delays = attrs.field(init=False)
    stopped: bool = attrs.field(default=False, init=False)
    _held: dict[Holdable, IDelayedCall] = attrs.field(factory=dict, init=False)
    _by_network: FairShare[Holdable] = attrs.field(factory=lambda: FairShare(each=MOST_OF_ONE), init=False)
    #: connections that are closing
    _closing: set[Holdable] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self.refusals = Delays(self.clock, self.longest)
        self.handshakes = Delays(self.clock, self.longest)

    def change(self, longest: float) -> None:
        """Change the longest delay, for connections that are refused from now on."""
        self.longest = self.refusals.longest = self.handshakes.longest = longest

    def __len__(self) -> int:
        """Return how many connections are held or closing."""
        return len(self._held) + len(self._closing)

    def hold(self, connection: Holdable, network: str, seconds: float, most: int) -> None:
        """Hold *connection* for *seconds*, and then end its delay; abort the oldest if more than *most* are held."""
        if self.stopped or seconds <= 0:
            self._closing.add(connection)
            connection.end_delay()
            return
        self._held[connection] = self.clock.callLater(seconds, self._end, connection)
        self._by_network.add(connection, network)
        if not self._by_network.fits(0, network):
            self._end(next(iter(self._by_network.of(network))), abort=True)
        elif len(self._held) > most:
            self.make_room()

    def crowded(self, network: str) -> bool:
        """Return whether the network has so many held connections that one more would abort one of them."""
        return not self._by_network.fits(1, network)

    def await_close(self, connection: Holdable) -> None:
        """Count *connection*, which is being closed, as open until it is lost."""
        self._closing.add(connection)

    def lost(self, connection: Holdable) -> None:
        """Forget *connection*, whose socket is closed or belongs to another protocol now."""
        self._closing.discard(connection)
        if connection in self._held:
            self._forget(connection).cancel()
        self.freed()

    def make_room(self) -> None:
        """Abort the oldest held connection of the network that has the most, because its descriptor is needed."""
        oldest = self._by_network.first_out()
        if oldest is not None:
            self._end(oldest, abort=True)

    def stop(self) -> None:
        """Close every held connection, and hold none from now on, because the server stops."""
        self.stopped = True
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
            connection.end_delay()

    def _forget(self, connection: Holdable) -> IDelayedCall:
        self._by_network.discard(connection)
        return self._held.pop(connection)


class HeldConnection(TwistedProtocol):
    """A connection that was just accepted and is held: the server reads no byte of it, not even for TLS."""

    transport: Any

    def __init__(self, holding: Holding, network: str, seconds: float, most: int) -> None:
        self._holding = holding
        self._arguments = (network, seconds, most)

    def connectionMade(self) -> None:
        self.transport.pauseProducing()
        self._holding.hold(self, *self._arguments)

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        self._holding.lost(self)

    def end_delay(self) -> None:
        """Close the connection."""
        self.transport.loseConnection()

    def abort(self) -> None:
        self.transport.abortConnection()


class RefusedConnection(HeldConnection):
    """A connection that the server refuses, and holds only so that its client reconnects later; then it is closed."""


class DelayedConnection(HeldConnection):
    """A connection that is held after failed handshakes of its network, and admitted after the delay.

    :ivar build: returns the protocol that takes over the connection; None: it is closed
    """

    def __init__(
        self, holding: Holding, network: str, seconds: float, most: int, build: Callable[[], IProtocol | None]
    ) -> None:
        super().__init__(holding, network, seconds, most)
        self.build = build
        self._early = b""

    def dataReceived(self, data: bytes) -> None:
        """Keep *data*, which came with the PROXY header of the connection, for the protocol that takes over."""
        self._early += data

    def end_delay(self) -> None:
        """Pass the connection on to the protocol that it would have had without the delay."""
        protocol = None if self._holding.stopped else self.build()
        if protocol is None:
            super().end_delay()
            return
        transport = self.transport
        transport.resumeProducing()
        hand_over(transport, protocol, self._early)
        self._holding.lost(self)
