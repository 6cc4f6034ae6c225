"""The client of the lines protocol, for ``fyrehose publish``, ``fyrehose tail`` and other programs.

    client = LineClient(reactor, clientFromString(reactor, "tcp:127.0.0.1:7000"))
    client.connect()
    await client.publish("log", b"hello")

It reconnects for ever, and then publishes again what was not acknowledged, in order, and subscribes behind the last
record.  So the server may store a line twice, but never loses one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from zope.interface import implementer

from fyrehose.errors import Closed, ConfigError, LocalProtocolError
from fyrehose.interfaces import IPublisher, ITailer
from fyrehose.net.clients import ClientConnection, Watchers, reconnecting
from fyrehose.records import Run
from lines.session import LineClientSession, Received, Stored


@attrs.define(eq=False)
class Reading:
    """What a client reads: the records of a stream after number ``after``; None: those that come from now on."""

    stream: str
    after: int | None
    take: Callable[[Run], object]
    lost: Callable[[int, int], object] | None


class LineConnection(ClientConnection):
    """One connection; tells its client when it begins and ends."""

    session: LineClientSession

    def __init__(self, client: LineClient) -> None:
        super().__init__(LineClientSession(), client.handle)
        self.client = client

    def connectionMade(self) -> None:
        self.client.connected(self)

    def connectionLost(self, reason: object = None) -> None:
        self.client.connection = None


@implementer(IPublisher, ITailer)
@attrs.define(eq=False)
class LineClient:
    """A client of one server.

    :ivar window: the most lines that are not acknowledged
    """

    clock: IReactorTime
    endpoint: IStreamClientEndpoint
    window: int = 1_000
    absent: bool = attrs.field(default=False, init=False)  #: the protocol cannot say whether a stream exists
    connection: LineConnection | None = attrs.field(default=None, init=False)
    _service: Any = attrs.field(default=None, init=False)
    _reading: Reading | None = attrs.field(default=None, init=False)
    _paused: bool = attrs.field(default=False, init=False)
    #: what the server has not acknowledged, in order: streams, payloads, and what to fire
    _sent: deque[tuple[str, bytes, Deferred[int]]] = attrs.field(factory=deque, init=False)
    _watchers: Watchers = attrs.field(factory=Watchers, init=False)

    def connect(self) -> Deferred[Any]:
        self._service = reconnecting(
            self.clock, self.endpoint, lambda: LineConnection(self), lambda attempt: min(2.0**attempt, 30.0)
        )
        connected: Deferred[Any] = self._service.whenConnected()
        return connected

    def prepare(self, stream: str | None) -> None:
        if not stream or " " in stream or "\n" in stream:
            raise ConfigError(f"invalid --stream {stream!r}: a client of lines needs a name without spaces")

    # An IPublisher.

    def publish(self, stream: str | None, payload: bytes) -> Deferred[int]:
        """Publish a line; fires with its number."""
        self.prepare(stream)
        assert stream is not None, "prepare() has checked it"
        if b"\n" in payload:
            raise LocalProtocolError("a message of the lines protocol is one line; publish its lines one by one")
        stored: Deferred[int] = Deferred()
        self._sent.append((stream, payload, stored))
        if self.connection is not None:
            self.connection.session.send_line(stream, payload)
            self.connection.flush()
        return stored

    def ready(self) -> Deferred[None]:
        return self._watchers.when(lambda: len(self._sent) < self.window)

    # An ITailer.

    def subscribe(self, stream: str | None, take: Any, after: int | None = None, lost: Any = None) -> None:
        self.prepare(stream)
        assert stream is not None, "prepare() has checked it"
        self._reading = Reading(stream, after, take, lost)
        if self.connection is not None:
            raise LocalProtocolError("a connection of lines reads one stream: subscribe before connect()")

    def pause(self) -> None:
        self._paused = True
        if self.connection is not None:
            self.connection.transport.pauseProducing()

    def resume(self) -> None:
        self._paused = False
        if self.connection is not None:
            self.connection.transport.resumeProducing()

    def shortfall(self, complete: bool) -> str:
        return ""  # the records of a connection come in order, and lost() has had the gaps

    def close(self) -> Deferred[Any]:
        for _, _, stored in self._sent:
            stored.errback(Closed("the client was closed before the server acknowledged the line"))
        self._sent.clear()
        self._watchers.fail(Closed("the client was closed"))
        service, self._service = self._service, None
        return succeed(None) if service is None else service.stopService()

    # Called by the connection.

    def connected(self, connection: LineConnection) -> None:
        """Repeat on a new connection what the last one has left open."""
        self.connection = connection
        if self._reading is not None:
            connection.session.send_subscribe(self._reading.stream, self._reading.after)
        for stream, payload, _ in self._sent:
            connection.session.send_line(stream, payload)
        connection.flush()
        if self._paused:
            connection.transport.pauseProducing()

    def handle(self, event: Stored | Received) -> None:
        """Take what the server has sent."""
        if isinstance(event, Stored):
            _, _, stored = self._sent.popleft()
            stored.callback(event.seq)
            self._watchers.notify()
        elif self._reading is not None:
            self._take(self._reading, event)

    def _take(self, reading: Reading, event: Received) -> None:
        if reading.after is not None and event.seq > reading.after + 1 and reading.lost is not None:
            reading.lost(reading.after + 1, event.seq - 1)
        reading.after = event.seq
        reading.take(Run.of(reading.stream, [event.payload], source="", first_seq=event.seq))
