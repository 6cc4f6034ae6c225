"""Listen on an endpoint, as a Twisted service.

start: endpoint string -> port -> factory, or a TLS factory around it
stop:  the port, then the connections
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any, cast

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import AdoptedStreamServerEndpoint, UNIXServerEndpoint, serverFromString
from twisted.internet.interfaces import IListeningPort
from zope.interface import implementer

from fyrehose.errors import ConfigError
from fyrehose.interfaces import IConnected, IReloading
from fyrehose.net.connections import SessionFactory
from fyrehose.net.sockets import check_adopted, deepen_backlog, remove_stale_socket
from fyrehose.net.tls import TLSFactory, TLSSettings, add_tls
from fyrehose.net.twisted_private import path_of, tune_port


@implementer(IConnected, IReloading)
class TCPService(Service):
    """A service that listens on an endpoint while it runs.

    :param factory: builds the protocols of connections; a TLSFactory around it listens if its settings have a
        certificate
    :raises ConfigError: the endpoint string or the options of TLS are invalid
    """

    def __init__(self, reactor: Any, protocol: str, endpoint: str, factory: SessionFactory) -> None:
        self.factory = factory
        settings = factory.settings
        self._outer: TLSFactory | None = None
        if isinstance(settings, TLSSettings):
            self._outer = add_tls(protocol, endpoint, factory, settings, reactor)
        self._port: IListeningPort | None = None
        self._backlog = "backlog=" in endpoint or endpoint.startswith("systemd:")
        try:
            self._endpoint = serverFromString(reactor, endpoint)
        except (ValueError, TypeError, KeyError, IndexError, OSError) as error:
            if endpoint.startswith("systemd:") and isinstance(error, LookupError):
                raise ConfigError(
                    f"invalid --listen {protocol}={endpoint}: systemd has passed no such socket"
                ) from error
            raise ConfigError(
                f"invalid --listen {protocol}={endpoint}: not a Twisted endpoint ({error}); expected for "
                f"example {protocol}=tcp:8119:interface=127.0.0.1"
            ) from error

    def startService(self) -> Deferred[IListeningPort]:
        """Listen on the endpoint.

        :return: a Deferred that fires with the port, or fails with the reason why the service cannot listen
        """
        Service.startService(self)
        if isinstance(self._endpoint, UNIXServerEndpoint):
            remove_stale_socket(path_of(self._endpoint))
        elif isinstance(self._endpoint, AdoptedStreamServerEndpoint):
            check_adopted(self._endpoint.fileno, self._endpoint.addressFamily)
            # Give the endpoint a copy of the descriptor, because the endpoint closes it, and systemd's descriptor is
            # needed when the listener opens again.
            self._endpoint.fileno = os.dup(self._endpoint.fileno)
        listening = self._endpoint.listen(self.factory if self._outer is None else self._outer)
        return cast("Deferred[IListeningPort]", listening).addCallback(self._listening)

    def _listening(self, port: IListeningPort) -> IListeningPort:
        self._port = tune_port(port if self._backlog else deepen_backlog(port))
        return port

    @property
    def connections(self) -> int:
        """Return the number of connections."""
        return len(self.factory.connections)

    def fixed(self, settings: Any) -> Collection[str]:
        """Return the options that *settings* change and a running listener cannot, such as TLS on or off."""
        on = isinstance(settings, TLSSettings) and bool(settings.tls_certificate)
        names = [field.name for field in attrs.fields(type(settings)) if field.name.startswith("tls_")]
        now, then = (attrs.asdict(each, recurse=False) for each in (self.factory.settings, settings))
        changed = [name for name in self.factory.fixed_options if then[name] != now[name]]
        return changed + (names if on != (self._outer is not None) else [])

    def prepare(self, settings: Any) -> Callable[[], None]:
        """Check *settings*, and return a function that applies them: limits at once, all others to new connections."""
        tls = None if self._outer is None else self._outer.prepare(settings)

        def apply() -> None:
            self.factory.configure(settings)
            if tls is not None:
                tls()

        return apply

    def stopService(self) -> Deferred[None]:
        """Close the port, then each connection once its publishes are acknowledged."""
        Service.stopService(self)
        port, self._port = self._port, None
        closed = succeed(None) if port is None else cast("Deferred[None]", port.stopListening() or succeed(None))
        return closed.addCallback(lambda _: self.factory.drain())
