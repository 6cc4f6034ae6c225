"""The Relink kernels: golden bytes, ends of scans, and the native against the pure version."""

from __future__ import annotations

from struct import pack
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.kernels.pure import relink as pure
from tests.doubles.kernels import column, native_kernel

native = native_kernel("relink")
only_native = pytest.mark.skipif(native is None, reason="the native kernels are not built")

SIZES = (0, 1, 2, 4, 8)
MOST = 1 << 30


def frame(data: bytes, channel: int = 3, id_size: int = 1, first: int = 0x11, parts: int = 1) -> bytes:
    head = bytes([first, parts]) + channel.to_bytes(id_size, "little")
    head += bytes(len(head) & 1) + pack("<H", len(data))
    return head + bytes(-len(head) & 7) + data + bytes(-len(data) & 7)


@pytest.mark.parametrize(
    ("id_size", "channel", "head"),
    [
        (0, 0, "1101 0300 00000000"),
        (1, 9, "1101 09 00 0300 0000"),
        (2, 0x1234, "1101 3412 0300 0000"),
        (4, 0x12345678, "1101 78563412 0300"),
        (8, 1 << 63, "1101 0000000000000080 0300 00000000"),
    ],
)
def test_messages_match_their_golden_bytes(kernel: ModuleType, id_size: int, channel: int, head: str) -> None:
    wire = kernel.frames(id_size, channel, column(3, 0), b"abc")
    empty = bytes.fromhex(head.replace("0300", "0000")) if id_size != 2 else bytes.fromhex("1101 3412 0000 0000")
    assert wire == bytes.fromhex(head) + b"abc" + bytes(5) + empty
    assert kernel.gather(wire, 0, id_size, MOST, MOST, 9) == (len(wire), [(channel, column(3, 0), b"abc")])


@pytest.mark.parametrize("id_size", SIZES)
def test_large_payloads_are_framed_with_large_sizes(kernel: ModuleType, id_size: int) -> None:
    data = b"x" * 65_536
    wire = kernel.frames(id_size, 0, column(65_535, 65_536), data[1:] + data)
    head = bytes([0x51, 1]) + bytes(6 if id_size < 8 else 14)
    small = frame(data[1:], 0, id_size)
    assert wire == small + head + pack("<Q", 65_536) + data
    assert kernel.gather(wire, 0, id_size, MOST, MOST, 9) == (len(small), [(0, column(65_535), data[1:])])


LARGEST = 104
#: Bytes at which gather() stops if the largest payload has 104 bytes with its padding.
OTHER = [
    frame(b"data", first=0x13),  # a multicast
    frame(b"data", first=0x31),  # a long length
    frame(b"data", first=0x51),  # large sizes
    frame(b"data", first=0x01),  # an operation
    frame(b"data", first=0x10),  # a nop
    frame(b"data", parts=0),
    frame(b"data", parts=2),
    frame(b"data")[:-1],
    frame(b"data")[:7],
    b"\x11",
    b"",
    frame(bytes(LARGEST + 1)),
]


@st.composite
def streams(draw: st.DrawFn) -> tuple[int, list[tuple[int, bytes, bytes]], bytes]:
    """Generate the size of ids, messages as channel, payload and packet, and bytes at which gather() stops."""
    id_size = draw(st.sampled_from(SIZES))
    channels = [channel for channel in (0, 1, (1 << 8 * id_size) - 1) if channel < 1 << 8 * id_size]
    sent = draw(
        st.lists(
            st.tuples(
                st.sampled_from(channels),
                st.binary(max_size=9) | st.just(bytes(LARGEST)),
                st.sampled_from([0x11, 0x91]),
            ),
            max_size=12,
        )
    )
    packets = [(channel, data, frame(data, channel, id_size, first)) for channel, data, first in sent]
    return id_size, packets, draw(st.sampled_from(OTHER)) if id_size == 1 else b""


def expected_gather(
    sent: list[tuple[int, bytes, bytes]], start: int, most: int, each: int, channels: int
) -> tuple[int, list[tuple[int, bytes, bytes]]]:
    """Return what gather() returns for *sent*."""
    runs: dict[int, list[bytes]] = {}
    for channel, data, packet in sent:
        size = sum(len(data) for run in runs.values() for data in run)
        full = len(runs.get(channel, [])) == each or len(runs.keys() | {channel}) > channels
        if full or (runs and size + len(data) > most):
            break
        runs.setdefault(channel, []).append(data)
        start += len(packet)
    return start, [(channel, column(*map(len, data)), b"".join(data)) for channel, data in runs.items()]


