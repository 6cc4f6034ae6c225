"""A client of the event bus for programs: subscribe without gaps, publish with confirmation.

    options = EventBusOptions(subtrees=("/a/",), after=0)
    client = EventBusClient(reactor, "127.0.0.1", 5556, options=options, on_events=print)
    await client.connect()
    seq = await client.publish_event("/a/b/", msgpack.packb({"n": 1}))
    await client.close()

It is also the :class:`~fyrehose.interfaces.IPublisher` and :class:`~fyrehose.interfaces.ITailer` of the event bus.  An
event bus has only one stream, so the streams of these interfaces are topics here: ``notes`` is the topic ``/notes/``; a
subscriber also gets all topics below it.

This module owns the connections, the timer and the Deferreds; :mod:`~.client_session` implements the protocol without
I/O.
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
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.logger import Logger
from zope.interface import implementer

from fyrehose.errors import Broken, ConfigError, FyrehoseError, LocalProtocolError, PublishError, RemoteProtocolError
from fyrehose.interfaces import IPublisher, ITailer
from fyrehose.net.clients import (
    Client,
    ClientConnection,
    ConnectionFailed,
    ConnectionOptions,
    Reconnector,
    WrongProtocol,
    tell_restarted,
    wrong_protocol,
)
from fyrehose.net.lifecycle import Timers
from fyrehose.protocols.eventbus.client_session import (
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
from fyrehose.protocols.eventbus.columns import msgpack_bytes, runs_of
from fyrehose.protocols.eventbus.frames import MAX_LABEL, Broadcast, Pub
from fyrehose.protocols.eventbus.keys import Keys
from fyrehose.protocols.eventbus.labels import USUAL_TIME, write_time
from fyrehose.protocols.eventbus.session import BusMessage, DealerSession, Ponged, SubscriberSession
from fyrehose.protocols.eventbus.zmtp import Joined, Mechanism, Null
from fyrehose.records import MAX_NAME, Buffer, Run
from fyrehose.sessions import events_of

log = Logger()

#: A connection that is half open ends before the retries of an event do: 6 times 5 s, by default.
BUS_OPTIONS = ConnectionOptions(ping_after=5.0, silence=12.0)
#: The ports of the server behind the first one.
OFFSETS = {"snapshot": 0, "publisher": 1, "collector": 2}
#: A client that publishes to more topics than this number subscribes to all topics, not to each of its own.
MOST_TOPICS = 1_000
#: The connections that a subscriber needs.
NEEDED = {"publisher", "snapshot"}


class PubUnconfirmed(PublishError):
    """The BROADCAST of an event did not arrive in time, so the event may or may not be published."""

    retriable = True


class KeyRefused(FyrehoseError):
    """The event bus does not accept the client's CURVE key, has another key itself, or a weak one."""


