"""Relink's packets (relink.md, "2. Packets").

A packet begins with two bytes and ends at a multiple of eight.  All integers are little-endian; alignment counts from
the packet's first byte; what is unused is sent as zero and ignored.

     bit 0   1           2..4     5..7          byte 1
    +-------+-----------+--------+-------------+---------------+
    | 0     | -         | -      | General     | -             |  pad to 8
    +-------+-----------+--------+-------------+---------------+
    | 1     | multicast | Format | type, flags | parts (short) |  unicast:   id
    +-------+-----------+--------+-------------+---------------+  multicast: pad 2, u32 count, id x count
                                                                  sequence formats: align 4, u32 number
                                                                  messages: align 2, [u32 parts], then
                                                                      u16 size x parts, or align 8, u64 size x parts,
                                                                      align 8, each part padded to 8

The lowest bit of the format says whose channels the ids are: 0 the sender's, 1 the receiver's.

Messages of one part each are packed and unpacked many at a time, as columns: :class:`MessageRun`, :class:`Gathered`.

    out: ``packet.serialize(id_size)`` -> bytes      in: :mod:`fyrehose.protocols.relink.decoder`
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

import attrs

from fyrehose.errors import LocalProtocolError
from fyrehose.kernels import relink as kernel
from fyrehose.protocols.relink.messages import Column

#: What a channel id may take, in bytes (the handshake says which, for each direction).
ID_SIZES = frozenset({0, 1, 2, 4, 8})
#: The largest payload that a small size vector can say, in bytes.
MAX_SMALL = (1 << 16) - 1
#: The most parts that the short length can say.
MAX_SHORT = (1 << 8) - 1
#: Numbers on the wire have 32 bits and wrap.
NUMBER_MASK = (1 << 32) - 1

HEADER = Struct(
    "<"
    "B"  # bit 0 channel, bit 1 multicast, bits 2-4 format, bits 5-7 type or flags
    "B"  # short message length
)
MULTICAST = Struct(
    "<"
    "2x"  # padding behind the header
    "I"  # channel id count
)
NUMBER = Struct(
    "<I"  # sequence number, or long message length
)
#: The first of the eight bytes that a general packet is; the other seven are padding.
_GENERAL = Struct("<B7x")


class General(IntEnum):
    """Packets that are about no channel (2.2)."""

    NOP = 0
    PING = 1
    PONG = 2
    RESUME = 3
    SHUTDOWN = 4


class Format(IntEnum):
    """Packets that are about channels (2.1)."""

    OPERATION = 0
    ACKNOWLEDGEMENT = 1
    SEQUENCE_OPERATION = 2
    SEQUENCE_ACKNOWLEDGEMENT = 3
    MESSAGE = 4


class Op(IntEnum):
    """What the sender of messages asks for (2.3.1); COMMIT and ROLLBACK may carry a number (2.3.2)."""

    COMMIT = 0
    ROLLBACK = 1
    CLOSE = 2


class Ack(IntEnum):
    """What the receiver of messages says (2.3.1); all but CLOSED may carry a number (2.3.2)."""

    RECEIVED = 0
    CONSUMED = 1
    COMMITTED = 2
    UNCOMMITTED = 3
    CLOSED = 4


#: Bits of a message's flags (2.3.3).
LONG, LARGE = 1, 2

#: How many types each format has; the rest must not be sent.
TYPES = {
    Format.OPERATION: len(Op),
    Format.ACKNOWLEDGEMENT: len(Ack),
    Format.SEQUENCE_OPERATION: 2,
    Format.SEQUENCE_ACKNOWLEDGEMENT: 4,
    Format.MESSAGE: 8,  # flags, the third unused
}


def aligned(size: int) -> int:
    """``size`` and the padding up to the next multiple of eight."""
    return size + 7 & ~7


def encode_ids(channels: tuple[int, ...], id_size: int) -> bytes:
    """A channel id vector.

    :raises LocalProtocolError: an id does not fit
    """
    try:
        return b"".join(channel.to_bytes(id_size, "little") for channel in channels)
    except OverflowError:
        raise LocalProtocolError(f"a channel id of {id_size} bytes cannot be one of {channels[:8]}") from None


@attrs.frozen(kw_only=True, slots=True)
class GeneralPacket:
    """A packet that is about no channel."""

    kind: General

    def serialize(self, id_size: int = 0) -> bytes:
        """The eight bytes; ``id_size`` does not matter."""
        return _GENERAL.pack(self.kind << 5)


@attrs.frozen(kw_only=True, slots=True)
class _ChannelPacket:
    channels: tuple[int, ...]
    #: whether the ids are in the multicast layout, which may also hold one or none
    multicast: bool = False

    def _head(self, form: Format, data: int, short: int, id_size: int) -> bytes:
        ids = encode_ids(self.channels, id_size)
        if self.multicast:
            first = 0b11 | form << 2 | data << 5
            return HEADER.pack(first, short) + MULTICAST.pack(len(self.channels)) + ids
        if len(self.channels) != 1:
            raise LocalProtocolError(f"a packet for {len(self.channels)} channels has to be a multicast")
        return HEADER.pack(0b01 | form << 2 | data << 5, short) + ids

    def _without_payload(self, form: Format, kind: int, number: int | None, id_size: int) -> bytes:
        """A whole packet that is only its head, and a number if there is one."""
        if self.multicast or len(self.channels) != 1 or self.channels[0] >> 8 * id_size:
            packet = self._head(form, kind, 0, id_size)
            if number is not None:
                packet += bytes(-len(packet) & 3) + NUMBER.pack(number & NUMBER_MASK)
            return packet + bytes(-len(packet) & 7)
        # The same for one channel, as nearly all of them are: little-endian as it is, it is one integer.
        whole = 0b01 | form << 2 | kind << 5 | self.channels[0] << 16
        size = 2 + id_size
        if number is not None:
            size = size + 3 & ~3
            whole |= (number & NUMBER_MASK) << 8 * size
            size += NUMBER.size
        return whole.to_bytes(aligned(size), "little")


@attrs.frozen(kw_only=True, slots=True)
class Operation(_ChannelPacket):
    """The sender of messages about its channels; ``number`` is that of the last message meant, None the next one."""

    kind: Op
    number: int | None = None

    def serialize(self, id_size: int) -> bytes:
        """The whole packet; ``id_size`` is that of the sender's channels."""
        if self.number is not None and self.kind is Op.CLOSE:
            raise LocalProtocolError("close carries no number")
        form = Format.OPERATION if self.number is None else Format.SEQUENCE_OPERATION
        return self._without_payload(form, self.kind, self.number, id_size)


