"""Sans-I/O sessions of both peers: one connection, from its handshake to the packets of its link.

    in: bytes that the reactor read, calls of the owner      out: events for the owner, bytes for the peer

Two tables define the stages of a connection.  An error of the peer never raises: the last event is Broken, and
nothing more is decoded.  The link is lost (its state is suspect, and the peer would send the same packet again), but it
stays attached until the owner calls ``fenced``, so that the owner can acknowledge the packets before the error.  The
end of the transport is no error: the link is kept, detached, for the next connection.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ClassVar

import attrs

from fyrehose.errors import Broken, LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.relink import handshake
from fyrehose.protocols.relink.decoder import Decoder
from fyrehose.protocols.relink.frames import RESUME
from fyrehose.protocols.relink.handshake_events import Linked, SessionEvent
from fyrehose.protocols.relink.limits import LinkLimits
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.tables import Stage, Step, Transitions
from fyrehose.sessions import ByteSession


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
    awaited: Callable[[bytes], int] | None = attrs.field(default=handshake.version_size, init=False)
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
        """Return the events of the next turn."""
        return self.receive_data(b"") if self.more else []

    def receive_data(self, data: bytes) -> list[SessionEvent]:
        """Return the events that *data* completes."""
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

        :param arguments: the link, or the epoch of a link that is not known
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
        """Remove and return the awaited field, which has arrived; no field is awaited then."""
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
        """Add *event* to those that are returned next."""
        self._events.append(event)

    # Private.

    def _stop_decoding(self) -> None:
        """Drop the bytes that are not decoded, and ignore all that follow."""
        self._closed, self.awaited, self.expected, self.ready = True, None, 0, False
        self._decoder.clear()

    def _take_events(self) -> list[SessionEvent]:
        found, self._events = self._events, []
        return found

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
