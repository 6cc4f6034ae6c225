"""Admit connections to a listener within its limits, and know which are connected.

    accept -> may this address do anything? -> how many has it? -> is there a place? -> the connection's protocol
                                            refused: held for a while, then closed (holding.py)

When every place is taken, the connection that has been idle longest makes room, first of all one of the address that
has the most.  So silent connections, however many, keep no client out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.internet.protocol import Factory
from twisted.logger import Logger

from fyrehose.errors import Forbidden
from fyrehose.identity import network_of
from fyrehose.interfaces import IBroker
from fyrehose.net.holding import Holding, RefusedConnection
from fyrehose.net.peers import host_of, identity_at
from fyrehose.net.sockets import ACCEPTS, READ

if TYPE_CHECKING:
    from fyrehose.net.tcp import SessionProtocol, TCPSettings

#: Connections that are looked at to find an idle one, for one that is accepted when the listener is full.
LOOKS = 200
#: Refused connections that are held at the most, by one listener.
MOST_HELD = 1_000
#: Bytes that all connections of a listener read at once: each may be read once more after its memory is used up.
READS = 32 << 20
#: Bytes that a connection reads at once however many there are.
LEAST_READ = 16 << 10
#: What a peer may prove after it was accepted: a certificate, where it speaks TLS.
PROOFS = frozenset({"certificate"})


#: Connections that may be closing to make room: those of two turns of the reactor.
CLOSING = 2 * ACCEPTS


def spare(max_connections: int) -> int:
    """Return how many refused connections a listener may hold beyond *max_connections*, when it is full."""
    return 16 + max_connections // 32


def descriptors(max_connections: int) -> int:
    """Return how many descriptors a listener may use at the most."""
    return max_connections + spare(max_connections) + CLOSING


def within(available: int, listeners: int) -> int:
    """Return how many connections so many *listeners* may have together with *available* descriptors."""
    return max(listeners, (available - (17 + CLOSING) * listeners) * 32 // 33)


class Crowds:
    """Connections by network, each in the order of when it was heard last, and which network has the most."""

    def __init__(self) -> None:
        self._networks: dict[str, OrderedDict[SessionProtocol, None]] = {}
        self._by_size: dict[int, dict[str, None]] = {}
        self._largest = 0

    def of(self, network: str) -> OrderedDict[SessionProtocol, None]:
        """Return the connections of *network*."""
        return self._networks.get(network) or OrderedDict()

    def add(self, protocol: SessionProtocol) -> None:
        """Add a connection."""
        mine = protocol.crowd = self._networks.setdefault(protocol.network, OrderedDict())
        mine[protocol] = None
        self._resize(protocol.network, len(mine) - 1, len(mine))

    def remove(self, protocol: SessionProtocol) -> None:
        """Remove a connection."""
        mine = self._networks[protocol.network]
        del mine[protocol]
        self._resize(protocol.network, len(mine) + 1, len(mine))
        if not mine:
            del self._networks[protocol.network]

    def largest(self, network: str) -> str | None:
        """Return the network with the most connections; of several *network*, which is about to have one more.

        None says that no network has more than one connection.
        """
        if self.of(network) and len(self.of(network)) >= self._largest:
            return network
        return next(iter(self._by_size[self._largest])) if self._largest > 1 else None

    def _resize(self, network: str, before: int, after: int) -> None:
        if before:
            del self._by_size[before][network]
            if not self._by_size[before]:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, {})[network] = None
        if after > self._largest or self._largest not in self._by_size:
            self._largest = after  # sizes change by one


class SessionFactory(Factory):
    """Makes a connection's protocol, within the limits, and knows who is connected.

    :ivar buffer_size: bytes that each connection reads at once: the less, the more connections there are
    :param largest_read: and how many at the most
    :param proofs: what a peer may still prove after it was accepted, such as a token; None: the protocol asks for
        proofs itself, so that the policy says nothing about its connections
    """

    def __init__(
        self,
        make: Callable[[], SessionProtocol],
        protocol: str,
        log: Logger,
        broker: IBroker,
        clock: IReactorTime,
        settings: TCPSettings,
        *,
        proofs: frozenset[str] | None = PROOFS,
        largest_read: int = READ,
    ) -> None:
        self.make = make
        self.protocol_name = protocol
        self.log = log
        self.broker = broker
        self.settings = settings
        self.proofs = proofs
        #: in the order in which they were heard last; without those that are held
        self.connections: OrderedDict[SessionProtocol, None] = OrderedDict()
        self.holding = Holding(clock, settings.refusal_delay)
        self._crowds = Crowds()
        self._reads: int = min(READS, broker.budget.limit // 8)
        self._largest_read = largest_read
        self._counted = 1  #: connections at the time when they were told last how much they read at once
        self.buffer_size = self._read_size()
        self._drained: Deferred[None] | None = None

    noisy = False

    def buildProtocol(self, addr: IAddress | None) -> SessionProtocol | RefusedConnection | None:
        host, most = host_of(addr), self.settings.max_connections
        network = network_of(host)
        if self.proofs is not None:
            try:
                self.broker.identified(identity_at(addr)).admit(self.proofs)
            except Forbidden as error:
                return self._refuse("forbidden-address", host, str(error))
        if len(self._crowds.of(network)) >= self.settings.max_per_host:
            detail = f"it has {self.settings.max_per_host}; to allow more, raise {self.protocol_name}.max-per-host"
            return self._refuse("too-many-connections-from-one-host", host, detail)
        if len(self.connections) >= most and not self._make_room(network):
            detail = f"all {most} are busy; to allow more, raise {self.protocol_name}.max-connections"
            return self._refuse("too-many-connections", host, detail)
        if len(self.connections) + len(self.holding) >= most + spare(most):
            self.holding.abort_oldest()
        if len(self.connections) + len(self.holding) >= descriptors(most):
            return self._refuse("too-many-connections", host, "too many are closing at this moment")
        protocol = self.make()
        protocol.factory = self
        protocol.peer, protocol.network = host, network
        self.connections[protocol] = None
        self._crowds.add(protocol)
        self.broker.counters.gauge(self.protocol_name, "connections", 1)
        self._share_reads()
        return protocol

    def heard(self, protocol: SessionProtocol) -> None:
        """Note that *protocol* has just received something: others have been idle longer."""
        self.connections.move_to_end(protocol)
        protocol.crowd.move_to_end(protocol)

    def hold(self, protocol: SessionProtocol, seconds: float) -> None:
        """Close *protocol*, a peer that was refused, after *seconds*; its place is free at once."""
        self._remove(protocol)
        self.holding.hold(protocol, protocol.network, seconds, self._most_held)

    def lost(self, protocol: SessionProtocol) -> None:
        """``protocol`` is not connected any more."""
        if protocol in self.connections:
            self._remove(protocol)
        else:
            self.holding.lost(protocol)
        if self._drained is not None and not self.connections and not len(self.holding):
            drained, self._drained = self._drained, None
            drained.callback(None)

    def drain(self) -> Deferred[None]:
        """Close every connection when what it published is acknowledged; fires when all are gone."""
        self.holding.stop()
        if not self.connections and not len(self.holding):
            return succeed(None)
        self._drained = Deferred()
        drained = self._drained
        for protocol in list(self.connections):
            protocol.finish()
        return drained

    # Inside.

    @property
    def _most_held(self) -> int:
        """How many refused connections may be held now: they use places that nobody needs, and a few more."""
        most = self.settings.max_connections
        return min(MOST_HELD, max(0, most - len(self.connections)) + spare(most))

    def _refuse(self, cause: str, host: str, detail: str) -> RefusedConnection | None:
        """Refuse a connection that was just accepted.  None closes it at once."""
        self.broker.counters.refuse(self.log, self.protocol_name, cause, host, detail)
        network, most = network_of(host), self.settings.max_connections
        seconds = self.holding.delay(network)
        if seconds <= 0 or len(self.connections) + len(self.holding) >= most + spare(most):
            return None
        return RefusedConnection(self.holding, network, seconds, self._most_held)

    def _make_room(self, network: str) -> bool:
        """Close the connection that has been idle longest, for one of *network*; return whether there was any.

        A connection that is busy goes only if none is idle, and one with a publish under way never does.
        """
        busy: list[SessionProtocol] = []
        crowd = self._crowds.largest(network)
        for among in (self._crowds.of(crowd) if crowd is not None else {}, self.connections):
            for _ in range(min(len(among), LOOKS)):
                protocol = next(iter(among))
                if protocol.is_idle():
                    self._evict(protocol)
                    return True
                if not protocol.publishing:
                    busy.append(protocol)
                self.heard(protocol)  # so that others are looked at before it, next time, too
        if busy:
            self._evict(busy[0])
        return bool(busy)

    def _evict(self, protocol: SessionProtocol) -> None:
        detail = (
            f"it was idle longest, and the listener is full; to keep more, raise {self.protocol_name}.max-connections"
        )
        self.broker.counters.refuse(self.log, self.protocol_name, "made-room", protocol.peer, detail)
        protocol.make_room()
        if protocol in self.connections:
            self._remove(protocol)
            self.holding.part(protocol)

    def _remove(self, protocol: SessionProtocol) -> None:
        del self.connections[protocol]
        self._crowds.remove(protocol)
        self.broker.counters.gauge(self.protocol_name, "connections", -1)
        self._share_reads()

    def _read_size(self) -> int:
        return max(LEAST_READ, min(self._largest_read, self._reads // self._counted))

    def _share_reads(self) -> None:
        """Tell all connections how much they read at once, when they are an eighth more or fewer than before."""
        count = len(self.connections)
        if 8 * abs(count - self._counted) < self._counted:
            return
        self._counted = max(1, count)
        before, self.buffer_size = self.buffer_size, self._read_size()
        for connection in self.connections if self.buffer_size != before else ():
            if connection.transport is not None:
                connection.transport.bufferSize = self.buffer_size
