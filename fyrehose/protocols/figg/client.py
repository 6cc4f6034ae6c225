"""Figg client that reconnects: publish with acknowledgement, and subscribe without gaps across connections.

    client = FiggClient(reactor, clientFromString(reactor, "tcp:127.0.0.1:8119"))
    client.connect()
    await client.publish("topic", b"hello")
    client.subscribe("topic", print_run, after=0)
    await client.flush()
    await client.close()

It retries for ever.  On a new connection it sends ATTACH for each subscription (with the offset of the last message
received), then unanswered DETACHs, then all unacknowledged messages in their order (figg.md, "Reconnect").  So the
server may store a message twice, but never loses one.  The client drops messages that it has received already.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

import attrs
from twisted.application.internet import ClientService
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint, ITCPTransport
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import Closed, ConfigError, LocalProtocolError
from fyrehose.interfaces import IPublisher, ITailer
from fyrehose.net.clients import ClientConnection, reconnecting, stopped
from fyrehose.net.several import servers_of
from fyrehose.protocols.figg.frames import Ack, Attached, DataRun, Detached, Pong, PublishRun, encode_topic
from fyrehose.protocols.figg.session import FiggClientSession
from fyrehose.protocols.figg.window import PublishWindow
from fyrehose.records import MAX_PAYLOAD, Buffer, Run

log = Logger()

#: Interval between PINGs, in seconds; after two unanswered PINGs the client aborts the connection.
PING_INTERVAL = 2.0
#: A connection that ends within this time, in seconds, counts as a failed attempt, so that the client backs off from a
#: server that accepts connections and closes them at once.
SHORT_CONNECTION = 2.0


def backoff(attempt: int, randomness: Callable[[], float] = random.random) -> float:
    """Return the delay before the next attempt, in seconds, after *attempt* failures: 0, 1, 2, 4 ... 30, each ±20 %."""
    return min(2.0 ** min(attempt - 1, 10), 30.0) * (0.8 + 0.4 * randomness()) if attempt else 0.0


@attrs.define(eq=False)
class Subscription:
    """A topic that the client subscribes to.

    :ivar offset: offset of the last message passed to ``take``; before the first one, the offset that was requested
        (None: only new messages), until ATTACHED arrives
    :ivar take: called with each run of messages, in order and without repetition
    :ivar on_attached: called with the offset at which the server starts, and with the requested one
    """

    topic: str
    offset: int | None
    take: Callable[[Run], object]
    on_attached: Callable[[int, int | None], object]
    attached: bool = attrs.field(default=False, init=False)


@implementer(IPublisher, ITailer)
@attrs.define(eq=False)
class FiggClient:
    """A client of one server, which publishes and subscribes to any number of topics.

    :ivar clock: the reactor, or a Clock
    :ivar window: limit of messages that are sent and not acknowledged
    :ivar window_bytes: limit of unacknowledged bytes, sent or waiting; beyond it :meth:`publish` raises
    :ivar on_state: called with True when a connection is made, with False when it is lost
    :ivar retry: maps the number of failures in a row to the delay before the next attempt, in seconds
    """

    clock: IReactorTime
    endpoint: IStreamClientEndpoint
    window: int = attrs.field(default=256, kw_only=True)
    window_bytes: int = attrs.field(default=64 << 20, kw_only=True)
    on_state: Callable[[bool], object] = attrs.field(default=lambda connected: None, kw_only=True)
    retry: Callable[[int], float] = attrs.field(default=backoff, kw_only=True)
    _window: PublishWindow = attrs.field(init=False)
    _subscriptions: dict[str, Subscription] = attrs.field(factory=dict, init=False)
    _detaching: set[str] = attrs.field(factory=set, init=False)
    _attaching: Counter[str] = attrs.field(factory=Counter, init=False)  #: unanswered ATTACHs, by topic
    _service: ClientService | None = attrs.field(default=None, init=False)
    _connection: _Connection | None = attrs.field(default=None, init=False)
    _connected_at: float = attrs.field(default=0.0, init=False)
    _short_connections: int = attrs.field(default=0, init=False)  #: number of short connections in a row
    _paused: bool = attrs.field(default=False, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._window = PublishWindow(self.window, self.window_bytes)

    @property
    def absent(self) -> bool:
        """Whether a subscribed topic may not exist yet: the server started at offset 0, and has sent no message."""
        return any(each.attached and each.offset == 0 for each in self._subscriptions.values())

    # The public API.

    def connect(self) -> Deferred[None]:
        """Connect, and reconnect until :meth:`close`.

        :return: a Deferred that fires when the first connection is made, however long that takes
        :raises LocalProtocolError: ``connect`` was called before, or the client is closed
        """
        if self._service is not None or self._closed:
            raise LocalProtocolError("connect() was called before; create another client")
        self._service = reconnecting(self.clock, self.endpoint, lambda: _Connection(self), self._delay)
        connected: Deferred[Any] = self._service.whenConnected()
        return connected.addCallbacks(lambda _: None, lambda _: Failure(Closed("the client was closed")))

    def prepare(self, stream: str | None) -> None:
        """Check the name of a topic.

        :raises ConfigError: *stream* is None
        :raises LocalProtocolError: *stream* is not 1 to 255 bytes of UTF-8
        """
        if stream is None:
            raise ConfigError("missing --stream NAME: Figg clients need a topic")
        encode_topic(stream)

    def publish(self, stream: str | None, payload: Buffer) -> Deferred[None]:
        """Publish one message to a topic; messages published in one turn of the reactor are written together.

        :return: a Deferred that fires when the server has acknowledged the message
        :raises LocalProtocolError: the client is closed, the topic or the message is invalid, or more than
            ``window_bytes`` are unacknowledged (see :meth:`ready`)
        """
        return self.publish_many(stream, [payload])

    def publish_many(self, stream: str | None, messages: Iterable[Buffer]) -> Deferred[None]:
        """Publish several messages, in order.

        :return: a Deferred that fires when the server has acknowledged all messages
        :raises LocalProtocolError: as for :meth:`publish`
        """
        if self._closed:
            raise LocalProtocolError("the client is closed")
        # An invalid message must not enter the window, because every new connection would resend it.
        self.prepare(stream)
        run = Run.of(cast("str", stream), messages, source="figg")
        if len(run.payload) > MAX_PAYLOAD and max(run.sizes) > MAX_PAYLOAD:
            raise LocalProtocolError(f"message of {max(run.sizes)} bytes exceeds the limit of {MAX_PAYLOAD} bytes")
        done = self._window.add(run)
        self._send_waiting()
        return done

    def ready(self) -> Deferred[None]:
        """Return a Deferred that fires when the window has room for another message."""
        return self._window.when_room()

    def flush(self) -> Deferred[None]:
        """Return a Deferred that fires when every published message is acknowledged."""
        return self._window.when_empty()

    def subscribe(
        self,
        stream: str | None,
        take: Callable[[Run], object],
        after: int | None = None,
        lost: Callable[[int, int], object] | None = None,
        on_attached: Callable[[int, int | None], object] | None = None,
    ) -> Subscription:
        """Subscribe to the messages of the topic *stream* after offset *after*: 0: its start; None: only new messages.

        Subscribing again to a topic moves the subscription.  Exceptions that callbacks raise are logged.

        :param take: called with each run of messages; ``first_seq`` of the run is the offset of its first message
        :param lost: called with the first and last offset of requested messages that have expired
        :param on_attached: called with the offset at which the server starts and the requested one
        :raises ConfigError: *stream* is None
        :raises LocalProtocolError: *stream* is not 1 to 255 bytes of UTF-8
        """
        self.prepare(stream)
        topic = cast("str", stream)

        def attached(started: int, requested: int | None) -> None:
            if on_attached is not None:
                on_attached(started, requested)
            if lost is not None and requested is not None and started > requested:
                lost(requested + 1, started)

        subscription = self._subscriptions[topic] = Subscription(topic, after, take, attached)
        self._detaching.discard(topic)
        if self._connection is not None:
            self._attach(self._connection, subscription)
            self._connection.flush()
        return subscription

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to *topic*; do nothing if there is none."""
        if self._subscriptions.pop(topic, None) is None:
            return
        self._detaching.add(topic)
        if self._connection is not None:
            self._connection.session.send_detach(topic)
            self._connection.flush()

    def pause(self) -> None:
        """Stop reading from the server until :meth:`resume`; this delays acknowledgements as well.

        Messages that have been read already are still delivered: those of one read, and the frame that it completes.
        """
        self._paused = True
        if self._connection is not None:
            self._connection.transport.pauseProducing()

    def resume(self) -> None:
        """Read from the server again."""
        self._paused = False
        if self._connection is not None:
            self._connection.resume()

    def shortfall(self, complete: bool) -> str:
        """Describe the subscriptions that the server has not confirmed; return "" if it has confirmed all.

        One connection delivers the messages in order, so no message of a confirmed subscription can be missing.
        """
        waiting = [topic for topic, subscription in self._subscriptions.items() if not subscription.attached]
        if complete or not waiting:
            return ""
        return f"the server has not confirmed the subscription to {waiting[0]!r}; is the port that of a figg listener?"

    def close(self) -> Deferred[None]:
        """Disconnect now; unacknowledged publishes fail with :class:`~fyrehose.errors.Closed`.

        :return: a Deferred that fires when the connection is closed
        """
        self._closed = True
        self._window.fail(Closed("the client was closed before the server acknowledged the message"))
        self._subscriptions.clear()
        self._paused = False  # so that unanswered PINGs abort a connection that does not close
        service, self._service = self._service, None
        return stopped(service)

    # Called by the connection.

    def _delay(self, attempt: int) -> float:
        # ClientService counts a lost connection as the first failed attempt.
        return self.retry((attempt - 1 + self._short_connections) // servers_of(self.endpoint))

    def _connection_made(self, connection: _Connection) -> None:
        self._connection = connection
        self._connected_at = self.clock.seconds()
        session = connection.session
        self._attaching.clear()
        for subscription in self._subscriptions.values():
            self._attach(connection, subscription)
        for topic in self._detaching:
            session.send_detach(topic)
        for first, run in self._window.to_resend():
            session.send_publish(_publish_run(first, run))
        self._send_waiting()
        connection.flush()
        if self._paused:
            connection.transport.pauseProducing()
        self.on_state(True)

    def _attach(self, connection: _Connection, subscription: Subscription) -> None:
        subscription.attached = False
        self._attaching[subscription.topic] += 1
        connection.session.send_attach(subscription.topic, subscription.offset)

    def _connection_lost(self, connection: _Connection) -> None:
        if self._connection is connection:
            self._connection = None
            short = self.clock.seconds() - self._connected_at < SHORT_CONNECTION
            self._short_connections = self._short_connections + 1 if short else 0
            self.on_state(False)

    def _handle(self, event: Any) -> None:
        match event:
            case DataRun():
                self._received(event)
            case Attached():
                self._attached(event)
            case Detached():
                self._detaching.discard(event.topic)
            case Ack():
                self._window.acknowledged(event.number)
                self._send_waiting()
            case Pong():
                pass  # the connection counts any data as an answer
            case _:
                raise TypeError(f"unexpected event {type(event).__name__}")

    def _received(self, run: DataRun) -> None:
        """Pass on the messages of *run* that were not passed on before."""
        subscription = self._subscriptions.get(run.topic)
        if subscription is None or not subscription.attached:
            return
        seen = subscription.offset or 0
        if run.last <= seen:
            return
        # DATA does not say by which protocol a message was published, so the source stays unknown.
        new = Run(stream=run.topic, source="", lengths=run.lengths, payload=run.payload, first_seq=run.first)
        subscription.offset = run.last
        _call(subscription.take, new.slice(max(seen - run.first + 1, 0), len(new)))

    def _attached(self, event: Attached) -> None:
        """Begin the subscription whose ATTACH the server answers, unless a later ATTACH of the topic is unanswered."""
        waiting = self._attaching.pop(event.topic, 0)
        if waiting > 1:  # the DATA that follows belongs to an older subscription
            self._attaching[event.topic] = waiting - 1
        subscription = self._subscriptions.get(event.topic)
        if waiting == 1 and subscription is not None:
            requested = subscription.offset
            subscription.attached = True
            # The server starts later than requested if the requested messages have expired.
            subscription.offset = event.offset
            _call(subscription.on_attached, event.offset, requested)

    def _send_waiting(self) -> None:
        if self._connection is None:
            return
        for first, run in self._window.to_send():
            self._connection.session.send_publish(_publish_run(first, run))
        self._connection.flush_soon()


def _call(callback: Callable[..., object], *arguments: object) -> None:
    try:
        callback(*arguments)
    except Exception:
        log.failure("a subscription's callback raised an exception")


def _publish_run(first: int, run: Run) -> PublishRun:
    return PublishRun(topic=run.stream, first=first, lengths=run.lengths, payload=run.payload)


class _Connection(ClientConnection):
    """One connection of a client."""

    session: FiggClientSession

    def __init__(self, client: FiggClient) -> None:
        super().__init__(FiggClientSession(), client._handle)
        self.client = client
        self._pings = LoopingCall(self._ping)
        self._pings.clock = client.clock
        self._unanswered = 0
        self._flush_due: Any = None

    def connectionMade(self) -> None:
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)  # Nagle's algorithm would delay small writes
        self.client._connection_made(self)
        self._pings.start(PING_INTERVAL, now=False).addErrback(lambda f: log.failure("sending a PING failed", f))

    def dataReceived(self, data: bytes) -> None:
        self._unanswered = 0  # a PONG may be queued behind much DATA, so any data shows that the server is alive
        super().dataReceived(data)

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        if self._pings.running:
            self._pings.stop()
        if self._flush_due is not None:
            self._flush_due.cancel()
            self._flush_due = None
        self.client._connection_lost(self)

    def flush_soon(self) -> None:
        """Schedule one write at the end of this turn of the reactor."""
        if self._flush_due is None:
            self._flush_due = self.client.clock.callLater(0, self._flush_now)

    def resume(self) -> None:
        self._unanswered = 0
        self.transport.resumeProducing()

    def _flush_now(self) -> None:
        self._flush_due = None
        self.flush()

    def _ping(self) -> None:
        if self._unanswered >= 2 and not self.client._paused:
            log.info("reconnecting: the server answered none of the last two PINGs")
            self.transport.abortConnection()
            return
        self._unanswered += 1
        self.session.send_ping(int(self.client.clock.seconds() * 1_000_000))
        self.flush()
