"""HTTP client that publishes many short messages per request; with a key the server stores each request once.

    publish(stream, payload) -> a line of a POST, or a POST of its own -> 200 -> the Deferreds fire

A request whose connection is lost is sent again with its key.
"""

from __future__ import annotations

from collections import deque
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import attrs
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import ConfigError, FyrehoseError, LocalProtocolError, PublishError
from fyrehose.interfaces import IPublisher
from fyrehose.net.clients import Client, ConnectionOptions
from fyrehose.protocols.http.acknowledging import ESCAPED
from fyrehose.protocols.http.calling import Caller
from fyrehose.protocols.http.requests import HTTP_OPTIONS
from fyrehose.protocols.http.session import KEYED, NDJSON
from fyrehose.web.client_session import ServerAnswer

#: How many bytes of lines one request has at most; the server accepts up to KEYED bytes of lines with a key.
MOST_LINES = KEYED // 2


@attrs.define(eq=False)
class _Batch:
    """The messages of one request, and the Deferreds of their publishes."""

    stream: str
    payloads: list[bytes]
    waiting: list[Deferred[Any]]
    key: str = attrs.field(factory=lambda: str(uuid4()))

    async def send(self, caller: Caller) -> ServerAnswer:
        """Send the messages as one POST; a repetition has the same key and the same bytes."""
        kind = NDJSON if _is_line(self.payloads[0]) else "application/octet-stream"
        headers = (("Content-Type", kind), ("Idempotency-Key", self.key))
        target = f"/streams/{quote(self.stream, safe='', errors=ESCAPED)}"
        return await caller.ask("POST", target, b"\n".join(self.payloads), headers)


def _is_line(payload: bytes) -> bool:
    """Return whether *payload* can be a line, so that it can share a request with other messages."""
    return bool(payload) and len(payload) <= MOST_LINES and b"\n" not in payload and not payload.endswith(b"\r")


def _ended(failure: Failure) -> None:
    """Ignore that a request had no answer: the client has ended, which settled its publishes."""
    failure.trap(CancelledError, FyrehoseError)


@implementer(IPublisher)
@attrs.define(eq=False)
class HttpPublisher(Client):
    """A client that publishes messages to any streams of one server.

    :ivar authority: the value of the ``Host`` header
    :ivar window: how many messages may be unacknowledged at a time
    :ivar token: the bearer token that is sent, if any
    """

    connection_options: ConnectionOptions = attrs.field(default=HTTP_OPTIONS, kw_only=True)
    endpoint: IStreamClientEndpoint
    authority: str
    window: int
    token: str | None = attrs.field(default=None, kw_only=True, repr=False)
    _waiting: deque[tuple[str, bytes, Deferred[Any]]] = attrs.field(factory=deque, init=False)
    #: the messages of the request that has no answer yet
    _batch: _Batch | None = attrs.field(default=None, init=False)
    _unacknowledged: int = attrs.field(default=0, init=False)
    _caller: Caller = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        options, retries = self.connection_options, self.retries
        self._caller = Caller(self.clock, self.endpoint, self.authority, self.token, options=options, retries=retries)

    def prepare(self, stream: str | None) -> None:
        """See :meth:`IPublisher.prepare`."""
        if stream is None:
            raise ConfigError("no stream was given; use --stream NAME")

    def publish(self, stream: str | None, payload: bytes) -> Deferred[Any]:
        """See :meth:`IPublisher.publish`."""
        self.prepare(stream)
        if self.closed:
            raise LocalProtocolError("the client is closed")
        published: Deferred[Any] = Deferred()
        self._waiting.append((str(stream), payload, published))
        self._unacknowledged += 1
        self._send()
        return published

    def ready(self) -> Deferred[None]:
        """See :meth:`IPublisher.ready`."""
        return self.watchers.when(lambda: self._unacknowledged < self.window)

    # Called by the shell.

    def start(self) -> None:
        """Ask whether there is a Fyrehose listener, and then publish."""
        asking = Deferred.fromCoroutine(self._caller.ask("GET", "/"))
        asking.addCallback(lambda _: self.established()).addErrback(_ended)

    def stop(self) -> Deferred[None]:
        self._caller.close()
        return succeed(None)

    def abandon(self, error: Exception) -> None:
        waiting = [*(self._batch.waiting if self._batch is not None else ()), *(each[2] for each in self._waiting)]
        self._batch = None
        self._waiting.clear()
        self._settle(waiting, error)

    def retries(self, error: Exception) -> bool:
        if self.error is None and not self.closed:
            self.on_state(False)
        return super().retries(error)

    # Internals.

    def _answered(self, answer: ServerAnswer, batch: _Batch) -> None:
        """Settle the publishes of a request, and send the next one."""
        if batch is not self._batch:  # the publisher was closed, which settled the publishes
            return
        self._batch = None
        if self.error is not None:
            self.established()
        refusal = None
        if answer.status != 200:
            refusal = PublishError(f"the server answered {answer.status}: {answer.detail}")
        self._settle(batch.waiting, refusal)
        self._send()

    def _send(self) -> None:
        """Send the next request, if no request waits for its answer."""
        if self._batch is not None or not self._waiting:
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
        asking = Deferred.fromCoroutine(batch.send(self._caller))
        asking.addCallback(self._answered, batch).addErrback(_ended)

    def _settle(self, waiting: list[Deferred[Any]], refusal: Exception | None) -> None:
        self._unacknowledged -= len(waiting)
        for published in waiting:
            published.callback(None) if refusal is None else published.errback(refusal)
        self.watchers.notify()