@attrs.frozen(kw_only=True, slots=True)
class Acknowledgement(_ChannelPacket):
    """The receiver of messages about the other's channels; ``number`` as in :class:`Operation`."""

    kind: Ack
    number: int | None = None

    def serialize(self, id_size: int) -> bytes:
        """The whole packet; ``id_size`` is that of the receiver's channels."""
        if self.number is not None and self.kind is Ack.CLOSED:
            raise LocalProtocolError("closed carries no number")
        form = Format.ACKNOWLEDGEMENT if self.number is None else Format.SEQUENCE_ACKNOWLEDGEMENT
        return self._without_payload(form, self.kind, self.number, id_size)


@attrs.frozen(kw_only=True, slots=True)
class Message(_ChannelPacket):
    """A message of any number of parts, none and empty ones included; each channel gives it a number of its own."""

    parts: tuple[bytes, ...]

    def serialize(self, id_size: int, *, long: bool = False, large: bool = False) -> bytes:
        """The whole packet, as short as it can be; ``long`` and ``large`` ask for the wider fields all the same."""
        sizes = [len(part) for part in self.parts]
        long = long or len(sizes) > MAX_SHORT
        large = large or max(sizes, default=0) > MAX_SMALL
        flags = (LONG if long else 0) | (LARGE if large else 0)
        packet = self._head(Format.MESSAGE, flags, 0 if long else len(sizes), id_size)
        packet += bytes(len(packet) & 1)
        if long:
            packet += NUMBER.pack(len(sizes))
        if large:
            packet += bytes(-len(packet) & 7) + Struct(f"<{len(sizes)}Q").pack(*sizes)
        else:
            packet += Struct(f"<{len(sizes)}H").pack(*sizes)
        pieces = [packet, bytes(-len(packet) & 7)]
        for part in self.parts:
            pieces += (part, bytes(-len(part) & 7))
        return b"".join(pieces)


@attrs.frozen(kw_only=True, slots=True)
class MessageRun:
    """Messages of one part each on one channel: as many packets, end to end."""

    channel: int
    messages: Column

    def serialize(self, id_size: int) -> bytes:
        """The packets, each as short as it can be."""
        return kernel.frames(id_size, self.channel, self.messages.lengths, self.messages.payload)


@attrs.frozen(kw_only=True, slots=True)
class Gathered:
    """What came in as messages of one part each that followed each other: those of each channel."""

    runs: tuple[tuple[int, Column], ...]


#: What is sent, and what comes in.
Packet = GeneralPacket | Operation | Acknowledgement | Message | MessageRun
Incoming = GeneralPacket | Operation | Acknowledgement | Message | Gathered

NOP, PING, PONG, RESUME, SHUTDOWN = (GeneralPacket(kind=kind) for kind in General)
