"""Sans-I/O sessions of both peers: one connection, from its handshake to the packets of its link.

    in: bytes that the reactor read, calls of the owner      out: events for the owner, bytes for the peer

The table ``transitions`` of each session maps the stage of a connection and a step to the next stage and to what the
session does; any other combination is an error.  The stages are those of the specification ("1. Handshake"):

    connector   VERSION -> REPLY -> a new link: OPEN
                                 -> the old link: RESYNC -> OPEN
    listener    VERSION -> HELLO -> LOOKUP -> a new link: OPEN
                                           -> the old link: RESYNC -> OPEN

An error of the peer never raises: the last event is Broken, and nothing more is decoded.  The link is lost (its state
is suspect, and the peer would send the same packet again), but it stays attached until the owner calls ``fenced``, so
that the owner can acknowledge the packets before the error.  The end of the transport is no error: the link is kept,
detached, for the next connection.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import ClassVar

import attrs

from fyrehose.errors import Broken, LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.relink.channels import TableKey
from fyrehose.protocols.relink.decoder import Decoder
from fyrehose.protocols.relink.events import Event
from fyrehose.protocols.relink.frames import (
    RESUME,
    VERSION,
    Hello,
    hello_size,
    pack_reply,
    pack_version,
    reply_size,
    unpack_hello,
    unpack_reply,
    unpack_version,
    version_size,
)
from fyrehose.protocols.relink.link import Link, LinkLimits
from fyrehose.sessions import ByteSession


class Stage(TableKey):
    """Stage of a connection; the states of the specification ("1. Handshake")."""

    VERSION = "waits for the peer's version"
    HELLO = "waits for the connector's hello"
    LOOKUP = "waits for the owner to look up the link"
    REPLY = "waits for the listener's epoch and link id"
    RESYNC = "an old link: waits for the peer's report and its resume"
    OPEN = "both peers may send messages"
    REFUSED = "the required link is not known"


class Step(TableKey):
    """The events that change the stage of a connection."""

    FIELD = "field"  #: a field of the handshake has arrived completely
    NEW_LINK = "new_link"  #: the link is new
    OLD_LINK = "old_link"  #: the link is resumed
    NO_LINK = "no_link"  #: the old link was required and is not known
    RESUME = "resume"  #: the peer's resume packet has arrived


#: The next stage for each stage and step, and the method of the session that handles the step; None: nothing to do.
Transitions = Mapping[tuple[Stage, Step], tuple[Stage, Callable[..., None] | None]]


@attrs.frozen(kw_only=True, slots=True)
class HelloReceived:
    """For listeners: the connector has sent its part of the handshake; call the session's ``accept`` or ``refuse``."""

    hello: Hello


@attrs.frozen(kw_only=True, slots=True)
class Linked:
    """The handshake is complete; if ``resumed``, the link is the old one, and :class:`~.events.Resumed` follows."""

    link: Link
    resumed: bool
    #: connector: the old link, if the listener no longer knew it (see Link.unsettled)
    lost: Link | None = None


@attrs.frozen(kw_only=True, slots=True)
class LinkUnknown:
    """For connectors: the listener does not know the old link, which the handshake required."""

    lost: Link | None


SessionEvent = HelloReceived | Linked | LinkUnknown | Event


