"""The event bus's kernels: golden labels, unusual labels, and the native against the pure version."""

from __future__ import annotations

from struct import pack
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fyrehose.kernels.pure import eventbus as pure
from tests.doubles.kernels import native_kernel

native = native_kernel("eventbus")
only_native = pytest.mark.skipif(native is None, reason="the native kernels are not built")

UUID = b"7d444840-9dc0-41d1-b245-5ffdce74fad2"
ID = bytes.fromhex("7d4448409dc041d1b2455ffdce74fad2")
#: The first and the last microsecond that can be written.
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999


def event(timestamp: bytes = b"2024-05-01T10:20:30.123Z", uuid: bytes = UUID) -> list[bytes]:
    return [b"/a/", b"null", b"me", timestamp, uuid, b"data"]


def read(kernel: ModuleType, frames: list[bytes]) -> object:
    return kernel.read_event(frames, 255, 64, 1_000)


TIMES = [
    (b"2024-05-01T10:20:30.123Z", 1_714_558_830_123_000),
    (b"1970-01-01T00:00:00.000Z", 0),
    (b"1969-12-31T23:59:59.999Z", -1_000),
    (b"0001-01-01T00:00:00.000Z", FIRST),
    (b"9999-12-31T23:59:59.999Z", LAST - 999),
    (b"2024-02-29T00:00:00.000Z", 1_709_164_800_000_000),
    (b"2000-02-29T23:59:59.000Z", 951_868_799_000_000),
    (b"1900-03-01T00:00:00.000Z", -2_203_891_200_000_000),
]
NO_TIMES = [
    b"",
    b"0000-01-01T00:00:00.000Z",
    b"2023-02-29T00:00:00.000Z",
    b"1900-02-29T00:00:00.000Z",
    b"2024-00-01T00:00:00.000Z",
    b"2024-13-01T00:00:00.000Z",
    b"2024-04-31T00:00:00.000Z",
    b"2024-04-00T00:00:00.000Z",
    b"2024-04-01T24:00:00.000Z",
    b"2024-04-01T00:60:00.000Z",
    b"2024-04-01T00:00:60.000Z",
    b"2024-04-01T00:00:00.000z",
    b"2024-04-01 00:00:00.000Z",
    b"2024-04-01T00:00:00,000Z",
    b"2024-04-01T00:00:00.00Z",
    b"2024-04-01T00:00:00.0000Z",
    b"2024-04-01T00:00:00.00/Z",
    b"20:4-04-01T00:00:00.000Z",
    b"202/-04-01T00:00:00.000Z",
    b"2024-04-01T00:00:00.000\n",
    b"\xff024-04-01T00:00:00.000Z",
]
NO_UUIDS = [b"", UUID.upper(), UUID[:-1], UUID + b"0", UUID.replace(b"-", b""), b"g" + UUID[1:], b"/" + UUID[1:]]


@pytest.mark.parametrize(("timestamp", "micros"), TIMES)
def test_labels_match_their_golden_bytes_both_ways(kernel: ModuleType, timestamp: bytes, micros: int) -> None:
    assert read(kernel, event(timestamp)) == ("/a/", "me", ID, micros)
    assert kernel.rows(7, pack("<q", micros), ID, 0, 1, False) == [(bytes(7) + b"\7", timestamp, UUID)]
    assert kernel.rows(7, pack("<q", micros + 999), ID, 0, 1, True) == [(b"7", timestamp, UUID)]


@pytest.mark.parametrize(
    "frames",
    [
        *[event(timestamp) for timestamp in NO_TIMES],
        *[event(uuid=uuid) for uuid in NO_UUIDS],
        [],
        event()[:5],
        [*event(), b""],
        [b"/\xff/", *event()[1:]],
        [b"/a/", b"", b"\xff", *event()[3:]],
        [b"x" * 256, *event()[1:]],
        [b"", b"x" * 65, *event()[2:]],
        [b"", b"", b"x" * 65, *event()[3:]],
        [*event()[:5], bytes(1_001)],
    ],
)
def test_unusual_labels_are_not_parsed(kernel: ModuleType, frames: list[bytes]) -> None:
    assert read(kernel, frames) is None


