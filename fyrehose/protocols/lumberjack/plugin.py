"""The protocol plugin by which the framework finds Lumberjack."""

from __future__ import annotations

from typing import Any

import attrs
from zope.interface import implementer

from fyrehose.interfaces import IBroker, IProtocolPlugin
from fyrehose.net.endpoints import TCPService
from fyrehose.net.tls import add_tls
from fyrehose.protocols.lumberjack.server import PROTOCOL, LumberjackFactory, Settings


@implementer(IProtocolPlugin)
@attrs.frozen
class LumberjackPlugin:
    """Builds the service of a Lumberjack listener."""

    name: str = PROTOCOL
    description: str = "Lumberjack 1 and 2: events from Filebeat and other Beats, over TCP or TLS"
    default_endpoint: str = "tcp:5044:interface=127.0.0.1"
    settings: type[Settings] = Settings

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: Settings) -> TCPService:
        factory = LumberjackFactory(broker, settings, reactor)
        return TCPService(reactor, PROTOCOL, endpoint, factory, add_tls(PROTOCOL, endpoint, factory, settings, reactor))


plugin = LumberjackPlugin()
