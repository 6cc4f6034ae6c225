"""Relink's server: connects the session of each connection to its link in the registry, and to the broker.

    HelloReceived -> registry: fence the old connection, wait for its writes -> accept -> report, resume, messages
    Received, Decided -> one write of messages and cursors -> durable -> consumed, committed

A link stays when its connection is lost.  A peer that violates the protocol loses both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IListeningPort
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
from fyrehose.net.lifecycle import Phase
from fyrehose.net.tcp import SessionProtocol, on
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

#: Delay before a listener that could not open because of a full disk tries again, in seconds.
DISK_FULL_RETRY = 2.0
#: Called when a write is refused for good, before :meth:`RelinkProtocol.write` returns; returns whether that is
#: handled.
Refused = Callable[[PublishError], bool]
#: Refusals that a retry cannot avoid; the broker raises them at once, before anything else is written.
PERMANENT_REFUSALS = (InvalidName, NewStreamForbidden, PayloadTooLarge, StreamFull, TooManyStreams)


class RelinkProtocol(SessionProtocol):
    """The Twisted protocol of one connection to the server."""

    protocol_name: ClassVar[str] = PROTOCOL
    log: ClassVar[Logger] = Logger()

    session: ListenerSession
    settings: Settings

    def __init__(self, factory: RelinkFactory) -> None:
        super().__init__(factory, ListenerSession(factory.settings.limits))
        self.registry = factory.registry
        self.entry: Entry | None = None
        self.endpoint: Endpoint | None = None
        self._last_received = 0.0
        self._timer: IDelayedCall | None = None
        self._flush_due: IDelayedCall | None = None
        self._unread_paused = False
        self._hung_up = False
        #: whether the link ends with the connection, after everything written was acknowledged
        self._ends_link = False

    # Called by the reactor.

    def connectionMade(self) -> None:
        super().connectionMade()
        self._last_received = self.clock.seconds()
        self._timer = self.clock.callLater(self.settings.handshake_timeout, self._handshake_timed_out)

    def dataReceived(self, data: bytes) -> None:
        self._last_received = self.clock.seconds()
        super().dataReceived(data)

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        for timer in (self._timer, self._flush_due):
            if timer is not None and timer.active():
                timer.cancel()
        self.session.fenced()
        if self.endpoint is not None:
            self.endpoint.end()
        if self.entry is not None and self.entry.holder is self:
            self.registry.detached(self.entry)
        super().connectionLost(reason)

    def pauseProducing(self) -> None:
        """Stop reading as well, because what the peer sends may need answers."""
        super().pauseProducing()
        if not self._unread_paused and self.phase is Phase.OPEN:
            self._unread_paused = True
            self.reading.pauseProducing()

    def resumeProducing(self) -> None:
        super().resumeProducing()
        if self._unread_paused:
            self._unread_paused = False
            self.reading.resumeProducing()

    # The handshake.

    def hello_received(self, event: events.HelloReceived) -> None:
        """Check the connector's request, then resume its link, refuse it, or create a new one."""
        hello, identity = event.hello, self._identity()
        try:
            place = parse(hello.terms)
        except RemoteProtocolError as error:
            self.drop(error)
            return
        self.broker.check(Action.SUBSCRIBE if place.subscribe else Action.PUBLISH, place.stream)
        entry = self.registry.find(hello, identity, self.peer)
        if entry is not None:
            self._pause_for_link(entry)
            settled = self.registry.attached(entry, self, self.peer)
            settled.addCallback(lambda _: self._link_ready(entry, place, resumed=True)).addErrback(self.failed)
        elif hello.require:
            self.session.refuse(self.registry.epoch)
            self.finish()
        else:
            self._create(hello, identity, place)

    def _create(self, hello: Hello, identity: bytes, place: Place) -> None:
        entry = self.registry.create(hello.terms, identity, self.peer, first_anchor(self.broker, place))
        if entry is None:
            self.drop(RemoteProtocolError("too-many-links", f"all {self.settings.max_links} links have a connection"))
            return
        self._pause_for_link(entry)
        self.registry.attached(entry, self, self.peer)

        def written(result: Any) -> None:
            if isinstance(result, Failure):
                result.trap(PublishError)
                entry.saved = False
                # Subscribing works without room on the disk, except that a restart loses the link.
                if not (place.subscribe and isinstance(result.value, ReadOnly)):
                    self.registry.discard(entry)
                    self.refused(result)
                    self.settled()
            self._link_ready(entry, place, resumed=False)

        self.registry.write_entry(entry, written)

    def _pause_for_link(self, entry: Entry) -> None:
        """Read nothing more until the registry has decided about the link."""
        self.entry = entry
        self.reading.pauseProducing()

    def _link_ready(self, entry: Entry, place: Place, *, resumed: bool) -> None:
        """Continue reading after the link was written, or after its earlier writes are finished."""
        if not self.writable:
            return
        self.reading.resumeProducing()
        if self.phase is Phase.OPEN and entry.holder is self:
            self._accept(entry, place, resumed=resumed)

    def _accept(self, entry: Entry, place: Place, *, resumed: bool) -> None:
        if entry.link.over:
            self.finish()
            return
        self.endpoint = (Subscribing if place.subscribe else Publishing)(self, entry, place)
        self.received(self.session.accept(entry.link, resumed=resumed))
        if self.phase is Phase.OPEN:
            self.received(self.session.receive_data(b""))

    def linked(self, event: events.Linked) -> None:
        """Complete the handshake, and start messaging on a new link."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.clock.callLater(self.settings.ping_after, self._watch_silence)
        self.broker.counters.add(PROTOCOL, "links-resumed" if event.resumed else "links-made")
        if not event.resumed and self.endpoint is not None:
            self.endpoint.begin()

    def _identity(self) -> bytes:
        """Return the digest of the peer's certificate, or nothing if it has none."""
        certificate = getattr(self.transport, "getPeerCertificate", lambda: None)()
        return b"" if certificate is None else bytes(certificate.digest("sha256"))

    def _handshake_timed_out(self) -> None:
        self._timer = None
        if self.session.phase not in PACKETS and self.phase is Phase.OPEN:
            self.drop(RemoteProtocolError("handshake-timeout"))

    def _watch_silence(self) -> None:
        """Send a ping to a silent peer, and drop the connection if the silence lasts; the link stays."""
        self._timer = None
        settings = self.settings
        if self.phase is not Phase.OPEN or self.entry is None:
            return
        if self.reading.paused:
            self._last_received = self.clock.seconds()
        silence = self.clock.seconds() - self._last_received
        if silence >= settings.drop_after:
            self.broker.counters.refuse(self.log, PROTOCOL, "silent-peer", self.peer)
            self.abort()
            return
        if silence >= settings.ping_after and self.entry.link.attached:
            self.entry.link.ping()
            self.flush()
        left = settings.ping_after - silence
        self._timer = self.clock.callLater(left if left > 0 else settings.ping_after, self._watch_silence)

    # Events of the link.

    def received(self, found: Sequence[object]) -> None:
        super().received(found)
        if self.endpoint is not None and self.phase is Phase.OPEN:
            self.endpoint.after_read()
            if self.entry is not None:
                self.registry.measure(self.entry)

    def handle_events(self, found: Sequence[object]) -> None:
        """Handle events that were caused by our own calls of the link."""
        self.handle(found)
        self.flush_soon()

    def broken(self, event: Broken) -> None:
        if self.entry is not None:
            if self.endpoint is not None:
                self.endpoint.after_read()  # Messages before the violation take effect.
            self.registry.discard(self.entry)
        super().broken(event)

    def resumed(self, event: events.Resumed) -> None:
        """Do nothing: the endpoint continues by itself."""

    def message_received(self, event: events.Received) -> None:
        """Pass the event to the endpoint."""
        self._endpoint.received(event)

    def decided(self, event: events.Decided) -> None:
        """Pass the event to the endpoint."""
        self._endpoint.decided(event)

    def finished(self, event: events.Finished) -> None:
        """Pass the event to the endpoint."""
        self._endpoint.finished(event)

    def consumed(self, event: events.Consumed) -> None:
        """Pass the event to the endpoint."""
        self._endpoint.consumed(event)

    def rewound(self, event: events.Rewound) -> None:
        """Pass the event to the endpoint."""
        self._endpoint.rewound(event)

    def channel_closed(self, event: events.Closed) -> None:
        """Do nothing: if that ends the link, another event reports it."""

    def peer_shutdown(self, event: events.PeerShutdown) -> None:
        """Pass the event to the endpoint."""
        self._endpoint.peer_shutdown()

    def link_ended(self, event: events.Ended) -> None:
        """Discard a link that has ended in good order, and close the connection."""
        assert self.entry is not None
        self.broker.counters.add(PROTOCOL, "links-ended")
        self.registry.discard(self.entry)
        self.finish()

    handlers = (
        on(Broken, broken)
        | on(events.HelloReceived, hello_received)
        | on(events.Linked, linked)
        | on(events.Resumed, resumed)
        | on(events.Received, message_received)
        | on(events.Decided, decided)
        | on(events.Finished, finished)
        | on(events.Consumed, consumed)
        | on(events.Rewound, rewound)
        | on(events.Closed, channel_closed)
        | on(events.PeerShutdown, peer_shutdown)
        | on(events.Ended, link_ended)
    )

    @property
    def _endpoint(self) -> Endpoint:
        assert self.endpoint is not None
        return self.endpoint

    # Called by the endpoint.

    def write(self, runs: Sequence[Run], staged: Mapping[int, int | None], refused: Refused | None = None) -> None:
        """Write messages and the staged state of channels; acknowledge them to the peer when they are durable.

        :param staged: channel -> number of the last staged message; None if the channel is to be forgotten
        :param refused: called if the write is refused for good; returns whether it has handled that
        """
        entry = self.entry
        assert entry is not None
        for run in runs:
            if not self.broker.permits(Action.PUBLISH, run.stream):
                self._forbidden(run.stream)
                return
        size = sum(run.size for run in runs)
        self.in_flight.hold(size)

        def settle(result: Any) -> None:
            try:
                self._write_settled(entry, staged, refused, result)
            finally:
                self.in_flight.release(None, size)
            self._continue()

        self.registry.write_delta(entry, list(staged), runs, settle, self.broker)

    def _write_settled(
        self, entry: Entry, staged: Mapping[int, int | None], refused: Refused | None, result: object
    ) -> None:
        if isinstance(result, Failure):
            error = result.value
            if not isinstance(error, PublishError):
                entry.failed = True
                self.session.fenced()
                self.failed(result)
            elif not (isinstance(error, PERMANENT_REFUSALS) and refused is not None and refused(error)):
                self._not_written(entry, result, error)
        elif not entry.link.over:
            self._settle_staged(entry, staged)

    def _forbidden(self, stream: str) -> None:
        """End the link, because the access policy does not allow its peer to publish any more."""
        self._ends_link = True
        try:
            self.broker.check(Action.PUBLISH, stream)
        except Forbidden as error:
            self.forbid(error)

    def end_link(self, error: PublishError) -> None:
        """End the link, because the stream refuses a message of a plain channel for good, and would do so again.

        Messages that were written before are acknowledged first.
        """
        self._ends_link = True
        self.count_refusal(error)
        self.finish()

    def _settle_staged(self, entry: Entry, staged: Mapping[int, int | None]) -> None:
        """Acknowledge staged messages, and remove forgotten channels, because both are durable."""
        link = entry.link
        for channel, through in staged.items():
            found = link.receiving.get(channel)
            if through is None:
                self._forgotten(link.forget(channel))
            elif found is not None and found.consumed < through <= found.done:
                link.settle(channel, through)
        self.registry.measure(entry)

    def _forgotten(self, found: Sequence[object]) -> None:
        if found and self.phase is not Phase.OPEN and self.entry is not None:
            self.registry.discard(self.entry)  # The link has ended while the connection was closing.
        self.handle_events(found)

    def _not_written(self, entry: Entry, failure: Failure, error: PublishError) -> None:
        """Close the connection after a refused write; the peer sends the messages again on another one."""
        entry.failed = True
        self.session.fenced()
        if isinstance(error, PERMANENT_REFUSALS):
            self.registry.discard(entry)  # A retry would be refused, too.
        self.refused(failure)

    def count_too_large(self, messages: int) -> None:
        """Count a transaction that was not kept, because too many messages were undecided."""
        detail = (
            f"a transaction of {messages} messages was too large to be kept, so its commit failed; "
            "raise relink.backlog, relink.backlog-size or relink.link-memory"
        )
        self.broker.counters.refuse(self.log, PROTOCOL, "transactions-too-large", self.peer, detail)

    def count_refusal(self, error: PublishError) -> None:
        """Count messages that were refused for good."""
        self.broker.counters.refuse(self.log, PROTOCOL, type(error).__name__, self.peer, str(error))

    def _continue(self) -> None:
        """Flush acknowledgements after a write has finished, and decode packets that were held back."""
        if self.phase is not Phase.OPEN:
            return
        # One commit may finish several writes in a row, and one flush after the last of them is enough.  Packets that
        # were held back are decoded in a new turn of the reactor, because their write may finish at once as well, and
        # so on without end.
        if self.session.ready or (self.entry is not None and self.entry.writes > 1):
            self.flush_soon()
        else:
            self.flush()

    def hang_up(self) -> None:
        if not self._hung_up:
            self._hung_up = True
            super().hang_up()
            if self._ends_link and self.entry is not None and self.entry.holder is self:
                self.session.fenced()
                self.registry.discard(self.entry)

    def flush_soon(self) -> None:
        """Flush at the end of this turn of the reactor, and decode packets that were held back."""
        if self._flush_due is None and self.writable:
            self._flush_due = self.clock.callLater(0, self._flush_now)

    def _flush_now(self) -> None:
        self._flush_due = None
        if self.phase is not Phase.OPEN or not self.session.ready:
            self.flush()
            return
        # Decode the packets that were held back; that stops again when too many messages are not durable.
        self.received(self.session.receive_data(b""))

    def fenced(self) -> None:
        """Abort the connection, because another one has taken over its link (L4)."""
        self.session.fenced()
        if self.endpoint is not None:
            self.endpoint.end()
        self.broker.counters.add(PROTOCOL, "connections-fenced")
        self.abort()

    def reject(self, error: RemoteProtocolError) -> None:
        """Discard the link and close the connection of a peer that has violated a rule of its endpoint."""
        self.session.fenced()
        if self.entry is not None:
            self.registry.discard(self.entry)
        self.drop(error)


