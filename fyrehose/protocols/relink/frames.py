"""Relink's packets (specification, "2. Packets"), and the fields of its handshake ("1. Handshake").

A packet begins with a header of two bytes, and is padded to a multiple of eight bytes.  All integers are little-endian;
alignment counts from the packet's first byte; unused bits are sent as zero and ignored.

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

The lowest bit of the format selects the channel id space: 0 the sender's, 1 the receiver's.

Messages of one part are packed and unpacked many at a time, as columns: see :class:`MessageRun` and :class:`Gathered`.

    out: ``packet.serialize(id_size)`` -> bytes      in: :mod:`fyrehose.protocols.relink.decoder`

In the handshake the peers send these fields in turn:

    connector   version u8 | pad 7
    listener    version u8 | pad 7
    connector   name length u8 | name | connector's id size u8 | listener's id size u8 | flags u8 | pad to 8 |
                old epoch u64 | old link id u64
    listener    epoch u64 | link id u64
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import ClassVar

import attrs

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.kernels import relink as kernel
from fyrehose.records import Buffer, Column

PROTOCOL = "relink"

#: The possible sizes of a channel id, in bytes; the handshake agrees on one for each direction.
ID_SIZES = frozenset({0, 1, 2, 4, 8})
#: The largest payload part that fits a small payload size vector, in bytes (2.3.3.2).
MAX_SMALL = (1 << 16) - 1
#: The largest number of parts that fits the short message length (2.3.3.1).
MAX_SHORT = (1 << 8) - 1
#: Sequence numbers have 32 bits on the wire and wrap (3.1).
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
#: A general packet: one byte, and seven bytes of padding (2.2).
_GENERAL = Struct("<B7x")


class General(IntEnum):
    """General packet types (2.2)."""

    NOP = 0
    PING = 1
    PONG = 2
    RESUME = 3
    SHUTDOWN = 4


class Format(IntEnum):
    """Channel packet formats (2.1)."""

    OPERATION = 0
    ACKNOWLEDGEMENT = 1
    SEQUENCE_OPERATION = 2
    SEQUENCE_ACKNOWLEDGEMENT = 3
    MESSAGE = 4


class Op(IntEnum):
    """Operations that the sender of a channel's messages sends for the channel (specification, 2.3.1).

    COMMIT and ROLLBACK may have a sequence number (2.3.2).
    """

    COMMIT = 0
    ROLLBACK = 1
    CLOSE = 2


class Ack(IntEnum):
    """Acknowledgements that the receiver of a channel's messages sends for the channel (specification, 2.3.1).

    All but CLOSED may have a sequence number (2.3.2).
    """

    RECEIVED = 0
    CONSUMED = 1
    COMMITTED = 2
    UNCOMMITTED = 3
    CLOSED = 4


#: Message flags (2.3.3).
LONG, LARGE = 1, 2


def nearest(number: int, cursor: int) -> int:
    """Return the integer nearest to *cursor* whose low 32 bits are *number*; the result may be negative.

    Sequence numbers wrap on the wire (3.1); in memory they are integers that never wrap.
    """
    half = NUMBER_MASK + 1 >> 1
    return cursor + (number - cursor + half & NUMBER_MASK) - half


def aligned(size: int) -> int:
    """Return *size* rounded up to a multiple of eight."""
    return size + 7 & ~7


def encode_ids(channels: tuple[int, ...], id_size: int) -> bytes:
    """Return a channel id vector.

    :raises LocalProtocolError: an id does not fit into *id_size* bytes
    """
    try:
        return b"".join(channel.to_bytes(id_size, "little") for channel in channels)
    except OverflowError:
        raise LocalProtocolError(f"channel ids {channels[:8]} do not all fit into {id_size} bytes") from None


@attrs.frozen(kw_only=True, slots=True)
class GeneralPacket:
    """A packet that concerns no channel (2.2)."""

    kind: General

    def serialize(self, id_size: int = 0) -> bytes:
        """Return the packet's eight bytes; *id_size* has no effect."""
        return _GENERAL.pack(self.kind << 5)


@attrs.frozen(kw_only=True, slots=True)
class _ChannelPacket:
    channels: tuple[int, ...]
    #: whether to use the multicast layout (2.3), which also allows one channel or none
    multicast: bool = False

    def _head(self, form: int, data: int, short: int, id_size: int) -> bytes:
        ids = encode_ids(self.channels, id_size)
        if self.multicast:
            first = 0b11 | form << 2 | data << 5
            return HEADER.pack(first, short) + MULTICAST.pack(len(self.channels)) + ids
        if len(self.channels) != 1:
            raise LocalProtocolError(f"a unicast packet has 1 channel, not {len(self.channels)}; use multicast")
        return HEADER.pack(0b01 | form << 2 | data << 5, short) + ids


