"""The plugin by which the framework finds the HTTP protocol."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.interfaces import IStreamClientEndpoint
from zope.interface import implementer

from fyrehose.interfaces import IBroker, IConsumingPlugin, IPatternPlugin
from fyrehose.net.endpoints import TCPService
from fyrehose.net.several import client_endpoint, place_text
from fyrehose.net.tls import add_tls
from fyrehose.protocols.http.client import HttpTailer
from fyrehose.protocols.http.publisher import HttpPublisher
from fyrehose.protocols.http.server import HttpFactory, HttpSettings
from fyrehose.protocols.http.session import PROTOCOL


@implementer(IConsumingPlugin, IPatternPlugin)
@attrs.frozen
class HttpPlugin:
    """The protocol plugin of HTTP."""

    name: str = PROTOCOL
    description: str = "HTTP: publish, read and follow streams with curl, as NDJSON and server-sent events"
    default_endpoint: str = "tcp:8117:interface=127.0.0.1"
    default_port: int = 8117
    settings: type[HttpSettings] = HttpSettings

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: HttpSettings) -> TCPService:
        factory = HttpFactory(broker, settings, reactor, endpoint)
        return TCPService(reactor, PROTOCOL, endpoint, factory, add_tls(PROTOCOL, endpoint, factory, settings, reactor))

    def publisher(
        self, reactor: Any, host: str, port: int, window: int, endpoint: IStreamClientEndpoint | None = None
    ) -> HttpPublisher:
        return HttpPublisher(reactor, client_endpoint(reactor, host, port, endpoint), place_text(host, port), window)

    def tailer(self, reactor: Any, host: str, port: int, endpoint: IStreamClientEndpoint | None = None) -> HttpTailer:
        return HttpTailer(reactor, client_endpoint(reactor, host, port, endpoint), place_text(host, port))


plugin = HttpPlugin()
