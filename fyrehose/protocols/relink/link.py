"""A link, which outlives its connections: the channels of both peers, and what each peer knows of the other's state.

    in: packets of one connection at a time, and calls of the owner      out: events, and packets as bytes

A link is either attached to a connection or detached.  While it is detached the owner may still send, decide and settle
messages; the packets go out after the next resume.
"""

from __future__ import annotations

from fyrehose.protocols.relink import events, frames
from fyrehose.protocols.relink.events import Event
from fyrehose.protocols.relink.frames import Acknowledgement, Gathered, Incoming, Message, Operation
from fyrehose.protocols.relink.inbound import Inbound
from fyrehose.protocols.relink.outbound import Outbound


class Link(Outbound, Inbound):
    """One link: attach it to a connection, and handle the packets of the peer.

    For rules such as S2 see docs/protocols/relink-wire.md.
    """

    __slots__ = ()

    def attach(self, *, resumed: bool) -> None:
        """Attach the link to a connection; on an old link, send our report and the resume packet (rule R5)."""
        self.attached, self.may_send = True, not resumed
        if resumed:
            for sent in self.sending.values():
                sent.attach()
            self.send_report()

    def detach(self) -> None:
        """Detach the link, because its connection is lost, or because another connection takes over (rule L4)."""
        self.attached = self.may_send = self.shutdown_sent = False
        self.pings = self.pongs = 0
        self.out.clear()
        self._unacknowledged.clear()
        for channel in self.receiving.values():
            channel.detach()

    def receive(self, packet: Incoming) -> list[Event]:
        """Handle a packet of the peer, and return its events.

        :raises RemoteProtocolError: the peer violates the protocol
        """
        found: list[Event] = []
        match packet:
            case Gathered():
                for id_, run in packet.runs:
                    found += self.accept(id_, run, len(run.payload), run.sizes)
            case Message():
                # The channels of a multicast share one payload: charge each channel a part of it.
                size = sum(map(len, packet.parts)) // max(1, len(packet.channels))
                for id_ in packet.channels:
                    found += self.accept(id_, (packet.parts,), size, (size,))
            case Operation():
                for id_ in packet.channels:
                    found += self.operated(id_, packet)
            case Acknowledgement():
                for id_ in packet.channels:
                    if id_ in self.sending:  # Closed channels are ignored.
                        found += self.acknowledged(self.sending[id_], packet.kind, packet.number)
            case frames.PING:
                self.emit(frames.PONG)  # on the connection of the ping (L5)
            case frames.PONG:
                return self.ponged()
            case frames.SHUTDOWN:
                # The peer opens no more channels.  It says so again after each resume.
                again, self.shutdown_received = self.shutdown_received, True
                return [*([] if again else [events.PeerShutdown()]), *self.closed()]
            case frames.RESUME:
                return self._resumed()
        return found

    def _resumed(self) -> list[Event]:
        """Handle the peer's resume packet, which ends its report: send the messages that it lacks (rules S2, S4)."""
        self.may_send = True
        found: list[Event] = []
        for channel in self.sending.values():
            self.emit(*channel.resend(), id_size=self.our_size)
            if not channel.kept:
                found.append(events.Rewound(channel=channel.id, next=channel.next))
        return [events.Resumed(), *found, *self.closed()]
