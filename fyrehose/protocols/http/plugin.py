"""The plugin by which the framework finds the HTTP protocol."""

from __future__ import annotations

from typing import Any

import attrs
from zope.interface import implementer

from fyrehose.imports import ZSTD
from fyrehose.interfaces import Abilities, IBroker, IWorkPlugin
from fyrehose.net.clients import ClientTarget
from fyrehose.net.endpoints import TCPService
from fyrehose.protocols.http.client import HttpTailer
from fyrehose.protocols.http.publisher import HttpPublisher
from fyrehose.protocols.http.server import HttpFactory, HttpSettings
from fyrehose.protocols.http.session import PROTOCOL
from fyrehose.protocols.http.workers import WorkClient


@implementer(IWorkPlugin)
@attrs.frozen
class HttpPlugin:
    """The protocol plugin of HTTP."""

    name: str = PROTOCOL
    description: str = "HTTP: publish, read and follow streams with curl, as NDJSON and server-sent events"
    default_endpoint: str = "tcp:8117:interface=127.0.0.1"
    default_port: int = 8117
    settings: type[HttpSettings] = HttpSettings
    abilities: Abilities = Abilities(consumes=True, patterns=True, times=True, token=True, extra=ZSTD)

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: HttpSettings) -> TCPService:
        return TCPService(reactor, PROTOCOL, endpoint, HttpFactory(broker, settings, reactor, endpoint))

    def publisher(self, target: ClientTarget, window: int) -> HttpPublisher:
        return HttpPublisher(
            target.reactor,
            target.endpoint,
            target.place,
            window,
            token=target.token,
            process_exception=target.process_exception,
        )

    def tailer(self, target: ClientTarget) -> HttpTailer:
        return HttpTailer(
            target.reactor,
            target.endpoint,
            target.place,
            token=target.token,
            process_exception=target.process_exception,
        )

    def worker(self, target: ClientTarget) -> WorkClient:
        return WorkClient(target.reactor, target.endpoint, target.place, target.token)


plugin = HttpPlugin()
