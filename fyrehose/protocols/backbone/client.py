"""A client of the backbone for programs: publish with confirmation, subscribe in order, store records for others.

    client = BackboneClient(reactor, "127.0.0.1", 2323, on_records=print_them)
    await client.connect()
    seq = await client.publish(b"hello")
    await client.close()

This module owns the port, the timer and the Deferreds; :mod:`~.client_session` implements the protocol without I/O.
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
#: Upper bound of messages that wait for the window, in bytes; a program that awaits `ready()` stays below it.
MOST_UNSENT = 64 << 20


class BackboneUnreachable(FyrehoseError):
    """The backbone has not acknowledged a KEEPALIVE within 5 s of connecting."""


class PushUnconfirmed(PublishError):
    """The DELIVER of a push did not arrive in time, so the message may or may not be published."""

    retriable = True


class Port(Protocol):
    """The part of :class:`fyrehose.protocols.backbone.udp.UDPPort` that a client uses."""

    address: Address

    def listen(self) -> None: ...

    def send(self, train: Train, destination: Address) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def _ignore(*_: object) -> None:
    """Ignore the call; the default of every callback."""


def open_port(reactor: Any, owner: Owner, address: Address) -> UDPPort:
    """Return a UDP port for *address* of this machine, not bound yet."""
    return UDPPort(reactor, owner, address, protocol=PROTOCOL, counters=Counters())


def host_towards(server: Address) -> str:
    """Return the address of this machine from which datagrams to *server* are sent."""
    with closing(udp_socket()) as probe:
        probe.connect(server)
        host: str = probe.getsockname()[0]
    return host


@attrs.define(eq=False)
class BackboneClient:
    """A client of one backbone.

    :ivar reactor: provides timers and readers, and resolves ``host`` if it is a name
    :ivar on_records: called with runs of records in order, each record once; ``run.payloads()`` yields the payloads
    :ivar on_gap: called with the first and last sequence of a range that was requested in vain and is skipped
    :ivar on_alive: called with True when the backbone answers (again), with False when it has not answered for 5 s
    :ivar options: the roles of the client: see :class:`~.client_session.Options`
    :ivar persistent: wait for a backbone that does not answer at first, instead of failing after 5 s
    :ivar bind: the address to bind; None: the address that faces the server, and any free port
    :ivar ignored: number of datagrams that were ignored, by cause
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
        """Connect to the backbone.

        :return: fires when the backbone has acknowledged a KEEPALIVE, and delivers records from then on.  Fails with
            :class:`BackboneUnreachable` after 5 s without an answer, unless the client is ``persistent``, and with
            CannotListenError if ``bind`` is in use; the client is closed then
        :raises LocalProtocolError: the client was connected before
        """
        if self._connected is not None:
            raise LocalProtocolError("connect() was called before; create a new client")
        self._connected = Deferred()
        connected = self._connected
        self._resolved().addCallback(self._start).addErrback(self._fail)
        return connected

    def publish(self, payload: bytes) -> Deferred[int]:
        """Publish a message.

        :return: fires with the sequence of *payload* when its DELIVER arrives, so that it is durable on the server;
            fails with :class:`PushUnconfirmed` if none arrives after ``options.retries``, or if the client is closed
        :raises LocalProtocolError: *payload* does not fit into a datagram, the client is not connected, its options
            exclude publishing, or too many messages wait
        """
        session = self._running()
        if session.unsent > MOST_UNSENT:
            raise LocalProtocolError(f"more than {MOST_UNSENT >> 20} MiB wait to be sent; wait for ready()")
        published: Deferred[int] = Deferred()
        session.push(payload, published)
        self._schedule_tick()
        return published

    def ready(self) -> Deferred[None]:
        """Return a Deferred that fires when the window has room for another publish."""
        if self._running().has_room:
            return succeed(None)
        waiting: Deferred[None] = Deferred()
        self._ready.append(waiting)
        return waiting

    def drained(self) -> Deferred[None]:
        """Return a Deferred that fires when every publish so far is confirmed or has failed."""
        if self._running().idle:
            return succeed(None)
        waiting: Deferred[None] = Deferred()
        self._drained.append(waiting)
        return waiting

    @property
    def position(self) -> int | None:
        """The last sequence that was delivered or given up; pass it as ``Options.after`` to resume."""
        return None if self._session is None else self._session.position

    @property
    def missing(self) -> list[tuple[int, int]]:
        """The ranges (first, last) of missing records below the highest sequence seen."""
        return [] if self._session is None else self._session.missing

    @property
    def address(self) -> Address:
        """The address that the client is bound to.

        :raises LocalProtocolError: the client is not connected
        """
        self._running()
        assert self._port is not None
        return self._port.address

    def close(self) -> Deferred[None]:
        """Close the client; unconfirmed messages fail with :class:`PushUnconfirmed`."""
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

    # Called by the port.

    def datagrams_received(self, data: memoryview, segment: int, source: Address) -> None:
        self._handle(self._running().receive_datagrams(data, segment, source, self.reactor.seconds()))

    def turn_over(self) -> None:
        self._flush()

    def congested(self) -> None:
        self._congested = True

    def relieved(self) -> None:
        self._congested = False
        self._flush()

    def _running(self) -> ClientSession:
        if self._session is None or self._closed:
            raise LocalProtocolError("the client is not connected; call connect() first")
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

    def _schedule_tick(self) -> None:
        """Call :meth:`_tick` after this turn of the reactor, so that messages published in one turn share datagrams."""
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
        """Fire the Deferreds of :meth:`ready` and :meth:`drained` whose condition holds."""
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
                self._dispatch(event)
            except Exception:
                log.failure("{protocol}: a callback raised an exception", protocol=PROTOCOL)

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, Records):
            self.on_records(event.run)
        elif isinstance(event, Confirmed):
            event.handle.callback(event.seq)
        elif isinstance(event, Unconfirmed):
            event.handle.errback(PushUnconfirmed("no DELIVER of the push arrived: it may or may not be published"))
        elif isinstance(event, Lost):
            self.on_gap(event.first, event.last)
        elif isinstance(event, Found):
            if self._connected is not None and not self._connected.called:
                self._connected.callback(None)
            self.on_alive(True)
        elif isinstance(event, BackboneLost):
            self._backbone_lost()
        else:
            self.ignored[event.cause] = self.ignored.get(event.cause, 0) + 1

    def _backbone_lost(self) -> None:
        self.on_alive(False)
        if self._connected is not None and not self._connected.called and not self.persistent:
            where = f"{self.host}:{self.port}"
            reason = f"no backbone at {where} has answered for 5 s; check that it runs and that its policy permits us"
            self._connected.errback(BackboneUnreachable(reason))
            self.close()
