"""HTTP client that publishes many short messages per request; with a key the server stores each request once.

    publish(stream, payload) -> a line of a POST, or a POST of its own -> 200 -> the Deferreds fire

A request whose connection is lost is sent again with its key.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import attrs
from twisted.application.internet import ClientService, backoffPolicy
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from zope.interface import implementer

from fyrehose.errors import Closed, ConfigError, PublishError
from fyrehose.interfaces import IPublisher
from fyrehose.net.clients import Watchers, reconnecting, stopped
from fyrehose.protocols.http.acknowledging import ESCAPED
from fyrehose.protocols.http.requests import TEMPORARY, Connection, ServerAnswer, sent_again
from fyrehose.protocols.http.session import KEYED, NDJSON

#: How many bytes of lines one request has at most; the server accepts up to KEYED bytes of lines with a key.
MOST_LINES = KEYED // 2


@attrs.define(eq=False)
class _Batch:
    """The messages of one request, and the Deferreds of their publishes."""

    stream: str
    payloads: list[bytes]
    waiting: list[Deferred[Any]]
    key: str = attrs.field(factory=lambda: str(uuid4()))

    def send(self, connection: Connection) -> Deferred[ServerAnswer]:
        """Send the messages as one POST; a repetition has the same key and the same bytes."""
        kind = NDJSON if _is_line(self.payloads[0]) else "application/octet-stream"
        headers = (("Content-Type", kind), ("Idempotency-Key", self.key))
        target = f"/streams/{quote(self.stream, safe='', errors=ESCAPED)}"
        return connection.ask("POST", target, b"\n".join(self.payloads), headers)


def _is_line(payload: bytes) -> bool:
    """Return whether *payload* can be a line, so that it can share a request with other messages."""
    return bool(payload) and len(payload) <= MOST_LINES and b"\n" not in payload and not payload.endswith(b"\r")


@implementer(IPublisher)
@attrs.define(eq=False)
class HttpPublisher:
    """A client that publishes messages to any streams of one server.

    :ivar authority: the value of the ``Host`` header
    :ivar window: how many messages may be unacknowledged at a time
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
        make = partial(Connection, self.endpoint, self.authority, changed=self._changed)
        self._service = reconnecting(self.clock, self.endpoint, make, retry)
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

    def close(self) -> Deferred[None]:
        """See :meth:`IPublisher.close`."""
        service, self._service = self._service, None
        self._connection, self._closed = None, True
        reason = Closed("the client was closed before the server had acknowledged the message")
        waiting = [*(self._batch.waiting if self._batch is not None else ()), *(each[2] for each in self._waiting)]
        self._batch = None
        self._waiting.clear()
        self._watchers.fail(reason)
        self._settle(waiting, reason)
        return stopped(service)

    # Called by the connection.

    def _changed(self, connection: Connection | None) -> None:
        """Send the unanswered request again; on the first connection, first ask whether the server speaks HTTP."""
        self._connection = None if self._closed else connection
        if self._connection is None:
            return
        if self._connected is not None:
            self._connection.ask("HEAD", "/", b"").addCallbacks(self._speaks_http, sent_again)
        elif self._batch is not None:
            self._ask(self._connection, self._batch)
        else:
            self._send()

    def _speaks_http(self, _: ServerAnswer) -> None:
        connected, self._connected = self._connected, None
        if connected is not None:
            connected.callback(None)
        self._send()

    def _answered(self, answer: ServerAnswer, connection: Connection, batch: _Batch) -> None:
        """Settle the publishes of a request, and send the next one."""
        if answer.status in TEMPORARY:
            connection.leave()  # The request is sent again on the next connection.
            return
        if batch is not self._batch:  # the publisher was closed, which settled the publishes
            return
        self._batch = None
        accepted = answer.status == 200
        refusal = None if accepted else PublishError(f"the server answered {answer.status}: {answer.detail}")
        self._settle(batch.waiting, refusal)
        self._send()

    # Internals.

    def _ask(self, connection: Connection, batch: _Batch) -> None:
        batch.send(connection).addCallbacks(self._answered, sent_again, callbackArgs=(connection, batch))

    def _send(self) -> None:
        """Send the next request, if no request waits for its answer."""
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
        self._ask(connection, batch)

    def _settle(self, waiting: list[Deferred[Any]], refusal: Exception | None) -> None:
        self._unacknowledged -= len(waiting)
        for published in waiting:
            published.callback(None) if refusal is None else published.errback(refusal)
        self._watchers.notify()
