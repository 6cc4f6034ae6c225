"""How far a session is: the frames it counts, the bytes it waits for, and the work that one turn does."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest

from fyrehose.inflate import WHOLE
from fyrehose.net.sockets import READ
from fyrehose.protocols.lumberjack.frames import MAX_PAIRS, Compressed, Data, Json, Window
from fyrehose.protocols.lumberjack.session import PAIRS_WORK, LumberjackLimits, LumberjackServerSession
from tests.doubles.compressed import compressed_frame

Make = Callable[..., Any]
WINDOW = Window(version=2, number=9).serialize()
DOCUMENT = Json(version=2, sequence=1, payload=b'{"n":1}').serialize()
PAIRS = Data(version=2, sequence=2, pairs=((b"key", b"value"), (b"", b"x"))).serialize()
PACKED = compressed_frame(DOCUMENT + PAIRS)
EMPTY = Compressed(payload=b"").serialize()
NOTHING = Window(version=2, number=0).serialize()


@pytest.mark.parametrize(
    ("wire", "frames"),
    [(WINDOW, 1), (DOCUMENT * 3, 3), (PAIRS * 2, 2), (EMPTY, 1), (PACKED, 3), (WINDOW + PACKED + DOCUMENT + EMPTY, 6)],
    ids=["W", "J", "D", "empty C", "C", "all"],
)
def test_whole_frames_are_counted(peer: Make, wire: bytes, frames: int) -> None:
    for size in (1, 7, len(wire)):
        fed = peer().feed(*(wire[at : at + size] for at in range(0, len(wire), size)))
        assert (fed.session.frames, fed.causes) == (frames, [])
    assert peer().feed(wire[:-1]).session.frames < frames


def test_parts_of_a_document_are_one_frame(peer: Make) -> None:
    fed = peer().feed(WINDOW + Json(version=2, sequence=1, payload=bytes((16 << 20) + 5)).serialize() + DOCUMENT)
    assert (len(fed.events), fed.session.frames) == (3, 3)


def test_limits_are_those_of_the_documentation() -> None:
    limits = LumberjackLimits()
    assert (limits.turn_bytes, limits.turn_events, limits.turn_inflated) == (1_280 << 10, 4_096, 1_280 << 10)
    assert (limits.max_frame, limits.kept) == (1 << 30, 0)
    assert (limits.max_windows, limits.max_event) == (1_000, 16 << 20)
    assert LumberjackLimits(max_frame=100).max_event == 100


@pytest.mark.parametrize(
    ("wire", "known"),
    [
        (WINDOW, {1: 6, 2: 6}),
        (DOCUMENT, {1: 6, 2: 10, 10: len(DOCUMENT)}),
        (PAIRS, {1: 6, 2: 10, 10: 26, 14: 29, 21: 34, 34: len(PAIRS)}),
        (PACKED, {1: 6, 2: 6, 6: len(PACKED) - 6}),
    ],
    ids=["W", "J", "D", "C"],
)
def test_expected_size_follows_each_byte_of_a_frame(peer: Make, wire: bytes, known: dict[int, int]) -> None:
    fed = peer()
    for _ in range(2):
        expected = 0
        for count in range(1, len(wire)):
            fed.feed(wire[count - 1 : count])
            expected = known.get(count, expected)
            assert fed.session.expected == expected, count
            assert fed.session.buffered == (count - 6 if wire is PACKED and count >= 6 else count)
            assert not fed.session.more_work
        fed.feed(wire[-1:])
        assert (fed.session.expected, fed.session.buffered, fed.session.buffered) == (0, 0, 0)


@pytest.mark.parametrize(
    ("frame", "work"),
    [(NOTHING, 1), (DOCUMENT, 1), (PAIRS, PAIRS_WORK), (EMPTY, 1)],
    ids=["W", "J", "D", "empty C"],
)
def test_turn_does_exactly_as_much_work_as_it_may(frame: bytes, work: int) -> None:
    most = 40 // work
    for count, more in ((most, False), (most + 1, True)):
        session = LumberjackServerSession(LumberjackLimits(turn_events=40))
        session.receive_data(frame * count)
        assert (session.more_work, session.buffered) == (more, len(frame) if more else 0)
        session.next_events()
        assert (session.more_work, session.frames) == (False, count)
    session = LumberjackServerSession(LumberjackLimits(turn_events=1))
    session.receive_data(frame * 3)
    assert (session.more_work, session.frames) == (True, 1), "one at a time"


@pytest.mark.parametrize("frame", [NOTHING, PAIRS], ids=["W", "D"])
def test_turn_takes_frames_of_exactly_as_many_bytes_as_it_may(frame: bytes) -> None:
    for size, frames in ((3 * len(frame) - 1, 3), (3 * len(frame), 3), (3 * len(frame) + 1, 4)):
        session = LumberjackServerSession(LumberjackLimits(turn_bytes=size))
        session.receive_data(frame * 5)
        assert (session.more_work, session.frames) == (True, frames)


def test_turn_processes_a_usual_read_whole_and_only_part_of_a_larger_one() -> None:
    large = Json(version=2, sequence=1, payload=bytes(10_000)).serialize()
    session = LumberjackServerSession()
    assert session.receive_data(large * (READ // len(large)))
    assert not session.more_work
    assert session.receive_data(large * (4 * READ // len(large)))
    assert not session.more_work
    session.receive_data(large * (8 * READ // len(large)))
    assert session.more_work
    session = LumberjackServerSession()
    session.receive_data(DOCUMENT * 10_000)
    assert 1_000 < session.frames < 10_000


def test_limit_of_unacknowledged_windows_is_exact(peer: Make) -> None:
    window = WINDOW + DOCUMENT
    fed = peer(LumberjackServerSession(LumberjackLimits(max_windows=3)), auto=False)
    fed.take(fed.session.receive_data(window * 2))
    assert not fed.session.windows_full
    fed.take(fed.session.receive_data(window * 2))
    assert fed.session.windows_full
    assert fed.session.frames == 5, "the third window is open, and nothing more is taken"
    assert (fed.session.more_work, fed.session.more, fed.session.next_events()) == (True, False, [])
    fed.commit()
    assert not fed.session.windows_full
    for count, causes in ((2, []), (3, ["too-many-windows"])):
        fed = peer(LumberjackServerSession(LumberjackLimits(max_windows=3)))
        assert fed.feed(compressed_frame(window * count)).causes == causes


def test_compressed_frame_is_inflated_a_turn_at_a_time() -> None:
    documents = b"".join(Json(version=2, sequence=n, payload=bytes(1_000)).serialize() for n in range(1_000))
    session = LumberjackServerSession(LumberjackLimits(turn_inflated=100_000))
    session.receive_data(Compressed(payload=zlib.compress(documents)).serialize())
    turns = 1
    while session.more_work:
        assert session.expected > max(session.buffered, WHOLE)
        session.next_events()
        turns += 1
        assert turns < 100
    assert 6 <= turns <= 12, "1 MB, at least 100 KB and less than a slice more in each turn"
    assert (session.frames, session.expected, session.buffered) == (1_001, 0, 0)


def test_usual_window_is_inflated_in_one_turn() -> None:
    documents = b"".join(Json(version=2, sequence=n, payload=bytes(500)).serialize() for n in range(2_048))
    session = LumberjackServerSession()
    assert session.receive_data(Compressed(payload=zlib.compress(documents)).serialize())
    assert (session.more_work, session.frames) == (False, 2_049)


def test_bytes_behind_a_compressed_stream_are_expected_and_ignored(peer: Make) -> None:
    stream = zlib.compress(DOCUMENT)
    wire = Compressed(payload=stream + bytes(300_000)).serialize()
    fed = peer().feed(wire[:-1])
    assert (fed.session.expected, fed.session.buffered, len(fed.events)) == (1, 0, 1)
    fed.feed(wire[-1:] + DOCUMENT)
    assert (fed.session.expected, fed.session.frames, len(fed.events)) == (0, 3, 2)


def test_pairs_in_a_compressed_frame_are_refused_if_the_rest_cannot_hold_them(peer: Make) -> None:
    frame = Data(version=2, sequence=1, pairs=((b"", b""),) * MAX_PAIRS).serialize()
    assert peer().feed(compressed_frame(frame)).causes == []
    assert peer().feed(compressed_frame(frame[:-1])).causes == ["too-many-pairs"]
    assert peer().feed(frame[:-1]).causes == []
