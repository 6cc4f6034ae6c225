"""The decoder: every header, every chunking, every limit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from struct import pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.relink.decoder import Decoder
from fyrehose.protocols.relink.frames import (
    ID_SIZES,
    NOP,
    Ack,
    Acknowledgement,
    Format,
    Gathered,
    General,
    GeneralPacket,
    Message,
    Op,
    Operation,
    Packet,
)
from fyrehose.protocols.relink.link import LinkLimits
from fyrehose.protocols.relink.messages import column_of
from fyrehose.testing import every_chunking


def decode(chunks: list[bytes], sender: int = 0, receiver: int = 0, limits: LinkLimits | None = None) -> list[Any]:
    """Return the packets, followed by the cause if the last one is refused."""
    decoder = Decoder(sender, receiver, limits or LinkLimits())
    found: list[Any] = []
    for chunk in chunks:
        decoder.feed(chunk)
        try:
            while (packet := decoder.next_packet()) is not None:
                found.append(packet)
        except RemoteProtocolError as error:
            return [*found, error.cause]
    return found


def sizes_for(packet: Packet, id_size: int) -> tuple[int, int]:
    """Return the sizes of sender's and receiver's ids; the one that *packet* does not use differs."""
    return (1, id_size) if isinstance(packet, Acknowledgement) else (id_size, 1)


def test_packets_are_decoded_in_every_chunking(vectors: Any) -> None:
    for one, other in pairwise(vectors):
        if one.id_size == other.id_size:
            for chunks in every_chunking(one.data + other.data):
                assert decode(chunks, one.id_size, one.id_size) == [one.packet, other.packet], (one, other)


def test_unused_bits_are_ignored(vectors: Any) -> None:
    """Change each bit of padding and each unused bit; the packet behind it must still be decoded."""
    for each in vectors[::7]:
        sizes = sizes_for(each.packet, each.id_size)
        for at, mask in enumerate(each.used):
            for bit in (bit for bit in range(8) if not mask >> bit & 1):
                data = bytearray(each.data)
                data[at] ^= 1 << bit
                data += NOP.serialize()
                for chunks in ([bytes(data)], [data[i : i + 1] for i in range(len(data))]):
                    assert decode(chunks, *sizes) == [each.packet, NOP], (each, at, bit)


def expected_of_header(first: int, second: int) -> Any:
    """Return the packet of a header followed by zeros, by the specification, or the cause of its refusal."""
    kind = first >> 5
    if not first & 1:
        return GeneralPacket(kind=General(kind)) if kind < 5 else "general-unknown"
    form = first >> 2 & 7
    if form > 4:
        return "format-unknown"
    channels: tuple[int, ...] = () if first & 2 else (0,)
    multicast = bool(first & 2)
    if form == Format.MESSAGE:
        count = 0 if kind & 1 else second
        return Message(channels=channels, parts=(b"",) * count, multicast=multicast)
    number = 0 if form & 2 else None
    if form & 1:
        if kind >= (4 if form & 2 else 5):
            return "acknowledgement-unknown"
        return Acknowledgement(kind=Ack(kind), channels=channels, number=number, multicast=multicast)
    if kind >= (2 if form & 2 else 3):
        return "operation-unknown"
    return Operation(kind=Op(kind), channels=channels, number=number, multicast=multicast)


def decode_first(data: bytes, size: int) -> Any:
    decoder = Decoder(1, 2)
    try:
        for at in range(0, len(data), size):
            decoder.feed(data[at : at + size])
            if (packet := decoder.next_packet()) is not None:
                return packet
    except RemoteProtocolError as error:
        return error.cause
    return None


@pytest.mark.slow
def test_every_header_byte_is_accepted_or_refused_as_specified() -> None:
    zeros = bytes(2_100)
    for header in range(65_536):
        data = pack("<H", header)
        expected = expected_of_header(*data)
        assert decode_first(data + zeros, 1 << 16) == expected
        assert decode_first(data, 2) == (expected if isinstance(expected, str) else None), (
            "invalid headers are refused at once"
        )


def test_every_header_is_decoded_byte_by_byte() -> None:
    for first in range(256):
        for second in (0, 1, 2, 3, 255):
            assert decode_first(bytes([first, second]) + bytes(2_100), 1) == expected_of_header(first, second)


def test_decoded_bytes_are_released() -> None:
    """An idle connection does not keep its last packet in memory."""
    decoder = Decoder(0, 0)
    whole = NOP.serialize() + Message(channels=(0,), parts=(b"x" * 1_000,)).serialize(0)
    decoder.feed(whole)
    assert decoder.buffer is whole, "no incomplete packet was buffered, so the bytes are not copied"
    assert decoder.next_packet() == NOP
    assert (decoder.size, decoder.rest) == (len(whole) - 8, whole[8:])
    assert decoder.next_packet() is not None
    assert (decoder.size, decoder.rest, decoder.buffer, decoder.expected) == (0, b"", b"", 0)
    decoder.feed(whole[:10])
    assert decoder.next_packet() == NOP
    decoder.feed(whole[10:11])
    decoder.feed(whole[11:])
    assert decoder.rest == whole[8:]
    decoder.drop(decoder.size - 8)
    assert decoder.rest == whole[-8:]
    decoder.clear()
    assert (decoder.size, decoder.rest) == (0, b"")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(sorted(ID_SIZES)), st.sampled_from(sorted(ID_SIZES)))
def test_decoding_does_not_depend_on_chunking(data: bytes, sender: int, receiver: int) -> None:
    whole = decode([data], sender, receiver)
    assert decode([data[i : i + 1] for i in range(len(data))], sender, receiver) == whole


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (pack("<BBxxI", 0x13, 1, 1_025), "too-many-targets"),
        (pack("<BBxxI", 0x03, 0, (1 << 32) - 1), "too-many-targets"),
        (pack("<BBI", 0x31, 0, 1_025), "too-many-parts"),
        (pack("<BBI", 0x71, 0, (1 << 32) - 1), "too-many-parts"),
        (pack("<BBxxxxxxQ", 0x51, 1, (1 << 64) - 1), "message-too-large"),
        (pack("<BBxxxxxxQ", 0x51, 1, (16 << 20) + 1), "message-too-large"),
        # The sum overflows to a small number of 64 bits.
        (pack("<BBxxxxxxQQ", 0x51, 2, 1 << 63, 1 << 63), "message-too-large"),
        (pack("<BBxxxxxxQQ", 0x51, 2, (1 << 64) - 8, 16), "message-too-large"),
        # The parts fit, but not with their padding.
        (pack("<BBxxxxxxQQ", 0x51, 2, (8 << 20) - 1, (8 << 20) - 1), "message-too-large"),
    ],
)
def test_lengths_are_checked_as_soon_as_they_arrive(data: bytes, cause: str) -> None:
    assert decode([data]) == [cause]
    assert decode([data[i : i + 1] for i in range(len(data))]) == [cause]
    assert decode([data[:-1]]) == []


class Owner:
    """A link that accepts two messages of a channel at a time, and none of channel 7."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def room(self) -> tuple[int, int]:
        return 2, 100

    def accepts(self, channels: Sequence[int]) -> bool:
        self.calls.append(list(channels))
        return 7 not in channels


