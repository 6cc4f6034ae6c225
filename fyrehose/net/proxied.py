"""Learn the peer of a connection from the PROXY header of a load balancer (versions 1 and 2 of HAProxy's protocol).

    accept from a trusted network -> header, in time -> the factory, with the address of the client -> its protocol

The client's address takes the place of the balancer's before the connection is admitted: limits, policy, producer and
log are those of the client, and TLS begins behind the header.  ``UNKNOWN`` and ``LOCAL`` are health checks of the
balancer, which stays the peer.  A connection from any other network is a client of its own, whose header is refused.
"""

from __future__ import annotations

from ipaddress import ip_address
from struct import unpack_from
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress, IDelayedCall
from twisted.internet.protocol import Factory
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure

from fyrehose.identity import in_networks
from fyrehose.net.connections import SessionFactory
from fyrehose.net.peers import host_of
from fyrehose.net.twisted_private import hand_over

#: The beginnings of a header of version 1 and of version 2.
TEXT, SIGNATURE = b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"
#: The longest header of version 1, and of version 2 with its additions, in bytes.
MOST_TEXT, MOST_BINARY = 107, 4_096


def parse_header(data: bytes) -> tuple[IAddress | None, int] | None:
    """Parse the PROXY header at the start of *data*.

    :return: the client's address, or None if the header names none, and the size of the header; None: it is incomplete
    :raises ValueError: there is no header, or it is malformed
    """
    if data.startswith(SIGNATURE[: len(data)]):
        return _parse_binary(data)
    if data.startswith(TEXT[: len(data)]):
        return _parse_text(data)
    raise ValueError(f"expected a PROXY header, received {data[:16]!r}")


def _parse_text(data: bytes) -> tuple[IAddress | None, int] | None:
    end = data.find(b"\r\n", 0, MOST_TEXT)
    if end < 0:
        if len(data) >= MOST_TEXT:
            raise ValueError(f"a PROXY header of version 1 does not end within {MOST_TEXT} bytes")
        return None
    words = data[:end].decode("ascii").split(" ")
    if words[1] == "UNKNOWN":
        return None, end + 2
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise ValueError(f"malformed PROXY header {data[:end]!r}")
    address = ip_address(words[2])
    if address.version != int(words[1][-1]) or not words[4].isdecimal() or int(words[4]) > 65_535:
        raise ValueError(f"malformed PROXY header {data[:end]!r}")
    return _address(str(address), int(words[4])), end + 2


def _parse_binary(data: bytes) -> tuple[IAddress | None, int] | None:
    if len(data) < 16:
        return None
    version, family, size = unpack_from(">BBH", data, 12)
    if version >> 4 != 2 or version & 15 > 1 or size > MOST_BINARY:
        raise ValueError(f"malformed PROXY header of version 2: {data[:16].hex()}")
    if len(data) < 16 + size:
        return None
    needed = {0x11: 12, 0x21: 36}.get(family, 0)
    if version & 15 == 0 or not needed:  # LOCAL, or neither TCP over IPv4 nor over IPv6
        return None, 16 + size
    if size < needed:
        raise ValueError(f"malformed PROXY header of version 2: {data[:16].hex()}")
    width = 4 if family == 0x11 else 16
    port: int = unpack_from(">H", data, 16 + 2 * width)[0]
    return _address(str(ip_address(data[16 : 16 + width])), port), 16 + size


def _address(host: str, port: int) -> IAddress:
    return IPv6Address("TCP", host, port) if ":" in host else IPv4Address("TCP", host, port)


class ProxiedFactory(Factory):
    """A factory around that of a listener, which reads the PROXY headers of connections from trusted networks.

    :param factory: the factory that admits connections, possibly with TLS
    :param sessions: the listener's own factory, whose option ``proxies`` has the trusted networks
    """

    noisy = False

    def __init__(self, factory: Factory, sessions: SessionFactory) -> None:
        self.factory, self.sessions = factory, sessions
        self.waiting: set[HeaderProtocol] = set()  #: connections whose header is incomplete

    def buildProtocol(self, addr: IAddress | None) -> Any:
        """Return the protocol of a connection: that of a client, or one that reads the header first."""
        settings = self.sessions.settings
        if not in_networks(host_of(addr), settings.proxies):
            return self.factory.buildProtocol(addr)
        if len(self.waiting) + len(self.sessions.connections) >= settings.max_connections:
            self.refuse(host_of(addr), "too many connections are without a header")
            return None
        return HeaderProtocol(self, addr)

    def refuse(self, host: str, why: str) -> None:
        """Count and log a connection that is refused because of its header."""
        sessions = self.sessions
        sessions.broker.counters.refuse(sessions.log, sessions.protocol_name, "proxy-header", host, why, apart=host)

    def close(self) -> None:
        """Abort the connections whose headers are incomplete, because the listener closes."""
        for protocol in list(self.waiting):
            protocol.transport.abortConnection()


class HeaderProtocol(TwistedProtocol):
    """A connection from a load balancer until its header is complete."""

    transport: Any

    def __init__(self, factory: ProxiedFactory, addr: IAddress | None) -> None:
        self.factory: Any = factory
        self._owner, self._addr = factory, addr
        self._data = b""
        self._timer: IDelayedCall | None = None

    def connectionMade(self) -> None:
        self._owner.waiting.add(self)
        sessions = self._owner.sessions
        self._timer = sessions.clock.callLater(sessions.settings.handshake_timeout, self._late)

    def dataReceived(self, data: bytes) -> None:
        """Collect the header, and pass the connection on when it is complete."""
        if self not in self._owner.waiting:
            return
        self._data += data
        try:
            found = parse_header(self._data)
        except ValueError as error:  # includes what is no ASCII, and no address
            self._refuse(str(error))
            return
        if found is not None:
            self._forget()
            self._pass_on(found[0] or self._addr, self._data[found[1] :])

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        self._forget()

    def _pass_on(self, address: IAddress | None, rest: bytes) -> None:
        transport = self.transport
        transport.getPeer = lambda: address
        protocol = self._owner.factory.buildProtocol(address)
        if protocol is None:
            transport.abortConnection()
            return
        hand_over(transport, protocol)
        if rest:
            protocol.dataReceived(rest)

    def _late(self) -> None:
        self._timer = None
        self._refuse("no complete PROXY header in time; does the load balancer send it (send-proxy)?")

    def _refuse(self, why: str) -> None:
        self._owner.refuse(host_of(self._addr), why)
        self._forget()
        self.transport.abortConnection()

    def _forget(self) -> None:
        self._owner.waiting.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