@given(
    streams(),
    st.integers(0, 3),
    st.sampled_from([1, 9, 18, 113, MOST]),
    st.integers(0, 14),
    st.sampled_from([0, 1, 2, 99]),
)
@settings(max_examples=500, deadline=None)
def test_messages_are_gathered_as_a_model_of_single_messages_says(
    stream: tuple[int, list[tuple[int, bytes, bytes]], bytes], start: int, most: int, each: int, channels: int
) -> None:
    id_size, sent, other = stream
    wire = b"#" * start + b"".join(packet for *_, packet in sent) + other
    expected = expected_gather(sent, start, most, each, channels)
    for kernel in (pure, native or pure):
        assert kernel.gather(wire, start, id_size, LARGEST, most, each, channels) == expected


def test_number_of_channels_is_bounded(kernel: ModuleType) -> None:
    ids = [(number * 0x9E3779B97F4A7C15) % (1 << 64) for number in range(kernel.CHANNELS + 1)]
    wire = b"".join(frame(b"%d" % channel, channel, 8) for channel in ids)
    end, runs = kernel.gather(wire, 0, 8, MOST, MOST, 9, 1_000)
    assert wire[end:] == frame(b"%d" % ids[-1], ids[-1], 8)
    assert [(channel, data) for channel, _, data in runs] == [(channel, b"%d" % channel) for channel in ids[:-1]]


def test_padding_is_ignored_and_counts_for_the_largest(kernel: ModuleType) -> None:
    wire = bytearray(frame(b"12345"))
    for at in (3, 6, 7, 13, 14, 15):
        wire[at] = 0xFF
    assert kernel.gather(wire, 0, 1, 8, MOST, 9) == (16, [(3, column(5), b"12345")])
    assert kernel.gather(wire, 0, 1, 7, MOST, 9) == (0, [])


@pytest.mark.parametrize(
    ("id_size", "channel", "lengths", "payload"),
    [
        (1, 256, column(1), b"a"),
        (0, 1, column(1), b"a"),
        (8, 1 << 64, column(1), b"a"),
        (1, -1, column(1), b"a"),
        (1, 0, column(2), b"a"),
        (1, 0, b"\1\0\0", b"a"),
    ],
)
def test_invalid_columns_are_refused(
    kernel: ModuleType, id_size: int, channel: int, lengths: bytes, payload: bytes
) -> None:
    with pytest.raises(ValueError, match="cannot be framed"):
        kernel.frames(id_size, channel, lengths, payload)


@pytest.mark.parametrize("id_size", [-1, 3, 5, 9])
def test_invalid_id_sizes_are_refused(kernel: ModuleType, id_size: int) -> None:
    with pytest.raises(ValueError, match="channel ids have"):
        kernel.frames(id_size, 0, column(), b"")
    with pytest.raises(ValueError, match="channel ids have"):
        kernel.gather(b"", 0, id_size, MOST, MOST, 9)


messages = st.lists(st.binary(max_size=40), max_size=12)


@only_native
@given(streams(), st.tuples(st.integers(0, 400), st.integers(1, 255)), st.integers(0, 60))
@settings(max_examples=300, deadline=None)
def test_native_kernel_judges_changed_bytes_as_the_pure_one(
    stream: tuple[int, list[tuple[int, bytes, bytes]], bytes], flip: tuple[int, int], cut: int
) -> None:
    id_size, sent, other = stream
    wire = bytearray(b"".join(packet for *_, packet in sent) + other)
    wire = wire[: max(0, len(wire) - cut)]
    if flip[0] < len(wire):
        wire[flip[0]] ^= flip[1]
    for buffer in (wire, bytes(wire)):
        assert native.gather(buffer, 0, id_size, LARGEST, MOST, 9) == pure.gather(buffer, 0, id_size, LARGEST, MOST, 9)


@only_native
@given(id_size=st.sampled_from(SIZES), channel=st.integers(0, (1 << 64) - 1), data=messages, large=st.booleans())
@settings(max_examples=200, deadline=None)
def test_native_frames_equal_pure_frames(id_size: int, channel: int, data: list[bytes], large: bool) -> None:
    channel %= 1 << 8 * id_size
    if large:
        data = [*data, b"x" * 70_000, *data]
    lengths, payload = column(*map(len, data)), b"".join(data)
    wire = pure.frames(id_size, channel, lengths, payload)
    for view in (bytes, memoryview, bytearray):
        assert native.frames(id_size, channel, view(lengths), view(payload)) == wire
