"""The Figg kernels: golden bytes, ends of scans, and the native against the pure version."""

from __future__ import annotations

from struct import pack
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.kernels.pure import figg as pure
from tests.doubles.kernels import column, native_kernel

native = native_kernel("figg")
only_native = pytest.mark.skipif(native is None, reason="the native kernels are not built")

PUBLISH, DATA = 5, 7
MOST = 1 << 30


def frame(number: int, data: bytes, topic: bytes = b"t", kind: int = PUBLISH, version: int = 1) -> bytes:
    payload = pack(">I", len(topic)) + topic + pack(">QI", number, len(data)) + data
    return pack(">HHI", kind, version, len(payload)) + payload


def test_frames_match_their_golden_bytes(kernel: ModuleType) -> None:
    encoded = kernel.frames(DATA, b"ab", 0x0102030405060708, column(1, 0), b"x")
    assert encoded == bytes.fromhex(
        "0007 0001 00000013 00000002 6162 0102030405060708 00000001 78"
        "0007 0001 00000012 00000002 6162 0102030405060709 00000000"
    )
    end, topic, first, count, lengths, payload = kernel.scan(encoded, 0, DATA, MOST, MOST)
    assert (end, topic, first, count) == (len(encoded), b"ab", 0x0102030405060708, 2)
    assert (lengths, payload) == (column(1, 0), b"x")


#: Bytes at which both scan() and gather() stop.
OTHER = [
    frame(3, b"data", kind=6),
    frame(3, b"data", version=2),
    frame(2, b"data"),
    frame(3, b"data")[:-1],
    frame(3, b"data")[:11],
    b"",
    frame(3, b"data" * 30),  # more than the largest
    pack(">HHI", 5, 1, 21) + pack(">I", 1) + b"t" + pack(">QI", 3, 3) + b"data",  # shorter inside than outside
    pack(">HHI", 5, 1, 21) + pack(">I", 1) + b"t" + pack(">QI", 3, 5) + b"data",
    pack(">HHI", 5, 1, 20) + pack(">I", 0) + pack(">QI", 3, 4) + b"data",  # no topic
    pack(">HHI", 5, 1, 5) + pack(">I", 0xFFFFFFFF) + b"t" + pack(">QI", 3, 4) + b"data",
    pack(">HHI", 5, 1, 0xFFFFFFFF) + pack(">I", 1) + b"t" + pack(">QI", 3, 4) + b"data",
    pack(">HHI", 5, 1, 0),
]


@pytest.mark.parametrize(
    "other", [*OTHER, frame(3, b"data", topic=b"u"), frame(3, b"data", topic=b"tt"), frame(4, b"data")]
)
def test_scan_stops_before_other_frames(kernel: ModuleType, other: bytes) -> None:
    good = frame(1, b"one") + frame(2, b"")
    assert kernel.scan(good + other, 0, PUBLISH, 100, MOST) == (len(good), b"t", 1, 2, column(3, 0), b"one")


def test_scan_is_bounded_but_never_empty(kernel: ModuleType) -> None:
    many = b"".join(frame(i, b"x" * 100) for i in range(1, 11))
    assert kernel.scan(many, 0, PUBLISH, MOST, 350)[3] == 3
    assert kernel.scan(many, 0, PUBLISH, MOST, 300)[3] == 3
    assert kernel.scan(many, 0, PUBLISH, MOST, 299)[3] == 2
    assert kernel.scan(many, 0, PUBLISH, MOST, 1)[3] == 1


def test_numbers_do_not_overflow(kernel: ModuleType) -> None:
    last = (1 << 64) - 1
    assert kernel.scan(frame(last, b"a") + frame(0, b"b"), 0, PUBLISH, MOST, MOST)[3] == 1
    with pytest.raises(ValueError, match="cannot be framed"):
        kernel.frames(DATA, b"t", last, column(1, 1), b"ab")
    assert kernel.frames(DATA, b"t", last, column(1), b"a") == frame(last, b"a", kind=DATA)


def test_topic_of_255_bytes_is_the_longest(kernel: ModuleType) -> None:
    topic = b"t" * 255
    wire = frame(1, b"a", topic)
    assert kernel.frames(PUBLISH, topic, 1, column(1), b"a") == wire
    assert kernel.scan(wire, 0, PUBLISH, MOST, MOST)[1] == topic
    assert kernel.scan(frame(1, b"a", topic + b"t"), 0, PUBLISH, MOST, MOST)[3] == 0


@pytest.mark.parametrize(
    ("topic", "lengths", "payload"),
    [(b"", column(1), b"a"), (b"t" * 256, column(1), b"a"), (b"t", column(2), b"a"), (b"t", b"\1\0\0", b"a")],
)
def test_columns_that_do_not_match_are_refused(
    kernel: ModuleType, topic: bytes, lengths: bytes, payload: bytes
) -> None:
    with pytest.raises(ValueError, match="cannot be framed"):
        kernel.frames(DATA, topic, 1, lengths, payload)


