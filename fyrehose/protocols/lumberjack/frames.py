"""Lumberjack's frames (lumberjack.txt): two bytes, version and type, then what the type says.

     0           1           2                     6
    +-----------+-----------+---------------------+--------------------- - -
    | '1' or '2'| D         | sequence            | pairs u32, then for each: u32 and key, u32 and value
    |           | J         | sequence            | u32 and a document of JSON
    |           | W         | events in the window|
    |           | C         | length              | a zlib stream of whole frames
    |           | A         | sequence            |
    +-----------+-----------+---------------------+--------------------- - -

All integers are u32 in network byte order.  The version is a digit of ASCII ("1D{k,v}" in the text).  A writer sends D,
J, W and C, a reader A.

    in: the bytes of a whole frame -> ``Frame.parse``     out: ``Frame.serialize`` -> the bytes of a whole frame
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from json import JSONEncoder
from struct import Struct
from typing import ClassVar, Self

import attrs

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.kernels import lumberjack as kernel
from fyrehose.records import MAX_PAYLOAD, Buffer

#: The largest document that becomes one record, and the largest body of a D frame, in bytes.
MAX_EVENT = MAX_PAYLOAD
#: The largest compressed frame, in bytes: a window of Filebeat's, of events that hardly compress; and document.
MAX_FRAME = 1 << 30
#: The most pairs of a D frame, and the largest key, in bytes.
MAX_PAIRS = 4_096
MAX_KEY = 64 << 10

VERSIONS = (1, 2)
#: What the first byte says of the version.
DIGITS = {0x30 + version: version for version in VERSIONS}

SHORT = Struct(
    ">"
    "B"  # version, a digit
    "B"  # type
    "I"  # sequence, window or length
)
LONG = Struct(
    ">"
    "B"  # version, a digit
    "B"  # type
    "I"  # sequence
    "I"  # length of the document, or count of the pairs
)
SIZE = Struct(
    ">I"  # size of the key or value that follows, or count of the pairs
)

_quoted = JSONEncoder(ensure_ascii=False).encode


class FrameType(IntEnum):
    """What the second byte says."""

    ACK = ord("A")
    COMPRESSED = ord("C")
    DATA = ord("D")
    JSON = ord("J")
    WINDOW = ord("W")


#: What a writer sends; ACK is all that a reader does.
WRITER_FRAMES = frozenset(FrameType) - {FrameType.ACK}


def _version(instance: object, attribute: object, value: int) -> None:
    if value not in VERSIONS:
        raise LocalProtocolError(f"there is no version {value}")


def _number(instance: object, attribute: object, value: int) -> None:
    if not 0 <= value < 1 << 32:
        raise LocalProtocolError(f"{value} is not a number of 32 bits")


def digit(version: int) -> int:
    """The first byte of a frame of ``version``."""
    return 0x30 + version


@attrs.frozen(kw_only=True, slots=True)
class Frame:
    """What all frames have."""

    type: ClassVar[FrameType]

    version: int = attrs.field(default=2, validator=_version)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The frame that ``data`` is, all of it.

        :raises RemoteProtocolError: it is none of this type
        """
        if len(data) < SHORT.size or data[0] not in DIGITS or data[1] != cls.type:
            raise RemoteProtocolError("bad-frame", f"no {cls.__name__} frame")
        return cls._from(DIGITS[data[0]], data)

    def serialize(self) -> bytes:
        """The whole frame."""
        raise NotImplementedError

    @classmethod
    def _from(cls, version: int, data: bytes) -> Self:
        raise NotImplementedError


@attrs.frozen(kw_only=True, slots=True)
class _ShortFrame(Frame):
    """A frame of one number."""

    number: int = attrs.field(validator=_number)

    @classmethod
    def _from(cls, version: int, data: bytes) -> Self:
        if len(data) != SHORT.size:
            raise RemoteProtocolError("bad-frame", f"{len(data)} bytes are no {cls.__name__} frame")
        return cls(version=version, number=SHORT.unpack(data)[2])

    def serialize(self) -> bytes:
        return SHORT.pack(digit(self.version), self.type, self.number)


@attrs.frozen(kw_only=True, slots=True)
class Ack(_ShortFrame):
    """Everything up to the event with the sequence ``number`` is stored; 0: nothing more yet, but we live."""

    type = FrameType.ACK


@attrs.frozen(kw_only=True, slots=True)
class Window(_ShortFrame):
    """The writer sends ``number`` events, then waits for their acknowledgement."""

    type = FrameType.WINDOW


@attrs.frozen(kw_only=True, slots=True)
class Compressed(Frame):
    """Whole frames, compressed; ``payload`` is the zlib stream."""

    type = FrameType.COMPRESSED

    payload: bytes = attrs.field(validator=attrs.validators.max_len(MAX_FRAME))

    @classmethod
    def of(cls, inner: bytes, version: int = 2, level: int = 3) -> Compressed:
        """``inner`` compressed."""
        return cls(version=version, payload=zlib.compress(inner, level))

    @classmethod
    def _from(cls, version: int, data: bytes) -> Self:
        if SHORT.unpack_from(data)[2] != len(data) - SHORT.size:
            raise RemoteProtocolError("bad-frame", "a compressed frame of another length")
        return cls(version=version, payload=data[SHORT.size :])

    def serialize(self) -> bytes:
        return SHORT.pack(digit(self.version), self.type, len(self.payload)) + self.payload


