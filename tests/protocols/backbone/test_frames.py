"""The frames: golden datagrams, and invalid ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.backbone.frames import (
    MAX_DATA,
    Deliver,
    Flags,
    Forward,
    Frame,
    FrameType,
    KeepAlive,
    KeepAliveAck,
    Push,
    Request,
    can_receive,
    decode,
)
from fyrehose.records import LAST_SEQ

TOKEN = bytes(range(16))

VECTORS: list[tuple[Frame, str]] = [
    (Deliver(seq=1, data=b""), "01 0000 000000000001"),
    (Deliver(seq=0x010203040506, data=b"hi"), "01 0002 010203040506 6869"),
    (Deliver(seq=LAST_SEQ, data=b"\xff"), "01 0001 ffffffffffff ff"),
    (Push(data=b""), "02 0000 000000000000"),
    (Push(data=b"hi"), "02 0002 000000000000 6869"),
    (Request(address=("10.0.0.7", 2323), first=1, last=LAST_SEQ), "04 0a000007 0913 000000000001 ffffffffffff"),
    (Request(address=("0.0.0.0", 1), first=0, last=0), "04 00000000 0001 000000000000 000000000000"),
    (Forward(address=("255.1.2.3", 65535), first=256, last=257), "08 ff010203 ffff 000000000100 000000000101"),
    (
        KeepAlive(address=("127.0.0.1", 80), flags=Flags.NONE, token=TOKEN),
        "10 7f000001 0050 000000000000 000102030405060708090a0b0c0d0e0f",
    ),
    (
        KeepAlive(address=("127.0.0.1", 80), flags=Flags.NOSUBSCRIBE, token=TOKEN),
        "10 7f000001 0050 000000000001 000102030405060708090a0b0c0d0e0f",
    ),
    (
        KeepAlive(address=("127.0.0.1", 80), flags=Flags.NOJOURNAL, token=TOKEN),
        "10 7f000001 0050 000000000002 000102030405060708090a0b0c0d0e0f",
    ),
    (KeepAliveAck(token=TOKEN), "20 000102030405060708090a0b0c0d0e0f"),
]


def cause_of(datagram: bytes) -> str | None:
    """Return the cause if *datagram* is invalid; None if it is valid."""
    try:
        decode(datagram)
    except RemoteProtocolError as error:
        return error.cause
    return None


vectors = pytest.mark.parametrize(("frame", "text"), VECTORS, ids=[text for _, text in VECTORS])


@vectors
def test_frames_match_their_golden_bytes_both_ways(frame: Frame, text: str) -> None:
    datagram = bytes.fromhex(text)
    assert frame.serialize() == datagram
    assert decode(datagram) == frame
    assert decode(memoryview(bytearray(datagram))) == frame


@vectors
def test_truncated_or_longer_datagram_is_refused(frame: Frame, text: str) -> None:
    datagram = bytes.fromhex(text)
    for cut in range(len(datagram)):
        with pytest.raises(RemoteProtocolError, match="empty" if not cut else "wrong-size"):
            decode(datagram[:cut])
    with pytest.raises(RemoteProtocolError, match="wrong-size"):
        decode(datagram + b"!")


def test_unknown_flags_and_unused_bytes_are_ignored() -> None:
    assert decode(b"\x02\0\x01UNUSED!") == Push(data=b"!")
    every_flag = bytes.fromhex("10 7f000001 0050 ffffffffffff") + TOKEN
    assert decode(every_flag) == KeepAlive(
        address=("127.0.0.1", 80), flags=Flags.NOSUBSCRIBE | Flags.NOJOURNAL, token=TOKEN
    )
    # The flags are in the last byte, not in the first.
    assert decode(bytes.fromhex("10 7f000001 0050 030000000000") + TOKEN).flags == Flags.NONE


def test_backward_range_is_refused() -> None:
    for kind in (4, 8):
        with pytest.raises(RemoteProtocolError, match="backward-range: 2 to 1") as caught:
            decode(bytes([kind]) + bytes.fromhex("7f000001 0050 000000000002 000000000001"))
        assert caught.value.cause == "backward-range"


def test_every_type_is_checked_for_its_length() -> None:
    """All first bytes with all short lengths, and the boundaries of long ones."""
    sizes = {FrameType.REQUEST: 19, FrameType.FORWARD: 19, FrameType.KEEPALIVE: 29, FrameType.KEEPALIVE_ACK: 17}
    for kind in range(256):
        for size in (*range(1, 64), 1_472, 65_506, 65_507, 65_508, 65_535):
            datagram = bytes([kind]) + bytes(size - 1)
            expected = sizes.get(kind) == size or (kind in (1, 2) and size == 9)
            cause = cause_of(datagram)
            assert cause in (None, "unknown-type", "wrong-size")
            assert (cause is None) == expected, (kind, size)


def test_largest_data_is_accepted() -> None:
    data = bytes(MAX_DATA)
    assert len(Push(data=data).serialize()) == 65_507
    assert decode(Deliver(seq=1, data=data).serialize()) == Deliver(seq=1, data=data)
    for kind in (b"\x01", b"\x02"):
        with pytest.raises(RemoteProtocolError, match="wrong-size"):
            decode(kind + (MAX_DATA + 1).to_bytes(2, "big") + bytes(6 + MAX_DATA + 1))
    with pytest.raises(ValueError, match="65499 bytes of data do not fit"):
        Push(data=data + b"!")


def test_invalid_frames_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="is not between 0 and"):
        Deliver(seq=LAST_SEQ + 1, data=b"")
    with pytest.raises(ValueError, match="is not between 0 and"):
        Request(address=("127.0.0.1", 1), first=-1, last=1)
    with pytest.raises(ValueError, match="16 bytes, not 15"):
        KeepAlive(address=("127.0.0.1", 1), flags=Flags.NONE, token=TOKEN[1:])


def test_only_unicast_addresses_with_a_port_can_receive() -> None:
    assert can_receive(("127.0.0.1", 1))
    assert can_receive(("8.8.8.8", 65_535))
    for host in ("224.0.0.1", "239.255.255.255", "255.255.255.255", "240.0.0.1", "0.0.0.0"):
        assert not can_receive((host, 1)), host
    assert not can_receive(("127.0.0.1", 0))


addresses = st.tuples(st.ip_addresses(v=4).map(str), st.integers(0, 65_535))
sequences = st.integers(0, LAST_SEQ)
ranges = st.tuples(sequences, sequences).map(sorted)
frames = st.one_of(
    st.builds(Deliver, seq=sequences, data=st.binary(max_size=99)),
    st.builds(Push, data=st.binary(max_size=99)),
    st.builds(lambda a, r: Request(address=a, first=r[0], last=r[1]), addresses, ranges),
    st.builds(lambda a, r: Forward(address=a, first=r[0], last=r[1]), addresses, ranges),
    st.builds(
        KeepAlive,
        address=addresses,
        flags=st.sampled_from(list(map(Flags, range(4)))),
        token=st.binary(min_size=16, max_size=16),
    ),
    st.builds(KeepAliveAck, token=st.binary(min_size=16, max_size=16)),
)


@given(frame=frames)
def test_frame_round_trip(frame: Frame) -> None:
    assert decode(frame.serialize()) == frame


@given(datagram=st.binary(max_size=64))
def test_any_bytes_are_a_frame_or_an_error(datagram: bytes) -> None:
    cause = cause_of(datagram)
    assert cause in (None, "empty", "unknown-type", "wrong-size", "backward-range")
    if cause is None:
        assert len(decode(datagram).serialize()) == len(datagram)
