"""Admit connections to a listener within its limits, and keep track of them.

    accept -> access policy -> failed handshakes?  -> limit of the address -> limit of the listener -> its protocol
                               waits, then goes on    refused: kept open for a while, then closed (holding.py)

When the listener is full, the connection that has been idle longest is closed to make room, preferably one of the
address with the most connections.  So silent connections, however many, never block other clients.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, ClassVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.internet.protocol import Factory
from twisted.logger import Logger

from fyrehose.broker.fairness import FairShare
from fyrehose.errors import Forbidden
from fyrehose.identity import network_of
from fyrehose.interfaces import IBroker
from fyrehose.net.holding import DelayedConnection, HeldConnection, Holding, RefusedConnection
from fyrehose.net.newcomers import Newcomers
from fyrehose.net.peers import PROOFS, host_of, identity_at
from fyrehose.net.read_shares import READS, ReadShares
from fyrehose.net.sockets import READ
from fyrehose.net.tcp import SessionProtocol, TCPSettings

#: How many connections are checked, at most, to find an idle one when the listener is full.
LOOKS = 200
#: How many refused connections one listener keeps open for a while, see holding.py.
MOST_HELD = 1_000
#: How many connections of a full listener may be closing to make room, or wait to be served.
CLOSING = 16
#: Counters of every listener of TCP, and the causes for which it refuses connections.
EVENTS = ("connections", "handshake-aborted", "handshakes-delayed", "idle")
REFUSALS = (
    "answers-unread",
    "dead-letters",
    "forbidden-address",
    "frame-timeout",
    "handshake-failed",
    "handshake-timeout",
    "made-room",
    "proxy-header",
    "silent",
    "slow-frame",
    "stalled-peer",
    "too-many-connections",
    "too-many-connections-from-one-host",
    "too-many-handshakes",
)


def spare(max_connections: int) -> int:
    """Return how many refused connections a full listener may hold beyond *max_connections*."""
    return 16 + max_connections // 32


def descriptors_for(max_connections: int) -> int:
    """Return the maximum number of file descriptors that a listener with *max_connections* uses."""
    return max_connections + spare(max_connections) + CLOSING


def connections_within(available: int, listeners: int) -> int:
    """Return how many connections *listeners* listeners may have together with *available* descriptors."""
    return max(listeners, (available - (17 + CLOSING) * listeners) * 32 // 33)


class SessionFactory(Factory):
    """The factory that builds the protocols of connections within a listener's limits, and keeps track of them.

    Subclasses name their ``protocol`` and ``defaults``.

    :cvar protocol: the class of the protocols; it is called with the factory
    :cvar defaults: the settings of a factory that is built without any
    :cvar proofs: the kinds of proof that a peer may send after it was accepted, such as a token; None: the protocol
        authenticates its peers itself, so the access policy does not apply when connections are accepted
    :cvar events: the names of the protocol's own counters; :cvar refusals: the causes for which it refuses and drops
    :cvar largest_read: bytes that a connection reads at once, however few there are
    :cvar fixed_options: names of the settings that :meth:`configure` cannot change
    :param reactor: a reactor or a Clock; None: the global reactor
    """

    protocol: type[Any]
    defaults: ClassVar[Any]
    proofs: ClassVar[frozenset[str] | None] = PROOFS
    events: ClassVar[tuple[str, ...]] = ()
    refusals: ClassVar[tuple[str, ...]] = ()
    largest_read: ClassVar[int] = READ
    fixed_options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, broker: IBroker, settings: TCPSettings | None = None, reactor: Any = None) -> None:
        if reactor is None:
            from twisted.internet import reactor
        self.broker = broker
        self.settings = self.defaults if settings is None else settings
        self.clock: IReactorTime = reactor
        self.protocol_name: str = self.protocol.protocol_name
        self.log: Logger = self.protocol.log
        broker.counters.declare(self.protocol_name, (*EVENTS, *self.events), (*REFUSALS, *self.refusals))
        #: open connections, in the order of their last activity; without refused ones that are kept open for a while
        self.connections: OrderedDict[SessionProtocol, None] = OrderedDict()
        self.latest: SessionProtocol | None = None  #: the one that was active last
        self.newcomers = Newcomers(broker.turns, self._room, self._is_free, self._displaced)
        self.holding = Holding(reactor, self.settings.refusal_delay, self._freed)
        #: the open connections of each network, in the order of their last activity
        self._by_network: FairShare[SessionProtocol] = FairShare()
        if broker.turns.clock is None:
            broker.turns.clock = reactor
        self.reads = ReadShares(min(READS, broker.budget.limit // 8), self.largest_read, self._by_network)
        self._drained: Deferred[None] | None = None
        broker.when_stuck(self.let_go)

    noisy = False

    def configure(self, settings: Any) -> None:
        """Apply changed *settings*: limits of connections at once, all others to new connections."""
        self.settings = settings
        self.holding.change(settings.refusal_delay)
        self.newcomers.go_on()

    def buildProtocol(self, addr: IAddress | None) -> SessionProtocol | HeldConnection | None:
        """Return the protocol for a new connection from *addr*.

        :return: a :class:`RefusedConnection` if the address may not connect or the limits leave no room for it; a
            :class:`DelayedConnection` after failed handshakes of its network; None to close it at once
        """
        host = host_of(addr)
        if self.proofs is not None:
            try:
                self.broker.identified(identity_at(addr)).admit(self.proofs)
            except Forbidden as error:
                return self._refuse("forbidden-address", host, str(error))
        seconds = self.holding.handshakes.of(network_of(host))
        return self._delay(host, seconds) if seconds else self._admit(host)

    def _delay(self, host: str, seconds: float) -> HeldConnection | None:
        """Return a protocol that holds a connection of *host* for *seconds* before the handshake begins."""
        network, most = network_of(host), self.settings.max_connections
        waiting = len(self.connections) + len(self.holding)
        if self.holding.crowded(network) or waiting >= most + spare(most):
            detail = "after failed handshakes of this address, too many of its connections wait for theirs"
            self.broker.counters.refuse(self.log, self.protocol_name, "too-many-handshakes", host, detail)
            return None
        self.broker.counters.add(self.protocol_name, "handshakes-delayed")
        return DelayedConnection(self.holding, network, seconds, self.most_held, lambda: self._admit(host))

    def _admit(self, host: str) -> SessionProtocol | RefusedConnection | None:
        """Return the protocol for a connection of *host*, or refuse the connection because of the limits."""
        network, most = network_of(host), self.settings.max_connections
        if len(self._by_network.of(network)) >= self.settings.max_per_host:
            detail = f"limit {self.settings.max_per_host}; to allow more, raise {self.protocol_name}.max-per-host"
            return self._refuse("too-many-connections-from-one-host", host, detail)
        if len(self.connections) >= most and not self._make_room(network):
            detail = f"all {most} connections are busy; to allow more, raise {self.protocol_name}.max-connections"
            return self._refuse("too-many-connections", host, detail)
        if len(self.connections) + len(self.holding) >= most + spare(most):
            self.holding.make_room()
        if len(self.connections) + len(self.holding) >= descriptors_for(most):
            return self._refuse("too-many-connections", host, "too many connections are still closing")
        protocol: SessionProtocol = self.protocol(self)
        protocol.peer, protocol.network = host, network
        self.connections[protocol] = None
        self.latest = protocol
        self._by_network.add(protocol, network)
        self.broker.counters.gauge(self.protocol_name, "connections", 1)
        self.reads.count(network)
        return protocol

    def mark_active(self, protocol: SessionProtocol) -> None:
        """Record that *protocol* has just received data, so all others have been idle longer."""
        self.latest = protocol
        self.connections.move_to_end(protocol)
        self._by_network.of(protocol.network).move_to_end(protocol)

    def hold(self, protocol: SessionProtocol, seconds: float) -> None:
        """Close the refused connection *protocol* after *seconds*; from now on it does not count against the limits."""
        self._remove(protocol)
        self.holding.hold(protocol, protocol.network, seconds, self.most_held)

    def lost(self, protocol: SessionProtocol) -> None:
        """Stop counting the connection *protocol*, which is lost."""
        if protocol in self.connections:
            self._remove(protocol)
            self._freed()
        else:
            self.holding.lost(protocol)

    def let_go(self, reason: str) -> None:
        """Abort the connections that wait for publishes, because the journal cannot be written for *reason*."""
        for protocol in list(self.connections):
            protocol.let_go(reason)

    def _freed(self) -> None:
        """Serve a connection that waits; if the listener is closing, notice that it has none any more."""
        self.newcomers.go_on()
        if self._drained is not None and not self.connections and not len(self.holding):
            drained, self._drained = self._drained, None
            drained.callback(None)

    def drain(self) -> Deferred[None]:
        """Close every connection of the listener, each once its publishes are acknowledged.

        :return: a Deferred that fires when all connections are closed
        """
        self.newcomers.close()
        self.holding.stop()
        drained = self._drained = Deferred()
        for protocol in list(self.connections):
            protocol.stop()
        self._freed()
        return drained

    # Private.

    @property
    def most_held(self) -> int:
        """Return how many refused connections may be kept open: one for each free connection, and a few more."""
        most = self.settings.max_connections
        return min(MOST_HELD, max(0, most - len(self.connections)) + spare(most))

    def _room(self) -> int:
        """Return how many connections may wait to be served: those for which there are descriptors."""
        most = self.settings.max_connections
        return max(CLOSING // 2, most + spare(most) - len(self.connections) - len(self.holding))

    def _is_free(self) -> bool:
        """Return whether a connection may be served, which may close another one: few enough are closing."""
        most = self.settings.max_connections
        open_ = min(len(self.connections), most)  # after a reload that lowers the limit there may be more
        return open_ + len(self.holding) < most + spare(most) + CLOSING // 2

    def _displaced(self, host: str) -> None:
        detail = "too many connections wait to be served, most of them of its address"
        self.broker.counters.refuse(self.log, self.protocol_name, "made-room", host, detail)

    def _refuse(self, cause: str, host: str, detail: str) -> RefusedConnection | None:
        """Refuse a connection that was just accepted.

        :return: a protocol that keeps the connection open for a while, or None to close it at once
        """
        self.broker.counters.refuse(self.log, self.protocol_name, cause, host, detail)
        network, most = network_of(host), self.settings.max_connections
        seconds = self.holding.refusals.count(network)
        if seconds <= 0 or len(self.connections) + len(self.holding) >= most + spare(most):
            return None
        return RefusedConnection(self.holding, network, seconds, self.most_held)

    def _make_room(self, network: str) -> bool:
        """Close the connection that has been idle longest, to admit one of *network*; return False if there is none.

        A busy connection is closed only if none is idle, and never while it has a publish in flight.
        """
        busy: list[SessionProtocol] = []
        own, largest = self._by_network.of(network), self._by_network.largest(network)
        for candidates in (largest if largest is own or len(largest) > 1 else {}, self.connections):
            for _ in range(min(len(candidates), LOOKS)):
                protocol = next(iter(candidates))
                if protocol.is_idle():
                    self._evict(protocol)
                    return True
                if not protocol.unsettled:
                    busy.append(protocol)
                self.mark_active(protocol)  # so that the next search begins with other connections
        if busy:
            self._evict(busy[0])
        return bool(busy)

    def _evict(self, protocol: SessionProtocol) -> None:
        detail = f"idle longest while the listener is full; to allow more, raise {self.protocol_name}.max-connections"
        self.broker.counters.refuse(self.log, self.protocol_name, "made-room", protocol.peer, detail)
        protocol.make_room()
        if protocol in self.connections:
            self._remove(protocol)
            self.holding.await_close(protocol)

    def _remove(self, protocol: SessionProtocol) -> None:
        if self.latest is protocol:
            self.latest = None
        del self.connections[protocol]
        self._by_network.discard(protocol)
        self.broker.counters.gauge(self.protocol_name, "connections", -1)
        self.reads.count(protocol.network)
