"""Lumberjack's frames (lumberjack.txt): a version byte, a type byte, and a payload whose layout depends on the type.

     0           1           2                     6
    +-----------+-----------+---------------------+--------------------- - -
    | '1' or '2'| D         | sequence            | pairs u32, then for each: u32 and key, u32 and value
    |           | J         | sequence            | u32 and a JSON document
    |           | W         | events in the window|
    |           | C         | length              | a zlib stream of whole frames
    |           | A         | sequence            |
    +-----------+-----------+---------------------+--------------------- - -

All integers are u32 in network byte order.  The version is an ASCII digit ("1D{k,v}" in lumberjack.txt).  Writers send
D, J, W and C, readers send A.

    in: the kernels and :class:`PairScanner`     out: ``Frame.serialize`` -> the bytes of a whole frame
"""

from __future__ import annotations

from enum import IntEnum
from json import JSONEncoder
from struct import Struct
from typing import ClassVar

import attrs

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.kernels import lumberjack as kernel
from fyrehose.records import MAX_PAYLOAD, Buffer, Column

PROTOCOL = "lumberjack"

#: The largest document that becomes one record, and the largest body of a D frame, in bytes.
MAX_EVENT = MAX_PAYLOAD
#: Default limit of a document, in bytes.
MAX_FRAME = 1 << 30
#: Limits of a D frame: number of pairs, and size of a key in bytes.
MAX_PAIRS = 4_096
MAX_KEY = 64 << 10

VERSIONS = (1, 2)
#: Version by the first byte of a frame.
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
    """Frame type, the second byte of a frame."""

    ACK = ord("A")
    COMPRESSED = ord("C")
    DATA = ord("D")
    JSON = ord("J")
    WINDOW = ord("W")


#: Types that a writer sends; a reader only sends ACK.
WRITER_FRAMES = frozenset(FrameType) - {FrameType.ACK}


def check_version(instance: object, attribute: object, value: int) -> None:
    """Validate the version of a frame or of a session, for attrs."""
    if value not in VERSIONS:
        raise LocalProtocolError(f"version must be 1 or 2, not {value}")


def _number(instance: object, attribute: object, value: int) -> None:
    if not 0 <= value < 1 << 32:
        raise LocalProtocolError(f"{value} does not fit into an unsigned 32-bit integer")


def digit(version: int) -> int:
    """Return the first byte of a frame of *version*."""
    return 0x30 + version


@attrs.frozen(kw_only=True, slots=True)
class Frame:
    """Base class of the frames."""

    type: ClassVar[FrameType]

    version: int = attrs.field(default=2, validator=check_version)

    def serialize(self) -> bytes:
        """Return the bytes of the frame."""
        raise NotImplementedError


@attrs.frozen(kw_only=True, slots=True)
class _ShortFrame(Frame):
    """Base of the frames whose payload is one number."""

    number: int = attrs.field(validator=_number)

    def serialize(self) -> bytes:
        return SHORT.pack(digit(self.version), self.type, self.number)


@attrs.frozen(kw_only=True, slots=True)
class Ack(_ShortFrame):
    """An acknowledgement of the events up to sequence ``number``; 0 only shows that the reader is alive."""

    type = FrameType.ACK


@attrs.frozen(kw_only=True, slots=True)
class Window(_ShortFrame):
    """The announcement of a window: the writer sends ``number`` events before it waits for an acknowledgement."""

    type = FrameType.WINDOW


@attrs.frozen(kw_only=True, slots=True)
class Compressed(Frame):
    """Compressed complete frames; ``payload`` is the zlib stream."""

    type = FrameType.COMPRESSED

    payload: bytes = attrs.field(validator=attrs.validators.max_len(0xFFFF_FFFF))

    def serialize(self) -> bytes:
        return SHORT.pack(digit(self.version), self.type, len(self.payload)) + self.payload


@attrs.frozen(kw_only=True, slots=True)
class Json(Frame):
    """One event as a JSON document; the compiled kernels read and write many such frames at once, with equal bytes."""

    type = FrameType.JSON

    sequence: int = attrs.field(validator=_number)
    payload: bytes = attrs.field(validator=attrs.validators.max_len(MAX_FRAME))

    def serialize(self) -> bytes:
        return LONG.pack(digit(self.version), self.type, self.sequence, len(self.payload)) + self.payload


