"""The protocol plugin of the backbone.

in: an endpoint string ``udp:PORT[:interface=IP]`` and settings      out: a service
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial
from ipaddress import AddressValueError, IPv4Address
from typing import Any

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import CannotListenError
from zope.interface import implementer

from fyrehose.errors import ConfigError
from fyrehose.interfaces import Abilities, IBroker, IClientPlugin, IConnected, IReloading, Prepared
from fyrehose.net.clients import ClientTarget
from fyrehose.options import FileContent
from fyrehose.protocols.backbone.client import BackboneClient
from fyrehose.protocols.backbone.frames import Address
from fyrehose.protocols.backbone.server import PROTOCOL, BackboneProtocol
from fyrehose.protocols.backbone.session import BackboneOptions
from fyrehose.protocols.backbone.settings import BackboneSettings
from fyrehose.protocols.backbone.udp import UDPPort

#: How often the plugin's publisher repeats an unconfirmed PUSH; a message whose DELIVER was lost is published twice.
RETRIES = 5


def parse_endpoint(endpoint: str) -> Address:
    """Parse ``udp:PORT[:interface=IP]``; without an interface the server listens on all of them.

    :raises ConfigError: the endpoint is invalid
    """
    found = re.fullmatch(r"udp:([0-9]{1,5})(?::interface=([0-9.]+))?", endpoint)
    try:
        if found is not None and int(found[1]) <= 65_535:
            return str(IPv4Address(found[2] or "0.0.0.0")), int(found[1])
    except AddressValueError:
        pass
    raise ConfigError(
        f"invalid --listen '{PROTOCOL}={endpoint}': expected udp:PORT or udp:PORT:interface=IP (IPv4 only)"
    )


@implementer(IConnected, IReloading)
class BackboneService(Service):
    """A service that serves one stream at one UDP port while it runs."""

    def __init__(self, port: UDPPort, protocol: BackboneProtocol) -> None:
        self._port = port
        self._protocol = protocol
        self.contents: dict[str, FileContent] = {}

    def startService(self) -> Deferred[UDPPort]:
        """Bind the port and serve.

        :return: a Deferred that fires with the port, or fails with CannotListenError
        """
        Service.startService(self)
        try:
            self._port.startListening()
        except CannotListenError as error:
            return fail(error)
        return succeed(self._port)

    @property
    def connections(self) -> int:
        """Return the number of live subscribers."""
        return self._protocol.subscribers

    def fixed(self, settings: BackboneSettings) -> Collection[str]:
        """Return the options that a running server cannot change: the stream, because clients are subscribed to it."""
        return ("stream",)

    def prepare(self, settings: BackboneSettings) -> Prepared:
        """Return what applies *settings*; there are no files to read first."""
        return Prepared(partial(self._protocol.change, settings))

    def stopService(self) -> Deferred[None]:
        """Stop serving.

        :return: a Deferred that fires when accepted messages are durable and delivered, and the port is closed
        """
        Service.stopService(self)
        if not self._port.connected:
            return succeed(None)
        return self._protocol.drain().addCallback(lambda _: self._port.stopListening())


def _client(target: ClientTarget, options: BackboneOptions = BackboneOptions()) -> BackboneClient:  # noqa: B008 - frozen
    decide = target.process_exception
    return BackboneClient(target.reactor, target.host, target.port, options=options, process_exception=decide)


@implementer(IClientPlugin)
@attrs.frozen
class BackbonePlugin:
    """The protocol plugin of the fyrehose backbone."""

    name: str = PROTOCOL
    description: str = "fyrehose backbone: publish and subscribe over UDP, with repair by clients that store messages"
    default_endpoint: str = "udp:2323:interface=127.0.0.1"
    default_port: int = 2323
    settings: type[BackboneSettings] = BackboneSettings
    abilities: Abilities = Abilities(own_connections=True)

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: BackboneSettings) -> BackboneService:
        host, number = parse_endpoint(endpoint)
        protocol = BackboneProtocol(broker, settings, reactor)
        port = UDPPort(number, protocol, host, reactor, settings.receive_buffer, settings.batching)
        service = BackboneService(port, protocol)
        service.name = f"{PROTOCOL} ({endpoint})"
        return service

    def publisher(self, target: ClientTarget, window: int) -> BackboneClient:
        options = BackboneOptions(window=window, retries=RETRIES)
        return BackboneClient(
            target.reactor, target.host, target.port, options=options, process_exception=target.process_exception
        )

    def tailer(self, target: ClientTarget) -> BackboneClient:
        return _client(target)


plugin = BackbonePlugin()
