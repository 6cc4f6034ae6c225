"""The event bus's client for programs: subscribe without a gap, publish and know.

    client = EventBusClient(reactor, "127.0.0.1", 5556, options=Options(subtrees=("/a/",), after=0), on_events=print)
    await client.connect()
    seq = await client.publish("/a/b/", msgpack.packb({"n": 1}))
    await client.close()

The session does the thinking; here are the sockets, the timer and the Deferreds.
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
    To,
)
from fyrehose.protocols.eventbus.confirmations import Confirmed, Unconfirmed
from fyrehose.protocols.eventbus.frames import MAX_LABEL, Broadcast, Pub
from fyrehose.protocols.eventbus.labels import USUAL_TIME, write_time
from fyrehose.protocols.eventbus.sockets import Context, Keys, address, client_socket
from fyrehose.protocols.eventbus.zmqport import CONNECTED, DISCONNECTED, Full, Monitor, ZMQPort
from fyrehose.records import MAX_NAME, MAX_PAYLOAD, Buffer

log = Logger()

#: What may wait in a socket, to be read and to be sent, in messages.
WAITING = 1_000
#: How long what is being sent has to leave at the end, in milliseconds.  Not 0: where a connection breaks in the middle
#: of a message whose socket was closed at once, libzmq (4.3.5, its issue 3442) aborts the process.
LINGER = 200
#: A publisher of more topics than these hears everything, and looks for its own.
MOST_TOPICS = 1_000
#: The connections that events come by.
NEEDED = {"publisher", "snapshot"}


class Unconfirmable(PublishError):
    """An event did not come back in time: it may be published, or not."""

    retriable = True


def _ignore(*_: object) -> None:
    """Nobody wants to know."""


def _microseconds() -> int:
    return time.time_ns() // 1_000


@attrs.define(eq=False)
class EventBusClient:
    """A client of one event bus.

    :ivar reactor: timers, readers, and threads for the end
    :ivar port: of SNAPSHOT; PUBLISHER and COLLECTOR are the two behind it
    :ivar on_events: is called with a tuple of :class:`~.frames.Broadcast`, their sequences strictly increasing
    :ivar on_late: the same for events that greater sequences came before, none twice; by default ``on_events`` has them
    :ivar on_lost: is called with the first and the last number of a range that the server does not have any more
    :ivar on_restart: is called when the server turns out to have another journal; everything in it follows
    :ivar on_alive: is called with True when the server answers (again), with False when it does not
    :ivar topics: what will be published to, so that confirmations come from the first on
    :ivar producer: what the client calls itself in its events
    :ivar server_key: the server's public key (Z85), where it uses CURVE
    :ivar keys: the client's key pair; None: one that is made up
    :ivar now: the wall clock, in microseconds since 1970 UTC
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
    _own: set[str] = attrs.field(factory=set, init=False)
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)
    _connected: Deferred[None] | None = attrs.field(default=None, init=False)
    _ready: list[Deferred[None]] = attrs.field(factory=list, init=False)
    _paused: bool = attrs.field(default=False, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    # For programs.

    def connect(self) -> Deferred[None]:
        """Fires when the server has answered, and what it had has been handed out.

        :raises LocalProtocolError: ``options.subtrees`` is not what a server takes, ``host`` is none, or it was called
            before, or after :meth:`close`
        """
        if self._context is not None or self._closed:
            raise LocalProtocolError("a client connects once")
        now = self.reactor.seconds()
        self._session = ClientSession(self.options, self.random, now)
        self._context = zmq.Context()
        self._open("publisher", zmq.SUB, 1)
        self._open("snapshot", zmq.DEALER, 0)
        self._open("collector", zmq.DEALER, 2)
        connected = self._connected = Deferred()
        if self.options.subscribe:
            for prefix in self.options.subtrees or ("",):
                self._listen_to(prefix)
        for topic in self.topics:
            self._confirm_in(topic)
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
        """Fires with the sequence of the event when it has come back: then it is durable at the server.

        Fails with :class:`Unconfirmable` when it has not come back in time, ``options.retries`` included, and when the
        client is closed.

        :param data: msgpack; it is not looked at
        :param timestamp: by default the time now
        :param uuid: by default a new one
        :raises LocalProtocolError: a label or the data is too long, not connected, or far too much waits
        """
        session = self._running()
        if session.pending >= 2 * self.options.window:
            raise LocalProtocolError(f"{session.pending} events are under way: wait for ready()")
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
        self._confirm_in(topic)
        published: Deferred[int] = Deferred()
        session.publish(event, published, self.reactor.seconds())
        self._flush()
        return published

    def ready(self) -> Deferred[None]:
        """Fires when the window has room for another publish."""
        if self._running().pending < self.options.window:
            return succeed(None)
        waiting: Deferred[None] = Deferred()
        self._ready.append(waiting)
        return waiting

    def pause(self) -> None:
        """Hand out nothing more, and read nothing; the server does not wait for us."""
        self._paused = True
        for name in ("publisher", "snapshot"):
            if name in self._ports:
                self._ports[name].pause()

    def resume(self) -> None:
        """Go on behind the last event that was handed out; what was missed is asked for."""
        if self._paused and not self._closed:
            self._paused = False
            for name in ("publisher", "snapshot"):
                self._ports[name].start()
            self._running().resumed(self.reactor.seconds())
            self._flush()

    @property
    def position(self) -> int | None:
        """The number up to which all was handed out: where to go on after a restart (``options.after``)."""
        return None if self._session is None else self._session.position

    def close(self) -> Deferred[None]:
        """Stop at once; what is not confirmed fails with :class:`Unconfirmable`.  Fires when the sockets are gone."""
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

    # Inside: sockets.

    def _open(self, name: str, kind: int, offset: int) -> None:
        context = self._context
        assert context is not None
        opened = client_socket(context, kind, self.server_key, self.keys, sent=WAITING)
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
            raise LocalProtocolError(f"{self.host!r} and port {self.port} are no address: {error}") from error

    def _renew(self) -> None:
        """A new connection to SNAPSHOT, and nothing of what the old one still has."""
        self._monitors.pop("snapshot").close()
        self._ports.pop("snapshot").close()
        self._up.discard("snapshot")
        self._renewing = True
        self._open("snapshot", zmq.DEALER, 0)

    def _listen_to(self, prefix: str) -> None:
        self._ports["publisher"].socket.setsockopt(zmq.SUBSCRIBE, prefix.encode())
        self._ports["publisher"].poke()

    def _confirm_in(self, topic: str) -> None:
        """Make sure that what is published to ``topic`` is heard when it comes back."""
        everything = self.options.subscribe and not self.options.subtrees
        if everything or topic in self._own or len(self._own) > MOST_TOPICS:
            return
        self._own.add(topic)
        self._listen_to(topic if len(self._own) <= MOST_TOPICS else "")

    def _connection(self, name: str, up: bool) -> None:
        """SNAPSHOT and PUBLISHER have to be there, both; what is missed while one is not is asked for after that."""
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
                self._renewing = False  # the session wanted it, and has asked already
            elif self._up >= NEEDED:
                session.connected(now)
        self._flush()

    # Inside: what comes and goes.

    def _running(self) -> ClientSession:
        if self._session is None or self._closed:
            raise LocalProtocolError("the client is not connected")
        return self._session

    def _turn_over(self) -> None:
        session, now = self._running(), self.reactor.seconds()
        for name, receive in (("publisher", session.receive_broadcasts), ("snapshot", session.receive_syncs)):
            messages, self._received[name] = self._received[name], []
            if messages and not self._closed:
                self._handle(receive(messages, now))
        self._received["collector"].clear()  # nothing ever comes from there
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
        """Send what waits, as far as there is somebody to send it to."""
        waiting = {id(frames) for frames in self._unsent}
        for to, frames in self._running().data_to_send():
            if to is To.COLLECTOR:
                if id(frames) not in waiting:
                    self._unsent.append(frames)
                continue
            if to is To.ANEW:
                self._renew()
            self._request = frames
        try:
            if self._request is not None:
                self._ports["snapshot"].send(self._request)
                self._request = None
        except Full:
            pass  # sent when there is a connection
        try:
            while self._unsent:
                self._ports["collector"].send(self._unsent[0])
                self._unsent.popleft()
        except Full:
            pass  # sent when there is room, or a connection
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
                self._take(event)
            except Exception:
                log.failure("what an event bus client was told made the program fail")

    def _take(self, event: Event) -> None:
        if isinstance(event, Events):
            (self.on_late or self.on_events if event.late else self.on_events)(event.events)
        elif isinstance(event, Confirmed):
            event.handle.callback(event.sequence)
        elif isinstance(event, Unconfirmed):
            event.handle.errback(Unconfirmable("the event did not come back: it may be published, or not"))
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
    """:raises LocalProtocolError: a server would refuse ``event``"""
    labels = event.producer, event.timestamp, event.uuid
    if len(event.topic.encode()) > MAX_NAME:
        raise LocalProtocolError(f"a topic has {MAX_NAME} bytes at the most")
    if max(map(len, labels)) > MAX_LABEL:
        raise LocalProtocolError(f"a label has {MAX_LABEL} bytes at the most")
    if len(event.data) > MAX_PAYLOAD:
        raise LocalProtocolError(f"an event has {MAX_PAYLOAD} bytes at the most")
