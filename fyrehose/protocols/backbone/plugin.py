"""The protocol plugin of the backbone.

in: an endpoint string ``udp:PORT[:interface=IP]`` and settings      out: a service
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import attrs
from zope.interface import implementer

from fyrehose.interfaces import Abilities, IBroker, IClientPlugin, IConnected
from fyrehose.net.clients import ClientTarget
from fyrehose.net.udp import UDPPort, parse_endpoint
from fyrehose.net.udp_server import UDPService
from fyrehose.protocols.backbone.client import BackboneClient
from fyrehose.protocols.backbone.server import PROTOCOL, BackboneProtocol
from fyrehose.protocols.backbone.session import BackboneOptions
from fyrehose.protocols.backbone.settings import BackboneSettings

#: How often the plugin's publisher repeats an unconfirmed PUSH; a message whose DELIVER was lost is published twice.
RETRIES = 5


@implementer(IConnected)
class BackboneService(UDPService):
    """A service that serves one stream at one UDP port while it runs."""

    _protocol: BackboneProtocol

    @property
    def connections(self) -> int:
        """Return the number of live subscribers."""
        return self._protocol.subscribers

    def fixed(self, settings: BackboneSettings) -> Collection[str]:
        """Return the options that a running server cannot change: the stream, because clients are subscribed to it."""
        return ("stream",)


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
        host, number = parse_endpoint(PROTOCOL, endpoint)
        protocol = BackboneProtocol(broker, settings, reactor)
        port = UDPPort(number, protocol, host, reactor, settings.receive_buffer, settings.batching)
        return BackboneService(endpoint, port, protocol)

    def publisher(self, target: ClientTarget, window: int) -> BackboneClient:
        return self._client(target, window=window, retries=RETRIES)

    def tailer(self, target: ClientTarget) -> BackboneClient:
        return self._client(target)

    def _client(self, target: ClientTarget, **options: Any) -> BackboneClient:
        made, decide = BackboneOptions(**options), target.process_exception
        return BackboneClient(target.reactor, target.host, target.port, options=made, process_exception=decide)


plugin = BackbonePlugin()
