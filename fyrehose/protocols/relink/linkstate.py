"""The state that both halves of a link share: its terms, its channels, the packets to be sent, and its shutdown."""

from __future__ import annotations

import attrs

from fyrehose.protocols.relink import events, frames
from fyrehose.protocols.relink.events import Event
from fyrehose.protocols.relink.frames import Packet
from fyrehose.protocols.relink.handshake import Terms
from fyrehose.protocols.relink.limits import LinkLimits
from fyrehose.protocols.relink.receiving import PeerChannels
from fyrehose.protocols.relink.sending import SendChannel


@attrs.define(eq=False)
class LinkState:
    """The state of a link at one of its two peers; "we" is that peer.

    :ivar connector: whether we are the connector
    :ivar durable: the link outlives its process.  Messages that the owner has received and not settled are forgotten
        with the connection, and the peer sends them again; undecided messages are kept as long as the process lives
    :ivar kept: whether our messages are kept until the peer has consumed them; False: the owner can produce them again
    """

    terms: Terms
    connector: bool
    epoch: int = 0
    id: int = 0
    limits: LinkLimits = attrs.field(factory=LinkLimits)
    durable: bool = attrs.field(default=False, kw_only=True)
    kept: bool = attrs.field(default=True, kw_only=True)
    sending: dict[int, SendChannel] = attrs.field(factory=dict, init=False)
    receiving: PeerChannels = attrs.field(factory=PeerChannels, init=False)
    #: number of channels that the peer has opened so far
    opened: int = attrs.field(default=0, init=False)
    #: whether the link has ended in good order, or was lost
    over: bool = attrs.field(default=False, init=False)
    attached: bool = attrs.field(default=False, init=False)
    #: whether a packet of the peer has ever arrived, which shows that the peer knows the link
    used: bool = attrs.field(default=False, init=False)
    #: whether a restart, or a refused write, may have made us forget undecided messages that were acknowledged as
    #: received
    forgetful: bool = attrs.field(default=False, init=False)
    #: whether messages may be sent: the link is new, or the peer has resumed
    may_send: bool = attrs.field(default=False, init=False)
    shutting_down: bool = attrs.field(default=False, init=False)
    #: whether shutdown was sent on any connection so far; ``shutdown_sent``: on the present connection
    shutdown_ever_sent: bool = attrs.field(default=False, init=False)
    shutdown_sent: bool = attrs.field(default=False, init=False)
    shutdown_received: bool = attrs.field(default=False, init=False)
    pings: int = attrs.field(default=0, init=False)
    pongs: int = attrs.field(default=0, init=False)
    #: the pending output of the connection, if there is one
    out: list[bytes] = attrs.field(factory=list, init=False)
    #: size of the messages held for the peer's channels, in bytes, including ``OVERHEAD`` for each
    held: int = attrs.field(default=0, init=False)
    #: ids of the peer's channels on which at least half of ``limits.backlog`` messages wait for the owner
    _filling: set[int] = attrs.field(factory=set, init=False)
    #: ids of the peer's channels on which ``limits.backlog`` messages or more wait for the owner
    full: set[int] = attrs.field(factory=set, init=False)
    #: ids of channels with messages from the current read that need a received acknowledgement
    _unacknowledged: set[int] = attrs.field(factory=set, init=False)

    #: sizes of the channel ids in bytes, and whether the channels are transactional
    our_size: int = attrs.field(init=False)
    peer_size: int = attrs.field(init=False)
    our_transactions: bool = attrs.field(init=False)
    peer_transactions: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        terms = self.terms
        sides = (terms.connector_size, terms.connector_transactions), (terms.listener_size, terms.listener_transactions)
        ours, peers = sides if self.connector else sides[::-1]
        (self.our_size, self.our_transactions), (self.peer_size, self.peer_transactions) = ours, peers

    def ping(self) -> int:
        """Send a ping, and return its ordinal among the pings of this connection, from 1."""
        self.emit(frames.PING)
        self.pings += 1
        return self.pings

    def emit(self, *packets: Packet, id_size: int = 0) -> None:
        """Queue packets for the connection; a detached link drops them, because resume sends the state again."""
        if self.attached:
            for packet in packets:
                self.out.append(packet.serialize(id_size))

    def shutdown(self) -> list[Event]:
        """Open no more channels, and send shutdown when ours are closed (3.6); return Ended if that ends the link."""
        self.shutting_down = True
        return self.closed()

    def closed(self) -> list[Event]:
        """Send shutdown if it is due; return Ended if no channel is left and both peers have sent it."""
        if self.shutting_down and not self.sending and not self.shutdown_sent and self.may_send:
            self.emit(frames.SHUTDOWN)
            self.shutdown_sent = self.shutdown_ever_sent = True
        if self.over or not (self.shutdown_sent and self.shutdown_received) or self.sending or self.receiving:
            return []
        self.over = True
        return [events.Ended()]
