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
from twisted.internet.defer import Deferred
from zope.interface import implementer

from fyrehose.errors import ConfigError, LocalProtocolError
from fyrehose.interfaces import IPublisher, ITailer
from fyrehose.net.clients import ClientConnection, TCPClient
from fyrehose.records import Run
from lines.session import LineClientSession, Received, Stored


@attrs.define(eq=False)
class Reading:
    """What a client reads: the records of a stream after number ``after``; None: those that come from now on."""

    stream: str
    after: int | None
    take: Callable[[Run], object]
    lost: Callable[[int, int], object] | None


@implementer(IPublisher, ITailer)
@attrs.define(eq=False)
class LineClient(TCPClient):
    """A client of one server.

    :ivar window: the most lines that are not acknowledged
    """

    window: int = 1_000
    absent: bool = attrs.field(default=False, init=False)  #: the protocol cannot say whether a stream exists
    _reading: Reading | None = attrs.field(default=None, init=False)
    #: what the server has not acknowledged, in order: streams, payloads, and what to fire
    _sent: deque[tuple[str, bytes, Deferred[int]]] = attrs.field(factory=deque, init=False)

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
        return self.watchers.when(lambda: len(self._sent) < self.window)

    # An ITailer.

    def subscribe(
        self, stream: str | None, take: Any, after: int | None = None, lost: Any = None, restarted: Any = None
    ) -> None:
        """See ITailer; a server of the lines protocol does not say where a stream ends: no *restarted* is called."""
        self.prepare(stream)
        assert stream is not None, "prepare() has checked it"
        self._reading = Reading(stream, after, take, lost)
        if self.connection is not None:
            raise LocalProtocolError("a connection of lines reads one stream: subscribe before connect()")

    def shortfall(self, complete: bool) -> str:
        return ""  # the records of a connection come in order, and lost() has had the gaps

    # Called by the shell.

    def new_connection(self) -> ClientConnection:
        return ClientConnection(LineClientSession(), self.handle)

    def connection_made(self, connection: ClientConnection) -> None:
        """Repeat on a new connection what the last one has left open."""
        if self._reading is not None:
            connection.session.send_subscribe(self._reading.stream, self._reading.after)
        for stream, payload, _ in self._sent:
            connection.session.send_line(stream, payload)
        connection.flush()
        self.established()

    def abandon(self, error: Exception) -> None:
        waiting = [stored for _, _, stored in self._sent]
        self._sent.clear()
        for stored in waiting:
            stored.errback(error)

    def handle(self, event: Stored | Received) -> None:
        """Take what the server has sent."""
        if isinstance(event, Stored):
            _, _, stored = self._sent.popleft()
            stored.callback(event.seq)
            self.watchers.notify()
        elif self._reading is not None:
            self._take(self._reading, event)

    def _take(self, reading: Reading, event: Received) -> None:
        if reading.after is not None and event.seq > reading.after + 1 and reading.lost is not None:
            reading.lost(reading.after + 1, event.seq - 1)
        reading.after = event.seq
        reading.take(Run.of(reading.stream, [event.payload], source="", first_seq=event.seq))
