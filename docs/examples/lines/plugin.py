"""The plugin of the lines protocol, declared in pyproject.toml: ``twistd fyrehose --listen lines=tcp:7000``."""

from __future__ import annotations

from typing import Any

import attrs
from zope.interface import implementer

from fyrehose.interfaces import IBroker, IProtocolPlugin
from fyrehose.net import TCPService, TCPSettings
from lines.server import LineFactory


@implementer(IProtocolPlugin)
@attrs.frozen
class LinesPlugin:
    """Make services of the lines protocol."""

    name: str = "lines"
    description: str = "an example: lines of text over TCP"
    default_endpoint: str = "tcp:7000:interface=127.0.0.1"
    settings: type = TCPSettings

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: TCPSettings) -> TCPService:
        return TCPService(reactor, self.name, endpoint, LineFactory(broker, settings, reactor))


plugin = LinesPlugin()
