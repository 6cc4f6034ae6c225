"""The messages of the event bus: each is a number of ZeroMQ frames.

    SNAPSHOT    client -> server   "SYNCSTART"  subtrees  sequence
                server -> client   "SYNC"  topic  sequence  producer  timestamp  uuid  data
                server -> client   "SYNCEND"  subtrees  sequence
    PUBLISHER   server -> client   topic  sequence  producer  timestamp  uuid  data         (BROADCAST)
    COLLECTOR   client -> server   topic  sequence  producer  timestamp  uuid  data         (PUB)

A sequence is 8 bytes in network order, as the text says, or ASCII decimal, as the reference program writes it; a
publisher that has none says "null".  No stream has 2^48 records, so a sequence of 8 bytes begins with two zero bytes
and is never taken for digits, nor digits for it.

Specification: event-bus.md; what it leaves open is decided in docs/protocols/eventbus.md.

in: frames without routing id and delimiter      out: messages; errors are RemoteProtocolError
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from struct import Struct

import attrs

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.records import LAST_SEQ, MAX_NAME, MAX_PAYLOAD, Buffer

#: The longest of the labels that are kept as they were sent - producer, timestamp, UUID, a sequence - in bytes.
MAX_LABEL = 64
#: Subtrees in one request, and the longest, in bytes.
MAX_SUBTREES = 64
MAX_SUBTREE = 255
#: How many frames PUB and BROADCAST have; SYNC has one more in front.
EVENT_FRAMES = 6

SYNCSTART = b"SYNCSTART"
SYNC = b"SYNC"
SYNCEND = b"SYNCEND"

_BINARY = Struct(">Q")  # sequence => u64, network order


class Dialect(StrEnum):
    """How a sequence is written."""

    BINARY = "binary"  #: 8 bytes, as the text says
    DECIMAL = "decimal"  #: ASCII digits, as the reference program does


def pack_sequence(sequence: int, dialect: Dialect) -> bytes:
    """``sequence`` as a frame."""
    return _BINARY.pack(sequence) if dialect is Dialect.BINARY else b"%d" % sequence


def parse_sequence(frame: bytes) -> tuple[int, Dialect | None]:
    """The sequence that ``frame`` holds, and how it is written; 0 and None where it says nothing.

    :raises RemoteProtocolError: it is none, or beyond the last that a stream can have
    """
    if not frame or frame == b"null":
        return 0, None
    if len(frame) == _BINARY.size and frame[:2] == b"\0\0":
        return _BINARY.unpack(frame)[0], Dialect.BINARY
    if frame.isdigit() and len(frame) <= MAX_LABEL and int(frame) <= LAST_SEQ:
        return int(frame), Dialect.DECIMAL
    raise RemoteProtocolError("bad-sequence", f"{len(frame)} bytes that are no number below 2^48")


@attrs.frozen(slots=True)
class Subtrees:
    """Which topics are wanted: those that begin with one of ``prefixes``; without any, all.

    :ivar spec: the frame that said so; SYNCEND has it again
    """

    spec: bytes
    prefixes: tuple[str, ...]

    @classmethod
    def parse(cls, spec: bytes, *, lenient: bool = False) -> Subtrees:
        """Subtrees such as ``/a/;/b/c/``.

        :param lenient: as the reference program has them: separated by commas, too, and any prefix of a topic
        :raises RemoteProtocolError: too many, too long, or not ``/.../``
        """
        if not spec:
            return cls(b"", ())
        if len(spec) > MAX_SUBTREES * (MAX_SUBTREE + 1):
            raise RemoteProtocolError("too-many-subtrees", f"{len(spec)} bytes of them")
        parts = (spec.replace(b",", b";") if lenient else spec).split(b";")
        if len(parts) > MAX_SUBTREES:
            raise RemoteProtocolError("too-many-subtrees", f"{len(parts)}, {MAX_SUBTREES} are the most")
        return cls(spec, tuple(_subtree(part, lenient) for part in parts))

    @classmethod
    def of(cls, prefixes: Sequence[str]) -> Subtrees:
        """The request for ``prefixes``.

        :raises LocalProtocolError: a server would refuse it
        """
        try:
            return cls.parse(";".join(prefixes).encode())
        except (RemoteProtocolError, UnicodeEncodeError) as error:
            raise LocalProtocolError(f"subtrees look like /a/ or /a/b/: {error}") from error

    def match(self, topic: str | None) -> bool:
        """Whether events of ``topic`` are wanted."""
        return not self.prefixes or (topic or "").startswith(self.prefixes)


def _subtree(part: bytes, lenient: bool) -> str:
    if len(part) > MAX_SUBTREE:
        raise RemoteProtocolError("subtree-too-long", f"{len(part)} bytes, {MAX_SUBTREE} are the most")
    if not lenient and not (part.startswith(b"/") and part.endswith(b"/")):
        raise RemoteProtocolError("bad-subtree", "one does not begin and end with a slash")
    try:
        return part.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("bad-subtree", "one is not UTF-8") from None


@attrs.frozen(slots=True, kw_only=True)
class SyncStart:
    """A client wants what follows ``sequence`` in ``subtrees``."""

    subtrees: Subtrees
    sequence: int
    dialect: Dialect | None  #: None: the request does not show it

    @classmethod
    def parse(cls, frames: Sequence[bytes], *, lenient: bool = False) -> SyncStart:
        """Three frames; two where there is no sequence, which says 0.

        :raises RemoteProtocolError: they are something else
        """
        if not 2 <= len(frames) <= 3:
            raise RemoteProtocolError("wrong-frame-count", f"{len(frames)} where SYNCSTART has 3")
        if frames[0] != SYNCSTART:
            raise RemoteProtocolError("unknown-command")
        sequence, dialect = parse_sequence(frames[2] if len(frames) == 3 else b"")
        return cls(subtrees=Subtrees.parse(frames[1], lenient=lenient), sequence=sequence, dialect=dialect)

    def serialize(self) -> list[bytes]:
        """As it goes to a server."""
        sequence = b"" if self.dialect is None else pack_sequence(self.sequence, self.dialect)
        return [SYNCSTART, self.subtrees.spec, sequence]


@attrs.frozen(slots=True, kw_only=True)
class SyncEnd:
    """A client has everything of ``subtrees`` (the frame of its request) up to ``sequence``."""

    subtrees: bytes
    sequence: int
    dialect: Dialect

    @classmethod
    def parse(cls, frames: Sequence[bytes]) -> SyncEnd:
        """:raises RemoteProtocolError: they are something else"""
        if len(frames) != 3:
            raise RemoteProtocolError("wrong-frame-count", f"{len(frames)} where SYNCEND has 3")
        if frames[0] != SYNCEND:
            raise RemoteProtocolError("unknown-command")
        sequence, dialect = parse_sequence(frames[2])
        return cls(subtrees=frames[1], sequence=sequence, dialect=dialect or Dialect.BINARY)

    def serialize(self) -> list[bytes]:
        """As it goes to a client."""
        return [SYNCEND, self.subtrees, pack_sequence(self.sequence, self.dialect)]


@attrs.frozen(slots=True, kw_only=True)
class Event:
    """One event with its labels as they travel: what PUB, BROADCAST and SYNC have in common."""

    topic: str
    sequence: int
    dialect: Dialect | None  #: None: "null" on the way to a server
    producer: bytes
    timestamp: bytes
    uuid: bytes
    data: Buffer

    def serialize(self) -> list[Buffer]:
        """The six frames of PUB and BROADCAST."""
        sequence = b"null" if self.dialect is None else pack_sequence(self.sequence, self.dialect)
        return [self.topic.encode(), sequence, self.producer, self.timestamp, self.uuid, self.data]


class Pub(Event):
    """A client has an event.  What it says of a sequence means nothing, and is not looked at."""

    @classmethod
    def parse(cls, frames: Sequence[bytes]) -> Pub:
        """:raises RemoteProtocolError: they are no event"""
        topic = check_event(frames)
        producer, timestamp, uuid, data = frames[2:]
        return cls(topic=topic, sequence=0, dialect=None, producer=producer, timestamp=timestamp, uuid=uuid, data=data)


class Broadcast(Event):
    """The server has an event, and it is durable."""

    @classmethod
    def parse(cls, frames: Sequence[bytes]) -> Broadcast:
        """:raises RemoteProtocolError: they are no event"""
        topic = check_event(frames)
        sequence, dialect = parse_sequence(frames[1])
        if dialect is None or not sequence:
            raise RemoteProtocolError("bad-sequence", "an event of the server's without one")
        producer, timestamp, uuid, data = frames[2:]
        return cls(
            topic=topic,
            sequence=sequence,
            dialect=dialect,
            producer=producer,
            timestamp=timestamp,
            uuid=uuid,
            data=data,
        )


class Sync(Broadcast):
    """The server had an event before the client asked."""

    @classmethod
    def parse(cls, frames: Sequence[bytes]) -> Sync:
        """:raises RemoteProtocolError: they are no event behind "SYNC" """
        if not frames or frames[0] != SYNC:
            raise RemoteProtocolError("unknown-command")
        broadcast = Broadcast.parse(frames[1:])
        return cls(**attrs.asdict(broadcast, recurse=False))

    def serialize(self) -> list[Buffer]:
        """The seven frames of SYNC."""
        return [SYNC, *Event.serialize(self)]


def check_event(frames: Sequence[Buffer]) -> str:
    """The topic of the six frames of an event, all of which are judged.

    :raises RemoteProtocolError: there are more or fewer, a label is too long, or the topic is not UTF-8
    """
    if len(frames) != EVENT_FRAMES:
        raise RemoteProtocolError("wrong-frame-count", f"{len(frames)} where an event has {EVENT_FRAMES}")
    topic, sequence, producer, timestamp, uuid, data = frames
    if len(topic) > MAX_NAME:
        raise RemoteProtocolError("topic-too-long", f"{len(topic)} bytes, {MAX_NAME} are the most")
    if max(len(sequence), len(producer), len(timestamp), len(uuid)) > MAX_LABEL:
        raise RemoteProtocolError("label-too-long", f"{MAX_LABEL} bytes are the most")
    if len(data) > MAX_PAYLOAD:
        raise RemoteProtocolError("data-too-large", f"{len(data)} bytes, {MAX_PAYLOAD} are the most")
    try:
        return str(topic, "utf-8")
    except UnicodeDecodeError:
        raise RemoteProtocolError("bad-topic", "it is not UTF-8") from None


def without_delimiter(frames: Sequence[bytes], *, counts: tuple[int, ...]) -> tuple[Sequence[bytes], bool]:
    """The frames of a message without the empty one that a REQ socket puts in front, and whether there was one.

    :param counts: how many frames the message itself may have, so that an empty topic is not taken for it
    """
    if len(frames) not in counts and len(frames) - 1 in counts and not frames[0]:
        return frames[1:], True
    return frames, False
