"""Packets as bytes: the examples of the specification, every packet type, every id size."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import LocalProtocolError
from fyrehose.protocols.relink.frames import (
    MAX_SHORT,
    MAX_SMALL,
    Ack,
    Acknowledgement,
    Message,
    Op,
    Operation,
    encode_ids,
    nearest,
)


def test_packets_have_the_bytes_of_the_specification(vectors: Any) -> None:
    for each in vectors:
        assert each.packet.serialize(each.id_size, **each.fields).hex() == each.data.hex(), each


def test_examples_of_the_specification(examples: Any) -> None:
    for packet, id_size, fields, text in examples:
        assert packet.serialize(id_size, **fields) == bytes.fromhex(text)


@pytest.mark.parametrize("count", [MAX_SHORT, MAX_SHORT + 1])
def test_long_length_is_used_when_needed(count: int) -> None:
    parts = (b"",) * count
    data = Message(channels=(0,), parts=parts).serialize(0)
    assert b"".join(Message(channels=(0,), parts=()).around(parts, 0)) == data
    assert bool(data[0] & 0x20) is (count > MAX_SHORT)
    assert data[1] == (count if count <= MAX_SHORT else 0)


@pytest.mark.parametrize("size", [MAX_SMALL, MAX_SMALL + 1])
def test_large_sizes_are_used_when_needed(size: int) -> None:
    assert bool(Message(channels=(0,), parts=(b"", b"x" * size)).serialize(0)[0] & 0x40) is (size > MAX_SMALL)


def test_sequence_numbers_wrap() -> None:
    assert Operation(kind=Op.COMMIT, channels=(0,), number=1 << 32).serialize(0)[4:] == bytes(4)


@pytest.mark.parametrize(
    "packet",
    [
        Operation(kind=Op.CLOSE, channels=(0,), number=1),
        Acknowledgement(kind=Ack.CLOSED, channels=(0,), number=1),
        Operation(kind=Op.COMMIT, channels=(0, 1)),
        Message(channels=(), parts=()),
        Message(channels=(256,), parts=()),
        Message(channels=(-1,), parts=()),
    ],
)
def test_invalid_packets_are_refused(packet: Any) -> None:
    with pytest.raises(LocalProtocolError):
        packet.serialize(1)


def test_channel_ids_have_the_negotiated_size() -> None:
    assert encode_ids((1, 2), 2) == b"\1\0\2\0"
    assert encode_ids((0, 0), 0) == b""
    with pytest.raises(LocalProtocolError):
        encode_ids((1,), 0)


# Sequence numbers, which wrap on the wire.

WRAP = 1 << 32


@pytest.mark.parametrize(
    ("number", "cursor", "meant"),
    [
        (0, -1, 0),
        (WRAP - 1, -1, -1),
        (5, 4, 5),
        (3, 4, 3),
        (0, WRAP - 1, WRAP),
        (WRAP - 1, WRAP, WRAP - 1),
        (7, 3 * WRAP + 6, 3 * WRAP + 7),
    ],
)
def test_nearest_returns_the_integer_closest_to_the_cursor(number: int, cursor: int, meant: int) -> None:
    assert nearest(number, cursor) == meant


@given(st.integers(-1, 1 << 60), st.integers(-(1 << 31), (1 << 31) - 1))
def test_nearest_restores_any_number_within_half_the_range(cursor: int, distance: int) -> None:
    assert nearest((cursor + distance) % WRAP, cursor) == cursor + distance
