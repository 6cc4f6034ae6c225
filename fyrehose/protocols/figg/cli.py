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
    """A publisher to one topic."""
    return FiggPublisher(_client(reactor, host, port, window), _named(stream))


def tailer(
    reactor: Any,
    host: str,
    port: int,
    stream: str | None,
    after: int | None,
    take: Callable[[Run], object],
    lost: Callable[[int, int], object],
) -> FiggTailer:
    """A reader of one topic."""
    return FiggTailer(_client(reactor, host, port, 1), _named(stream), after, take, lost)


@implementer(IPublisher)
@attrs.frozen
class FiggPublisher:
    """A client that publishes to one topic."""

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
    """A client that reads one topic."""

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
        return ""  # records come in order over one connection

    def close(self) -> Deferred[None]:
        return self.client.close()

    def _attached(self, began: int, asked: int | None) -> None:
        if asked is not None and began > asked:
            self.lost(asked + 1, began)

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


def _named(stream: str | None) -> str:
    if stream is None:
        raise ConfigError("say which stream: --stream NAME (a Figg topic)")
    return stream
