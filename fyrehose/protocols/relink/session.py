"""One connection of Relink, from bytes to events and back: the handshake, then the packets of a link.

    in: bytes that the reactor read, what the owner answers      out: events for the owner, bytes for the peer

What a connection may do when is in :mod:`fyrehose.protocols.relink.tables`.  A peer's mistake never raises: the last
event is Broken, and the link is lost (its state is suspect, and the same packet would come again).  The end of the
transport is no mistake: the link stays, detached, and waits for the next connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import attrs

from fyrehose.errors import Broken, LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.relink import handshake
from fyrehose.protocols.relink.decoder import Decoder
from fyrehose.protocols.relink.events import Asked, Event, Linked, Refused
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
    """What both ends of a connection share."""

    limits: Limits = attrs.field(factory=Limits)
    link: Link | None = attrs.field(default=None)
    phase: Phase = attrs.field(default=Phase.VERSION, init=False)
    _decoder: Decoder = attrs.field(init=False)
    _to_send: list[bytes] = attrs.field(factory=list, init=False)

    #: (phase, what happened) -> (method, next phase)
    transitions: ClassVar = CONNECTOR

    def __attrs_post_init__(self) -> None:
        self._decoder = Decoder(0, 0, self.limits)

    @property
    def expected(self) -> int:
        """The size of what is coming in, in bytes, as far as it is known; 0 between packets, and while we hold."""
        if self.phase in PACKETS:
            expected = self._decoder.expected
            return 0 if expected and self.waiting else expected
        return 1 if self.phase in (Phase.VERSION, Phase.HELLO, Phase.REPLY) else 0

    @property
    def buffered(self) -> int:
        """How much of that is in memory, in bytes."""
        return self._decoder.size

    @property
    def waiting(self) -> bool:
        """Whether packets are held back until the owner has settled some; then ``receive_data(b"")`` goes on."""
        return self.ready and self.link is not None and self.link.held

    @property
    def ready(self) -> bool:
        """Whether there are bytes that may be packets: they were held back, or no more of them can be taken."""
        return self.phase in PACKETS and self._decoder.ready

    def receive_data(self, data: bytes) -> list[Event]:
        """The events that ``data`` completes."""
        found: list[Event] = []
        if self.phase is Phase.ENDED:
            return found
        self._decoder.feed(data)
        try:
            while self._take(found):
                pass
        except RemoteProtocolError as error:
            found += self._go(Happening.BROKEN)
            found.append(Broken(error=error))
        if self.link is not None:
            self.link.acknowledge()
        return found

    def receive_eof(self) -> list[Event]:
        """The transport has ended: the link stays."""
        return self.fenced()

    def fenced(self) -> list[Event]:
        """From now on nothing that this connection brings counts, not even what came in already (L4)."""
        return [] if self.phase is Phase.ENDED else self._go(Happening.FENCED)

    def data_to_send(self) -> list[bytes]:
        """The bytes for the peer; each is handed out once."""
        data, self._to_send = self._to_send, []
        if self.link is not None and self.phase in PACKETS:
            data += self.link.data_to_send()
        return data

    # Inside: one step of the connection's table.

    def _go(self, happening: Happening) -> list[Event]:
        step = self.transitions.get((self.phase, happening))
        if step is None:
            raise LocalProtocolError(f"a connection that {self.phase.value} cannot take: {happening.value}")
        method, self.phase = step
        action: Callable[[], list[Event]] = getattr(self, method)
        return action()

    def _take(self, found: list[Event]) -> bool:
        """Take one thing from the buffer, if it is there."""
        if self.phase not in PACKETS:
            return self._take_handshake(found)
        link = self.link
        assert link is not None
        if link.held or link.over:
            return False
        packet = self._decoder.next_packet()
        if packet is None:
            return False
        link.heard = True
        found += self._packet(link, packet)
        return self._decoder.ready

    def _packet(self, link: Link, packet: Incoming) -> list[Event]:
        kind = packet.kind.name.lower() if isinstance(packet, GeneralPacket) else _KINDS[type(packet)]
        method = PACKETS[self.phase].get(kind)
        if method is None:
            raise RemoteProtocolError(f"{kind}-unexpected")
        take: Callable[[Incoming], list[Event]] = getattr(link, method)
        if kind == "resume":
            return [*take(packet), *self._go(Happening.RESUME)]
        return take(packet)

    def _take_handshake(self, found: list[Event]) -> bool:
        raise NotImplementedError

    def _cut(self, size: int) -> bool:
        """Whether ``size`` bytes are there."""
        return self._decoder.size >= size

    def _attach(self, link: Link, *, resumed: bool) -> list[Event]:
        if link.attached:
            raise LocalProtocolError("the link's old connection has to be fenced first (L4)")
        self.link = link
        early = self._decoder.rest
        self._decoder = Decoder(link.peer_size, link.our_size, self.limits, link)
        self._decoder.feed(early)
        link.attach(resumed=resumed)
        return [Linked(link=link, resumed=resumed)]

    # What the table's steps do.

    def resend(self) -> list[Event]:
        """The peer has resumed; the link has sent again what it had not got."""
        return []

    def fence(self) -> list[Event]:
        """The link stays, without us."""
        self._decoder.clear()
        if self.link is not None and self.link.attached:
            self.link.detach()
        return []

    def discard(self) -> list[Event]:
        """The link is lost."""
        if self.link is not None and self.link.attached:
            self.link.over = True
        return self.fence()


@attrs.define(eq=False)
class ConnectorSession(Session):
    """The side that connected: it says which endpoint it wants, and on what terms.

    :ivar hello: what we ask for; its epoch and link id are those of ``link``
    :ivar link: the old link, detached, to be resumed; None for a new one
    :ivar fresh: makes a new link, from its epoch and id
    """

    hello: Hello = attrs.field(kw_only=True)
    fresh: Callable[[int, int], Link] = attrs.field(kw_only=True)
    _reply: tuple[int, int] = attrs.field(default=(0, 0), init=False)

    transitions: ClassVar = CONNECTOR

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._to_send.append(handshake.pack_version(handshake.VERSION))

    def _take_handshake(self, found: list[Event]) -> bool:
        decoder = self._decoder
        if self.phase is Phase.VERSION and self._cut(handshake.VERSION_SIZE):
            version = handshake.unpack_version(decoder.rest)
            if version > handshake.VERSION:
                raise RemoteProtocolError("version-unknown", f"the listener wants version {version}")
            decoder.drop(handshake.VERSION_SIZE)
            found += self._go(Happening.VERSION)
            return True
        if self.phase is Phase.REPLY and self._cut(handshake.REPLY_SIZE):
            self._reply = handshake.unpack_reply(decoder.rest)
            decoder.drop(handshake.REPLY_SIZE)
            found += self._go(self._judge(*self._reply))
            return True
        return False

    def _judge(self, epoch: int, link_id: int) -> Happening:
        """What the listener's reply means (L6)."""
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
        """The version is agreed."""
        self._to_send.append(self.hello.serialize())
        return []

    def begin(self) -> list[Event]:
        """The listener has made a new link; the old one, if any, is lost."""
        lost = self.link
        if lost is not None:
            lost.over = True
        (linked,) = self._attach(self.fresh(*self._reply), resumed=False)
        assert isinstance(linked, Linked)
        return [attrs.evolve(linked, lost=lost)]

    def report(self) -> list[Event]:
        """The listener knows the old link."""
        assert self.link is not None
        return self._attach(self.link, resumed=True)

    def refused(self) -> list[Event]:
        """The old link was required, and is lost."""
        if self.link is not None:
            self.link.over = True
        return [Refused(lost=self.link)]


