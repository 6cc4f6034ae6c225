"""Lumberjack's frames: golden bytes both ways, the end of D frames for any chunking, and pairs as JSON."""

from __future__ import annotations

import json
import zlib
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.lumberjack.frames import (
    LONG,
    MAX_EVENT,
    MAX_FRAME,
    MAX_KEY,
    MAX_PAIRS,
    WRITER_FRAMES,
    Ack,
    Compressed,
    Data,
    Frame,
    FrameType,
    Json,
    PairScanner,
    Window,
    json_frames,
    pairs_of,
    to_json,
)

#: A zlib stream of one J frame, not compressed: header, block, its length and the inverse, the frame, checksum.
ZLIB = "7801 01 0c00f3ff 324a00000001000000027b7d 07120178"
GOLDEN: list[tuple[Frame, str]] = [
    (Window(version=1, number=1), "3157 00000001"),
    (Window(version=2, number=0xFFFFFFFF), "3257 ffffffff"),
    (Ack(version=1, number=0x01020304), "3141 01020304"),
    (Ack(version=2, number=0), "3241 00000000"),
    (Json(version=2, sequence=1, payload=b"{}"), "324a 00000001 00000002 7b7d"),
    (Json(version=1, sequence=0xFFFFFFFF, payload=b""), "314a ffffffff 00000000"),
    (Data(version=1, sequence=9, pairs=()), "3144 00000009 00000000"),
    (
        Data(version=1, sequence=2, pairs=((b"k", b"v1"), (b"k", b""))),
        "3144 00000002 00000002 00000001 6b 00000002 7631 00000001 6b 00000000",
    ),
    (Data(version=2, sequence=0, pairs=((b"", b"\xff"),)), "3244 00000000 00000001 00000000 00000001 ff"),
    (Compressed(version=2, payload=b"xyz"), "3243 00000003 78797a"),
    (Compressed(version=1, payload=b""), "3143 00000000"),
    (Compressed(version=2, payload=bytes.fromhex(ZLIB)), f"3243 00000017 {ZLIB}"),
]
golden = pytest.mark.parametrize(("frame", "data"), GOLDEN, ids=[str(number) for number in range(len(GOLDEN))])


@golden
def test_frames_match_their_golden_bytes(frame: Frame, data: str) -> None:
    assert frame.serialize() == bytes.fromhex(data)


def test_the_zlib_stream_of_the_golden_bytes_holds_a_frame() -> None:
    assert zlib.decompress(bytes.fromhex(ZLIB)) == Json(version=2, sequence=1, payload=b"{}").serialize()


def test_every_frame_type_has_a_class() -> None:
    assert {frame.type for frame, _ in GOLDEN} == set(FrameType)
    assert {FrameType.COMPRESSED, FrameType.DATA, FrameType.JSON, FrameType.WINDOW} == WRITER_FRAMES
    with pytest.raises(NotImplementedError):
        Frame().serialize()


def test_invalid_frames_cannot_be_constructed() -> None:
    for wrong in (
        lambda: Window(version=3, number=1),
        lambda: Window(number=1 << 32),
        lambda: Ack(number=-1),
        lambda: Json(sequence=1 << 32, payload=b""),
    ):
        with pytest.raises(LocalProtocolError):
            wrong()
    with pytest.raises(ValueError):
        Json(sequence=1, payload=Huge())


class Huge(bytes):
    """Bytes whose length exceeds the limit of a frame."""

    def __len__(self) -> int:
        return MAX_FRAME + 1


def test_json_frames_equals_single_frames() -> None:
    lengths, payload = pack("<3I", 1, 0, 2), b"abc"
    single = [Json(sequence=7 + i, payload=part).serialize() for i, part in enumerate((b"a", b"", b"bc"))]
    assert json_frames(2, 7, lengths, payload) == b"".join(single)


# D frames


Pairs = tuple[tuple[bytes, bytes], ...]
PAIRS = st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=9)), max_size=5).map(tuple)


