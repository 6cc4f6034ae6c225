"""Parse and serialize the datagrams of the backbone: one frame each, network byte order, the type in the first byte.

    DELIVER        [ 0x01 | LENGTH (2) | SEQUENCE (6) | DATA (0..65498) ]      server -> client, client -> client
    PUSH           [ 0x02 | LENGTH (2) | UNUSED (6)   | DATA (0..65498) ]      client -> server
    REQUEST        [ 0x04 | ADDR (4) | PORT (2) | FROM_SEQ (6) | TO_SEQ (6) ]  client -> server
    FORWARD        [ 0x08 | ADDR (4) | PORT (2) | FROM_SEQ (6) | TO_SEQ (6) ]  server -> client
    KEEPALIVE      [ 0x10 | ADDR (4) | PORT (2) | FLAGS (6) | TOKEN (16) ]     client -> server
    KEEPALIVE-ACK  [ 0x20 | TOKEN (16) ]                                       server -> client

Specification: fyrehose-backbone.txt, sections 0x1 to 0x20.  LENGTH counts only DATA; TO_SEQ is part of the range.  DATA
has at most 65498 bytes, because an IPv4 UDP datagram cannot hold the specified 65526.  In the hot path PUSH and DELIVER
do not become frames: the kernels convert them to columns.

in: decode(datagram) -> frame or RemoteProtocolError      out: frame.serialize() -> datagram
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from ipaddress import IPv4Address
from struct import Struct
from typing import ClassVar, Self

import attrs

from fyrehose.errors import RemoteProtocolError
from fyrehose.kernels.pure.backbone import HEADER as HEADER
from fyrehose.kernels.pure.backbone import MAX_DATA as MAX_DATA
from fyrehose.records import LAST_SEQ, Buffer

#: An IPv4 address in dotted notation, and a port.
Address = tuple[str, int]

#: Maximum size of DATA that fits into an Ethernet frame with the IP, UDP and backbone headers, in bytes; IP fragments
#: larger datagrams.
MAX_UNFRAGMENTED = 1_463
#: Size of a TOKEN, in bytes.
TOKEN = 16
#: Size of a KEEPALIVE, in bytes.
KEEPALIVE = 29
#: Maximum number of records in the answer to one REQUEST or FORWARD.
MAX_SEQUENCES = 10_000


class FrameType(IntEnum):
    """The first byte of a datagram."""

    DELIVER = 0x01
    PUSH = 0x02
    REQUEST = 0x04
    FORWARD = 0x08
    KEEPALIVE = 0x10
    KEEPALIVE_ACK = 0x20


class Flags(IntFlag):
    """The FLAGS of a KEEPALIVE, bit 0 in the last byte; unknown bits are ignored."""

    NONE = 0
    NOSUBSCRIBE = 0x1  #: the client is not a subscriber: it receives no DELIVERs of new records
    NOJOURNAL = 0x2  #: the client receives no FORWARDs


_DATA = Struct(">BH6s")  # type, LENGTH, SEQUENCE or UNUSED; DATA follows
_RANGE = Struct(">B4sH6s6s")  # type, ADDR, PORT, FROM_SEQ, TO_SEQ
_KEEPALIVE = Struct(">B4sH6s16s")  # type, ADDR, PORT, FLAGS, TOKEN
_ACK = Struct(">B16s")  # type, TOKEN


def _six(value: int) -> bytes:
    return value.to_bytes(6, "big")


def _number(six: bytes) -> int:
    return int.from_bytes(six, "big")


def _packed(host: str) -> bytes:
    return bytes(map(int, host.split(".")))


def _dotted(addr: bytes) -> str:
    return "{}.{}.{}.{}".format(*addr)


def _fits(_: object, attribute: attrs.Attribute[bytes], data: bytes) -> None:
    if len(data) > MAX_DATA:
        raise ValueError(f"{len(data)} bytes of {attribute.name} do not fit into a datagram; the maximum is {MAX_DATA}")


def _is_sequence(_: object, attribute: attrs.Attribute[int], seq: int) -> None:
    if not 0 <= seq <= LAST_SEQ:
        raise ValueError(f"{attribute.name} {seq} is not between 0 and 2^48-1")


def _is_token(_: object, __: attrs.Attribute[bytes], token: bytes) -> None:
    if len(token) != TOKEN:
        raise ValueError(f"a token has {TOKEN} bytes, not {len(token)}")


@attrs.frozen(kw_only=True, slots=True)
class Deliver:
    """DELIVER MESSAGE: a published message with its sequence."""

    seq: int = attrs.field(validator=_is_sequence)
    data: bytes = attrs.field(validator=_fits)

    def serialize(self) -> bytes:
        return _DATA.pack(FrameType.DELIVER, len(self.data), _six(self.seq)) + self.data

    @classmethod
    def parse(cls, datagram: Buffer) -> Self:
        return cls(seq=first_seq(datagram, 0), data=bytes(datagram[HEADER:]))


@attrs.frozen(kw_only=True, slots=True)
class Push:
    """PUSH MESSAGE: a message to publish; it is published when its DELIVER arrives."""

    data: bytes = attrs.field(validator=_fits)

    def serialize(self) -> bytes:
        return _DATA.pack(FrameType.PUSH, len(self.data), bytes(6)) + self.data

    @classmethod
    def parse(cls, datagram: Buffer) -> Self:
        return cls(data=bytes(datagram[HEADER:]))


@attrs.frozen(kw_only=True, slots=True)
class _Range:
    """A request for the sequences ``first`` to ``last``, both included; the answers go to ``address``."""

    type: ClassVar[FrameType]
    address: Address
    first: int = attrs.field(validator=_is_sequence)
    last: int = attrs.field(validator=_is_sequence)

    def serialize(self) -> bytes:
        host, port = self.address
        return _RANGE.pack(self.type, _packed(host), port, _six(self.first), _six(self.last))

    @classmethod
    def parse(cls, datagram: Buffer) -> Self:
        _, addr, port, first, last = _RANGE.unpack(datagram)
        return cls(address=(_dotted(addr), port), first=_number(first), last=_number(last))


class Request(_Range):
    """REQUEST MESSAGE: a client requests missing messages from the backbone."""

    type = FrameType.REQUEST


class Forward(_Range):
    """FORWARD MESSAGE: the backbone asks a client to send some of its stored messages to another client."""

    type = FrameType.FORWARD


@attrs.frozen(kw_only=True, slots=True)
class KeepAlive:
    """KEEPALIVE: a client at ``address`` is alive; the host 0.0.0.0 stands for the source address of the datagram."""

    address: Address
    flags: Flags
    token: bytes = attrs.field(validator=_is_token)

    def serialize(self) -> bytes:
        host, port = self.address
        return _KEEPALIVE.pack(FrameType.KEEPALIVE, _packed(host), port, _six(self.flags), self.token)

    @classmethod
    def parse(cls, datagram: Buffer) -> Self:
        _, addr, port, flags, token = _KEEPALIVE.unpack(datagram)
        return cls(address=(_dotted(addr), port), flags=Flags(_number(flags) & 0x3), token=token)


@attrs.frozen(kw_only=True, slots=True)
class KeepAliveAck:
    """KEEPALIVE-ACK: the server has received the KEEPALIVE with this token."""

    token: bytes

    def serialize(self) -> bytes:
        return _ACK.pack(FrameType.KEEPALIVE_ACK, self.token)

    @classmethod
    def parse(cls, datagram: Buffer) -> Self:
        return cls(token=bytes(datagram[1:]))


Frame = Deliver | Push | Request | Forward | KeepAlive | KeepAliveAck

#: first byte -> (class, size of the datagram; 0: HEADER + LENGTH)
FRAMES: dict[int, tuple[type[Frame], int]] = {
    FrameType.DELIVER: (Deliver, 0),
    FrameType.PUSH: (Push, 0),
    FrameType.REQUEST: (Request, _RANGE.size),
    FrameType.FORWARD: (Forward, _RANGE.size),
    FrameType.KEEPALIVE: (KeepAlive, _KEEPALIVE.size),
    FrameType.KEEPALIVE_ACK: (KeepAliveAck, _ACK.size),
}


def decode(datagram: Buffer) -> Frame:
    """Decode one datagram.

    :raises RemoteProtocolError: the datagram is not a frame; the cause is ``empty``, ``unknown-type``, ``wrong-size``
        or ``backward-range``
    """
    if not datagram:
        raise RemoteProtocolError("empty")
    kind, size = FRAMES.get(datagram[0], (None, 0))
    if kind is None:
        raise RemoteProtocolError("unknown-type", f"{datagram[0]:#04x}")
    if not size:
        size = HEADER + (datagram[1] << 8 | datagram[2]) if len(datagram) >= HEADER else HEADER
    if len(datagram) != size or size > HEADER + MAX_DATA:
        raise RemoteProtocolError("wrong-size", f"{kind.__name__} has {len(datagram)} bytes, expected {size}")
    frame = kind.parse(datagram)
    if isinstance(frame, _Range) and frame.first > frame.last:
        raise RemoteProtocolError("backward-range", f"{frame.first} to {frame.last}")
    return frame


def can_receive(client: Address) -> bool:
    """Return whether a datagram can be sent to *client*: one host, not multicast or reserved, and a port."""
    host, port = client
    address = IPv4Address(host)
    return bool(port) and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def first_seq(delivers: Buffer, at: int) -> int:
    """Return the SEQUENCE of the DELIVER that begins at byte *at*."""
    return _number(_DATA.unpack_from(delivers, at)[2])
