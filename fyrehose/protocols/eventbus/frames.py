"""Parse and serialize the messages of the event bus, which consist of ZeroMQ frames.

    SNAPSHOT    client -> server   "SYNCSTART"  subtrees  sequence
                server -> client   "SYNC"  topic  sequence  producer  timestamp  uuid  data
                server -> client   "SYNCEND"  subtrees  sequence
    PUBLISHER   server -> client   topic  sequence  producer  timestamp  uuid  data         (BROADCAST)
    COLLECTOR   client -> server   topic  sequence  producer  timestamp  uuid  data         (PUB)

A sequence is 8 bytes in network order, as the specification says, or ASCII decimal, as the reference program writes it;
a publisher without a sequence sends "null".  Sequences are below 2^48, so a sequence of 8 bytes begins with two zero
bytes and cannot be confused with digits.

Specification: event-bus.md, "State Synchronization", "Server-to-Client Updates" and "Client-to-Server Updates";
docs/protocols/eventbus.md documents the decisions that it leaves open.

in: frames without routing id and delimiter      out: messages; errors are RemoteProtocolError
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Self

import attrs

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.records import LAST_SEQ, MAX_NAME, MAX_PAYLOAD, Buffer

#: Maximum length of producer, timestamp, UUID and sequence, in bytes.
MAX_LABEL = 64
#: Maximum number of subtrees in one SYNCSTART, and maximum length of each, in bytes.
MAX_SUBTREES = 64
MAX_SUBTREE = 255
#: Number of frames of PUB and BROADCAST; SYNC has one more in front.
EVENT_FRAMES = 6

SYNCSTART = b"SYNCSTART"
SYNC = b"SYNC"
SYNCEND = b"SYNCEND"


class Dialect(StrEnum):
    """The encoding of a sequence."""

    BINARY = "binary"  #: 8 bytes in network order, as specified
    DECIMAL = "decimal"  #: ASCII digits, as the reference program writes it


def pack_sequence(sequence: int, dialect: Dialect) -> bytes:
    """Return the frame for *sequence*."""
    return sequence.to_bytes(8, "big") if dialect is Dialect.BINARY else b"%d" % sequence


def parse_sequence(frame: bytes) -> tuple[int, Dialect | None]:
    """Parse a sequence.

    :return: the sequence and its encoding; 0 and None if the frame is empty or "null"
    :raises RemoteProtocolError: the frame is not a sequence, or the sequence is not below 2^48
    """
    if not frame or frame == b"null":
        return 0, None
    if len(frame) == 8 and frame[:2] == b"\0\0":
        return int.from_bytes(frame, "big"), Dialect.BINARY
    if frame.isdigit() and len(frame) <= MAX_LABEL and int(frame) <= LAST_SEQ:
        return int(frame), Dialect.DECIMAL
    raise RemoteProtocolError("bad-sequence", f"{len(frame)} bytes that are not a number below 2^48")


def is_subtree(prefix: bytes) -> bool:
    """Return whether *prefix* has the form that the specification gives to subtrees: empty, or a slash at both ends."""
    return not prefix or (prefix.startswith(b"/") and prefix.endswith(b"/"))


@attrs.frozen(slots=True)
class Subtrees:
    """The subtrees of a SYNCSTART.

    :ivar spec: the frame with the subtree specification, which SYNCEND repeats
    :ivar prefixes: a topic matches if it begins with one of these; empty: every topic matches
    """

    spec: bytes
    prefixes: tuple[str, ...]

    @classmethod
    def parse(cls, spec: bytes, *, lenient: bool = False) -> Subtrees:
        """Parse a subtree specification such as ``/a/;/b/c/``.

        :param lenient: whether to accept the syntax of the reference program: commas as separators, too, and any prefix
            of a topic
        :raises RemoteProtocolError: there are too many subtrees, one is too long, or one is not ``/.../``
        """
        if not spec:
            return cls(b"", ())
        parts = (spec.replace(b",", b";") if lenient else spec).split(b";", MAX_SUBTREES)
        if len(parts) > MAX_SUBTREES or len(spec) > MAX_SUBTREES * (MAX_SUBTREE + 1):
            raise RemoteProtocolError("too-many-subtrees", f"{len(spec)} bytes, at most {MAX_SUBTREES} are allowed")
        if (longest := max(map(len, parts))) > MAX_SUBTREE:
            raise RemoteProtocolError("subtree-too-long", f"{longest} bytes, at most {MAX_SUBTREE} are allowed")
        for part in () if lenient else parts:
            if not part or not is_subtree(part):
                shown = part.decode(errors="replace")
                raise RemoteProtocolError("bad-subtree", f"{shown!r} does not begin and end with a slash")
        try:
            return cls(spec, tuple(part.decode() for part in parts))
        except UnicodeDecodeError:
            raise RemoteProtocolError("bad-subtree", "a subtree is not UTF-8") from None

    @classmethod
    def of(cls, prefixes: Sequence[str]) -> Subtrees:
        """Return the subtrees with these *prefixes*.

        :raises LocalProtocolError: a server would refuse the subtrees
        """
        try:
            return cls.parse(";".join(prefixes).encode())
        except (RemoteProtocolError, UnicodeEncodeError) as error:
            raise LocalProtocolError(f"invalid subtrees {prefixes!r}, expected for example '/a/': {error}") from error

    def match(self, topic: str | None) -> bool:
        """Return whether events of *topic* belong to the subtrees."""
        return not self.prefixes or (topic or "").startswith(self.prefixes)


@attrs.frozen(slots=True, kw_only=True)
class SyncStart:
    """SYNCSTART: a client requests the events of ``subtrees`` after ``sequence``."""

    subtrees: Subtrees
    sequence: int
    dialect: Dialect | None  #: None: the request has no sequence

    @classmethod
    def parse(cls, frames: Sequence[bytes], *, lenient: bool = False) -> SyncStart:
        """Parse a SYNCSTART of three frames, or of two without a sequence, which stands for 0.

        :raises RemoteProtocolError: the frames are not a SYNCSTART
        """
        _check_command(frames, SYNCSTART, least=2)
        sequence, dialect = parse_sequence(b"".join(frames[2:]))
        return cls(subtrees=Subtrees.parse(frames[1], lenient=lenient), sequence=sequence, dialect=dialect)

    def serialize(self) -> list[bytes]:
        """Return the three frames of SYNCSTART."""
        sequence = b"" if self.dialect is None else pack_sequence(self.sequence, self.dialect)
        return [SYNCSTART, self.subtrees.spec, sequence]


@attrs.frozen(slots=True, kw_only=True)
class SyncEnd:
    """SYNCEND: the client has received every event of ``subtrees`` (the frame of its SYNCSTART) up to ``sequence``."""

    subtrees: bytes
    sequence: int
    dialect: Dialect

    @classmethod
    def parse(cls, frames: Sequence[bytes]) -> SyncEnd:
        """Parse a SYNCEND.

        :raises RemoteProtocolError: the frames are not a SYNCEND
        """
        _check_command(frames, SYNCEND)
        sequence, dialect = parse_sequence(frames[2])
        return cls(subtrees=frames[1], sequence=sequence, dialect=dialect or Dialect.BINARY)

    def serialize(self) -> list[bytes]:
        """Return the three frames of SYNCEND."""
        return [SYNCEND, self.subtrees, pack_sequence(self.sequence, self.dialect)]


@attrs.frozen(slots=True, kw_only=True)
class Event:
    """One event with its labels as they are sent; the fields that PUB, BROADCAST and SYNC share."""

    topic: str
    sequence: int
    dialect: Dialect | None  #: None: the sequence is sent as "null"
    producer: bytes
    timestamp: bytes
    uuid: bytes
    data: Buffer

    @classmethod
    def parse(cls, frames: Sequence[bytes]) -> Self:
        """Parse an event.

        :raises RemoteProtocolError: the frames are not an event of this kind
        """
        topic = check_event(frames)
        number, producer, timestamp, uuid, data = frames[1:]
        sequence, dialect = cls._sequence(number)
        labels = {"producer": producer, "timestamp": timestamp, "uuid": uuid}
        return cls(topic=topic, sequence=sequence, dialect=dialect, data=data, **labels)

    @classmethod
    def _sequence(cls, frame: bytes) -> tuple[int, Dialect | None]:
        return 0, None

    def serialize(self) -> list[Buffer]:
        """Return the frames of the event."""
        sequence = b"null" if self.dialect is None else pack_sequence(self.sequence, self.dialect)
        return [self.topic.encode(), sequence, self.producer, self.timestamp, self.uuid, self.data]


class Pub(Event):
    """PUB: a client publishes an event; the server ignores its sequence."""


class Broadcast(Event):
    """BROADCAST: the server sends a durable event to all subscribers."""

    @classmethod
    def _sequence(cls, frame: bytes) -> tuple[int, Dialect | None]:
        sequence, dialect = parse_sequence(frame)
        if dialect is None or not sequence:
            raise RemoteProtocolError("bad-sequence", "an event from the server has no sequence; expected one")
        return sequence, dialect


class Sync(Broadcast):
    """SYNC: the server sends one event of a snapshot; a frame "SYNC" precedes it."""

    @classmethod
    def parse(cls, frames: Sequence[bytes]) -> Self:
        if not frames or frames[0] != SYNC:
            raise RemoteProtocolError("unknown-command")
        return super().parse(frames[1:])

    def serialize(self) -> list[Buffer]:
        return [SYNC, *super().serialize()]


def _check_command(frames: Sequence[bytes], command: bytes, least: int = 3) -> None:
    if not least <= len(frames) <= 3:
        raise RemoteProtocolError("wrong-frame-count", f"{command.decode()} has {len(frames)} frames, expected 3")
    if frames[0] != command:
        raise RemoteProtocolError("unknown-command")


def check_event(frames: Sequence[Buffer]) -> str:
    """Check the six frames of an event, and return its topic.

    :raises RemoteProtocolError: the number of frames is wrong, a frame is too long, or the topic is not UTF-8
    """
    if len(frames) != EVENT_FRAMES:
        raise RemoteProtocolError("wrong-frame-count", f"{len(frames)} frames, expected {EVENT_FRAMES} for an event")
    topic, sequence, producer, timestamp, uuid, data = frames
    if len(topic) > MAX_NAME:
        raise RemoteProtocolError("topic-too-long", f"{len(topic)} bytes, at most {MAX_NAME} are allowed")
    if (longest := max(len(sequence), len(producer), len(timestamp), len(uuid))) > MAX_LABEL:
        raise RemoteProtocolError("label-too-long", f"{longest} bytes, at most {MAX_LABEL} are allowed")
    if len(data) > MAX_PAYLOAD:
        raise RemoteProtocolError("data-too-large", f"{len(data)} bytes, at most {MAX_PAYLOAD} are allowed")
    try:
        return str(topic, "utf-8")
    except UnicodeDecodeError:
        raise RemoteProtocolError("bad-topic", "the topic is not UTF-8") from None


def without_delimiter(frames: Sequence[bytes], *, counts: tuple[int, ...]) -> tuple[Sequence[bytes], bool]:
    """Remove the empty delimiter frame that a REQ socket sends in front of a message.

    :param counts: the numbers of frames that the message itself may have; tells the delimiter from an empty topic
    :return: the frames of the message, and whether it had a delimiter
    """
    if len(frames) not in counts and len(frames) - 1 in counts and not frames[0]:
        return frames[1:], True
    return frames, False
