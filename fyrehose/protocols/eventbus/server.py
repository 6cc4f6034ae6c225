"""The server of the event bus: connects the sessions of the three ports to the broker.

COLLECTOR  PUB -> broker.publish -> durable; its BROADCAST is the acknowledgement
PUBLISHER  the first subscription -> broker.subscribe -> deliver -> BROADCAST of the wanted topics
SNAPSHOT   SYNCSTART -> broker.subscribe -> deliver -> SYNC ... -> SYNCEND at the end that the stream had

A subscriber and a snapshot are cursors.  Those that want the same topics at the same position share the encoded piece;
one that reads slowly waits at its position in the journal.

Specification: event-bus.md, "State Synchronization", "Server-to-Client Updates" and "Client-to-Server Updates".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import attrs
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.broker.fairness import FairShare
from fyrehose.errors import (
    Closed,
    Following,
    Forbidden,
    InvalidName,
    PayloadTooLarge,
    PublishError,
    ReadOnly,
    RemoteProtocolError,
)
from fyrehose.identity import Action
from fyrehose.interfaces import IBroker, IConnectedSink, ISubscription
from fyrehose.net.connections import SessionFactory
from fyrehose.net.keepalive import PingsSilentPeer
from fyrehose.net.lifecycle import Phase
from fyrehose.net.outgoing import LargeRecord
from fyrehose.net.peers import port_of
from fyrehose.net.tcp import SessionProtocol, on
from fyrehose.protocols.eventbus.columns import PROTOCOL, Encoder, EventsByTopic
from fyrehose.protocols.eventbus.duplicates import SeenEvents
from fyrehose.protocols.eventbus.frames import Dialect, is_subtree
from fyrehose.protocols.eventbus.keys import z85
from fyrehose.protocols.eventbus.session import (
    FOR_REFERENCE,
    CollectorSession,
    PrefixChanged,
    PublisherSession,
    PubsReceived,
    Requested,
    SnapshotSession,
)
from fyrehose.protocols.eventbus.settings import EventBusSettings
from fyrehose.protocols.eventbus.zmtp import Joined, Mechanism, MessageRefused, Null, ZmtpSession
from fyrehose.records import Delivery, Run, halves
from fyrehose.sessions import piece_of

log = Logger()

#: Upper bound of the memory of all subscriptions, of which one network may take half, and of one besides its prefix, in
#: bytes.
SUBSCRIPTIONS, SUBSCRIPTION = 256 << 20, 256
#: Delay before events that a full disk refused are published again, in seconds.
FULL_WAIT = 5.0
#: How many networks with clients that cannot read broadcasts are logged; clients of further networks are only counted.
MOST_WARNED = 1_000


class BusProtocol(PingsSilentPeer, SessionProtocol):
    """One connection to one of the ports.

    :cvar port: the name of the port in the specification; *action*: what the access policy has to allow its clients
    """

    protocol_name: ClassVar[str] = PROTOCOL
    log: ClassVar[Logger] = log
    port: ClassVar[str]
    action: ClassVar[Action]
    session: ZmtpSession
    settings: EventBusSettings
    factory: EventBusFactory

    # Called by the reactor.

    def connectionMade(self) -> None:
        super().connectionMade()
        self.peer = f"{self.peer} at {self.port} (port {port_of(self.transport.getHost())})"
        self.ping_after, self.drop_after = self.settings.timeout / 2, 1.5 * self.settings.timeout
        if self.phase is Phase.OPEN:
            self.timers.start(self.settings.handshake_timeout, self._handshake_is_late)
            self.flush()  # the greeting, for which some peers wait

    def _handshake_is_late(self) -> None:
        allowed = f"{self.settings.handshake_timeout:g} s"
        detail = (
            f"the handshake of ZMTP was not complete in {allowed}; raise eventbus.timeout to allow three times that"
        )
        self.drop(RemoteProtocolError("handshake-timeout", detail))

    # Handlers of the session's events.

    def linked(self, event: Joined) -> None:
        """Check whether the peer may use this port, after its handshake."""
        self.timers.stop(self._handshake_is_late)
        if event.key is not None:
            self.identity = attrs.evolve(self.identity, key=z85(event.key))
            self.use_rights()
        self.broker.check(self.action, self.settings.stream)
        if event.pings:
            self.keep_alive()

    def message_refused(self, event: MessageRefused) -> None:
        """Count and log a message that is invalid; the connection stays."""
        cause = event.error.cause
        detail = str(event.error).removeprefix(cause).removeprefix(": ")
        self.broker.counters.refuse(self.log, PROTOCOL, cause, self.peer, detail)

    handlers = SessionProtocol.handlers | on(Joined, linked) | on(MessageRefused, message_refused)

    # Called by the factory.

    def may_stay(self, clients: frozenset[bytes] | None) -> bool:
        """Return whether a peer whose handshake is complete may still use this port.

        :param clients: the keys that may connect; None: every key
        """
        if not self.session.linked:
            return True
        known = clients is None or self.session.key in clients
        return known and self.broker.permits(self.action, self.settings.stream)

    # Called by the pings.

    @property
    def unheard(self) -> bool:
        return self.reading.paused or self.outgoing.blocked

    def ping(self) -> None:
        self.session.send_ping(int(10 * self.drop_after))
        self.flush()

    def give_up(self, silence: float) -> None:
        detail = f"it has not answered PING for {silence:.0f} s; raise eventbus.timeout to allow more"
        self.broker.counters.refuse(self.log, PROTOCOL, "silent", self.peer, detail)
        self.abort()


class CollectorProtocol(BusProtocol):
    """One connection to COLLECTOR."""

    port: ClassVar[str] = "COLLECTOR"
    action: ClassVar[Action] = Action.PUBLISH

    def __init__(self, factory: EventBusFactory) -> None:
        settings = factory.settings
        super().__init__(factory, CollectorSession(factory.mechanism(), settings.max_payload, settings.stream))
        self._unwritten: list[list[Run]] = []  #: events that a full disk has refused, and those behind them

    def published(self, event: PubsReceived) -> None:
        """Publish PUBs, without those that were seen before if the option ``dedup`` says so."""
        runs = event.runs
        if self.settings.dedup:
            runs = self.factory.seen.new(runs, self.clock.seconds())
            repeated = sum(map(len, event.runs)) - sum(map(len, runs))
            if repeated:
                self.broker.counters.add(PROTOCOL, "duplicate", repeated)
        if self._unwritten:
            self._wait_for_room(runs)
        elif runs:
            self.publish(runs)

    handlers = BusProtocol.handlers | on(PubsReceived, published)

    def not_published(self, runs: list[Run], note: Any, error: PublishError | Forbidden) -> None:
        """Handle the refusal of *runs*.

        Clients do not send an event again, and are not told that it was refused.  So events that were read wait while
        the disk is full, and an event that is refused for good takes no other with it.
        """
        if isinstance(error, ReadOnly) and not isinstance(error, Following):
            self.broker.counters.refuse(self.log, PROTOCOL, type(error).__name__, self.peer, str(error))
            self._wait_for_room(runs)
            return
        if isinstance(error, PayloadTooLarge | InvalidName) and sum(map(len, runs)) > 1:
            for half in halves(runs):
                self.publish(half)
            return
        self.factory.seen.forget(runs)
        if isinstance(error, Forbidden | Following | Closed):
            super().not_published(runs, note, error)
            return
        self.broker.counters.refuse(self.log, PROTOCOL, type(error).__name__, self.peer, str(error))
        self.settled()

    def let_go(self, reason: str) -> None:
        """Keep the connection while the disk is full: clients do not send an event again, and wait for no answer."""
        refusal = self.broker.standing.refusal
        full = isinstance(refusal, ReadOnly) and not isinstance(refusal, Following)
        if not full or self.phase is not Phase.OPEN:
            super().let_go(reason)

    def is_idle(self) -> bool:
        return not self._unwritten and super().is_idle()

    def hang_up(self) -> None:
        self._give_up_unwritten()
        super().hang_up()

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        self._give_up_unwritten()
        super().connectionLost(reason)

    def _give_up_unwritten(self) -> None:
        """Count the events that still wait for room at the end of the connection, and release their memory."""
        waiting, self._unwritten = self._unwritten, []
        if waiting:
            count = sum(len(run) for runs in waiting for run in runs)
            self.broker.counters.refuse(self.log, PROTOCOL, "not-published-at-stop", self.peer, f"{count} events")
            self.account.release(sum(run.size for runs in waiting for run in runs))

    def _wait_for_room(self, runs: list[Run]) -> None:
        self._unwritten.append(runs)
        self.account.hold(sum(run.size for run in runs))
        self.reading.pause_for("full")
        self.timers.start(FULL_WAIT, self._publish_again)

    def _publish_again(self) -> None:
        waiting, self._unwritten = self._unwritten, []
        for runs in waiting:
            self.account.release(sum(run.size for run in runs))
            if self._unwritten:
                self._wait_for_room(runs)
            else:
                self.publish(runs)
        if not self._unwritten:
            self.reading.resume_after("full")


@implementer(IConnectedSink)
class ReadingProtocol(BusProtocol):
    """One connection that is sent events of the stream, and the sink of its subscription."""

    action: ClassVar[Action] = Action.SUBSCRIBE

    def __init__(self, factory: EventBusFactory, session: ZmtpSession) -> None:
        super().__init__(factory, session)
        self.cursor: ISubscription | None = None

    @property
    def connection(self) -> ReadingProtocol:
        """Return this object, as the connection that its sink serves."""
        return self

    def subscribe_after(self, after: int | None) -> None:
        """Deliver the events of the stream after number *after*; None: after its end."""
        self.cursor = self.broker.subscribe(self.settings.stream, after, self)
        self.attach(self.cursor)

    def unsubscribe(self) -> None:
        """End the subscription, if there is one."""
        subscription, self.cursor = self.cursor, None
        if subscription is not None:
            self.detach(subscription)

    # Called by the broker, with durable records of the stream.

    @property
    def encoder(self) -> Encoder:
        """Return the encoder of the events that the client wants."""
        raise NotImplementedError

    def deliver(self, delivery: Delivery) -> int:
        piece = delivery.encoded(EventsByTopic).piece(self.encoder)
        if piece.last < delivery.first_seq:
            self._send_large(delivery.runs[0])
            self.sent(delivery.first_seq, delivery.first_seq)
            return delivery.first_seq
        if piece.data:
            self.flush(*self.session.sealed(piece.data))
        self.sent(piece.last, piece.highest)
        return piece.last

    def sent(self, last: int, highest: int) -> None:
        """Note that everything up to number *last* was sent; *highest*: the last that the client wanted, or 0."""

    def skipped(self, first: int, last: int) -> None:
        """Count records that retention deleted before they were sent; the client notices by their numbers."""
        self.broker.counters.add(PROTOCOL, "skipped", last - first + 1)

    def ended(self, reason: Exception) -> None:
        self.finish()

    def _send_large(self, run: Run) -> None:
        """Send the first event of *run*, which is larger than a piece, in pieces.

        A box of CURVE has its checksum at its begin, so an event in a box is sent as a whole.
        """
        head, payload = self.encoder.large(run)
        if self.session.seals:
            self.flush(*self.session.sealed(head + bytes(payload)))
        else:
            record = run.slice(0, 1)
            self.send_record(
                LargeRecord(
                    run.stream, run.first_seq, lambda one, position: piece_of((head, one.payload), position), record
                )
            )


class PublisherProtocol(ReadingProtocol):
    """One connection to PUBLISHER."""

    port: ClassVar[str] = "PUBLISHER"
    session: PublisherSession

    def __init__(self, factory: EventBusFactory) -> None:
        super().__init__(factory, PublisherSession(factory.mechanism(), factory.settings.dialect))
        self._memory = 0  #: that its subscriptions use

    def connectionLost(self, reason: Any = None) -> None:
        super().connectionLost(reason)
        self._use_memory(-self._memory)

    def subscribed(self, event: PrefixChanged) -> None:
        """Begin or end the subscription to a prefix; the first one begins with the next event."""
        cost = SUBSCRIPTION + len(event.prefix)
        if event.on and not self.factory.subscriptions.fits(cost, self.network):
            detail = "no memory for another subscription of this address; subscribe to fewer prefixes"
            self.drop(RemoteProtocolError("too-many-subscriptions", detail))
            return
        self._use_memory(cost if event.on else -cost)
        if not self.session.subscribed:
            self.unsubscribe()
        elif self.cursor is None:
            self.subscribe_after(None)

    handlers = BusProtocol.handlers | on(PrefixChanged, subscribed)

    @property
    def encoder(self) -> Encoder:
        return self.session.encoder

    def _use_memory(self, size: int) -> None:
        self._memory += size
        self.factory.subscriptions.take(self.network, size)


class SnapshotProtocol(ReadingProtocol):
    """One connection to SNAPSHOT.  A second SYNCSTART replaces the first."""

    port: ClassVar[str] = "SNAPSHOT"
    session: SnapshotSession

    def __init__(self, factory: EventBusFactory) -> None:
        super().__init__(factory, SnapshotSession(factory.mechanism(), factory.settings.dialect))
        self._request: Requested | None = None
        self._encoder: Encoder | None = None
        self._end = self._highest = 0

    def requested(self, event: Requested) -> None:
        """Answer SYNCSTART in the next turn of the reactor.

        A client subscribes before it sends SYNCSTART.  Its subscription, which arrived earlier by another connection,
        has to begin before the end of the snapshot is determined, or the client would miss events between the two.
        """
        self.broker.counters.add(PROTOCOL, "snapshots")
        if self._request is not None:
            self.broker.counters.add(PROTOCOL, "snapshot-replaced")
        self.unsubscribe()
        self._request = event
        self._warn_of_dialect(event)
        self.timers.start(0, self._answer)

    handlers = BusProtocol.handlers | on(Requested, requested)

    @property
    def encoder(self) -> Encoder:
        assert self._encoder is not None
        return self._encoder

    def sent(self, last: int, highest: int) -> None:
        self._highest = highest or self._highest
        if last >= self._end:
            self._finish_answer()

    def skipped(self, first: int, last: int) -> None:
        super().skipped(first, last)
        if last >= self._end:
            self._finish_answer()

    def _answer(self) -> None:
        if self._request is None or self.phase is not Phase.OPEN:
            return
        since = self._request.request.sequence
        oldest, self._end = self.broker.bounds(self.settings.stream)
        # A client that asks from beyond the end of the stream would discard all later events up to its number.
        self._highest = min(since, self._end)
        if since >= self._end or oldest > self._end:
            self._finish_answer()
            return
        self._encoder = self._request.encoder
        try:
            self.subscribe_after(since)
        except Forbidden as error:
            self.forbid(error)

    def _finish_answer(self) -> None:
        """Send SYNCEND with the number of the last SYNC, or without one that of the request."""
        request, self._request = self._request, None
        self.unsubscribe()
        if request is not None:
            self.flush(*self.session.sealed(request.end(self._highest)))

    def _warn_of_dialect(self, event: Requested) -> None:
        """Count and log a client of the reference program that will not be able to read the broadcasts."""
        request = event.request
        prefixes = map(str.encode, request.subtrees.prefixes)
        usual = self.settings.dialect is Dialect.BINARY
        if request.dialect is not Dialect.DECIMAL or not usual or not all(map(is_subtree, prefixes)):
            return
        self.broker.counters.add(PROTOCOL, "decimal-requests")
        warned = self.factory.warned
        if self.network not in warned and len(warned) < MOST_WARNED:
            warned.add(self.network)
            log.warn(
                "{protocol}: {peer} sends sequences as decimal text, but subscribers of these subtrees are sent binary "
                "ones: clients of the reference program (Node) drop such events; pass {option}, or open a second "
                "listener for them (logged once for each address)",
                protocol=PROTOCOL,
                peer=self.peer,
                option=FOR_REFERENCE,
            )


def null() -> Mechanism:
    """Return the mechanism of a connection that is not encrypted."""
    return Null(answers=True)


class EventBusFactory(SessionFactory):
    """The factory of the connections to all three ports, which share the limits of connections.

    :param mechanism: makes the mechanism of each connection
    :ivar clients: the keys that may connect; None: every key, or none is needed
    :ivar seen: the UUIDs of recent events, for the option ``dedup``
    :ivar subscriptions: the memory of subscriptions by network
    :ivar warned: networks of clients of the reference program that were logged
    """

    protocol = BusProtocol
    defaults = EventBusSettings()
    events = ("decimal-requests", "duplicate", "skipped", "snapshot-replaced", "snapshots")
    refusals = (
        "bad-frame",
        "bad-handshake",
        "bad-sequence",
        "bad-subtree",
        "bad-topic",
        "data-too-large",
        "frame-too-large",
        "label-too-long",
        "not-published-at-stop",
        "old-zmtp",
        "refused-by-peer",
        "subtree-too-long",
        "too-many-subscriptions",
        "too-many-subtrees",
        "topic-too-long",
        "truncated-message",
        "unknown-command",
        "unknown-key",
        "wrong-frame-count",
        "wrong-mechanism",
        "wrong-protocol",
        "wrong-socket",
    )
    fixed_options = ("stream", "server_key", "dialect", "max_payload")
    settings: EventBusSettings

    def __init__(
        self,
        broker: IBroker,
        settings: EventBusSettings | None = None,
        reactor: Any = None,
        mechanism: Callable[[], Mechanism] = null,
    ) -> None:
        super().__init__(broker, settings, reactor)
        self.mechanism = mechanism
        self.clients: frozenset[bytes] | None = None
        self.seen = SeenEvents()
        self.subscriptions: FairShare[object] = FairShare(SUBSCRIPTIONS, each=SUBSCRIPTIONS // 2)
        self.warned: set[str] = set()

    def of(self, kind: type[BusProtocol]) -> Sequence[SessionProtocol]:
        """Return the open connections of one port."""
        return [connection for connection in self.connections if isinstance(connection, kind)]

    def end_forbidden(self) -> int:
        """Close the connections whose peers may not use their port any more; return how many there are."""
        ended = [each for each in self.of(BusProtocol) if not each.may_stay(self.clients)]  # type: ignore[attr-defined]
        for connection in ended:
            connection.finish()
        return len(ended)


class CurveFactory(EventBusFactory):
    """The factory of connections whose peers prove their keys."""

    proofs = frozenset({"key"})


class PortFactory(Factory):
    """The factory of one port.

    :param shared: admits and counts the connections of all ports
    :param kind: the protocol of the connections of this one
    """

    noisy = False

    def __init__(self, shared: EventBusFactory, kind: type[BusProtocol]) -> None:
        self._shared, self._kind = shared, kind

    def buildProtocol(self, addr: IAddress | None) -> Protocol | None:
        self._shared.protocol = self._kind
        return self._shared.buildProtocol(addr)
