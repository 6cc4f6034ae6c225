"""The shell that the TCP protocols share: sockets outside, a sans-I/O session inside.

    dataReceived -> session.receive_data -> one method for each event -> broker.publish / subscribe
    write        <- session.data_to_send <- acknowledgements, deliveries

What is the same for all of them lives here: limits on connections, the budget, deadlines, slow readers, closing.
A protocol adds a table from event types to methods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, cast

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import AdoptedStreamServerEndpoint, UNIXServerEndpoint, serverFromString
from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    IHalfCloseableProtocol,
    IHandshakeListener,
    IListeningPort,
    IPushProducer,
    IReactorTime,
    ITCPTransport,
)
from twisted.internet.protocol import Factory
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import Broken, ConfigError, Forbidden, FyrehoseError, ReadOnly, RemoteProtocolError
from fyrehose.flow import Account, Reading
from fyrehose.handshakes import Handshake
from fyrehose.interfaces import IBroker, ISubscription
from fyrehose.peers import host_of, identify, network_of
from fyrehose.policy import Identity
from fyrehose.records import Run
from fyrehose.settings import count, duration, option
from fyrehose.sockets import check_adopted, clear, deepen, prompt

#: A slow link may still send a large frame, or take a large delivery: this many bytes a second are enough.
SLOWEST = 64 << 10
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

    def receive_data(self, data: bytes) -> list[Any]: ...

    def receive_eof(self) -> list[Any]: ...

    def data_to_send(self) -> list[bytes]: ...


@attrs.frozen(kw_only=True)
class TCPSettings:
    """Limits that every TCP kit has."""

    max_connections: int = option(10_000, count, "connections at a time", least=1)
    max_per_host: int = option(200, count, "connections at a time from one address", least=1)
    frame_timeout: float = option(30.0, duration, "time for a frame that has begun to come in whole")
    stall_timeout: float = option(30.0, duration, "time for a reader to take what it was sent")
    handshake_timeout: float = option(10.0, duration, "time for a handshake, that of TLS, too")


@implementer(IPushProducer, IHalfCloseableProtocol, IHandshakeListener)
class SessionProtocol(TwistedProtocol):
    """One connection.  Subclasses fill ``handlers`` and write what the session wants to send with :meth:`flush`."""

    kit: ClassVar[str]
    log: ClassVar[Logger]
    #: event type -> name of the method that takes it
    handlers: ClassVar[dict[type, str]]

    factory: Any  #: the SessionFactory
    transport: Any  #: ITCPTransport and IConsumer; Twisted types it as less
    reading: Reading  #: to be paused by whoever has to, once each
    peer = "?"  #: the peer's host, for limits and log lines
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
        self._closing = False
        self._frame_since: float | None = None
        self._frame_got = 0  #: what came in since then, in bytes
        self._frame_timer: IDelayedCall | None = None
        self._stall_timer: IDelayedCall | None = None
        self._grace_timer: IDelayedCall | None = None
        self._linger_timer: IDelayedCall | None = None

    @property
    def reader(self) -> tuple[str, str]:
        """Who reads, where this is the sink of a subscription."""
        return self.kit, self.address

    # What the reactor calls.

    def connectionMade(self) -> None:
        transport = self.transport
        peer = transport.getPeer()
        port = getattr(peer, "port", None)
        self.address = self.peer if port is None else f"{self.peer}:{port}"
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
            transport.setTcpKeepAlive(True)
        self.reading = Reading(self.transport.pauseProducing, self.read_again)
        self._account = self.broker.budget.account(self.reading)
        transport.registerProducer(self, True)
        self.broker.counters.add(self.kit, "connections")
        self._identify()
        self._handshake = Handshake(self.kit, self.peer, self.log, self.broker.counters)
        self._handshake.begin(transport, self.clock, self.settings.handshake_timeout)

    def handshakeCompleted(self) -> None:
        """TLS is on: now it is known who the peer is."""
        self._handshake.end()
        self._identify()

    def dataReceived(self, data: bytes) -> None:
        if not self._closing:
            self._frame_got += len(data)
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
        for timer in (self._frame_timer, self._stall_timer, self._grace_timer, self._linger_timer):
            if timer is not None and timer.active():
                timer.cancel()
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
        for event in events:
            self._handle(event)
        expected = self.session.expected
        if self._account is not None:
            self._account.expect(expected)
        self._watch_frame(expected, bool(events))
        self._answer()

    def publish(self, runs: Sequence[Run], acknowledge: Callable[[tuple[int, ...]], None]) -> None:
        """Publish, and call ``acknowledge`` with the first numbers when it is durable; else close.

        Nothing that came after a publish that was refused is taken, so an acknowledgement covers all before it.
        """
        size = sum(run.size for run in runs)
        account = self._account
        assert account is not None
        self._in_flight += 1
        account.hold(size)

        def durable(firsts: tuple[int, ...]) -> None:
            if not self._disconnected():
                acknowledge(firsts)

        def settle(result: object) -> None:
            self._in_flight -= 1
            account.release(size)
            closing = self._closing  # else who is told that it is settled may close, and that is enough
            self.settled()
            if closing and not self._in_flight and self._grace_timer is None and not self._disconnected():
                self._hang_up()

        self.broker.publish(runs).addCallback(durable).addErrback(self._refused).addErrback(self._failed).addBoth(
            settle
        )

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
        self.broker.counters.refuse(self.log, self.kit, error.cause, self.peer, detail)
        self.finish()

    def forbid(self, error: Forbidden) -> None:
        """The peer may not do what it wants to: count it, say so once, and close."""
        self.broker.counters.refuse(self.log, self.kit, type(error).__name__, self.peer, str(error))
        self.finish()

    def finish(self) -> None:
        """Take nothing more in; close when everything that was published is acknowledged."""
        if not self._closing:
            self._closing = True
            for subscription in list(self._subscriptions):
                self.detach(subscription)
        elif self._grace_timer is None:
            return
        if not self._in_flight:
            self._hang_up()

    def read_again(self) -> None:
        """Nobody wants reading paused any more: the peer has its time for the frame that is coming in again."""
        if self._linger_timer is None:  # a transport that closes does not like it
            self._restart_frame()
            self.transport.resumeProducing()

    # Inside.

    def _disconnected(self) -> bool:
        return self not in self.factory.connections

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

    def _hang_up(self) -> None:
        self._cancel_grace()
        self.flush()
        self.transport.unregisterProducer()
        self.transport.loseConnection()
        if self._linger_timer is None:
            self._linger_timer = self.clock.callLater(LINGER, self.transport.abortConnection)

    def _refused(self, failure: Failure) -> None:
        failure.trap(FyrehoseError)
        error = failure.value
        self.broker.counters.refuse(self.log, self.kit, type(error).__name__, self.peer, str(error))
        if self._closing or self._disconnected():
            return
        if isinstance(error, ReadOnly):
            # Without an acknowledgement it will come back, and should not do so at once.
            self._grace_timer = self.clock.callLater(FULL_GRACE, self._grace_over)
            self.reading.pauseProducing()
        self._closing = True
        for subscription in list(self._subscriptions):
            self.detach(subscription)

    def _failed(self, failure: Failure) -> None:
        """A bug of ours: what became of the publish is not known, so nothing is said about it."""
        self.log.failure("{kit}: a publish of {peer} failed", failure, kit=self.kit, peer=self.peer)
        self._closing = True
        if not self._disconnected():
            self.transport.abortConnection()

    def _grace_over(self) -> None:
        self._grace_timer = None
        if not self._in_flight:
            self._hang_up()

    def _cancel_grace(self) -> None:
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None

    def _watch_frame(self, expected: int, progress: bool) -> None:
        if not expected or progress or self._frame_since is None:
            self._frame_since = self.clock.seconds() if expected else None
            self._frame_got = 0
        if self._frame_since is not None and self._frame_timer is None:
            self._frame_timer = self.clock.callLater(self.settings.frame_timeout, self._check_frame)

    def _restart_frame(self) -> None:
        if self._frame_since is not None:
            self._frame_since = self.clock.seconds()

    def _check_frame(self) -> None:
        self._frame_timer = None
        if self._frame_since is None or self._closing:
            return
        if self._account is not None and self._account.paused:
            self._restart_frame()
        # By what came in and not by what was announced: announcing is cheap, and others wait for what it takes.
        patience = self.settings.frame_timeout + self._frame_got / SLOWEST
        left = self._frame_since + patience - self.clock.seconds()
        if left > 0:
            self._frame_timer = self.clock.callLater(left, self._check_frame)
        else:
            self.drop(RemoteProtocolError("frame-timeout", "a frame did not come in whole in time"))

    def _stalled(self) -> None:
        self._stall_timer = None
        self.broker.counters.refuse(self.log, self.kit, "stalled-reader", self.peer)
        self._closing = True
        self.transport.abortConnection()


class SessionFactory(Factory):
    """Makes a connection's protocol, within the limits, and knows who is connected."""

    def __init__(
        self,
        make: Callable[[], SessionProtocol],
        kit: str,
        log: Logger,
        broker: IBroker,
        settings: TCPSettings,
    ) -> None:
        self.make = make
        self.kit = kit
        self.log = log
        self.broker = broker
        self.settings = settings
        self.connections: dict[SessionProtocol, None] = {}  #: in the order in which they came
        self._per_host: Counter[str] = Counter()
        self._drained: Deferred[None] | None = None

    noisy = False

    def buildProtocol(self, addr: IAddress | None) -> SessionProtocol | None:
        host = host_of(addr)
        network = network_of(host)
        if len(self.connections) >= self.settings.max_connections:
            self.broker.counters.refuse(self.log, self.kit, "too-many-connections", host)
            return None
        if self._per_host[network] >= self.settings.max_per_host:
            self.broker.counters.refuse(self.log, self.kit, "too-many-connections-from-one-host", host)
            return None
        protocol = self.make()
        protocol.factory = self
        protocol.peer = host
        self._per_host[network] += 1
        self.connections[protocol] = None
        self.broker.counters.gauge(self.kit, "connections", 1)
        return protocol

    def lost(self, protocol: SessionProtocol) -> None:
        """``protocol`` is not connected any more."""
        self.connections.pop(protocol, None)
        self.broker.counters.gauge(self.kit, "connections", -1)
        network = network_of(protocol.peer)
        self._per_host[network] -= 1
        if not self._per_host[network]:
            del self._per_host[network]
        if self._drained is not None and not self.connections:
            drained, self._drained = self._drained, None
            drained.callback(None)

    def drain(self) -> Deferred[None]:
        """Close every connection when what it published is acknowledged; fires when all are gone."""
        if not self.connections:
            return succeed(None)
        self._drained = Deferred()
        drained = self._drained
        for protocol in list(self.connections):
            protocol.finish()
        return drained


