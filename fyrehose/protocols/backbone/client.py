"""The backbone's client for programs: publish and know, subscribe in order, keep for others.

    client = BackboneClient(reactor, "127.0.0.1", 2323, on_records=print_them)
    await client.connect()
    seq = await client.publish(b"hello")
    await client.close()

The session does the thinking; here are the port, the timer and the Deferreds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from ipaddress import AddressValueError, IPv4Address
from random import Random, SystemRandom
from typing import Any, Protocol, cast

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from fyrehose.errors import Closed, FyrehoseError, LocalProtocolError, PublishError
from fyrehose.observe.counters import Counters
from fyrehose.protocols.backbone.client_session import (
    BackboneLost,
    ClientSession,
    Confirmed,
    Event,
    Found,
    Options,
    Records,
    Unconfirmed,
)
from fyrehose.protocols.backbone.frames import Address
from fyrehose.protocols.backbone.repair import Lost
from fyrehose.protocols.backbone.trains import Train
from fyrehose.protocols.backbone.udp import Owner, UDPPort, udp_socket
from fyrehose.records import Run

log = Logger()

PROTOCOL = "backbone-client"
#: What may wait for the window, in bytes; :meth:`BackboneClient.ready` keeps a program below that.
MOST_UNSENT = 64 << 20


class BackboneUnreachable(FyrehoseError):
    """Nobody acknowledged a KEEPALIVE."""


class PushUnconfirmed(PublishError):
    """A push was not delivered back in time: it may be published, or not."""

    retriable = True


class Port(Protocol):
    """What a client asks of :class:`fyrehose.protocols.backbone.udp.UDPPort`."""

    address: Address

    def listen(self) -> None: ...

    def send(self, train: Train, destination: Address) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def _ignore(*_: object) -> None:
    """Nobody wants to know."""


def open_port(reactor: Any, owner: Owner, address: Address) -> UDPPort:
    """A UDP port of this machine."""
    return UDPPort(reactor, owner, address, protocol=PROTOCOL, counters=Counters())


def host_towards(server: Address) -> str:
    """The address of this machine that datagrams to ``server`` come from."""
    with closing(udp_socket()) as probe:
        probe.connect(server)
        host: str = probe.getsockname()[0]
    return host


@attrs.define(eq=False)
class BackboneClient:
    """A client of one backbone.

    :ivar reactor: timers, readers and, where ``host`` is a name, its resolution
    :ivar on_records: is called with each run of records, in order, none twice; ``run.payloads()`` has them one by one
    :ivar on_gap: is called with the first and the last number of a range that nobody has any more
    :ivar on_alive: is called with True when the backbone answers (again), with False when it has not for 5 s
    :ivar options: subscriber, publisher, journal peer: see :class:`~.client_session.Options`
    :ivar persistent: whether to wait for a backbone that does not answer at first, as for one that is lost later
    :ivar bind: where to listen; None: at the address that looks towards the server, at any free port
    """

    reactor: Any
    host: str
    port: int
    options: Options = attrs.field(factory=Options, kw_only=True)
    on_records: Callable[[Run], object] = attrs.field(default=_ignore, kw_only=True)
    on_gap: Callable[[int, int], object] = attrs.field(default=_ignore, kw_only=True)
    on_alive: Callable[[bool], object] = attrs.field(default=_ignore, kw_only=True)
    persistent: bool = attrs.field(default=False, kw_only=True)
    bind: Address | None = attrs.field(default=None, kw_only=True)
    random: Random = attrs.field(factory=SystemRandom, kw_only=True)
    open_port: Callable[[Any, Owner, Address], Port] = attrs.field(default=open_port, kw_only=True)
    ignored: dict[str, int] = attrs.field(factory=dict, init=False)
    _session: ClientSession | None = attrs.field(default=None, init=False)
    _port: Port | None = attrs.field(default=None, init=False)
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)
    _connected: Deferred[None] | None = attrs.field(default=None, init=False)
    _ready: list[Deferred[None]] = attrs.field(factory=list, init=False)
    _drained: list[Deferred[None]] = attrs.field(factory=list, init=False)
    _congested: bool = attrs.field(default=False, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    # For programs.

    def connect(self) -> Deferred[None]:
        """Fires when the backbone has acknowledged us; from then on everything that it delivers comes.

        :raises BackboneUnreachable: through the Deferred, after 5 s without an answer; the client is closed then. One
            that is ``persistent`` goes on asking until :meth:`close`
        :raises CannotListenError: through the Deferred: ``bind`` is taken
        """
        if self._connected is not None:
            raise LocalProtocolError("a client connects once")
        self._connected = Deferred()
        connected = self._connected
        self._resolved().addCallback(self._start).addErrback(self._fail)
        return connected

    def publish(self, payload: bytes) -> Deferred[int]:
        """Fires with the sequence of ``payload`` when it has come back from the backbone: then it is durable there.

        Fails with :class:`PushUnconfirmed` when it has not come back in time, ``options.retries`` included, and when
        the client is closed.

        :raises LocalProtocolError: too large for a datagram, not connected, not subscribed, or far too much waits
        """
        session = self._running()
        if session.unsent > MOST_UNSENT:
            raise LocalProtocolError(f"more than {MOST_UNSENT} bytes wait to be pushed: wait for ready()")
        published: Deferred[int] = Deferred()
        session.push(payload, published)
        self._soon()
        return published

    def ready(self) -> Deferred[None]:
        """Fires when the window has room for another publish."""
        if self._running().has_room:
            return succeed(None)
        waiting: Deferred[None] = Deferred()
        self._ready.append(waiting)
        return waiting

    def drained(self) -> Deferred[None]:
        """Fires when every publish so far has fired or failed."""
        if self._running().idle:
            return succeed(None)
        waiting: Deferred[None] = Deferred()
        self._drained.append(waiting)
        return waiting

    @property
    def position(self) -> int | None:
        """The last number that was delivered or given up: where to go on after a restart (``options.after``)."""
        return None if self._session is None else self._session.position

    @property
    def missing(self) -> list[tuple[int, int]]:
        """The ranges below the highest number seen that have not come yet."""
        return [] if self._session is None else self._session.missing

    @property
    def address(self) -> Address:
        """Where the client listens.

        :raises LocalProtocolError: it does not
        """
        self._running()
        assert self._port is not None
        return self._port.address

    def close(self) -> Deferred[None]:
        """Stop at once; what is not confirmed fails with :class:`PushUnconfirmed`."""
        if not self._closed:
            self._closed = True
            if self._timer is not None and self._timer.active():
                self._timer.cancel()
            if self._port is not None:
                self._port.close()
            if self._session is not None:
                self._handle(self._session.abandon())
            closed = Closed("the client was closed")
            for waiting in (*self._ready, *self._drained):
                waiting.errback(closed)
            self._ready, self._drained = [], []
            if self._connected is not None and not self._connected.called:
                self._connected.errback(closed)
        return succeed(None)

    # What the port calls.

    def datagrams_received(self, data: memoryview, segment: int, source: Address) -> None:
        self._handle(self._running().receive_datagrams(data, segment, source, self.reactor.seconds()))

    def turn_over(self) -> None:
        self._flush()

    def congested(self) -> None:
        self._congested = True

    def relieved(self) -> None:
        self._congested = False
        self._flush()

    # Inside.

    def _running(self) -> ClientSession:
        if self._session is None or self._closed:
            raise LocalProtocolError("the client is not connected")
        return self._session

    def _resolved(self) -> Deferred[str]:
        try:
            return succeed(str(IPv4Address(self.host)))
        except AddressValueError:
            return cast("Deferred[str]", self.reactor.resolve(self.host))

    def _start(self, host: str) -> None:
        if self._closed:
            return
        server = (host, self.port)
        self._port = self.open_port(self.reactor, self, self.bind or (host_towards(server), 0))
        self._port.listen()
        now = self.reactor.seconds()
        self._session = ClientSession(server, self._port.address, self.options, self.random, now)
        self._tick()

    def _fail(self, failure: Any) -> None:
        connected = self._connected
        if connected is not None and not connected.called:
            connected.errback(failure)
        self.close()

    def _soon(self) -> None:
        """Look again when this turn of the reactor is over: what a program publishes in one goes out together."""
        self._arm(0.0)

    def _tick(self) -> None:
        self._timer = None
        if self._congested:
            self._arm(0.005)
            return
        self._handle(self._running().tick(self.reactor.seconds()))
        self._flush()

    def _flush(self) -> None:
        session, port = self._session, self._port
        if session is None or port is None or self._closed:
            return
        for train, destination in session.data_to_send():
            port.send(train, destination)
        port.flush()
        self._wake()
        if not self._closed:
            now = self.reactor.seconds()
            self._arm(max(session.next_due(now) - now, 0.0))

    def _arm(self, delay: float) -> None:
        timer = self._timer
        if timer is None or not timer.active():
            self._timer = self.reactor.callLater(delay, self._tick)
        elif timer.getTime() > self.reactor.seconds() + delay:
            timer.reset(delay)

    def _wake(self) -> None:
        """Tell those who wait for the window, and for the end of everything."""
        session = self._session
        assert session is not None
        while self._ready and session.has_room and not self._closed:
            self._ready.pop(0).callback(None)
        if self._drained and session.idle:
            drained, self._drained = self._drained, []
            for waiting in drained:
                waiting.callback(None)

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            try:
                self._take(event)
            except Exception:
                log.failure("{protocol}: what it was told made the program fail", protocol=PROTOCOL)

    def _take(self, event: Event) -> None:
        if isinstance(event, Records):
            self.on_records(event.run)
        elif isinstance(event, Confirmed):
            event.handle.callback(event.seq)
        elif isinstance(event, Unconfirmed):
            event.handle.errback(PushUnconfirmed("the push did not come back: it may be published, or not"))
        elif isinstance(event, Lost):
            self.on_gap(event.first, event.last)
        elif isinstance(event, Found):
            if self._connected is not None and not self._connected.called:
                self._connected.callback(None)
            self.on_alive(True)
        elif isinstance(event, BackboneLost):
            self._gone()
        else:
            self.ignored[event.cause] = self.ignored.get(event.cause, 0) + 1

    def _gone(self) -> None:
        self.on_alive(False)
        if self._connected is not None and not self._connected.called and not self.persistent:
            where = f"{self.host}:{self.port}"
            self._connected.errback(BackboneUnreachable(f"no backbone at {where} answers: is it up, and allows us?"))
            self.close()
