"""The inbound half of a link: the peer's channels, and how many unfinished messages they may hold.

Messages that wait for the owner block the connection: nothing more is read until some are settled.  Messages that wait
for the peer's commit or rollback must not block it, because the decision would not be read either.  Beyond a limit
their payloads are dropped, and a commit of these messages is answered with ``uncommitted``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.events import DropReason, Event
from fyrehose.protocols.relink.frames import RESUME, Ack, Acknowledgement, Op, Operation
from fyrehose.protocols.relink.linkstate import LinkState
from fyrehose.protocols.relink.messages import MessageSequence, Piece, cut
from fyrehose.protocols.relink.receiving import OVERHEAD, ReceiveChannel
from fyrehose.protocols.relink.tables import ChannelEvent, Receiving

#: Estimated memory of one channel of the peer, in bytes.
CHANNEL_MEMORY = 2_048
#: Up to this many channels the fullest one is found by a scan; with more channels, only those that are half full are
#: scanned.
SCAN_LIMIT = 8


class Inbound(LinkState):
    """Receive messages and decisions, and acknowledge them."""

    __slots__ = ()

    @property
    def blocked(self) -> bool:
        """Whether reading has to stop until the owner has settled some messages."""
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
        """Keep the first messages of a transaction that is too large; only number the others, without payloads."""
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
    def weight(self) -> int:
        """Memory that the peer's channels and their undecided messages take, in bytes.

        Messages of plain channels are not included: they wait for the journal, and are charged to the connection.
        """
        undecided = self.held if self.peer_transactions else 0
        return CHANNEL_MEMORY * len(self.receiving) + undecided

    def _open(self, channel: int, again: bool = False) -> ReceiveChannel:
        """Open a channel of the peer.

        :param again: the peer opened the channel before, and this side has forgotten it
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
            raise RemoteProtocolError("results-unconfirmed", f"{len(channel.results)} runs of results without a pong")
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

    def stage(self, channel: int, through: int, result: Ack | None = None) -> None:
        """Record the *result* of the peer's messages up to *through* (None: plain or rolled back) until :meth:`settle`.

        :raises LocalProtocolError: there are no such messages to stage
        """
        self.receiving[channel].stage(through, result)

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
        self._drop(channel)
        self.emit(Acknowledgement(kind=Ack.CLOSED, channels=(channel,)), id_size=self.peer_size)
        return self.closed()

    def _drop(self, channel: int) -> None:
        del self.receiving[channel]
        for ids in (self._filling, self.full, self._unacknowledged):
            ids.discard(channel)

    def _trim(self, channel: ReceiveChannel) -> None:
        """Send a ping after the last results if many are kept; its pong shows that the peer knows them (rule R6)."""
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
            # On a durable link, consumed follows for decided and plain messages, and implies received.
            packet = channel.acknowledge_received(self.durable) if not self.durable or channel.undecided else None
            if packet is not None:
                self.emit(packet, id_size=self.peer_size)
        self._unacknowledged.clear()

    def send_report(self) -> None:
        """Report on a resumed link what has arrived on each channel; then send the resume packet (rule R5)."""
        for channel in self.receiving.values():
            # If the peer does not send forgotten messages again, this side has numbered all later messages too low.  If
            # it kept these, the peer would take `received` as that of other messages, and send messages that have
            # arrived again.
            if self.durable and (self.forgetful or not channel.resumable):
                self._rewind(channel)
            self.emit(*channel.report(), id_size=self.peer_size)
        self.emit(RESUME)
        for channel in self.receiving.values():
            self._barrier(channel)
            self._trim(channel)

    def rewind(self) -> None:
        """Forget received messages that could not be written; the peer sends them again when it resumes the link."""
        if self.attached or not self.durable:
            raise LocalProtocolError("cannot rewind a link that is attached or not durable")
        for channel in self.receiving.values():
            self._rewind(channel)

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
