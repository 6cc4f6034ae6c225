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

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from zope.interface import implementer

from fyrehose.errors import ConfigError, LocalProtocolError
from fyrehose.interfaces import IPublisher, ITailer
from fyrehose.net.clients import ClientConnection, ConnectionOptions, TCPClient, tell_restarted
from fyrehose.protocols.figg import frames
from fyrehose.protocols.figg.session import FiggClientSession
from fyrehose.protocols.figg.window import PublishWindow
from fyrehose.records import MAX_PAYLOAD, Buffer, Run

log = Logger()

#: Two unanswered PINGs, one every 2 s, end a connection.
FIGG_OPTIONS = ConnectionOptions(ping_after=2.0, silence=6.0)


def _ignore(*_: object) -> None:
    """Do nothing, in place of a callback that was not given."""


@attrs.define(eq=False)
class Subscription:
    """A topic that the client subscribes to.

    :ivar offset: offset of the last message passed to ``take``; before the first one, the offset that was requested
        (None: only new messages), until ATTACHED arrives
    :ivar take: called with each run of messages, in order and without repetition
    :ivar on_attached: called with the offset at which the server starts, and with the requested one
    :ivar lost: called with the first and the last offset of messages that are missing
    :ivar restarted: called with the last offset of the topic, if the server has another journal
    :ivar lost_offset: the offset beyond the end of the topic that was requested before the client asked for the end
    """

    topic: str
    offset: int | None
    take: Callable[[Run], object]
    on_attached: Callable[[int, int | None], object]
    lost: Callable[[int, int], object]
    restarted: Callable[[int], object] | None = None
    lost_offset: int | None = attrs.field(default=None, init=False)
    attached: bool = attrs.field(default=False, init=False)


