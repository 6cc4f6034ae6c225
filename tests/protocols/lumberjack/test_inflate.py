"""Inflation: in pieces, checked, bounded; with either engine."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.lumberjack import inflate as module
from fyrehose.protocols.lumberjack.inflate import SLICE, InflateLimits, Inflation


@pytest.fixture(params=["zlib", "isal"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = zlib if request.param == "zlib" else pytest.importorskip("isal.isal_zlib")
    monkeypatch.setattr(module, "engine", found)


either = pytest.mark.usefixtures("engine")


def whole(payload: bytes, most: int = 1 << 30, step: int = 1 << 20) -> bytes:
    inflation = Inflation(payload, most)
    for _ in range(10_000):
        if inflation.done:
            return bytes(inflation.data)
        inflation.inflate(step)
    raise AssertionError("it does not end")


@either
def test_what_was_compressed_comes_out() -> None:
    for data in (b"", b"x", b"x" * 1_000_000, bytes(range(256)) * 1_000):
        for level in (0, 1, 9):
            assert whole(zlib.compress(data, level)) == data


@either
def test_it_comes_in_pieces() -> None:
    inflation = Inflation(zlib.compress(b"x" * 10 * SLICE), 1 << 30)
    assert not inflation.begun
    assert 1 <= inflation.inflate(1) <= SLICE
    assert inflation.begun
    assert not inflation.done
    assert SLICE < inflation.inflate(SLICE + 1) <= 2 * SLICE
    while not inflation.done:
        inflation.inflate(SLICE)
    assert len(inflation.data) == 10 * SLICE


@either
def test_what_it_holds_is_known_before_it_is_held() -> None:
    payload = zlib.compress(b"x" * 3 * SLICE)
    inflation = Inflation(payload, 10 * SLICE)
    assert inflation.held == len(payload)
    inflation.inflate(SLICE)
    assert inflation.held == len(payload) + 10 * SLICE
    while not inflation.done:
        inflation.inflate(SLICE)
    assert inflation.held == 3 * SLICE


@either
def test_bytes_behind_the_stream_say_nothing() -> None:
    assert whole(zlib.compress(b"inner") + b"trailing" * 10_000) == b"inner"


@pytest.mark.parametrize("size", [100, 200_000])
@either
def test_a_stream_that_ends_too_early_is_refused_wherever_that_is(size: int) -> None:
    payload = zlib.compress(bytes(i * i % 251 for i in range(size)))
    for cut in range(0, len(payload), max(1, len(payload) // 200)):
        with pytest.raises(RemoteProtocolError, match="bad-compression"):
            whole(payload[:cut])


@either
def test_what_is_no_stream_is_refused() -> None:
    payload = zlib.compress(b"some text that is long enough to be compressed")
    for wrong in (b"garbage", b"\x78", b"\x78\x9c" + b"\xff" * 20, payload[:-1] + bytes([payload[-1] ^ 1])):
        with pytest.raises(RemoteProtocolError, match="bad-compression"):
            whole(wrong)


@either
def test_a_bomb_is_refused_when_it_comes_to_more_than_it_may() -> None:
    payload = zlib.compress(b"\0" * (8 << 20), 9)
    inflation = Inflation(payload, 1 << 20)
    with pytest.raises(RemoteProtocolError, match="decompression-bomb"):
        inflation.inflate(1 << 30)
    assert len(inflation.data) <= (1 << 20) + SLICE


@either
def test_how_much_a_frame_may_come_to() -> None:
    limits = InflateLimits()
    assert limits.most(1) == 1 << 20, "the first MiB is free"
    assert limits.most(100_000) == 20_000_000, "then 200 times"
    assert limits.most(16 << 20) == 64 << 20, "and never more than this"


@given(st.binary(max_size=2_000), st.integers(0, 9), st.integers(1, 3_000))
@settings(max_examples=100, deadline=None)
def test_steps_change_nothing(data: bytes, level: int, step: int) -> None:
    assert whole(zlib.compress(data, level), step=step) == data


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_bytes_come_to_an_end(data: bytes) -> None:
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
