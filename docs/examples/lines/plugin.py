"""The plugin of the lines protocol, declared in pyproject.toml: ``twistd fyrehose --listen lines=tcp:7000``."""

from __future__ import annotations

from typing import Any

import attrs
from zope.interface import implementer

from fyrehose.interfaces import Abilities, IBroker, IClientPlugin
from fyrehose.net import TCPService, TCPSettings
from fyrehose.net.clients import ClientTarget
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

    def publisher(self, target: ClientTarget, window: int) -> LineClient:
        return LineClient(target.reactor, target.endpoint, window, process_exception=target.process_exception)

    def tailer(self, target: ClientTarget) -> LineClient:
        return LineClient(target.reactor, target.endpoint, process_exception=target.process_exception)


plugin = LinesPlugin()