def test_gather_groups_frames_by_topic(kernel: ModuleType) -> None:
    wire = frame(1, b"one", b"a") + frame(2, b"", b"b") + frame(3, b"three", b"a") + frame(4, b"four", b"b")
    assert kernel.gather(wire, 0, PUBLISH, 100, MOST) == (
        len(wire),
        4,
        [
            ("a", pack("<2Q", 1, 3), column(3, 5), b"onethree"),
            ("b", pack("<2Q", 2, 4), column(0, 4), b"four"),
        ],
    )
    assert kernel.gather(frame(7, b"x") + frame(8, b"y"), 0, PUBLISH, 100, MOST)[2] == [("t", 7, column(1, 1), b"xy")]


@pytest.mark.parametrize("other", [*OTHER, frame(3, b"data", b"\xff"), frame(0, b"data", b"u")])
def test_gather_stops_before_other_frames(kernel: ModuleType, other: bytes) -> None:
    good = frame(1, b"one") + frame(2, b"")
    assert kernel.gather(good + other, 0, PUBLISH, 100, MOST) == (len(good), 2, [("t", 1, column(3, 0), b"one")])
    if other != frame(2, b"data"):
        assert kernel.gather(other, 0, PUBLISH, 100, MOST)[2] == [] or other == frame(0, b"data", b"u")


def test_gather_is_bounded_but_never_empty(kernel: ModuleType) -> None:
    many = b"".join(frame(i, b"x" * 100, b"%d" % (i % 3)) for i in range(1, 11))
    assert kernel.gather(many, 0, PUBLISH, MOST, 350)[1] == 3
    assert kernel.gather(many, 0, PUBLISH, MOST, 300)[1] == 3
    assert kernel.gather(many, 0, PUBLISH, MOST, 299)[1] == 2
    assert kernel.gather(many, 0, PUBLISH, MOST, 1)[1] == 1
    topics = b"".join(frame(i, b"x", b"%d" % i) for i in range(1, 2 * pure.TOPICS))
    end, last, runs = kernel.gather(topics, 0, PUBLISH, MOST, MOST)
    assert (last, len(runs)) == (pure.TOPICS, pure.TOPICS)
    assert kernel.gather(topics, end, PUBLISH, MOST, MOST)[1] == 2 * pure.TOPICS - 1
    assert [run[0] for run in runs] == [str(i) for i in range(1, pure.TOPICS + 1)]


messages = st.lists(st.binary(max_size=40), max_size=12)


@only_native
@given(
    topic=st.binary(min_size=1, max_size=8),
    first=st.integers(0, (1 << 64) - 1),
    data=messages,
    cut=st.integers(0, 60),
    flip=st.tuples(st.integers(0, 400), st.integers(0, 255)),
    largest=st.sampled_from([5, 40, MOST]),
    most=st.sampled_from([1, 60, MOST]),
    start=st.integers(0, 3),
)
@settings(max_examples=600, deadline=None)
def test_native_scan_equals_pure_scan(
    topic: bytes, first: int, data: list[bytes], cut: int, flip: tuple[int, int], largest: int, most: int, start: int
) -> None:
    first = min(first, (1 << 64) - len(data))
    wire = bytearray(b"#" * start + b"".join(frame(first + i, d, topic) for i, d in enumerate(data)))
    wire = wire[: max(start, len(wire) - cut)]
    if flip[0] < len(wire):
        wire[flip[0]] ^= flip[1]
    for buffer in (wire, bytes(wire)):
        assert native.scan(buffer, start, PUBLISH, largest, most) == pure.scan(buffer, start, PUBLISH, largest, most)


@only_native
@given(
    sent=st.lists(
        st.tuples(
            st.sampled_from([b"a", b"b", b"ab", b"\xe2\x98\x83", b"\xe2"]), st.integers(0, 3), st.binary(max_size=9)
        ),
        max_size=20,
    ),
    first=st.sampled_from([0, 1, (1 << 64) - 20]),
    cut=st.integers(0, 60),
    flip=st.tuples(st.integers(0, 400), st.integers(0, 255)),
    largest=st.sampled_from([5, MOST]),
    most=st.sampled_from([1, 30, MOST]),
    start=st.integers(0, 3),
)
@settings(max_examples=600, deadline=None)
def test_native_gather_equals_pure_gather(
    sent: list[tuple[bytes, int, bytes]],
    first: int,
    cut: int,
    flip: tuple[int, int],
    largest: int,
    most: int,
    start: int,
) -> None:
    wire, number = bytearray(b"#" * start), first
    for topic, step, data in sent:
        number = (number + step) % (1 << 64)
        wire += frame(number, data, topic)
    wire = wire[: max(start, len(wire) - cut)]
    if flip[0] < len(wire):
        wire[flip[0]] ^= flip[1]
    for buffer in (wire, bytes(wire)):
        assert native.gather(buffer, start, PUBLISH, largest, most) == pure.gather(
            buffer, start, PUBLISH, largest, most
        )


@only_native
@given(topic=st.binary(min_size=1, max_size=255), first=st.integers(0, 1 << 63), data=messages)
@settings(max_examples=200, deadline=None)
def test_native_frames_equal_pure_frames(topic: bytes, first: int, data: list[bytes]) -> None:
    lengths, payload = column(*map(len, data)), b"".join(data)
    wire = b"".join(frame(first + i, d, topic, DATA) for i, d in enumerate(data))
    for view in (bytes, memoryview, bytearray):
        assert native.frames(DATA, topic, first, view(lengths), view(payload)) == wire
        assert pure.frames(DATA, topic, first, view(lengths), view(payload)) == wire
