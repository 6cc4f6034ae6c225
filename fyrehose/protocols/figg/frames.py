"""Figg's frames (figg.md, "Protocol"): an eight-byte header, then the payload that it announces.

     0               2               4                               8
    +---------------+---------------+-------------------------------+------------------ - -
    | type          | version = 1   | size of the payload           | payload
    +---------------+---------------+-------------------------------+------------------ - -

All integers are in network byte order.  A field of variable size ([]byte in the text) is a u32 size and its bytes.
The fields fill the payload exactly.  Topics are 1 to 255 bytes of UTF-8, because a topic is a stream.

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
from fyrehose.records import MAX_NAME, MAX_PAYLOAD, Buffer

VERSION = 1

#: ATTACH: an offset is given.  The text says "bit 1"; the reference programs use the highest bit, which we send.
FROM_OFFSET = 0x8000
#: What we understand as that flag: "bit 1" counted from either end.
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


class FrameType(IntEnum):
    """What the first two bytes of a header say."""

    ATTACH = 1
    ATTACHED = 2
    DETACH = 3
    DETACHED = 4
    PUBLISH = 5
    ACK = 6
    DATA = 7
    #: Not in the text, whose "Ping/Pong" is to be done; the reference programs have them.
    PING = 8
    PONG = 9


def _number(instance: object, attribute: object, value: int) -> None:
    if not 0 <= value < 1 << 64:
        raise LocalProtocolError(f"{value} is not a number of 64 bits")


def _topic(instance: object, attribute: object, value: str) -> None:
    encode_topic(value)


def _offset(instance: object, attribute: object, value: int | None) -> None:
    if value is not None:
        _number(instance, attribute, value)


def encode_topic(topic: str) -> bytes:
    """The bytes of a topic.

    :raises LocalProtocolError: it is not 1 to 255 bytes of UTF-8
    """
    try:
        encoded = topic.encode()
    except UnicodeEncodeError:
        encoded = b""
    if not 1 <= len(encoded) <= MAX_NAME:
        raise LocalProtocolError(f"a topic is 1 to {MAX_NAME} bytes of UTF-8, not {topic[:80]!r}")
    return encoded


def decode_topic(encoded: bytes) -> str:
    """The topic that a peer sent.

    :raises RemoteProtocolError: it is not UTF-8
    """
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("bad-topic", "it is not UTF-8") from None


class Fields:
    """Takes the fields out of a payload, one after the other.

    :raises RemoteProtocolError: from every method, where the payload does not hold what it should
    """

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def integer(self, layout: Struct) -> int:
        """One integer."""
        end = self._at + layout.size
        if end > len(self._payload):
            raise RemoteProtocolError("bad-length", "the payload ends within a field")
        value: int = layout.unpack_from(self._payload, self._at)[0]
        self._at = end
        return value

    def data(self, most: int = MAX_PAYLOAD) -> bytes:
        """Bytes after their size, which is *most* or less."""
        size = self.integer(SIZE)
        if size > len(self._payload) - self._at:
            raise RemoteProtocolError("bad-length", "a field is larger than what is left of the payload")
        if size > most:
            raise RemoteProtocolError("frame-too-large", f"a field of {size} bytes, more than {most}")
        self._at += size
        return self._payload[self._at - size : self._at]

    def topic(self) -> str:
        """A topic."""
        encoded = self.data()
        if not 1 <= len(encoded) <= MAX_NAME:
            raise RemoteProtocolError("bad-topic", f"it has {len(encoded)} bytes, not 1 to {MAX_NAME}")
        return decode_topic(encoded)

    def end(self) -> None:
        """Nothing more."""
        if self._at != len(self._payload):
            raise RemoteProtocolError("bad-length", "bytes are left behind the last field")


@attrs.frozen(kw_only=True, slots=True)
class Frame(ABC):
    """What all frames have; each is an event of a session as it is."""

    type: ClassVar[FrameType]
    #: The smallest and the largest payload; PUBLISH and DATA add what their data may have.
    sizes: ClassVar[tuple[int, int]]

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """The frame whose payload this is.

        :raises RemoteProtocolError: it is none of this type
        """
        fields = Fields(payload)
        frame = cls._from(fields)
        fields.end()
        return frame

    def serialize(self) -> bytes:
        """The whole frame, with its header."""
        payload = self._payload()
        return HEADER.pack(self.type, VERSION, len(payload)) + payload

    @classmethod
    @abstractmethod
    def _from(cls, fields: Fields) -> Self: ...

    @abstractmethod
    def _payload(self) -> bytes: ...


def _sized(data: bytes) -> bytes:
    return SIZE.pack(len(data)) + data


#: The smallest and the largest topic with its size.
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
    """The layout that PUBLISH and DATA share; runs of them go through the kernels, with the very same result."""

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
    """Subscribe: from what follows ``offset``, or from now on where it is None.  Client to server."""

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
    """Subscribed: what follows ``offset`` will come.  Server to client."""

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
    """Unsubscribe.  Client to server."""

    type = FrameType.DETACH


@attrs.frozen(kw_only=True, slots=True)
class Detached(_TopicFrame):
    """Unsubscribed: nothing more of the topic will come.  Server to client."""

    type = FrameType.DETACHED


@attrs.frozen(kw_only=True, slots=True)
class Publish(_MessageFrame):
    """One message for a topic; ``number`` is its ``seq_num``.  Client to server."""

    type = FrameType.PUBLISH


@attrs.frozen(kw_only=True, slots=True)
class Ack(_NumberFrame):
    """The message whose ``seq_num`` is ``number``, and all before it, are processed.  Server to client."""

    type = FrameType.ACK


@attrs.frozen(kw_only=True, slots=True)
class Data(_MessageFrame):
    """One message of a topic; ``number`` is its ``offset``.  Server to client."""

    type = FrameType.DATA


@attrs.frozen(kw_only=True, slots=True)
class Ping(_NumberFrame):
    """Is anybody there?  Client to server."""

    type = FrameType.PING


@attrs.frozen(kw_only=True, slots=True)
class Pong(_NumberFrame):
    """Yes; ``number`` is the PING's.  Server to client."""

    type = FrameType.PONG


