"""Figg's frames: golden bytes both ways, and malformed payloads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.figg import frames
from fyrehose.protocols.figg.frames import (
    FRAMES,
    Ack,
    Attach,
    Attached,
    Data,
    DataRun,
    Detach,
    Detached,
    Frame,
    Ping,
    Pong,
    Publish,
)

GOLDEN: list[tuple[Frame, str]] = [
    (Attach(topic="foo"), "0001 0001 00000011 0000 00000003 666f6f 0000000000000000"),
    (Attach(topic="foo", offset=0), "0001 0001 00000011 8000 00000003 666f6f 0000000000000000"),
    (Attach(topic="é", offset=513), "0001 0001 00000010 8000 00000002 c3a9 0000000000000201"),
    (Attached(topic="foo", offset=7), "0002 0001 0000000f 00000003 666f6f 0000000000000007"),
    (Detach(topic="foo"), "0003 0001 00000007 00000003 666f6f"),
    (Detached(topic="foo"), "0004 0001 00000007 00000003 666f6f"),
    (Publish(topic="a", number=1, data=b"hi"), "0005 0001 00000013 00000001 61 0000000000000001 00000002 6869"),
    (Publish(topic="a", number=2, data=b""), "0005 0001 00000011 00000001 61 0000000000000002 00000000"),
    (Ack(number=(1 << 64) - 1), "0006 0001 00000008 ffffffffffffffff"),
    (Data(topic="a", number=3, data=b"x"), "0007 0001 00000012 00000001 61 0000000000000003 00000001 78"),
    (Ping(number=4), "0008 0001 00000008 0000000000000004"),
    (Pong(number=4), "0009 0001 00000008 0000000000000004"),
]


@pytest.mark.parametrize(("frame", "wire"), GOLDEN)
def test_frames_match_their_golden_bytes_both_ways(frame: Frame, wire: str) -> None:
    encoded = bytes.fromhex(wire)
    assert frame.serialize() == encoded
    assert FRAMES[frame.type] is type(frame)
    assert type(frame).parse(encoded[8:]) == frame
    least, most = frame.sizes
    assert least <= len(encoded) - 8 - len(getattr(frame, "data", b"")) <= most


@pytest.mark.parametrize(
    ("flags", "offset"), [("8000", 5), ("0001", 5), ("8001", 5), ("ffff", 5), ("0000", None), ("4000", None)]
)
def test_offset_flag_is_the_highest_or_the_lowest_bit(flags: str, offset: int | None) -> None:
    payload = bytes.fromhex(flags + "00000001 61 0000000000000005")
    assert Attach.parse(payload) == Attach(topic="a", offset=offset)


@pytest.mark.parametrize(("frame", "wire"), GOLDEN)
def test_truncated_or_extended_payload_is_refused(frame: Frame, wire: str) -> None:
    payload = bytes.fromhex(wire)[8:]
    for cut in range(len(payload)):
        with pytest.raises(RemoteProtocolError, match=r"bad-(length|topic)"):
            type(frame).parse(payload[:cut])
    with pytest.raises(RemoteProtocolError, match="bad-length"):
        type(frame).parse(payload + b"\0")


@pytest.mark.parametrize(("frame", "wire"), [pair for pair in GOLDEN if hasattr(pair[0], "topic")])
@pytest.mark.parametrize("change", [-1, 1, 0xFFFFFF00])
def test_inner_lengths_that_do_not_fill_the_frame_are_refused(frame: Frame, wire: str, change: int) -> None:
    payload = bytearray.fromhex(wire)[8:]
    at = 2 if isinstance(frame, Attach) else 0
    size = int.from_bytes(payload[at : at + 4], "big")
    payload[at : at + 4] = ((size + change) & 0xFFFFFFFF).to_bytes(4, "big")
    with pytest.raises(RemoteProtocolError, match=r"bad-(length|topic)"):
        type(frame).parse(bytes(payload))


@pytest.mark.parametrize("topic", [b"", b"x" * 256, b"\xff", b"\xed\xa0\x80"])
def test_invalid_topics_are_refused(topic: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="bad-topic"):
        Detach.parse(len(topic).to_bytes(4, "big") + topic)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Detach(topic=""),
        lambda: Detach(topic="x" * 256),
        lambda: Detach(topic="\ud800"),
        lambda: Ack(number=-1),
        lambda: Ack(number=1 << 64),
        lambda: Attach(topic="a", offset=-1),
    ],
)
def test_invalid_frames_cannot_be_constructed(make: object) -> None:
    with pytest.raises(LocalProtocolError):
        make()  # type: ignore[operator]


@given(st.binary(max_size=80), st.sampled_from(sorted(FRAMES)))
def test_random_bytes_parse_or_raise_RemoteProtocolError(payload: bytes, kind: frames.FrameType) -> None:
    try:
        frame = FRAMES[kind].parse(payload)
    except RemoteProtocolError:
        return
    assert FRAMES[kind].parse(frame.serialize()[8:]) == frame


def test_run_serializes_to_its_frames_end_to_end() -> None:
    run = DataRun(topic="a", first=3, lengths=(1).to_bytes(4, "little") + (2).to_bytes(4, "little"), payload=b"xyz")
    assert run.last == 4
    single = [Data(topic="a", number=3, data=b"x"), Data(topic="a", number=4, data=b"yz")]
    assert run.serialize() == b"".join(frame.serialize() for frame in single)
