"""The protocol plugin by which the framework finds Figg."""

from __future__ import annotations

from typing import Any

import attrs
from zope.interface import implementer

from fyrehose.interfaces import Abilities, IBroker, IClientPlugin
from fyrehose.net.clients import ClientTarget
from fyrehose.net.endpoints import TCPService
from fyrehose.protocols.figg.client import FiggClient
from fyrehose.protocols.figg.frames import PROTOCOL
from fyrehose.protocols.figg.server import FiggFactory, FiggSettings


@implementer(IClientPlugin)
@attrs.frozen
class FiggPlugin:
    """The protocol plugin of Figg, which builds clients, and the service of a listener."""

    name: str = PROTOCOL
    description: str = "Figg: publish, and subscribe from any offset, over TCP"
    default_endpoint: str = "tcp:8119:interface=127.0.0.1"
    default_port: int = 8119
    settings: type[FiggSettings] = FiggSettings
    abilities: Abilities = Abilities()

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: FiggSettings) -> TCPService:
        return TCPService(reactor, PROTOCOL, endpoint, FiggFactory(broker, settings, reactor))

    def publisher(self, target: ClientTarget, window: int) -> FiggClient:
        return FiggClient(target.reactor, target.endpoint, window=window, process_exception=target.process_exception)

    def tailer(self, target: ClientTarget) -> FiggClient:
        return FiggClient(target.reactor, target.endpoint, process_exception=target.process_exception)


plugin = FiggPlugin()
