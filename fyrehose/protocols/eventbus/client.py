"""A client of the event bus for programs: subscribe without gaps, publish with confirmation.

    client = EventBusClient(reactor, "127.0.0.1", 5556, options=Options(subtrees=("/a/",), after=0), on_events=print)
    await client.connect()
    seq = await client.publish("/a/b/", msgpack.packb({"n": 1}))
    await client.close()

This module owns the sockets, the timer and the Deferreds; :mod:`~.client_session` implements the protocol without I/O.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from random import Random, SystemRandom
from typing import Any
from uuid import UUID

import attrs
import zmq
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from fyrehose.errors import Closed, LocalProtocolError, PublishError
from fyrehose.protocols.eventbus.client_session import (
    ClientSession,
    Event,
    Events,
    Ignored,
    Lost,
    Options,
    Restarted,
    Silent,
    Synchronised,
    Target,
)
from fyrehose.protocols.eventbus.confirmations import Confirmed, Unconfirmed
from fyrehose.protocols.eventbus.frames import MAX_LABEL, Broadcast, Pub
from fyrehose.protocols.eventbus.labels import USUAL_TIME, write_time
from fyrehose.protocols.eventbus.sockets import Context, Keys, address, client_socket
from fyrehose.protocols.eventbus.zmqport import CONNECTED, DISCONNECTED, Full, Monitor, ZMQPort
from fyrehose.records import MAX_NAME, MAX_PAYLOAD, Buffer

log = Logger()

#: Messages that may wait in a socket to be sent.
HIGH_WATER_MARK = 1_000
#: How long a closed socket keeps sending what is queued, in milliseconds.  It must not be 0: if the connection breaks
#: in the middle of a message of a socket that was closed with 0, libzmq (4.3.5, its issue 3442) aborts the process.
LINGER = 200
#: A client that publishes to more topics than this subscribes to everything, instead of to each topic.
MOST_TOPICS = 1_000
#: The connections that a subscriber needs.
NEEDED = {"publisher", "snapshot"}


class PubUnconfirmed(PublishError):
    """The BROADCAST of an event did not arrive in time, so the event may or may not be published."""

    retriable = True


def _ignore(*_: object) -> None:
    """Ignore the call; the default of every callback."""


def _microseconds() -> int:
    return time.time_ns() // 1_000


@attrs.define(eq=False)
class EventBusClient:
    """A client of one event bus.

    :ivar reactor: provides timers, readers, and the thread in which the sockets are closed
    :ivar port: the port of SNAPSHOT; PUBLISHER and COLLECTOR are the next two
    :ivar on_events: called with a tuple of :class:`~.frames.Broadcast` whose sequences strictly increase
    :ivar on_late: called with events that arrive after greater sequences, each once; default: ``on_events``
    :ivar on_lost: called with the first and last sequence of a range that the server no longer keeps
    :ivar on_restart: called when the server has another journal; all events of that journal follow
    :ivar on_alive: called with True when the server answers (again), with False when it stops answering
    :ivar topics: topics that the program will publish to; subscribed at once, so that no confirmation is missed
    :ivar producer: the producer unique id of published events
    :ivar server_key: the server's public key (Z85), if the server uses CURVE
    :ivar keys: the client's key pair; None: a new pair for this client
    :ivar ignored: number of messages that were ignored, by cause
    :ivar now: returns the wall-clock time, in microseconds since 1970 UTC
    """

    reactor: Any
    host: str
    port: int
    options: Options = attrs.field(factory=Options, kw_only=True)
    on_events: Callable[[tuple[Broadcast, ...]], object] = attrs.field(default=_ignore, kw_only=True)
    on_late: Callable[[tuple[Broadcast, ...]], object] | None = attrs.field(default=None, kw_only=True)
    on_lost: Callable[[int, int], object] = attrs.field(default=_ignore, kw_only=True)
    on_restart: Callable[[], object] = attrs.field(default=_ignore, kw_only=True)
    on_alive: Callable[[bool], object] = attrs.field(default=_ignore, kw_only=True)
    topics: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    producer: str = attrs.field(factory=lambda: socket.gethostname()[:MAX_LABEL], kw_only=True)
    server_key: bytes | None = attrs.field(default=None, kw_only=True)
    keys: Keys | None = attrs.field(default=None, kw_only=True)
    random: Random = attrs.field(factory=SystemRandom, kw_only=True)
    now: Callable[[], int] = attrs.field(default=_microseconds, kw_only=True)
    ignored: dict[str, int] = attrs.field(factory=dict, init=False)
    _session: ClientSession | None = attrs.field(default=None, init=False)
    _context: Context | None = attrs.field(default=None, init=False)
    _ports: dict[str, ZMQPort] = attrs.field(factory=dict, init=False)
    _monitors: dict[str, Monitor] = attrs.field(factory=dict, init=False)
    _up: set[str] = attrs.field(factory=set, init=False)
    _renewing: bool = attrs.field(default=False, init=False)
    _alive: bool = attrs.field(default=False, init=False)
    _received: dict[str, list[list[bytes]]] = attrs.field(factory=dict, init=False)
    _request: list[Buffer] | None = attrs.field(default=None, init=False)
    _unsent: deque[list[Buffer]] = attrs.field(factory=deque, init=False)
    _own_topics: set[str] = attrs.field(factory=set, init=False)
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)
    _connected: Deferred[None] | None = attrs.field(default=None, init=False)
    _ready: list[Deferred[None]] = attrs.field(factory=list, init=False)
    _paused: bool = attrs.field(default=False, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    # For programs.

    def connect(self) -> Deferred[None]:
        """Connect to the server.

        :return: fires when the first state synchronization has ended and its events were passed to ``on_events``
        :raises LocalProtocolError: ``options.subtrees`` or ``host`` is invalid, or the client was connected or closed
            before
        """
        if self._context is not None or self._closed:
            raise LocalProtocolError("connect() was called before, or after close(); create a new client")
        now = self.reactor.seconds()
        self._session = ClientSession(self.options, self.random, now)
        self._context = zmq.Context()
        self._open("publisher", zmq.SUB, 1)
        self._open("snapshot", zmq.DEALER, 0)
        self._open("collector", zmq.DEALER, 2)
        connected = self._connected = Deferred()
        if self.options.subscribe:
            for prefix in self.options.subtrees or ("",):
                self._subscribe(prefix)
        for topic in self.topics:
            self._subscribe_own(topic)
        self._arm()
        return connected

    def publish(
        self,
        topic: str,
        data: bytes,
        *,
        producer: str | None = None,
        timestamp: str | None = None,
        uuid: UUID | None = None,
    ) -> Deferred[int]:
        """Publish an event.

        :param data: event data in msgpack; it is not checked
        :param producer: producer unique id; default: the client's
        :param timestamp: ISO 8601 text; default: the current time
        :param uuid: default: a new UUID of version 4
        :return: fires with the sequence of the event when its BROADCAST or SYNC arrives, so that it is durable on the
            server; fails with :class:`PubUnconfirmed` if none arrives after ``options.retries``, or if the client is
            closed
        :raises LocalProtocolError: a label or the data is too long, the client is not connected, or more than twice
            ``options.window`` events are unconfirmed
        """
        session = self._running()
        if session.pending >= 2 * self.options.window:
            raise LocalProtocolError(f"{session.pending} events are unconfirmed; wait for ready() before publishing")
        now = write_time(self.now(), USUAL_TIME) if timestamp is None else timestamp.encode()
        event = Pub(
            topic=topic,
            sequence=0,
            dialect=None,
            producer=(self.producer if producer is None else producer).encode(),
            timestamp=now,
            uuid=str(uuid or UUID(int=self.random.getrandbits(128), version=4)).encode(),
            data=data,
        )
        _check(event)
        self._subscribe_own(topic)
        published: Deferred[int] = Deferred()
        session.publish(event, published, self.reactor.seconds())
        self._flush()
        return published

    def ready(self) -> Deferred[None]:
        """Return a Deferred that fires when the window has room for another publish."""
        if self._running().pending < self.options.window:
            return succeed(None)
        waiting: Deferred[None] = Deferred()
        self._ready.append(waiting)
        return waiting

    def pause(self) -> None:
        """Stop reading; the server does not wait, and may drop broadcasts, which :meth:`resume` requests again."""
        self._paused = True
        for name in ("publisher", "snapshot"):
            if name in self._ports:
                self._ports[name].pause()

    def resume(self) -> None:
        """Read again, and request everything after the last event that was passed to the program."""
        if self._paused and not self._closed:
            self._paused = False
            for name in ("publisher", "snapshot"):
                self._ports[name].start()
            self._running().resumed(self.reactor.seconds())
            self._flush()

    @property
    def position(self) -> int | None:
        """The sequence up to which every event was passed to the program; pass it as ``Options.after`` to resume."""
        return None if self._session is None else self._session.position

    def close(self) -> Deferred[None]:
        """Close the client; unconfirmed events fail with :class:`PubUnconfirmed`.

        :return: fires when all sockets are closed
        """
        if self._closed or self._context is None:
            self._closed = True
            return succeed(None)
        self._closed = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        for monitor in self._monitors.values():
            monitor.close()
        for port in self._ports.values():
            port.close(LINGER)
        if self._session is not None:
            self._handle(self._session.abandon())
        closed = Closed("the client was closed")
        for waiting in self._ready:
            waiting.errback(closed)
        self._ready = []
        if self._connected is not None and not self._connected.called:
            self._connected.errback(closed)
        return deferToThreadPool(self.reactor, self.reactor.getThreadPool(), self._context.term)

    # Sockets.

    def _open(self, name: str, kind: int, offset: int) -> None:
        context = self._context
        assert context is not None
        opened = client_socket(context, kind, self.server_key, self.keys, sent=HIGH_WATER_MARK)
        if ":" in self.host:
            opened.setsockopt(zmq.IPV6, 1)
        self._received[name] = []

        def receive(message: list[bytes], count: int) -> None:
            self._received[name].append(message)

        port = ZMQPort(self.reactor, opened, receive, self._turn_over)

        def happened(event: int, value: int) -> None:
            self._connection(name, event == CONNECTED)

        self._monitors[name] = Monitor(self.reactor, context, opened, CONNECTED | DISCONNECTED, happened)
        self._ports[name] = port
        if not self._paused:
            port.start()
        try:
            opened.connect(address(self.host, self.port + offset))
        except zmq.ZMQError as error:
            raise LocalProtocolError(f"cannot connect to {self.host!r}, port {self.port + offset}: {error}") from error

    def _renew(self) -> None:
        """Replace the connection to SNAPSHOT, so that no answer to an earlier request arrives."""
        self._monitors.pop("snapshot").close()
        self._ports.pop("snapshot").close()
        self._up.discard("snapshot")
        self._renewing = True
        self._open("snapshot", zmq.DEALER, 0)

    def _subscribe(self, prefix: str) -> None:
        self._ports["publisher"].socket.setsockopt(zmq.SUBSCRIBE, prefix.encode())
        self._ports["publisher"].schedule_turn()

    def _subscribe_own(self, topic: str) -> None:
        """Subscribe to *topic*, unless a subscription covers it, so that published events are confirmed."""
        everything = self.options.subscribe and not self.options.subtrees
        if everything or topic in self._own_topics or len(self._own_topics) > MOST_TOPICS:
            return
        self._own_topics.add(topic)
        self._subscribe(topic if len(self._own_topics) <= MOST_TOPICS else "")

    def _connection(self, name: str, up: bool) -> None:
        """Tell the session when SNAPSHOT and PUBLISHER are both connected, and when one of them is lost."""
        if self._closed:
            return
        if name in NEEDED:
            session, now = self._running(), self.reactor.seconds()
            renewed = name == "snapshot" and self._renewing
            (self._up.add if up else self._up.discard)(name)
            if not up:
                session.disconnected(now)
                self._set_alive(False)
            elif renewed:
                self._renewing = False  # the session requested the new connection and has queued its SYNCSTART
            elif self._up >= NEEDED:
                session.connected(now)
        self._flush()

    # Messages and timers.

    def _running(self) -> ClientSession:
        if self._session is None or self._closed:
            raise LocalProtocolError("the client is not connected; call connect() first")
        return self._session

    def _turn_over(self) -> None:
        session, now = self._running(), self.reactor.seconds()
        for name, receive in (("publisher", session.receive_broadcasts), ("snapshot", session.receive_syncs)):
            messages, self._received[name] = self._received[name], []
            if messages and not self._closed:
                self._handle(receive(messages, now))
        self._received["collector"].clear()  # COLLECTOR never answers
        if not self._closed:
            self._flush()

    def _tick(self) -> None:
        self._timer = None
        session = self._running()
        if not self._paused:
            self._handle(session.tick(self.reactor.seconds()))
        if not self._closed:
            self._flush()

    def _flush(self) -> None:
        """Send what waits, as far as the sockets accept it."""
        waiting = {id(frames) for frames in self._unsent}
        for to, frames in self._running().data_to_send():
            if to is Target.COLLECTOR:
                if id(frames) not in waiting:
                    self._unsent.append(frames)
                continue
            if to is Target.NEW_SNAPSHOT:
                self._renew()
            self._request = frames
        try:
            if self._request is not None:
                self._ports["snapshot"].send(self._request)
                self._request = None
        except Full:
            pass  # sent again when the socket is connected
        try:
            while self._unsent:
                self._ports["collector"].send(self._unsent[0])
                self._unsent.popleft()
        except Full:
            pass  # sent again when the socket has room or is connected
        self._wake()
        self._arm()

    def _wake(self) -> None:
        while self._ready and not self._closed and self._running().pending < self.options.window:
            self._ready.pop(0).callback(None)

    def _arm(self) -> None:
        if self._closed:
            return
        delay = max(self._running().next_due() - self.reactor.seconds(), 0.01)
        timer = self._timer
        if timer is None or not timer.active():
            self._timer = self.reactor.callLater(delay, self._tick)
        elif timer.getTime() > self.reactor.seconds() + delay:
            timer.reset(delay)

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            try:
                self._dispatch(event)
            except Exception:
                log.failure("a callback of an event bus client raised an exception")

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, Events):
            (self.on_late or self.on_events if event.late else self.on_events)(event.events)
        elif isinstance(event, Confirmed):
            event.handle.callback(event.sequence)
        elif isinstance(event, Unconfirmed):
            event.handle.errback(PubUnconfirmed("no BROADCAST of the event arrived: it may or may not be published"))
        elif isinstance(event, Lost):
            self.on_lost(event.first, event.last)
        elif isinstance(event, Synchronised):
            self._set_alive(True)
            if self._connected is not None and not self._connected.called:
                self._connected.callback(None)
        elif isinstance(event, Restarted):
            self.on_restart()
        elif isinstance(event, Silent):
            self._set_alive(False)
        elif isinstance(event, Ignored):
            self.ignored[event.cause] = self.ignored.get(event.cause, 0) + 1

    def _set_alive(self, alive: bool) -> None:
        if alive is not self._alive:
            self._alive = alive
            self.on_alive(alive)


def _check(event: Pub) -> None:
    """Check the limits of the server.

    :raises LocalProtocolError: a server would refuse *event*
    """
    labels = event.producer, event.timestamp, event.uuid
    if len(event.topic.encode()) > MAX_NAME:
        raise LocalProtocolError(f"the topic has {len(event.topic.encode())} bytes; at most {MAX_NAME} are allowed")
    if max(map(len, labels)) > MAX_LABEL:
        raise LocalProtocolError(f"producer, timestamp and UUID may have at most {MAX_LABEL} bytes each")
    if len(event.data) > MAX_PAYLOAD:
        raise LocalProtocolError(f"the event data has {len(event.data)} bytes; at most {MAX_PAYLOAD} are allowed")
