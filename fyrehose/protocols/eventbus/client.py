"""A client of the event bus for programs: subscribe without gaps, publish with confirmation.

    options = EventBusOptions(subtrees=("/a/",), after=0)
    client = EventBusClient(reactor, "127.0.0.1", 5556, options=options, on_events=print)
    await client.connect()
    seq = await client.publish_event("/a/b/", msgpack.packb({"n": 1}))
    await client.close()

It is also the :class:`~fyrehose.interfaces.IPublisher` and :class:`~fyrehose.interfaces.ITailer` of the event bus.  An
event bus has only one stream, so the streams of these interfaces are topics here: ``notes`` is the topic ``/notes/``; a
subscriber also gets all topics below it.

This module owns the sockets, the timer and the Deferreds; :mod:`~.session` implements the protocol without I/O.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random, SystemRandom
from typing import Any
from uuid import UUID

import attrs
import zmq
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from zope.interface import implementer

from fyrehose.errors import ConfigError, FyrehoseError, LocalProtocolError, PublishError
from fyrehose.interfaces import IPublisher, ITailer
from fyrehose.net.clients import Client, ConnectionFailed, Unreachable, WrongProtocol, tell_restarted
from fyrehose.net.lifecycle import Timers
from fyrehose.protocols.eventbus.columns import msgpack_bytes, runs_of
from fyrehose.protocols.eventbus.frames import MAX_LABEL, Broadcast, Pub
from fyrehose.protocols.eventbus.labels import USUAL_TIME, write_time
from fyrehose.protocols.eventbus.queued_memory import Full
from fyrehose.protocols.eventbus.session import (
    Event,
    EventBusClientSession,
    EventBusOptions,
    Events,
    EventsExpired,
    Ignored,
    PubConfirmed,
    PubTimedOut,
    Restarted,
    ServerPort,
    Synchronised,
    SyncUnanswered,
)
from fyrehose.protocols.eventbus.sockets import Context, Keys, address, client_socket
from fyrehose.protocols.eventbus.zmqport import (
    CONNECTED,
    DISCONNECTED,
    FAILED,
    FAILED_AUTH,
    FAILED_PROTOCOL,
    RETRIED,
    ZMQPort,
)
from fyrehose.records import MAX_NAME, Buffer, Run

log = Logger()

#: Messages that may wait in a socket to be sent.
HIGH_WATER_MARK = 1_000
#: How long a closed socket keeps sending what is queued, in milliseconds.  It must not be 0: if the connection breaks
#: in the middle of a message of a socket that was closed with 0, libzmq (4.3.5, its issue 3442) aborts the process.
LINGER = 200
#: A client that publishes to more topics than this number subscribes to all topics, not to each of its own.
MOST_TOPICS = 1_000
#: The connections that a subscriber needs.
NEEDED = {"publisher", "snapshot"}


class PubUnconfirmed(PublishError):
    """The BROADCAST of an event did not arrive in time, so the event may or may not be published."""

    retriable = True


class KeyRefused(FyrehoseError):
    """The event bus does not accept the client's CURVE key, or has another key itself."""


#: The events of a socket that say why there is no connection.
FAILURES: dict[zmq.Event, Exception] = {
    DISCONNECTED: ConnectionDone(),
    RETRIED: Unreachable("no connection could be made"),
    FAILED: ConnectionLost(),
    FAILED_PROTOCOL: WrongProtocol("the server does not speak ZeroMQ, or uses CURVE keys"),
    FAILED_AUTH: KeyRefused("the server does not accept the client's key"),
}


def _ignore(*_: object) -> None:
    """Ignore the call; the default of every callback."""


def _microseconds() -> int:
    return time.time_ns() // 1_000


def topic_of(stream: str | None) -> str:
    """Return the topic that *stream* names: ``notes`` and ``/notes/`` are ``/notes/``, None is ``/``.

    :raises ConfigError: the topic is too long
    """
    topic = stream or "/"
    topic = topic if topic.startswith("/") else f"/{topic}"
    topic = topic if topic.endswith("/") else f"{topic}/"
    if len(topic.encode()) > MAX_NAME:
        raise ConfigError(f"the topic {topic!r} exceeds {MAX_NAME} bytes, slashes included; use a shorter --stream")
    return topic


