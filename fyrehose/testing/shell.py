"""A TCP transport and its peer in memory, for tests of protocols without sockets, ports or waiting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import attrs
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure


class Transport(StringTransport):
    """A StringTransport with the methods of a TCP transport, which also records how it was closed.

    :ivar aborted: whether the protocol aborted the connection
    :ivar half_closed: whether the protocol finished writing
    """

    aborted = False
    half_closed = False

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Do nothing."""

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """Write *data* by :meth:`write`, which subclasses may extend."""
        self.write(b"".join(data))  # type: ignore[no-untyped-call]

    def abortConnection(self) -> None:
        self.aborted = self.disconnecting = True

    def loseWriteConnection(self) -> None:
        self.half_closed = True

    @property
    def reads(self) -> bool:
        """Return whether the protocol wants to receive data now."""
        return self.producerState == "producing"


@attrs.define(eq=False)
class ClientSide:
    """The client's side of a connection in memory, on whose server's side is the protocol under test.

    :ivar protocol: the protocol that the factory built
    :ivar clock: the clock of the protocol
    """

    protocol: Any
    transport: Transport
    clock: Clock

    @classmethod
    def connect(
        cls,
        factory: Any,
        clock: Clock,
        host: str = "127.0.0.1",
        port: int = 40_000,
        transport: Transport | None = None,
        **more: Any,
    ) -> Self:
        """Connect to *factory* from *host* and *port*.

        :param transport: the transport of the protocol; None: a new one
        :param more: the fields of a subclass
        """
        address = IPv4Address("TCP", host, port)
        protocol = factory.buildProtocol(address)
        if transport is None:
            transport = Transport(peerAddress=address)  # type: ignore[no-untyped-call]
        protocol.makeConnection(transport)
        return cls(protocol, transport, clock, **more)

    def send(self, data: bytes) -> None:
        """Send *data* to the protocol."""
        self.protocol.dataReceived(data)

    def received(self) -> bytes:
        """Run all calls that are due, and return the bytes that the protocol wrote since the last call."""
        self.clock.advance(0)
        data: bytes = self.transport.value()  # type: ignore[no-untyped-call]
        self.transport.clear()  # type: ignore[no-untyped-call]
        return data

    def leave(self) -> None:
        """Close the connection, as the peer would."""
        self.protocol.connectionLost(Failure(ConnectionDone()))
