"""Figg's frames (figg.md, "Protocol"): an eight-byte header, then a payload of the size in the header.

     0               2               4                               8
    +---------------+---------------+-------------------------------+------------------ - -
    | type          | version = 1   | size of the payload           | payload
    +---------------+---------------+-------------------------------+------------------ - -

All integers are in network byte order.  A field of variable size ([]byte in figg.md) is a u32 size and its bytes.
The fields fill the payload exactly.  Topics are 1 to 255 bytes of UTF-8, as the names of streams.

    in: the bytes of a payload -> ``Frame.parse``     out: ``Frame.serialize`` -> the bytes of a whole frame
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum
from struct import Struct
from typing import ClassVar, Self

import attrs

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.kernels import figg as kernel
from fyrehose.records import MAX_NAME, MAX_PAYLOAD, Column, Run

#: The name of the protocol, and the source of the records that are published with it.
PROTOCOL = "figg"
VERSION = 1

#: Flag of ATTACH: the offset field is used.  figg.md says "bit 1"; like the reference programs we send the highest bit.
FROM_OFFSET = 0x8000
#: Bits that we accept as that flag: "bit 1" counted from either end.
FROM_OFFSET_ACCEPTED = 0x8001

HEADER = Struct(
    ">"
    "H"  # type
    "H"  # version
    "I"  # size of the payload
)
SIZE = Struct(
    ">I"  # size of the bytes that follow
)
FLAGS = Struct(
    ">H"  # flags of ATTACH
)
NUMBER = Struct(
    ">Q"  # seq_num, offset, or the stamp of PING and PONG
)
#: A header, and a payload that is one number, as in ACK.
NUMBER_FRAME = Struct(HEADER.format + NUMBER.format[1:])


class FrameType(IntEnum):
    """Message type, the first field of the header."""

    ATTACH = 1
    ATTACHED = 2
    DETACH = 3
    DETACHED = 4
    PUBLISH = 5
    ACK = 6
    DATA = 7
    #: figg.md leaves "Ping/Pong" as a TODO; these are the types of the reference programs.
    PING = 8
    PONG = 9


def _number(instance: object, attribute: object, value: int) -> None:
    if not 0 <= value < 1 << 64:
        raise LocalProtocolError(f"{value} does not fit into an unsigned 64-bit integer")


def _topic(instance: object, attribute: object, value: str) -> None:
    encode_topic(value)


def _offset(instance: object, attribute: object, value: int | None) -> None:
    if value is not None:
        _number(instance, attribute, value)


def encode_topic(topic: str) -> bytes:
    """Encode a topic as UTF-8.

    :raises LocalProtocolError: the result is not 1 to 255 bytes long, or *topic* contains lone surrogates
    """
    try:
        encoded = topic.encode()
    except UnicodeEncodeError:
        encoded = b""
    if not 1 <= len(encoded) <= MAX_NAME:
        raise LocalProtocolError(f"invalid topic {topic[:80]!r}: expected 1 to {MAX_NAME} bytes of UTF-8")
    return encoded


def decode_topic(encoded: bytes) -> str:
    """Decode a topic that a peer sent.

    :raises RemoteProtocolError: the bytes are not UTF-8
    """
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("bad-topic", f"{encoded[:80]!r} is not UTF-8") from None


class Fields:
    """A parser of the fields of a payload, one after the other.

    :raises RemoteProtocolError: from every method, if the next field is missing, truncated or too large
    """

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def integer(self, layout: Struct) -> int:
        """Parse one integer of the given layout."""
        end = self._at + layout.size
        if end > len(self._payload):
            raise RemoteProtocolError("bad-length", "the payload ends within a field")
        value: int = layout.unpack_from(self._payload, self._at)[0]
        self._at = end
        return value

    def data(self, most: int = MAX_PAYLOAD) -> bytes:
        """Parse a u32 size, at most *most*, and that many bytes."""
        size = self.integer(SIZE)
        left = len(self._payload) - self._at
        if size > left:
            raise RemoteProtocolError("bad-length", f"a field of {size} bytes, but the payload ends after {left}")
        if size > most:
            raise RemoteProtocolError("frame-too-large", f"a field of {size} bytes exceeds the limit of {most} bytes")
        self._at += size
        return self._payload[self._at - size : self._at]

    def topic(self) -> str:
        """Parse a topic: 1 to 255 bytes of UTF-8 after their size."""
        encoded = self.data()
        if not 1 <= len(encoded) <= MAX_NAME:
            raise RemoteProtocolError("bad-topic", f"a topic of {len(encoded)} bytes; expected 1 to {MAX_NAME}")
        return decode_topic(encoded)

    def end(self) -> None:
        """Check that the fields filled the payload."""
        if self._at != len(self._payload):
            raise RemoteProtocolError("bad-length", f"{len(self._payload) - self._at} bytes follow the last field")


@attrs.frozen(kw_only=True, slots=True)
class Frame(ABC):
    """Base class of the frames; sessions return received frames as events."""

    type: ClassVar[FrameType]
    #: The smallest and the largest size of the payload in bytes, without the data of PUBLISH and DATA.
    sizes: ClassVar[tuple[int, int]]

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Parse the payload of one frame of this type.

        :raises RemoteProtocolError: the payload is malformed
        """
        fields = Fields(payload)
        frame = cls._from(fields)
        fields.end()
        return frame

    def serialize(self) -> bytes:
        """Return the bytes of the frame, including its header."""
        payload = self._payload()
        return HEADER.pack(self.type, VERSION, len(payload)) + payload

    @classmethod
    @abstractmethod
    def _from(cls, fields: Fields) -> Self: ...

    @abstractmethod
    def _payload(self) -> bytes: ...


