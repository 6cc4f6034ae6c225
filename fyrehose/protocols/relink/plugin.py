"""The protocol plugin of Relink."""

from __future__ import annotations

import time
from hashlib import blake2b
from secrets import randbits
from typing import Any

import attrs
from zope.interface import implementer

from fyrehose.interfaces import IBroker, IProtocolPlugin
from fyrehose.net.tls import add_tls
from fyrehose.protocols.relink.endpoints import PROTOCOL
from fyrehose.protocols.relink.registry import Registry
from fyrehose.protocols.relink.server import RelinkFactory, RelinkService
from fyrehose.protocols.relink.settings import Settings


def wall_clock() -> int:
    """Return microseconds since January 1, 1970 UTC."""
    return time.time_ns() // 1000


def links_stream(endpoint: str) -> str:
    """Return the name of the stream that holds the links of the listener at *endpoint*.

    The name has a hash instead of the endpoint string, which may contain paths of files.
    """
    return f".relink/{blake2b(endpoint.encode(), digest_size=8).hexdigest()}"


@implementer(IProtocolPlugin)
@attrs.frozen
class RelinkPlugin:
    """The object by which the framework finds Relink."""

    name: str = PROTOCOL
    description: str = "Relink: resumable links with acknowledged and transactional channels over TCP"
    default_endpoint: str = "tcp:7733:interface=127.0.0.1"
    settings: type[Settings] = Settings

    def make_service(self, reactor: Any, broker: IBroker, endpoint: str, settings: Settings) -> RelinkService:
        registry = Registry(broker, reactor, settings, links_stream(endpoint), wall_clock, randbits)
        factory = RelinkFactory(broker, settings, reactor, registry)
        tls = add_tls(PROTOCOL, endpoint, factory, settings, reactor)
        return RelinkService(reactor, endpoint, factory, registry, tls)


plugin = RelinkPlugin()
