"""The Relink side of the commands ``fyrehose publish`` and ``fyrehose tail``."""

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

#: An open transaction is committed when no message was added to it for this long, in seconds.
COMMIT_DELAY = 0.2
#: Largest transaction that every server with default limits accepts, in messages.
MAX_TRANSACTION = Limits().backlog


def publisher(reactor: Any, host: str, port: int, stream: str | None, window: int) -> RelinkPublisher:
    """Return a publisher to one stream that sends each message on a plain channel.

    :param window: number of messages that may be sent before the first of them is consumed
    :raises ConfigError: no stream was given
    """
    name = publish_name(_require_stream(stream))
    limits = Limits(window=window)
    return RelinkPublisher(RelinkClient(reactor, HostnameEndpoint(reactor, host, port), name, limits=limits))


def transactional_publisher(
    reactor: Any, host: str, port: int, stream: str | None, window: int, size: int
) -> TransactionalPublisher:
    """Return a publisher to one stream that commits *size* messages at a time.

    :raises ConfigError: no stream was given, or *size* is larger than a server accepts by default
    """
    if size > MAX_TRANSACTION:
        raise ConfigError(f"a transaction of {size} messages is too large; the limit is {MAX_TRANSACTION}")
    limits = Limits(window=max(window, size))
    name = publish_name(_require_stream(stream))
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
    """Return a subscriber of one stream.

    :param after: number of the last record that is not wanted (0: begin with the oldest); None: only new records
    :param take: called with each run of records
    :param lost: called with the first and last number of a range of records that the stream no longer has
    :raises ConfigError: no stream was given
    """
    return RelinkTailer(reactor, HostnameEndpoint(reactor, host, port), _require_stream(stream), after, take, lost)


@implementer(IPublisher)
@attrs.frozen
class RelinkPublisher:
    """Publish to one stream on a plain channel."""

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
    """Publish to one stream in transactions of ``size`` messages.

    A transaction with fewer messages is committed after ``COMMIT_DELAY``.
    """

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
        added.addErrback(self._fail_open, done)
        return done

    def ready(self) -> Deferred[None]:
        idle: Deferred[Any] = self._lock.run(lambda: None)
        return idle.addCallback(lambda _: self.client.ready())

    def close(self) -> Deferred[None]:
        self._cancel_timer()
        return self.client.close()

    async def _add(self, payload: bytes, done: Deferred[None]) -> None:
        """Add a message to the open transaction, or to a new one; commit it when it has ``size`` messages."""
        if self._open is None:
            self._open = await self.client.transaction().begin()
        await self._open.send(payload)
        self._waiting.append(done)
        self._cancel_timer()
        if len(self._waiting) >= self.size:
            self._commit()
        else:
            self._timer = self.clock.callLater(COMMIT_DELAY, self._commit)

    def _commit(self) -> None:
        self._cancel_timer()
        transaction, self._open = self._open, None
        waiting, self._waiting = self._waiting, []
        assert transaction is not None

        def settled(result: Any) -> None:
            for deferred in waiting:
                deferred.callback(result)  # A Failure makes Twisted call the errbacks.

        try:
            transaction.commit().addBoth(settled)
        except Exception:
            settled(Failure())

    def _fail_open(self, failure: Failure, done: Deferred[None]) -> None:
        """Fail every message of the open transaction, because its link was lost."""
        self._open = None
        waiting, self._waiting = self._waiting, []
        for deferred in [*waiting, done]:
            deferred.errback(failure)

    def _cancel_timer(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None


@implementer(ITailer)
@attrs.define(eq=False)
class RelinkTailer:
    """Subscribe to one stream; after the link is lost, continue behind the last record."""

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
        return ""  # Records arrive in order over one connection, so none can be missing at the end.

    def close(self) -> Deferred[None]:
        return self.reader.client.close()

    def record(self, seq: int, parts: tuple[bytes, ...]) -> None:
        """Pass a record on to ``take``; several parts are joined into one payload (see parts.py)."""
        if len(parts) == 1:
            self.take(Run.of(self.stream, parts, source="relink", first_seq=seq))
        else:
            self.take(Run.of(self.stream, [join(parts)], source="relink", content_type=CONTENT_TYPE, first_seq=seq))


def _require_stream(stream: str | None) -> str:
    if stream is None:
        raise ConfigError("no stream was given; use --stream NAME")
    return stream
