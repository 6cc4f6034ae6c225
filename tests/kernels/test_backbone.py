"""The backbone kernels: golden bytes, invalid input, and the native against the pure version."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fyrehose.kernels.pure import backbone as pure
from tests.doubles.kernels import column, native_kernel

native = native_kernel("backbone")
only_native = pytest.mark.skipif(native is None, reason="the native kernels are not built")


def push(data: bytes, length: int | None = None) -> bytes:
    return b"\x02" + (len(data) if length is None else length).to_bytes(2, "big") + b"unused" + data


def deliver(seq: int, data: bytes) -> bytes:
    return b"\x01" + len(data).to_bytes(2, "big") + seq.to_bytes(6, "big") + data


def test_datagrams_match_their_golden_bytes(kernel: ModuleType) -> None:
    assert kernel.encode_pushes(column(2, 0), b"hi") == bytes.fromhex("020002000000000000 6869 020000000000000000")
    assert kernel.encode_delivers(0x010203040506, column(1), b"x") == bytes.fromhex("010001010203040506 78")
    assert kernel.encode_delivers(2, column(1, 0, 2), b"abc") == deliver(2, b"a") + deliver(3, b"") + deliver(4, b"bc")
    assert kernel.encode_pushes(b"", b"") == b""


def test_batch_of_datagrams_is_scanned_into_columns(kernel: ModuleType) -> None:
    train = push(b"one") + push(b"two") + push(b"3")
    assert kernel.scan_pushes(train, 0, len(train), 12) == (len(train), 3, column(3, 3, 1), b"onetwo3")
    train = deliver(7, b"one") + deliver(8, b"two") + deliver(9, b"")
    assert kernel.scan_delivers(train, 0, len(train), 12) == (len(train), 3, 7, column(3, 3, 0), b"onetwo")


def test_scan_stops_before_other_datagrams(kernel: ModuleType) -> None:
    good = push(b"ok!")
    for bad in (deliver(1, b"abc"), push(b"abc", 4), push(b"abc", 12), b"\x40" + good[1:], good[:8]):
        train = good + good + bad
        assert kernel.scan_pushes(train, 0, len(train), 12) == (24, 2, column(3, 3), b"ok!ok!"), bad
        assert kernel.scan_pushes(train, 24, len(train), 12) == (24, 0, b"", b""), bad
    good = deliver(1, b"ok!")
    for bad in (deliver(3, b"abc"), deliver(1, b"abc"), deliver(0, b"abc"), push(b"abc"), deliver(2, b"abc")[:8]):
        train = good + bad
        assert kernel.scan_delivers(train, 0, len(train), 12) == (12, 1, 1, column(3), b"ok!"), bad
    assert kernel.scan_delivers(deliver(0, b""), 0, 9, 9) == (0, 0, 0, b"", b"")
    assert kernel.scan_pushes(b"", 0, 0, 1) == (0, 0, b"", b"")
    assert kernel.scan_delivers(b"", 0, 0, 1) == (0, 0, 0, b"", b"")


def test_total_lengths_are_accepted_by_option_only(kernel: ModuleType) -> None:
    datagram = push(b"abc", 12)
    assert kernel.scan_pushes(datagram, 0, 12, 12)[1] == 0
    assert kernel.scan_pushes(datagram, 0, 12, 12, True) == (12, 1, column(3), b"abc")
    assert kernel.scan_pushes(push(b"abc", 11), 0, 12, 12, True)[1] == 0


def test_largest_datagram_is_scanned_and_encoded(kernel: ModuleType) -> None:
    data = bytes(pure.MAX_DATA)
    datagram = kernel.encode_pushes(column(len(data)), data)
    assert len(datagram) == 65_507
    assert kernel.scan_pushes(datagram, 0, len(datagram), len(datagram))[1:3] == (1, column(pure.MAX_DATA))
    datagram = kernel.encode_delivers(1, column(len(data)), data)
    assert kernel.scan_delivers(datagram, 0, len(datagram), len(datagram))[1:4] == (1, 1, column(pure.MAX_DATA))
    for encode in (lambda *columns: kernel.encode_delivers(1, *columns), kernel.encode_pushes):
        with pytest.raises(ValueError, match="65499 bytes of DATA do not fit"):
            encode(column(len(data) + 1), data + b"!")
    for kind, scan in ((b"\x02", kernel.scan_pushes), (b"\x01", kernel.scan_delivers)):
        larger = kind + (65_499).to_bytes(2, "big") + (1).to_bytes(6, "big") + bytes(65_499)
        assert scan(larger, 0, len(larger), len(larger))[1] == 0


def test_length_field_must_match_the_datagram(kernel: ModuleType) -> None:
    for size in range(40):
        for said in range(300):
            datagram = (b"\x02" + said.to_bytes(2, "big") + bytes(37))[:size]
            taken = kernel.scan_pushes(datagram, 0, size, max(size, 1))[1]
            assert taken == (size >= 9 and said == size - 9), (size, said)


@pytest.mark.parametrize(
    ("start", "stop", "segment"), [(0, 13, 12), (-1, 12, 12), (5, 4, 12), (0, 12, 0), (0, 12, -1), (13, 13, 1)]
)
def test_invalid_bounds_are_refused(kernel: ModuleType, start: int, stop: int, segment: int) -> None:
    for scan in (kernel.scan_pushes, kernel.scan_delivers):
        with pytest.raises(ValueError, match="must hold"):
            scan(push(b"abc"), start, stop, segment)


def test_columns_that_do_not_match_are_refused(kernel: ModuleType) -> None:
    for lengths, payload in ((column(3), b"ab"), (column(3), b"abcd"), (b"", b"a"), (column(1, 2), b"ab")):
        with pytest.raises(ValueError, match="add up"):
            kernel.encode_pushes(lengths, payload)
    for broken in (kernel.encode_pushes, lambda lengths, _: kernel.cut_trains(lengths, 1, 1)):
        with pytest.raises(ValueError, match="four bytes"):
            broken(b"\x01\0\0", b"a")
    for first in (0, -1, pure.LAST_SEQ, 1 << 64):
        with pytest.raises(ValueError, match="sequences"):
            kernel.encode_delivers(first, column(1, 1), b"ab")
    with pytest.raises(ValueError, match="sequences"):
        kernel.encode_delivers(pure.LAST_SEQ - 1, column(0, 0, 0), b"")
    assert kernel.encode_delivers(pure.LAST_SEQ - 2, column(0, 0, 0), b"")[18:] == b"\x01\0\0" + b"\xff" * 6


def test_batches_of_datagrams_end_where_the_size_changes_or_a_call_is_full(kernel: ModuleType) -> None:
    cut = kernel.cut_trains
    assert cut(column(1, 1, 1), 65_507, 64) == [(30, 10)]
    assert cut(column(3, 3, 1, 3), 65_507, 64) == [(12 + 12 + 10, 12), (12, 12)]  # a shorter one ends its train
    assert cut(column(1, 3), 65_507, 64) == [(10, 10), (12, 12)]  # a longer one begins another
    assert cut(column(1, 1, 1), 65_507, 2) == [(20, 10), (10, 10)]
    assert cut(column(1, 1, 1), 30, 64) == [(30, 10)]
    assert cut(column(1, 1, 1), 29, 64) == [(20, 10), (10, 10)]
    assert cut(column(100), 9, 1) == [(109, 109)]
    assert cut(b"", 9, 1) == []


payloads = st.lists(st.binary(max_size=40) | st.just(b"same size"), max_size=70)


# The native ones agree with the pure ones (below), so one of them is enough here.
@given(payloads=payloads, most=st.integers(1, 70), size=st.integers(9, 400))
def test_batches_have_every_datagram_once_and_can_be_split_into_datagrams(
    payloads: list[bytes], most: int, size: int
) -> None:
    kernel = native or pure
    lengths = column(*map(len, payloads))
    data = kernel.encode_pushes(lengths, b"".join(payloads))
    begin = 0
    found: list[bytes] = []
    for taken, segment in kernel.cut_trains(lengths, size, most):
        datagrams = [data[at : min(at + segment, begin + taken)] for at in range(begin, begin + taken, segment)]
        assert len(datagrams) == 1 or (len(datagrams) <= most and taken <= size)
        end, count, _, _ = kernel.scan_pushes(data, begin, begin + taken, segment)
        assert (end, count) == (begin + taken, len(datagrams))
        found += [datagram[9:] for datagram in datagrams]
        begin += taken
    assert found == payloads
    assert begin == len(data)


@st.composite
def buffers(draw: st.DrawFn) -> tuple[bytes, int, int, int]:
    """Generate mostly well-formed trains, with a few bytes changed, and valid bounds."""
    size = draw(st.integers(0, 12))
    first = draw(st.integers(0, 3) | st.integers(pure.LAST_SEQ - 3, pure.LAST_SEQ))
    count = draw(st.integers(0, 6))
    kinds = draw(st.lists(st.sampled_from([1, 1, 2, 2, 4]), min_size=count, max_size=count))
    data = bytearray()
    for i, kind in enumerate(kinds):
        seq = min(first + i, pure.LAST_SEQ)
        data += bytes([kind]) + size.to_bytes(2, "big") + seq.to_bytes(6, "big") + bytes(range(size))
    data += draw(st.binary(max_size=12))
    for at, value in draw(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3)):
        if at < len(data):
            data[at] = value
    start = draw(st.integers(0, len(data))) if draw(st.booleans()) else 0
    segment = draw(st.just(size + 9) | st.integers(1, 40))
    return bytes(data), start, len(data), segment


@only_native
@settings(max_examples=300)
@given(buffer=buffers(), total=st.booleans())
@example(buffer=(b"", 0, 0, 1), total=False)
def test_native_scans_equal_pure_scans(buffer: tuple[bytes, int, int, int], total: bool) -> None:
    data, *bounds = buffer
    for kind in (bytes, bytearray, memoryview):
        assert native.scan_pushes(kind(data), *bounds, total) == pure.scan_pushes(kind(data), *bounds, total)
        assert native.scan_delivers(kind(data), *bounds) == pure.scan_delivers(kind(data), *bounds)


@only_native
@given(
    first=st.integers(1, 9) | st.integers(pure.LAST_SEQ - 80, pure.LAST_SEQ - 70) | st.integers(2**32 - 9, 2**32),
    payloads=payloads,
    most=st.integers(1, 70),
    size=st.integers(1, 400),
)
def test_native_encoders_equal_pure_encoders(first: int, payloads: list[bytes], most: int, size: int) -> None:
    lengths, payload = column(*map(len, payloads)), b"".join(payloads)
    # A column may begin at any address.
    shifted = memoryview(b"x" + lengths)[1:]
    assert native.encode_delivers(first, shifted, payload) == pure.encode_delivers(first, lengths, payload)
    assert native.encode_pushes(shifted, payload) == pure.encode_pushes(lengths, payload)
    assert native.cut_trains(shifted, size, most) == pure.cut_trains(lengths, size, most)
