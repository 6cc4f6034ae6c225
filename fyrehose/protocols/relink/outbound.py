"""The outbound half of a link: our own channels."""

from __future__ import annotations

from collections.abc import Sequence

from fyrehose.errors import LocalProtocolError
from fyrehose.protocols.relink import events, frames
from fyrehose.protocols.relink.events import Event, Unsettled
from fyrehose.protocols.relink.frames import Ack, Message, MessageRun, Op, Operation
from fyrehose.protocols.relink.linkstate import LinkState
from fyrehose.protocols.relink.sending import SendChannel
from fyrehose.protocols.relink.tables import ChannelEvent, Sending
from fyrehose.records import Buffer, Column


class Outbound(LinkState):
    """Send messages and decisions, and handle the peer's acknowledgements."""

    __slots__ = ()

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
        """Number a message on *channel*; the caller itself has to send its :meth:`packet`.

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

        :param through: number of the last message to decide; None: all
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
        """Close our *channel* when everything on it is consumed; :class:`~.events.ChannelClosed` reports the closure.

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
        """Return whether the peer has consumed every message, so that ``close`` may be sent (rule S6)."""
        return channel.base == channel.next

    def unsettled(self) -> list[Unsettled]:
        """Return our messages that are not acknowledged, because the link is lost (rule S7)."""
        return [message for channel in self.sending.values() for message in channel.unsettled()]

    def acknowledged(self, channel: SendChannel, kind: Ack, number: int | None) -> list[Event]:
        """Handle an acknowledgement for one of our channels."""
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
