"""The fields of Relink's handshake (specification, "1. Handshake"), which the peers send in turn.

connector   version u8 | pad 7
listener    version u8 | pad 7
connector   name length u8 | name | connector's id size u8 | listener's id size u8 | flags u8 | pad to 8 |
            old epoch u64 | old link id u64
listener    epoch u64 | link id u64

in: a buffer -> number of bytes needed, or the fields      out: ``serialize()``, ``pack_version()``, ``pack_reply()``
"""

from __future__ import annotations

from struct import Struct

import attrs

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.relink.frames import ID_SIZES, aligned

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
    """The fields of the handshake that the connector selects, and that a resumed link cannot change."""

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
        """Return the bytes that follow the version."""
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
    """Return the first transmission of either peer."""
    return _VERSION.pack(version)


def pack_reply(epoch: int, link_id: int) -> bytes:
    """Return the listener's second transmission; a link id of 0 means that the required link is not known."""
    return _REPLY.pack(epoch, link_id)


def version_size(buffer: bytes) -> int:
    """Return the size of the first transmission of either peer."""
    return _VERSION.size


def reply_size(buffer: bytes) -> int:
    """Return the size of the listener's second transmission."""
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
