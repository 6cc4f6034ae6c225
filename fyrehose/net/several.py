"""An endpoint for several servers of a cluster: a client connects to one after the other until one accepts.

    AnyServer([endpoint, endpoint ...]) -> connect() -> a connection to the next server that can be reached

A follower closes the connections of publishers, so a client that reconnects reaches the leader after some attempts.
Only the given addresses are used: an answer that names the leader only decides which of them is next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectingCancelledError
from twisted.internet.interfaces import IProtocolFactory, IStreamClientEndpoint
from zope.interface import implementer

#: How long a connection to one of several servers may take, in seconds: a machine that is lost does not answer at all.
CONNECT_TIMEOUT = 5.0


@implementer(IStreamClientEndpoint)
class AnyServer:
    """An endpoint that connects to one server after the other.

    :param endpoints: the endpoints of the servers; at least one
    :param addresses: ``HOST:PORT`` of each endpoint, in the same order, for :meth:`prefer`; may be left out
    """

    def __init__(self, endpoints: Sequence[IStreamClientEndpoint], addresses: Sequence[str] = ()) -> None:
        if not endpoints or (addresses and len(addresses) != len(endpoints)):
            raise ValueError("expected at least one endpoint, and an address for each or for none")
        self._endpoints = list(endpoints)
        self._addresses = [address.lower() for address in addresses]
        self._next = 0

    def __len__(self) -> int:
        """Return the number of servers."""
        return len(self._endpoints)

    def connect(self, factory: IProtocolFactory) -> Deferred[Any]:
        """Connect to the next server that can be reached; the Deferred fails if no server can be reached."""
        return Deferred.fromCoroutine(self._connect(factory))

    async def _connect(self, factory: IProtocolFactory) -> Any:
        failed: Exception = ConnectionError("no server was tried")
        for _ in self._endpoints:
            endpoint = self._endpoints[self._next]
            self._next = (self._next + 1) % len(self._endpoints)
            try:
                return await endpoint.connect(factory)
            except (CancelledError, ConnectingCancelledError):  # Twisted's endpoints fail with the latter
                raise CancelledError from None
            except Exception as error:
                failed = error
        raise failed

    def prefer(self, url: str) -> bool:
        """Choose the server of *url* for the next connection; return False if *url* is not one of the given servers.

        :param url: the address of the leader, as a server names it
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            return False
        address = place_text(host, port)
        if address not in self._addresses:
            return False
        self._next = self._addresses.index(address)
        return True


def place_text(host: str, port: int | None) -> str:
    """Return *host* and *port* as one text; an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def follow_leader(endpoint: Any, url: str) -> bool:
    """Let *endpoint* connect next to the leader at *url*, as a server has named it, if *endpoint* has that server."""
    return isinstance(endpoint, AnyServer) and endpoint.prefer(url)


def servers_of(endpoint: Any) -> int:
    """Return the number of servers behind *endpoint*: one attempt to connect may have to try all of them."""
    return len(endpoint) if isinstance(endpoint, AnyServer) else 1
