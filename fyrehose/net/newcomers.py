"""Serve new connections in an order by network, so that those of one network do not make the others wait.

    accept -> Newcomer, which waits while others do -> a turn of the listener -> its transport and its protocol

The kernel keeps the connections of a listener in one queue, first come, first served.  To accept one takes a fifth of
the time that its protocol takes.  So the server accepts them faster than it serves them, and they wait here, where
networks follow each other.  They also wait while others close to make room for them.  If too many wait, the server
closes one of the network of which most do.  All of them are one share of the server's turns, so the input of
connections never waits for more than a few.
"""

from __future__ import annotations

from collections.abc import Callable
from socket import socket
from typing import Any

import attrs
from twisted.internet.interfaces import IAddress
from twisted.internet.tcp import Port
from twisted.logger import Logger
from twisted.protocols.policies import WrappingFactory
from twisted.python.failure import Failure

from fyrehose.broker.fairness import FairShare
from fyrehose.fair_order import FairOrder
from fyrehose.identity import network_of
from fyrehose.net.peers import host_of
from fyrehose.net.turns import Turns
from fyrehose.net.twisted_private import tune_port

log = Logger()

#: The share of the server's turns that serves new connections, and how many of them in one turn.
SHARE, SERVED = "+", 16


@attrs.define(eq=False)
class Newcomers:
    """The connections of one listener that were accepted, and have neither a transport nor a protocol yet.

    :ivar room: returns how many may wait
    :ivar is_free: returns whether one more may be served; if not, they wait for :meth:`go_on`
    :ivar displaced: called with the host of each one that was closed because too many wait
    """

    turns: Turns
    room: Callable[[], int]
    is_free: Callable[[], bool]
    displaced: Callable[[str], object]
    waiting: FairShare[Newcomer] = attrs.field(factory=FairShare, init=False)
    #: the networks of those that wait, and possibly of others that have waited; they pay for each connection
    _order: FairOrder = attrs.field(factory=FairOrder, init=False)
    _queued: bool = attrs.field(default=False, init=False)

    def accept_from(self, port: Any) -> Any:
        """Accept the connections of *port*, which has just begun to listen, and return it."""
        if isinstance(tune_port(port), Port):
            _Accepting(port, self)
        return port

    def enter(self, newcomer: Newcomer) -> None:
        """Serve *newcomer* now if no other one waits, and there is time; else let it wait for a turn."""
        turns, network, clock = self.turns, newcomer.network, self.turns.clock
        assert clock is not None, "a listener sets the clock"
        if not len(self.waiting) and turns.open(SHARE) and self.is_free():
            began = clock.seconds()
            newcomer.serve()
            turns.charge(SHARE, clock.seconds() - began)
            return
        if not self.waiting.of(network):
            self._order.enter(network)
        self.waiting.add(newcomer, network)
        self.go_on()
        while len(self.waiting) > self.room() and (oldest := self.waiting.first_out(network)) is not None:
            self._close(oldest)

    def take_turn(self) -> int:
        """Serve some of those that wait, of each network one after the other."""
        self._queued = False
        for _ in range(SERVED):
            network = self._order.next() if self.is_free() else None
            if network is None:
                return 0
            newcomer = next(iter(self.waiting.of(network)), None)
            if newcomer is not None:
                self.waiting.discard(newcomer)
                self._order.pay(network, 1)
                if self.waiting.of(network):
                    self._order.enter(network)
                newcomer.serve()
        self.go_on()
        return 0

    def failed(self, failure: Failure) -> None:
        log.failure("serving a new connection failed; please report this bug", failure)
        self.go_on()

    def go_on(self) -> None:
        """Serve those that wait in a later turn, if there is room for one."""
        if len(self.waiting) and not self._queued and self.is_free():
            self._queued = True
            self.turns.ready(self, SHARE)

    def close(self) -> None:
        """Close all that wait, because the server stops."""
        while (newcomer := self.waiting.first_out()) is not None:
            self._close(newcomer)

    def _close(self, newcomer: Newcomer) -> None:
        self.waiting.discard(newcomer)
        newcomer.socket.close()
        self.displaced(newcomer.host)


class _Accepting(WrappingFactory):
    """The factory of *port* until its connections are served by the one that it had.

    :ivar transport: makes the transports of its connections
    """

    noisy = False

    def __init__(self, port: Any, newcomers: Newcomers) -> None:
        super().__init__(port.factory)  # type: ignore[no-untyped-call]
        self.newcomers, self.transport = newcomers, port.transport
        port.factory, port.transport = self, lambda *arguments: arguments

    def buildProtocol(self, addr: IAddress | None) -> Any:
        return Newcomer(self, addr)


class Newcomer:
    """A connection that was accepted; for Twisted it is a protocol.

    :ivar host: the peer's host, and :ivar network: its network
    """

    def __init__(self, accepting: _Accepting, address: IAddress | None) -> None:
        self._accepting, self._address = accepting, address
        self.host = host_of(address)
        self.network = network_of(self.host)

    def makeConnection(self, arguments: tuple[Any, ...]) -> None:
        """Be served, now or in a turn; *arguments* are those of the transport that the connection gets."""
        self.socket: socket = arguments[0]
        self._arguments = arguments[2:]
        self._accepting.newcomers.enter(self)

    def serve(self) -> None:
        """Make the protocol of the connection and its transport, unless the listener refuses it."""
        protocol = None
        try:
            protocol = self._accepting.wrappedFactory.buildProtocol(self._address)
        finally:
            if protocol is None:
                self.socket.close()
        if protocol is not None:
            protocol.makeConnection(self._accepting.transport(self.socket, protocol, *self._arguments))
