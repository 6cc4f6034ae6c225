"""The protocol plugin by which the framework finds Lumberjack."""

from __future__ import annotations

from typing import Any

import attrs
from zope.interface import implementer

from fyrehose.imports import LUMBERJACK
from fyrehose.interfaces import Abilities, IBroker, IClientPlugin
from fyrehose.net.clients import ClientTarget
from fyrehose.net.endpoints import TCPService
from fyrehose.protocols.lumberjack.client import LumberjackClient
from fyrehose.protocols.lumberjack.frames import PROTOCOL
from fyrehose.protocols.lumberjack.server import LumberjackFactory, LumberjackSettings

#: How many windows of one connection may be unacknowledged: the next one travels while the server commits the one
#: before.
PIPELINING = 2


@implementer(IClientPlugin)
@attrs.frozen
class LumberjackPlugin:
    """The protocol plugin of Lumberjack, which builds clients, and the service of a listener."""

    name: str = PROTOCOL
    description: str = "Lumberjack 1 and 2: events from Filebeat and other Beats, over TCP or TLS"
    default_endpoint: str = "tcp:5044:interface=127.0.0.1"
    default_port: int = 5044
    settings: type[LumberjackSettings] = LumberjackSettings
    abilities: Abilities = Abilities(only_leading=True, extra=LUMBERJACK)

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: LumberjackSettings) -> TCPService:
        return TCPService(reactor, PROTOCOL, endpoint, LumberjackFactory(broker, settings, reactor))

    def publisher(self, target: ClientTarget, window: int) -> LumberjackClient:
        each = max(1, window // PIPELINING)
        return LumberjackClient(
            target.reactor,
            [target.endpoint],
            window=each,
            pipelining=PIPELINING,
            process_exception=target.process_exception,
        )

    def tailer(self, target: ClientTarget) -> None:
        """Return None: the protocol cannot subscribe."""


plugin = LumberjackPlugin()