@implementer(IPublisher, ITailer)
@attrs.define(eq=False)
class EventBusClient(Client):
    """A client of one event bus.

    libzmq reconnects by itself, so of ``connection_options`` only ``close_timeout`` counts.

    :ivar clock: the reactor: provides timers, readers, and the thread in which the sockets are closed
    :ivar port: the port of SNAPSHOT; PUBLISHER and COLLECTOR are the next two
    :ivar on_events: called with a tuple of :class:`~.frames.Broadcast` whose sequences strictly increase
    :ivar on_late: called with events that arrive after events with greater sequences, each once; default: ``on_events``
    :ivar on_lost: called with the first and last sequence of a range that the server no longer keeps
    :ivar on_restarted: called when the server has another journal, with the last sequence that it had when the client
        noticed this; all events of that journal follow
    :ivar topics: topics that the program will publish to; subscribed at once, so that no confirmation is missed
    :ivar producer: the producer unique id of published events
    :ivar server_key: the server's public key (Z85), if the server uses CURVE
    :ivar keys: the client's key pair; None: a new pair for this client
    :ivar ignored: number of messages that were ignored, by cause
    :ivar now: returns the wall-clock time, in microseconds since 1970 UTC
    """

    absent = False  #: the protocol does not say whether the stream exists

    clock: Any
    host: str
    port: int
    options: EventBusOptions = attrs.field(factory=EventBusOptions, kw_only=True)
    on_events: Callable[[tuple[Broadcast, ...]], object] = attrs.field(default=_ignore, kw_only=True)
    on_late: Callable[[tuple[Broadcast, ...]], object] | None = attrs.field(default=None, kw_only=True)
    on_lost: Callable[[int, int], object] = attrs.field(default=_ignore, kw_only=True)
    on_restarted: Callable[[int], object] | None = attrs.field(default=None, kw_only=True)
    topics: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    producer: str = attrs.field(factory=lambda: socket.gethostname()[:MAX_LABEL], kw_only=True)
    server_key: bytes | None = attrs.field(default=None, kw_only=True)
    keys: Keys | None = attrs.field(default=None, kw_only=True)
    random: Random = attrs.field(factory=SystemRandom, kw_only=True)
    now: Callable[[], int] = attrs.field(default=_microseconds, kw_only=True)
    ignored: dict[str, int] = attrs.field(factory=dict, init=False)
    _session: EventBusClientSession | None = attrs.field(default=None, init=False)
    _context: Context | None = attrs.field(default=None, init=False)
    _ports: dict[str, ZMQPort] = attrs.field(factory=dict, init=False)
    _up: set[str] = attrs.field(factory=set, init=False)
    _renewing: bool = attrs.field(default=False, init=False)
    _alive: bool = attrs.field(default=False, init=False)
    #: the SYNCSTART that waits to be sent, and the waiting PUBs by their identity, because the session may repeat a PUB
    #: that still waits here
    _request: list[Buffer] | None = attrs.field(default=None, init=False)
    _unsent: dict[int, list[Buffer]] = attrs.field(factory=dict, init=False)
    _own_topics: set[str] = attrs.field(factory=set, init=False)
    _timers: Timers = attrs.field(default=attrs.Factory(lambda self: Timers(self.clock), takes_self=True), init=False)
    _paused: bool = attrs.field(default=False, init=False)

    # For programs.

    def prepare(self, stream: str | None) -> None:
        """See :meth:`fyrehose.interfaces.IPublisher.prepare`."""
        topic = topic_of(stream)
        if self._session is None:
            self.topics += (topic,)
        else:
            self._subscribe_own(topic)

    def subscribe(
        self,
        stream: str | None,
        take: Callable[[Run], object],
        after: int | None = None,
        lost: Callable[[int, int], object] | None = None,
        restarted: Callable[[int], object] | None = None,
    ) -> None:
        """See :meth:`fyrehose.interfaces.ITailer.subscribe`; call it before :meth:`connect`.

        :param stream: topics, separated by ``;``; each stands for all topics below it, too
        """
        if self._session is not None:
            raise LocalProtocolError("subscribe() was called after connect(); create a new client")

        def take_events(events: tuple[Broadcast, ...]) -> None:
            for run in runs_of(events):
                take(run)

        subtrees = () if stream is None else tuple(topic_of(part) for part in stream.split(";"))
        self.options = attrs.evolve(self.options, subtrees=subtrees, subscribe=True, after=after)
        self.on_events, self.on_lost, self.on_restarted = take_events, lost or _ignore, restarted

    def publish(self, stream: str | None, payload: bytes) -> Deferred[int]:
        """Publish *payload* as one msgpack byte string to the topic *stream*; see :meth:`publish_event`."""
        return self.publish_event(topic_of(stream), msgpack_bytes(payload))

    def publish_event(
        self,
        topic: str,
        data: bytes,
        *,
        producer: str | None = None,
        timestamp: str | None = None,
        uuid: UUID | None = None,
    ) -> Deferred[int]:
        """Publish an event.

        :param data: event data in msgpack; the client does not check it
        :param producer: producer unique id; default: the client's
        :param timestamp: ISO 8601 text; default: the current time
        :param uuid: default: a new UUID of version 4
        :return: a Deferred that fires with the sequence of the event when its BROADCAST or SYNC arrives, so that it is
            durable on the server; fails with :class:`PubUnconfirmed` if none arrives after ``options.retries``, or if
            the client is closed
        :raises LocalProtocolError: a label or the data is too long, the client is not connected, or more than twice
            ``options.window`` events are unconfirmed
        """
        session = self._running()
        if len(session.pubs) >= 2 * self.options.window:
            raise LocalProtocolError(f"{len(session.pubs)} events are unconfirmed; wait for ready() before publishing")
        event = Pub(
            topic=topic,
            sequence=0,
            dialect=None,
            producer=(self.producer if producer is None else producer).encode(),
            timestamp=write_time(self.now(), USUAL_TIME) if timestamp is None else timestamp.encode(),
            uuid=str(uuid or UUID(int=self.random.getrandbits(128), version=4)).encode(),
            data=data,
        )
        published: Deferred[int] = Deferred()
        session.publish(event, published, self.clock.seconds())
        self._subscribe_own(topic)
        self._flush()
        return published

    def ready(self) -> Deferred[None]:
        """Return a Deferred that fires when the window has room for another publish."""
        pubs = self._running().pubs
        return self.watchers.when(lambda: len(pubs) < self.options.window)

    def pause(self) -> None:
        """Stop reading; the server does not wait, and may drop broadcasts, which :meth:`resume` requests again."""
        self._paused = True
        for name in NEEDED & self._ports.keys():
            self._ports[name].pause()

    def resume(self) -> None:
        """Read again, and request everything after the last event that was passed to the program."""
        if self._paused and not self.closed:
            self._paused = False
            for name in NEEDED:
                self._ports[name].start()
            self._running().resumed(self.clock.seconds())
            self._flush()

    def shortfall(self, complete: bool) -> str:
        """Return "", because no event before the last one can be missing: they arrive in order over one connection."""
        return ""

    @property
    def position(self) -> int | None:
        """Return the sequence up to which the program has every event; the option ``after`` resumes there."""
        return None if self._session is None else self._session.position

    # Called by the shell.

    def start(self) -> None:
        """Connect to the three ports; the client is connected when the first state synchronization has ended.

        :raises LocalProtocolError: ``options.subtrees`` or ``host`` is invalid
        """
        self._session = EventBusClientSession(self.options, self.random, self.clock.seconds())
        self._context = zmq.Context()
        self._open("publisher", zmq.SUB, 1)
        self._open("snapshot", zmq.DEALER, 0)
        self._open("collector", zmq.DEALER, 2)
        if self.options.subscribe:
            for prefix in self.options.subtrees or ("",):
                self._subscribe(prefix)
        for topic in self.topics:
            self._subscribe_own(topic)
        self._flush()

    def stop(self) -> Deferred[None]:
        if self._context is None:
            return succeed(None)
        context, self._context = self._context, None
        return deferToThreadPool(self.clock, self.clock.getThreadPool(), context.term)

    def abandon(self, error: Exception) -> None:
        self._timers.end()
        for port in self._ports.values():
            port.close(LINGER)
        if self._session is not None:
            self._handle(self._session.pubs.abandon())

    # Sockets.

    def _open(self, name: str, kind: int, offset: int) -> None:
        assert self._context is not None
        opened = client_socket(self._context, kind, self.host, self.server_key, self.keys, sent=HIGH_WATER_MARK)
        messages: list[list[bytes]] = []
        port = ZMQPort(
            self.clock,
            opened,
            lambda message, count: messages.append(message),
            partial(self._turn_over, name, messages),
        )
        port.watch(CONNECTED | sum(FAILURES), partial(self._happened, name))
        self._ports[name] = port
        if not self._paused:
            port.start()
        try:
            opened.connect(address(self.host, self.port + offset))
        except zmq.ZMQError as error:
            raise LocalProtocolError(f"cannot connect to {self.host!r}, port {self.port + offset}: {error}") from error

    def _renew(self) -> None:
        """Replace the connection to SNAPSHOT, so that no answer to an earlier request arrives."""
        self._ports.pop("snapshot").close()
        self._up.discard("snapshot")
        self._renewing = True
        self._open("snapshot", zmq.DEALER, 0)

    def _subscribe(self, prefix: str) -> None:
        self._ports["publisher"].socket.setsockopt(zmq.SUBSCRIBE, prefix.encode())
        self._ports["publisher"].schedule_turn()

    def _subscribe_own(self, topic: str) -> None:
        """Subscribe to *topic*, unless a subscription covers it, because BROADCASTs confirm the published events."""
        everything = self.options.subscribe and not self.options.subtrees
        if everything or topic in self._own_topics or len(self._own_topics) > MOST_TOPICS:
            return
        self._own_topics.add(topic)
        self._subscribe(topic if len(self._own_topics) <= MOST_TOPICS else "")

    def _happened(self, name: str, event: int, value: int) -> None:
        """Handle an event of the socket *name*."""
        if event in (CONNECTED, DISCONNECTED):
            self._connection(name, event == CONNECTED)
        elif name in NEEDED:
            self.retries(ConnectionFailed(FAILURES[zmq.Event(event)]))

    def _connection(self, name: str, up: bool) -> None:
        """Notify the session when SNAPSHOT and PUBLISHER are both connected, and when one of them is lost."""
        if self.closed:
            return
        if name in NEEDED:
            session, now = self._running(), self.clock.seconds()
            renewed = name == "snapshot" and self._renewing
            answered = name in self._up
            (self._up.add if up else self._up.discard)(name)
            if not up:
                session.disconnected(now)
                self._lost()
                if not self.retries(ConnectionFailed(FAILURES[DISCONNECTED], 0.0, confirmed=answered)):
                    return
            elif renewed:
                self._renewing = False  # the session requested the new connection and has queued its SYNCSTART
            elif self._up >= NEEDED:
                session.connected(now)
        self._flush()

    # Messages and timers.

    def _running(self) -> EventBusClientSession:
        if self._session is None or self.closed:
            raise LocalProtocolError("the client is not connected; call connect() first")
        return self._session

    def _turn_over(self, name: str, messages: list[list[bytes]]) -> None:
        session = self._running()
        received = messages[:]
        messages.clear()
        if received and name in NEEDED:  # COLLECTOR never answers
            receive = session.receive_syncs if name == "snapshot" else session.receive_broadcasts
            self._handle(receive(received, self.clock.seconds()))
        self._flush()

    def _tick(self) -> None:
        if not self._paused:
            self._handle(self._running().tick(self.clock.seconds()))
        self._flush()

    def _flush(self) -> None:
        """Send the waiting messages, as far as the sockets accept them; complete ready(), and set the timer."""
        if self.closed:  # a callback closed the client
            return
        session = self._running()
        for to, frames in session.data_to_send():
            if to is ServerPort.COLLECTOR:
                self._unsent[id(frames)] = frames
                continue
            if to is ServerPort.NEW_SNAPSHOT:
                self._renew()
            self._request = frames
        try:
            if self._request is not None:
                self._ports["snapshot"].send(self._request)
                self._request = None
        except Full:
            pass  # sent again when the socket is connected
        try:
            for key, frames in list(self._unsent.items()):
                self._ports["collector"].send(frames)
                del self._unsent[key]
        except Full:
            pass  # sent again when the socket has room or is connected
        self.watchers.notify()
        if not self.closed:
            delay = max(session.next_due() - self.clock.seconds(), 0.01)
            self._timers.start(delay, self._tick)

    def _handle(self, events: Sequence[Event]) -> None:
        for event in events:
            try:
                self._dispatch(event)
            except Exception:
                log.failure("a callback of an event bus client raised an exception")

    def _dispatch(self, event: Event) -> None:
        match event:
            case Events():
                (self.on_late or self.on_events if event.late else self.on_events)(event.events)
            case PubConfirmed():
                event.handle.callback(event.sequence)
            case PubTimedOut():
                event.handle.errback(PubUnconfirmed("no BROADCAST of it arrived: it may or may not be published"))
            case EventsExpired():
                self.on_lost(event.first, event.last)
            case Synchronised():
                if not self._alive:
                    self._alive = True
                    self.established()
            case Restarted():
                restarted, end = self.on_restarted, event.end
                tell_restarted(None, event.position, end, None if restarted is None else lambda: restarted(end))
            case SyncUnanswered():
                self._lost()
            case Ignored():
                self.ignored[event.cause] = self.ignored.get(event.cause, 0) + 1

    def _lost(self) -> None:
        if self._alive:
            self._alive = False
            self.on_state(False)
