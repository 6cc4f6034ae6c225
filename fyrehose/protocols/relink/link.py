"""A link: the channels of both peers, and what the peers know of each other's state.  It outlives its connections.

    in: packets of one connection at a time, and calls of the owner      out: events, and packets as bytes

A link is either attached to a connection or detached.  While it is detached the owner may still send, decide and settle
messages; the packets go out after the next resume.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.relink import events, frames
from fyrehose.protocols.relink.backlog import Backlog
from fyrehose.protocols.relink.events import Event, Unknown
from fyrehose.protocols.relink.frames import (
    Ack,
    Acknowledgement,
    Gathered,
    Incoming,
    Message,
    MessageRun,
    Op,
    Operation,
    Packet,
)
from fyrehose.protocols.relink.handshake import Terms
from fyrehose.protocols.relink.limits import Limits
from fyrehose.protocols.relink.messages import Column, Messages, Piece, cut
from fyrehose.protocols.relink.receiving import OVERHEAD, ReceiveChannel
from fyrehose.protocols.relink.sending import SendChannel
from fyrehose.protocols.relink.tables import Event as Mode
from fyrehose.protocols.relink.tables import Receiving, Sending

#: Estimated memory of one channel of the peer, in bytes.
CHANNEL_MEMORY = 2_048


@attrs.define(eq=False)
class Link:
    """One link, from the point of view of one peer.  Rules such as S2 and R5 are those of docs/protocols/relink.md.
    :ivar connector: whether we are the connector
    :ivar durable: the link outlives its process.  Messages that the owner has received and not settled are forgotten
        with the connection, and the peer sends them again; undecided messages are kept as long as the process lives
    :ivar kept: whether our messages are kept until they are consumed; False: the owner can produce them again
    """

    terms: Terms
    connector: bool
    epoch: int = 0
    id: int = 0
    limits: Limits = attrs.field(factory=Limits)
    durable: bool = attrs.field(default=False, kw_only=True)
    kept: bool = attrs.field(default=True, kw_only=True)
    sending: dict[int, SendChannel] = attrs.field(factory=dict, init=False)
    receiving: dict[int, ReceiveChannel] = attrs.field(factory=dict, init=False)
    #: number of channels that the peer has opened so far
    opened: int = attrs.field(default=0, init=False)
    #: whether the link has ended in good order, or was lost
    over: bool = attrs.field(default=False, init=False)
    attached: bool = attrs.field(default=False, init=False)
    #: whether a packet of the peer has ever arrived, which shows that the peer knows the link
    used: bool = attrs.field(default=False, init=False)
    #: whether messages may be sent: the link is new, or the peer has resumed
    may_send: bool = attrs.field(default=False, init=False)
    shutting_down: bool = attrs.field(default=False, init=False)
    #: whether shutdown was sent on any connection so far; ``shutdown_sent``: on this one
    shutdown_ever_sent: bool = attrs.field(default=False, init=False)
    shutdown_sent: bool = attrs.field(default=False, init=False)
    shutdown_received: bool = attrs.field(default=False, init=False)
    pings: int = attrs.field(default=0, init=False)
    pongs: int = attrs.field(default=0, init=False)
    _out: list[bytes] = attrs.field(factory=list, init=False)
    _backlog: Backlog = attrs.field(init=False)
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
        self._backlog = Backlog(self.limits, self.receiving)

    @property
    def blocked(self) -> bool:
        """Whether reading has to stop until the owner has settled some messages."""
        return self._backlog.blocked

    # Our own channels.

    def channel(self, channel: int) -> SendChannel:
        """Return our channel with id *channel*, and open it first if necessary.

        :raises LocalProtocolError: the id does not fit, or the link is shutting down
        """
        found = self.sending.get(channel)
        if found is None:
            if self.shutting_down or self.over:
                raise LocalProtocolError(f"cannot open channel {channel}: the link is shutting down")
            if not 0 <= channel < 1 << 8 * self.our_size:
                raise LocalProtocolError(f"channel id {channel} does not fit into {self.our_size} bytes")
            found = SendChannel(channel, self.our_transactions, self.limits.window, self.kept)
            self.sending[channel] = found
        return found

    def send(self, channels: Sequence[int], parts: tuple[bytes, ...]) -> tuple[int, ...]:
        """Send a message on each of *channels* as one packet, and return its sequence number on each.

        :raises LocalProtocolError: the message is too large, or one of the windows is full; nothing was sent
        """
        limits = self.limits
        size = sum(frames.aligned(len(part)) for part in parts) + (0 if len(parts) == 1 else 4 + 4 * len(parts))
        if len(parts) > limits.parts or len(channels) > limits.targets or size > limits.sent_size:
            many = f"a message of {len(parts)} parts and {size} bytes to {len(channels)} channels"
            raise LocalProtocolError(f"{many} exceeds the limits {limits.parts}, {limits.sent_size}, {limits.targets}")
        for channel in set(channels):
            room = self.channel(channel).room
            if room < channels.count(channel):
                raise LocalProtocolError(f"the window of channel {channel} is full: it has room for {room} messages")
        seqs = tuple(self.channel(channel).add((parts,)) for channel in channels)
        if self.may_send and channels:
            self._emit(Message(channels=tuple(channels), parts=parts, multicast=len(channels) > 1), self.our_size)
        return seqs

    def send_run(self, channel: int, messages: Column) -> int:
        """Send messages of one part each on *channel*, and return the sequence number of the first.

        :raises LocalProtocolError: a message is too large, or the window has no room for all; nothing was sent
        """
        limit = self.limits.sent_size
        if frames.aligned(len(messages.payload)) > limit and frames.aligned(max(messages.sizes)) > limit:
            raise LocalProtocolError(f"a message of {max(messages.sizes)} bytes exceeds the limit of {limit} bytes")
        first = self.channel(channel).add(messages)
        if self.may_send:
            self._emit(MessageRun(channel=channel, messages=messages), self.our_size)
        return first

    def decide(self, channel: int, op: Op, through: int | None = None) -> tuple[int, int]:
        """Commit or roll back the undecided messages of our *channel*, and return the numbers of the first and last.

        :param through: number of the last message to decide; None: all
        :raises LocalProtocolError: the channel is not open, or has no such undecided message
        """
        found = self.sending.get(channel)
        if found is None:
            raise LocalProtocolError(f"channel {channel} is not open")
        first, last = found.decide(op, found.next - 1 if through is None else through)
        if self.may_send:
            self._emit(found.decision(op, first, last), self.our_size)
        return first, last

    def close(self, channel: int) -> None:
        """Close our *channel* when everything on it is consumed; :class:`~.events.Closed` reports the closure.

        :raises LocalProtocolError: the channel is not open, or has undecided messages
        """
        found = self.sending.get(channel)
        if found is None or found.mode is not Sending.OPEN:
            raise LocalProtocolError(f"channel {channel} is not open")
        if found.undecided:
            raise LocalProtocolError(f"cannot close channel {channel}: {found.undecided} messages are undecided")
        found.advance(Mode.CLOSE)
        self._drain(found)

    def _drain(self, channel: SendChannel) -> None:
        if channel.mode is Sending.DRAINING and self.drained(channel):
            channel.advance(Mode.DRAINED)
            if self.may_send:
                self._emit(Operation(kind=Op.CLOSE, channels=(channel.id,)), self.our_size)

    @staticmethod
    def drained(channel: SendChannel) -> bool:
        """Return whether the close operation may be sent, because everything is consumed (S6)."""
        return channel.base == channel.next

    def shutdown(self) -> list[Event]:
        """Open no more channels, and send shutdown when ours are closed (3.6); return Ended if that ends the link."""
        self.shutting_down = True
        return self._shutdown()

    def _shutdown(self) -> list[Event]:
        if self.shutting_down and not self.sending and not self.shutdown_sent and self.may_send:
            self._emit(frames.SHUTDOWN)
            self.shutdown_sent = self.shutdown_ever_sent = True
        return self._end()

    def _end(self) -> list[Event]:
        if self.over or not (self.shutdown_sent and self.shutdown_received) or self.sending or self.receiving:
            return []
        self.over = True
        return [events.Ended()]

    def unknown(self) -> list[Unknown]:
        """Return our messages whose outcome is unknown if the link is lost (S7)."""
        return [unknown for channel in self.sending.values() for unknown in channel.unknown()]

    # The peer's channels.

    def stage(self, channel: int, through: int, result: Ack | None = None) -> None:
        """Record the *result* of the peer's messages up to *through* (None: plain, or rolled back); see :meth:`settle`.

        :raises LocalProtocolError: there are no such messages to stage
        """
        self._received(channel).stage(through, result)

    def unstage(self, channel: int, through: int) -> None:
        """Undo :meth:`stage` for the messages beyond *through*, because they were not written."""
        self._received(channel).unstage(through)

    def settle(self, channel: int, through: int) -> None:
        """Acknowledge the staged messages up to *through*, because they are durable."""
        found = self._received(channel)
        packets, freed = found.settle(through)
        self._backlog.release(found, freed)
        for packet in packets:
            self._emit(packet, self.peer_size)
        self.trim(found)
        self._barrier(found)

    def consume(self, channel: int, through: int, result: Ack | None = None) -> None:
        """Stage and settle the peer's messages up to *through* in one step, for owners that keep nothing on disk."""
        self.stage(channel, through, result)
        self.settle(channel, through)

    def forget(self, channel: int) -> list[Event]:
        """Remove the peer's finished channel and acknowledge the closure; return Ended if that ends the link."""
        found = self._received(channel)
        found.advance(Mode.FORGOTTEN)
        self._drop(channel)
        self._emit(Acknowledgement(kind=Ack.CLOSED, channels=(channel,)), self.peer_size)
        return self._end()

    def _drop(self, channel: int) -> None:
        del self.receiving[channel]
        self._backlog.drop(channel)
        self._unacknowledged.discard(channel)

    def _received(self, channel: int) -> ReceiveChannel:
        found = self.receiving.get(channel)
        if found is None:
            raise LocalProtocolError(f"the peer has no channel {channel}")
        return found

    def trim(self, channel: ReceiveChannel) -> None:
        """Send a ping behind the last results if many are kept; its pong allows to forget them (R6)."""
        if channel.unconfirmed > self.limits.results and channel.trim_barrier is None and self.attached:
            channel.trim_barrier = (self.ping(), channel.consumed)
            channel.unconfirmed = 0

    def _barrier(self, channel: ReceiveChannel) -> None:
        """Send a ping behind the last acknowledgement of a closing channel; closed is sent after its pong (R7)."""
        if channel.exhausted and self.attached:
            channel.barrier = self.ping()
            channel.advance(Mode.PING)

    # The connection.

    def attach(self, *, resumed: bool) -> None:
        """Attach the link to a connection; if it is an old link, send our report and resume (R5)."""
        self.attached, self.may_send = True, not resumed
        if not resumed:
            return
        for sent in self.sending.values():
            sent.attach()
        for received in self.receiving.values():
            if self.durable and not received.resumable:
                self._backlog.release(received, received.rewind())
            for packet in received.report():
                self._emit(packet, self.peer_size)
        self._emit(frames.RESUME)
        for received in self.receiving.values():
            self._barrier(received)
            self.trim(received)

    def detach(self) -> None:
        """Detach the link, because its connection is lost, or because another one takes over (L4)."""
        self.attached = self.may_send = self.shutdown_sent = False
        self.pings = self.pongs = 0
        self._out.clear()
        self._unacknowledged.clear()
        for channel in self.receiving.values():
            channel.detach()

    def rewind(self) -> None:
        """Forget received messages that could not be written; the link is detached, and the peer sends them again."""
        if self.attached or not self.durable:
            raise LocalProtocolError("cannot rewind a link that is attached or not durable")
        for channel in self.receiving.values():
            self._backlog.release(channel, channel.rewind())

    def ping(self) -> int:
        """Send a ping, and return its position among the pings of this connection, from 1."""
        self._emit(frames.PING)
        self.pings += 1
        return self.pings

    def acknowledge(self) -> None:
        """Acknowledge the messages of this read as received, once per channel (R2)."""
        for id_ in sorted(self._unacknowledged):
            channel = self.receiving[id_]
            # On a durable link, consumed follows for decided and plain messages, and implies received.
            packet = channel.acknowledge_received(self.durable) if not self.durable or channel.undecided else None
            if packet is not None:
                self._emit(packet, self.peer_size)
        self._unacknowledged.clear()

    def data_to_send(self) -> list[bytes]:
        """Return the bytes for the peer; each is returned once."""
        data, self._out = self._out, []
        return data

    def _emit(self, packet: Packet, id_size: int = 0) -> None:
        """Queue a packet for the connection; a detached link drops it, because resume sends the state again."""
        if self.attached:
            self._out.append(packet.serialize(id_size))

    # Received packets.

    def receive(self, packet: Incoming) -> list[Event]:
        """Handle a packet of the peer, and return its events.

        :raises RemoteProtocolError: the peer violates the protocol
        """
        match packet:
            case Gathered():
                runs = packet.runs
                return [event for id_, run in runs for event in self._receive(id_, run, len(run.payload), run.sizes)]
            case Message():
                # A multicast's payload is held, and charged, once.
                size = sum(map(len, packet.parts)) // max(1, len(packet.channels))
                ids = packet.channels
                return [event for id_ in ids for event in self._receive(id_, (packet.parts,), size, (size,))]
            case Operation():
                return [event for id_ in packet.channels for event in self._operated(id_, packet)]
            case Acknowledgement():
                ours = [self.sending[id_] for id_ in packet.channels if id_ in self.sending]
                return [event for found in ours for event in self._acknowledged(found, packet.kind, packet.number)]
            case frames.PING:
                self._emit(frames.PONG)  # on the connection of the ping (L5)
            case frames.PONG:
                return self._ponged()
            case frames.SHUTDOWN:
                # The peer opens no more channels.  It says so again after each resume.
                again, self.shutdown_received = self.shutdown_received, True
                return [*([] if again else [events.PeerShutdown()]), *self._end()]
            case frames.RESUME:
                return self._resumed()
        return []

    def _ponged(self) -> list[Event]:
        """Handle a pong: the k-th answers the k-th ping of the connection."""
        if self.pongs == self.pings:
            return []  # A pong without a ping is ignored.
        self.pongs += 1
        found: list[Event] = []
        for channel in self.receiving.values():
            if channel.trim_barrier is not None and channel.trim_barrier[0] <= self.pongs:
                channel.forget_results(channel.trim_barrier[1])
                channel.trim_barrier = None
            if channel.mode is Receiving.BARRIER and channel.barrier is not None and channel.barrier <= self.pongs:
                channel.advance(Mode.PONG)
                found.append(events.Finished(channel=channel.id))
        return found

    def _resumed(self) -> list[Event]:
        """Handle resume: the peer's report is complete, so send what it is missing (S2, S4), and continue."""
        self.may_send = True
        found: list[Event] = []
        for channel in self.sending.values():
            for again in channel.resend():
                self._emit(again, self.our_size)
            if not channel.kept:
                found.append(events.Rewound(channel=channel.id, next=channel.next))
        return [events.Resumed(), *found, *self._shutdown()]

    def room(self) -> tuple[int, int]:
        """Return how many messages of one channel, and bytes of all, may be decoded in one step; each is at least 1."""
        return self._backlog.room(self.peer_transactions)

    def accepts(self, channels: Sequence[int]) -> bool:
        """Return whether a message on each of *channels* would violate no rule."""
        known = [self.receiving[id_] for id_ in channels if id_ in self.receiving]
        new = len(channels) - len(known)
        if new and (self.shutdown_received or len(self.receiving) + new > self.limits.channels):
            return False
        return all(channel.mode is Receiving.OPEN for channel in known)

    def _receive(self, id_: int, messages: Piece, size: int, sizes: Sequence[int]) -> list[Event]:
        """Add messages of *size* bytes, *sizes* each, to a channel of the peer, which is opened if necessary."""
        channel = self.receiving.get(id_) or self._open(id_)
        cost = size + OVERHEAD * len(sizes)
        if channel.transactional:
            self._unacknowledged.add(id_)
            if not self._backlog.fits(channel, len(sizes), cost):
                return self._receive_partly(channel, messages, sizes)
        elif not self.durable:
            self._unacknowledged.add(id_)
        first = channel.accept(messages, cost, sizes)
        self._backlog.add(channel, cost)
        if channel.transactional:
            return []
        return [events.Received(channel=id_, first=first, messages=Messages((messages,)))]

    def _receive_partly(self, channel: ReceiveChannel, messages: Piece, sizes: Sequence[int]) -> list[Event]:
        """Keep the messages that still fit of a transaction that is too large; the others only get their numbers."""
        count = self._backlog.count_fitting(channel, sizes)
        if count:
            cost = sum(sizes[:count]) + OVERHEAD * count
            channel.accept(cut(messages, count)[0], cost, sizes[:count])
            self._backlog.add(channel, cost)
        channel.accept_dropped(len(sizes) - count)
        return []

    def drop_undecided(self) -> None:
        """Drop the payloads of all undecided messages, so that a commit of them fails."""
        for channel in self.receiving.values():
            if channel.undecided:
                self._backlog.release(channel, channel.drop_undecided())

    @property
    def weight(self) -> int:
        """Memory that the peer's channels and their undecided messages take, in bytes.

        Messages of plain channels are not included: they wait for the journal, and are charged to the connection.
        """
        undecided = self._backlog.size if self.peer_transactions else 0
        return CHANNEL_MEMORY * len(self.receiving) + undecided

    def _open(self, channel: int) -> ReceiveChannel:
        if self.shutdown_received:
            raise RemoteProtocolError("channel-after-shutdown")
        if len(self.receiving) >= self.limits.channels:
            raise RemoteProtocolError("too-many-channels", f"more than {self.limits.channels} channels are open")
        found = self.receiving[channel] = ReceiveChannel(channel, self.peer_transactions, self.opened)
        self.opened += 1
        return found

    def _operated(self, id_: int, packet: Operation) -> list[Event]:
        if packet.kind is Op.CLOSE:
            return self._closing(id_)
        channel = self.receiving.get(id_)
        return [] if channel is None else self._decided(channel, packet)  # Forgotten channels are ignored (R4).

    def _decided(self, channel: ReceiveChannel, packet: Operation) -> list[Event]:
        decided = channel.decide(packet.number)
        if len(channel.results) > self.limits.result_runs:
            raise RemoteProtocolError("results-unconfirmed", f"{len(channel.results)} runs of results without a pong")
        self._backlog.measure(channel)
        if decided is None:
            return []
        first, last, messages = decided
        return [
            events.Decided(
                channel=channel.id,
                first=first,
                last=last,
                commit=packet.kind is Op.COMMIT,
                messages=Messages(()) if messages is None else messages,
                dropped=messages is None,
            )
        ]

    def _closing(self, id_: int) -> list[Event]:
        channel = self.receiving.get(id_)
        if channel is None:
            self._emit(Acknowledgement(kind=Ack.CLOSED, channels=(id_,)), self.peer_size)
            return []
        if channel.mode is Receiving.FINISHED:
            return [events.Finished(channel=id_)]
        if channel.mode is Receiving.OPEN:
            channel.advance(Mode.CLOSE)
            self._barrier(channel)
        return []

    def _acknowledged(self, channel: SendChannel, kind: Ack, number: int | None) -> list[Event]:
        if kind is Ack.RECEIVED:
            channel.received(number)
        elif kind is Ack.CONSUMED:
            done = channel.consumed(number)
            if done is not None:
                self._drain(channel)
                return [events.Consumed(channel=channel.id, first=done[0], last=done[1])]
        elif kind is Ack.CLOSED:
            if channel.mode is Sending.CLOSING:
                channel.advance(Mode.CLOSED)
                del self.sending[channel.id]
                return [events.Closed(channel=channel.id), *self._shutdown()]
        else:
            return [
                events.Resulted(channel=channel.id, first=first, last=last, result=kind)
                for first, last in channel.resulted(kind, number)
            ]
        return []
