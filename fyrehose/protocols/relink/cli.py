"""Relink for ``fyrehose publish`` and ``fyrehose tail``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.interfaces import IDelayedCall
from twisted.python.failure import Failure
from zope.interface import implementer, moduleProvides

from fyrehose.errors import ConfigError
from fyrehose.interfaces import IClients, IPublisher, ITailer
from fyrehose.protocols.relink.client import RelinkClient
from fyrehose.protocols.relink.limits import Limits
from fyrehose.protocols.relink.names import publish_name
from fyrehose.protocols.relink.parts import CONTENT_TYPE, join
from fyrehose.protocols.relink.reader import RelinkReader
from fyrehose.protocols.relink.transactions import Transaction
from fyrehose.records import Run

moduleProvides(IClients)

default_port = 7733

#: A transaction that gets nothing more for so long is committed as it is, in seconds.
PATIENCE = 0.2
#: What a server that has not been told otherwise takes without a decision.
LARGEST = Limits().backlog


def publisher(reactor: Any, host: str, port: int, stream: str | None, window: int) -> RelinkPublisher:
    """A publisher to one stream, each message by itself."""
    name = publish_name(_named(stream))
    limits = Limits(window=window)
    return RelinkPublisher(RelinkClient(reactor, HostnameEndpoint(reactor, host, port), name, limits=limits))


def transactional_publisher(
    reactor: Any, host: str, port: int, stream: str | None, window: int, size: int
) -> TransactionalPublisher:
    """A publisher to one stream, ``size`` messages at a time or none of them."""
    if size > LARGEST:
        raise ConfigError(f"a transaction of {size} messages is too large, {LARGEST} are the most")
    limits = Limits(window=max(window, size))
    name = publish_name(_named(stream))
    endpoint = HostnameEndpoint(reactor, host, port)
    client = RelinkClient(reactor, endpoint, name, transactional=True, limits=limits)
    return TransactionalPublisher(reactor, client, size)


def tailer(
    reactor: Any,
    host: str,
    port: int,
    stream: str | None,
    after: int | None,
    take: Callable[[Run], object],
    lost: Callable[[int, int], object],
) -> RelinkTailer:
    """A reader of one stream."""
    return RelinkTailer(reactor, HostnameEndpoint(reactor, host, port), _named(stream), after, take, lost)


@implementer(IPublisher)
@attrs.frozen
class RelinkPublisher:
    """A client that publishes to one stream."""

    client: RelinkClient

    def connect(self) -> Deferred[None]:
        return self.client.connect()

    def publish(self, payload: bytes) -> Deferred[None]:
        return self.client.send(payload)

    def ready(self) -> Deferred[None]:
        return self.client.ready()

    def close(self) -> Deferred[None]:
        return self.client.close()


@implementer(IPublisher)
@attrs.define(eq=False)
class TransactionalPublisher:
    """The same, in transactions of ``size`` messages; the last may have fewer."""

    clock: Any
    client: RelinkClient
    size: int
    _lock: DeferredLock = attrs.field(factory=DeferredLock, init=False)
    _open: Transaction | None = attrs.field(default=None, init=False)
    _waiting: list[Deferred[None]] = attrs.field(factory=list, init=False)
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)

    def connect(self) -> Deferred[None]:
        return self.client.connect()

    def publish(self, payload: bytes) -> Deferred[None]:
        done: Deferred[None] = Deferred()
        added: Deferred[Any] = self._lock.run(lambda: Deferred.fromCoroutine(self._add(payload, done)))
        added.addErrback(self._lost, done)
        return done

    def ready(self) -> Deferred[None]:
        idle: Deferred[Any] = self._lock.run(lambda: None)
        return idle.addCallback(lambda _: self.client.ready())

    def close(self) -> Deferred[None]:
        self._stop_waiting()
        return self.client.close()

    async def _add(self, payload: bytes, done: Deferred[None]) -> None:
        if self._open is None:
            self._open = await self.client.transaction().begin()
        await self._open.send(payload)
        self._waiting.append(done)
        self._stop_waiting()
        if len(self._waiting) >= self.size:
            self._commit()
        else:
            self._timer = self.clock.callLater(PATIENCE, self._commit)

    def _commit(self) -> None:
        self._stop_waiting()
        transaction, self._open = self._open, None
        waiting, self._waiting = self._waiting, []
        assert transaction is not None

        def settled(result: Any) -> None:
            for one in waiting:
                one.callback(result)  # None, or the Failure

        try:
            transaction.commit().addBoth(settled)
        except Exception:
            settled(Failure())

    def _lost(self, failure: Failure, done: Deferred[None]) -> None:
        """The link was lost while the transaction was open: nothing of it counts."""
        self._open = None
        waiting, self._waiting = self._waiting, []
        for one in [*waiting, done]:
            one.errback(failure)

    def _stop_waiting(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None


@implementer(ITailer)
@attrs.define(eq=False)
class RelinkTailer:
    """A client that reads one stream, and goes on behind the last record when its link is lost."""

    clock: Any
    endpoint: Any
    stream: str
    after: int | None
    take: Callable[[Run], object]
    lost: Callable[[int, int], object]
    reader: RelinkReader = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.reader = RelinkReader(
            self.clock, self.endpoint, self.stream, after=self.after, on_record=self.record, on_gap=self.lost
        )

    def connect(self) -> Deferred[None]:
        return self.reader.client.connect()

    def pause(self) -> None:
        self.reader.client.pause()

    def resume(self) -> None:
        self.reader.client.resume()

    def shortfall(self, complete: bool) -> str:
        return ""  # records come in order over one connection

    def close(self) -> Deferred[None]:
        return self.reader.client.close()

    def record(self, seq: int, parts: tuple[bytes, ...]) -> None:
        """Hand a record on."""
        if len(parts) == 1:
            self.take(Run.of(self.stream, parts, source="relink", first_seq=seq))
        else:
            self.take(Run.of(self.stream, [join(parts)], source="relink", content_type=CONTENT_TYPE, first_seq=seq))


def _named(stream: str | None) -> str:
    if stream is None:
        raise ConfigError("say which stream: --stream NAME")
    return stream