@attrs.define(eq=False)
class RelinkSession(ByteSession):
    """The part that the sessions of connector and listener share.

    :cvar transitions: the table of stages and steps; each of the two sessions has its own
    :ivar stage: the present stage of the connection
    :ivar expected: the least size of the packet that is arriving, in bytes; 0 between packets, or if packets are held
        back
    :ivar ready: whether a whole packet has arrived that is not decoded yet
    :ivar link: the link; before the end of the handshake the connector's old link, if it has one
    :ivar linked: whether the handshake is complete, and the connection has not ended
    :ivar awaited: returns the size of the next field of the handshake from the bytes that have arrived; None: no field
        is awaited
    """

    #: the events after which decoding stops until the next turn; see :attr:`more`
    most_events: ClassVar[int] = sys.maxsize
    transitions: ClassVar[Transitions]
    limits: LinkLimits = attrs.field(factory=LinkLimits)
    link: Link | None = None
    stage: Stage = attrs.field(default=Stage.VERSION, init=False)
    linked: bool = attrs.field(default=False, init=False)
    expected: int = attrs.field(default=1, init=False)
    ready: bool = attrs.field(default=False, init=False)
    awaited: Callable[[bytes], int] | None = attrs.field(default=version_size, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    _decoder: Decoder = attrs.field(init=False)
    out: list[bytes] = attrs.field(factory=list, init=False)
    _events: list[SessionEvent] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._decoder = Decoder(0, 0, self.limits)

    @property
    def buffered(self) -> int:
        """The number of bytes in memory that are not decoded yet."""
        return self._decoder.size

    @property
    def waiting(self) -> bool:
        """Whether packets are held back until the owner has settled messages; ``receive_data(b"")`` then continues."""
        return self.ready and self.link is not None and self.link.blocked

    @property
    def more(self) -> bool:
        """Whether :meth:`next_events` can return events, because the peer sent more than one turn handles, or because
        packets are no longer held back.
        """
        link = self.link
        return self.ready and link is not None and not (link.blocked or link.over)

    def next_events(self) -> list[SessionEvent]:
        """Decode more of the buffered packets, and return their events."""
        return self.receive_data(b"") if self.more else []

    def receive_data(self, data: bytes) -> list[SessionEvent]:
        """Process *data*, received bytes, and return the events that are complete now."""
        if self._closed:
            return []
        self._decoder.feed(data)
        try:
            while self.awaited is not None and self._decoder.size >= self.awaited(self._decoder.rest):
                self.step(Step.FIELD)
            if self.linked and self.link is not None:
                self._receive_packets(self.link)
            elif self.awaited is None and self._decoder.size > self.limits.early:
                detail = f"{self._decoder.size} bytes arrived before the handshake was complete"
                raise RemoteProtocolError("too-early", detail)
        except RemoteProtocolError as error:
            self._stop_decoding()
            self._events.append(Broken(error=error))
        self.expected = self._decoder.expected if self.linked else int(self.awaited is not None)
        self.ready = self.linked and bool(self._decoder.buffer) and not self.expected
        found, self._events = self._events, []
        return found

    def fenced(self) -> list[SessionEvent]:
        """Detach the link, and ignore everything that this connection has received or still receives (rule L4)."""
        if self.linked and self.link is not None:
            self.link.detach()
        self.linked = False
        self._stop_decoding()
        return []

    #: The transport has ended.
    receive_eof = fenced

    def step(self, step: Step, *arguments: Link | int) -> None:
        """Handle *step*: enter the stage that the table names for it, and call the method that it names.

        :param arguments: the arguments of that method: the link, or the epoch of a link that is not known
        :raises LocalProtocolError: the step is not expected in the present stage
        """
        found = self.transitions.get((self.stage, step))
        if found is None:
            raise LocalProtocolError(f"{step.value} is not expected in stage {self.stage.name}")
        self.stage, handle = found
        if handle is not None:
            handle(self, *arguments)

    # Called by the methods that handle steps.

    def send(self, data: bytes, awaited: Callable[[bytes], int] | None = None) -> None:
        """Send a part of the handshake, after which the peer sends the field *awaited*."""
        self.out.append(data)
        self.awaited = awaited

    def take(self) -> bytes:
        """Remove and return the awaited field of the handshake, which has arrived; afterwards no field is awaited."""
        assert self.awaited is not None
        rest = self._decoder.rest
        size = self.awaited(rest)
        self._decoder.drop(size)
        self.awaited = None
        return rest[:size]

    def attach(self, link: Link, *, resumed: bool, lost: Link | None = None) -> None:
        """Attach *link*; bytes that arrived early are decoded as its first packets."""
        self.link, self.linked = link, True
        early = self._decoder.rest
        self._decoder = Decoder(link.peer_size, link.our_size, self.limits, link)
        self._decoder.feed(early)
        link.out = self.out
        link.attach(resumed=resumed)
        self.report(Linked(link=link, resumed=resumed, lost=lost))

    def report(self, event: SessionEvent) -> None:
        """Add *event* to the events that the session returns next."""
        self._events.append(event)

    # Private.

    def _stop_decoding(self) -> None:
        """Drop the bytes that are not decoded, and ignore all that follow."""
        self._closed, self.awaited, self.expected, self.ready = True, None, 0, False
        self._decoder.clear()

    def _receive_packets(self, link: Link) -> None:
        decoder, backlog = self._decoder, link.limits.backlog_size
        while decoder.buffer and len(self._events) < self.most_events and not link.over:
            if (link.full or link.held >= backlog) and link.blocked:
                break
            packet = decoder.next_packet()
            if packet is None:
                break
            if packet is RESUME:
                try:
                    self.step(Step.RESUME)
                except LocalProtocolError:
                    raise RemoteProtocolError("resume-unexpected") from None
            link.used = True
            self._events += link.receive(packet)
        link.acknowledge()


@attrs.define(eq=False)
class ConnectorSession(RelinkSession):
    """The connector's session; the connector selects the endpoint and the parameters of the link.

    :ivar hello: the connector's part of the handshake; its epoch and link id are those of ``link``
    :ivar link: the old link, which has no connection and is to be resumed; None: a new link is requested
    :ivar new_link: returns a new link from its epoch and id
    """

    hello: Hello = attrs.field(kw_only=True)
    new_link: Callable[[int, int], Link] = attrs.field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.send(pack_version(VERSION), version_size)

    # The handshake.

    def send_hello(self) -> None:
        """Send the connector's hello, if the listener's version is supported."""
        version = unpack_version(self.take())
        if version > VERSION:
            detail = f"the listener replied with version {version}; the highest supported is {VERSION}"
            raise RemoteProtocolError("version-unknown", detail)
        self.send(self.hello.serialize(), reply_size)

    def read_reply(self) -> None:
        """Read the listener's reply: it resumes the old link, begins a new one, or does not know the old (rule L6)."""
        epoch, link_id = unpack_reply(self.take())
        hello, old = self.hello, self.link
        if link_id and not epoch:
            raise RemoteProtocolError("zero-epoch")
        if not link_id and not hello.require:
            raise RemoteProtocolError("zero-link-id")
        if not link_id:
            self.step(Step.NO_LINK, epoch)
        elif old is not None and (epoch, link_id) == (hello.epoch, hello.link_id):
            self.step(Step.OLD_LINK, old)
        else:
            self.step(Step.NEW_LINK, self.new_link(epoch, link_id))

    def begin(self, link: Link) -> None:
        """Begin a new link on this connection; the old link, if there is one, is lost."""
        lost = self.link
        if lost is not None:
            lost.over = True
        self.attach(link, resumed=False, lost=lost)

    def send_report(self, link: Link) -> None:
        """Resume the old link on this connection: report which messages have arrived."""
        self.attach(link, resumed=True)

    def give_up(self, epoch: int) -> None:
        """Report that the listener does not know the required link."""
        if self.link is not None:
            self.link.over = True
        self.fenced()
        self.report(LinkUnknown(lost=self.link))

    transitions: ClassVar[Transitions] = {
        (Stage.VERSION, Step.FIELD): (Stage.REPLY, send_hello),
        (Stage.REPLY, Step.FIELD): (Stage.REPLY, read_reply),
        (Stage.REPLY, Step.NEW_LINK): (Stage.OPEN, begin),
        (Stage.REPLY, Step.OLD_LINK): (Stage.RESYNC, send_report),
        (Stage.REPLY, Step.NO_LINK): (Stage.REFUSED, give_up),
        (Stage.RESYNC, Step.RESUME): (Stage.OPEN, None),
    }


@attrs.define(eq=False)
class ListenerSession(RelinkSession):
    """The listener's session; its owner looks up the link that a peer requests: see :class:`~.HelloReceived`."""

    #: one turn ends after these events, so that a peer with thousands of small packets does not keep others waiting
    most_events = 256

    def accept(self, link: Link, *, resumed: bool) -> list[SessionEvent]:
        """Answer the hello with *link*; call ``receive_data(b"")`` afterwards.

        :raises LocalProtocolError: the link is attached to another connection
        """
        if link.attached:
            raise LocalProtocolError("the link is attached to another connection; call fenced() of that first")
        self.step(Step.OLD_LINK if resumed else Step.NEW_LINK, link)
        found, self._events = self._events, []
        return found

    def refuse(self, epoch: int) -> None:
        """Answer the hello by refusing the required link, which is not known; then send the pending data, and close.

        :raises LocalProtocolError: no hello has arrived
        """
        self.step(Step.NO_LINK, epoch)

    # The handshake.

    def send_version(self) -> None:
        """Reply with version 0, the only version, whatever the connector supports."""
        self.take()
        self.send(pack_version(VERSION), hello_size)

    def request_link(self) -> None:
        """Report the connector's hello to the owner, which looks up the link."""
        self.report(HelloReceived(hello=unpack_hello(self.take())))

    def begin(self, link: Link) -> None:
        """Answer the hello with a new link."""
        self.send(pack_reply(link.epoch, link.id))
        self.attach(link, resumed=False)

    def send_report(self, link: Link) -> None:
        """Answer the hello with the old link, and report which messages have arrived on it."""
        self.send(pack_reply(link.epoch, link.id))
        self.attach(link, resumed=True)

    def send_refusal(self, epoch: int) -> None:
        """Answer the hello with link id zero: the old link is not known."""
        self.fenced()
        self.send(pack_reply(epoch, 0))

    transitions: ClassVar[Transitions] = {
        (Stage.VERSION, Step.FIELD): (Stage.HELLO, send_version),
        (Stage.HELLO, Step.FIELD): (Stage.LOOKUP, request_link),
        (Stage.LOOKUP, Step.NEW_LINK): (Stage.OPEN, begin),
        (Stage.LOOKUP, Step.OLD_LINK): (Stage.RESYNC, send_report),
        (Stage.LOOKUP, Step.NO_LINK): (Stage.REFUSED, send_refusal),
        (Stage.RESYNC, Step.RESUME): (Stage.OPEN, None),
    }
