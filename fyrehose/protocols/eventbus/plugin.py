"""The protocol plugin of the event bus.

in: an endpoint string ``tcp:PORT[:interface=IP]`` and settings      out: a service
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Any

import attrs
from zope.interface import implementer

from fyrehose.errors import ConfigError
from fyrehose.imports import EVENTBUS
from fyrehose.interfaces import Abilities, IBroker, IClientPlugin
from fyrehose.net.clients import ClientTarget
from fyrehose.protocols.eventbus.client import EventBusClient
from fyrehose.protocols.eventbus.client_session import EventBusOptions
from fyrehose.protocols.eventbus.columns import PROTOCOL
from fyrehose.protocols.eventbus.service import EventBusService
from fyrehose.protocols.eventbus.settings import EventBusSettings

_ENDPOINT = re.compile(r"tcp:(\d+)(?::interface=(.+))?", re.ASCII)


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Parse ``tcp:PORT[:interface=IP]``.

    PORT is the port of SNAPSHOT; PUBLISHER and COLLECTOR use the next two.  Port 0 stands for any three consecutive
    free ports.  Without an interface the server listens on all of them.

    :return: host and first port
    :raises ConfigError: the endpoint is invalid
    """
    message = (
        f"invalid --listen '{PROTOCOL}={endpoint}': expected tcp:PORT or tcp:PORT:interface=IP with PORT up to 65533 "
        "(PORT to PORT + 2 are used)"
    )
    found = _ENDPOINT.fullmatch(endpoint)
    try:
        if found is None or int(found[1]) > 65_533:
            raise ValueError
        return str(ip_address((found[2] or "0.0.0.0").replace("\\:", ":"))), int(found[1])
    except ValueError:
        raise ConfigError(message) from None


@implementer(IClientPlugin)
@attrs.frozen
class EventBusPlugin:
    """The protocol plugin of the event bus, which builds clients, and the service of a listener."""

    name: str = PROTOCOL
    description: str = "event bus over ZeroMQ: publish, subscribe by topic, catch up from any sequence"
    default_endpoint: str = "tcp:5556:interface=127.0.0.1"
    default_port: int = 5556
    settings: type[EventBusSettings] = EventBusSettings
    abilities: Abilities = Abilities(own_connections=True, extra=EVENTBUS)

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: EventBusSettings) -> EventBusService:
        host, port = parse_endpoint(endpoint)
        if settings.server_key:
            EVENTBUS.require(f"{PROTOCOL}.server-key")
        service = EventBusService(reactor, broker, host, port, settings)
        service.name = f"{PROTOCOL} ({endpoint})"
        return service

    def publisher(self, target: ClientTarget, window: int) -> EventBusClient:
        """Return a client that publishes, and subscribes only to confirm what it has published."""
        return self._client(target, subscribe=False, window=window)

    def tailer(self, target: ClientTarget) -> EventBusClient:
        """Return a client that subscribes."""
        return self._client(target)

    def _client(self, target: ClientTarget, **options: Any) -> EventBusClient:
        return EventBusClient(
            target.reactor,
            target.host,
            target.port,
            options=EventBusOptions(**options),
            process_exception=target.process_exception,
        )


plugin = EventBusPlugin()
