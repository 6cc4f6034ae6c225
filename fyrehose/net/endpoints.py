"""Listen at an endpoint with a factory of connections, as a Twisted service.

endpoint string -> port -> factory, or TLS around it      stop: the port, then the connections
"""

from __future__ import annotations

from typing import Any, cast

from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import AdoptedStreamServerEndpoint, UNIXServerEndpoint, serverFromString
from twisted.internet.interfaces import IListeningPort

from fyrehose.errors import ConfigError
from fyrehose.net.connections import SessionFactory
from fyrehose.net.sockets import check_adopted, clear, deepen, prompt


class TCPService(Service):
    """Listens at an endpoint string as long as it runs.

    :param around: what listens in the place of ``factory``, and hands the connections on to it: a TLSFactory
    :raises ConfigError: from the constructor, where the endpoint string cannot be used
    """

    def __init__(self, reactor: Any, protocol: str, endpoint: str, factory: SessionFactory, around: Any = None) -> None:
        self.factory = factory
        self._around = around
        self._port: IListeningPort | None = None
        self._backlog = "backlog=" in endpoint or endpoint.startswith("systemd:")
        try:
            self._endpoint = serverFromString(reactor, endpoint)
        except (ValueError, TypeError, KeyError, IndexError, OSError) as error:
            if endpoint.startswith("systemd:") and isinstance(error, LookupError):
                raise ConfigError(f"--listen {protocol}={endpoint}: systemd has handed over no such socket") from error
            raise ConfigError(
                f"invalid --listen {protocol}={endpoint}: not an endpoint of Twisted ({error})"
            ) from error

    def startService(self) -> Deferred[IListeningPort]:
        """Listen; fires with the port, or fails with what keeps it from listening."""
        Service.startService(self)
        if isinstance(self._endpoint, UNIXServerEndpoint):
            clear(self._endpoint._address)
        elif isinstance(self._endpoint, AdoptedStreamServerEndpoint):
            check_adopted(self._endpoint.fileno, self._endpoint.addressFamily)
        listening = self._endpoint.listen(self.factory if self._around is None else self._around)
        return cast("Deferred[IListeningPort]", listening).addCallback(self._listening)

    def _listening(self, port: IListeningPort) -> IListeningPort:
        self._port = prompt(port if self._backlog else deepen(port))
        return port

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self.factory.connections)

    def reload(self) -> None:
        """Read certificates again, for the connections that come from now on.

        :raises ConfigError: they cannot be used; those that were go on
        """
        if self._around is not None:
            self._around.reload()

    def stopService(self) -> Deferred[None]:
        """Close the port, then the connections, each when it is acknowledged."""
        Service.stopService(self)
        port, self._port = self._port, None
        closed = succeed(None) if port is None else cast("Deferred[None]", port.stopListening() or succeed(None))
        return closed.addCallback(lambda _: self.factory.drain())
