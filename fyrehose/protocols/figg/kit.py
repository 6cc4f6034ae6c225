"""What the framework finds: the Figg kit."""

from __future__ import annotations

from typing import Any

import attrs
from zope.interface import implementer

from fyrehose.interfaces import IBroker, IProtocolKit
from fyrehose.net.endpoints import TCPService
from fyrehose.net.tls import around
from fyrehose.protocols.figg.server import KIT, Settings, make_factory


@implementer(IProtocolKit)
@attrs.frozen
class FiggKit:
    """Figg."""

    name: str = KIT
    description: str = "Figg: publish, and subscribe from any offset, by TCP"
    default_endpoint: str = "tcp:8119:interface=127.0.0.1"
    settings: type[Settings] = Settings

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: Settings) -> TCPService:
        factory = make_factory(broker, reactor, settings)
        return TCPService(reactor, KIT, endpoint, factory, around(KIT, endpoint, factory, settings, reactor))


kit = FiggKit()
