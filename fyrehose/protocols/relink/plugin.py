"""The protocol plugin of Relink."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import attrs
from zope.interface import implementer

from fyrehose.errors import ConfigError
from fyrehose.interfaces import Abilities, IBroker, ITransactionalPlugin
from fyrehose.net.clients import ClientTarget
from fyrehose.protocols.relink.client import RelinkClient
from fyrehose.protocols.relink.frames import PROTOCOL
from fyrehose.protocols.relink.link import LinkLimits
from fyrehose.protocols.relink.publisher import TransactionalPublisher
from fyrehose.protocols.relink.reader import RelinkReader
from fyrehose.protocols.relink.registry import Registry
from fyrehose.protocols.relink.service import RelinkFactory, RelinkService
from fyrehose.protocols.relink.settings import RelinkSettings


def links_stream(endpoint: str, name: str = "") -> str:
    """Return the name of the stream that holds the links of the listener at *endpoint*.

    The name has a hash instead of the endpoint string, which may contain paths of files.

    :param name: the option ``links``: a name for the links instead of the endpoint, which differs between the servers
        of a cluster
    """
    if name:
        return f".relink/links:{blake2b(name.encode(), digest_size=8).hexdigest()}"
    return f".relink/{blake2b(endpoint.encode(), digest_size=8).hexdigest()}"


@implementer(ITransactionalPlugin)
@attrs.frozen
class RelinkPlugin:
    """The object by which the framework finds Relink."""

    name: str = PROTOCOL
    description: str = "Relink: resumable links with acknowledged and transactional channels over TCP"
    default_port: int = 7733
    default_endpoint: str = "tcp:7733:interface=127.0.0.1"
    settings: type[RelinkSettings] = RelinkSettings
    abilities: Abilities = Abilities(only_leading=True, consumes=True)

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: RelinkSettings) -> RelinkService:
        registry = Registry(broker, reactor, settings, links_stream(endpoint, settings.links))
        return RelinkService(reactor, endpoint, RelinkFactory(broker, settings, reactor, registry))

    def publisher(self, target: ClientTarget, window: int) -> RelinkClient:
        limits = LinkLimits(window=window)
        return RelinkClient(target.reactor, target.endpoint, limits=limits, process_exception=target.process_exception)

    def transactional_publisher(self, target: ClientTarget, window: int, size: int) -> TransactionalPublisher:
        """Return a publisher that commits *size* messages at a time.

        :raises ConfigError: *size* is larger than every server with default limits accepts
        """
        if size > LinkLimits().backlog:
            raise ConfigError(f"a transaction of {size} messages is too large; the limit is {LinkLimits().backlog}")
        limits = LinkLimits(window=max(window, size))
        return TransactionalPublisher(
            target.reactor, target.endpoint, limits=limits, size=size, process_exception=target.process_exception
        )

    def tailer(self, target: ClientTarget) -> RelinkReader:
        return RelinkReader(target.reactor, target.endpoint, process_exception=target.process_exception)


plugin = RelinkPlugin()
