"""The plugin by which the framework finds the HTTP protocol."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.interfaces import IStreamClientEndpoint
from zope.interface import implementer

from fyrehose.interfaces import Abilities, IBroker, IWorkPlugin
from fyrehose.net.clients import ProcessException, process_exception
from fyrehose.net.endpoints import TCPService
from fyrehose.net.several import client_endpoint, place_text
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
    abilities: Abilities = Abilities(consumes=True, patterns=True)

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: HttpSettings) -> TCPService:
        return TCPService(reactor, PROTOCOL, endpoint, HttpFactory(broker, settings, reactor, endpoint))

    def publisher(
        self,
        reactor: Any,
        host: str,
        port: int,
        window: int,
        endpoint: IStreamClientEndpoint | None = None,
        process_exception: ProcessException = process_exception,
    ) -> HttpPublisher:
        endpoint = client_endpoint(reactor, host, port, endpoint)
        return HttpPublisher(reactor, endpoint, place_text(host, port), window, process_exception=process_exception)

    def tailer(
        self,
        reactor: Any,
        host: str,
        port: int,
        endpoint: IStreamClientEndpoint | None = None,
        process_exception: ProcessException = process_exception,
    ) -> HttpTailer:
        endpoint = client_endpoint(reactor, host, port, endpoint)
        return HttpTailer(reactor, endpoint, place_text(host, port), process_exception=process_exception)

    def worker(self, reactor: Any, endpoint: IStreamClientEndpoint, authority: str, token: str | None) -> WorkClient:
        return WorkClient(reactor, endpoint, authority, token)


plugin = HttpPlugin()