class RelinkFactory(SessionFactory):
    """Builds the protocol of each connection; *registry* has the links."""

    protocol = RelinkProtocol
    defaults = Settings()
    settings: Settings

    def __init__(self, broker: IBroker, settings: Settings, reactor: Any, registry: Registry) -> None:
        super().__init__(broker, settings, reactor)
        self.registry = registry


class RelinkService(TCPService):
    """Service that recovers the links of a listener, and then opens it."""

    def __init__(
        self, reactor: Any, endpoint: str, factory: SessionFactory, registry: Registry, around: Any = None
    ) -> None:
        super().__init__(reactor, PROTOCOL, endpoint, factory, around)
        self.registry = registry
        self._retry_timer: IDelayedCall | None = None

    def startService(self) -> Deferred[Any]:
        """Recover the links, then listen.  While the disk is full, only this listener stays closed."""
        Service.startService(self)
        return self._open().addErrback(self._disk_full)

    def _open(self) -> Deferred[Any]:
        return self.registry.open().addCallback(self._links_recovered)

    def _links_recovered(self, _: None) -> Deferred[IListeningPort] | None:
        if self.running:
            return TCPService.startService(self)
        self.registry.close()  # The service was stopped in the meantime.
        return None

    def _disk_full(self, failure: Failure) -> None:
        failure.trap(ReadOnly)
        log.warn(
            "relink: the listener stays closed until its links can be written; retrying: {why}",
            why=failure.getErrorMessage(),
        )
        self._retry_timer = self.registry.clock.callLater(DISK_FULL_RETRY, self._retry_open)

    def _retry_open(self) -> None:
        self._retry_timer = None
        self._open().addErrback(self._disk_full).addErrback(self._open_failed)

    def _open_failed(self, failure: Failure) -> None:
        if self.running:
            log.failure("relink: links cannot be written, so the listener stays closed; restart the server", failure)

    def stopService(self) -> Deferred[None]:
        """Close the listener and its connections; the links stay on disk."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        self.registry.close()
        return super().stopService()
