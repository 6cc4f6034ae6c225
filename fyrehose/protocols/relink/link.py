"""A link: the channels of both peers, and what they have told each other.  It outlives its connections.

    in: packets of one connection at a time, and what the owner does      out: events, packets as bytes

A link is attached to a connection, or detached.  While it is detached its owner goes on: what is sent, decided and
finished then goes out behind the next resume.
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
    GeneralPacket,
    Message,
    MessageRun,
    Op,
    Operation,
    Packet,
)
from fyrehose.protocols.relink.limits import Limits
from fyrehose.protocols.relink.messages import Column, Messages, Piece, cut
from fyrehose.protocols.relink.receiving import OVERHEAD, ReceiveChannel
from fyrehose.protocols.relink.roles import Roles
from fyrehose.protocols.relink.sending import SendChannel
from fyrehose.protocols.relink.tables import Event as Mode
from fyrehose.protocols.relink.tables import Receiving, Sending

#: What a channel of the peer takes in memory, in bytes.
CHANNEL = 2_048


@attrs.define(eq=False)
class Link(Roles):
    """One link, from one peer's point of view.

    :ivar durable: the link outlives its process.  What the owner was given and did not settle is forgotten with the
        connection, and the peer sends it again; what the peer has not decided is kept as long as the process lives
    :ivar kept: whether messages of ours are kept until they are consumed, or made again by the owner
    """

    epoch: int = 0
    id: int = 0
    limits: Limits = attrs.field(factory=Limits)
    durable: bool = attrs.field(default=False, kw_only=True)
    kept: bool = attrs.field(default=True, kw_only=True)
    sending: dict[int, SendChannel] = attrs.field(factory=dict, init=False)
    receiving: dict[int, ReceiveChannel] = attrs.field(factory=dict, init=False)
    #: how many channels the peer has opened so far
    opened: int = attrs.field(default=0, init=False)
    #: whether it came to its good end, or was lost
    over: bool = attrs.field(default=False, init=False)
    attached: bool = attrs.field(default=False, init=False)
    #: whether a packet of the peer ever came in, which shows that the peer knows the link
    heard: bool = attrs.field(default=False, init=False)
    #: whether messages may go out: the link is new, or the peer has resumed
    may_send: bool = attrs.field(default=False, init=False)
    shutting_down: bool = attrs.field(default=False, init=False)
    #: whether shutdown went out, on any connection so far
    shutdown_said: bool = attrs.field(default=False, init=False)
    shutdown_sent: bool = attrs.field(default=False, init=False)
    shutdown_received: bool = attrs.field(default=False, init=False)
    pings: int = attrs.field(default=0, init=False)
    pongs: int = attrs.field(default=0, init=False)
    _out: list[bytes] = attrs.field(factory=list, init=False)
    _backlog: Backlog = attrs.field(init=False)
    _unsaid: set[int] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._backlog = Backlog(self.limits, self.receiving)

    @property
    def held(self) -> bool:
        """Whether so much waits for the owner that nothing more is to come in until some of it is settled."""
        return self._backlog.held

    # Our own channels.

    def channel(self, channel: int) -> SendChannel:
        """Our channel ``channel``, opened if it is not.

        :raises LocalProtocolError: its id does not fit, or shutdown was asked for
        """
        found = self.sending.get(channel)
        if found is None:
            if self.shutting_down or self.over:
                raise LocalProtocolError("the link is shutting down: no more channels")
            if not 0 <= channel < 1 << 8 * self.our_size:
                raise LocalProtocolError(f"{channel} does not fit into {self.our_size} bytes of channel id")
            found = SendChannel(channel, self.our_transactions, self.limits.window, self.kept)
            self.sending[channel] = found
        return found

    def send(self, channels: Sequence[int], parts: tuple[bytes, ...]) -> tuple[int, ...]:
        """Send a message on each of ``channels``, as one packet; its numbers.

        :raises LocalProtocolError: it is too large, or one of the windows is full; then nothing was sent
        """
        limits = self.limits
        size = sum(frames.aligned(len(part)) for part in parts) + (0 if len(parts) == 1 else 4 + 4 * len(parts))
        if len(parts) > limits.parts or len(channels) > limits.targets or size > limits.sent_size:
            raise LocalProtocolError(f"a message of {len(parts)} parts and {size} bytes is too large")
        for channel in set(channels):
            room = self.channel(channel).room
            if room < channels.count(channel):
                raise LocalProtocolError(f"channel {channel} has room for {room} messages more")
        seqs = tuple(self.channel(channel).add((parts,)) for channel in channels)
        if self.may_send and channels:
            self._emit(Message(channels=tuple(channels), parts=parts, multicast=len(channels) > 1), self.our_size)
        return seqs

    def send_run(self, channel: int, messages: Column) -> int:
        """Send messages of one part each on ``channel``; the number of the first.

        :raises LocalProtocolError: one is too large, or the window has no room for all; then nothing was sent
        """
        most = self.limits.sent_size
        if frames.aligned(len(messages.payload)) > most and frames.aligned(max(messages.sizes)) > most:
            raise LocalProtocolError(f"a message of {max(messages.sizes)} bytes is too large")
        first = self.channel(channel).add(messages)
        if self.may_send:
            self._emit(MessageRun(channel=channel, messages=messages), self.our_size)
        return first

    def decide(self, channel: int, op: Op, through: int | None = None) -> tuple[int, int]:
        """Commit or roll back what is undecided, up to number ``through``; the first and the last.

        :raises LocalProtocolError: there is nothing
        """
        found = self.sending.get(channel)
        if found is None:
            raise LocalProtocolError(f"channel {channel} is not open")
        first, last = found.decide(op, found.next - 1 if through is None else through)
        if self.may_send:
            self._emit(found.decision(op, first, last), self.our_size)
        return first, last

    def close(self, channel: int) -> None:
        """Close our channel when everything on it is consumed; :class:`~.events.Closed` says when that is done.

        :raises LocalProtocolError: it is not open, or holds undecided messages
        """
        found = self.sending.get(channel)
        if found is None or found.mode is not Sending.OPEN:
            raise LocalProtocolError(f"channel {channel} is not open")
        if found.undecided:
            raise LocalProtocolError(f"channel {channel} has {found.undecided} undecided messages")
        found.advance(Mode.CLOSE)
        self._drain(found)

    def _drain(self, channel: SendChannel) -> None:
        if channel.mode is Sending.DRAINING and self.drained(channel):
            channel.advance(Mode.DRAINED)
            if self.may_send:
                self._emit(Operation(kind=Op.CLOSE, channels=(channel.id,)), self.our_size)

    @staticmethod
    def drained(channel: SendChannel) -> bool:
        """Whether close may go out (S6)."""
        return channel.base == channel.next

    def shutdown(self) -> list[Event]:
        """Open no more channels; when ours are closed, the peer is told.  It may be the end of the link."""
        self.shutting_down = True
        return self._shutdown()

    def _shutdown(self) -> list[Event]:
        if self.shutting_down and not self.sending and not self.shutdown_sent and self.may_send:
            self._emit(frames.SHUTDOWN)
            self.shutdown_sent = self.shutdown_said = True
        return self._end()

    def _end(self) -> list[Event]:
        if self.over or not (self.shutdown_sent and self.shutdown_received) or self.sending or self.receiving:
            return []
        self.over = True
        return [events.Ended()]

    def unknown(self) -> list[Unknown]:
        """Our messages whose fate nobody knows when the link is lost (S7)."""
        return [unknown for channel in self.sending.values() for unknown in channel.unknown()]

    # The peer's channels.

    def stage(self, channel: int, through: int, result: Ack | None = None) -> None:
        """How the peer's messages up to ``through`` end; nothing is said before :meth:`settle`."""
        self._received(channel).stage(through, result)

    def unstage(self, channel: int, through: int) -> None:
        """What was staged beyond ``through`` was not written after all."""
        self._received(channel).unstage(through)

    def settle(self, channel: int, through: int) -> None:
        """What was staged up to ``through`` is durable: tell the peer."""
        found = self._received(channel)
        packets, freed = found.settle(through)
        self._backlog.let_go(found, freed)
        for packet in packets:
            self._emit(packet, self.peer_size)
        self.trim(found)
        self._barrier(found)

    def consume(self, channel: int, through: int, result: Ack | None = None) -> None:
        """Both at once, for owners that keep nothing on disk."""
        self.stage(channel, through, result)
        self.settle(channel, through)

    def leave(self, channel: int) -> None:
        """The peer's channel is finished: from now on snapshots have it no more, and then :meth:`forget`."""
        self._received(channel).leaving = True

    def forget(self, channel: int) -> list[Event]:
        """The peer's channel, which is finished, is forgotten durably: say closed.  It may be the end of the link."""
        found = self._received(channel)
        found.advance(Mode.FORGOTTEN)
        self._drop(channel)
        self._emit(Acknowledgement(kind=Ack.CLOSED, channels=(channel,)), self.peer_size)
        return self._end()

    def _drop(self, channel: int) -> None:
        del self.receiving[channel]
        self._backlog.drop(channel)
        self._unsaid.discard(channel)

    def _received(self, channel: int) -> ReceiveChannel:
        found = self.receiving.get(channel)
        if found is None:
            raise LocalProtocolError(f"the peer has no channel {channel}")
        return found

    def trim(self, channel: ReceiveChannel) -> None:
        """Ask, now and then, whether results may be forgotten: by a ping behind them (R6)."""
        if channel.unconfirmed > self.limits.results and channel.trim is None and self.attached:
            channel.trim = (self.ping(), channel.consumed)
            channel.unconfirmed = 0

    def _barrier(self, channel: ReceiveChannel) -> None:
        """Everything of a closing channel is consumed: closed goes out only behind a ping and its pong (R7)."""
        if channel.exhausted and self.attached:
            channel.barrier = self.ping()
            channel.advance(Mode.PING)

    # The connection.

    def attach(self, *, resumed: bool) -> None:
        """A connection has agreed on this link; where it is an old one, our report and resume go out at once (R5)."""
        self.attached, self.may_send = True, not resumed
        if not resumed:
            return
        for sent in self.sending.values():
            sent.attach()
        for received in self.receiving.values():
            if self.durable and not received.held:
                self._backlog.let_go(received, received.rewind())
            for packet in received.report():
                self._emit(packet, self.peer_size)
        self._emit(frames.RESUME)
        for received in self.receiving.values():
            self._barrier(received)
            self.trim(received)

    def detach(self) -> None:
        """The connection is gone, or what it still brings does not count any more (L4)."""
        self.attached = self.may_send = self.shutdown_sent = False
        self.pings = self.pongs = 0
        self._out.clear()
        self._unsaid.clear()
        for channel in self.receiving.values():
            channel.detach()

    def rewind(self) -> None:
        """Forget what came in and is not durable, because it could not be written; the peer will send it again.

        :raises LocalProtocolError: the link is attached, or not durable
        """
        if self.attached or not self.durable:
            raise LocalProtocolError("only a detached, durable link can be rewound")
        for channel in self.receiving.values():
            self._backlog.let_go(channel, channel.rewind())

    def ping(self) -> int:
        """Send a ping; its place among those of this connection, from 1."""
        self._emit(frames.PING)
        self.pings += 1
        return self.pings

    def acknowledge(self) -> None:
        """Say ``received``, once for all that came in since the last time (R2).

        A durable link says it only where the peer's decision is missing: in all other cases ``consumed`` follows, which
        implies it, when the messages are durable.
        """
        for id_ in sorted(self._unsaid):
            channel = self.receiving[id_]
            receipt = channel.receipt(self.durable) if not self.durable or channel.undecided else None
            if receipt is not None:
                self._emit(receipt, self.peer_size)
        self._unsaid.clear()

    def data_to_send(self) -> list[bytes]:
        """The bytes for the peer; each is handed out once."""
        data, self._out = self._out, []
        return data

    def _emit(self, packet: Packet, id_size: int = 0) -> None:
        if self.attached:
            self._out.append(packet.serialize(id_size))

    # What comes in: one method for each kind of packet (tables.PACKETS).

    def nop(self, packet: GeneralPacket) -> list[Event]:
        """Nothing."""
        return []

    def pinged(self, packet: GeneralPacket) -> list[Event]:
        """Answer on this connection (L5)."""
        self._emit(frames.PONG)
        return []

    def ponged(self, packet: GeneralPacket) -> list[Event]:
        """The k-th pong answers the k-th ping."""
        if self.pongs == self.pings:
            return []  # nobody asked, and it answers nothing
        self.pongs += 1
        found: list[Event] = []
        for channel in self.receiving.values():
            if channel.trim is not None and channel.trim[0] <= self.pongs:
                channel.forget_results(channel.trim[1])
                channel.trim = None
            if channel.mode is Receiving.BARRIER and channel.barrier is not None and channel.barrier <= self.pongs:
                channel.advance(Mode.PONG)
                found.append(events.Finished(channel=channel.id))
        return found

    def shut_down(self, packet: GeneralPacket) -> list[Event]:
        """The peer opens no more channels; said again after each resume."""
        again, self.shutdown_received = self.shutdown_received, True
        return [*([] if again else [events.PeerShutdown()]), *self._end()]

    def resumed(self, packet: GeneralPacket) -> list[Event]:
        """The peer's report is complete: send again what it has not got (S2, S4), then go on."""
        self.may_send = True
        found: list[Event] = []
        for channel in self.sending.values():
            for again in channel.resend():
                self._emit(again, self.our_size)
            if not channel.kept:
                found.append(events.Rewound(channel=channel.id, next=channel.next))
        return [events.Resumed(), *found, *self._shutdown()]

    def room(self) -> tuple[int, int]:
        """How many messages of one channel, and how many bytes of all, may come before they are judged; never none."""
        return self._backlog.room(self.peer_transactions)

    def takes(self, channels: Sequence[int]) -> bool:
        """Whether a message on each of ``channels`` breaks no rule."""
        known = [self.receiving[id_] for id_ in channels if id_ in self.receiving]
        new = len(channels) - len(known)
        if new and (self.shutdown_received or len(self.receiving) + new > self.limits.channels):
            return False
        return all(channel.mode is Receiving.OPEN for channel in known)

    def messages(self, packet: Gathered) -> list[Event]:
        """Messages of one part each, by the channel."""
        return [
            event for id_, column in packet.runs for event in self._take(id_, column, len(column.payload), column.sizes)
        ]

    def message(self, packet: Message) -> list[Event]:
        """A message on each of its channels, which have its payload in common."""
        size = sum(map(len, packet.parts)) // max(1, len(packet.channels))
        return [event for id_ in packet.channels for event in self._take(id_, (packet.parts,), size, (size,))]

    def _take(self, id_: int, messages: Piece, size: int, sizes: Sequence[int]) -> list[Event]:
        channel = self.receiving.get(id_) or self._open(id_)
        cost = size + OVERHEAD * len(sizes)
        if channel.transactional:
            self._unsaid.add(id_)
            if not self._backlog.fits(channel, len(sizes), cost):
                return self._take_some(channel, messages, sizes)
        elif not self.durable:
            self._unsaid.add(id_)
        first = channel.accept(messages, cost, sizes)
        self._backlog.add(channel, cost)
        if channel.transactional:
            return []
        return [events.Received(channel=id_, first=first, messages=Messages((messages,)))]

    def _take_some(self, channel: ReceiveChannel, messages: Piece, sizes: Sequence[int]) -> list[Event]:
        """Keep what still fits of a transaction that is too large; the others only have their numbers."""
        count = self._backlog.fitting(channel, sizes)
        if count:
            cost = sum(sizes[:count]) + OVERHEAD * count
            channel.accept(cut(messages, count)[0], cost, sizes[:count])
            self._backlog.add(channel, cost)
        channel.accept_dropped(len(sizes) - count)
        return []

    def drop_undecided(self) -> None:
        """Let go of all messages that the peer has not decided; a commit of them will have failed."""
        for channel in self.receiving.values():
            if channel.undecided:
                self._backlog.let_go(channel, channel.drop_undecided())

    @property
    def weight(self) -> int:
        """Memory that the peer's channels take, in bytes: themselves, and undecided messages.

        Messages of plain channels do not count: they wait for the journal, and the connection's account has them.
        """
        undecided = self._backlog.size if self.peer_transactions else 0
        return CHANNEL * len(self.receiving) + undecided

    def _open(self, channel: int) -> ReceiveChannel:
        if self.shutdown_received:
            raise RemoteProtocolError("channel-after-shutdown")
        if len(self.receiving) >= self.limits.channels:
            raise RemoteProtocolError("too-many-channels", f"more than {self.limits.channels}")
        found = self.receiving[channel] = ReceiveChannel(channel, self.peer_transactions, self.opened)
        self.opened += 1
        return found

    def operation(self, packet: Operation) -> list[Event]:
        """Commit, rollback or close, on each of its channels."""
        found: list[Event] = []
        for id_ in packet.channels:
            if packet.kind is Op.CLOSE:
                found += self._closing(id_)
            elif id_ in self.receiving:  # else: of a channel that is closed and forgotten (R4)
                found += self._decided(self.receiving[id_], packet)
        return found

    def _decided(self, channel: ReceiveChannel, packet: Operation) -> list[Event]:
        decided = channel.decide(packet.number)
        if len(channel.results) > self.limits.result_runs:
            raise RemoteProtocolError("results-unconfirmed", f"{len(channel.results)} runs of them, and no pong")
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

    def acknowledged(self, packet: Acknowledgement) -> list[Event]:
        """What the peer says of ours; nothing of channels that are closed."""
        found: list[Event] = []
        for id_ in packet.channels:
            channel = self.sending.get(id_)
            if channel is not None:
                found += self._acknowledged(channel, packet.kind, packet.number)
        return found

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
