"""Inflation: in pieces, checked, bounded; with either engine."""

from __future__ import annotations

import gzip
import random
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose import inflate as module
from fyrehose.errors import RemoteProtocolError
from fyrehose.inflate import ENGINE, PIECE, SLICE, WHOLE, Inflation, deflated


@pytest.fixture(params=["zlib", "isal"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = zlib if request.param == "zlib" else pytest.importorskip("isal.isal_zlib")
    monkeypatch.setattr(module, "engine", found)


either = pytest.mark.usefixtures("engine")


def whole(payload: bytes, step: int = 1 << 20, arrives: int = 1 << 30) -> bytes:
    """Return what *payload* comes to, inflated *step* bytes at a time, of which *arrives* bytes arrive at a time."""
    inflation = Inflation(len(payload))
    buffer, came, at = bytearray(), 0, 0
    for _ in range(100_000):
        if inflation.done:
            return bytes(inflation.data)
        if len(buffer) - at < inflation.input_needed:
            buffer += payload[came : came + arrives]
            came += arrives
        at = inflation.inflate(buffer, at, step)
    raise AssertionError("no end after many turns")


@either
def test_compressed_data_is_restored() -> None:
    for data in (b"", b"x", b"x" * 1_000_000, bytes(range(256)) * 1_000):
        for level in (0, 1, 9):
            assert whole(zlib.compress(data, level)) == data


@either
def test_inflating_proceeds_in_slices() -> None:
    payload = bytearray(zlib.compress(b"x" * 10 * SLICE))
    inflation = Inflation(len(payload))
    assert inflation.held == 0
    at = inflation.inflate(payload, 0, 1)
    assert 1 <= inflation.inflated <= SLICE
    assert not inflation.done
    at = inflation.inflate(payload, at, SLICE + 1)
    assert inflation.inflated <= 3 * SLICE
    assert inflation.held >= inflation.inflated + ENGINE
    while not inflation.done:
        at = inflation.inflate(payload, at, SLICE)
    assert inflation.inflated == len(inflation.data) == 10 * SLICE
    assert inflation.held == 10 * SLICE
    assert (at, inflation.left) == (len(payload), 0)


@either
def test_large_payload_is_inflated_as_it_arrives() -> None:
    data = random.Random(1).randbytes(3 * PIECE)
    payload = zlib.compress(data)
    assert whole(payload, arrives=10_000) == data
    inflation = Inflation(len(payload))
    assert inflation.input_needed == PIECE
    buffer = bytearray(payload[:PIECE])
    assert inflation.inflate(buffer, 0, 1 << 30) == PIECE
    assert not inflation.done
    assert bytes(inflation.data) == data[: len(inflation.data)]


@either
def test_large_content_is_parsed_before_the_checksum_is_verified() -> None:
    for size, early in ((WHOLE, False), (WHOLE + 2 * SLICE, True)):
        payload = bytearray(zlib.compress(b"x" * size))
        inflation = Inflation(len(payload))
        at, full = 0, False
        while not inflation.done:
            assert inflation.full == (len(inflation.data) > WHOLE)
            assert inflation.needs == max(WHOLE, len(inflation.data)) + PIECE
            at = inflation.inflate(payload, at, 1)
            full = full or (inflation.full and not inflation.done)
        assert inflation.full
        assert inflation.needs == size
        assert full == early
    inflation = Inflation(100)
    inflation.frame_size = 3 * WHOLE
    inflation.data.extend(bytes(3 * WHOLE))
    assert not inflation.full
    inflation.data.extend(b"x")
    assert inflation.full


def test_inner_frame_is_inflated_when_enough_input_arrived() -> None:
    inflation = Inflation(100 << 20)
    inflation.frame_size = 16 << 20
    assert 16 << 20 < inflation.input_needed < 17 << 20
    inflation.data.extend(bytes(10 << 20))
    assert 6 << 20 < inflation.input_needed < 7 << 20
    assert inflation.needs == (16 << 20) + PIECE
    inflation.left = 100
    assert inflation.input_needed == 100


@either
def test_bytes_after_the_stream_are_skipped() -> None:
    payload = bytearray(zlib.compress(b"inner") + b"trailing" * 10_000)
    assert whole(bytes(payload)) == b"inner"
    inflation = Inflation(len(payload))
    at = inflation.inflate(payload, 0, 1 << 20)
    assert inflation.skip(5) == 5
    assert inflation.left == len(payload) - at - 5
    assert inflation.skip(1 << 20) == len(payload) - at - 5
    assert inflation.left == 0


@pytest.mark.parametrize("size", [100, 200_000])
@either
def test_stream_truncated_anywhere_is_refused(size: int) -> None:
    payload = zlib.compress(bytes(i * i % 251 for i in range(size)))
    for cut in range(0, len(payload), max(1, len(payload) // 200)):
        with pytest.raises(RemoteProtocolError, match="bad-compression"):
            whole(payload[:cut])


@either
def test_invalid_stream_is_refused() -> None:
    payload = zlib.compress(b"some text that is long enough to be compressed")
    for wrong in (b"garbage", b"\x78", b"\x78\x9c" + b"\xff" * 20, payload[:-1] + bytes([payload[-1] ^ 1])):
        with pytest.raises(RemoteProtocolError, match="bad-compression"):
            whole(wrong)


@pytest.mark.parametrize("flush", [zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH])
@pytest.mark.parametrize("size", [100, 200_000])
@either
def test_stream_that_was_flushed_and_not_ended_is_accepted(size: int, flush: int) -> None:
    data = bytes(i * i % 251 for i in range(size))
    for level in (0, 3, 9):
        squeeze = zlib.compressobj(level)
        payload = (
            squeeze.compress(data[:50]) + squeeze.flush(flush) + squeeze.compress(data[50:]) + squeeze.flush(flush)
        )
        for arrives in (7, 1 << 20):
            assert whole(payload, arrives=arrives) == data
        with pytest.raises(RemoteProtocolError, match="bad-compression"):
            whole(payload[:-1])


@given(st.binary(max_size=2_000), st.integers(0, 9), st.integers(1, 3_000), st.integers(1, 3_000))
@settings(max_examples=100, deadline=None)
def test_result_does_not_depend_on_step_sizes(data: bytes, level: int, step: int, arrives: int) -> None:
    assert whole(zlib.compress(data, level), step=step, arrives=arrives) == data


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_inflated_or_refused(data: bytes) -> None:
    decompressor = zlib.decompressobj()
    try:
        wanted = decompressor.decompress(data)
    except zlib.error:
        wanted = b""
    if decompressor.eof:
        assert whole(data) == wanted
    else:
        with pytest.raises(RemoteProtocolError, match="bad-compression"):
            whole(data)


@either
@pytest.mark.parametrize("level", range(10))
def test_deflated_data_is_zlib_or_gzip_at_every_level(level: int) -> None:
    data = b"a line of a log\n" * 1_000
    assert zlib.decompress(deflated(data, level)) == data
    assert gzip.decompress(deflated(data, level, 31)) == data
    assert len(deflated(data, level)) < len(data) or not level
