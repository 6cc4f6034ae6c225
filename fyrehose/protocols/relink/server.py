"""Relink's server: a session in the TCP shell, its link in the registry, the broker behind both.

    Asked -> registry: fence the old connection, wait for what it wrote -> accept -> report, resume, messages
    Received, Decided -> one write of messages and cursors -> durable -> consumed, committed

A connection that ends leaves its link behind.  A peer that breaks a rule loses both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IListeningPort, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import (
    Broken,
    Forbidden,
    InvalidName,
    NewStreamForbidden,
    PayloadTooLarge,
    PublishError,
    ReadOnly,
    RemoteProtocolError,
    StreamFull,
    TooManyStreams,
)
from fyrehose.identity import Action
from fyrehose.interfaces import IBroker
from fyrehose.net.connections import SessionFactory
from fyrehose.net.endpoints import TCPService
from fyrehose.net.tcp import SessionProtocol
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.endpoints import PROTOCOL, Endpoint, Publishing, Subscribing, first_anchor
from fyrehose.protocols.relink.handshake import Hello
from fyrehose.protocols.relink.names import Place, parse
from fyrehose.protocols.relink.registry import Entry, Registry
from fyrehose.protocols.relink.session import ListenerSession
from fyrehose.protocols.relink.settings import Settings
from fyrehose.protocols.relink.tables import PACKETS
from fyrehose.records import Run

log = Logger()

#: How long a listener that a full disk keeps shut waits before it tries again, in seconds.
FULL_WAIT = 2.0
#: Deals with a write that was refused for good, before :meth:`RelinkProtocol.write` returns; whether it could.
Refused = Callable[[PublishError], bool]
#: Refusals that are for good.  They are known at once, before anything else is written.
FOR_GOOD = (InvalidName, NewStreamForbidden, PayloadTooLarge, StreamFull, TooManyStreams)


class RelinkProtocol(SessionProtocol):
    """One connection."""

    protocol_name: ClassVar[str] = PROTOCOL
    log: ClassVar[Logger] = Logger()
    handlers: ClassVar[dict[type, str]] = {
        events.Asked: "asked",
        events.Linked: "linked",
        events.Resumed: "resumed",
        events.Received: "message_received",
        events.Decided: "decided",
        events.Finished: "finished",
        events.Consumed: "consumed",
        events.Rewound: "rewound",
        events.Closed: "channel_closed",
        events.PeerShutdown: "peer_shutdown",
        events.Ended: "link_ended",
    }

    session: ListenerSession
    settings: Settings

    def __init__(self, broker: IBroker, clock: IReactorTime, settings: Settings, registry: Registry) -> None:
        super().__init__(ListenerSession(settings.limits), broker, clock, settings)
        self.registry = registry
        self.entry: Entry | None = None
        self.endpoint: Endpoint | None = None
        self._heard = 0.0
        self._deadline: IDelayedCall | None = None
        self._flush_due: IDelayedCall | None = None
        self._unread_paused = False
        self._hung_up = False
        #: whether the link ends with the connection, when everything that was written is acknowledged
        self._ends_link = False

    # What the reactor calls.

    def connectionMade(self) -> None:
        super().connectionMade()
        self._heard = self.clock.seconds()
        self._deadline = self.clock.callLater(self.settings.handshake_timeout, self._handshake_over)

    def dataReceived(self, data: bytes) -> None:
        self._heard = self.clock.seconds()
        super().dataReceived(data)

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        for timer in (self._deadline, self._flush_due):
            if timer is not None and timer.active():
                timer.cancel()
        self.session.fenced()
        if self.endpoint is not None:
            self.endpoint.end()
        if self.entry is not None and self.entry.holder is self:
            self.registry.detached(self.entry)
        super().connectionLost(reason)

    def pauseProducing(self) -> None:
        """The peer reads more slowly than we write: what it makes us answer has to wait, too."""
        super().pauseProducing()
        if not self._unread_paused and not self._closing:
            self._unread_paused = True
            self.reading.pauseProducing()

    def resumeProducing(self) -> None:
        super().resumeProducing()
        if self._unread_paused:
            self._unread_paused = False
            self.reading.resumeProducing()

    # The handshake.

    def asked(self, event: events.Asked) -> None:
        """A connector wants a link."""
        hello, identity = event.hello, self._identity()
        try:
            place = parse(hello.terms)
        except RemoteProtocolError as error:
            self.drop(error)
            return
        self.broker.check(Action.SUBSCRIBE if place.subscribe else Action.PUBLISH, place.stream)
        entry = self.registry.find(hello, identity, self.peer)
        if entry is not None:
            self._hold(entry)
            settled = self.registry.attached(entry, self, self.peer)
            settled.addCallback(lambda _: self._settled(entry, place, resumed=True)).addErrback(self._failed)
        elif hello.require:
            self.session.refuse(self.registry.epoch)
            self.finish()
        else:
            self._create(hello, identity, place)

    def _create(self, hello: Hello, identity: bytes, place: Place) -> None:
        entry = self.registry.create(hello.terms, identity, self.peer, first_anchor(self.broker, place))
        if entry is None:
            self.drop(RemoteProtocolError("too-many-links", f"{self.settings.max_links} are kept"))
            return
        self._hold(entry)
        self.registry.attached(entry, self, self.peer)

        def written(result: Any) -> None:
            if isinstance(result, Failure):
                result.trap(PublishError)
                entry.saved = False
                if not (place.subscribe and isinstance(result.value, ReadOnly)):  # reading goes on, while we live
                    self.registry.discard(entry)
                    self._refused(result)
                    self._go_on()
            self._settled(entry, place, resumed=False)

        self.registry.write_entry(entry, written)

    def _hold(self, entry: Entry) -> None:
        """Read nothing until the registry has settled what the connector is told."""
        self.entry = entry
        self.reading.pauseProducing()

    def _settled(self, entry: Entry, place: Place, *, resumed: bool) -> None:
        if self._disconnected():
            return
        self.reading.resumeProducing()
        if not self._closing and entry.holder is self:
            self._accept(entry, place, resumed=resumed)

    def _accept(self, entry: Entry, place: Place, *, resumed: bool) -> None:
        if entry.link.over:
            self.finish()
            return
        self.endpoint = (Subscribing if place.subscribe else Publishing)(self, entry, place)
        self.received(self.session.accept(entry.link, resumed=resumed))
        if not self._closing:
            self.received(self.session.receive_data(b""))

    def linked(self, event: events.Linked) -> None:
        """The handshake is over."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.clock.callLater(self.settings.ping_after, self._watch_silence)
        self.broker.counters.add(PROTOCOL, "links-resumed" if event.resumed else "links-made")
        if not event.resumed and self.endpoint is not None:
            self.endpoint.begin()

    def _identity(self) -> bytes:
        """What the peer has proved to be: its certificate."""
        certificate = getattr(self.transport, "getPeerCertificate", lambda: None)()
        return b"" if certificate is None else bytes(certificate.digest("sha256"))

    def _handshake_over(self) -> None:
        self._deadline = None
        if self.session.phase not in PACKETS and not self._closing:
            self.drop(RemoteProtocolError("handshake-timeout"))

    def _watch_silence(self) -> None:
        """Ask whether anybody is there; give the connection up if nobody is.  The link stays."""
        self._deadline = None
        settings = self.settings
        if self._closing or self.entry is None:
            return
        if self.reading.paused:
            self._heard = self.clock.seconds()
        silence = self.clock.seconds() - self._heard
        if silence >= settings.drop_after:
            self.broker.counters.refuse(self.log, PROTOCOL, "silent-peer", self.peer)
            self._closing = True
            self.transport.abortConnection()
            return
        if silence >= settings.ping_after and self.entry.link.attached:
            self.entry.link.ping()
            self.flush()
        left = settings.ping_after - silence
        self._deadline = self.clock.callLater(left if left > 0 else settings.ping_after, self._watch_silence)

    # What the link says.

    def received(self, found: Sequence[object]) -> None:
        super().received(found)
        if self.endpoint is not None and not self._closing:
            self.endpoint.after_read()
            if self.entry is not None:
                self.registry.measure(self.entry)

    def handle_events(self, found: Sequence[object]) -> None:
        """Deal with what our own doing has led to."""
        for event in found:
            self._handle(event)
        self.flush_soon()

    def _handle(self, event: object) -> None:
        if isinstance(event, Broken) and self.entry is not None and not self._closing:
            if self.endpoint is not None:
                self.endpoint.after_read()  # what came before it counts
            self.registry.discard(self.entry)
        super()._handle(event)

    def resumed(self, event: events.Resumed) -> None:
        """Messages go on."""

    def message_received(self, event: events.Received) -> None:
        """To the endpoint."""
        self._endpoint.received(event)

    def decided(self, event: events.Decided) -> None:
        """To the endpoint."""
        self._endpoint.decided(event)

    def finished(self, event: events.Finished) -> None:
        """To the endpoint."""
        self._endpoint.finished(event)

    def consumed(self, event: events.Consumed) -> None:
        """To the endpoint."""
        self._endpoint.consumed(event)

    def rewound(self, event: events.Rewound) -> None:
        """To the endpoint."""
        self._endpoint.rewound(event)

    def channel_closed(self, event: events.Closed) -> None:
        """The link may be at its end now: the session says so."""

    def peer_shutdown(self, event: events.PeerShutdown) -> None:
        """To the endpoint."""
        self._endpoint.peer_shutdown()

    def link_ended(self, event: events.Ended) -> None:
        """A good end: the peer need not come back."""
        assert self.entry is not None
        self.broker.counters.add(PROTOCOL, "links-ended")
        self.registry.discard(self.entry)
        self.finish()

    @property
    def _endpoint(self) -> Endpoint:
        assert self.endpoint is not None
        return self.endpoint

    # What the endpoint asks for.

    def write(self, runs: Sequence[Run], staged: Mapping[int, int | None], refused: Refused | None = None) -> None:
        """Write messages and what is staged; when it is durable, tell the peer.

        :param staged: up to which number of each channel; None: the channel is forgotten
        :param refused: deals with a refusal that is for good
        """
        entry, account = self.entry, self._account
        assert entry is not None
        assert account is not None
        for run in runs:
            if not self.broker.permits(Action.PUBLISH, run.stream):
                self._forbidden(run.stream)
                return
        size = sum(run.size for run in runs)
        self._in_flight += 1
        account.hold(size)

        def settle(result: Any) -> None:
            self._in_flight -= 1
            account.release(size)
            if isinstance(result, Failure):
                error = result.value
                if not isinstance(error, PublishError):
                    entry.failed = True
                    self.session.fenced()
                    self._failed(result)
                elif not (isinstance(error, FOR_GOOD) and refused is not None and refused(error)):
                    self._not_written(entry, result, error)
            elif not entry.link.over:
                self._written_through(entry, staged)
            self._go_on()

        self.registry.write_delta(entry, list(staged), runs, settle, self.broker)

    def _forbidden(self, stream: str) -> None:
        """End the link, because its peer was allowed to publish when the link was made, and is not any more."""
        self._ends_link = True
        try:
            self.broker.check(Action.PUBLISH, stream)
        except Forbidden as error:
            self.forbid(error)

    def end_link(self, error: PublishError) -> None:
        """End the link, because the stream refuses a message of a plain channel for good, and would do so again.

        What was written before is acknowledged first.
        """
        self._ends_link = True
        self.count_refusal(error)
        self.finish()

    def _written_through(self, entry: Entry, staged: Mapping[int, int | None]) -> None:
        link = entry.link
        for channel, through in staged.items():
            found = link.receiving.get(channel)
            if through is None:
                self._forgotten(link.forget(channel))
            elif found is not None and found.consumed < through <= found.done:
                link.settle(channel, through)
        self.registry.measure(entry)

    def _forgotten(self, found: Sequence[object]) -> None:
        if found and self._closing and self.entry is not None:
            self.registry.discard(self.entry)  # it ended without us
        self.handle_events(found)

    def _not_written(self, entry: Entry, failure: Failure, error: PublishError) -> None:
        """Nothing of it counts: the peer will send it again, on another connection."""
        entry.failed = True
        self.session.fenced()
        if isinstance(error, FOR_GOOD):
            self.registry.discard(entry)  # and would be refused again
        self._refused(failure)

    def count_too_large(self, messages: int) -> None:
        """Count a transaction that was not kept, because too much was undecided."""
        detail = (
            f"a transaction of {messages} messages is not committed; raise relink.backlog, backlog-size or link-memory"
        )
        self.broker.counters.refuse(self.log, PROTOCOL, "transactions-too-large", self.peer, detail)

    def count_refusal(self, error: PublishError) -> None:
        """A publish was refused for good."""
        self.broker.counters.refuse(self.log, PROTOCOL, type(error).__name__, self.peer, str(error))

    def _go_on(self) -> None:
        """Something is settled: say so, and take what had to wait."""
        if self._closing:
            if not self._in_flight and not self._disconnected():
                self._hang_up()
            return
        # One commit may settle several writes, one after the other, and the last of them says it for all.  What was
        # held back is taken in a turn of its own: it is written again, and that may settle at once, and so on.
        if self.session.ready or (self.entry is not None and self.entry.writes > 1):
            self.flush_soon()
        else:
            self.flush()

    def _hang_up(self) -> None:
        if not self._hung_up:
            self._hung_up = True
            super()._hang_up()
            if self._ends_link and self.entry is not None and self.entry.holder is self:
                self.session.fenced()
                self.registry.discard(self.entry)

    def flush_soon(self) -> None:
        """Write when this turn of the reactor is over, and take what was held back."""
        if self._flush_due is None and not self._disconnected():
            self._flush_due = self.clock.callLater(0, self._flush_now)

    def _flush_now(self) -> None:
        self._flush_due = None
        if self._closing or not self.session.ready:
            self.flush()
            return
        # What was held back while too much was not durable comes now; it may hold back again.
        self.received(self.session.receive_data(b""))

    def fenced(self) -> None:
        """Another connection has taken the link over (L4)."""
        self.session.fenced()
        if self.endpoint is not None:
            self.endpoint.end()
        self.broker.counters.add(PROTOCOL, "connections-fenced")
        self._closing = True
        if not self._disconnected():
            self.transport.abortConnection()

    def reject(self, error: RemoteProtocolError) -> None:
        """The peer has broken a rule of its endpoint: it loses its link."""
        self.session.fenced()
        if self.entry is not None:
            self.registry.discard(self.entry)
        self.drop(error)


