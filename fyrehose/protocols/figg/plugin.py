"""The protocol plugin by which the framework finds Figg."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.interfaces import IStreamClientEndpoint
from zope.interface import implementer

from fyrehose.interfaces import Abilities, IBroker, IClientPlugin
from fyrehose.net.clients import ProcessException, process_exception
from fyrehose.net.endpoints import TCPService
from fyrehose.net.several import client_endpoint
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

    def publisher(
        self,
        reactor: Any,
        host: str,
        port: int,
        window: int,
        endpoint: IStreamClientEndpoint | None = None,
        process_exception: ProcessException = process_exception,
    ) -> FiggClient:
        connect_to = client_endpoint(reactor, host, port, endpoint)
        return FiggClient(reactor, connect_to, window=window, process_exception=process_exception)

    def tailer(
        self,
        reactor: Any,
        host: str,
        port: int,
        endpoint: IStreamClientEndpoint | None = None,
        process_exception: ProcessException = process_exception,
    ) -> FiggClient:
        return FiggClient(reactor, client_endpoint(reactor, host, port, endpoint), process_exception=process_exception)


plugin = FiggPlugin()
