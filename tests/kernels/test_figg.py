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


#: Bytes at which both scan() and gather() stop, if the largest data has 100 bytes.
OTHER = [
    frame(3, b"data", kind=6),
    frame(3, b"data", version=2),
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
    frame(3, b"data", topic=b"t" * 256),
]


#: A frame and what it says: its topic, number and data; None if no kernel takes it.
Said = tuple[bytes, tuple[bytes, int, bytes] | None]


def expected_scan(sent: list[Said], start: int, most: int) -> tuple[int, bytes, int, int, bytes, bytes]:
    """Return what scan() returns for frames of which only the first ones have one topic and consecutive numbers."""
    run: list[tuple[bytes, int, bytes]] = []
    for wire, said in sent:
        fits = said is not None and sum(len(data) for *_, data in run) + len(said[2]) <= most
        if said is None or (run and (not fits or said[:2] != (run[0][0], run[-1][1] + 1))):
            break
        run.append(said)
        start += len(wire)
    topic, first = run[0][:2] if run else (b"", 0)
    return start, topic, first, len(run), column(*(len(data) for *_, data in run)), b"".join(data for *_, data in run)


def expected_gather(
    sent: list[Said], start: int, most: int
) -> tuple[int, int, list[tuple[str, int | bytes, bytes, bytes]]]:
    """Return what gather() returns for frames of which only the first ones have rising numbers and topics of text."""
    taken: list[tuple[bytes, int, bytes]] = []
    for wire, said in sent:
        if said is None or said[0] == BAD_TEXT:
            break
        if taken and (said[1] <= taken[-1][1] or sum(len(data) for *_, data in taken) + len(said[2]) > most):
            break
        taken.append(said)
        start += len(wire)
    runs = []
    for topic in dict.fromkeys(topic for topic, *_ in taken):
        numbers, data = zip(*(said[1:] for said in taken if said[0] == topic), strict=True)
        consecutive = numbers == tuple(range(numbers[0], numbers[0] + len(numbers)))
        first = numbers[0] if consecutive else pack(f"<{len(numbers)}Q", *numbers)
        runs.append((topic.decode(), first, column(*map(len, data)), b"".join(data)))
    return start, taken[-1][1] if taken else 0, runs


BAD_TEXT, LARGEST = b"\xe2", 100


@st.composite
def streams(draw: st.DrawFn) -> list[Said]:
    """Generate frames whose numbers mostly rise by one, with other bytes among them."""
    sent: list[Said] = []
    number = draw(st.sampled_from([0, 1, (1 << 64) - 9]))
    for _ in range(draw(st.integers(0, 12))):
        if draw(st.integers(0, 9)) == 0:
            return [*sent, (draw(st.sampled_from(OTHER)), None)]
        topic = draw(st.sampled_from([b"a", b"a", b"b", b"\xe2\x98\x83", BAD_TEXT, b"t" * 255]))
        data = draw(st.sampled_from([b"", b"one", b"nine char", bytes(LARGEST)]))
        number = (number + draw(st.sampled_from([1, 1, 1, 0, 2, -1]))) % (1 << 64)
        sent.append((frame(number, data, topic), (topic, number, data)))
    return sent


@given(streams(), st.sampled_from([0, 2, 3, 6, 9, 11, 12, 100, 102, 103, MOST]), st.integers(0, 3))
@settings(max_examples=600, deadline=None)
def test_frames_are_scanned_and_gathered_as_a_model_of_single_frames_says(
    sent: list[Said], most: int, start: int
) -> None:
    wire = b"#" * start + b"".join(each for each, _ in sent)
    for kernel in (pure, native or pure):
        assert kernel.scan(wire, start, PUBLISH, LARGEST, most) == expected_scan(sent, start, most)
        assert kernel.gather(wire, start, PUBLISH, LARGEST, most) == expected_gather(sent, start, most)


def test_number_of_topics_is_limited(kernel: ModuleType) -> None:
    topics = b"".join(frame(i, b"x", b"%d" % i) for i in range(1, 2 * pure.TOPICS))
    end, last, runs = kernel.gather(topics, 0, PUBLISH, MOST, MOST)
    assert (last, len(runs)) == (pure.TOPICS, pure.TOPICS)
    assert kernel.gather(topics, end, PUBLISH, MOST, MOST)[1] == 2 * pure.TOPICS - 1
    assert [run[0] for run in runs] == [str(i) for i in range(1, pure.TOPICS + 1)]


def test_numbers_do_not_overflow(kernel: ModuleType) -> None:
    last = (1 << 64) - 1
    with pytest.raises(ValueError, match="cannot be framed"):
        kernel.frames(DATA, b"t", last, column(1, 1), b"ab")
    assert kernel.frames(DATA, b"t", last, column(1), b"a") == frame(last, b"a", kind=DATA)


@pytest.mark.parametrize(
    ("topic", "lengths", "payload"),
    [(b"", column(1), b"a"), (b"t" * 256, column(1), b"a"), (b"t", column(2), b"a"), (b"t", b"\1\0\0", b"a")],
)
def test_columns_that_do_not_match_are_refused(
    kernel: ModuleType, topic: bytes, lengths: bytes, payload: bytes
) -> None:
    with pytest.raises(ValueError, match="cannot be framed"):
        kernel.frames(DATA, topic, 1, lengths, payload)


@only_native
@given(streams(), st.tuples(st.integers(0, 400), st.integers(1, 255)), st.integers(0, 60))
@settings(max_examples=600, deadline=None)
def test_native_kernels_judge_changed_bytes_as_the_pure_ones(sent: list[Said], flip: tuple[int, int], cut: int) -> None:
    wire = bytearray(b"".join(each for each, _ in sent))
    wire = wire[: max(0, len(wire) - cut)]
    if flip[0] < len(wire):
        wire[flip[0]] ^= flip[1]
    for buffer in (wire, bytes(wire)):
        assert native.scan(buffer, 0, PUBLISH, LARGEST, MOST) == pure.scan(buffer, 0, PUBLISH, LARGEST, MOST)
        assert native.gather(buffer, 0, PUBLISH, LARGEST, MOST) == pure.gather(buffer, 0, PUBLISH, LARGEST, MOST)


messages = st.lists(st.binary(max_size=40), max_size=12)


@only_native
@given(topic=st.binary(min_size=1, max_size=255), first=st.integers(0, 1 << 63), data=messages)
@settings(max_examples=200, deadline=None)
def test_native_frames_equal_pure_frames(topic: bytes, first: int, data: list[bytes]) -> None:
    lengths, payload = column(*map(len, data)), b"".join(data)
    wire = b"".join(frame(first + i, d, topic, DATA) for i, d in enumerate(data))
    for view in (bytes, memoryview, bytearray):
        assert native.frames(DATA, topic, first, view(lengths), view(payload)) == wire
        assert pure.frames(DATA, topic, first, view(lengths), view(payload)) == wire