@attrs.frozen(kw_only=True, slots=True)
class _Targeted(_ChannelPacket):
    #: the format without a sequence number; the format with a sequence number is this plus two
    form: ClassVar[Format]
    kind: Op | Ack
    #: sequence number of the last message that the packet is about; None: the message after the previous packet's
    number: int | None = None

    def serialize(self, id_size: int) -> bytes:
        """Return the packet's bytes.

        :param id_size: size of the ids of the targeted channels
        :raises LocalProtocolError: a channel id does not fit, or close or closed has a sequence number
        """
        form, number = self.form if self.number is None else self.form + 2, self.number
        if number is not None and (self.kind is Op.CLOSE or self.kind is Ack.CLOSED):
            raise LocalProtocolError(f"{self.kind.name.lower()} has no sequence number")
        if self.multicast or len(self.channels) != 1 or self.channels[0] >> 8 * id_size:
            packet = self._head(form, self.kind, 0, id_size)
            if number is not None:
                packet += bytes(-len(packet) & 3) + NUMBER.pack(number & NUMBER_MASK)
            return packet + bytes(-len(packet) & 7)
        # Nearly all packets are unicast.  They are built faster as one little-endian integer.
        whole = 0b01 | form << 2 | self.kind << 5 | self.channels[0] << 16
        size = 2 + id_size
        if number is not None:
            size = size + 3 & ~3
            whole |= (number & NUMBER_MASK) << 8 * size
            size += NUMBER.size
        return whole.to_bytes(size + 7 & ~7, "little")


@attrs.frozen(kw_only=True, slots=True)
class Operation(_Targeted):
    """An operation on the sender's channels (2.3.1, 2.3.2)."""

    form = Format.OPERATION
    kind: Op


@attrs.frozen(kw_only=True, slots=True)
class Acknowledgement(_Targeted):
    """An acknowledgement for the other peer's channels (2.3.1, 2.3.2)."""

    form = Format.ACKNOWLEDGEMENT
    kind: Ack


@attrs.frozen(kw_only=True, slots=True)
class Message(_ChannelPacket):
    """A message of any number of parts, even none (2.3.3); it has a separate sequence number on each channel."""

    parts: tuple[bytes, ...]

    def serialize(self, id_size: int, *, long: bool = False, large: bool = False) -> bytes:
        """Return the packet's bytes in the shortest form; for the parameters see :meth:`around`."""
        return b"".join(self.around(self.parts, id_size, long=long, large=large))

    def around(self, parts: Sequence[Buffer], id_size: int, *, long: bool = False, large: bool = False) -> list[Buffer]:
        """Return the packet with these *parts* in the shortest form: a head, the parts themselves, and padding.

        :param long: whether to use the long message length in any case
        :param large: whether to use the large payload size vector in any case
        """
        sizes = [len(part) for part in parts]
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
        pieces: list[Buffer] = [packet, bytes(-len(packet) & 7)]
        for part in parts:
            pieces += (part, bytes(-len(part) & 7))
        return pieces


@attrs.frozen(kw_only=True, slots=True)
class MessageRun:
    """Consecutive messages of one part each on one channel, which are serialized as one packet each."""

    channel: int
    messages: Column

    def serialize(self, id_size: int) -> bytes:
        """Return the bytes of all packets, each in its shortest form."""
        return kernel.frames(id_size, self.channel, self.messages.lengths, self.messages.payload)


@attrs.frozen(kw_only=True, slots=True)
class Gathered:
    """Received messages of one part each that followed each other, grouped by channel."""

    runs: tuple[tuple[int, Column], ...]


#: The packets that are sent, and the packets that the decoder returns.
Packet = GeneralPacket | Operation | Acknowledgement | Message | MessageRun
Incoming = GeneralPacket | Operation | Acknowledgement | Message | Gathered

NOP, PING, PONG, RESUME, SHUTDOWN = (GeneralPacket(kind=kind) for kind in General)


#: The highest protocol version that we support.
VERSION = 0
#: Link ids are within [1, 2^63[; zero means no link.
MAX_LINK_ID = (1 << 63) - 1

_VERSION = Struct(
    "<"
    "B"  # version
    "7x"  # padding
)
_REPLY = Struct(
    "<"
    "Q"  # epoch, microseconds since 1970 UTC
    "Q"  # link id
)
#: Size of the fixed fields around the name: its length, the two id sizes and the flags.
_FIXED = 1 + 3
#: Handshake flags.
CONNECTOR_TRANSACTIONS, LISTENER_TRANSACTIONS, REQUIRE_LINK = 1, 2, 4


def _link_id(instance: object, attribute: object, value: int) -> None:
    if not 0 <= value <= MAX_LINK_ID:
        raise LocalProtocolError(f"link id {value} is not within [0, 2^63[")