@given(PAIRS, st.lists(st.integers(1, 7), max_size=40))
@settings(max_examples=200, deadline=None)
def test_end_of_a_d_frame_is_found_for_any_chunking(pairs: Pairs, cuts: list[int]) -> None:
    frame = Data(sequence=1, pairs=pairs).serialize()
    data = b"??" + frame + b"rest"
    fields, at = PairScanner(), 2
    needed = []
    for cut in [*cuts, len(data)]:
        at = min(at + cut, len(data))
        end = fields.advance(data, 2, at)
        assert fields.whole == (at >= 2 + len(frame))
        needed.append(end)
        if fields.whole:
            break
    assert needed == sorted(needed), "what is known to be needed only grows"
    assert end == 2 + len(frame)
    assert pairs_of(frame[6:]) == pairs


def announced(count: int) -> bytes:
    return LONG.pack(ord("2"), ord("D"), 1, count)


@pytest.mark.parametrize("count", [MAX_PAIRS + 1, 0xFFFFFFFF])
def test_too_many_pairs_are_refused_by_their_count(count: int) -> None:
    with pytest.raises(RemoteProtocolError, match="too-many-pairs"):
        PairScanner().advance(announced(count), 0, LONG.size)


def test_more_pairs_than_the_final_data_can_hold_are_refused() -> None:
    data = announced(2) + b"\0" * 15
    fields = PairScanner()
    fields.advance(data, 0, len(data))
    assert not fields.whole
    assert fields.needed == LONG.size + 16
    with pytest.raises(RemoteProtocolError, match="too-many-pairs"):
        PairScanner().advance(data, 0, len(data), final=True)


@pytest.mark.parametrize("size", [MAX_KEY + 1, 0xFFFFFFFF])
def test_a_large_key_is_refused_by_its_length(size: int) -> None:
    data = announced(1) + pack(">I", size)
    with pytest.raises(RemoteProtocolError, match="key-too-large"):
        PairScanner().advance(data, 0, len(data))


def test_a_key_may_be_as_long_as_the_limit() -> None:
    data = announced(1) + pack(">I", MAX_KEY) + bytes(MAX_KEY + 4)
    fields = PairScanner()
    assert fields.advance(data, 0, len(data)) == len(data)
    assert fields.whole


def test_a_large_value_is_refused_by_its_length() -> None:
    fits = MAX_EVENT - 4 - 8
    data = announced(1) + pack(">II", 0, fits)
    fields = PairScanner()
    assert fields.advance(data, 0, len(data)) == LONG.size + 8 + fits
    with pytest.raises(RemoteProtocolError, match="frame-too-large"):
        PairScanner().advance(announced(1) + pack(">II", 0, fits + 1), 0, len(data))


def test_values_whose_sum_is_too_large_are_refused() -> None:
    data = announced(4) + (pack(">I", 0) + pack(">I", 30) + b"v" * 30) * 4
    with pytest.raises(RemoteProtocolError, match="frame-too-large"):
        PairScanner(100).advance(data, 0, len(data))


# Pairs as JSON


def test_pairs_become_an_object_in_their_order_with_repeated_keys_repeated() -> None:
    pairs = ((b"b", b"1"), (b"a", 'ü\n"\\\x00'.encode()), (b"b", b"2"))
    document = to_json(pairs)
    assert document == b'{"b":"1","a":"\xc3\xbc\\n\\"\\\\\\u0000","b":"2"}'
    assert json.loads(document, object_pairs_hook=list) == [(k.decode(), v.decode()) for k, v in pairs]
    assert to_json(()) == b"{}"


@given(PAIRS)
@settings(max_examples=100, deadline=None)
def test_pairs_become_json_unless_they_are_not_utf_8(pairs: Pairs) -> None:
    document = to_json(pairs)
    if document is None:
        with pytest.raises(UnicodeDecodeError):
            [text.decode() for pair in pairs for text in pair]
    else:
        found = json.loads(document, object_pairs_hook=list)
        assert [(key.encode(), value.encode()) for key, value in found] == list(pairs)
