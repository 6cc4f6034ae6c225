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
from twisted.internet.interfaces import IAddress
from twisted.protocols.policies import WrappingFactory

from fyrehose.identity import in_networks, network_of
from fyrehose.net.connections import SessionFactory
from fyrehose.net.foreign import SIGNATURE, TEXT
from fyrehose.net.holding import HeldConnection
from fyrehose.net.peers import host_of, identity_at
from fyrehose.net.twisted_private import hand_over

#: The longest header of version 1, and the longest rest of one of version 2, in bytes.
MOST_TEXT, MOST_REST = 107, 4_096
#: The bytes of the addresses in a header of version 2, by family and transport: none, TCP by IPv4 and IPv6, Unix.
_ADDRESSES = {0x00: 0, 0x11: 12, 0x21: 36, 0x31: 216}


def parse_header(data: bytes) -> tuple[IAddress | None, int] | None:
    """Parse the PROXY header at the start of *data*.

    :return: the client's address, or None if the header names none, and the size of the header; None: it is incomplete
    :raises ValueError: there is no header, or it is malformed
    """
    if data.startswith(SIGNATURE[: len(data)]):
        return _parse_binary(data)
    if data.startswith(TEXT[: len(data)]):
        return _parse_text(data)
    raise ValueError(f"expected a PROXY header, not {data[:16]!r}; does the load balancer send it (send-proxy)?")


def _parse_text(data: bytes) -> tuple[IAddress | None, int] | None:
    end = data.find(b"\r\n", 0, MOST_TEXT)
    if end < 0:
        if len(data) >= MOST_TEXT:
            raise ValueError(f"a PROXY header of version 1 does not end within {MOST_TEXT} bytes")
        return None
    family, *rest = data[len(TEXT) : end].decode("ascii").split(" ")
    if family == "UNKNOWN":
        return None, end + 2
    ports = [int(text) for text in rest[2:] if text.isdecimal() and int(text) < 1 << 16]
    if len(rest) == 4 and len(ports) == 2 and "%" not in rest[0]:
        client, server = map(ip_address, rest[:2])
        if family == f"TCP{client.version}" == f"TCP{server.version}":
            return _address(str(client), ports[0]), end + 2
    raise ValueError(f"malformed PROXY header {data[:end]!r}")


def _parse_binary(data: bytes) -> tuple[IAddress | None, int] | None:
    if len(data) < 16:
        return None
    command, family, rest = unpack_from(">BBH", data, 12)
    local = command == 0x20
    if not (local or command == 0x21) or rest > MOST_REST or not (local or rest >= _ADDRESSES.get(family, 1 << 16)):
        raise ValueError(f"malformed PROXY header of version 2: {data[12:16].hex(' ')}")
    size = 16 + rest
    if len(data) < size:
        return None
    if local or family not in (0x11, 0x21):
        return None, size
    width = 4 if family == 0x11 else 16
    return _address(str(ip_address(data[16 : 16 + width])), *unpack_from(">H", data, 16 + 2 * width)), size


def _address(host: str, port: int) -> IAddress:
    return IPv6Address("TCP", host, port) if ":" in host else IPv4Address("TCP", host, port)


class ProxiedFactory(WrappingFactory):
    """A factory around that of a listener, which reads the PROXY headers of connections from trusted networks.

    :param factory: the factory that admits connections, possibly with TLS
    :param sessions: the listener's own factory, whose option ``proxies`` has the trusted networks
    """

    noisy = False

    def __init__(self, factory: Any, sessions: SessionFactory) -> None:
        super().__init__(factory)  # type: ignore[no-untyped-call]
        self.sessions = sessions

    def buildProtocol(self, addr: IAddress | None) -> Any:
        """Return the protocol of a connection: that of a client, or one that reads the header first."""
        proxies = self.sessions.settings.proxies
        if proxies and in_networks(identity_at(addr).host, proxies):
            return HeaderConnection(self, addr)
        return self.wrappedFactory.buildProtocol(addr)


class HeaderConnection(HeldConnection):
    """A connection from a load balancer until its header is complete, which is held like one that is delayed."""

    def __init__(self, owner: ProxiedFactory, addr: IAddress | None) -> None:
        sessions, self._host = owner.sessions, host_of(addr)
        self._owner, self._addr, self._data, self._refused = owner, addr, b"", False
        seconds = sessions.settings.handshake_timeout
        super().__init__(sessions.holding, network_of(self._host), seconds, sessions.most_held)

    def connectionMade(self) -> None:
        super().connectionMade()
        self.transport.resumeProducing()

    def dataReceived(self, data: bytes) -> None:
        """Collect the header, and pass the connection on when it is complete."""
        if self._refused:
            return
        self._data += data
        try:
            found = parse_header(self._data)
        except ValueError as error:  # includes what is no ASCII, and no address
            self._refuse(str(error))
            return
        if found is None:
            return
        address, size = found[0] or self._addr, found[1]
        self.transport.getPeer = lambda: address
        self._holding.lost(self)
        protocol = self._owner.wrappedFactory.buildProtocol(address)
        if protocol is None:
            self.transport.abortConnection()
            return
        hand_over(self.transport, protocol, self._data[size:])

    def end_delay(self) -> None:
        """Close the connection, because the header is late, or the listener closes."""
        if self._holding.stopped:
            super().end_delay()
        else:
            self._refuse("no complete PROXY header in time; does the load balancer send it (send-proxy)?")

    def abort(self) -> None:
        self._refuse("no complete PROXY header, and others need the place")

    def _refuse(self, why: str) -> None:
        self._refused = True
        sessions = self._owner.sessions
        sessions.broker.counters.refuse(
            sessions.log, sessions.protocol_name, "proxy-header", self._host, why, apart=self._host
        )
        self.transport.abortConnection()