@attrs.frozen(kw_only=True, slots=True)
class MessageRun:
    """Messages of one topic with consecutive numbers, as columns (see :mod:`fyrehose.records`)."""

    type: ClassVar[FrameType]

    topic: str
    first: int
    lengths: Buffer
    payload: Buffer

    def __len__(self) -> int:
        return len(self.lengths) // 4

    @property
    def last(self) -> int:
        return self.first + len(self) - 1

    def serialize(self) -> bytes:
        """The frames, end to end."""
        return kernel.frames(self.type, encode_topic(self.topic), self.first, self.lengths, self.payload)


@attrs.frozen(kw_only=True, slots=True)
class PublishRun(MessageRun):
    """PUBLISHes; the numbers are their ``seq_num``."""

    type = FrameType.PUBLISH


@attrs.frozen(kw_only=True, slots=True)
class DataRun(MessageRun):
    """DATAs; the numbers are their ``offset``."""

    type = FrameType.DATA


@attrs.frozen(kw_only=True, slots=True)
class Taken:
    """PUBLISHes of one topic that came in, as columns.

    :ivar numbers: their ``seq_num``: the first where they are consecutive, else a column of u64
    """

    topic: str
    numbers: int | Buffer
    lengths: Buffer
    payload: Buffer

    def __len__(self) -> int:
        return len(self.lengths) // 4


@attrs.frozen(kw_only=True, slots=True)
class Published:
    """PUBLISHes that came in one after the other, their numbers rising.

    :ivar last: the number of the last; its ACK covers all of them
    :ivar runs: those of a topic together, in their order
    """

    last: int
    runs: tuple[Taken, ...]


FRAMES: dict[FrameType, type[Frame]] = {
    frame.type: frame for frame in (Attach, Attached, Detach, Detached, Publish, Ack, Data, Ping, Pong)
}
CLIENT_FRAMES = frozenset({FrameType.ATTACH, FrameType.DETACH, FrameType.PUBLISH, FrameType.PING})
SERVER_FRAMES = frozenset(FRAMES) - CLIENT_FRAMES
