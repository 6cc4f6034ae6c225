"""The base of all TCP protocols: it connects a socket to a sans-I/O session and to the broker.

    dataReceived -> session.receive_data -> one method for each event -> broker.publish / subscribe
    write        <- session.data_to_send <- acknowledgements, deliveries

It handles everything that the protocols have in common: the memory budget, deadlines, slow peers, and closing.  Limits
of connections are in connections.py, and listening is in endpoints.py.  A protocol adds a table from event types to
methods.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IDelayedCall,
    IHalfCloseableProtocol,
    IHandshakeListener,
    IPushProducer,
    IReactorTime,
    ISSLTransport,
    ITCPTransport,
)
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.core.budget import Account
from fyrehose.errors import Broken, Forbidden, FyrehoseError, ReadOnly, RemoteProtocolError
from fyrehose.identity import Identity
from fyrehose.interfaces import IBroker, ISubscription
from fyrehose.net.connections import PROOFS
from fyrehose.net.handshakes import Handshake
from fyrehose.net.holding import LONGEST
from fyrehose.net.incoming import SLOWEST, FrameWatch, Reading
from fyrehose.net.peers import identify
from fyrehose.options import count, duration, option
from fyrehose.records import Run

T = TypeVar("T")

#: How long a peer may take to read the remaining data of a connection that is being closed, in seconds.
LINGER = 5.0
#: How long a publisher waits before it is disconnected because the disk is full, in seconds.
FULL_GRACE = 5.0
#: The most bytes of replies that a peer may leave unread.
MOST_UNREAD = 1 << 20


class Session(Protocol):
    """A sans-I/O session, as :class:`SessionProtocol` uses it."""

    @property
    def expected(self) -> int:
        """Return the size of the incomplete frame in bytes, as far as it is known; 0 between frames."""

    @property
    def buffered(self) -> int:
        """Return how many bytes of the incomplete frame are in memory."""

    def receive_data(self, data: bytes) -> list[Any]: ...

    def receive_eof(self) -> list[Any]: ...

    def data_to_send(self) -> list[bytes]: ...


@attrs.frozen(kw_only=True)
class TCPSettings:
    """The options of every TCP protocol: limits of connections."""

    max_connections: int = option(10_000, count, "most connections at a time", least=1)
    max_per_host: int = option(2_000, count, "most connections from one address or IPv6 /64", least=1)
    silent_timeout: float = option(30.0, duration, "time for the first byte of a new connection; 0: no limit")
    refusal_delay: float = option(LONGEST, duration, "longest time to hold a refused connection; 0: close it at once")
    frame_timeout: float = option(30.0, duration, "time to receive a whole frame")
    stall_timeout: float = option(30.0, duration, "time for a peer to read pending data")
    handshake_timeout: float = option(10.0, duration, "time for a handshake, including that of TLS")


@implementer(IPushProducer, IHalfCloseableProtocol, IHandshakeListener)
class SessionProtocol(TwistedProtocol):
    """The protocol of one connection.

    Subclasses fill ``handlers``, and call :meth:`flush` after the session has data to send.
    """

    protocol_name: ClassVar[str]
    log: ClassVar[Logger]
    #: event type -> name of the method that handles it
    handlers: ClassVar[dict[type, str]]

    factory: Any  #: the SessionFactory
    transport: Any  #: ITCPTransport and IConsumer, which Twisted's annotation does not say
    reading: Reading  #: pauses and resumes reading, for several parties
    peer = "?"  #: the peer's host, for log lines
    network = "?"  #: the network under which limits per address count it
    same_network: OrderedDict[SessionProtocol, None]  #: connections of that network, the longest idle first
    address = "?"  #: the peer's host and port
    identity: Identity  #: the identity of the peer, as far as it has proved it
    _handshake: Handshake

    def __init__(self, session: Session, broker: IBroker, clock: IReactorTime, settings: TCPSettings) -> None:
        self.session = session
        self.broker = broker
        self.clock = clock
        self.settings = settings
        self._account: Account | None = None
        self._subscriptions: dict[ISubscription, None] = {}  #: in the order of attach()
        self._write_paused = False
        self._written = 0  #: most bytes that the peer must read before the transport resumes
        self._unread = 0  #: bytes of it that are replies to a peer that does not read
        self._in_flight = 0
        self._written_to = False  #: True if data was written since the last call of is_idle()
        self._closing = False
        self._delay = 0.0  #: seconds to hold the connection before closing, after a refusal
        self._frame = FrameWatch(clock, settings.frame_timeout, self._late, self._give_way)
        self._got = 0  #: bytes that were read and not handled yet
        self._stall_timer: IDelayedCall | None = None
        self._silence_timer: IDelayedCall | None = None
        self._linger_timer: IDelayedCall | None = None

    @property
    def subscriber(self) -> tuple[str, str]:
        """Return the protocol and the peer, for sinks of subscriptions."""
        return self.protocol_name, self.address

    # Called by the reactor.

    def connectionMade(self) -> None:
        transport = self.transport
        peer = transport.getPeer()
        port = getattr(peer, "port", None)
        self.address = self.peer if port is None else f"{self.peer}:{port}"
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
            transport.setTcpKeepAlive(True)
        transport.bufferSize = self.factory.buffer_size
        self.reading = Reading(self._stop_reading, self.read_again)
        self._account = self._frame.account = self.broker.budget.account(self.reading, self.network, self._frame)
        transport.registerProducer(self, True)
        self.broker.counters.add(self.protocol_name, "connections")
        self._identify()
        self._handshake = Handshake(self.protocol_name, self.peer, self.log, self.broker.counters)
        self._handshake.begin(transport, self.clock, self.settings.handshake_timeout)
        if self.settings.silent_timeout:
            self._silence_timer = self.clock.callLater(self.settings.silent_timeout, self._handle_silence)
        if not ISSLTransport.providedBy(transport):
            self._check_admitted()

    def handshakeCompleted(self) -> None:
        """Identify the peer by its certificate, after the TLS handshake."""
        self._handshake.end()
        self._identify()
        if self._silence_timer is not None:
            self._silence_timer.reset(self.settings.silent_timeout)
        self._check_admitted()

    def dataReceived(self, data: bytes) -> None:
        if not self._closing:
            if self._silence_timer is not None:
                self._silence_timer.cancel()
                self._silence_timer = None
            self.factory.mark_active(self)
            self._got = len(data)
            self.received(self.session.receive_data(data))

    def readConnectionLost(self) -> None:
        """Finish after the peer has closed its sending side (half-close); it still gets its acknowledgements."""
        for event in self.session.receive_eof():
            self._handle(event)
        self.finish()

    def writeConnectionLost(self) -> None:
        """Do nothing: the server itself has closed the writing side."""

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        self._closing = True
        self._handshake.lost(reason)
        for subscription in list(self._subscriptions):
            subscription.stopProducing()
        self._subscriptions.clear()
        self._cancel_timers()
        if self._linger_timer is not None and self._linger_timer.active():
            self._linger_timer.cancel()
        if self._account is not None:
            self._account.close()
        self.factory.lost(self)

    def pauseProducing(self) -> None:
        """Pause the subscriptions, because the peer reads more slowly than the server writes."""
        self._write_paused = True
        for subscription in self._subscriptions:
            subscription.pauseProducing()
        patience = self.settings.stall_timeout + self._written / SLOWEST
        if self._stall_timer is None and not self._closing:
            self._stall_timer = self.clock.callLater(patience, self._stalled)

    def resumeProducing(self) -> None:
        self._write_paused = False
        self._written = self._unread = 0
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        for subscription in list(self._subscriptions):
            subscription.resumeProducing()

    def stopProducing(self) -> None:
        """Do nothing: connectionLost follows."""

    # Called by subclasses.

    def received(self, events: Sequence[object]) -> None:
        """Handle the events of the session, from bytes that just arrived or that it had buffered."""
        account = self._account
        if events and account is not None:
            account.complete()
        for event in events:
            self._handle(event)
        expected = self.session.expected
        self._frame.received(self._got, expected > 0, bool(events))
        self._got = 0
        if account is not None:
            account.expect(expected, self.session.buffered if expected else 0)
        self._flush_replies()

    def publish(self, runs: Sequence[Run], acknowledge: Callable[[tuple[int, ...]], None]) -> None:
        """Publish *runs*; close the connection if they are refused.

        Everything that the peer sends after a refused publish is ignored, so an acknowledgement covers all publishes
        before it.

        :param acknowledge: called with the first number of each run when all of them are durable
        """
        size = sum(run.size for run in runs)
        self.carry_out(partial(self.broker.publish, runs), acknowledge, self._refused, size)

    def carry_out(
        self,
        order: Callable[[], Deferred[T]],
        answer: Callable[[T], None],
        refused: Callable[[Failure], None],
        size: int = 0,
    ) -> None:
        """Call the broker, and handle its result while the connection is open.

        :param order: the call of the broker
        :param answer: called with the result
        :param refused: called with the failure
        :param size: bytes that are charged to the connection until the Deferred has fired
        """
        account = self._account
        assert account is not None
        self._in_flight += 1
        account.hold(size)

        def done(result: T) -> None:
            if not self._disconnected():
                answer(result)

        def settle(result: object) -> None:
            self._in_flight -= 1
            account.release(size)
            closing = self._closing  # before settled(), which may itself close the connection
            self.settled()
            if closing and not self._in_flight and not self._disconnected():
                self._hang_up()

        order().addCallback(done).addErrback(refused).addErrback(self._failed).addBoth(settle)

    def settled(self) -> None:
        """Handle a settled publish, acknowledged or refused; a hook for subclasses."""

    def attach(self, subscription: ISubscription) -> None:
        """Deliver *subscription* to the peer, as fast as it reads."""
        self._subscriptions[subscription] = None
        if not self._write_paused:
            subscription.resumeProducing()

    def detach(self, subscription: ISubscription) -> None:
        """Stop *subscription*."""
        self._subscriptions.pop(subscription, None)
        subscription.stopProducing()

    def flush(self) -> None:
        """Write the data that the session has to send."""
        data = self.session.data_to_send()
        if not data or self._disconnected():
            return
        # A transport that is not paused has hardly any unsent data left.
        self._written = sum(map(len, data)) + (self._written if self._write_paused else 0)
        self._written_to = True
        self.transport.writeSequence(data)

    def _flush_replies(self) -> None:
        """Flush replies; drop a peer that leaves more than MOST_UNREAD bytes unread."""
        unread, before = self._write_paused, self._written
        self.flush()
        if unread:
            self._unread += self._written - before
            if self._unread > MOST_UNREAD:
                self.drop(RemoteProtocolError("answers-unread", f"{self._unread} bytes"))

    def drop(self, error: RemoteProtocolError) -> None:
        """Count and log a violation of the protocol, and close once earlier publishes are settled."""
        detail = str(error).removeprefix(error.cause).removeprefix(": ")
        self.broker.counters.refuse(self.log, self.protocol_name, error.cause, self.peer, detail)
        self._finish_late()

    def forbid(self, error: Forbidden) -> None:
        """Count and log a forbidden action, and close once earlier publishes are settled."""
        self.broker.counters.refuse(self.log, self.protocol_name, type(error).__name__, self.peer, str(error))
        self._finish_late()

    def finish(self) -> None:
        """Ignore further input, and close once all publishes are settled."""
        if not self._closing:
            self._closing = True
            for subscription in list(self._subscriptions):
                self.detach(subscription)
            if not self._in_flight:
                self._hang_up()

    def read_again(self) -> None:
        """Resume reading, and restart the time limit of the incomplete frame."""
        if self._linger_timer is None:  # a closing transport must not be resumed
            self._frame.resume()
            self.transport.resumeProducing()

    # Called by the factory.

    @property
    def publishing(self) -> bool:
        """Return whether a publish of the peer is not durable yet."""
        return self._in_flight > 0

    def is_idle(self) -> bool:
        """Return whether the connection can be closed without interrupting the peer.

        It is busy if a publish is in flight, a frame is incomplete, or a subscription delivered since the last call.
        """
        delivered, self._written_to = self._written_to and bool(self._subscriptions), False
        return not (self.publishing or self.session.expected or delivered)

    def make_room(self) -> None:
        """Close the connection, because the listener is full and another peer connects."""
        self.finish()
        self.close_held()

    def close_held(self) -> None:
        """Close the connection by the end of the next turn of the reactor, whatever the peer does."""
        self._close()
        # Unread data and the end of TLS would wait for the peer.
        if self._write_paused or ISSLTransport.providedBy(self.transport):
            self.transport.abortConnection()

    def abort_held(self) -> None:
        """Abort the connection, which was refused."""
        self.transport.abortConnection()

    # Private.

    def _disconnected(self) -> bool:
        """Return whether nothing can be sent any more: the connection is lost, or was refused and is held."""
        return self not in self.factory.connections

    def _finish_late(self) -> None:
        """Close like :meth:`finish`, but delayed, because a refused peer may reconnect at once."""
        if not self._closing:
            self._delay = self.factory.holding.delay(self.network)
        self.finish()

    def _handle(self, event: object) -> None:
        if self._closing:
            return
        if isinstance(event, Broken):
            self.drop(event.error)
            return
        try:
            getattr(self, self.handlers[type(event)])(event)
        except Forbidden as error:
            self.forbid(error)

    def _identify(self) -> None:
        self.identity = identify(self.transport)
        self.broker = self.broker.identified(self.identity)

    def _check_admitted(self) -> None:
        """Refuse a peer that no rule of the policy allows anything, even after further proofs."""
        proofs = self.factory.proofs
        try:
            if proofs is not None:
                self.broker.admit(proofs - PROOFS)
        except Forbidden as error:
            self.forbid(error)

    def _hang_up(self) -> None:
        self.flush()
        self.transport.unregisterProducer()
        # A peer with unread data gets its time to read instead, and still counts as connected.
        if self._delay and not self._write_paused:
            self._hold_socket()
        else:
            self._close()

    def _hold_socket(self) -> None:
        """Keep only the socket of the refused connection, until its delay is over."""
        self.reading.pauseProducing()
        self._cancel_timers()
        if self._account is not None:
            self._account.close()
        self.session.receive_eof()  # frees the buffer of the session
        self.factory.hold(self, self._delay)

    def _close(self) -> None:
        self.transport.loseConnection()
        if self._linger_timer is None:
            self._linger_timer = self.clock.callLater(LINGER, self.transport.abortConnection)

    def _refused(self, failure: Failure) -> None:
        failure.trap(FyrehoseError)
        error = failure.value
        self.broker.counters.refuse(self.log, self.protocol_name, type(error).__name__, self.peer, str(error))
        if self._closing or self._disconnected():
            return
        # Without an acknowledgement the peer will reconnect, and should not do so at once.
        self._delay = self.factory.holding.delay(self.network)
        if isinstance(error, ReadOnly):
            self._delay = FULL_GRACE
            self.reading.pauseProducing()
        self._closing = True
        for subscription in list(self._subscriptions):
            self.detach(subscription)

    def _failed(self, failure: Failure) -> None:
        """Handle an unexpected error, a bug: whether the publish is durable is unknown, so it is not acknowledged."""
        self.log.failure("{protocol}: a publish by {peer} failed", failure, protocol=self.protocol_name, peer=self.peer)
        self._closing = True
        if not self._disconnected():
            self.transport.abortConnection()

    def _cancel_timers(self) -> None:
        self._frame.close()
        for timer in (self._stall_timer, self._silence_timer):
            if timer is not None and timer.active():
                timer.cancel()

    def _handle_silence(self) -> None:
        self._silence_timer = None
        if not self._closing:
            allowed = f"{self.settings.silent_timeout:g} s"
            detail = f"nothing was received for {allowed}; raise {self.protocol_name}.silent-timeout to allow more"
            self.broker.counters.refuse(self.log, self.protocol_name, "silent", self.peer, detail)
            self.finish()

    def _stop_reading(self) -> None:
        self._frame.pause()
        self.transport.pauseProducing()

    def _late(self, error: RemoteProtocolError) -> None:
        if not self._closing:
            self.drop(error)

    def _give_way(self, error: RemoteProtocolError) -> None:
        """Drop the connection because others wait for its memory; abort it if nothing is left to acknowledge."""
        self._late(error)
        if not self._in_flight and not self._disconnected():
            self.transport.abortConnection()

    def _stalled(self) -> None:
        self._stall_timer = None
        self.broker.counters.refuse(self.log, self.protocol_name, "stalled-peer", self.peer)
        self._closing = True
        self.transport.abortConnection()
