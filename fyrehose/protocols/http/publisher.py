"""HTTP client that publishes: many short messages per request, each request with a key, so that all is stored once.

    publish(stream, payload) -> lines of one POST, or a body of its own -> 200 -> the Deferreds fire

A request whose connection is lost is sent again with its key.
"""

from __future__ import annotations

from collections import deque
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import attrs
from twisted.application.internet import ClientService, backoffPolicy
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from zope.interface import implementer

from fyrehose.errors import Closed, ConfigError, PublishError
from fyrehose.interfaces import IPublisher
from fyrehose.net.clients import Watchers, reconnecting
from fyrehose.protocols.http.acknowledging import ESCAPED, TEMPORARY
from fyrehose.protocols.http.requests import ClientRequest, Connection
from fyrehose.protocols.http.session import KEYED, NDJSON

#: The most bytes of lines in one request; the server accepts lines with a key up to KEYED bytes.
MOST_LINES = KEYED // 2


@attrs.define(eq=False)
class _Batch:
    """The messages of one request, and the Deferreds of their publishes."""

    stream: str
    payloads: list[bytes]
    waiting: list[Deferred[Any]]
    key: str = attrs.field(factory=lambda: str(uuid4()))

    @property
    def request(self) -> ClientRequest:
        """Return the request; a repetition of it has the same bytes."""
        lines = _is_line(self.payloads[0])
        kind = NDJSON if lines else "application/octet-stream"
        return ClientRequest(
            method="POST",
            target=f"/streams/{quote(self.stream, safe='', errors=ESCAPED)}",
            body=b"\n".join(self.payloads),
            headers=(("Content-Type", kind), ("Idempotency-Key", self.key)),
            sent=self,
        )


def _is_line(payload: bytes) -> bool:
    """Return whether *payload* can be a line of a request with others."""
    return bool(payload) and len(payload) <= MOST_LINES and b"\n" not in payload and not payload.endswith(b"\r")


@implementer(IPublisher)
@attrs.define(eq=False)
class HttpPublisher:
    """Publishes to any streams of one server.

    :ivar authority: the value of the ``Host`` header
    :ivar window: the most messages that are not acknowledged yet
    """

    clock: IReactorTime
    endpoint: IStreamClientEndpoint
    authority: str
    window: int
    _waiting: deque[tuple[str, bytes, Deferred[Any]]] = attrs.field(factory=deque, init=False)
    #: the request that has no answer yet
    _batch: _Batch | None = attrs.field(default=None, init=False)
    _unacknowledged: int = attrs.field(default=0, init=False)
    _watchers: Watchers = attrs.field(factory=Watchers, init=False)
    _service: ClientService | None = attrs.field(default=None, init=False)
    _connection: Connection | None = attrs.field(default=None, init=False)
    _connected: Deferred[None] | None = attrs.field(default=None, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    def prepare(self, stream: str | None) -> None:
        """See :meth:`IPublisher.prepare`."""
        if stream is None:
            raise ConfigError("no stream was given; use --stream NAME")

    def connect(self) -> Deferred[None]:
        """See :meth:`IPublisher.connect`."""
        connected = self._connected = Deferred()
        retry = backoffPolicy(1.0, 30.0)
        self._service = reconnecting(self.clock, self.endpoint, lambda: Connection(self), retry)
        return connected

    def publish(self, stream: str | None, payload: bytes) -> Deferred[Any]:
        """See :meth:`IPublisher.publish`."""
        self.prepare(stream)
        published: Deferred[Any] = Deferred()
        self._waiting.append((str(stream), payload, published))
        self._unacknowledged += 1
        self._send()
        return published

    def ready(self) -> Deferred[None]:
        """See :meth:`IPublisher.ready`."""
        return self._watchers.when(lambda: self._unacknowledged < self.window)

    def close(self) -> Deferred[Any]:
        """See :meth:`IPublisher.close`."""
        service, self._service = self._service, None
        self._connection, self._closed = None, True
        reason = Closed("the client was closed before the server had acknowledged the message")
        waiting = [*(self._batch.waiting if self._batch is not None else ()), *(each[2] for each in self._waiting)]
        self._batch = None
        self._waiting.clear()
        self._watchers.fail(reason)
        self._settle(waiting, reason)
        stopped: Deferred[Any] = succeed(None) if service is None else service.stopService()
        return stopped

    # Called by the connection.

    def connection_changed(self, connection: Connection | None) -> None:
        """Send the request again that has no answer; the first one asks whether the server speaks HTTP."""
        self._connection = None if self._closed else connection
        if self._connection is None:
            return
        if self._connected is not None:
            self._connection.send(ClientRequest(method="HEAD", target="/"))
        elif self._batch is not None:
            self._connection.send(self._batch.request)
        else:
            self._send()

    def answered(self, sent: _Batch | None, status: int, detail: str) -> bool:
        """Settle the publishes of a request, and send the next one.

        :return: whether the connection can be used again
        """
        if sent is None:
            connected, self._connected = self._connected, None
            if connected is not None:
                connected.callback(None)
        elif status in TEMPORARY:
            return False  # It is sent again on the next connection.
        else:
            self._batch = None
            refusal = None if status == 200 else PublishError(f"the server answered {status}: {detail}")
            self._settle(sent.waiting, refusal)
        self._send()
        return True

    # Internals.

    def _send(self) -> None:
        """Send the next request, if none is under way."""
        connection = self._connection
        if connection is None or not connection.idle or self._batch is not None or not self._waiting:
            return
        stream, payload, published = self._waiting.popleft()
        batch = self._batch = _Batch(stream, [payload], [published])
        size = len(payload)
        while _is_line(batch.payloads[0]) and self._waiting:
            stream, payload, published = self._waiting[0]
            size += len(payload) + 1
            if stream != batch.stream or size > MOST_LINES or not _is_line(payload):
                break
            self._waiting.popleft()
            batch.payloads.append(payload)
            batch.waiting.append(published)
        connection.send(batch.request)

    def _settle(self, waiting: list[Deferred[Any]], refusal: Exception | None) -> None:
        self._unacknowledged -= len(waiting)
        for published in waiting:
            published.callback(None) if refusal is None else published.errback(refusal)
        self._watchers.notify()
