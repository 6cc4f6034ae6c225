"""Sans-I/O sessions of both peers: one connection, from its handshake to the packets of its link.

    in: bytes that the reactor read, calls of the owner      out: events for the owner, bytes for the peer

The states of a connection are in :mod:`fyrehose.protocols.relink.tables`.  An error of the peer never raises: the last
event is Broken, and the link is lost (its state is suspect, and the peer would send the same packet again).  The end of
the transport is no error: the link stays, detached, and waits for the next connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import attrs

from fyrehose.errors import Broken, LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.relink import handshake
from fyrehose.protocols.relink.decoder import Decoder
from fyrehose.protocols.relink.events import Event, HelloReceived, Linked, Refused
from fyrehose.protocols.relink.frames import Acknowledgement, Gathered, GeneralPacket, Incoming, Message, Operation
from fyrehose.protocols.relink.handshake import Hello
from fyrehose.protocols.relink.limits import Limits
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.tables import CONNECTOR, LISTENER, PACKETS, Happening, Phase

_KINDS: dict[type, str] = {
    Message: "message",
    Gathered: "messages",
    Operation: "operation",
    Acknowledgement: "acknowledgement",
}


@attrs.define(eq=False)
class Session:
    """The common part of both sessions."""

    limits: Limits = attrs.field(factory=Limits)
    link: Link | None = attrs.field(default=None)
    phase: Phase = attrs.field(default=Phase.VERSION, init=False)
    _decoder: Decoder = attrs.field(init=False)
    _to_send: list[bytes] = attrs.field(factory=list, init=False)

    #: (phase, happening) -> (method, next phase)
    transitions: ClassVar = CONNECTOR

    def __attrs_post_init__(self) -> None:
        self._decoder = Decoder(0, 0, self.limits)

    @property
    def expected(self) -> int:
        """The least size of the packet that is arriving, in bytes; 0 between packets, or if packets are held back."""
        if self.phase in PACKETS:
            expected = self._decoder.expected
            return 0 if expected and self.waiting else expected
        return 1 if self.phase in (Phase.VERSION, Phase.HELLO, Phase.REPLY) else 0

    @property
    def buffered(self) -> int:
        """The number of bytes in memory that are not decoded yet."""
        return self._decoder.size

    @property
    def waiting(self) -> bool:
        """Whether packets are held back until the owner has settled messages; ``receive_data(b"")`` then continues."""
        return self.ready and self.link is not None and self.link.blocked

    @property
    def ready(self) -> bool:
        """Whether received bytes may hold another packet."""
        return self.phase in PACKETS and self._decoder.ready

    def receive_data(self, data: bytes) -> list[Event]:
        """Return the events that *data* completes."""
        found: list[Event] = []
        if self.phase is Phase.ENDED:
            return found
        self._decoder.feed(data)
        try:
            while self._receive_next(found):
                pass
        except RemoteProtocolError as error:
            found += self._transition(Happening.BROKEN)
            found.append(Broken(error=error))
        if self.link is not None:
            self.link.acknowledge()
        return found

    def receive_eof(self) -> list[Event]:
        """Detach the link, because the transport has ended."""
        return self.fenced()

    def fenced(self) -> list[Event]:
        """Detach the link; nothing that this connection has received or still receives has an effect (L4)."""
        return [] if self.phase is Phase.ENDED else self._transition(Happening.FENCED)

    def data_to_send(self) -> list[bytes]:
        """Return the bytes for the peer; each is returned once."""
        data, self._to_send = self._to_send, []
        if self.link is not None and self.phase in PACKETS:
            data += self.link.data_to_send()
        return data

    # Internals: one step of the connection's table.

    def _transition(self, happening: Happening) -> list[Event]:
        """Take the table's step for *happening*, and return the events of its method.

        :raises LocalProtocolError: the table has no such step
        """
        step = self.transitions.get((self.phase, happening))
        if step is None:
            raise LocalProtocolError(f"unexpected event in state {self.phase.name}: {happening.value}")
        method, self.phase = step
        action: Callable[[], list[Event]] = getattr(self, method)
        return action()

    def _receive_next(self, found: list[Event]) -> bool:
        """Decode one packet or handshake field and add its events to *found*; return whether to continue."""
        if self.phase not in PACKETS:
            return self._receive_handshake(found)
        link = self.link
        assert link is not None
        if link.blocked or link.over:
            return False
        packet = self._decoder.next_packet()
        if packet is None:
            return False
        link.used = True
        found += self._handle_packet(link, packet)
        return self._decoder.ready

    def _handle_packet(self, link: Link, packet: Incoming) -> list[Event]:
        kind = packet.kind.name.lower() if isinstance(packet, GeneralPacket) else _KINDS[type(packet)]
        method = PACKETS[self.phase].get(kind)
        if method is None:
            raise RemoteProtocolError(f"{kind}-unexpected")
        handle: Callable[[Incoming], list[Event]] = getattr(link, method)
        if kind == "resume":
            return [*handle(packet), *self._transition(Happening.RESUME)]
        return handle(packet)

    def _receive_handshake(self, found: list[Event]) -> bool:
        raise NotImplementedError

    def _has(self, size: int) -> bool:
        """Return whether at least *size* bytes have arrived."""
        return self._decoder.size >= size

    def _attach(self, link: Link, *, resumed: bool) -> list[Event]:
        """Attach *link*; bytes that arrived early are decoded as its first packets."""
        if link.attached:
            raise LocalProtocolError("the link is attached to another connection; fence that first (L4)")
        self.link = link
        early = self._decoder.rest
        self._decoder = Decoder(link.peer_size, link.our_size, self.limits, link)
        self._decoder.feed(early)
        link.attach(resumed=resumed)
        return [Linked(link=link, resumed=resumed)]

    # The methods of the table's steps.

    def resend(self) -> list[Event]:
        """Do nothing: the link has already sent the missing messages."""
        return []

    def fence(self) -> list[Event]:
        """Detach the link, which stays."""
        self._decoder.clear()
        if self.link is not None and self.link.attached:
            self.link.detach()
        return []

    def discard(self) -> list[Event]:
        """Mark the link as lost."""
        if self.link is not None and self.link.attached:
            self.link.over = True
        return self.fence()


@attrs.define(eq=False)
class ConnectorSession(Session):
    """Session of the connector, which selects the endpoint and the terms.

    :ivar hello: the connector's part of the handshake; its epoch and link id are those of ``link``
    :ivar link: the old link, detached, to be resumed; None for a new one
    :ivar new_link: returns a new link from its epoch and id
    """

    hello: Hello = attrs.field(kw_only=True)
    new_link: Callable[[int, int], Link] = attrs.field(kw_only=True)
    _reply: tuple[int, int] = attrs.field(default=(0, 0), init=False)

    transitions: ClassVar = CONNECTOR

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._to_send.append(handshake.pack_version(handshake.VERSION))

    def _receive_handshake(self, found: list[Event]) -> bool:
        decoder = self._decoder
        if self.phase is Phase.VERSION and self._has(handshake.VERSION_SIZE):
            version = handshake.unpack_version(decoder.rest)
            if version > handshake.VERSION:
                detail = f"the listener replied with version {version}; the highest supported is {handshake.VERSION}"
                raise RemoteProtocolError("version-unknown", detail)
            decoder.drop(handshake.VERSION_SIZE)
            found += self._transition(Happening.VERSION)
            return True
        if self.phase is Phase.REPLY and self._has(handshake.REPLY_SIZE):
            self._reply = handshake.unpack_reply(decoder.rest)
            decoder.drop(handshake.REPLY_SIZE)
            found += self._transition(self._classify_reply(*self._reply))
            return True
        return False

    def _classify_reply(self, epoch: int, link_id: int) -> Happening:
        """Return whether the listener's reply means the old link, a new link, or none (L6).

        :raises RemoteProtocolError: the epoch or the link id is zero where it must not be
        """
        if link_id and not epoch:
            raise RemoteProtocolError("zero-epoch")
        if link_id and (epoch, link_id) == (self.hello.epoch, self.hello.link_id) and self.link is not None:
            return Happening.SAME
        if link_id:
            return Happening.NEW
        if not self.hello.require:
            raise RemoteProtocolError("zero-link-id")
        return Happening.NONE

    def send_hello(self) -> list[Event]:
        """Send the hello, because the version is agreed."""
        self._to_send.append(self.hello.serialize())
        return []

    def begin(self) -> list[Event]:
        """Attach a new link; the old one, if any, is lost."""
        lost = self.link
        if lost is not None:
            lost.over = True
        (linked,) = self._attach(self.new_link(*self._reply), resumed=False)
        assert isinstance(linked, Linked)
        return [attrs.evolve(linked, lost=lost)]

    def report(self) -> list[Event]:
        """Attach the old link, and send its report."""
        assert self.link is not None
        return self._attach(self.link, resumed=True)

    def refused(self) -> list[Event]:
        """Report that the old link, which was required, is lost."""
        if self.link is not None:
            self.link.over = True
        return [Refused(lost=self.link)]


@attrs.define(eq=False)
class ListenerSession(Session):
    """Session of the listener.  Its owner looks up links: see :class:`~.events.HelloReceived`."""

    _answer: tuple[Link | None, int] = attrs.field(default=(None, 0), init=False)

    transitions: ClassVar = LISTENER

    def accept(self, link: Link, *, resumed: bool) -> list[Event]:
        """Answer the hello with *link*, which must be detached; call ``receive_data(b"")`` afterwards."""
        self._answer = (link, link.epoch)
        return self._transition(Happening.SAME if resumed else Happening.NEW)

    def refuse(self, epoch: int) -> None:
        """Answer the hello by refusing the required link, which is not known; send the pending data, and close."""
        self._answer = (None, epoch)
        self._transition(Happening.NONE)

    def _receive_handshake(self, found: list[Event]) -> bool:
        decoder = self._decoder
        if self.phase is Phase.VERSION and self._has(handshake.VERSION_SIZE):
            decoder.drop(handshake.VERSION_SIZE)
            found += self._transition(Happening.VERSION)
            return True
        if self.phase is Phase.HELLO and self._has(handshake.hello_size(decoder.rest)):
            found += self._transition(Happening.HELLO)
            return False
        if self.phase is Phase.LOOKUP and decoder.size > self.limits.early:
            raise RemoteProtocolError("too-early", f"{decoder.size} bytes arrived before the handshake was complete")
        return False

    def send_version(self) -> list[Event]:
        """Reply with version 0, which is the only one, whatever the connector supports."""
        self._to_send.append(handshake.pack_version(handshake.VERSION))
        return []

    def request_link(self) -> list[Event]:
        """Pass the hello to the owner."""
        data = self._decoder.rest
        hello = handshake.unpack_hello(data)
        self._decoder.drop(handshake.hello_size(data))
        return [HelloReceived(hello=hello)]

    def begin(self) -> list[Event]:
        """Reply with a new link."""
        return self._accepted(resumed=False)

    def report(self) -> list[Event]:
        """Reply with the old link, and send its report."""
        return self._accepted(resumed=True)

    def refuse_reply(self) -> list[Event]:
        """Reply with link id zero."""
        self._to_send.append(handshake.pack_reply(self._answer[1], 0))
        return []

    def _accepted(self, *, resumed: bool) -> list[Event]:
        link, epoch = self._answer
        assert link is not None
        self._to_send.append(handshake.pack_reply(epoch, link.id))
        return self._attach(link, resumed=resumed)