def test_messages_of_one_part_are_gathered_for_an_owner() -> None:
    def one(channel: int, *parts: bytes) -> Message:
        return Message(channels=(channel,), parts=parts)

    def gathered(*runs: tuple[int, list[bytes]]) -> Gathered:
        return Gathered(runs=tuple((channel, column_of(payloads)) for channel, payloads in runs))

    owner = Owner()
    decoder = Decoder(2, 0, owner=owner)
    simple = [(5, b"a"), (6, b"b"), (5, b"c"), (5, b"d"), (6, b"e"), (6, b"f"), (5, b"g"), (7, b"h"), (5, b"i")]
    sent = [*(one(channel, payload) for channel, payload in simple), one(6, b"e", b"f"), one(6, b"x" * 70_000)]
    data = b"".join(message.serialize(2) for message in sent)
    decoder.feed(data[:-1])
    found = []
    while (packet := decoder.next_packet()) is not None:
        found.append(packet)
    assert found == [
        gathered((5, [b"a", b"c"]), (6, [b"b"])),
        gathered((5, [b"d"])),
        gathered((6, [b"e", b"f"])),
        gathered((5, [b"g"])),
        gathered((7, [b"h"])),
        gathered((5, [b"i"])),
        sent[9],
    ]
    assert owner.calls == [[5, 6], [5, 6, 7]], "after the first violation, accepts() is not called again"
    assert decoder.expected == len(sent[10].serialize(2))
    decoder.feed(data[-1:])
    assert decoder.next_packet() == sent[10]


def test_packets_at_exactly_the_limits_are_accepted() -> None:
    whole = Message(channels=(0,) * 1_024, parts=(b"x" * (16 << 20),), multicast=True)
    assert decode([whole.serialize(0)]) == [whole]
    parts = Message(channels=(0,), parts=(b"",) * 1_024)
    assert decode([parts.serialize(0)]) == [parts]


def test_expected_is_the_size_of_the_arriving_packet() -> None:
    decoder = Decoder(0, 0)
    assert decoder.expected == 0
    data = Message(channels=(0,), parts=(b"x" * 100_000,)).serialize(0)
    decoder.feed(data[:1])
    assert decoder.next_packet() is None
    assert decoder.expected == 8
    decoder.feed(data[1:16])
    assert decoder.next_packet() is None
    assert decoder.expected == len(data)
    decoder.feed(data[16:])
    assert decoder.expected == 0
    assert decoder.next_packet() is not None
    assert decoder.expected == 0
