"""The base of all TCP protocols: it connects a socket to a sans-I/O session and to the broker.

    dataReceived -> session.receive_data -> one method for each event -> broker.publish / subscribe
    write        <- session.out <- acknowledgements, deliveries

It handles everything that the protocols have in common: the memory budget, deadlines, slow peers, and closing.  What
arrives is in incoming.py, what leaves in outgoing.py, phases and timers in lifecycle.py, limits of connections in
connections.py, and listening in endpoints.py.  A protocol adds a table from event types to functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import attrs
from twisted.internet.interfaces import (
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

from fyrehose.broker.peer import CheckedPublisher, publisher_for
from fyrehose.broker.publisher import DeferredPublisher, Publisher
from fyrehose.errors import (
    Broken,
    Following,
    Forbidden,
    FyrehoseError,
    OutcomeUnknown,
    PublishError,
    ReadOnly,
    RemoteProtocolError,
)
from fyrehose.identity import Action, Identity
from fyrehose.interfaces import IBroker, ISubscription
from fyrehose.net.foreign import foreign_client, spoken
from fyrehose.net.handshakes import LOG_EVERY, Handshake
from fyrehose.net.holding import LONGEST
from fyrehose.net.incoming import SLOWEST, FrameWatch, Reading, WaitingInput
from fyrehose.net.inflight import Account
from fyrehose.net.lifecycle import TRANSITIONS, FirstByte, Phase, Timers
from fyrehose.net.outgoing import LargeRecord, Outgoing
from fyrehose.net.peers import PROOFS, identify, port_of, producer_of
from fyrehose.net.sockets import notice_dead_peer
from fyrehose.options import Network, count, duration, fixed, networks, option
from fyrehose.records import Publish, Run, halves
from fyrehose.subscriptions import letters

P = TypeVar("P")
E = TypeVar("E")
#: A table of the functions that handle events, by the type of the event; see :func:`on`.
Handlers = dict[type, Callable[[Any, Any], object]]

#: How long a peer may take to read the remaining data of a connection that is being closed, in seconds.
CLOSE_TIMEOUT_S = 5.0
#: How long a publisher waits before it is disconnected because the disk is full, in seconds.
FULL_GRACE = 5.0
#: How many bytes of replies a peer may leave unread.
MOST_UNREAD = 256 << 10


class Session(Protocol):
    """The methods of a sans-I/O session that :class:`SessionProtocol` calls."""

    @property
    def expected(self) -> int:
        """Return the size of the incomplete frame in bytes, as far as it is known; 0 between frames."""

    @property
    def buffered(self) -> int:
        """Return how many bytes of the incomplete frame are in memory."""

    @property
    def out(self) -> list[bytes]:
        """Return the data that waits to be sent to the peer; the connection removes the data once it is sent."""

    @property
    def more(self) -> bool:
        """Return whether :meth:`next_events` can return further events from bytes that were received already."""

    def receive_data(self, data: bytes) -> list[Any]: ...

    def next_events(self) -> list[Any]: ...

    def receive_eof(self) -> list[Any]: ...


def on(kind: type[E], handle: Callable[[P, E], object]) -> Handlers:
    """Return a table that calls *handle* with the protocol and each event of *kind*; tables are joined with ``|``."""
    return {kind: handle}


@attrs.frozen(kw_only=True)
class TCPSettings:
    """The options of every TCP protocol: limits of connections."""

    max_connections: int = option(10_000, count, "maximum number of connections", least=1)
    max_per_host: int = option(2_000, count, "maximum number of connections from one address or IPv6 /64", least=1)
    timeout: float = option(
        30.0,
        duration,
        "time for a peer to send its first byte or the rest of a frame, or to read data; a third for a handshake",
    )
    proxies: tuple[Network, ...] = option(
        (), networks, "networks of load balancers, whose connections begin with a PROXY header (version 1 or 2)"
    )
    refused: str = fixed(letters.CLOSE)  #: whether refused messages close the connection or are stored; see letters.py
    refusal_delay: float = fixed(LONGEST)  #: longest delay after refusals and failed handshakes; 0: none

    @property
    def lacks_tls(self) -> bool:
        """Return whether the listener would have TLS if it had a certificate."""
        return False

    @property
    def handshake_timeout(self) -> float:
        """Return the time for a handshake in seconds, including that of TLS."""
        return self.timeout / 3

    @property
    def silent_timeout(self) -> float:
        """Return the time for the first byte of a new connection in seconds; 0: no limit."""
        return self.timeout

    @property
    def idle_timeout(self) -> float:
        """Return the time without activity after which a :class:`ClosesIdle` is closed, in seconds."""
        raise NotImplementedError


@implementer(IPushProducer, IHalfCloseableProtocol, IHandshakeListener)
class SessionProtocol(TwistedProtocol):
    """The protocol of one connection.

    Subclasses fill ``handlers``, call :meth:`flush` after the session has data to send, and may use all public names.
    They override :meth:`settled`, :meth:`refused` and :meth:`hang_up` to add to the end of a publish or connection.

    :param factory: the :class:`~fyrehose.net.connections.SessionFactory` that has built it
    :ivar phase: the phase of the connection, see lifecycle.py; only the methods of this class change it
    :ivar writable: whether data can be sent: the connection is neither closing, nor refused, nor lost
    :ivar unsettled: number of calls of the broker that are not settled yet, such as publishes
    :ivar flush: writes the data that the session has to send, see :meth:`.Outgoing.flush`
    :ivar account: the memory that the connection holds
    :ivar timers: timers, which end with the connection
    :ivar heard_at: when data of the peer arrived last
    """

    protocol_name: ClassVar[str]
    log: ClassVar[Logger]
    speaks: ClassVar[str] = ""  #: HTTP, if the protocol is HTTP, so that no violation is explained by that
    transport: Any  #: ITCPTransport and IConsumer, which Twisted's annotation does not say
    reading: Reading  #: why reading is paused, if it is
    waiting_input: WaitingInput  #: input that waits for a turn of the connection
    peer = "?"  #: the peer's host, for log lines
    network = "?"  #: the network of the peer, for limits per address
    address = "?"  #: the peer's host and port
    identity: Identity  #: the identity of the peer, as far as it has proved it
    producer = "?"  #: the producer of its messages, see :func:`~fyrehose.net.peers.producer_of`
    account: Account
    publisher: Publisher | CheckedPublisher | DeferredPublisher  #: publishes with the rights of the peer
    _handshake: Handshake

    def __init__(self, factory: Any, session: Session) -> None:
        self.factory = factory
        self.session = session
        self.broker: IBroker = factory.broker
        self.clock: IReactorTime = factory.clock
        self.settings: TCPSettings = factory.settings
        self.phase = Phase.OPEN
        self.writable = True
        self.timers = Timers(self.clock, self.failed)
        self.outgoing = Outgoing(self)  #: everything that is written
        self.flush: Callable[..., None] = self.outgoing.flush  # no method, which would cost each ACK a call
        self.unsettled = 0
        self.heard_at = 0.0
        self._delay = 0.0  #: seconds to hold the connection before closing, after a refusal
        self._first_byte = FirstByte(self.timers, self.settings.silent_timeout, self._handle_silence)
        self.incomplete = FrameWatch(self.clock, self.settings.timeout, self._late, self._give_way)
        self._got = 0  #: bytes of the read that is being handled

    @property
    def subscriber(self) -> tuple[str, str]:
        """Return the protocol and the peer, for sinks of subscriptions."""
        return self.protocol_name, self.address

    @property
    def beginning(self) -> bytes:
        """Return the first bytes of the peer, until they prove to be those of the listener's protocol."""
        return self._first_byte.beginning

    # Called by the reactor.

    def connectionMade(self) -> None:
        """Charge the connection to its address, begin the handshake, and check that the peer may connect."""
        transport = self.transport
        peer = transport.getPeer()
        port = port_of(peer)
        self.address = self.peer if port is None else f"{self.peer}:{port}"
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
            # A peer that is alive and does not read is closed earlier, see pauseProducing, which says why in the log.
            notice_dead_peer(transport, 4 / 3 * self.settings.timeout)
        transport.bufferSize = self.factory.reads.of(self.network)
        self.reading = Reading(self._stop_reading, self._read_again)
        self.account = self.incomplete.account = self.broker.budget.account(self.reading, self.network, self.incomplete)
        self.waiting_input = WaitingInput(self, self.broker.turns)
        transport.registerProducer(self, True)
        self.broker.counters.add(self.protocol_name, "connections")
        self._identify()
        self._handshake = Handshake(self.protocol_name, self.peer, self.log, self.broker.counters)
        self._handshake.begin(transport, self.clock, self.settings.handshake_timeout)
        self._first_byte.start()
        if not ISSLTransport.providedBy(transport):
            self._check_admitted()

    def handshakeCompleted(self) -> None:
        """Identify the peer by its certificate, after the TLS handshake."""
        self._handshake.end()
        self._identify()
        self._first_byte.start()
        self._check_admitted()

    def dataReceived(self, data: bytes) -> None:
        """Take *data* now, or in turns with the connections of other networks; ignore it once the connection closes."""
        if self.phase is Phase.OPEN:
            if self._first_byte.awaited:
                self._first_byte.arrived(data)
            if self.factory.latest is not self:
                self.factory.mark_active(self)
            waiting, now = self.waiting_input, self.clock.seconds()
            turns, share = waiting.turns, waiting.share
            self.heard_at = now
            waits = share in turns.waiting or waiting.bulk_share in turns.waiting or waiting.waits
            if turns.left > 0 and not waits and not (self.account.share.submitted and self.account.behind):
                self.take(data)
                spent = self.clock.seconds() - now
                if turns.waiting or spent >= turns.left:
                    turns.charge(share, spent)
                else:  # nobody waits, so nobody has to pay
                    turns.left -= spent
            else:
                waiting.postpone(data)

    def readConnectionLost(self) -> None:
        """Handle the end of the peer's data, after all data that arrived before the end."""
        if self.waiting_input.waits and self.phase is Phase.OPEN:
            self.waiting_input.end()
        else:
            self.take_eof()

    def writeConnectionLost(self) -> None:
        """Do nothing: the server itself has closed the writing side."""

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        """End what belongs to this connection: its calls of the broker, its memory and its timers."""
        if self.phase is not Phase.GONE:
            self._enter(Phase.GONE)
        if self._handshake.lost(reason):
            self.factory.holding.handshakes.count(self.network)
        self.outgoing.detach_all()
        self._release_resources()
        self.timers.end()
        self.factory.lost(self)

    def pauseProducing(self) -> None:
        """Pause the subscriptions, because the peer reads more slowly than the server writes."""
        self.outgoing.pause()
        if self.phase is Phase.OPEN:
            self.timers.start(self.settings.timeout + self.outgoing.written / SLOWEST, self._stalled)

    @property
    def closes_in(self) -> float | None:
        """Return the seconds until the connection is closed unless the peer reads, or None if the peer reads."""
        return self.timers.left(self._stalled)

    def resumeProducing(self) -> None:
        self.timers.stop(self._stalled)
        self.outgoing.resume()

    def stopProducing(self) -> None:
        """Do nothing: connectionLost follows."""

    # Hooks for subclasses.

    @property
    def has_more(self) -> bool:
        """Return whether the session has further events, from data that it has received, that can be handled now."""
        return self.session.more

    def park(self, proceed: Callable[[], object]) -> bool:
        """Return False if input may be handled in this turn; else call *proceed* when it may; a hook for subclasses."""
        return self.account.park(proceed)

    def take(self, data: bytes) -> None:
        """Pass *data* to the session, and its events to :meth:`received`."""
        self._got = len(data)
        self.received(self.session.receive_data(data))
        self._got = 0

    def take_eof(self) -> None:
        """Finish after the peer has closed its sending side (half-close); it still gets its acknowledgements."""
        self.handle(self.session.receive_eof())
        self.finish()

    # Called by subclasses.

    def received(self, events: Sequence[object]) -> None:
        """Handle *events* of the session, and write the data that the session sends.

        If the session has further events, they are handled in turns with the connections of other networks.
        """
        incomplete = self.incomplete
        before = incomplete.size
        if before and events:
            self.account.complete()
        if events:
            self.handle(events)
            if self.phase is Phase.OPEN and self._first_byte.beginning:
                self._first_byte.beginning = b""
        expected = self.session.expected
        if expected or before:
            incomplete.received(self._got, expected, self.session.buffered, bool(events))
        if self.outgoing.paused or self.outgoing.record is not None:
            self._flush_unread()
        elif self.session.out:
            self.flush()
        if self.session.more:
            self.continue_later()

    def continue_later(self) -> None:
        """Wait for a turn if the session has more events."""
        if self.has_more and self.phase is Phase.OPEN:
            self.waiting_input.wait()

    def handle(self, events: Sequence[object]) -> None:
        """Handle *events* in order, until the connection is closing."""
        for event in events:
            if self.phase is not Phase.OPEN:
                return
            try:
                self.handlers[type(event)](self, event)
            except Forbidden as error:
                self.forbid(error)

    def broken(self, event: Broken) -> None:
        """Handle a violation of the protocol, which ends the session."""
        self.drop(event.error)

    #: the handlers of all types of events; subclasses add theirs, behind the methods
    handlers = on(Broken, broken)

    def publish(self, runs: list[Run], note: Any = None, key: str | None = None) -> None:
        """Publish *runs*; close the connection if they are refused.

        Everything that the peer sends after a refused publish is ignored, so an acknowledgement covers all publishes
        before it.

        :param note: passed to :meth:`durable` as ``Publish.note`` when *runs* are durable
        :param key: see :meth:`.Publisher.publish`
        """
        self.unsettled += 1
        try:
            self.publisher.publish(runs, note, (), key)
        except (PublishError, Forbidden) as error:
            self.unsettled -= 1
            self.not_published(runs, note, error)

    def not_published(self, runs: list[Run], note: Any, error: PublishError | Forbidden) -> None:
        """Handle *error*, with which all of *runs* were refused; a hook for subclasses."""
        if not self.keep_refused(runs, note, error):
            self.refused(error)
            self.settled()

    def keep_refused(self, runs: list[Run], note: Any, error: FyrehoseError, size: int | None = None) -> bool:
        """Store a message that was refused with *error* as a dead letter, if the option ``refused`` says so.

        If *runs* have several messages, publish those that are not refused, in their order; only a publish without a
        note can be split.

        :param size: the size of the message, if *runs* have only its beginning
        :return: whether the messages were accepted, so that they are acknowledged
        """
        if not letters.keeps(self.settings.refused, error) or not self.broker.has(Action.PUBLISH):
            return False
        if sum(map(len, runs)) > 1:
            if note is not None:
                return False
            for half in halves(runs):
                if self.phase is Phase.OPEN:
                    self.publish_part(half)
            return True
        self.unsettled += 1
        try:
            self.publisher.publish([], note, [letters.letter(self.protocol_name, runs[0], error, size)])
        except (PublishError, Forbidden):
            self.unsettled -= 1
            return False
        self.broker.counters.refuse(self.log, self.protocol_name, "dead-letters", self.peer, str(error))
        return True

    def publish_part(self, runs: list[Run]) -> None:
        """Publish *runs*, a part of a publish that was refused as a whole; a hook for subclasses."""
        self.publish(runs)

    def settle(self, items: Sequence[Publish]) -> None:
        """Handle *items*, publishes that became durable in one commit, in their order."""
        self.unsettled -= len(items)
        try:
            self.durable(items)
        except Exception:
            self.failed(Failure())
        if self.phase is not Phase.OPEN:
            self.settled()

    def let_go(self, reason: str) -> None:
        """Abort the connection if it waits for publishes: whether they are ever stored is unknown, as at a crash."""
        if self.unsettled and self.phase is not Phase.GONE:
            self.broker.counters.refuse(self.log, self.protocol_name, OutcomeUnknown.__name__, self.peer, reason)
            self.abort()

    def durable(self, items: Sequence[Publish]) -> None:
        """Acknowledge *items*, even if the connection is lost by now; a hook for subclasses."""

    def publish_failed(self, failure: Failure) -> None:
        """Handle the failure of a publish that a broker of another package had accepted."""
        if failure.check(FyrehoseError):
            self.let_go(failure.getErrorMessage())
        else:
            self.failed(failure)

    def settled(self) -> None:
        """Handle the end of calls of the broker: close a connection that only waited for them.

        A hook for subclasses; :meth:`durable` alone handles publishes that became durable on an open connection.
        """
        if self.phase is Phase.SETTLING and not self.unsettled:
            self.hang_up()

    def refused(self, error: FyrehoseError) -> None:
        """Count and log a refused publish, and close once earlier publishes are settled; a hook for subclasses."""
        self.broker.counters.refuse(self.log, self.protocol_name, type(error).__name__, self.peer, str(error))
        # The peer reconnects because it gets no acknowledgement.  Delay that, unless the peer has to connect to another
        # server.
        waits = isinstance(error, ReadOnly) and not isinstance(error, Following)
        self._finish_late(FULL_GRACE if waits else 0.0)

    def failed(self, failure: Failure) -> None:
        """Handle an unexpected error, a bug: whether a publish is durable is unknown, so it is not acknowledged."""
        self.log.failure(
            "{protocol}: serving {peer} failed, and its connection is closed; please report this bug",
            failure,
            protocol=self.protocol_name,
            peer=self.peer,
        )
        self.abort()

    def attach(self, subscription: ISubscription) -> None:
        """Deliver *subscription* to the peer, as fast as the peer reads."""
        self.outgoing.attach(subscription)

    def detach(self, subscription: ISubscription) -> None:
        """Stop *subscription*."""
        self.outgoing.detach(subscription)

    def send_record(self, record: LargeRecord) -> None:
        """Send a record that is larger than a piece; subscriptions are paused until all of it is written."""
        self.outgoing.send_record(record)

    def frame(self, data: bytes) -> list[bytes]:
        """Return *data*, a piece of a large record, as the protocol sends it; a hook for subclasses."""
        return [data]

    def record_sent(self) -> None:
        """Close a connection that only waited for the end of a large record."""
        if self.phase is Phase.SETTLING and not self.unsettled:
            self.timers.stop(self.abort)
            self.hang_up()

    def record_lost(self, reason: Exception) -> None:
        """Abort the connection, because the rest of a half-sent record cannot be read, so no other data may follow."""
        self.log.warn(
            "{protocol}: closing the connection of {peer} within a record: {reason}",
            protocol=self.protocol_name,
            peer=self.peer,
            reason=str(reason),
        )
        self.abort()

    def abort_unread(self) -> None:
        """Abort the connection, because its peer leaves an answer unread, and others need the memory."""
        detail = f"{self.outgoing.written} bytes, and others need the memory"
        self.broker.counters.refuse(self.log, self.protocol_name, "answers-unread", self.peer, detail)
        self.abort()

    def drop(self, error: RemoteProtocolError) -> None:
        """Count and log a violation of the protocol, and close once earlier publishes are settled."""
        said = str(error).removeprefix(error.cause).removeprefix(": ")
        name, beginning = self.protocol_name, self._first_byte.beginning
        foreign = "" if spoken(beginning) == self.speaks else foreign_client(beginning, name, self.settings.lacks_tls)
        apart, every = f"{self.network} {foreign}", LOG_EVERY if foreign else 1.0
        refuse = self.broker.counters.refuse
        refuse(self.log, name, error.cause, self.peer, foreign or said, apart=apart, every=every)
        self._finish_late()

    def forbid(self, error: Forbidden) -> None:
        """Count and log an action that the policy forbids, and close once earlier publishes are settled."""
        self.broker.counters.refuse(self.log, self.protocol_name, type(error).__name__, self.peer, str(error))
        self._finish_late()

    def finish(self) -> None:
        """Ignore further input, and close once all publishes are settled."""
        if self.phase is Phase.OPEN:
            self._enter(Phase.SETTLING)
            self.outgoing.detach_all()
            if not self.unsettled:
                self.hang_up()

    def hang_up(self) -> None:
        """Close a connection whose publishes are settled, after sending the remaining data; a hook for subclasses."""
        self.flush()
        if self.outgoing.record is not None:  # the peer would misread data that follows an incomplete record
            self.timers.start(CLOSE_TIMEOUT_S, self.abort)
            return
        self.transport.unregisterProducer()
        # Do not keep only the socket while the peer has unread data, so that the peer has time to read the data.
        if self._delay and not self.outgoing.paused:
            self._hold_socket()
        else:
            self._close()

    def linger(self) -> None:
        """Give the peer up to CLOSE_TIMEOUT_S seconds to read the remaining data and to close the connection."""
        self._enter(Phase.LINGERING)
        self.timers.start(CLOSE_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        """Close the connection at once, without sending the remaining data."""
        if self.phase is not Phase.GONE:
            self._enter(Phase.GONE)
            self.transport.abortConnection()

    # Called by the factory.

    def stop(self) -> None:
        """Close the connection, because the server or its listener stops; a hook for subclasses."""
        self.finish()

    def is_idle(self) -> bool:
        """Return whether the connection can be closed without interrupting the peer.

        A connection is busy if a publish is in flight, a frame is incomplete, or a subscription has delivered since the
        last call.  Before its peer has sent anything, it always counts as idle.
        """
        delivers = self.outgoing.delivers()
        return self._first_byte.awaited or not (self.unsettled or self.session.expected or delivers)

    def make_room(self) -> None:
        """Close the connection, because the listener is full and another peer connects."""
        self.finish()
        self.end_delay()

    def end_delay(self) -> None:
        """Close the connection, at most one turn of the reactor later, even if the peer does not read."""
        self._close()
        # Abort if the peer does not read or uses TLS, because closing would wait until the peer has read its data and
        # ended TLS.
        if self.outgoing.blocked or ISSLTransport.providedBy(self.transport):
            self.abort()

    # Private.

    def _enter(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], f"{phase} after {self.phase}"
        self.phase = phase
        self.writable = phase is Phase.SETTLING

    def _finish_late(self, seconds: float = 0.0) -> None:
        """Close like :meth:`finish`, but after a delay, because a refused peer may reconnect at once.

        :param seconds: the delay; 0: a delay that grows with the refusals of the peer's network
        """
        if self.phase is Phase.OPEN:
            self._delay = self.factory.holding.refusals.count(self.network)
            if seconds:
                self._delay = seconds
                self.reading.pause_for("refusal")
            self.finish()

    def _flush_unread(self) -> None:
        """Flush replies to a peer that does not read; drop the connection if MOST_UNREAD bytes of them are unread."""
        unread = self.outgoing.flush_replies()
        if unread > MOST_UNREAD:
            self.drop(RemoteProtocolError("answers-unread", f"{unread} bytes"))

    def _identify(self) -> None:
        self.identity = identify(self.transport)
        self.producer = producer_of(self.identity, self.address)
        self.use_rights()

    def use_rights(self) -> None:
        """Switch to a broker with the rights of :attr:`identity`; call this after the identity has changed."""
        self.broker = self.broker.identified(self.identity)
        foreign = not type(self).__module__.startswith("fyrehose.")
        self.publisher = publisher_for(self.broker, self.account, self.settle, self.publish_failed, foreign)

    def _check_admitted(self) -> None:
        """Refuse the peer if no rule of the policy allows it anything, even with the proofs that it may send later."""
        proofs = self.factory.proofs
        try:
            if proofs is not None:
                self.broker.admit(proofs - PROOFS)
        except Forbidden as error:
            self.forbid(error)

    def _hold_socket(self) -> None:
        """Keep only the socket of the refused connection, until its delay is over."""
        self._enter(Phase.GRACE)
        self.reading.pause_for("refusal")
        self._release_resources()
        self.session.receive_eof()  # frees the buffer of the session
        self.factory.hold(self, self._delay)

    def _close(self) -> None:
        self.transport.loseConnection()
        if self.phase is Phase.SETTLING or self.phase is Phase.GRACE:
            self.linger()

    def _release_resources(self) -> None:
        """End the timers, and release the memory of the incomplete frame."""
        self.timers.clear()
        self.incomplete.close()
        self.account.close()
        self.outgoing.close()

    def _handle_silence(self) -> None:
        if self.phase is Phase.OPEN:
            allowed = f"{self.settings.silent_timeout:g} s"
            detail = f"nothing was received for {allowed}; raise {self.protocol_name}.timeout to allow more"
            self.broker.counters.refuse(self.log, self.protocol_name, "silent", self.peer, detail)
            self.finish()

    def _stop_reading(self) -> None:
        self.incomplete.pause()
        self.transport.pauseProducing()

    def _read_again(self) -> None:
        """Resume reading, and restart the time limit of the incomplete frame."""
        if self.writable:  # a closing transport must not be resumed
            self.incomplete.resume()
            self.transport.resumeProducing()
            self.continue_later()

    def _late(self, error: RemoteProtocolError) -> None:
        if self.phase is Phase.OPEN:
            self.drop(error)

    def _give_way(self, error: RemoteProtocolError) -> None:
        """Drop the connection, because others wait for its memory; abort it if all publishes are acknowledged."""
        self._late(error)
        if self.phase is Phase.LINGERING:
            self.abort()

    def _stalled(self) -> None:
        self.broker.counters.refuse(self.log, self.protocol_name, "stalled-peer", self.peer)
        self.abort()


class ClosesIdle(SessionProtocol):
    """A connection that is closed when it was idle for the option ``idle_timeout`` of its protocol.

    The time runs from :attr:`active_at`, which subclasses set, and not while :attr:`waiting` is true.

    :ivar active_at: time of the last activity
    """

    active_at = 0.0

    def connectionMade(self) -> None:
        super().connectionMade()
        self.active_at = self.clock.seconds()
        self.timers.start(self.settings.idle_timeout, self._check_idle)

    @property
    def waiting(self) -> bool:
        """Return whether the peer waits for the server, or another deadline applies: such a connection is not idle."""
        raise NotImplementedError

    def _check_idle(self) -> None:
        if self.phase is not Phase.OPEN:
            return
        now = self.clock.seconds()
        if self.waiting:
            self.active_at = now
        left = self.active_at + self.settings.idle_timeout - now
        if left > 0:
            self.timers.start(left, self._check_idle)
        else:
            self.broker.counters.add(self.protocol_name, "idle")
            self.finish()