def _id_size(instance: object, attribute: object, value: int) -> None:
    if value not in ID_SIZES:
        raise LocalProtocolError(f"invalid channel id size {value}: expected 0, 1, 2, 4 or 8 bytes")


def _endpoint(instance: object, attribute: object, value: str) -> None:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        size = 256
    if size > 255:
        raise LocalProtocolError(f"invalid endpoint name {value[:80]!r}: expected at most 255 bytes of UTF-8")


@attrs.frozen(kw_only=True, slots=True)
class Terms:
    """The parameters of a link: the connector selects them in the handshake, and a resumed link cannot change them."""

    endpoint: str = attrs.field(validator=_endpoint)
    connector_size: int = attrs.field(default=0, validator=_id_size)
    listener_size: int = attrs.field(default=0, validator=_id_size)
    connector_transactions: bool = False
    listener_transactions: bool = False


@attrs.frozen(kw_only=True, slots=True)
class Hello:
    """The connector's second transmission.

    :ivar require: handshake flag 2: refuse rather than make a new link
    :ivar epoch: the old epoch, or 0
    :ivar link_id: the old link id, or 0
    """

    terms: Terms
    require: bool = False
    epoch: int = 0
    link_id: int = attrs.field(default=0, validator=_link_id)

    def serialize(self) -> bytes:
        """Return the connector's second transmission, which follows its version."""
        terms = self.terms
        name = terms.endpoint.encode()
        flags = (
            CONNECTOR_TRANSACTIONS * terms.connector_transactions
            | LISTENER_TRANSACTIONS * terms.listener_transactions
            | REQUIRE_LINK * self.require
        )
        head = bytes([len(name)]) + name + bytes([terms.connector_size, terms.listener_size, flags])
        return head + bytes(-len(head) & 7) + _REPLY.pack(self.epoch, self.link_id)


def pack_version(version: int) -> bytes:
    """Return the first transmission of a peer: its protocol version."""
    return _VERSION.pack(version)


def pack_reply(epoch: int, link_id: int) -> bytes:
    """Return the listener's second transmission; a link id of 0 means that the required link is not known."""
    return _REPLY.pack(epoch, link_id)


def version_size(buffer: bytes) -> int:
    """Return the size of a peer's first transmission in bytes, whatever has arrived."""
    return _VERSION.size


def reply_size(buffer: bytes) -> int:
    """Return the size of the listener's second transmission in bytes, whatever has arrived."""
    return _REPLY.size


def unpack_version(buffer: bytes | bytearray) -> int:
    """Return the version from the first eight bytes."""
    return buffer[0]


def unpack_reply(buffer: bytes | bytearray) -> tuple[int, int]:
    """Return epoch and link id from the first sixteen bytes.

    :raises RemoteProtocolError: the link id is not below 2^63
    """
    epoch, link_id = _REPLY.unpack_from(buffer)
    if link_id > MAX_LINK_ID:
        raise RemoteProtocolError("bad-link-id", "the listener's link id is not below 2^63")
    return epoch, link_id


def hello_size(buffer: bytes | bytearray) -> int:
    """Return the size of the connector's hello at the start of *buffer*, as far as it is known; check its fields.

    :raises RemoteProtocolError: a channel id size is invalid, or the name is not UTF-8
    """
    if not buffer:
        return 1
    end = 1 + buffer[0]
    # The fields are checked in order, so that the error does not depend on how the bytes were cut.
    if len(buffer) >= end:
        _text(buffer[1:end])
    for place in (end, end + 1):
        if len(buffer) > place and buffer[place] not in ID_SIZES:
            raise RemoteProtocolError("bad-id-size", f"channel id size {buffer[place]} is not 0, 1, 2, 4 or 8")
    return aligned(buffer[0] + _FIXED) + _REPLY.size


def unpack_hello(buffer: bytes | bytearray) -> Hello:
    """Return the hello at the start of *buffer*, which must be complete.

    :raises RemoteProtocolError: the link id is not below 2^63, or as for :func:`hello_size`
    """
    size = hello_size(buffer)
    end = 1 + buffer[0]
    flags = buffer[end + 2]
    epoch, link_id = _REPLY.unpack_from(buffer, size - _REPLY.size)
    if link_id > MAX_LINK_ID:
        raise RemoteProtocolError("bad-link-id", "the connector's link id is not below 2^63")
    terms = Terms(
        endpoint=_text(buffer[1:end]),
        connector_size=buffer[end],
        listener_size=buffer[end + 1],
        connector_transactions=bool(flags & CONNECTOR_TRANSACTIONS),
        listener_transactions=bool(flags & LISTENER_TRANSACTIONS),
    )
    return Hello(terms=terms, require=bool(flags & REQUIRE_LINK), epoch=epoch, link_id=link_id)


def _text(name: bytes | bytearray) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("endpoint-not-utf-8") from None
