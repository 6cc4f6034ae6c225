"""The shell that the TCP protocols share: sockets outside, a sans-I/O session inside.

    dataReceived -> session.receive_data -> one method for each event -> broker.publish / subscribe
    write        <- session.data_to_send <- acknowledgements, deliveries

What is the same for all of them lives here: the budget, deadlines, slow readers, closing.  Limits on connections are in
connections.py, what listens is in listening.py.
A protocol adds a table from event types to methods.
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

#: How long a connection that is being closed may take to read what it was sent, in seconds.
LINGER = 5.0
#: How long a publisher waits in silence when the disk is full before it is closed, in seconds.
FULL_GRACE = 5.0
#: What a peer that does not read may make us answer, in bytes.
MOST_UNREAD = 1 << 20


class Session(Protocol):
    """What the shell asks of a sans-I/O session."""

    @property
    def expected(self) -> int:
        """The size of the frame that is coming in, in bytes, as far as it is known; 0 between frames."""

    @property
    def buffered(self) -> int:
        """How much of that frame is in memory, in bytes."""

    def receive_data(self, data: bytes) -> list[Any]: ...

    def receive_eof(self) -> list[Any]: ...

    def data_to_send(self) -> list[bytes]: ...


@attrs.frozen(kw_only=True)
class TCPSettings:
    """Limits that every TCP protocol has."""

    max_connections: int = option(10_000, count, "connections at a time", least=1)
    max_per_host: int = option(2_000, count, "connections at a time from one address, or from one IPv6 /64", least=1)
    silent_timeout: float = option(30.0, duration, "time for the first byte of a new connection; 0: no limit")
    refusal_delay: float = option(LONGEST, duration, "longest time that a refused connection is held open; 0: none")
    frame_timeout: float = option(30.0, duration, "time for a frame that has begun to come in whole")
    stall_timeout: float = option(30.0, duration, "time for a reader to take what it was sent")
    handshake_timeout: float = option(10.0, duration, "time for a handshake, that of TLS, too")


@implementer(IPushProducer, IHalfCloseableProtocol, IHandshakeListener)
class SessionProtocol(TwistedProtocol):
    """One connection.  Subclasses fill ``handlers`` and write what the session wants to send with :meth:`flush`."""

    protocol_name: ClassVar[str]
    log: ClassVar[Logger]
    #: event type -> name of the method that takes it
    handlers: ClassVar[dict[type, str]]

    factory: Any  #: the SessionFactory
    transport: Any  #: ITCPTransport and IConsumer; Twisted types it as less
    reading: Reading  #: to be paused by whoever has to, once each
    peer = "?"  #: the peer's host, for log lines
    network = "?"  #: what limits per address count it under
    crowd: OrderedDict[SessionProtocol, None]  #: the connections of that network, in the order of when they were heard
    address = "?"  #: the peer's host and port
    identity: Identity  #: who the peer is, as far as it has proved it by now
    _handshake: Handshake

    def __init__(self, session: Session, broker: IBroker, clock: IReactorTime, settings: TCPSettings) -> None:
        self.session = session
        self.broker = broker
        self.clock = clock
        self.settings = settings
        self._account: Account | None = None
        self._subscriptions: dict[ISubscription, None] = {}  #: in the order in which they came
        self._write_paused = False
        self._written = 0  #: what the peer has to read before the transport goes on, at the most, in bytes
        self._unread = 0  #: of that, answers to a peer that does not read
        self._in_flight = 0
        self._written_to = False  #: whether anything was, since the factory looked last
        self._closing = False
        self._delay = 0.0  #: how long it is held before it is closed, in seconds, because it was refused
        self._frame = FrameWatch(clock, settings.frame_timeout, self._late, self._give_way)
        self._got = 0  #: what was read and not dealt with, in bytes
        self._stall_timer: IDelayedCall | None = None
        self._silence_timer: IDelayedCall | None = None
        self._linger_timer: IDelayedCall | None = None

    @property
    def reader(self) -> tuple[str, str]:
        """Who reads, where this is the sink of a subscription."""
        return self.protocol_name, self.address

    # What the reactor calls.

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
            self._silence_timer = self.clock.callLater(self.settings.silent_timeout, self._never_spoke)
        if not ISSLTransport.providedBy(transport):
            self._check_admitted()

    def handshakeCompleted(self) -> None:
        """TLS is on: now it is known who the peer is."""
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
            self.factory.heard(self)
            self._got = len(data)
            self.received(self.session.receive_data(data))

    def readConnectionLost(self) -> None:
        """The peer has finished sending: it still gets its acknowledgements (half-close)."""
        for event in self.session.receive_eof():
            self._handle(event)
        self.finish()

    def writeConnectionLost(self) -> None:
        """We have finished sending: that was our own doing."""

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
        """The peer reads more slowly than we write."""
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
        """The transport is gone; connectionLost says the rest."""

    # What a protocol calls.

    def received(self, events: Sequence[object]) -> None:
        """Deal with what the session made of bytes: those that just came, or some that it had kept."""
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
        self._answer()

    def publish(self, runs: Sequence[Run], acknowledge: Callable[[tuple[int, ...]], None]) -> None:
        """Publish, and call ``acknowledge`` with the first numbers when it is durable; else close.

        Nothing that came after a publish that was refused is taken, so an acknowledgement covers all before it.
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
        """Give *order* to the broker, and call *answer* or *refused* with what comes of it.

        :param size: bytes that are charged to the connection until then
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
            closing = self._closing  # else who is told that it is settled may close, and that is enough
            self.settled()
            if closing and not self._in_flight and not self._disconnected():
                self._hang_up()

        order().addCallback(done).addErrback(refused).addErrback(self._failed).addBoth(settle)

    def settled(self) -> None:
        """A publish was acknowledged or refused, and is not held any more: for protocols that wait for that."""

    def attach(self, subscription: ISubscription) -> None:
        """Let ``subscription`` deliver as fast as the peer reads."""
        self._subscriptions[subscription] = None
        if not self._write_paused:
            subscription.resumeProducing()

    def detach(self, subscription: ISubscription) -> None:
        """Nothing more of ``subscription``."""
        self._subscriptions.pop(subscription, None)
        subscription.stopProducing()

    def flush(self) -> None:
        """Write what the session has to send."""
        data = self.session.data_to_send()
        if not data or self._disconnected():
            return
        # While it is not paused the transport has next to nothing left of what was written before.
        self._written = sum(map(len, data)) + (self._written if self._write_paused else 0)
        self._written_to = True
        self.transport.writeSequence(data)

    def _answer(self) -> None:
        """Write the answers to what was read; a peer that asks and does not read is not answered for ever."""
        unread, before = self._write_paused, self._written
        self.flush()
        if unread:
            self._unread += self._written - before
            if self._unread > MOST_UNREAD:
                self.drop(RemoteProtocolError("answers-unread", f"{self._unread} bytes"))

    def drop(self, error: RemoteProtocolError) -> None:
        """The peer has broken a rule: count it, say so once, and close when what it published before is settled."""
        detail = str(error).removeprefix(error.cause).removeprefix(": ")
        self.broker.counters.refuse(self.log, self.protocol_name, error.cause, self.peer, detail)
        self._finish_late()

    def forbid(self, error: Forbidden) -> None:
        """The peer may not do what it wants to: count it, say so once, and close."""
        self.broker.counters.refuse(self.log, self.protocol_name, type(error).__name__, self.peer, str(error))
        self._finish_late()

    def finish(self) -> None:
        """Take nothing more in; close when everything that was published is acknowledged."""
        if not self._closing:
            self._closing = True
            for subscription in list(self._subscriptions):
                self.detach(subscription)
            if not self._in_flight:
                self._hang_up()

    def read_again(self) -> None:
        """Nobody wants reading paused any more: the peer has its time for the frame that is coming in again."""
        if self._linger_timer is None:  # a transport that closes does not like it
            self._frame.resume()
            self.transport.resumeProducing()

    # What the factory calls.

    @property
    def publishing(self) -> bool:
        """Whether a publish of the peer is not durable yet."""
        return self._in_flight > 0

    def is_idle(self) -> bool:
        """Return whether closing the connection interrupts nothing.

        It does if the peer publishes, if a frame is coming in, or if a subscription got something since the last call.
        """
        fed, self._written_to = self._written_to and bool(self._subscriptions), False
        return not (self.publishing or self.session.expected or fed)

    def make_room(self) -> None:
        """Close the connection, because the listener is full and another peer needs its place."""
        self.finish()
        self.close_held()

    def close_held(self) -> None:
        """Close the connection before the next turn of the reactor is over, whatever the peer does."""
        self._close()
        # These would wait for the peer: to read, and to close its side of TLS.
        if self._write_paused or ISSLTransport.providedBy(self.transport):
            self.transport.abortConnection()

    def abort_held(self) -> None:
        """Close the connection, which was refused, now."""
        self.transport.abortConnection()

    # Inside.

    def _disconnected(self) -> bool:
        """Whether nothing can be said to the peer any more: it is gone, or it was refused and is held."""
        return self not in self.factory.connections

    def _finish_late(self) -> None:
        """Close as :meth:`finish` does, but late: the peer was refused, and may be back at once."""
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
        """Refuse a peer that no rule of the policy allows anything, also after it has proved who it is."""
        proofs = self.factory.proofs
        try:
            if proofs is not None:
                self.broker.admit(proofs - PROOFS)
        except Forbidden as error:
            self.forbid(error)

    def _hang_up(self) -> None:
        self.flush()
        self.transport.unregisterProducer()
        # A peer that has not read what it was sent has its time to read instead, in which it keeps its place.
        if self._delay and not self._write_paused:
            self._hold_socket()
        else:
            self._close()

    def _hold_socket(self) -> None:
        """Keep the socket, and nothing else, until the peer may know that it was refused."""
        self.reading.pauseProducing()
        self._cancel_timers()
        if self._account is not None:
            self._account.close()
        self.session.receive_eof()  # which forgets what has come in
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
        # Without an acknowledgement it will come back, and should not do so at once.
        self._delay = self.factory.holding.delay(self.network)
        if isinstance(error, ReadOnly):
            self._delay = FULL_GRACE
            self.reading.pauseProducing()
        self._closing = True
        for subscription in list(self._subscriptions):
            self.detach(subscription)

    def _failed(self, failure: Failure) -> None:
        """A bug of ours: what became of the publish is not known, so nothing is said about it."""
        self.log.failure("{protocol}: a publish of {peer} failed", failure, protocol=self.protocol_name, peer=self.peer)
        self._closing = True
        if not self._disconnected():
            self.transport.abortConnection()

    def _cancel_timers(self) -> None:
        self._frame.close()
        for timer in (self._stall_timer, self._silence_timer):
            if timer is not None and timer.active():
                timer.cancel()

    def _never_spoke(self) -> None:
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
        """Close at once, if nothing is left to acknowledge: others wait for the memory."""
        self._late(error)
        if not self._in_flight and not self._disconnected():
            self.transport.abortConnection()

    def _stalled(self) -> None:
        self._stall_timer = None
        self.broker.counters.refuse(self.log, self.protocol_name, "stalled-reader", self.peer)
        self._closing = True
        self.transport.abortConnection()
