"""Decode packets from a byte stream (specification, "2.  Packets"), however the network has cut it into pieces.

    in: bytes that the reactor read      out: packets, in order; RemoteProtocolError at the first invalid one

Each length field is checked as soon as its own bytes have arrived, so a packet that will be refused takes no memory.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import attrs

from fyrehose.errors import RemoteProtocolError
from fyrehose.kernels import relink as kernel
from fyrehose.protocols.relink.frames import (
    LARGE,
    LONG,
    NOP,
    NUMBER,
    PING,
    PONG,
    RESUME,
    SHUTDOWN,
    Ack,
    Acknowledgement,
    Format,
    Gathered,
    Incoming,
    Message,
    Op,
    Operation,
    aligned,
)
from fyrehose.protocols.relink.link import Link, LinkLimits
from fyrehose.records import Column

_GENERAL = (NOP, PING, PONG, RESUME, SHUTDOWN)
#: for each format the class of its packets, and their types; a larger type is invalid
_TARGETED: dict[int, tuple[type[Operation | Acknowledgement], tuple[Any, ...]]] = {
    Format.OPERATION: (Operation, tuple(Op)),
    Format.ACKNOWLEDGEMENT: (Acknowledgement, tuple(Ack)),
    Format.SEQUENCE_OPERATION: (Operation, tuple(Op)[:2]),
    Format.SEQUENCE_ACKNOWLEDGEMENT: (Acknowledgement, tuple(Ack)[:4]),
}
#: First byte of a unicast message that is neither long nor large.
_SIMPLE = 1 | Format.MESSAGE << 2
#: A bit without a meaning in the first byte of a message; the decoder ignores this bit.
_UNUSED = 1 << 7
#: channel id size -> struct code
_ID_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


class _MoreNeeded(Exception):
    """The exception that the decoder raises within itself when a packet has not arrived completely.

    :ivar size: the least number of bytes that the packet can have
    """

    def __init__(self, size: int) -> None:
        self.size = size


@attrs.define(eq=False)
class Decoder:
    """A buffer of received bytes, from which packets are cut.

    :ivar sender_size: size of the peer's channel ids, in bytes (used by messages and operations that it sends)
    :ivar receiver_size: size of our channel ids, in bytes (used by acknowledgements that it sends)
    :ivar owner: the link, if messages of one part are returned many at a time, as :class:`~.frames.Gathered`; None:
        each message is returned as a packet
    """

    sender_size: int
    receiver_size: int
    limits: LinkLimits = attrs.field(factory=LinkLimits)
    owner: Link | None = None
    #: The received bytes, of which those before ``_at`` are decoded already; empty if all are.
    buffer: bytes | bytearray = attrs.field(default=b"", init=False)
    _at: int = attrs.field(default=0, init=False)
    #: Largest number of channels whose messages are gathered into one result.
    _max_channels: int = attrs.field(default=kernel.CHANNELS, init=False)
    #: The least number of bytes that the packet at ``_at`` has, as far as its fields have arrived.
    _needed: int = attrs.field(default=2, init=False)

    @property
    def expected(self) -> int:
        """The least size of the incomplete packet, as far as it is known; 0 if no packet is incomplete."""
        if not self.buffer or len(self.buffer) - self._at >= self._needed:
            return 0
        return max(self._needed, 8)

    @property
    def size(self) -> int:
        """The number of bytes that are not decoded yet."""
        return len(self.buffer) - self._at

    @property
    def rest(self) -> bytes:
        """The bytes that are not decoded yet."""
        return bytes(self.buffer[self._at :])

    def feed(self, data: bytes) -> None:
        """Append received bytes; they are copied only if an incomplete packet is in the buffer."""
        if not self.buffer:
            self.buffer = data
            return
        if isinstance(self.buffer, bytes):
            self.buffer = bytearray(self.rest)
        else:
            del self.buffer[: self._at]
        self._at = 0
        self.buffer += data

    def drop(self, size: int) -> None:
        """Remove the next *size* bytes from the buffer."""
        self._at += size
        if self._at >= len(self.buffer):
            self.clear()

    def clear(self) -> None:
        """Empty the buffer."""
        self.buffer, self._at = b"", 0

    def next_packet(self) -> Incoming | None:
        """Return the next packet, or None if it has not arrived completely.

        :raises RemoteProtocolError: the packet is invalid or exceeds a limit
        """
        while len(self.buffer) - self._at >= self._needed:
            at, found = self._at, None
            try:
                if self.owner is not None and self.buffer[at] & ~_UNUSED == _SIMPLE and self.buffer[at + 1] == 1:
                    found = self._gathered(at, self.owner)
                packet, end = found or self._packet(at)
            except _MoreNeeded as more:
                self._needed = more.size
                continue
            if end >= len(self.buffer):
                self.buffer, self._at = b"", 0
            else:
                self._at = end
            self._needed = 2
            return packet
        return None

    def _require(self, size: int) -> None:
        if len(self.buffer) - self._at < size:
            raise _MoreNeeded(size)

    def _gathered(self, at: int, owner: Link) -> tuple[Incoming, int] | None:
        """Return the messages of one part that follow each other from *at*, and the offset of their end.

        :return: None if no such message is complete
        """
        buffer = self.buffer
        each, size = owner.room()
        largest = self.limits.message_size
        end, runs = kernel.gather(buffer, at, self.sender_size, largest, size, each, self._max_channels)
        if len(runs) > 1 and not owner.accepts([channel for channel, _, _ in runs]):
            # One of the messages violates a rule.  From now on gather one channel at a time, so that all messages
            # before that message take effect, and none behind it.
            self._max_channels = 1
            end, runs = kernel.gather(buffer, at, self.sender_size, largest, size, each, self._max_channels)
        if not runs:
            return None
        gathered = []
        for channel, lengths, payload in runs:
            gathered.append((channel, Column(lengths, payload)))
        return Gathered(runs=tuple(gathered)), end

    def _packet(self, at: int) -> tuple[Incoming, int]:
        """Return the packet at *at*, and the offset of its end."""
        first = self.buffer[at]
        kind = first >> 5
        if not first & 1:
            if kind >= len(_GENERAL):
                raise RemoteProtocolError("general-unknown", f"general packet type {kind}")
            self._require(8)
            return _GENERAL[kind], at + 8
        form = first >> 2 & 7
        multicast = bool(first & 2)
        if form == Format.MESSAGE:
            return self._message(at, *self._channels(at, self.sender_size, multicast), multicast, kind)
        if form not in _TARGETED:
            raise RemoteProtocolError("format-unknown", f"channel packet format {form}")
        make, kinds = _TARGETED[form]
        if kind >= len(kinds):
            cause = f"{make.__name__.lower()}-unknown"
            raise RemoteProtocolError(cause, f"packet type {kind} of channel packet format {form}")
        ids, place = self._channels(at, self.receiver_size if form & 1 else self.sender_size, multicast)
        if form & 2:
            place = (place + 3 & ~3) + NUMBER.size
        size = place + 7 & ~7
        if len(self.buffer) - at < size:
            raise _MoreNeeded(size)
        number = NUMBER.unpack_from(self.buffer, at + place - NUMBER.size)[0] if form & 2 else None
        return make(kind=kinds[kind], channels=self._ids(at, *ids), number=number, multicast=multicast), at + size

    def _channels(self, at: int, id_size: int, multicast: bool) -> tuple[tuple[int, int, int], int]:
        """Locate the channel ids of the packet at *at* (2.3).

        :return: offset, count and size of the ids, and the offset of their end, all relative to the packet's first byte
        """
        if not multicast:
            return (2, 1, id_size), 2 + id_size
        self._require(8)
        count = NUMBER.unpack_from(self.buffer, at + 4)[0]
        if count > self.limits.targets:
            raise RemoteProtocolError(
                "too-many-targets", f"{count} channel ids in one packet; the limit is {self.limits.targets}"
            )
        return (8, count, id_size), 8 + count * id_size

    def _ids(self, at: int, place: int, count: int, id_size: int) -> tuple[int, ...]:
        if not id_size:
            return (0,) * count
        channels: tuple[int, ...] = Struct(f"<{count}{_ID_CODES[id_size]}").unpack_from(self.buffer, at + place)
        return channels

    def _message(
        self, at: int, ids: tuple[int, int, int], place: int, multicast: bool, flags: int
    ) -> tuple[Message, int]:
        """Return the message at *at* (2.3.3), whose fields after the channel ids begin at *place*, and its end."""
        place += place & 1
        if flags & LONG:
            self._require(place + NUMBER.size)
            count = NUMBER.unpack_from(self.buffer, at + place)[0]
            place += NUMBER.size
        else:
            count = self.buffer[at + 1]
        if count > self.limits.parts:
            raise RemoteProtocolError(
                "too-many-parts", f"{count} parts in one message; the limit is {self.limits.parts}"
            )
        width, code = (8, "Q") if flags & LARGE else (2, "H")
        if flags & LARGE:
            place = aligned(place)
        self._require(place + width * count)
        sizes = Struct(f"<{count}{code}").unpack_from(self.buffer, at + place)
        place = aligned(place + width * count)
        whole = sum(map(aligned, sizes))
        if whole + (0 if count == 1 else 4 + 4 * count) > self.limits.message_size:
            detail = f"{whole} bytes in {count} parts; the limit is {self.limits.message_size}"
            raise RemoteProtocolError("message-too-large", detail)
        self._require(place + whole)
        parts = []
        begin = at + place
        with memoryview(self.buffer) as view:
            for size in sizes:
                parts.append(bytes(view[begin : begin + size]))
                begin += aligned(size)
        return Message(channels=self._ids(at, *ids), parts=tuple(parts), multicast=multicast), begin