class BusConnection(ClientConnection):
    """One connection of a client.

    :ivar received: called with the messages of each read, in order
    """

    session: DealerSession | SubscriberSession

    def __init__(
        self,
        session: DealerSession | SubscriberSession,
        handle: Callable[[Any], object],
        received: Callable[[list[list[bytes]]], object],
    ) -> None:
        super().__init__(session, handle)
        self._received = received

    def receive(self, data: bytes) -> None:
        messages: list[list[bytes]] = []
        for event in events_of(self.session, data):
            if isinstance(event, BusMessage):
                messages.append(event.frames)
            elif isinstance(event, Broken):
                self.broken(event.error)
            else:
                self.confirmed = True
                self.handle(event)
        if messages:
            self._received(messages)
        if self.session.out:
            self.flush()

    def violation(self, error: RemoteProtocolError) -> Exception:
        if error.cause == "refused-by-peer":
            return KeyRefused("the server does not accept the client's key")
        if error.cause == "weak-key":
            return KeyRefused("the server's public key is weak; pass the one in the server's file NAME.key")
        if error.cause == "wrong-mechanism":
            return WrongProtocol("the server uses CURVE keys, or the client does and the server does not")
        return error if self.confirmed else wrong_protocol(self._beginning, error)

    # Keeping the connection alive.

    @property
    def expecting(self) -> bool:
        return not self.session.linked or self.session.pings

    def ping(self) -> None:
        if self.session.linked:
            self.session.send_ping(int(10 * self.drop_after))
            self.flush()


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

    :ivar clock: the reactor
    :ivar port: the port of SNAPSHOT; PUBLISHER and COLLECTOR are the next two
    :ivar on_events: called with a tuple of :class:`~.frames.Broadcast` whose sequences strictly increase
    :ivar on_late: called with events that arrive after events with greater sequences, each once; default: ``on_events``
    :ivar on_lost: called with the first and last sequence of a range that the server no longer keeps
    :ivar on_restarted: called when the server has another journal, with the last sequence that it had when the client
        noticed this; all events of that journal follow
    :ivar topics: topics that the program will publish to; subscribed at once, so that no confirmation is missed
    :ivar producer: the producer unique id of published events
    :ivar server_key: the server's public key, if the server uses CURVE
    :ivar connect_to: returns the endpoint of a port; default: that port of *host*
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
    connect_to: Callable[[int], IStreamClientEndpoint] | None = attrs.field(default=None, kw_only=True)
    connection_options: ConnectionOptions = attrs.field(default=BUS_OPTIONS, kw_only=True)
    ignored: dict[str, int] = attrs.field(factory=dict, init=False)
    _session: EventBusClientSession | None = attrs.field(default=None, init=False)
    #: the connections by the names of their ports, and all that were begun
    _ports: dict[str, Reconnector] = attrs.field(factory=dict, init=False)
    _stopping: list[Deferred[None]] = attrs.field(factory=list, init=False)
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
        """Stop reading; the server waits, or drops the connection, and :meth:`resume` requests what was missed."""
        self._paused = True
        for name in NEEDED & self._ports.keys():
            self._ports[name].pause()

    def resume(self) -> None:
        """Read again, and request everything after the last event that was passed to the program."""
        if self._paused and not self.closed:
            self._paused = False
            for name in NEEDED:
                self._ports[name].resume()
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

        :raises LocalProtocolError: ``options.subtrees`` is invalid
        """
        self._session = EventBusClientSession(self.options, self.random, self.clock.seconds())
        for name in OFFSETS:
            self._open(name)
        self._flush()

    def stop(self) -> Deferred[None]:
        ports, self._ports = self._ports, {}
        self._stopping += [port.stop() for port in ports.values()]
        return DeferredList(self._stopping).addCallback(lambda _: None)

    def abandon(self, error: Exception) -> None:
        self._timers.end()
        if self._session is not None:
            self._handle(self._session.pubs.abandon())

    # Connections.

    def _open(self, name: str) -> None:
        """Begin to connect to the port *name*."""
        port = self.port + OFFSETS[name]
        connect_to = self.connect_to or partial(HostnameEndpoint, self.clock, self.host)
        reconnector: Reconnector
        reconnector = Reconnector(
            self.clock,
            connect_to(port),
            self.connection_options,
            lambda: self._new_connection(name, reconnector),
            lambda error: self._ports.get(name) is reconnector and self._retries(name, error),
            lambda connection: connection.flush(),
            lambda connection: self._port_lost(name, reconnector),
        )
        self._ports[name] = reconnector
        if self._paused and name in NEEDED:
            reconnector.pause()
        reconnector.start()

    def _new_connection(self, name: str, reconnector: Reconnector) -> BusConnection:
        session = (SubscriberSession if name == "publisher" else DealerSession)(self._mechanism())

        def handle(event: Any) -> None:
            if self._ports.get(name) is reconnector:
                self._port_event(name, session, event)

        def received(messages: list[list[bytes]]) -> None:
            if self._ports.get(name) is reconnector:
                self._receive(name, messages)

        return BusConnection(session, handle, received)

    def _mechanism(self) -> Mechanism:
        if self.server_key is None:
            return Null()
        from fyrehose.protocols.eventbus.curve import CurveClient, new_keys  # needs a package of its own

        own = self.keys or new_keys()
        return CurveClient(self.server_key, own.public, own.secret)

    def _renew(self) -> None:
        """Replace the connection to SNAPSHOT, so that no answer to an earlier request arrives."""
        self._stopping = [each for each in self._stopping if not each.called]
        self._stopping.append(self._ports.pop("snapshot").stop())
        self._up.discard("snapshot")
        self._renewing = True
        self._open("snapshot")

    def _linked(self, name: str) -> DealerSession | SubscriberSession | None:
        """Return the session of the port *name* if messages can be sent to it."""
        reconnector = self._ports.get(name)
        connection: Any = None if reconnector is None else reconnector.connection
        return connection.session if connection is not None and connection.session.linked else None

    def _subscribe(self, prefix: str) -> None:
        session = self._linked("publisher")
        if isinstance(session, SubscriberSession):
            session.send_subscribe(prefix.encode())
            self._flush_port("publisher")

    def _flush_port(self, name: str) -> None:
        connection = self._ports[name].connection
        if connection is not None:
            connection.flush()

    def _subscribe_own(self, topic: str) -> None:
        """Subscribe to *topic*, unless a subscription covers it, because BROADCASTs confirm the published events."""
        everything = self.options.subscribe and not self.options.subtrees
        if everything or topic in self._own_topics or len(self._own_topics) > MOST_TOPICS:
            return
        self._own_topics.add(topic)
        self._subscribe(topic if len(self._own_topics) <= MOST_TOPICS else "")

    def _subscribe_again(self, session: SubscriberSession) -> None:
        """Send all subscriptions on a new connection."""
        wanted = set(self.options.subtrees or ("",)) if self.options.subscribe else set()
        for topic in self.topics:
            self._own_topics.add(topic)
        wanted |= {""} if len(self._own_topics) > MOST_TOPICS else self._own_topics
        for prefix in sorted(wanted):
            session.send_subscribe(prefix.encode())

    def _port_event(self, name: str, session: DealerSession | SubscriberSession, event: Any) -> None:
        """Handle an event of the session of the port *name* that is no message.

        SNAPSHOT is asked only when the server has handled the subscriptions, which the answer to a PING behind them
        shows: the server reads the two connections in any order.
        """
        if isinstance(event, Ponged):
            up = name == "publisher" and name not in self._up
        else:
            assert isinstance(event, Joined)
            up = not isinstance(session, SubscriberSession)
            if isinstance(session, SubscriberSession):
                self._subscribe_again(session)
                up = not session.pings
                if session.pings:
                    session.send_ping(0)
                self._flush_port(name)
        if up:
            self._port_up(name)

    def _port_up(self, name: str) -> None:
        """Notify the session when SNAPSHOT and PUBLISHER are both connected, and when COLLECTOR is."""
        session, now = self._running(), self.clock.seconds()
        self._up.add(name)
        if name == "collector":
            session.collector_connected(now)
        elif name == "snapshot" and self._renewing:
            self._renewing = False  # the session requested the new connection and has queued its SYNCSTART
        elif self._up >= NEEDED:
            session.connected(now)
        self._flush()

    def _port_lost(self, name: str, reconnector: Reconnector) -> None:
        """Notify the session that a connection has ended."""
        if self.closed or self._ports.get(name) is not reconnector or name not in self._up:
            return
        self._up.discard(name)
        if name == "collector":
            self._running().collector_lost(set(self._unsent))
        else:
            self._running().disconnected(self.clock.seconds())
            self._lost()
        self._flush()

    def _retries(self, name: str, error: ConnectionFailed) -> bool:
        """Return whether to connect to the port *name* again; COLLECTOR may be closed until its server leads."""
        return self.retries(error) if name in NEEDED else not self.closed

    # Messages and timers.

    def _running(self) -> EventBusClientSession:
        if self._session is None or self.closed:
            raise LocalProtocolError("the client is not connected; call connect() first")
        return self._session

    def _receive(self, name: str, messages: list[list[bytes]]) -> None:
        session = self._running()
        if name in NEEDED:  # COLLECTOR never answers
            receive = session.receive_syncs if name == "snapshot" else session.receive_broadcasts
            self._handle(receive(messages, self.clock.seconds()))
        self._flush()

    def _tick(self) -> None:
        if not self._paused:
            self._handle(self._running().tick(self.clock.seconds()))
        self._flush()

    def _flush(self) -> None:
        """Send the waiting messages to the ports that are connected; complete ready(), and set the timer."""
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
        snapshot, collector = self._linked("snapshot"), self._linked("collector")
        if self._request is not None and snapshot is not None:
            snapshot.send(self._request)
            self._request = None
            self._flush_port("snapshot")
        if self._unsent and collector is not None:
            for frames in self._unsent.values():
                collector.send(frames)
            self._unsent.clear()
            self._flush_port("collector")
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
                tell_restarted(None, event.position, event.end, self.on_restarted)
            case SyncUnanswered():
                self._lost()
            case Ignored():
                self.ignored[event.cause] = self.ignored.get(event.cause, 0) + 1

    def _lost(self) -> None:
        if self._alive:
            self._alive = False
            self.on_state(False)
