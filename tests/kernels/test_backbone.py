"""The backbone kernels: golden bytes, invalid input, and the native against the pure version."""

from __future__ import annotations

from itertools import product
from types import ModuleType

import pytest
from hypothesis import given, settings
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


@st.composite
def trains(draw: st.DrawFn) -> tuple[list[bytes], int]:
    """Generate datagrams of one size, the last of which may be shorter, and that size."""
    size = draw(st.integers(0, 12))
    first = draw(st.integers(0, 3) | st.integers(pure.LAST_SEQ - 3, pure.LAST_SEQ))
    kind = draw(st.sampled_from([1, 2]))
    datagrams = []
    for at in range(draw(st.integers(0, 6))):
        seq = min(first + at + draw(st.sampled_from([0, 0, 0, 1])), pure.LAST_SEQ)
        said = size + draw(st.sampled_from([0, 0, 0, 0, 9, 1]))
        head = bytes([draw(st.sampled_from([kind] * 6 + [1, 2, 4]))]) + said.to_bytes(2, "big") + seq.to_bytes(6, "big")
        datagrams.append(head + draw(st.binary(min_size=size, max_size=size)))
    if datagrams and draw(st.booleans()):
        datagrams[-1] = datagrams[-1][: draw(st.integers(1, size + 9))]
    return datagrams, size + 9


def pushed(datagrams: list[bytes], total: bool) -> list[bytes]:
    """Return the data of the first datagrams that are a PUSH each."""
    sizes = [{len(each) - 9, len(each)} if total else {len(each) - 9} for each in datagrams]
    good = [
        len(each) >= 9 and each[0] == 2 and int.from_bytes(each[1:3], "big") in size
        for each, size in zip(datagrams, sizes, strict=True)
    ]
    return [each[9:] for each in datagrams[: [*good, False].index(False)]]


def delivered(datagrams: list[bytes]) -> tuple[int, list[bytes]]:
    """Return the first number and the data of the first datagrams that are a DELIVER each, with consecutive numbers."""
    first, found = 0, list[bytes]()
    for each in datagrams:
        seq = int.from_bytes(each[3:9], "big")
        if len(each) < 9 or each[:3] != b"\x01" + (len(each) - 9).to_bytes(2, "big") or not seq:
            break
        if found and seq != first + len(found):
            break
        first = first or seq
        found.append(each[9:])
    return first, found


@settings(max_examples=500, deadline=None)
@given(trains(), st.booleans(), st.binary(max_size=3), st.binary(max_size=3))
def test_trains_are_scanned_as_a_model_of_single_datagrams_says(
    train: tuple[list[bytes], int], total: bool, before: bytes, behind: bytes
) -> None:
    datagrams, segment = train
    data = before + b"".join(datagrams)
    bounds = (len(before), len(data), segment)
    pushes, (first, delivers) = pushed(datagrams, total), delivered(datagrams)

    def columns(found: list[bytes]) -> tuple[bytes, bytes]:
        return column(*map(len, found)), b"".join(found)

    for kernel, kind in product((pure, native or pure), (bytes, bytearray, memoryview)):
        wire = kind(data + behind)
        end = len(before) + len(pushes) * 9 + sum(map(len, pushes))
        assert kernel.scan_pushes(wire, *bounds, total) == (end, len(pushes), *columns(pushes))
        end = len(before) + len(delivers) * 9 + sum(map(len, delivers))
        assert kernel.scan_delivers(wire, *bounds) == (end, len(delivers), first, *columns(delivers))


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


payloads = st.lists(st.binary(max_size=40) | st.just(b"same size"), max_size=70)


def cut(sizes: list[int], most_bytes: int, most: int) -> list[tuple[int, int]]:
    """Return the bytes and the segment of trains that take one datagram more as long as that is a train, too."""
    trains: list[list[int]] = []
    for size in sizes:
        longer = [*trains[-1], size] if trains else []
        alike = len(set(longer[:-1])) == 1 and size <= longer[0] if longer else False
        if alike and len(longer) <= most and sum(longer) <= most_bytes:
            trains[-1] = longer
        else:
            trains.append([size])
    return [(sum(train), train[0]) for train in trains]


@given(payloads=payloads, most=st.integers(1, 70), size=st.integers(9, 400) | st.sampled_from([18, 36, 54, 90]))
def test_batches_of_datagrams_end_where_the_size_changes_or_a_call_is_full(
    payloads: list[bytes], most: int, size: int
) -> None:
    expected = cut([9 + len(each) for each in payloads], size, most)
    for kernel in (pure, native or pure):
        assert kernel.cut_trains(column(*map(len, payloads)), size, most) == expected


@only_native
@given(
    first=st.integers(1, 9) | st.integers(pure.LAST_SEQ - 80, pure.LAST_SEQ - 70) | st.integers(2**32 - 9, 2**32),
    payloads=payloads,
)
def test_native_encoders_equal_pure_encoders(first: int, payloads: list[bytes]) -> None:
    lengths, payload = column(*map(len, payloads)), b"".join(payloads)
    # A column may begin at any address.
    shifted = memoryview(b"x" + lengths)[1:]
    assert native.encode_delivers(first, shifted, payload) == pure.encode_delivers(first, lengths, payload)
    assert native.encode_pushes(shifted, payload) == pure.encode_pushes(lengths, payload)
    assert native.cut_trains(shifted, 400, 9) == pure.cut_trains(lengths, 400, 9)