class TCPService(Service):
    """Listens at an endpoint string as long as it runs.

    :param around: what listens in the place of ``factory``, and hands the connections on to it: a TLSFactory
    :raises ConfigError: from the constructor, where the endpoint string cannot be used
    """

    def __init__(self, reactor: Any, kit: str, endpoint: str, factory: SessionFactory, around: Any = None) -> None:
        self.factory = factory
        self._around = around
        self._port: IListeningPort | None = None
        self._backlog = "backlog=" in endpoint or endpoint.startswith("systemd:")
        try:
            self._endpoint = serverFromString(reactor, endpoint)
        except (ValueError, TypeError, KeyError, IndexError, OSError) as error:
            if endpoint.startswith("systemd:") and isinstance(error, LookupError):
                raise ConfigError(f"--listen {kit}={endpoint}: systemd has handed over no such socket") from error
            raise ConfigError(f"--listen {kit}={endpoint} is not an endpoint that Twisted knows: {error}") from error

    def startService(self) -> Deferred[IListeningPort]:
        """Listen; fires with the port, or fails with what keeps it from listening."""
        Service.startService(self)
        if isinstance(self._endpoint, UNIXServerEndpoint):
            clear(self._endpoint._address)
        elif isinstance(self._endpoint, AdoptedStreamServerEndpoint):
            check_adopted(self._endpoint.fileno, self._endpoint.addressFamily)
        listening = self._endpoint.listen(self.factory if self._around is None else self._around)
        return cast("Deferred[IListeningPort]", listening).addCallback(self._listening)

    def _listening(self, port: IListeningPort) -> IListeningPort:
        self._port = prompt(port if self._backlog else deepen(port))
        return port

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self.factory.connections)

    def reload(self) -> None:
        """Read certificates again, for the connections that come from now on.

        :raises ConfigError: they cannot be used; those that were go on
        """
        if self._around is not None:
            self._around.reload()

    def stopService(self) -> Deferred[None]:
        """Close the port, then the connections, each when it is acknowledged."""
        Service.stopService(self)
        port, self._port = self._port, None
        closed = succeed(None) if port is None else cast("Deferred[None]", port.stopListening() or succeed(None))
        return closed.addCallback(lambda _: self.factory.drain())
