"""Lumberjack for ``fyrehose publish``; it is a protocol for writers, so there is nothing for ``fyrehose tail``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint
from zope.interface import implementer, moduleProvides

from fyrehose.errors import ConfigError, LocalProtocolError
from fyrehose.interfaces import IClients, IPublisher
from fyrehose.protocols.lumberjack.client import LumberjackClient
from fyrehose.records import Run

moduleProvides(IClients)

default_port = 5044

#: Windows under way: while one is written to the disk the next is on its way.
PIPELINING = 2


def publisher(reactor: Any, host: str, port: int, stream: str | None, window: int) -> LumberjackPublisher:
    """A writer."""
    if stream is not None:
        raise ConfigError("a lumberjack server says itself which stream events go to; leave --stream out")
    endpoint = HostnameEndpoint(reactor, host, port)
    each = max(1, window // PIPELINING)
    return LumberjackPublisher(LumberjackClient(reactor, [endpoint], window=each, pipelining=PIPELINING))


def tailer(
    reactor: Any,
    host: str,
    port: int,
    stream: str | None,
    after: int | None,
    take: Callable[[Run], object],
    lost: Callable[[int, int], object],
) -> None:
    """There is none."""


def document(payload: bytes) -> bytes:
    """What an event of ``payload`` is: an object of JSON as it is, any other text as Beats have it, as the ``message``.

    :raises LocalProtocolError: it is neither
    """
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        raise LocalProtocolError("a lumberjack event is JSON, and this payload is not even text") from None
    try:
        if isinstance(json.loads(text), dict):
            return payload
    except (ValueError, RecursionError):
        pass  # text, then
    return json.dumps({"message": text}, ensure_ascii=False).encode()


@implementer(IPublisher)
@attrs.frozen
class LumberjackPublisher:
    """A client that publishes one event at a time; those of one turn share windows."""

    client: LumberjackClient

    def connect(self) -> Deferred[None]:
        return self.client.connect()

    def publish(self, payload: bytes) -> Deferred[None]:
        return self.client.publish([document(payload)])

    def ready(self) -> Deferred[None]:
        return self.client.ready()

    def close(self) -> Deferred[None]:
        return self.client.close()
