"""The plugin of the lines protocol, declared in pyproject.toml: ``twistd fyrehose --listen lines=tcp:7000``."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.interfaces import IStreamClientEndpoint
from zope.interface import implementer

from fyrehose.interfaces import Abilities, IBroker, IClientPlugin
from fyrehose.net import TCPService, TCPSettings
from fyrehose.net.clients import ProcessException, process_exception
from fyrehose.net.several import client_endpoint
from lines.client import LineClient
from lines.server import LineFactory


@implementer(IClientPlugin)
@attrs.frozen
class LinesPlugin:
    """Make services and clients of the lines protocol."""

    name: str = "lines"
    description: str = "an example: lines of text over TCP"
    default_endpoint: str = "tcp:7000:interface=127.0.0.1"
    default_port: int = 7000
    settings: type = TCPSettings
    abilities: Abilities = Abilities()

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: TCPSettings) -> TCPService:
        return TCPService(reactor, self.name, endpoint, LineFactory(broker, settings, reactor))

    def publisher(
        self,
        reactor: Any,
        host: str,
        port: int,
        window: int,
        endpoint: IStreamClientEndpoint | None = None,
        process_exception: ProcessException = process_exception,
    ) -> LineClient:
        endpoint = client_endpoint(reactor, host, port, endpoint)
        return LineClient(reactor, endpoint, window, process_exception=process_exception)

    def tailer(
        self,
        reactor: Any,
        host: str,
        port: int,
        endpoint: IStreamClientEndpoint | None = None,
        process_exception: ProcessException = process_exception,
    ) -> LineClient:
        endpoint = client_endpoint(reactor, host, port, endpoint)
        return LineClient(reactor, endpoint, process_exception=process_exception)


plugin = LinesPlugin()
