"""Relink's server: connects the session of each connection to its link in the registry, and to the broker.

    HelloReceived -> registry: fence the old connection, wait for its writes -> accept -> report, resume, messages
    Received, Decided -> one write of messages and cursors -> durable -> consumed, committed

A link stays when its connection is lost.  A peer that violates the protocol loses the connection and the link, after
everything that it sent before is stored and acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, get_args

import attrs
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import (
    Broken,
    Forbidden,
    FyrehoseError,
    InvalidName,
    NewStreamForbidden,
    PayloadTooLarge,
    PublishError,
    ReadOnly,
    RemoteProtocolError,
    StreamFull,
    SubscriptionError,
    TooManyStreams,
    Unreplicated,
)
from fyrehose.identity import Action
from fyrehose.interfaces import IBroker
from fyrehose.net.keepalive import PingsSilentPeer
from fyrehose.net.lifecycle import Phase
from fyrehose.net.peers import certificate_of
from fyrehose.net.tcp import SessionProtocol, on
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.frames import PROTOCOL, Ack
from fyrehose.protocols.relink.linklog import Anchors
from fyrehose.protocols.relink.names import EndpointName, parse
from fyrehose.protocols.relink.registry import LinkEntry
from fyrehose.protocols.relink.session import HelloReceived, Linked, ListenerSession
from fyrehose.protocols.relink.settings import RelinkSettings
from fyrehose.records import Publish, Run

#: Errors with which a retry would be refused again; the broker raises them at once, before it writes anything.
PERMANENT_REFUSALS = (InvalidName, NewStreamForbidden, PayloadTooLarge, StreamFull, TooManyStreams)


def first_anchor(broker: IBroker, place: EndpointName, position: int | None = None) -> Anchors:
    """Return the anchor at which a new subscriber's channel begins in its stream; an empty list for a publisher.

    :param position: the position of the named subscription that the link consumes; None: it consumes none
    """
    if not place.subscribe:
        return []
    if position is not None:
        return [(int(place.seqs), position + 1)]
    oldest, last = broker.bounds(place.stream)
    after = last if place.after is None else max(place.after, oldest - 1)
    if after > last or place.epoch not in ("", broker.epoch):
        after = oldest - 1  # the number is one of another journal
    return [(int(place.seqs), after + 1)]  # With ?seq, message 0 carries no record: it says where the channel begins.


@attrs.frozen(slots=True)
class Staged:
    """A step of a channel of the peer, to be written: what becomes of its messages from *first* to *last*.

    :ivar last: None: the channel is forgotten
    :ivar result: None: the messages are without a transaction, or rolled back
    """

    channel: int
    first: int
    last: int | None
    result: Ack | None = None


@attrs.frozen(slots=True)
class LinkWrite:
    """Messages of a link and the last numbers of its channels that are being written; None: a forgotten channel."""

    entry: LinkEntry
    staged: Mapping[int, int | None]


class RelinkProtocol(PingsSilentPeer, SessionProtocol):
    """The Twisted protocol of one connection to the server."""

    protocol_name: ClassVar[str] = PROTOCOL
    log: ClassVar[Logger] = Logger()

    session: ListenerSession
    settings: RelinkSettings

    def __init__(self, factory: Any) -> None:
        settings = factory.settings
        super().__init__(factory, ListenerSession(settings.limits))
        self.registry = factory.registry
        self.entry: LinkEntry | None = None
        self.endpoint: Endpoint | None = None
        #: the named subscription that the link consumes
        self.named: Any = None
        self.ping_after, self.drop_after = settings.ping_after, settings.drop_after

    # Called by the reactor.

    def connectionMade(self) -> None:
        super().connectionMade()
        self.timers.start(self.settings.handshake_timeout, self._handshake_timed_out)

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        """Keep the link for the connector's next connection, and release what belongs only to this connection."""
        self.session.fenced()
        if self.endpoint is not None:
            self.endpoint.end()
        if self.entry is not None and self.entry.holder is self:
            self.registry.detached(self.entry)
        if self.named is not None:
            self.named.detach(self)
        super().connectionLost(reason)

    def pauseProducing(self) -> None:
        """Stop reading as well, because the peer's packets may need answers, which cannot be sent now."""
        super().pauseProducing()
        if self.phase is Phase.OPEN:
            self.reading.pause_for("unread packets")

    def resumeProducing(self) -> None:
        super().resumeProducing()
        self.reading.resume_after("unread packets")

    # The handshake.

    def hello_received(self, event: HelloReceived) -> None:
        """Check the connector's request, then resume its link, refuse it, or create a new one."""
        try:
            place = parse(event.hello.terms)
        except RemoteProtocolError as error:
            self.drop(error)
            return
        self.broker.check(Action.SUBSCRIBE if place.subscribe else Action.PUBLISH, place.stream)
        self.reading.pause_for("handshake")  # Read nothing more until the registry has decided about the link.
        opened = self.registry.when_open()
        if place.name is not None:
            opened.addCallback(lambda _: self.broker.named.open(place.name, place.stream, place.after))
            opened.addCallbacks(self._subscription_opened, self.refuse_subscription)
        opened.addCallback(lambda _: self._find_link(event, place)).addErrback(self.failed)

    def _subscription_opened(self, named: Any) -> None:
        self.named = named

    def refuse_subscription(self, failure: Failure) -> None:
        """Close the connection of a peer that cannot have the named subscription now; the peer may try again later."""
        failure.trap(FyrehoseError)
        if self.phase is not Phase.OPEN:
            return
        if isinstance(failure.value, Forbidden):
            self.forbid(failure.value)
        else:
            self.drop(RemoteProtocolError("subscription-refused", failure.getErrorMessage()))

    def displaced(self, reason: SubscriptionError) -> None:
        """Discard the link, because its named subscription was rewound or deleted, or belongs to another consumer."""
        self.reject(RemoteProtocolError("subscription-displaced", str(reason)))

    def _find_link(self, event: HelloReceived, place: EndpointName) -> None:
        hello, registry = event.hello, self.registry
        certificate = certificate_of(self.transport)
        identity = b"" if certificate is None else bytes(certificate.digest("sha256"))
        if self.phase is not Phase.OPEN or (place.name is not None and self.named is None):
            return
        entry = registry.find(hello, identity, self.peer)
        if entry is not None and self.named is not None and self.named.owner != entry.label:
            registry.discard(entry)  # The subscription had another consumer since, or was rewound.
            entry = None
        if entry is not None:
            if self.named is not None:
                self.broker.named.attach(self.named, self, entry.label)
            settled = self._attach(entry)
            settled.addCallback(lambda _: self._link_ready(entry, place, resumed=True)).addErrback(self.failed)
        elif hello.require:
            self.session.refuse(registry.epoch)
            self.finish()
        else:
            position = None if self.named is None else self.named.seq
            entry = registry.create(hello.terms, identity, self.peer, first_anchor(self.broker, place, position))
            if entry is None:
                detail = f"all {self.settings.max_links} links have a connection"
                self.drop(RemoteProtocolError("too-many-links", detail))
                return
            if self.named is not None:
                try:
                    self.broker.named.attach(self.named, self, entry.label, takeover=place.takeover)
                except FyrehoseError:
                    registry.discard(entry)
                    self.refuse_subscription(Failure())
                    return
            self._attach(entry)
            registry.write_entry(entry, lambda result: self._link_written(entry, place, result))

    def _attach(self, entry: LinkEntry) -> Any:
        self.entry = entry
        return self.registry.attached(entry, self, self.peer)

    def _link_written(self, entry: LinkEntry, place: EndpointName, result: Any) -> None:
        if isinstance(result, Failure):
            error = result.value
            if not isinstance(error, PublishError):
                result.raiseException()
            entry.saved = False
            # A subscriber is served even if the disk has no room for its link: only a restart loses the link.  But a
            # server that may not be the leader any more must not replace a link that the client has at the leader.
            full = isinstance(error, ReadOnly) and not isinstance(error, Unreplicated)
            if not (place.subscribe and full):
                self.registry.discard(entry)
                self.refused(error)
                self.settled()
        self._link_ready(entry, place, resumed=False)

    def _link_ready(self, entry: LinkEntry, place: EndpointName, *, resumed: bool) -> None:
        """Answer the handshake once the link is durable, or once its earlier writes are finished."""
        if not self.writable:
            return
        self.reading.resume_after("handshake")
        if self.phase is not Phase.OPEN or entry.holder is not self:
            return
        if entry.link.over:
            self.finish()
            return
        self.endpoint = self.factory.endpoint(self, entry, place)
        self.received(self.session.accept(entry.link, resumed=resumed))
        if self.phase is Phase.OPEN:
            self.received(self.session.receive_data(b""))

    def linked(self, event: Linked) -> None:
        """Complete the handshake, and start messaging on a new link."""
        self.timers.stop(self._handshake_timed_out)
        self.keep_alive()
        self.broker.counters.add(PROTOCOL, "links-resumed" if event.resumed else "links-made")
        if not event.resumed and self.endpoint is not None:
            self.endpoint.begin()

    def _handshake_timed_out(self) -> None:
        if not self.session.linked and self.phase is Phase.OPEN:
            self.drop(RemoteProtocolError("handshake-timeout"))

    # Called by the timer.

    @property
    def unheard(self) -> bool:
        return self.reading.paused

    def ping(self) -> None:
        if self.phase is Phase.OPEN and self.session.linked and self.entry is not None:
            self.entry.link.ping()
            self.flush()

    def give_up(self, silence: float) -> None:
        """Drop the connection of a silent peer, and keep the link."""
        if self.phase is Phase.OPEN:
            self.broker.counters.refuse(self.log, PROTOCOL, "silent-peer", self.peer)
            self.abort()

    # Events of the link.

    def received(self, found: Sequence[object]) -> None:
        super().received(found)
        if self.endpoint is not None and self.phase is Phase.OPEN:
            self.endpoint.after_read()
            if self.entry is not None:
                self.registry.measure(self.entry)

    def handle_events(self, found: Sequence[object]) -> None:
        """Handle *found*, events that the server itself has caused by calling the link."""
        self.handle(found)
        self.flush_soon()

    def broken(self, event: Broken) -> None:
        """End the link after a violation, once all messages before the violation are stored and acknowledged."""
        if self.endpoint is not None:
            self.endpoint.after_read()
            self.reject(event.error)
        else:
            self.drop(event.error)  # A link that was found has received nothing on this connection, so it is kept.

    def link_event(self, event: events.Event) -> None:
        """Pass an event of the link on to this connection's endpoint."""
        assert self.endpoint is not None
        self.endpoint.handle(event)

    def link_ended(self, event: events.Ended) -> None:
        """Discard a link that has ended in good order, and close the connection."""
        assert self.entry is not None
        self.broker.counters.add(PROTOCOL, "links-ended")
        self.registry.discard(self.entry)
        self.finish()

    handlers = (
        dict.fromkeys(get_args(events.Event), link_event)
        | on(Broken, broken)
        | on(HelloReceived, hello_received)
        | on(Linked, linked)
        | on(events.Ended, link_ended)
    )

    # Called by the endpoint.

    def write(self, runs: Sequence[Run], stages: Sequence[Staged], dead: Sequence[Run] = ()) -> PublishError | None:
        """Write messages and the stages of their channels; acknowledge the messages when both are durable.

        :param dead: dead letters of messages that are staged
        :return: the error if the stream refuses *runs* or *dead*, and would refuse them again; nothing is staged then.
            None if they are accepted, or the connection ends
        """
        entry = self.entry
        assert entry is not None
        for each in stages:
            entry.link.stage(each.channel, each.last, each.result)
        write = LinkWrite(entry, {each.channel: each.last for each in stages})
        self.unsettled += 1
        try:
            self.publisher.publish(list(runs), write, (self.registry.begin_write(entry, list(write.staged)), *dead))
            return None
        except Exception as error:  # after an unexpected error, too, the staged messages have to be taken back
            self.unsettled -= 1
            for each in stages:
                entry.link.unstage(each.channel, each.first)
            entry.write_finished()
            if isinstance(error, PERMANENT_REFUSALS) and (runs or dead):
                return error
            self._not_written(error)
            return None

    def settle(self, items: Sequence[Publish]) -> None:
        """Acknowledge the writes that the same commit made durable together."""
        self.unsettled -= len(items)
        for item in items:
            try:
                self._settle_staged(item.note)
            except Exception:
                self.log.failure("relink: handling the result of a write failed")
        if self.phase is not Phase.OPEN:
            self.settled()
        else:
            # Packets that were held back are decoded in a new turn of the reactor, because their write may finish at
            # once, too, and the next ones, without end.
            (self.flush_soon if self.session.ready else self.flush)()
        for item in items:
            item.note.entry.write_finished()

    def _not_written(self, error: Exception) -> None:
        """Close the connection after a refused write; the peer sends the messages again, if a retry can help."""
        if isinstance(error, (Forbidden, *PERMANENT_REFUSALS)):
            self._end_link_later()  # A retry of these messages would be refused, too.
        else:
            self.session.fenced()
        if isinstance(error, Forbidden):
            self.forbid(error)  # The access policy no longer permits the peer to publish.
        elif isinstance(error, PublishError):
            self.refused(error)
        else:
            self.failed(Failure(error))

    def end_link(self, error: PublishError) -> None:
        """End the link, because the stream refuses a message without a transaction, and would refuse it again.

        Messages that were written before are acknowledged first.
        """
        self._end_link_later()
        self.count_refusal(type(error).__name__, str(error))
        self.finish()

    def _settle_staged(self, write: LinkWrite) -> None:
        """Acknowledge messages and remove finished channels, because both are durable."""
        entry, link = write.entry, write.entry.link
        if link.over:
            return
        for channel, through in write.staged.items():
            found = link.receiving.get(channel)
            if through is None:
                ended = link.forget(channel)
                if ended and self.phase is not Phase.OPEN:
                    self.registry.discard(entry)  # The link has ended while the connection was closing.
                self.handle_events(ended)
            elif found is not None and found.consumed < through <= found.done:
                link.settle(channel, through)
        self.registry.measure(entry)

    def count_refusal(self, cause: str, detail: str) -> None:
        """Count and log messages that were refused permanently."""
        self.broker.counters.refuse(self.log, PROTOCOL, cause, self.peer, detail)

    def hang_up(self) -> None:
        super().hang_up()
        if self.entry is not None and self.entry.ending:
            self.session.fenced()
            self.registry.discard(self.entry)

    def flush_soon(self) -> None:
        """Flush at the end of this turn of the reactor, and decode packets that were held back."""
        if self.writable:
            self.timers.start(0, self._flush_now)

    def _flush_now(self) -> None:
        if self.phase is not Phase.OPEN or not self.session.ready:
            self.flush()
        else:
            # Decoding stops again as soon as too many messages wait to be durable.
            self.received(self.session.receive_data(b""))

    def fenced(self) -> None:
        """Abort the connection, because another connection has taken over its link (rule L4)."""
        self.session.fenced()
        if self.endpoint is not None:
            self.endpoint.end()
        self.broker.counters.add(PROTOCOL, "connections-fenced")
        self.abort()

    def reject(self, error: RemoteProtocolError) -> None:
        """End the link and the connection of a peer that has violated a rule.

        Both first wait until all writes for the link are acknowledged or refused: the peer would send stored messages
        without an acknowledgement again on another link.
        """
        self._end_link_later()
        self.drop(error)

    def _end_link_later(self) -> None:
        """Discard the link when the connection closes; from now on it cannot be resumed."""
        if self.entry is not None:
            self.entry.ending = True


class Endpoint:
    """The base of the endpoints, which handle the link's events on one connection."""

    def __init__(self, connection: RelinkProtocol, entry: LinkEntry, place: EndpointName) -> None:
        self.connection = connection
        self.entry = entry
        self.link = entry.link
        self.place = place

    def begin(self) -> None:
        """Start messaging on a new link."""

    def handle(self, event: events.Event) -> None:
        """Handle an event of the link."""
        raise NotImplementedError

    def end(self) -> None:
        """Release resources, because the connection is closed."""

    def after_read(self) -> None:
        """Handle everything that one read has collected."""