def test_limits_are_inclusive(kernel: ModuleType) -> None:
    labels = [b"x" * 255, b"y" * 64, b"z" * 64]
    found = read(kernel, [*labels, *event()[3:5], bytes(1_000)])
    assert found == ("x" * 255, "z" * 64, ID, 1_714_558_830_123_000)


def test_rows_are_formatted_from_unaligned_columns(kernel: ModuleType) -> None:
    times = memoryview(b"?" + pack("<3q", 0, 1_000, 2_000))[1:]
    ids = memoryview(b"?" + bytes(16) + ID + bytes(16))[1:]
    (row,) = kernel.rows((1 << 48) - 3, times, ids, 1, 2, True)
    assert row == (b"281474976710654", b"1970-01-01T00:00:00.001Z", UUID)
    assert kernel.rows(1, times, ids, 3, 3, False) == kernel.rows(1, b"", b"", 0, 0, False) == []


@pytest.mark.parametrize(
    ("times", "ids", "start", "stop"),
    [
        (bytes(8), bytes(16), 0, 2),
        (bytes(8), bytes(16), -1, 1),
        (bytes(8), bytes(16), 1, 0),
        (bytes(9), bytes(16), 0, 1),
        (bytes(8), bytes(15), 0, 1),
        (bytes(8), bytes(32), 0, 1),
        (pack("<q", FIRST - 1), bytes(16), 0, 1),
        (pack("<q", LAST + 1), bytes(16), 0, 1),
        (pack("<q", -(1 << 63)), bytes(16), 0, 1),
        (pack("<q", (1 << 63) - 1), bytes(16), 0, 1),
    ],
)
def test_invalid_rows_are_refused(kernel: ModuleType, times: bytes, ids: bytes, start: int, stop: int) -> None:
    with pytest.raises(ValueError):
        kernel.rows(1, times, ids, start, stop, False)


@only_native
@given(
    st.lists(
        st.binary(max_size=40)
        | st.from_regex(rb"[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9]\.[0-9]{3}Z", fullmatch=True)
        | st.uuids().map(lambda uuid: str(uuid).encode())
        | st.sampled_from([*event(), *NO_TIMES, *NO_UUIDS]),
        min_size=4,
        max_size=7,
    )
)
@example(event())
def test_native_parser_equals_pure_parser(frames: list[bytes]) -> None:
    assert read(native, frames) == read(pure, frames)


@only_native
@given(
    st.from_regex(rb"[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9]\.[0-9]{3}Z", fullmatch=True),
    st.binary(min_size=36, max_size=36) | st.uuids().map(lambda uuid: str(uuid).encode()),
)
def test_native_parser_equals_pure_parser_for_valid_labels(timestamp: bytes, uuid: bytes) -> None:
    assert read(native, event(timestamp, uuid)) == read(pure, event(timestamp, uuid))


@only_native
@given(
    st.integers(0, (1 << 48) - 1),
    st.lists(st.tuples(st.integers(FIRST, LAST), st.binary(min_size=16, max_size=16)), max_size=9),
    st.booleans(),
)
def test_native_formatter_equals_pure_formatter(first: int, labels: list[tuple[int, bytes]], decimal: bool) -> None:
    times = pack(f"<{len(labels)}q", *[micros for micros, _ in labels])
    ids = b"".join(event_id for _, event_id in labels)
    written = native.rows(first, times, ids, 0, len(labels), decimal)
    assert written == pure.rows(first, times, ids, 0, len(labels), decimal)
    for (_, timestamp, uuid), (micros, event_id) in zip(written, labels, strict=True):
        assert read(native, event(timestamp, uuid)) == ("/a/", "me", event_id, micros // 1_000 * 1_000)
