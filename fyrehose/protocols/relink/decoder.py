"""From bytes to packets, however they were cut.

    in: bytes that the reactor read      out: packets, in order; RemoteProtocolError at the first that is none

Every length is judged as soon as its own bytes are there: nothing is collected for a packet that will be refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Protocol

import attrs

from fyrehose.errors import RemoteProtocolError
from fyrehose.kernels import relink as kernel
from fyrehose.protocols.relink.frames import (
    LARGE,
    LONG,
    NUMBER,
    TYPES,
    Ack,
    Acknowledgement,
    Format,
    Gathered,
    General,
    GeneralPacket,
    Incoming,
    Message,
    Op,
    Operation,
    aligned,
)
from fyrehose.protocols.relink.limits import Limits
from fyrehose.protocols.relink.messages import Column

_GENERAL = {kind: GeneralPacket(kind=kind) for kind in General}
_FORMATS = {form.value: form for form in Format}
_OPS = tuple(Op)
_ACKS = tuple(Ack)
#: The first byte of a message to one channel whose fields are the short ones, but for the bit that is not used.
_SIMPLE = 1 | Format.MESSAGE << 2
_UNUSED = 1 << 7
#: The struct code of an id of each size.
_ID_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}

#: Why a type that must not be sent was refused: the name of the counter.
_UNKNOWN = {
    Format.OPERATION: "operation-unknown",
    Format.ACKNOWLEDGEMENT: "acknowledgement-unknown",
    Format.SEQUENCE_OPERATION: "operation-unknown",
    Format.SEQUENCE_ACKNOWLEDGEMENT: "acknowledgement-unknown",
}


class Owner(Protocol):
    """Who takes many messages at a time: a link."""

    def room(self) -> tuple[int, int]:
        """How many messages of one channel, and how many bytes of all, may come at once; never none."""

    def takes(self, channels: Sequence[int]) -> bool:
        """Whether a message on each of ``channels`` breaks no rule."""


class _MoreNeeded(Exception):  # not an error: it says how many bytes the packet has at the least
    def __init__(self, size: int) -> None:
        self.size = size


@attrs.define(eq=False)
class Decoder:
    """Takes packets out of a buffer.

    :ivar sender_size: the size of the peer's channel ids (those of its messages), in bytes
    :ivar receiver_size: the size of ours (those of its acknowledgements), in bytes
    :ivar owner: takes messages of one part as :class:`~.frames.Gathered`; None: each is a packet
    """

    sender_size: int
    receiver_size: int
    limits: Limits = attrs.field(factory=Limits)
    owner: Owner | None = None
    #: what came in, and up to where it was taken; what was taken to its end is let go
    _buffer: bytes | bytearray = attrs.field(default=b"", init=False)
    _at: int = attrs.field(default=0, init=False)
    #: messages of how many channels are gathered at once
    _together: int = attrs.field(default=kernel.CHANNELS, init=False)
    #: what the packet at ``_at`` has at the least, in bytes
    _needed: int = attrs.field(default=2, init=False)

    @property
    def expected(self) -> int:
        """The size of the packet that is coming in, in bytes, as far as it is known; 0 between packets."""
        return max(self._needed, 8) if self._buffer else 0

    @property
    def ready(self) -> bool:
        """Whether another call of :meth:`next_packet` may give a packet without more bytes."""
        return len(self._buffer) - self._at >= self._needed

    @property
    def size(self) -> int:
        """How many bytes there are that were not taken."""
        return len(self._buffer) - self._at

    @property
    def rest(self) -> bytes:
        """What was not taken."""
        return bytes(self._buffer[self._at :])

    def feed(self, data: bytes) -> None:
        """More bytes; they are copied only where something was left that they continue."""
        if not self._buffer:
            self._buffer = data
            return
        if isinstance(self._buffer, bytes):
            self._buffer = bytearray(self.rest)
        else:
            del self._buffer[: self._at]
        self._at = 0
        self._buffer += data

    def drop(self, size: int) -> None:
        """The next ``size`` bytes are taken."""
        self._at += size
        if self._at >= len(self._buffer):
            self.clear()

    def clear(self) -> None:
        """All bytes are taken."""
        self._buffer, self._at = b"", 0

    def next_packet(self) -> Incoming | None:
        """The next packet; None when it is not all there.

        :raises RemoteProtocolError: it is none that may be sent, or over a limit
        """
        while len(self._buffer) - self._at >= self._needed:
            try:
                packet, end = self._gathered(self._at) or self._packet(self._at)
            except _MoreNeeded as more:
                self._needed = more.size
                continue
            self.drop(end - self._at)
            self._needed = 2
            return packet
        return None

    def _require(self, size: int) -> None:
        if len(self._buffer) - self._at < size:
            raise _MoreNeeded(size)

    def _gathered(self, at: int) -> tuple[Incoming, int] | None:
        """The messages of one part that follow each other from ``at``, and where they end; None: there are none."""
        buffer, owner = self._buffer, self.owner
        if owner is None or buffer[at] & ~_UNUSED != _SIMPLE or buffer[at + 1] != 1:
            return None
        each, size = owner.room()
        largest = self.limits.message_size
        end, runs = kernel.gather(buffer, at, self.sender_size, largest, size, each, self._together)
        if len(runs) > 1 and not owner.takes([channel for channel, _, _ in runs]):
            # From now on one by one, so that what comes before the one that is not taken counts, and nothing behind it.
            self._together = 1
            end, runs = kernel.gather(buffer, at, self.sender_size, largest, size, each, self._together)
        if not runs:
            return None
        return Gathered(runs=tuple([(channel, Column(lengths, payload)) for channel, lengths, payload in runs])), end

    def _packet(self, at: int) -> tuple[Incoming, int]:
        """The packet at ``at`` and where it ends."""
        first = self._buffer[at]
        kind = first >> 5
        if not first & 1:
            if kind >= len(General):
                raise RemoteProtocolError("general-unknown", f"type {kind}")
            self._require(8)
            return _GENERAL[General(kind)], at + 8
        form = _FORMATS.get(first >> 2 & 7)
        if form is None:
            raise RemoteProtocolError("format-unknown", f"format {first >> 2 & 7}")
        if kind >= TYPES[form]:
            raise RemoteProtocolError(_UNKNOWN[form], f"type {kind} of format {form}")
        multicast = bool(first & 2)
        ids, place = self._channels(at, self.receiver_size if form & 1 else self.sender_size, multicast)
        if form is Format.MESSAGE:
            return self._message(at, ids, place, multicast, kind)
        number = None
        if form & 2:
            place = (place + 3 & ~3) + NUMBER.size
        size = aligned(place)
        self._require(size)
        if form & 2:
            number = NUMBER.unpack_from(self._buffer, at + place - NUMBER.size)[0]
        channels = self._ids(at, *ids)
        if form & 1:
            packet: Incoming = Acknowledgement(kind=_ACKS[kind], channels=channels, number=number, multicast=multicast)
        else:
            packet = Operation(kind=_OPS[kind], channels=channels, number=number, multicast=multicast)
        return packet, at + size

    def _channels(self, at: int, id_size: int, multicast: bool) -> tuple[tuple[int, int, int], int]:
        """Where the ids are (their place, count and size), and what they end at, from the packet's first byte."""
        if not multicast:
            return (2, 1, id_size), 2 + id_size
        self._require(8)
        count = NUMBER.unpack_from(self._buffer, at + 4)[0]
        if count > self.limits.targets:
            raise RemoteProtocolError("too-many-targets", f"{count} channels in one packet")
        return (8, count, id_size), 8 + count * id_size

    def _ids(self, at: int, place: int, count: int, id_size: int) -> tuple[int, ...]:
        if not id_size:
            return (0,) * count
        ids: tuple[int, ...] = Struct(f"<{count}{_ID_CODES[id_size]}").unpack_from(self._buffer, at + place)
        return ids

    def _message(
        self, at: int, ids: tuple[int, int, int], place: int, multicast: bool, flags: int
    ) -> tuple[Message, int]:
        place += place & 1
        if flags & LONG:
            self._require(place + NUMBER.size)
            count = NUMBER.unpack_from(self._buffer, at + place)[0]
            place += NUMBER.size
        else:
            count = self._buffer[at + 1]
        if count > self.limits.parts:
            raise RemoteProtocolError("too-many-parts", f"{count} parts in one message")
        width, code = (8, "Q") if flags & LARGE else (2, "H")
        if flags & LARGE:
            place = aligned(place)
        self._require(place + width * count)
        sizes = Struct(f"<{count}{code}").unpack_from(self._buffer, at + place)
        place = aligned(place + width * count)
        whole = sum(map(aligned, sizes))
        if whole + (0 if count == 1 else 4 + 4 * count) > self.limits.message_size:
            raise RemoteProtocolError("message-too-large", f"{whole} bytes in {count} parts")
        self._require(place + whole)
        parts = []
        begin = at + place
        with memoryview(self._buffer) as view:
            for size in sizes:
                parts.append(bytes(view[begin : begin + size]))
                begin += aligned(size)
        return Message(channels=self._ids(at, *ids), parts=tuple(parts), multicast=multicast), begin