@attrs.frozen(kw_only=True, slots=True)
class Json(Frame):
    """One event; runs of them go through the kernels, with the very same result."""

    type = FrameType.JSON

    sequence: int = attrs.field(validator=_number)
    payload: bytes = attrs.field(validator=attrs.validators.max_len(MAX_FRAME))

    @classmethod
    def _from(cls, version: int, data: bytes) -> Self:
        if len(data) < LONG.size or LONG.unpack_from(data)[3] != len(data) - LONG.size:
            raise RemoteProtocolError("bad-frame", "a JSON frame of another length")
        return cls(version=version, sequence=LONG.unpack_from(data)[2], payload=data[LONG.size :])

    def serialize(self) -> bytes:
        return LONG.pack(digit(self.version), self.type, self.sequence, len(self.payload)) + self.payload


Pairs = tuple[tuple[bytes, bytes], ...]


@attrs.frozen(kw_only=True, slots=True)
class Data(Frame):
    """One event as pairs of strings, in their order, repeated keys included."""

    type = FrameType.DATA

    sequence: int = attrs.field(validator=_number)
    pairs: Pairs

    @classmethod
    def _from(cls, version: int, data: bytes) -> Self:
        fields = Fields()
        if fields.advance(data, 0, len(data)) != len(data) or not fields.whole:
            raise RemoteProtocolError("bad-frame", "a D frame of another length")
        return cls(version=version, sequence=LONG.unpack_from(data)[2], pairs=pairs_of(data[SHORT.size :]))

    def serialize(self) -> bytes:
        parts = [LONG.pack(digit(self.version), self.type, self.sequence, len(self.pairs))]
        for pair in self.pairs:
            for text in pair:
                parts += (SIZE.pack(len(text)), text)
        return b"".join(parts)


FRAMES: dict[FrameType, type[Frame]] = {frame.type: frame for frame in (Ack, Compressed, Data, Json, Window)}


@attrs.define
class Fields:
    """Finds the end of a D frame, which nothing but its fields say, as they come in: no field is looked at twice.

    :ivar largest: the most that its body may come to, in bytes
    :ivar needed: how many of its bytes are known to be needed, its header included
    :ivar whole: whether it has ended
    """

    largest: int = MAX_EVENT
    needed: int = attrs.field(default=LONG.size, init=False)
    whole: bool = attrs.field(default=False, init=False)
    _at: int = attrs.field(default=0, init=False)
    _left: int = attrs.field(default=-1, init=False)

    def advance(self, source: Buffer, start: int, end: int, *, final: bool = False) -> int:
        """Look at what there is of the frame that begins at ``start``; where it ends, as far as it is known.

        :param final: nothing comes behind ``end``
        :raises RemoteProtocolError: it is larger than it may be, or than what can still come
        """
        available = end - start
        if self._left < 0 and available >= LONG.size:
            self._left = 2 * self._count(source, start, available if final else None)
            self._at = LONG.size
        while self._left > 0:
            self._expect(self._at + SIZE.size * self._left)
            if available < self._at + SIZE.size:
                break
            size = SIZE.unpack_from(source, start + self._at)[0]
            if self._left % 2 == 0 and size > MAX_KEY:
                raise RemoteProtocolError("key-too-large", f"{size} bytes")
            self._at += SIZE.size + size
            self._left -= 1
            self._expect(self._at + SIZE.size * self._left)
        self.whole = self._left == 0 and available >= self._at
        return start + self.needed

    def _count(self, source: Buffer, start: int, available: int | None) -> int:
        count: int = LONG.unpack_from(source, start)[3]
        if count > MAX_PAIRS or (available is not None and 2 * SIZE.size * count > available - LONG.size):
            raise RemoteProtocolError("too-many-pairs", f"{count} are announced")
        return count

    def _expect(self, needed: int) -> None:
        self.needed = needed
        if needed - SHORT.size > self.largest:
            raise too_large(needed - SHORT.size, self.largest)


def too_large(size: int, largest: int) -> RemoteProtocolError:
    """Return the refusal of an event of *size* bytes, or more."""
    raised = "" if largest == MAX_EVENT else ", or raise the option lumberjack.max-frame"
    return RemoteProtocolError(
        "frame-too-large",
        f"an event of {size} bytes, {largest} are the most; the writer will send it again and again: lower the "
        f"max_bytes of its input{raised}",
    )


def pairs_of(body: bytes) -> Pairs:
    """The pairs of a D frame whose lengths were looked at (:class:`Fields`), from its body: count, keys and values."""
    texts: list[bytes] = []
    at = SIZE.size
    while at < len(body):
        size = SIZE.unpack_from(body, at)[0]
        at += SIZE.size + size
        texts.append(body[at - size : at])
    return tuple(zip(texts[::2], texts[1::2], strict=True))


def to_json(pairs: Pairs) -> bytes | None:
    """Pairs as an object of JSON, in their order, with repeated keys repeated; None if they are not UTF-8."""
    try:
        members = [f"{_quoted(key.decode())}:{_quoted(value.decode())}" for key, value in pairs]
    except UnicodeDecodeError:
        return None
    return f"{{{','.join(members)}}}".encode()


@attrs.frozen(kw_only=True, slots=True)
class EventRun:
    """Events that follow on and have the same topic and content type, as columns (see :mod:`fyrehose.records`)."""

    lengths: Buffer
    payload: Buffer
    #: the first sequence where they are consecutive, else a column
    producer_seq: int | Buffer
    topic: str | None
    content_type: str

    def __len__(self) -> int:
        return len(self.lengths) // 4


def json_frames(version: int, first: int, lengths: Buffer, payload: Buffer) -> bytes:
    """J frames for columns, with sequences from ``first`` on."""
    return kernel.frames(digit(version), first, lengths, payload)
