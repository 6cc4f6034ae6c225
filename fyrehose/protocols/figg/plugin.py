"""The protocol plugin by which the framework finds Figg."""

from __future__ import annotations

from typing import Any

import attrs
from zope.interface import implementer

from fyrehose.interfaces import IBroker, IProtocolPlugin
from fyrehose.net.endpoints import TCPService
from fyrehose.net.tls import add_tls
from fyrehose.protocols.figg.server import PROTOCOL, FiggFactory, Settings


@implementer(IProtocolPlugin)
@attrs.frozen
class FiggPlugin:
    """Builds the service of a Figg listener."""

    name: str = PROTOCOL
    description: str = "Figg: publish, and subscribe from any offset, over TCP"
    default_endpoint: str = "tcp:8119:interface=127.0.0.1"
    settings: type[Settings] = Settings

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: Settings) -> TCPService:
        factory = FiggFactory(broker, settings, reactor)
        return TCPService(reactor, PROTOCOL, endpoint, factory, add_tls(PROTOCOL, endpoint, factory, settings, reactor))


plugin = FiggPlugin()