@implementer(IPublisher, ITailer)
@attrs.define(eq=False)
class FiggClient(TCPClient):
    """A client of one server, which publishes and subscribes to any number of topics.

    :ivar window: limit of messages that are sent and not acknowledged
    :ivar window_bytes: limit of unacknowledged bytes, sent or waiting; beyond it :meth:`publish` raises
    """

    connection_options: ConnectionOptions = attrs.field(default=FIGG_OPTIONS, kw_only=True)
    window: int = attrs.field(default=256, kw_only=True)
    window_bytes: int = attrs.field(default=64 << 20, kw_only=True)
    _window: PublishWindow = attrs.field(init=False)
    _subscriptions: dict[str, Subscription] = attrs.field(factory=dict, init=False)
    _detaching: set[str] = attrs.field(factory=set, init=False)
    _attaching: Counter[str] = attrs.field(factory=Counter, init=False)  #: unanswered ATTACHs, by topic

    def __attrs_post_init__(self) -> None:
        self._window = PublishWindow(self.window, self.window_bytes)

    @property
    def absent(self) -> bool:
        """Whether a subscribed topic may not exist yet: the server started at offset 0, and has sent no message."""
        return any(each.attached and each.offset == 0 for each in self._subscriptions.values())

    # The public API.

    def prepare(self, stream: str | None) -> None:
        """Check the name of a topic.

        :raises ConfigError: *stream* is None
        :raises LocalProtocolError: *stream* is not 1 to 255 bytes of UTF-8
        """
        if stream is None:
            raise ConfigError("missing --stream NAME: Figg clients need a topic")
        frames.encode_topic(stream)

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
        if self.closed:
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
        return self.watchers.when(lambda: self._window.has_room)

    def flush(self) -> Deferred[None]:
        """Return a Deferred that fires when every published message is acknowledged."""
        return self.watchers.when(lambda: self._window.empty)

    def subscribe(
        self,
        stream: str | None,
        take: Callable[[Run], object],
        after: int | None = None,
        lost: Callable[[int, int], object] | None = None,
        restarted: Callable[[int], object] | None = None,
        on_attached: Callable[[int, int | None], object] | None = None,
    ) -> Subscription:
        """Subscribe to the messages of the topic *stream* after offset *after*: 0: its start; None: only new messages.

        Subscribing again to a topic moves the subscription.  Exceptions that callbacks raise are logged.

        :param take: called with each run of messages; ``first_seq`` of the run is the offset of its first message
        :param lost: called with the first and last offset of messages that have expired, or that the server skips
        :param restarted: called with the last offset of the topic if *after*, or the offset of the last message that
            was received, is beyond it; the topic is then read from its start
        :param on_attached: called with the offset at which the server starts and the requested one
        :raises ConfigError: *stream* is None
        :raises LocalProtocolError: *stream* is not 1 to 255 bytes of UTF-8
        """
        self.prepare(stream)
        topic = cast("str", stream)
        subscription = Subscription(topic, after, take, on_attached or _ignore, lost or _ignore, restarted)
        self._subscriptions[topic] = subscription
        self._detaching.discard(topic)
        if self.connection is not None:
            self._attach(self.connection, subscription)
            self.connection.flush()
        return subscription

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to *topic*; do nothing if there is none."""
        if self._subscriptions.pop(topic, None) is None:
            return
        self._detaching.add(topic)
        if self.connection is not None:
            self.connection.session.send(frames.Detach(topic=topic))
            self.connection.flush()

    def shortfall(self, complete: bool) -> str:
        """Describe the subscriptions that the server has not confirmed; return "" if it has confirmed all.

        One connection delivers the messages in order, so no message of a confirmed subscription can be missing.
        """
        waiting = [topic for topic, subscription in self._subscriptions.items() if not subscription.attached]
        if complete or not waiting:
            return ""
        return f"the server has not confirmed the subscription to {waiting[0]!r}; is the port that of a figg listener?"

    # Called by the shell.

    def new_connection(self) -> FiggConnection:
        return FiggConnection(FiggClientSession(), self._handle)

    def connection_made(self, connection: FiggConnection) -> None:
        """Send on a new connection what the server has not answered."""
        session = connection.session
        self._attaching.clear()
        for subscription in self._subscriptions.values():
            self._attach(connection, subscription)
        for topic in self._detaching:
            session.send(frames.Detach(topic=topic))
        for first, run in self._window.to_resend():
            session.send(_publish_run(first, run))
        self._send_waiting()
        connection.flush()
        self.established()
        self.watchers.notify()

    def abandon(self, error: Exception) -> None:
        self._window.fail(error)
        self._subscriptions.clear()

    def _attach(self, connection: FiggConnection, subscription: Subscription) -> None:
        subscription.attached = False
        self._attaching[subscription.topic] += 1
        connection.session.send(frames.Attach(topic=subscription.topic, offset=subscription.offset))

    def _handle(self, event: Any) -> None:
        match event:
            case frames.DataRun():
                self._received(event)
            case frames.Attached():
                self._attached(event)
            case frames.Detached():
                self._detaching.discard(event.topic)
            case frames.Ack():
                self._window.acknowledged(event.number)
                self._send_waiting()
                self.watchers.notify()  # the window has room only if no message waits
            case frames.Pong():
                pass  # the connection counts any data as an answer
            case _:
                raise TypeError(f"unexpected event {type(event).__name__}")

    def _received(self, run: frames.DataRun) -> None:
        """Pass on the messages of *run* that were not passed on before."""
        subscription = self._subscriptions.get(run.topic)
        if subscription is None or not subscription.attached:
            return
        seen = subscription.offset or 0
        if run.last <= seen:
            return
        if run.first > seen + 1:
            self._tell(subscription, subscription.lost, seen + 1, run.first - 1)
        # DATA does not say by which protocol a message was published, so the source stays unknown.
        new = Run(stream=run.topic, source="", lengths=run.lengths, payload=run.payload, first_seq=run.first)
        subscription.offset = run.last
        self._tell(subscription, subscription.take, new.slice(max(seen - run.first + 1, 0), len(new)))

    def _attached(self, event: frames.Attached) -> None:
        """Begin the subscription whose ATTACH the server answers, unless a later ATTACH of the topic is unanswered."""
        waiting = self._attaching.pop(event.topic, 0)
        if waiting > 1:  # the DATA that follows belongs to an older subscription
            self._attaching[event.topic] = waiting - 1
        subscription = self._subscriptions.get(event.topic)
        if waiting == 1 and subscription is not None:
            requested = subscription.offset
            if requested is not None and event.offset < requested:
                # Only an offset of another journal is beyond the end.  The answer does not say where the end is.
                subscription.lost_offset, subscription.offset = requested, None
                self._attach_again(subscription)
                return
            if subscription.lost_offset is not None:
                self._restarted(subscription, event.offset)
                return
            subscription.attached = True
            # The server starts later than requested if the requested messages have expired.
            subscription.offset = event.offset
            self._tell(subscription, subscription.on_attached, event.offset, requested)
            if requested is not None and event.offset > requested:
                self._tell(subscription, subscription.lost, requested + 1, event.offset)

    def _restarted(self, subscription: Subscription, end: int) -> None:
        """Read the topic, which ends at offset *end*, from its start."""
        assert subscription.lost_offset is not None
        seen = subscription.lost_offset
        subscription.lost_offset, subscription.offset = None, 0
        self._tell(subscription, tell_restarted, subscription.topic, seen, end, subscription.restarted)
        if self._has(subscription):
            self._attach_again(subscription)

    def _has(self, subscription: Subscription) -> bool:
        """Return whether *subscription* goes on; each of its callbacks may have ended or replaced it."""
        return self._subscriptions.get(subscription.topic) is subscription

    def _tell(self, subscription: Subscription, callback: Callable[..., object], *arguments: object) -> None:
        if self._has(subscription):
            try:
                callback(*arguments)
            except Exception:
                log.failure("a subscription's callback raised an exception")

    def _attach_again(self, subscription: Subscription) -> None:
        if self.connection is not None:
            self._attach(self.connection, subscription)
            self.connection.flush()

    def _send_waiting(self) -> None:
        if self.connection is None:
            return
        for first, run in self._window.to_send():
            self.connection.session.send(_publish_run(first, run))
        self.connection.flush_soon()


def _publish_run(first: int, run: Run) -> frames.PublishRun:
    return frames.PublishRun(topic=run.stream, first=first, lengths=run.lengths, payload=run.payload)


class FiggConnection(ClientConnection):
    """One connection of a client."""

    session: FiggClientSession

    expecting = True

    def ping(self) -> None:
        self.session.send(frames.Ping(number=int(self.factory.clock.seconds() * 1_000_000)))
        self.flush()
