"""The writer's session: windows sent, and acknowledgements received."""

from __future__ import annotations

import zlib
from random import Random
from struct import pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.errors import Broken, LocalProtocolError
from fyrehose.protocols.lumberjack.frames import MAX_EVENT, Ack
from fyrehose.protocols.lumberjack.session import Acknowledged, KeptAlive, LumberjackWriterSession
from fyrehose.testing import every_chunking, feed


def columns(*documents: bytes) -> tuple[bytes, bytes]:
    return pack(f"<{len(documents)}I", *map(len, documents)), b"".join(documents)


def ack(number: int, version: int = 2) -> bytes:
    return Ack(version=version, number=number).serialize()


def sent(session: LumberjackWriterSession) -> bytes:
    return b"".join(session.data_to_send())


def writer(*counts: int, version: int = 2, level: int = 0) -> LumberjackWriterSession:
    session = LumberjackWriterSession(version, level)
    for count in counts:
        session.send_window(*columns(*[b"{}"] * count))
    return session


def test_windows_match_their_golden_bytes() -> None:
    session = LumberjackWriterSession(2, 0)
    session.send_window(*columns(b"{}", b""))
    assert sent(session) == bytes.fromhex("3257 00000002 324a 00000001 00000002 7b7d 324a 00000002 00000000")
    session.send_window(*columns(b"x"))
    assert sent(session) == bytes.fromhex("3257 00000001 324a 00000001 00000001 78"), (
        "sequences start at 1 in every window"
    )
    assert session.windows == 2
    assert sent(session) == b""


@pytest.mark.parametrize("version", [1, 2])
def test_windows_are_compressed_at_a_level(version: int) -> None:
    session = LumberjackWriterSession(version, 9)
    session.send_window(*columns(b"{}"))
    data = sent(session)
    digit = b"%d" % version
    assert data[:12] == digit + b"W\0\0\0\1" + digit + b"C" + pack(">I", len(data) - 12)[:4]
    assert zlib.decompress(data[12:]) == digit + b"J" + pack(">II", 1, 2) + b"{}"


def test_invalid_windows_are_refused() -> None:
    session = LumberjackWriterSession()
    with pytest.raises(LocalProtocolError, match="at least one event"):
        session.send_window(b"", b"")
    with pytest.raises(LocalProtocolError, match="exceeds the limit"):
        session.send_window(*columns(bytes(MAX_EVENT + 1)))
    with pytest.raises(ValueError, match="framed"):
        session.send_window(pack("<I", 2), b"x")
    assert session.windows == 0
    for wrong in (lambda: LumberjackWriterSession(3), lambda: LumberjackWriterSession(2, 10)):
        with pytest.raises(LocalProtocolError):
            wrong()


@pytest.mark.slow
def test_window_that_compresses_beyond_the_limit_is_sent_uncompressed() -> None:
    session = LumberjackWriterSession(2, 1)
    session.send_window(*columns(Random(1).randbytes(MAX_EVENT)))
    assert sent(session)[6:8] == b"2J"


A = Acknowledged
GOLDEN: list[tuple[tuple[int, ...], bytes, list[Any]]] = [
    ((3,), ack(3), [A(count=3)]),
    ((3,), ack(0) + ack(3), [KeptAlive(), A(count=3)]),
    ((3,), ack(1) + ack(1) + ack(3), [A(count=1), KeptAlive(), A(count=2)]),
    ((3, 2), ack(3) + ack(2), [A(count=3), A(count=2)]),
    ((), ack(0), [KeptAlive()]),
]


@pytest.mark.parametrize(("counts", "data", "events"), GOLDEN)
def test_acknowledgements_do_not_depend_on_chunking(counts: tuple[int, ...], data: bytes, events: list[Any]) -> None:
    for chunks in every_chunking(data):
        session = writer(*counts)
        assert feed(session, chunks) == events
        assert session.windows == 0
        assert session.expected == 0


@pytest.mark.parametrize(
    ("cause", "data"),
    [
        ("bad-version", b"3A"),
        ("bad-type", b"2W\0\0\0\1"),
        ("acknowledges-too-much", ack(4)),
        ("acknowledges-nothing", ack(3) + ack(1)),
    ],
)
def test_protocol_violation_is_the_last_event(cause: str, data: bytes) -> None:
    for chunks in every_chunking(data):
        session = writer(3)
        events = feed(session, chunks)
        assert isinstance(events[-1], Broken)
        assert events[-1].error.cause == cause
        assert session.receive_data(ack(0)) == []


def test_expected_is_the_size_of_an_incomplete_ack() -> None:
    session = writer(1)
    assert session.receive_data(b"2A") == []
    assert session.expected == 6
    assert session.receive_eof() == []
    assert session.expected == 0


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data())
@settings(max_examples=100, deadline=None)
def test_every_event_is_acknowledged_once_for_any_acks(counts: list[int], data: st.DataObject) -> None:
    session = writer(*counts)
    acknowledged = 0
    for count in counts:
        parts = sorted(data.draw(st.sets(st.integers(0, count), max_size=3)) | {count})
        for part in parts:
            for event in session.receive_data(ack(part)):
                acknowledged += event.count if isinstance(event, Acknowledged) else 0
    assert acknowledged == sum(counts)
    assert session.windows == 0