def _sized(data: bytes) -> bytes:
    return SIZE.pack(len(data)) + data


#: Smallest and largest topic field, including its u32 size, in bytes.
_TOPIC_MIN, _TOPIC_MAX = SIZE.size + 1, SIZE.size + MAX_NAME


@attrs.frozen(kw_only=True, slots=True)
class _TopicFrame(Frame):
    sizes = (_TOPIC_MIN, _TOPIC_MAX)

    topic: str = attrs.field(validator=_topic)

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        return cls(topic=fields.topic())

    def _payload(self) -> bytes:
        return _sized(self.topic.encode())


@attrs.frozen(kw_only=True, slots=True)
class _NumberFrame(Frame):
    sizes = (NUMBER.size, NUMBER.size)

    number: int = attrs.field(validator=_number)

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        return cls(number=fields.integer(NUMBER))

    def _payload(self) -> bytes:
        return NUMBER.pack(self.number)


@attrs.frozen(kw_only=True, slots=True)
class _MessageFrame(Frame):
    """The common layout of PUBLISH and DATA; kernels read and write many such frames at once, with equal bytes."""

    sizes = (_TOPIC_MIN + NUMBER.size + SIZE.size, _TOPIC_MAX + NUMBER.size + SIZE.size)

    topic: str = attrs.field(validator=_topic)
    number: int = attrs.field(validator=_number)
    data: bytes = attrs.field(validator=attrs.validators.max_len(MAX_PAYLOAD))

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        return cls(topic=fields.topic(), number=fields.integer(NUMBER), data=fields.data())

    def _payload(self) -> bytes:
        return _sized(self.topic.encode()) + NUMBER.pack(self.number) + _sized(self.data)


@attrs.frozen(kw_only=True, slots=True)
class Attach(Frame):
    """A request for the messages that follow ``offset``, or for new messages if it is None.  Client to server."""

    type = FrameType.ATTACH
    sizes = (FLAGS.size + _TOPIC_MIN + NUMBER.size, FLAGS.size + _TOPIC_MAX + NUMBER.size)

    topic: str = attrs.field(validator=_topic)
    offset: int | None = attrs.field(default=None, validator=_offset)

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        flags, topic, offset = fields.integer(FLAGS), fields.topic(), fields.integer(NUMBER)
        return cls(topic=topic, offset=offset if flags & FROM_OFFSET_ACCEPTED else None)

    def _payload(self) -> bytes:
        flags = 0 if self.offset is None else FROM_OFFSET
        return FLAGS.pack(flags) + _sized(self.topic.encode()) + NUMBER.pack(self.offset or 0)