class RelinkService(TCPService):
    """Listens as long as it runs, with the links that its registry finds."""

    def __init__(
        self, reactor: Any, endpoint: str, factory: SessionFactory, registry: Registry, around: Any = None
    ) -> None:
        super().__init__(reactor, PROTOCOL, endpoint, factory, around)
        self.registry = registry
        self._waiting: IDelayedCall | None = None

    def startService(self) -> Deferred[Any]:
        """Find the links, then listen.  While the disk is full only this listener stays closed."""
        Service.startService(self)
        return self._open().addErrback(self._no_room)

    def _open(self) -> Deferred[Any]:
        return self.registry.open().addCallback(self._found)

    def _found(self, _: None) -> Deferred[IListeningPort] | None:
        if self.running:
            return TCPService.startService(self)
        self.registry.close()  # it was stopped in the meantime
        return None

    def _no_room(self, failure: Failure) -> None:
        failure.trap(ReadOnly)
        log.warn("relink: nobody is let in before the links can be written: {why}", why=failure.getErrorMessage())
        self._waiting = self.registry.clock.callLater(FULL_WAIT, self._try_again)

    def _try_again(self) -> None:
        self._waiting = None
        self._open().addErrback(self._no_room).addErrback(self._not_opened)

    def _not_opened(self, failure: Failure) -> None:
        if self.running:
            log.failure("relink: the links cannot be written, so nobody is let in", failure)

    def stopService(self) -> Deferred[None]:
        """Close the port and the connections; the links stay on disk."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self.registry.close()
        return super().stopService()


def make_factory(broker: IBroker, clock: IReactorTime, settings: Settings, registry: Registry) -> SessionFactory:
    """What listens."""
    return SessionFactory(
        lambda: RelinkProtocol(broker, clock, settings, registry), PROTOCOL, RelinkProtocol.log, broker, clock, settings
    )
