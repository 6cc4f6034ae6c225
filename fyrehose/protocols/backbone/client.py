"""A client of the backbone for programs: publish with confirmation, subscribe in order, send stored records to others.

    client = BackboneClient(reactor, "127.0.0.1", 2323)
    client.subscribe(None, print_run)
    await client.connect()
    seq = await client.publish(None, b"hello")
    await client.close()

This module owns the port, the timers and the Deferreds; :mod:`~.session` implements the protocol without I/O.
While the server does not answer, the client looks up its name and binds another port every few seconds, because the
address of the server, of this machine, or of a router between them may have changed; the session continues there.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import AddressValueError, IPv4Address
from random import Random, SystemRandom
from typing import Any, cast

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import ConfigError, FyrehoseError, LocalProtocolError, PublishError
from fyrehose.interfaces import IPublisher, ITailer
from fyrehose.net.clients import Backoff, Client, ConnectionFailed, ConnectionOptions, tell_restarted
from fyrehose.net.lifecycle import Timers
from fyrehose.net.udp import TrainProtocol, UDPPort, host_towards
from fyrehose.observe.counters import Counters
from fyrehose.protocols.backbone.frames import Address
from fyrehose.protocols.backbone.repair import RecordsSkipped
from fyrehose.protocols.backbone.session import (
    BackboneClientSession,
    BackboneLost,
    BackboneOptions,
    ClientEvent,
    Found,
    JournalReplaced,
    PushConfirmed,
    PushTimedOut,
)
from fyrehose.records import Run

log = Logger()

#: Upper bound of the messages that wait for room in the window, in bytes; a program that awaits `ready()` keeps
#: below it.
MOST_UNSENT = 64 << 20
#: Upper bound of the ranges that :meth:`BackboneClient.shortfall` lists.
MOST_NAMED = 10
#: Delay before the next attempt to send while the kernel has no room, in seconds.
CONGESTED = 0.005
#: Without an ACK for 5 s the server is lost (rule 2 of the backbone); the client looks for it 1, 2, 4, 5 ... s later.
BACKBONE_OPTIONS = ConnectionOptions(silence=5.0, retry=Backoff(first=1.0, longest=5.0))


class BackboneUnreachable(FyrehoseError):
    """The backbone has not acknowledged a KEEPALIVE in time."""


class PushUnconfirmed(PublishError):
    """The DELIVER that confirms a push did not arrive in time, so the message may or may not be published."""

    retriable = True


def _ignore(*_: object) -> None:
    """Ignore the call; the default of every callback."""


@implementer(IPublisher, ITailer)
@attrs.define(eq=False)
class BackboneClient(Client, TrainProtocol):
    """A client of one backbone, which has one stream: *stream* is None in all calls.

    :ivar clock: the reactor: provides timers and readers, and resolves ``host`` if it is a name
    :ivar connection_options: its ``silence`` is the time without a KEEPALIVE-ACK after which the server is lost, and
        ``retry`` maps the number of attempts in vain to find the server again to the delay before the next one
    :ivar options: the roles of the client: see :class:`~.session.BackboneOptions`
    :ivar bind: the address to bind; None: the address that faces the server, and any free port
    :ivar open_port: returns a new port, which is not bound yet
    :ivar counters: counts the datagrams that were dropped, by cause
    """

    absent = False  #: the protocol does not say whether the stream exists

    name = "backbone-client"

    clock: Any
    host: str
    port: int
    options: BackboneOptions = attrs.field(factory=BackboneOptions, kw_only=True)
    connection_options: ConnectionOptions = attrs.field(default=BACKBONE_OPTIONS, kw_only=True)
    bind: Address | None = attrs.field(default=None, kw_only=True)
    random: Random = attrs.field(factory=SystemRandom, kw_only=True)
    open_port: Callable[..., Any] = attrs.field(default=UDPPort, kw_only=True)
    counters: Counters = attrs.field(factory=Counters, init=False)
    _take: Callable[[Run], object] = attrs.field(default=_ignore, init=False)
    _gap: Callable[[int, int], object] = attrs.field(default=_ignore, init=False)
    _restarted: Callable[[int], object] | None = attrs.field(default=None, init=False)
    _after: int | None = attrs.field(default=None, init=False)
    #: the first ranges that were given up, and how many there were
    _given_up: list[tuple[int, int]] = attrs.field(factory=list, init=False)
    _given_up_count: int = attrs.field(default=0, init=False)
    _server: Address | None = attrs.field(default=None, init=False)
    _session: BackboneClientSession | None = attrs.field(default=None, init=False)
    timers: Timers = attrs.field(default=attrs.Factory(lambda self: Timers(self.clock), takes_self=True), init=False)
    _failures: int = attrs.field(default=0, init=False)
    _paused: bool = attrs.field(default=False, init=False)

    # For programs.

    def prepare(self, stream: str | None) -> None:
        """Check *stream*.

        :raises ConfigError: *stream* is given; a backbone has only one stream
        """
        if stream is not None:
            raise ConfigError(f"unexpected --stream {stream!r}: a backbone has one stream; omit the option")

    def subscribe(
        self,
        stream: str | None,
        take: Callable[[Run], object],
        after: int | None = None,
        lost: Callable[[int, int], object] | None = None,
        restarted: Callable[[int], object] | None = None,
    ) -> None:
        """Receive records; the client has only one subscription, so a second call replaces the first.

        :param take: called with runs of records in order, each record once; ``run.payloads()`` yields the payloads
        :param after: start after this sequence (0: from the oldest record), and publish nothing; None: start with the
            first DELIVER that arrives
        :param lost: called with the first and last sequence of each range that is skipped, because requests for it were
            in vain
        :param restarted: called with the last sequence of the backbone, as far as it is known, if it has another
            journal; the client then reads that from its start.  If that journal has already passed the last sequence of
            the old one when the client comes back, the protocol cannot tell the two apart
        :raises ConfigError: *stream* is given
        """
        self.prepare(stream)
        self._take, self._gap, self._after, self._restarted = take, lost or _ignore, after, restarted
        if self._session is not None and after is not None:
            self._stop()
            self._attempt()

    def publish(self, stream: str | None, payload: bytes) -> Deferred[int]:
        """Publish a message.

        :return: a Deferred that fires with the sequence of *payload* when its DELIVER arrives, so that *payload* is
            durable on the server; fails with :class:`PushUnconfirmed` if none arrives after ``options.retries``, or if
            the client is closed
        :raises LocalProtocolError: *payload* does not fit into a datagram, the client is not connected, its options
            exclude publishing, or too many messages wait
        :raises ConfigError: *stream* is given
        """
        self.prepare(stream)
        session = self._running()
        if session.pushes.unsent > MOST_UNSENT:
            raise LocalProtocolError(f"more than {MOST_UNSENT >> 20} MiB wait to be sent; wait for ready()")
        published: Deferred[int] = Deferred()
        session.push(payload, published)
        self.timers.start(
            0, self._tick
        )  # after this turn of the reactor, so that messages published in one turn share datagrams
        return published

    def ready(self) -> Deferred[None]:
        """Return a Deferred that fires when the window has room for another publish."""
        pushes = self._running().pushes
        return self.watchers.when(lambda: pushes.has_room)

    def drained(self) -> Deferred[None]:
        """Return a Deferred that fires when every publish so far is confirmed or has failed."""
        pushes = self._running().pushes
        return self.watchers.when(lambda: pushes.idle)

    def pause(self) -> None:
        """Stop receiving records: close the port, until :meth:`resume` opens another and requests what was missed."""
        self._paused = True
        self._after = self.position
        self._stop()

    def resume(self) -> None:
        """Continue after the last record that was passed on."""
        self._paused = False
        if self._connected is not None and self._session is None:
            self._attempt()

    @property
    def position(self) -> int | None:
        """Return the last sequence that was delivered or given up; pass it to :meth:`subscribe` to resume."""
        position = None if self._session is None else self._session.repair.position
        return self._after if position is None else position

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Return the ranges (first, last) of missing records below the highest sequence seen."""
        return [] if self._session is None else self._session.repair.missing

    @property
    def address(self) -> Address:
        """Return the address that the client is bound to.

        :raises LocalProtocolError: the client is not connected, or could not bind a port again
        """
        self._running()
        if self.transport is None:
            raise LocalProtocolError("the client has no port at present; it tries to bind one again")
        host = self.transport.getHost()
        return host.host, host.port

    def shortfall(self, complete: bool) -> str:
        """Describe the missing records in a sentence; return "" if none is missing.

        With UDP, a record that is no longer kept cannot be distinguished from a lost answer.

        :param complete: whether the program has received all records that it waited for
        """
        missing = [] if complete else self.missing
        ranges, count = [*self._given_up, *missing], self._given_up_count + len(missing)
        reasons = []
        if ranges:
            named = ", ".join(f"{first} to {last}" for first, last in ranges[:MOST_NAMED])
            more = f" and {count - MOST_NAMED} more ranges" if count > MOST_NAMED else ""
            reasons.append(f"records {named}{more} did not arrive: no longer kept, or the answers were lost")
        if self._session is not None and not complete and not self._session.found:
            which = "all records" if self.position is None else f"the records after {self.position}"
            silence = self.connection_options.silence
            reasons.append(f"the server has not answered for {silence:g} s: {which} may be missing")
        return "; ".join(reasons)

    # Called by the shell.

    def start(self) -> None:
        self._attempt()

    def stop(self) -> Deferred[None]:
        self._stop()
        return succeed(None)

    # Called by the port.

    def datagrams_received(self, data: memoryview, segment: int, source: Address) -> None:
        self._handle(self._running().receive_datagrams(data, segment, source, self.clock.seconds()))

    def turn_over(self) -> None:
        """Send the datagrams of the session, and schedule the next call of :meth:`_tick`."""
        session = self._session
        if session is None:
            return
        trains = session.data_to_send()
        if self.transport is not None:  # without a port they are lost, as datagrams may be
            for train, destination in trains:
                self.send(train, destination)
            self.flush()
        self.watchers.notify()
        if self._session is session:
            now = self.clock.seconds()
            self.timers.start(max(session.next_due(now) - now, 0.0), self._tick)

    def relieved(self) -> None:
        self.turn_over()

    # The port and the session.

    def _running(self) -> BackboneClientSession:
        if self._session is None:
            raise LocalProtocolError("the client is not connected; call connect() first")
        return self._session

    def _attempt(self) -> None:
        """Look up the server, and bind a port that faces it, unless the server answers."""
        if self._seeking:
            self._resolved().addCallback(self._found_host).addErrback(self._attempt_failed)

    @property
    def _seeking(self) -> bool:
        """Return whether the client should have a server, and has none that answers."""
        return not (self._paused or self.closed or (self._session is not None and self._session.found))

    def _resolved(self) -> Deferred[str]:
        """Look up the server; return its last known address if the lookup fails, or if the server was not lost."""
        try:
            return succeed(str(IPv4Address(self.host)))
        except AddressValueError:
            pass
        if self._server is None:
            return cast("Deferred[str]", self.clock.resolve(self.host))
        last, _ = self._server
        if self._session is None:
            return succeed(last)
        return cast("Deferred[str]", self.clock.resolve(self.host)).addErrback(lambda _: last)

    def _found_host(self, host: str) -> None:
        self._server = (host, self.port)
        if self._seeking:
            self._open()

    def _open(self) -> None:
        """Bind a port, and begin a session there, or continue the session of a server that is lost."""
        assert self._server is not None
        host, number = self.bind or (host_towards(self._server), 0)
        self._close_port()
        self.open_port(number, self, host, self.clock).startListening()
        own = self.transport.getHost()
        now = self.clock.seconds()
        address = (own.host, own.port)
        if self._session is None:
            silence = self.connection_options.silence
            self._session = BackboneClientSession(
                self._server, address, self.options, self.random, now, self._after, silence
            )
        else:
            self._session.move(self._server, address, now)
            self._attempt_later()
        self._tick()

    def _attempt_later(self) -> None:
        self._failures += 1
        self.timers.start(self.connection_options.retry(self._failures), self._attempt)

    def _attempt_failed(self, failure: Failure) -> None:
        reason = failure.value if isinstance(failure.value, Exception) else RuntimeError(failure.getErrorMessage())
        if self.retries(ConnectionFailed(reason)):
            self._attempt_later()
            if self._session is not None:
                self._tick()

    def _stop(self) -> None:
        """Close the UDP port, and forget the protocol session."""
        session, self._session = self._session, None
        self.timers.clear()
        self._close_port()
        if session is not None:
            self._handle(session.abandon())

    def _close_port(self) -> None:
        if self.transport is not None:
            self.transport.stopListening()

    def _tick(self) -> None:
        session, now = self._running(), self.clock.seconds()
        if self.waiting and not session.silent(now):
            self.timers.start(CONGESTED, self._tick)
            return
        self._handle(session.tick(now))
        self.turn_over()

    # Events.

    def _handle(self, events: list[ClientEvent]) -> None:
        for event in events:
            try:
                self._dispatch(event)
            except Exception:
                log.failure("{name}: a callback raised an exception", name=self.name)

    def _dispatch(self, event: ClientEvent) -> None:
        if isinstance(event, Run):
            self._take(event)
        elif isinstance(event, PushConfirmed):
            event.handle.callback(event.seq)
        elif isinstance(event, PushTimedOut):
            event.handle.errback(PushUnconfirmed("no DELIVER of the push arrived: it may or may not be published"))
        elif isinstance(event, RecordsSkipped):
            self._given_up_count += 1
            if len(self._given_up) < MOST_NAMED:
                self._given_up.append((event.first, event.last))
            self._gap(event.first, event.last)
        elif isinstance(event, JournalReplaced):
            tell_restarted(None, event.highest, event.end, self._restarted)
        elif isinstance(event, Found):
            self._failures = 0
            self.timers.stop(self._attempt)
            self.established()
        elif isinstance(event, BackboneLost):
            self._backbone_lost()
        else:
            self.counters.add(self.name, event.cause)

    def _backbone_lost(self) -> None:
        self.on_state(False)
        where, silence = f"{self.host}:{self.port}", self.connection_options.silence
        advice = "check that it runs, and that its access policy permits this client"
        error = BackboneUnreachable(f"no backbone at {where} has answered for {silence:g} s; {advice}")
        if self._session is not None and self.retries(error):
            self._attempt_later()