@attrs.define(eq=False)
class ListenerSession(Session):
    """The side that accepted the connection.  Its owner looks links up: see :class:`~.events.Asked`."""

    _answer: tuple[Link | None, int] = attrs.field(default=(None, 0), init=False)

    transitions: ClassVar = LISTENER

    def accept(self, link: Link, *, resumed: bool) -> list[Event]:
        """The answer to Asked: this link, whose old connection is fenced.  Go on with ``receive_data(b"")``."""
        self._answer = (link, link.epoch)
        return self._go(Happening.SAME if resumed else Happening.NEW)

    def refuse(self, epoch: int) -> None:
        """The answer to Asked: the link that was required is not known.  Write what there is to send, and close."""
        self._answer = (None, epoch)
        self._go(Happening.NONE)

    def _take_handshake(self, found: list[Event]) -> bool:
        decoder = self._decoder
        if self.phase is Phase.VERSION and self._cut(handshake.VERSION_SIZE):
            decoder.drop(handshake.VERSION_SIZE)
            found += self._go(Happening.VERSION)
            return True
        if self.phase is Phase.HELLO and self._cut(handshake.hello_size(decoder.rest)):
            found += self._go(Happening.HELLO)
            return False
        if self.phase is Phase.LOOKUP and decoder.size > self.limits.early:
            raise RemoteProtocolError("too-early", f"{decoder.size} bytes before the handshake was over")
        return False

    def send_version(self) -> list[Event]:
        """Whatever the connector speaks, it speaks version 0."""
        self._to_send.append(handshake.pack_version(handshake.VERSION))
        return []

    def ask_owner(self) -> list[Event]:
        """The hello is there."""
        came = self._decoder.rest
        hello = handshake.unpack_hello(came)
        self._decoder.drop(handshake.hello_size(came))
        return [Asked(hello=hello)]

    def begin(self) -> list[Event]:
        """A new link."""
        return self._accepted(resumed=False)

    def report(self) -> list[Event]:
        """The old link."""
        return self._accepted(resumed=True)

    def refuse_reply(self) -> list[Event]:
        """No link."""
        self._to_send.append(handshake.pack_reply(self._answer[1], 0))
        return []

    def _accepted(self, *, resumed: bool) -> list[Event]:
        link, epoch = self._answer
        assert link is not None
        self._to_send.append(handshake.pack_reply(epoch, link.id))
        return self._attach(link, resumed=resumed)
