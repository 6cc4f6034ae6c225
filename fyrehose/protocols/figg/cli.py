"""Figg for ``fyrehose publish`` and ``fyrehose tail``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint
from zope.interface import implementer, moduleProvides

from fyrehose.errors import ConfigError
from fyrehose.interfaces import IClients, IPublisher, ITailer
from fyrehose.protocols.figg.client import FiggClient
from fyrehose.protocols.figg.frames import DataRun
from fyrehose.records import Run

moduleProvides(IClients)

default_port = 8119


def publisher(reactor: Any, host: str, port: int, stream: str | None, window: int) -> FiggPublisher:
    """Make a publisher to the topic *stream* (see :meth:`IClients.publisher`)."""
    return FiggPublisher(_client(reactor, host, port, window), _require_topic(stream))


def tailer(
    reactor: Any,
    host: str,
    port: int,
    stream: str | None,
    after: int | None,
    take: Callable[[Run], object],
    lost: Callable[[int, int], object],
) -> FiggTailer:
    """Make a subscriber to the topic *stream* (see :meth:`IClients.tailer`)."""
    return FiggTailer(_client(reactor, host, port, 1), _require_topic(stream), after, take, lost)


@implementer(IPublisher)
@attrs.frozen
class FiggPublisher:
    """Publishes to one topic through a :class:`FiggClient`."""

    client: FiggClient
    topic: str

    def connect(self) -> Deferred[None]:
        return self.client.connect()

    def publish(self, payload: bytes) -> Deferred[None]:
        return self.client.publish(self.topic, payload)

    def ready(self) -> Deferred[None]:
        return self.client.ready()

    def close(self) -> Deferred[None]:
        return self.client.close()


@implementer(ITailer)
@attrs.frozen
class FiggTailer:
    """Subscribes to one topic through a :class:`FiggClient`."""

    client: FiggClient
    topic: str
    after: int | None
    take: Callable[[Run], object]
    lost: Callable[[int, int], object]

    def connect(self) -> Deferred[None]:
        self.client.subscribe(self.topic, self._data, self.after, self._attached)
        return self.client.connect()

    def pause(self) -> None:
        self.client.pause()

    def resume(self) -> None:
        self.client.resume()

    def shortfall(self, complete: bool) -> str:
        return ""  # one connection delivers the records in order

    def close(self) -> Deferred[None]:
        return self.client.close()

    def _attached(self, started: int, requested: int | None) -> None:
        if requested is not None and started > requested:
            self.lost(requested + 1, started)

    def _data(self, data: DataRun) -> None:
        self.take(
            Run(
                stream=data.topic,
                source="figg",
                lengths=data.lengths,
                payload=data.payload,
                first_seq=data.first,
            )
        )


def _client(reactor: Any, host: str, port: int, window: int) -> FiggClient:
    return FiggClient(reactor, HostnameEndpoint(reactor, host, port), window=window)


def _require_topic(stream: str | None) -> str:
    if stream is None:
        raise ConfigError("missing --stream NAME: Figg clients need a topic")
    return stream
