"""Lumberjack for ``fyrehose publish``; the protocol cannot subscribe, so ``fyrehose tail`` does not support it."""

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

#: Unacknowledged windows of one connection: the next one travels while the server commits the one before.
PIPELINING = 2


def publisher(reactor: Any, host: str, port: int, stream: str | None, window: int) -> LumberjackPublisher:
    """Make a writer; the server chooses the stream (see :meth:`IClients.publisher`)."""
    if stream is not None:
        raise ConfigError("unexpected --stream: a lumberjack server chooses the stream itself; leave --stream out")
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
    """Return None: Lumberjack has no subscribers."""


def to_document(payload: bytes) -> bytes:
    """Return the JSON document for *payload*: a JSON object as it is, other text as ``{"message": text}``.

    :raises LocalProtocolError: *payload* is not UTF-8
    """
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        raise LocalProtocolError("payload is not UTF-8, but lumberjack events are JSON") from None
    try:
        if isinstance(json.loads(text), dict):
            return payload
    except (ValueError, RecursionError):
        pass  # not JSON, so it is sent as a message
    return json.dumps({"message": text}, ensure_ascii=False).encode()


@implementer(IPublisher)
@attrs.frozen
class LumberjackPublisher:
    """Publishes single events; events published in one turn of the reactor share windows."""

    client: LumberjackClient

    def connect(self) -> Deferred[None]:
        return self.client.connect()

    def publish(self, payload: bytes) -> Deferred[None]:
        return self.client.publish([to_document(payload)])

    def ready(self) -> Deferred[None]:
        return self.client.ready()

    def close(self) -> Deferred[None]:
        return self.client.close()
