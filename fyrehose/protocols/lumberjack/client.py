"""Lumberjack client that reconnects: publish batches of JSON documents with acknowledgement, to one or more servers.

    client = LumberjackClient(reactor, [clientFromString(reactor, "tcp:127.0.0.1:5044")])
    await client.connect()
    await client.publish_many([b'{"message":"one"}', b'{"message":"two"}'])
    await client.close()

With several endpoints the client keeps a connection to each, and sends every window on the connection with the fewest
unacknowledged windows.  If a connection is lost, its unacknowledged events are resent first, on any connection.  So an
event may be stored twice, but is never lost.  With one endpoint events keep their order.  For TLS, pass TLS endpoints.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs
from twisted.internet.defer import Deferred, DeferredList, succeed
from twisted.internet.interfaces import IDelayedCall, IStreamClientEndpoint
from zope.interface import implementer

from fyrehose.errors import ConfigError, LocalProtocolError
from fyrehose.interfaces import IPublisher
from fyrehose.net.clients import Client, ClientConnection, ConnectionFailed, ConnectionOptions, Reconnector
from fyrehose.protocols.lumberjack.frames import MAX_EVENT
from fyrehose.protocols.lumberjack.session import Acknowledged, KeptAlive, LumberjackWriterSession
from fyrehose.records import Buffer, Column, Run, column_of

#: A connection that owes an acknowledgement, and is silent for 30 s, is lost.
LUMBERJACK_OPTIONS = ConnectionOptions(silence=30.0)


@attrs.define(eq=False)
class _Batch:
    """The documents of one call of publish_many(); ``left`` of them are not acknowledged."""

    done: Deferred[None]
    left: int


@attrs.define(eq=False)
class _Part:
    """Consecutive documents of one batch."""

    batch: _Batch
    run: Run

    def cut(self, count: int) -> _Part:
        """Remove the first *count* documents, and return them."""
        head, self.run = self.run.slice(0, count), self.run.slice(count, len(self.run))
        return _Part(self.batch, head)


@implementer(IPublisher)
@attrs.define(eq=False)
class LumberjackClient(Client):
    """A client that publishes events to one or several servers.

    A final error ends it only while no server is connected.  ``connection_options.silence`` counts while a connection
    owes an acknowledgement.

    :ivar endpoints: the servers
    :ivar version: protocol version, 1 or 2
    :ivar compression: zlib level, 0 (none) to 9
    :ivar window: how many events a window may have
    :ivar window_bytes: limit of a window in bytes; a window always holds at least one event
    :ivar pipelining: how many windows may be unacknowledged per server
    :ivar max_pending_bytes: limit of unacknowledged bytes; beyond this limit :meth:`publish_many` raises
    :ivar on_server: called with an endpoint and True when it is connected, and with False when the connection is lost
    """

    endpoints: Sequence[IStreamClientEndpoint]
    version: int = attrs.field(default=2, kw_only=True)
    compression: int = attrs.field(default=3, kw_only=True)
    window: int = attrs.field(default=2_048, kw_only=True)
    window_bytes: int = attrs.field(default=4 << 20, kw_only=True)
    pipelining: int = attrs.field(default=2, kw_only=True)
    max_pending_bytes: int = attrs.field(default=64 << 20, kw_only=True)
    connection_options: ConnectionOptions = attrs.field(default=LUMBERJACK_OPTIONS, kw_only=True)
    on_server: Callable[[IStreamClientEndpoint, bool], object] = attrs.field(
        default=lambda endpoint, connected: None, kw_only=True
    )
    _reconnectors: list[Reconnector] = attrs.field(factory=list, init=False)
    _connections: list[_Connection] = attrs.field(factory=list, init=False)
    _waiting: deque[_Part] = attrs.field(factory=deque, init=False)
    _batches: dict[_Batch, None] = attrs.field(factory=dict, init=False)
    _events: int = attrs.field(default=0, init=False)
    _held: int = attrs.field(default=0, init=False)
    _send_due: IDelayedCall | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        LumberjackWriterSession(self.version, self.compression)  # checks version and compression
        if not self.endpoints or min(self.window, self.window_bytes, self.pipelining) < 1:
            raise LocalProtocolError(
                "a client needs an endpoint, and window, window_bytes and pipelining of at least 1"
            )

    # The public API.

    def prepare(self, stream: str | None) -> None:
        """Check that *stream* is None, because the server chooses the stream.

        :raises ConfigError: a stream is named
        """
        if stream is not None:
            raise ConfigError("unexpected --stream: a lumberjack server chooses the stream itself; leave --stream out")

    def publish(self, stream: str | None, payload: bytes) -> Deferred[None]:
        """Publish *payload* as a JSON document: see :func:`to_document`.

        :return: a Deferred that fires when the document is acknowledged

        :raises ConfigError: a stream is named
        :raises LocalProtocolError: see :meth:`publish_many`, or *payload* is not UTF-8
        """
        self.prepare(stream)
        return self.publish_many([to_document(payload)])

    def publish_many(self, documents: Iterable[Buffer]) -> Deferred[None]:
        """Publish JSON documents, in order; documents published in one turn of the reactor share windows.

        :return: see :meth:`publish_columns`
        """
        return self.publish_columns([column_of(documents)])

    def publish_columns(self, columns: Sequence[Column]) -> Deferred[None]:
        """Publish the JSON documents of *columns*, in order.

        :return: a Deferred that fires when all documents are acknowledged
        :raises LocalProtocolError: the client is closed, a document is too large, or more than ``max_pending_bytes``
            are unacknowledged (see :meth:`ready`)
        """
        lengths, payload = b"".join(each.lengths for each in columns), b"".join(each.payload for each in columns)
        run = Run(stream="", source="lumberjack", lengths=lengths, payload=payload)
        if self.closed:
            raise LocalProtocolError("the client is closed")
        if self._held > self.max_pending_bytes:
            raise LocalProtocolError(
                f"{self._held} unacknowledged bytes, limit {self.max_pending_bytes}: wait for ready()"
            )
        if not len(run):
            return succeed(None)
        if max(run.sizes) > MAX_EVENT:
            raise LocalProtocolError(f"document of {max(run.sizes)} bytes exceeds the limit of {MAX_EVENT} bytes")
        batch = _Batch(Deferred(), len(run))
        self._batches[batch] = None
        self._waiting.append(_Part(batch, run))
        self._events += len(run)
        self._held += run.size
        self._send_soon()
        return batch.done

    def ready(self) -> Deferred[None]:
        """Return a Deferred that fires when another event fits into the windows and ``max_pending_bytes``."""
        events = self.window * self.pipelining * len(self.endpoints)
        return self.watchers.when(lambda: self._events < events and self._held < self.max_pending_bytes)

    def flush(self) -> Deferred[None]:
        """Return a Deferred that fires when every published event is acknowledged."""
        return self.watchers.when(lambda: not self._events)

    # Called by the shell.

    def start(self) -> None:
        for endpoint in self.endpoints:
            reconnector = Reconnector(
                self.clock,
                endpoint,
                self.connection_options,
                partial(_Connection, self, endpoint),
                self._retries,
                self._connection_made,
                self._connection_lost,
            )
            self._reconnectors.append(reconnector)
            reconnector.start()

    def stop(self) -> Deferred[None]:
        stopping = [reconnector.stop() for reconnector in self._reconnectors]
        return DeferredList(stopping).addCallback(lambda _: None)

    def abandon(self, error: Exception) -> None:
        if self._send_due is not None:
            self._send_due.cancel()
            self._send_due = None
        dead = [batch.done for batch in self._batches]
        self._batches.clear()
        self._waiting.clear()
        self._events = self._held = 0
        for deferred in dead:
            deferred.errback(error)

    # Called by the connections.

    def _retries(self, error: ConnectionFailed) -> bool:
        return bool(self._connections) or self.retries(error)

    def _connection_made(self, connection: _Connection) -> None:
        self._connections.append(connection)
        self.established()
        self.on_server(connection.endpoint, True)
        self._send_soon()

    def _connection_lost(self, connection: _Connection) -> None:
        self._connections.remove(connection)
        if self.closed:
            return
        self._waiting.extendleft(reversed(connection.sent))
        self.on_server(connection.endpoint, False)
        if not self._connections:
            self.on_state(False)
        self._send_soon()

    def _acknowledged(self, connection: _Connection, count: int) -> None:
        if self.closed:  # a callback of an earlier acknowledgement closed the client; all publishes have failed
            return
        done = []
        while count and connection.sent:
            part = connection.sent[0]
            settled = part.cut(min(count, len(part.run))).run
            if not len(part.run):
                connection.sent.popleft()
            count -= len(settled)
            self._events -= len(settled)
            self._held -= settled.size
            part.batch.left -= len(settled)
            if not part.batch.left:
                self._batches.pop(part.batch, None)
                done.append(part.batch.done)
        for deferred in done:
            deferred.callback(None)
        self.watchers.notify()
        self._send_soon()

    # Helpers.

    def _send_soon(self) -> None:
        if self._send_due is None and not self.closed:
            self._send_due = self.clock.callLater(0, self._send)

    def _send(self) -> None:
        """Send windows on the connections with the fewest unacknowledged windows, up to ``pipelining`` each."""
        self._send_due = None
        while self._waiting:
            free = [connection for connection in self._connections if connection.windows < self.pipelining]
            if not free:
                return
            min(free, key=lambda connection: connection.windows).send(self._next_window())

    def _next_window(self) -> list[_Part]:
        parts: list[_Part] = []
        count, size = self.window, self.window_bytes
        while self._waiting and count > 0:
            part = self._waiting[0]
            fits = min(part.run.fitting(size), count)
            if parts and (size <= 0 or part.run.sizes[0] > size):
                break
            parts.append(part.cut(fits))
            if not len(part.run):
                self._waiting.popleft()
            count -= fits
            size -= len(parts[-1].run.payload)
        return parts


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


class _Connection(ClientConnection):
    """One connection to one server."""

    session: LumberjackWriterSession

    def __init__(self, client: LumberjackClient, endpoint: IStreamClientEndpoint) -> None:
        super().__init__(LumberjackWriterSession(client.version, client.compression), self._handle)
        self.client = client
        self.endpoint = endpoint
        self.sent: deque[_Part] = deque()

    @property
    def windows(self) -> int:
        return self.session.windows

    def send(self, parts: list[_Part]) -> None:
        """Send *parts* as one window, whose acknowledgement the server owes from now on."""
        if not self.windows:
            self.keep_alive()
        lengths = b"".join(part.run.lengths for part in parts)
        payload = b"".join(part.run.payload for part in parts)
        self.session.send_window(lengths, payload)
        self.sent.extend(parts)
        self.flush()

    @property
    def expecting(self) -> bool:
        return self.windows > 0

    def _handle(self, event: Acknowledged | KeptAlive) -> None:
        if isinstance(event, Acknowledged):
            self.client._acknowledged(self, event.count)
        if not self.windows:
            self.stop_pings()
