"""The event bus's kernels: golden bytes, unusual labels, ends of scans, and the native against the pure version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from struct import pack
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.kernels.pure import eventbus as pure
from tests.doubles.kernels import column, native_kernel

native = native_kernel("eventbus")
only_native = pytest.mark.skipif(native is None, reason="the native kernels are not built")

UUID = b"7d444840-9dc0-41d1-b245-5ffdce74fad2"
ID = bytes.fromhex("7d4448409dc041d1b2455ffdce74fad2")
TIME, MICROS = b"2024-05-01T10:20:30.123Z", 1_714_558_830_123_000
#: The first and the last microsecond that can be written.
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
MOST = 1 << 30


def event(
    topic: bytes = b"/a/",
    sequence: bytes = b"null",
    producer: bytes = b"me",
    timestamp: bytes = TIME,
    uuid: bytes = UUID,
    data: bytes = b"data",
) -> bytes:
    """Return an event as ZMTP frames."""
    labels = (topic, sequence, producer, timestamp, uuid)
    last = bytes((0, len(data))) if len(data) < 256 else b"\2" + len(data).to_bytes(8, "big")
    return b"".join(bytes((1, len(label))) + label for label in labels) + last + data


def run(*data: bytes, topic: str = "/a/", producer: str = "me", micros: int = MICROS) -> tuple[Any, ...]:
    """Return what gather() returns for events of usual labels."""
    count = len(data)
    return topic, producer, ID * count, pack(f"<{count}q", *[micros] * count), column(*map(len, data)), b"".join(data)


def micros_of(text: bytes) -> int | None:
    """Return the microseconds since 1970 that *text* says; None if it is no time as the event bus writes it."""
    if not re.fullmatch(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text):
        return None
    *numbers, millis = map(int, re.findall(rb"\d+", text))
    try:
        moment = datetime(*numbers, millis * 1_000, tzinfo=UTC)  # type: ignore[arg-type, misc]
    except ValueError:
        return None
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def times() -> Iterator[bytes]:
    """Yield each day of some years, the ends of each field, and texts that differ from a time by one byte."""
    for year, month, day in product((0, 1, 1900, 1970, 2000, 2023, 2024, 9999), range(14), range(33)):
        yield b"%04d-%02d-%02dT00:00:00.000Z" % (year, month, day)
    for hour, minute, second, millis in product((0, 23, 24), (0, 59, 60), (0, 59, 60), (0, 1, 999)):
        for date in (b"0001-01-01", b"1969-12-31", b"2024-02-29", b"9999-12-31"):
            yield b"%sT%02d:%02d:%02d.%03dZ" % (date, hour, minute, second, millis)
    for at in range(len(TIME) + 1):
        for byte in (b"", *(bytes([each]) for each in b"/0:-TZz .,\n\xff")):
            yield TIME[:at] + byte + TIME[at + 1 :]
            yield TIME[:at] + byte + TIME[at:]


NO_UUIDS = [b"", UUID.upper(), UUID[:-1], UUID + b"0", UUID.replace(b"-", b""), b"g" + UUID[1:], b"/" + UUID[1:]]


def test_times_are_those_of_the_module_datetime_both_ways(kernel: ModuleType) -> None:
    for timestamp in times():
        wire, micros = event(timestamp=timestamp), micros_of(timestamp)
        expected = (0, []) if micros is None else (len(wire), [run(b"data", micros=micros)])
        assert kernel.gather(wire, 0, MOST, MOST) == expected, timestamp
        for more in () if micros is None else (0, 999):
            columns = (pack("<q", micros + more), ID, column(4), b"data")
            assert kernel.frames(b"", b"/a/", b"me", 7, *columns, True) == event(sequence=b"7", timestamp=timestamp)


def test_events_match_their_golden_bytes(kernel: ModuleType) -> None:
    columns = (pack("<q", MICROS), ID, column(4), b"data")
    assert kernel.frames(b"", b"/a/", b"me", 7, *columns, False) == event(sequence=bytes(7) + b"\7")
    assert kernel.frames(b"\1\4SYNC", b"/a/", b"me", 7, *columns, True) == b"\1\4SYNC" + event(sequence=b"7")


def test_events_of_equal_topic_and_producer_are_one_run(kernel: ModuleType) -> None:
    wire = (
        event(data=b"1")
        + event(data=b"")
        + event(topic=b"/b/", data=b"x" * 300)
        + event(topic=b"/b/", producer=b"you")
        + event()
    )
    assert kernel.gather(b"?" + wire, 1, MOST, MOST) == (
        1 + len(wire),
        [
            run(b"1", b""),
            run(b"x" * 300, topic="/b/"),
            run(b"data", topic="/b/", producer="you"),
            run(b"data"),
        ],
    )


#: Bytes at which gather() stops.
OTHER = [
    event(timestamp=b"2023-02-29T00:00:00.000Z"),
    *[event(uuid=uuid) for uuid in NO_UUIDS],
    event(topic=b"/\xff/"),
    event(producer=b"\xff"),
    event(producer=b"x" * 65),
    event(sequence=b"x" * 65),
    event(data=b"x" * 1_001),
    event()[:-1],
    event(data=b"x" * 300)[:-301],
    event()[:10],
    event()[:1],
    b"",
    b"\1\0" + event(),
    b"\0\0",
    b"\4\5\4PING",
    event().replace(b"\1\x24", b"\0\x24"),
    event()[:-6] + b"\1\4data",
    event()[:-6] + b"\4\4data",
    event(data=b"x" * 300).replace(b"\2\0", b"\2\x80"),
]


@pytest.mark.parametrize("other", OTHER)
def test_scan_stops_before_other_bytes(kernel: ModuleType, other: bytes) -> None:
    assert kernel.gather(event() + other, 0, 1_000, MOST) == (len(event()), [run(b"data")])
    assert kernel.gather(other, 0, 1_000, MOST) == (0, [])


def test_limits_are_inclusive(kernel: ModuleType) -> None:
    wire = event(b"x" * 255, b"y" * 64, b"z" * 64, data=bytes(1_000))
    assert kernel.gather(wire, 0, 1_000, MOST)[1] == [run(bytes(1_000), topic="x" * 255, producer="z" * 64)]


def test_scan_is_bounded_but_never_empty(kernel: ModuleType) -> None:
    wire = event() * 5
    for most, count in ((0, 1), (7, 1), (8, 2), (11, 2), (12, 3)):
        assert kernel.gather(wire, 0, MOST, most) == (count * len(event()), [run(*[b"data"] * count)])
    topics = b"".join(event(b"%d" % n) for n in range(300))
    end, runs = kernel.gather(topics, 0, MOST, MOST)
    assert (len(runs), runs[-1][0]) == (256, "255")
    assert kernel.gather(topics, end, MOST, MOST)[1][0][0] == "256"


def test_large_payloads_are_copied(kernel: ModuleType) -> None:
    wire = event(data=bytes(200_000)) * 2
    assert kernel.gather(wire, 0, MOST, MOST) == (len(wire), [run(bytes(200_000), bytes(200_000))])


def test_columns_may_be_unaligned_and_empty(kernel: ModuleType) -> None:
    times = memoryview(b"?" + pack("<2q", 0, 1_000))[1:]
    ids = memoryview(b"?" + bytes(16) + ID)[1:]
    encoded = kernel.frames(b"", b"", b"", (1 << 48) - 3, times, ids, column(1, 0), b"x", True)
    zero = b"00000000-0000-0000-0000-000000000000"
    assert encoded == (
        event(b"", b"281474976710653", b"", b"1970-01-01T00:00:00.000Z", zero, b"x")
        + event(b"", b"281474976710654", b"", b"1970-01-01T00:00:00.001Z", UUID, b"")
    )
    assert kernel.frames(b"", b"", b"", 1, b"", b"", b"", b"", False) == b""


@pytest.mark.parametrize(
    "arguments",
    [
        (b"", b"", 1, bytes(16), bytes(16), column(0), b""),
        (b"", b"", 1, bytes(8), bytes(15), column(0), b""),
        (b"", b"", 1, bytes(8), bytes(16), column(1), b""),
        (b"", b"", 1, bytes(8), bytes(16), column(0), b"x"),
        (b"", b"", 1, bytes(8), bytes(16), b"123", b""),
        (b"x" * 256, b"", 1, bytes(8), bytes(16), column(0), b""),
        (b"", b"x" * 256, 1, bytes(8), bytes(16), column(0), b""),
        (b"", b"", -1, bytes(8), bytes(16), column(0), b""),
        (b"", b"", 1 << 64, bytes(8), bytes(16), column(0), b""),
        (b"", b"", 1, pack("<q", FIRST - 1), bytes(16), column(0), b""),
        (b"", b"", 1, pack("<q", LAST + 1), bytes(16), column(0), b""),
        (b"", b"", 1, pack("<q", -(1 << 63)), bytes(16), column(0), b""),
        (b"", b"", 1, pack("<q", (1 << 63) - 1), bytes(16), column(0), b""),
    ],
)
def test_invalid_columns_are_refused(kernel: ModuleType, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError):
        kernel.frames(b"", *arguments, False)


LABELS = st.sampled_from([b"", b"/a/", b"/b/", b"\xff", b"x" * 64, b"x" * 65, b"null"])
EVENTS = st.builds(
    event,
    topic=LABELS,
    sequence=LABELS,
    producer=LABELS,
    timestamp=st.just(TIME)
    | st.from_regex(rb"[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9]\.[0-9]{3}Z", fullmatch=True),
    uuid=st.just(UUID) | st.sampled_from(NO_UUIDS) | st.uuids().map(lambda uuid: str(uuid).encode()),
    data=st.binary(max_size=20) | st.just(b"x" * 300),
)


@only_native
@given(st.lists(EVENTS | st.binary(max_size=10), max_size=6).map(b"".join), st.integers(0, 400), st.integers(0, 400))
def test_native_parser_equals_pure_parser(wire: bytes, largest: int, most: int) -> None:
    start = 0
    while True:
        found = native.gather(wire, start, largest, most)
        assert found == pure.gather(wire, start, largest, most)
        if not found[1]:
            break
        start = found[0]


@only_native
@given(
    st.integers(0, (1 << 48) - 1),
    st.lists(
        st.tuples(st.integers(FIRST, LAST), st.binary(min_size=16, max_size=16), st.binary(max_size=300)), max_size=9
    ),
    st.booleans(),
)
def test_native_formatter_equals_pure_formatter(
    first: int, rows: list[tuple[int, bytes, bytes]], decimal: bool
) -> None:
    times = pack(f"<{len(rows)}q", *[micros for micros, _, _ in rows])
    ids, payload = b"".join(each for _, each, _ in rows), b"".join(data for _, _, data in rows)
    lengths = column(*[len(data) for _, _, data in rows])
    arguments = (b"\1\4SYNC", b"/a/", b"me", first, times, ids, lengths, payload, decimal)
    assert native.frames(*arguments) == pure.frames(*arguments)
