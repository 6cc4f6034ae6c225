"""A link, which outlives its connections: the channels of both peers, and what each peer knows of the other's state.

    in: packets of one connection at a time, and calls of the owner      out: events, and packets as bytes

A link is either attached to a connection or detached.  While it is detached the owner may still send, decide and settle
messages; the packets go out after the next resume.

Received messages that wait for the owner block the connection: nothing more is read until some are settled.  Messages
that wait for the peer's commit or rollback must not block it, because the decision would not be read either.  Beyond a
limit their payloads are dropped, and a commit of these messages is answered with ``uncommitted``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import attrs

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.relink import events, frames
from fyrehose.protocols.relink.channels import (
    OVERHEAD,
    ChannelEvent,
    PeerChannels,
    ReceiveChannel,
    Receiving,
    SendChannel,
    Sending,
)
from fyrehose.protocols.relink.events import DropReason, Event, Unsettled
from fyrehose.protocols.relink.frames import (
    RESUME,
    Ack,
    Acknowledgement,
    Gathered,
    Incoming,
    Message,
    MessageRun,
    Op,
    Operation,
    Packet,
    Terms,
)
from fyrehose.protocols.relink.messages import MessageSequence, Piece, cut
from fyrehose.records import MAX_PAYLOAD, Buffer, Column

#: Extra size that a message may have beyond the largest record if it carries the record's number (``?seq``), in bytes.
NUMBERED = 64


@attrs.frozen(kw_only=True, slots=True)
class LinkLimits:
    """Limits of one link.

    A peer that exceeds a limit loses its link, except for ``backlog`` and ``backlog_size``, which stop reading instead.
    """

    #: how many channel ids one packet may have
    targets: int = 1_024
    #: how many parts one message may have
    parts: int = 1_024
    #: size of one message's parts with their padding, and of the size table if there is not exactly one part, in bytes
    message_size: int = MAX_PAYLOAD
    #: the limit ``message_size`` for messages that this side sends
    sent_size: int = MAX_PAYLOAD
    #: channels that the peer may have open at a time
    channels: int = 4_096
    #: messages of one channel that wait to be settled before reading stops; twice as many may wait for the peer's
    #: decision
    backlog: int = 1_024
    #: size of all waiting messages of a link in bytes; twice as much may wait for the peer's decision
    backlog_size: int = 16 << 20
    #: how many messages on one of our channels the peer may have not consumed yet
    window: int = 1_024
    #: results that are kept before a ping is sent; its pong shows that the peer knows them, so they are forgotten (R6)
    results: int = 256
    #: runs of equal results that are kept while the ping for ``results`` is unanswered
    result_runs: int = 4_096
    #: bytes that may arrive while the listener looks up the link; a correct peer sends none (L1)
    early: int = 1 << 20


#: Estimated memory of one channel of the peer, in bytes.
CHANNEL_MEMORY = 2_048
#: Up to this many channels the fullest one is found by a scan; with more channels, only those that are half full are
#: scanned.
SCAN_LIMIT = 8


@attrs.define(eq=False)
class Link:
    """A link, as one of its two peers sees it; in this class "we" is that peer.

    For rules such as S2 see docs/protocols/relink-wire.md.

    :ivar connector: whether we are the connector
    :ivar durable: whether the link survives the end of its process.  Messages that the owner has received and not
        settled are forgotten with the connection, and the peer sends them again; undecided messages are kept as long as
        the process lives
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
        """Send shutdown if it is due; return Ended if no channel is left and both peers have sent shutdown."""
        if self.shutting_down and not self.sending and not self.shutdown_sent and self.may_send:
            self.emit(frames.SHUTDOWN)
            self.shutdown_sent = self.shutdown_ever_sent = True
        if self.over or not (self.shutdown_sent and self.shutdown_received) or self.sending or self.receiving:
            return []
        self.over = True
        return [events.Ended()]

    # Our own channels: the owner sends messages and decisions, and the peer acknowledges them.

    def channel(self, channel: int) -> SendChannel:
        """Return our channel with the id *channel*; open the channel if necessary.

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
        """Send one message on each of *channels*, as one packet; return its sequence number on each channel.

        :raises LocalProtocolError: the message is too large, or one of the windows is full; nothing was sent
        """
        self._check_size(channels, parts)
        for channel in set(channels):
            room = self.channel(channel).room
            if room < channels.count(channel):
                raise LocalProtocolError(f"the window of channel {channel} is full: it has room for {room} messages")
        seqs = tuple(self.channel(channel).add((parts,)) for channel in channels)
        if self.may_send and channels:
            self.emit(
                Message(channels=tuple(channels), parts=parts, multicast=len(channels) > 1), id_size=self.our_size
            )
        return seqs

    def begin(self, channel: int, parts: Sequence[Buffer]) -> None:
        """Number a message on *channel*; the caller has to send the packet that :meth:`packet` returns.

        :raises LocalProtocolError: the message is too large, or the window is full
        """
        self._check_size((channel,), parts)
        self.channel(channel).add(((),))

    def packet(self, channel: int, parts: Sequence[Buffer]) -> list[Buffer]:
        """Return the packet of a message on *channel* as segments, without copying its parts."""
        return Message(channels=(channel,), parts=()).around(parts, self.our_size)

    def send_run(self, channel: int, messages: Column) -> int:
        """Send messages of one part each on *channel*, and return the sequence number of the first.

        :raises LocalProtocolError: a message is too large, or the window has no room for all; nothing was sent
        """
        limit = self.limits.sent_size
        if frames.aligned(len(messages.payload)) > limit and frames.aligned(max(messages.sizes)) > limit:
            raise LocalProtocolError(f"a message of {max(messages.sizes)} bytes exceeds the limit of {limit} bytes")
        first = self.channel(channel).add(messages)
        if self.may_send:
            self.emit(MessageRun(channel=channel, messages=messages), id_size=self.our_size)
        return first

    def decide(self, channel: int, op: Op, through: int | None = None) -> tuple[int, int]:
        """Commit or roll back the undecided messages of our *channel*, and return the numbers of the first and last.

        :param through: number of the last message to decide; None: that of the last undecided message
        :raises LocalProtocolError: the channel is not open, or has no such undecided message
        """
        found = self.sending.get(channel)
        if found is None:
            raise LocalProtocolError(f"channel {channel} is not open")
        first, last = found.decide(op, found.next - 1 if through is None else through)
        if self.may_send:
            self.emit(found.decision(op, first, last), id_size=self.our_size)
        return first, last

    def close(self, channel: int) -> None:
        """Close our *channel* when all its messages are consumed; :class:`~.events.ChannelClosed` reports the closure.

        :raises LocalProtocolError: the channel is not open, or has undecided messages
        """
        found = self.sending.get(channel)
        if found is None or found.mode is not Sending.OPEN:
            raise LocalProtocolError(f"channel {channel} is not open")
        if found.undecided:
            raise LocalProtocolError(f"cannot close channel {channel}: {found.undecided} messages are undecided")
        found.advance(ChannelEvent.CLOSE)
        self._drain(found)

    def _check_size(self, channels: Sequence[int], parts: Sequence[Buffer]) -> None:
        limits = self.limits
        size = sum(frames.aligned(len(part)) for part in parts) + (0 if len(parts) == 1 else 4 + 4 * len(parts))
        if len(parts) > limits.parts or len(channels) > limits.targets or size > limits.sent_size:
            many = f"a message of {len(parts)} parts and {size} bytes to {len(channels)} channels"
            raise LocalProtocolError(f"{many} exceeds the limits {limits.parts}, {limits.sent_size}, {limits.targets}")

    def _drain(self, channel: SendChannel) -> None:
        if channel.mode is Sending.DRAINING and self.drained(channel):
            channel.advance(ChannelEvent.DRAINED)
            if self.may_send:
                self.emit(Operation(kind=Op.CLOSE, channels=(channel.id,)), id_size=self.our_size)

    @staticmethod
    def drained(channel: SendChannel) -> bool:
        """Return whether the peer has consumed every message of *channel*, so that ``close`` may be sent (rule S6)."""
        return channel.base == channel.next

    def unsettled(self) -> list[Unsettled]:
        """Return our unacknowledged messages, whose outcome has to be reported because the link is lost (rule S7)."""
        return [message for channel in self.sending.values() for message in channel.unsettled()]

    def acknowledged(self, channel: SendChannel, kind: Ack, number: int | None) -> list[Event]:
        """Handle an acknowledgement of the peer for one of our channels."""
        if kind is Ack.RECEIVED:
            channel.received(number)
        elif kind is Ack.CONSUMED:
            done = channel.consumed(number)
            if done is not None:
                self._drain(channel)
                return [events.Consumed(channel=channel.id, first=done[0], last=done[1])]
        elif kind is Ack.CLOSED:
            if channel.mode is Sending.CLOSING:
                channel.advance(ChannelEvent.CLOSED)
                del self.sending[channel.id]
                return [events.ChannelClosed(channel=channel.id), *self.closed()]
        else:
            return [
                events.Resulted(channel=channel.id, first=first, last=last, result=kind)
                for first, last in channel.resulted(kind, number)
            ]
        return []

    # The peer's channels: the peer sends messages and decisions, and the owner settles them.

    @property
    def blocked(self) -> bool:
        """Whether to stop reading from the connection until the owner has settled some messages."""
        full = self.held >= self.limits.backlog_size
        return bool(self.full) or (full and any(channel.waiting for channel in self.receiving.values()))

    def room(self) -> tuple[int, int]:
        """Return how many messages of one channel, and how many bytes of all channels, may be decoded in one step.

        Both are at least 1, so that a message that does not fit is decoded alone, and refused alone.
        """
        limits = self.limits
        if self.peer_transactions:
            each = 2 * limits.backlog + 1
        else:
            if len(self.receiving) <= SCAN_LIMIT:
                fullest = max([channel.waiting for channel in self.receiving.values()], default=0)
            else:
                fullest = max([self.receiving[id_].waiting for id_ in self._filling], default=limits.backlog // 2)
            each = limits.backlog - fullest
        size = limits.backlog_size - self.held
        if size <= 0:  # All wait for the peer's decisions, because reading is not blocked; the limit is twice as high.
            size += limits.backlog_size + limits.message_size + 1
        return max(each, 1), max(size, 1)

    def accepts(self, channels: Sequence[int]) -> bool:
        """Return whether the peer may send a message on each of *channels* now."""
        known = [self.receiving[id_] for id_ in channels if id_ in self.receiving]
        new = len(channels) - len(known)
        if new and (self.shutdown_received or len(self.receiving) + new > self.limits.channels):
            return False
        return all(channel.mode is Receiving.OPEN for channel in known)

    def accept(self, id_: int, messages: Piece, size: int, sizes: Sequence[int]) -> list[Event]:
        """Add messages of *size* bytes, *sizes* each, to a channel of the peer, which is opened if necessary."""
        channel = self.receiving.get(id_) or self._open(id_)
        cost = size + OVERHEAD * len(sizes)
        if channel.transactional:
            self._unacknowledged.add(id_)
            kept, why = self._count_fitting(channel, sizes, cost)
            if kept < len(sizes):
                return self._receive_partly(channel, messages, sizes[:kept], len(sizes) - kept, why)
        elif not self.durable:
            self._unacknowledged.add(id_)
        first = channel.accept(messages, cost, sizes)
        self._charge(channel, cost)
        if channel.transactional:
            return []
        return [events.Received(channel=id_, first=first, messages=MessageSequence((messages,)))]

    def _count_fitting(self, channel: ReceiveChannel, sizes: Sequence[int], cost: int) -> tuple[int, DropReason]:
        """Return how many of the first messages with these *sizes* still fit on *channel*.

        :param cost: the size of all of them, including ``OVERHEAD`` for each
        :return: also the reason why the next message does not fit
        """
        if channel.dropped is not None:
            return 0, channel.why_dropped
        count = min(len(sizes), 2 * self.limits.backlog - (channel.next - 1 - channel.dec))
        available = 2 * self.limits.backlog_size + self.limits.message_size - self.held
        if count == len(sizes) and cost <= available:
            return count, DropReason.COUNT
        fitting = bisect_right([*accumulate(size + OVERHEAD for size in sizes[:count])], available)
        return fitting, DropReason.COUNT if fitting == count else DropReason.SIZE

    def _receive_partly(
        self, channel: ReceiveChannel, messages: Piece, sizes: Sequence[int], dropped: int, why: DropReason
    ) -> list[Event]:
        """Keep the first messages of a transaction that is too large; number the others, and drop their payloads."""
        if sizes:
            cost = sum(sizes) + OVERHEAD * len(sizes)
            channel.accept(cut(messages, len(sizes))[0], cost, sizes)
            self._charge(channel, cost)
        channel.accept_dropped(dropped, why)
        return []

    def drop_undecided(self) -> None:
        """Drop the payloads of all undecided messages, so that a commit of them fails."""
        for channel in self.receiving.values():
            if channel.undecided:
                self._charge(channel, -channel.drop_undecided())

    @property
    def undecided(self) -> int:
        """The memory that undecided messages of the peer take, in bytes.

        Messages of channels without transactions are not included: they wait for the journal, and are charged to the
        connection.
        """
        return self.held if self.peer_transactions else 0

    def _open(self, channel: int, again: bool = False) -> ReceiveChannel:
        """Open a channel of the peer.

        :param again: whether the peer opened the channel before, and this side has forgotten that
        """
        if self.shutdown_received and not again:
            raise RemoteProtocolError("channel-after-shutdown")
        if len(self.receiving) >= self.limits.channels:
            raise RemoteProtocolError("too-many-channels", f"more than {self.limits.channels} channels are open")
        found = self.receiving[channel] = ReceiveChannel(channel, self.peer_transactions, self.opened)
        self.opened += 1
        return found

    def operated(self, id_: int, packet: Operation) -> list[Event]:
        """Handle commit, rollback or close on a channel of the peer."""
        if packet.kind is Op.CLOSE:
            return self._closing(id_)
        if not self.peer_transactions:
            raise RemoteProtocolError("operation-not-transactional")
        channel = self.receiving.get(id_)
        if self.forgetful:
            channel = channel or self._open(id_, again=True)
            channel.accept_forgotten(packet.number)
        elif channel is None:
            if packet.kind is Op.COMMIT:  # Answer the commit, without opening the channel (R4).
                self.emit(
                    Acknowledgement(kind=Ack.UNCOMMITTED, channels=(id_,), number=packet.number), id_size=self.peer_size
                )
            return []
        return self._decided(channel, packet)

    def _decided(self, channel: ReceiveChannel, packet: Operation) -> list[Event]:
        decided = channel.decide(packet.number)
        if len(channel.results) > self.limits.result_runs:
            detail = f"{len(channel.results)} runs of results wait for the pong that confirms them; answer pings"
            raise RemoteProtocolError("results-unconfirmed", detail)
        self._charge(channel, 0)
        if decided is None:
            return []
        first, last, messages = decided
        return [
            events.Decided(
                channel=channel.id,
                first=first,
                last=last,
                commit=packet.kind is Op.COMMIT,
                messages=messages if isinstance(messages, MessageSequence) else MessageSequence(()),
                dropped=None if isinstance(messages, MessageSequence) else messages,
            )
        ]

    def _closing(self, id_: int) -> list[Event]:
        channel = self.receiving.get(id_)
        if channel is None:
            self.emit(Acknowledgement(kind=Ack.CLOSED, channels=(id_,)), id_size=self.peer_size)
            return []
        if channel.mode is Receiving.FINISHED:
            return [events.Finished(channel=id_)]
        if channel.mode is Receiving.OPEN:
            channel.advance(ChannelEvent.CLOSE)
            self._barrier(channel)
        return []

    # Called by the owner.

    def stage(self, channel: int, through: int | None, result: Ack | None = None) -> None:
        """Record *result* for the peer's messages up to *through*; None: without a transaction, or rolled back.

        :param through: None: the channel is forgotten
        :raises LocalProtocolError: there are no such messages to stage
        """
        found = self.receiving[channel]
        found.leaving = through is None
        if through is not None:
            found.stage(through, result)

    def unstage(self, channel: int, first: int) -> None:
        """Undo :meth:`stage` for the peer's messages from *first* on, because the stage was not accepted."""
        found = self.receiving[channel]
        found.leaving = False
        found.unstage(first - 1)

    def settle(self, channel: int, through: int) -> None:
        """Acknowledge the staged messages up to *through*, because they are durable."""
        found = self.receiving[channel]
        packets, freed = found.settle(through)
        self._charge(found, -freed)
        self.emit(*packets, id_size=self.peer_size)
        if found.unconfirmed > self.limits.results:
            self._trim(found)
        if found.mode is Receiving.CLOSING:
            self._barrier(found)

    def consume(self, channel: int, through: int, result: Ack | None = None) -> None:
        """Stage and settle the peer's messages up to *through* in one step, for owners that keep nothing on disk."""
        self.stage(channel, through, result)
        self.settle(channel, through)

    def forget(self, channel: int) -> list[Event]:
        """Remove the peer's finished channel and acknowledge the closure; return Ended if that ends the link."""
        self.receiving[channel].advance(ChannelEvent.FORGOTTEN)
        del self.receiving[channel]
        for ids in (self._filling, self.full, self._unacknowledged):
            ids.discard(channel)
        self.emit(Acknowledgement(kind=Ack.CLOSED, channels=(channel,)), id_size=self.peer_size)
        return self.closed()

    def _trim(self, channel: ReceiveChannel) -> None:
        """Send a ping after the last results if many are kept; the pong shows that the peer knows them (rule R6)."""
        if channel.unconfirmed > self.limits.results and channel.trim_barrier is None and self.attached:
            channel.trim_barrier = (self.ping(), channel.consumed)
            channel.unconfirmed = 0

    def _barrier(self, channel: ReceiveChannel) -> None:
        """Send a ping after the last acknowledgement of a closing channel; ``closed`` follows its pong (rule R7)."""
        if channel.exhausted and self.attached:
            channel.barrier = self.ping()
            channel.advance(ChannelEvent.PING)

    def _charge(self, channel: ReceiveChannel, cost: int) -> None:
        """Add *cost* bytes, which may be negative, for messages of *channel*; note whether the channel is full."""
        self.held += cost
        limit = self.limits.backlog
        waiting = (channel.dec if channel.transactional else channel.next - 1) - channel.consumed
        (self._filling.add if waiting >= limit // 2 else self._filling.discard)(channel.id)
        (self.full.add if waiting >= limit else self.full.discard)(channel.id)

    # Called by the link.

    def acknowledge(self) -> None:
        """Acknowledge the messages of this read as received, once for each channel (rule R2)."""
        for id_ in sorted(self._unacknowledged):
            channel = self.receiving[id_]
            # On a durable link, acknowledge only undecided messages as received: ``consumed`` follows for all others,
            # and implies ``received``.
            packet = channel.acknowledge_received(self.durable) if not self.durable or channel.undecided else None
            if packet is not None:
                self.emit(packet, id_size=self.peer_size)
        self._unacknowledged.clear()

    def send_report(self) -> None:
        """Report on a resumed link what has arrived on each channel; then send the resume packet (rule R5)."""
        for channel in self.receiving.values():
            # If the peer does not send forgotten messages again, this side has numbered all later messages too low.  If
            # this side kept these messages, the peer would take `received` as that of other messages, and send messages
            # that have arrived again.
            if self.durable and (self.forgetful or not channel.resumable):
                self._rewind(channel)
            self.emit(*channel.report(), id_size=self.peer_size)
        self.emit(RESUME)
        for channel in self.receiving.values():
            self._barrier(channel)
            self._trim(channel)

    def _rewind(self, channel: ReceiveChannel) -> None:
        """Forget the messages of *channel* that are not durable, even if they were acknowledged as received."""
        self.forgetful = self.forgetful or channel.acknowledged > channel.consumed
        self._charge(channel, -channel.rewind())

    def ponged(self) -> list[Event]:
        """Handle a pong: the k-th pong answers the k-th ping of the connection."""
        if self.pongs == self.pings:
            return []  # A pong without a ping is ignored.
        self.pongs += 1
        found: list[Event] = []
        for channel in self.receiving.values():
            if channel.trim_barrier is not None and channel.trim_barrier[0] <= self.pongs:
                channel.forget_results(channel.trim_barrier[1])
                channel.trim_barrier = None
            if channel.mode is Receiving.BARRIER and channel.barrier is not None and channel.barrier <= self.pongs:
                channel.advance(ChannelEvent.PONG)
                found.append(events.Finished(channel=channel.id))
        return found

    # The connection.

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
                # The channels of a multicast share one payload, so charge each channel for a part of it.
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
        """Handle the resume packet, which ends the peer's report: send the messages that it lacks (rules S2, S4, S8).

        :raises RemoteProtocolError: the report lacks messages that the peer had consumed before
        """
        for channel in self.sending.values():
            channel.check_report()
        self.may_send = True
        found: list[Event] = []
        for channel in self.sending.values():
            self.emit(*channel.resend(), id_size=self.our_size)
            if not channel.kept:
                found.append(events.Rewound(channel=channel.id, next=channel.next))
        return [events.Resumed(), *found, *self.closed()]