Pairs = tuple[tuple[bytes, bytes], ...]


@attrs.frozen(kw_only=True, slots=True)
class Data(Frame):
    """One event as key-value pairs, in their order, including repeated keys."""

    type = FrameType.DATA

    sequence: int = attrs.field(validator=_number)
    pairs: Pairs

    def serialize(self) -> bytes:
        parts = [LONG.pack(digit(self.version), self.type, self.sequence, len(self.pairs))]
        for pair in self.pairs:
            for text in pair:
                parts += (SIZE.pack(len(text)), text)
        return b"".join(parts)


@attrs.define
class PairScanner:
    """A scanner that finds the end of a D frame as it arrives, because the frame does not state its length.

    :ivar largest: limit of the body, in bytes
    :ivar needed: the least size of the frame, header included, as far as the arrived bytes tell
    :ivar whole: True if the frame is complete
    """

    largest: int = MAX_EVENT
    needed: int = attrs.field(default=LONG.size, init=False)
    whole: bool = attrs.field(default=False, init=False)
    _at: int = attrs.field(default=0, init=False)
    _left: int = attrs.field(default=-1, init=False)

    def advance(self, source: Buffer, start: int, end: int, *, final: bool = False) -> int:
        """Parse the fields between *start*, where the frame begins, and *end*.

        :param final: no data follows *end*
        :return: the position where the frame ends, as far as it is known
        :raises RemoteProtocolError: the frame exceeds a limit, or is longer than the data that can follow
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
                raise RemoteProtocolError("key-too-large", f"a key of {size} bytes; the limit is {MAX_KEY}")
            self._at += SIZE.size + size
            self._left -= 1
            self._expect(self._at + SIZE.size * self._left)
        self.whole = self._left == 0 and available >= self._at
        return start + self.needed

    def _count(self, source: Buffer, start: int, available: int | None) -> int:
        count: int = LONG.unpack_from(source, start)[3]
        if count > MAX_PAIRS or (available is not None and 2 * SIZE.size * count > available - LONG.size):
            raise RemoteProtocolError(
                "too-many-pairs", f"{count} pairs in a D frame; the limit is {MAX_PAIRS}, and the frame must hold all"
            )
        return count

    def _expect(self, needed: int) -> None:
        self.needed = needed
        if needed - SHORT.size > self.largest:
            raise too_large(needed - SHORT.size, self.largest)


def too_large(size: int, largest: int) -> RemoteProtocolError:
    """Return the error for an event of at least *size* bytes, with the options that help."""
    hint = "" if largest == MAX_EVENT else ", or raise the option lumberjack.max-frame"
    return RemoteProtocolError(
        "frame-too-large",
        f"an event of {size} bytes; the limit is {largest}; the writer will send it again and again: lower the "
        f"max_bytes of its input{hint}",
    )


def pairs_of(body: bytes) -> Pairs:
    """Parse the body of a D frame (count, keys and values) whose lengths :class:`PairScanner` has checked."""
    texts: list[bytes] = []
    at = SIZE.size
    while at < len(body):
        size = SIZE.unpack_from(body, at)[0]
        at += SIZE.size + size
        texts.append(body[at - size : at])
    return tuple(zip(texts[::2], texts[1::2], strict=True))


def to_json(pairs: Pairs) -> bytes | None:
    """Encode pairs as a JSON object, in their order, including repeated keys; return None if they are not UTF-8."""
    try:
        members = [f"{_quoted(key.decode())}:{_quoted(value.decode())}" for key, value in pairs]
    except UnicodeDecodeError:
        return None
    return f"{{{','.join(members)}}}".encode()


@attrs.frozen(kw_only=True, slots=True)
class EventRun(Column):
    """Events of one stream with the same topic and content type, as a column."""

    #: the first sequence if the sequences are consecutive, otherwise a column of u64
    producer_seq: int | Buffer
    topic: str | None
    content_type: str
    #: the stream that a route has chosen; None: no route has chosen one
    stream: str | None = None
    #: the size of the only event, which exceeds the limit, and of which the payload is the beginning; 0: it does not
    too_large: int = 0


def json_frames(version: int, first: int, lengths: Buffer, payload: Buffer) -> bytes:
    """Encode documents as J frames, with sequences from *first* on."""
    return kernel.frames(digit(version), first, lengths, payload)