@attrs.frozen(kw_only=True, slots=True)
class Attached(Frame):
    """The confirmation of a subscription to the messages that follow ``offset``.  Server to client."""

    type = FrameType.ATTACHED
    sizes = (_TOPIC_MIN + NUMBER.size, _TOPIC_MAX + NUMBER.size)

    topic: str = attrs.field(validator=_topic)
    offset: int = attrs.field(validator=_number)

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        return cls(topic=fields.topic(), offset=fields.integer(NUMBER))

    def _payload(self) -> bytes:
        return _sized(self.topic.encode()) + NUMBER.pack(self.offset)


@attrs.frozen(kw_only=True, slots=True)
class Detach(_TopicFrame):
    """The end of the subscription to ``topic``.  Client to server."""

    type = FrameType.DETACH


@attrs.frozen(kw_only=True, slots=True)
class Detached(_TopicFrame):
    """The confirmation that no more messages of ``topic`` follow.  Server to client."""

    type = FrameType.DETACHED


@attrs.frozen(kw_only=True, slots=True)
class Publish(_MessageFrame):
    """One message that is published to ``topic``; ``number`` is its ``seq_num``.  Client to server."""

    type = FrameType.PUBLISH


@attrs.frozen(kw_only=True, slots=True)
class Ack(_NumberFrame):
    """The acknowledgement of the messages up to the ``seq_num`` that ``number`` holds.  Server to client."""

    type = FrameType.ACK


@attrs.frozen(kw_only=True, slots=True)
class Data(_MessageFrame):
    """One message of ``topic`` that is delivered; ``number`` is its ``offset``.  Server to client."""

    type = FrameType.DATA


@attrs.frozen(kw_only=True, slots=True)
class Ping(_NumberFrame):
    """A request for a PONG with the same ``number``.  Client to server."""

    type = FrameType.PING


@attrs.frozen(kw_only=True, slots=True)
class Pong(_NumberFrame):
    """The answer to a PING, with the same ``number``.  Server to client."""

    type = FrameType.PONG


@attrs.frozen(kw_only=True, slots=True)
class MessageRun(Column):
    """Messages of one topic with consecutive numbers, as a column."""

    type: ClassVar[FrameType]

    topic: str
    first: int

    @property
    def last(self) -> int:
        return self.first + len(self) - 1

    def serialize(self) -> bytes:
        """Return the frames end to end.

        :raises ValueError: the columns do not match, or the numbers exceed 64 bits
        """
        return kernel.frames(self.type, encode_topic(self.topic), self.first, self.lengths, self.payload)


@attrs.frozen(kw_only=True, slots=True)
class PublishRun(MessageRun):
    """A run of PUBLISH frames; the numbers are their ``seq_num``."""

    type = FrameType.PUBLISH


@attrs.frozen(kw_only=True, slots=True)
class DataRun(MessageRun):
    """A run of DATA frames; the numbers are their ``offset``."""

    type = FrameType.DATA


@attrs.define(slots=True)
class Published:
    """Consecutive PUBLISH frames with rising numbers, grouped by topic; the object is never changed.

    :ivar last: the number of the last frame; its ACK covers all of them
    :ivar runs: one run for each topic, without stream numbers: its messages in the order of arrival, with their
        ``seq_num``
    """

    last: int
    runs: list[Run]


FRAMES: dict[FrameType, type[Frame]] = {
    frame.type: frame for frame in (Attach, Attached, Detach, Detached, Publish, Ack, Data, Ping, Pong)
}
CLIENT_FRAMES = frozenset({FrameType.ATTACH, FrameType.DETACH, FrameType.PUBLISH, FrameType.PING})
SERVER_FRAMES = frozenset(FRAMES) - CLIENT_FRAMES
