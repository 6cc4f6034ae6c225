"""Figg's client for programs: publish and know, subscribe and go on, over connections that come and go.

    client = FiggClient(reactor, clientFromString(reactor, "tcp:127.0.0.1:8119"))
    client.connect()
    await client.publish("topic", b"hello")
    client.subscribe("topic", on_data=print_them, offset=0)
    await client.flush()
    await client.close()

It reconnects for ever.  On a new connection it sends its ATTACHs (each with the last offset that it has seen), then its
DETACHs, then every message that is not acknowledged, in order (figg.md, "Reconnect").  So a message may be stored
twice, and is never lost; what comes twice to a subscriber is dropped here.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import singledispatchmethod
from typing import Any

import attrs
from twisted.application.internet import ClientService
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint, ITCPTransport
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import Broken, Closed, LocalProtocolError
from fyrehose.protocols.figg.frames import Ack, Attached, DataRun, Detached, Pong, PublishRun, encode_topic
from fyrehose.protocols.figg.session import FiggClientSession
from fyrehose.protocols.figg.window import Window
from fyrehose.records import MAX_PAYLOAD, Buffer, Run

log = Logger()

#: How often a PING goes out, in seconds; with two unanswered the connection is given up.
PING_INTERVAL = 2.0
#: A connection that ends sooner than this, in seconds, has failed: who turns us away is not asked at once again.
SHORT = 2.0


def backoff(attempt: int, randomness: Callable[[], float] = random.random) -> float:
    """How long to wait before the next try, in seconds, after ``attempt`` tries have failed: 0, 1, 2, 4 ... 30, each
    20 % more or less."""
    return min(2.0 ** min(attempt - 1, 10), 30.0) * (0.8 + 0.4 * randomness()) if attempt else 0.0


@attrs.define(eq=False)
class Subscription:
    """A topic that the client reads.

    :ivar offset: of the last message that was handed out, or where it begins; None until the server has said
    :ivar on_data: is called with each run of messages, in order, none twice
    :ivar on_attached: is called with where the subscription has begun, and with where it was asked to begin
    """

    topic: str
    offset: int | None
    on_data: Callable[[DataRun], object]
    on_attached: Callable[[int, int | None], object]
    attached: bool = attrs.field(default=False, init=False)


@attrs.define(eq=False)
class FiggClient:
    """A client of one server.

    :ivar clock: the reactor, or a Clock
    :ivar window: how many messages may be under way
    :ivar window_bytes: how many bytes may wait to be acknowledged before :meth:`publish` refuses
    :ivar on_state: is called with True when a connection is made, with False when it is lost
    :ivar retry: how long to wait before the next try, by how many have failed in a row
    """

    clock: IReactorTime
    endpoint: IStreamClientEndpoint
    window: int = attrs.field(default=256, kw_only=True)
    window_bytes: int = attrs.field(default=64 << 20, kw_only=True)
    on_state: Callable[[bool], object] = attrs.field(default=lambda connected: None, kw_only=True)
    retry: Callable[[int], float] = attrs.field(default=backoff, kw_only=True)
    _window: Window = attrs.field(init=False)
    _subscriptions: dict[str, Subscription] = attrs.field(factory=dict, init=False)
    _detaching: set[str] = attrs.field(factory=set, init=False)
    _attaching: Counter[str] = attrs.field(factory=Counter, init=False)  #: ATTACHs that are not answered
    _service: ClientService | None = attrs.field(default=None, init=False)
    _connection: _Connection | None = attrs.field(default=None, init=False)
    _since: float = attrs.field(default=0.0, init=False)
    _short: int = attrs.field(default=0, init=False)  #: how many connections in a row were
    _paused: bool = attrs.field(default=False, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._window = Window(self.window, self.window_bytes)

    # For programs.

    def connect(self) -> Deferred[None]:
        """Connect, and stay connected until :meth:`close`; fires when it is the first time, however long that takes."""
        if self._service is not None or self._closed:
            raise LocalProtocolError("a client connects once")
        self._service = ClientService(self.endpoint, _Factory(self), retryPolicy=self._delay, clock=self.clock)
        self._service.startService()
        connected: Deferred[Any] = self._service.whenConnected()
        return connected.addCallbacks(lambda _: None, lambda _: Failure(Closed("the client was closed")))

    def publish(self, topic: str, data: Buffer) -> Deferred[None]:
        """Publish one message; fires when the server has stored it.  Published in one turn, messages go out together.

        :raises LocalProtocolError: the client is closed, the topic or the message cannot be sent, or more waits than
            ``window_bytes``: see :meth:`ready`
        """
        return self.publish_many(topic, [data])

    def publish_many(self, topic: str, messages: Iterable[Buffer]) -> Deferred[None]:
        """Publish messages that are sent together; fires when the server has stored all of them.

        :raises LocalProtocolError: as for :meth:`publish`
        """
        if self._closed:
            raise LocalProtocolError("the client is closed")
        # What cannot be sent must not get into the window: it would be sent again for ever.
        encode_topic(topic)
        run = Run.of(topic, messages, source="figg")
        if len(run.payload) > MAX_PAYLOAD and max(run.sizes) > MAX_PAYLOAD:
            raise LocalProtocolError(f"a message is {MAX_PAYLOAD} bytes at the most, not {max(run.sizes)}")
        done = self._window.add(run)
        self._send_waiting()
        return done

    def ready(self) -> Deferred[None]:
        """Fires when the window has room, so that what is published next is sent at once."""
        return self._window.when_room()

    def flush(self) -> Deferred[None]:
        """Fires when everything that was published is acknowledged."""
        return self._window.when_empty()

    def subscribe(
        self,
        topic: str,
        on_data: Callable[[DataRun], object],
        offset: int | None = None,
        on_attached: Callable[[int, int | None], object] = lambda began, asked: None,
    ) -> Subscription:
        """Read ``topic`` behind ``offset``: 0 is its start, None what comes from now on.

        A topic that is read already is read from there.  What a callback raises is logged, and ends nothing.

        :raises LocalProtocolError: the topic is not 1 to 255 bytes of UTF-8
        """
        encode_topic(topic)
        subscription = self._subscriptions[topic] = Subscription(topic, offset, on_data, on_attached)
        self._detaching.discard(topic)
        if self._connection is not None:
            self._attach(self._connection, subscription)
            self._connection.flush()
        return subscription

    def unsubscribe(self, topic: str) -> None:
        """Read ``topic`` no more."""
        if self._subscriptions.pop(topic, None) is None:
            return
        self._detaching.add(topic)
        if self._connection is not None:
            self._connection.session.send_detach(topic)
            self._connection.flush()

    def pause(self) -> None:
        """Read nothing more from the server until :meth:`resume`; acknowledgements wait, too.

        What had come in is handed out still: one read, and the frame that it completed.
        """
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if self._connection is not None:
            self._connection.resume()

    def close(self) -> Deferred[None]:
        """Let go of the server; what is not acknowledged fails with :class:`~fyrehose.errors.Closed`."""
        self._closed = True
        self._window.fail(Closed("the client was closed before the server had acknowledged it"))
        self._subscriptions.clear()
        self._paused = False  # pings find out whether a server lets go
        service, self._service = self._service, None
        if service is None:
            return succeed(None)
        stopped: Deferred[Any] = service.stopService()
        return stopped.addCallback(lambda _: None)

    # What a connection calls.

    def _delay(self, attempt: int) -> float:
        # ClientService counts the connection that was lost as the first attempt that has failed.
        return self.retry(attempt - 1 + self._short)

    def _made(self, connection: _Connection) -> None:
        self._connection = connection
        self._since = self.clock.seconds()
        session = connection.session
        self._attaching.clear()
        for subscription in self._subscriptions.values():
            self._attach(connection, subscription)
        for topic in self._detaching:
            session.send_detach(topic)
        for first, run in self._window.to_send_again():
            session.send_publish(_published(first, run))
        self._send_waiting()
        connection.flush()
        if self._paused:
            connection.pause()
        self.on_state(True)

    def _attach(self, connection: _Connection, subscription: Subscription) -> None:
        subscription.attached = False
        self._attaching[subscription.topic] += 1
        connection.session.send_attach(subscription.topic, subscription.offset)

    def _lost(self, connection: _Connection) -> None:
        if self._connection is connection:
            self._connection = None
            self._short = self._short + 1 if self.clock.seconds() - self._since < SHORT else 0
            self.on_state(False)

    @singledispatchmethod
    def _handle(self, event: Any) -> None:
        raise TypeError(f"{type(event).__name__} is no event of this session")

    @_handle.register
    def _(self, event: DataRun) -> None:
        subscription = self._subscriptions.get(event.topic)
        if subscription is None or not subscription.attached:
            return
        seen = subscription.offset or 0
        if event.last <= seen:
            return
        if event.first <= seen:
            skip = seen - event.first + 1
            rest = Run(stream=event.topic, source="figg", lengths=event.lengths, payload=event.payload).slice(
                skip, len(event.lengths) // 4
            )
            event = DataRun(topic=event.topic, first=seen + 1, lengths=rest.lengths, payload=rest.payload)
        subscription.offset = event.last
        _call(subscription.on_data, event)

    @_handle.register
    def _(self, event: Attached) -> None:
        waiting = self._attaching.pop(event.topic, 0)
        if waiting != 1:
            # An answer to an older ATTACH says nothing about this subscription; what follows it is not for it.
            if waiting:
                self._attaching[event.topic] = waiting - 1
            return
        subscription = self._subscriptions.get(event.topic)
        if subscription is not None:
            asked = subscription.offset
            subscription.attached = True
            # The server says where it really begins: later, if what was asked for is not kept any more.
            subscription.offset = event.offset
            _call(subscription.on_attached, event.offset, asked)

    @_handle.register
    def _(self, event: Detached) -> None:
        self._detaching.discard(event.topic)

    @_handle.register
    def _(self, event: Ack) -> None:
        self._window.acknowledged(event.number)
        self._send_waiting()

    def _send_waiting(self) -> None:
        if self._connection is None:
            return
        for first, run in self._window.to_send():
            self._connection.session.send_publish(_published(first, run))
        self._connection.flush_soon()


def _call(callback: Callable[..., object], *arguments: object) -> None:
    try:
        callback(*arguments)
    except Exception:
        log.failure("a callback of a subscription failed")


def _published(first: int, run: Run) -> PublishRun:
    return PublishRun(topic=run.stream, first=first, lengths=run.lengths, payload=run.payload)


class _Connection(Protocol):
    """One connection of a client."""

    transport: Any

    def __init__(self, client: FiggClient) -> None:
        self.client = client
        self.session = FiggClientSession()
        self._pings = LoopingCall(self._ping)
        self._pings.clock = client.clock
        self._unanswered = 0
        self._flush_due: Any = None

    def connectionMade(self) -> None:
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)  # else each write waits until the one before it is confirmed
        self.client._made(self)
        self._pings.start(PING_INTERVAL, now=False).addErrback(lambda f: log.failure("pinging failed", f))

    def dataReceived(self, data: bytes) -> None:
        self._unanswered = 0  # a PONG may stand behind a lot of DATA; whatever comes is a sign of life
        for event in self.session.receive_data(data):
            if isinstance(event, Broken):
                log.warn("the server breaks the protocol: {error}", error=event.error)
                self.transport.abortConnection()
            elif not isinstance(event, Pong):
                self.client._handle(event)

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        if self._pings.running:
            self._pings.stop()
        if self._flush_due is not None:
            self._flush_due.cancel()
            self._flush_due = None
        self.client._lost(self)

    def flush(self) -> None:
        """Write what the session has to send."""
        self.transport.writeSequence(self.session.data_to_send())

    def flush_soon(self) -> None:
        """Write it when this turn of the reactor is over, in one piece."""
        if self._flush_due is None:
            self._flush_due = self.client.clock.callLater(0, self._flush_now)

    def pause(self) -> None:
        self.transport.pauseProducing()

    def resume(self) -> None:
        self._unanswered = 0
        self.transport.resumeProducing()

    def _flush_now(self) -> None:
        self._flush_due = None
        self.flush()

    def _ping(self) -> None:
        if self._unanswered >= 2 and not self.client._paused:
            log.info("the server has not answered two pings: connecting again")
            self.transport.abortConnection()
            return
        self._unanswered += 1
        self.session.send_ping(int(self.client.clock.seconds() * 1_000_000))
        self.flush()


class _Factory(Factory):
    noisy = False

    def __init__(self, client: FiggClient) -> None:
        self.client = client

    def buildProtocol(self, addr: Any) -> _Connection:
        return _Connection(self.client)
