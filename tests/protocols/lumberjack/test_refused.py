"""What a refused writer learns: how much of its window is stored, so that it never sends that part again."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from struct import pack
from typing import Any

import pytest
from twisted.internet.task import Clock

from fyrehose.interfaces import JournalState
from fyrehose.protocols.lumberjack.frames import Compressed, Json, Window
from fyrehose.protocols.lumberjack.inflate import PIECE, WHOLE
from fyrehose.protocols.lumberjack.refused import FIRST, LONGEST, RefusedFrames
from fyrehose.records import Run

Make = Callable[..., Any]
both = pytest.mark.parametrize("version", [1, 2])


def announce(size: int, version: int = 2) -> bytes:
    return Window(version=version, number=size).serialize()


def doc(sequence: int, payload: bytes = b"{}", version: int = 2) -> bytes:
    return Json(version=version, sequence=sequence, payload=payload).serialize()


def docs(documents: list[bytes], version: int = 2) -> bytes:
    return b"".join(doc(sequence, each, version) for sequence, each in enumerate(documents, 1))


def squeezed(documents: list[bytes], version: int = 2) -> bytes:
    """Return a window of *documents* in one compressed frame, as Filebeat sends it."""
    return announce(len(documents), version) + Compressed.of(docs(documents, version), version=version).serialize()


def exchange(made: Any, data: bytes, host: str = "10.0.0.1") -> list[tuple[int, int]]:
    """Send *data* on a new connection until the server has nothing left to do; return the acknowledgements."""
    peer = made.connect(host)
    peer.send(data)
    made.settle()
    peer.lose()
    made.settle()
    return list(peer.acks)


def as_filebeat(made: Any, documents: list[bytes]) -> int:
    """Send *documents* by Filebeat's rule: after a partial acknowledgement only the rest; return the attempts."""
    left = documents
    for attempt in range(1, 20):
        acks = exchange(made, squeezed(left))
        left = left[max((number for _, number in acks), default=0) :]
        if not left:
            return attempt
    raise AssertionError(f"{len(left)} of {len(documents)} documents never arrive")


# A bomb that gets nowhere


@pytest.mark.parametrize(
    ("documents", "most", "attempts"),
    [
        ([b"%02d" % n + b"x" * 999_998 for n in range(20)], 16 << 20, 2),
        ([b"%04d" % n + b"\\u0000" * 3_000 for n in range(2_048)], 10 << 20, 4),
        ([b"%d" % n + b"x" * 599_999 for n in range(5)], 600_010, 5),
    ],
    ids=["20 events of 1 MB", "lines of NULs", "one event at a time"],
)
def test_too_large_window_arrives_once_in_a_few_attempts(
    server: Make, documents: list[bytes], most: int, attempts: int
) -> None:
    made = server(max_frame=most)
    assert as_filebeat(made, documents) == attempts
    assert made.payloads == documents, "each once, in order"
    assert made.broker.budget.used == 0


@both
def test_same_bomb_is_not_inflated_a_second_time(server: Make, version: int, log_lines: list[str]) -> None:
    made = server(max_frame=2 << 20)
    bomb = squeezed([b"%d" % n + b"x" * 99_999 for n in range(10, 50)], version)
    acks = exchange(made, bomb)
    stored = len(made.payloads)
    assert stored == 20
    assert acks == ([(2, 20)] if version == 2 else []), "a writer of version 1 takes any 6 bytes for the whole window"
    for _ in range(3):
        assert exchange(made, bomb) == []
    assert len(made.payloads) == stored
    assert (made.count("decompression-bomb"), made.count("refused-before")) == (1, 3)
    assert "lower its bulk_max_size, or raise the option lumberjack.max-frame" in log_lines[-1]
    exchange(made, bomb, host="10.0.0.2")
    assert len(made.payloads) == 2 * stored, "another address has a memory of its own"


def test_writer_that_lost_the_acknowledgement_is_accepted_again_later(server: Make) -> None:
    made = server(max_frame=2 << 20)
    bomb = squeezed([b"%d" % n + b"x" * 99_999 for n in range(10, 50)])
    assert exchange(made, bomb) == [(2, 20)]
    assert exchange(made, bomb) == []
    made.clock.advance(FIRST)
    assert exchange(made, bomb) == [(2, 20)]
    made.clock.advance(FIRST)
    assert exchange(made, bomb) == [], "the second pause is twice as long"


def test_connection_with_a_repeated_refused_frame_is_closed_after_a_longer_delay_each_time(server: Make) -> None:
    made = server(max_frame=1_000, refusal_delay=3.2)
    for attempt in range(8):
        peer = made.connect()
        peer.send(squeezed([b"x" * 2_000]))
        made.settle()
        delay = min(0.1 * 2**attempt, 3.2)
        made.clock.advance(delay - 0.01)
        assert not peer.transport.disconnecting
        made.clock.advance(0.02)
        assert peer.transport.disconnecting
        peer.lose()


def beyond_the_limit() -> list[bytes]:
    """Return documents of which ten fit into 1 MiB, as all of them do when they are compressed."""
    return [random.Random(n).randbytes(49_995).hex().encode() for n in range(16)]


def test_rest_of_a_refused_frame_is_read_before_the_acknowledgement(server: Make) -> None:
    """Writers read acknowledgements after they have written the whole window, and never if writing fails."""
    documents = beyond_the_limit()
    made = server(max_frame=1 << 20)
    wire = squeezed(documents) + b"what follows is dropped, too"
    peer = made.connect()
    for at in range(0, len(wire), 64 << 10):
        assert not peer.transport.disconnecting, at
        assert peer.transport.producerState == "producing"
        peer.send(wire[at : at + (64 << 10)])
        made.settle()
        assert made.broker.budget.used <= (2 << 20) + 2 * PIECE
    assert peer.transport.disconnecting
    assert peer.acks == [(2, 10)]
    assert made.payloads == documents[:10]
    assert made.count("decompression-bomb") == 1
    peer.lose()
    assert exchange(made, wire[: PIECE + 100]) == []
    assert made.count("refused-before") == 1, "a frame that was refused before is not read to its end"


def test_rest_of_a_refused_frame_has_a_deadline(server: Make) -> None:
    made = server(max_frame=1 << 20)
    wire = squeezed(beyond_the_limit())
    for end in ("timeout", "half-close"):
        peer = made.connect()
        peer.send(wire[: 3 * PIECE])
        made.settle()
        assert not peer.transport.disconnecting
        if end == "timeout":
            made.clock.pump([1.0] * 90)
        else:
            peer.protocol.readConnectionLost()
        assert peer.transport.disconnecting
        assert peer.acks[-1] == (2, 10)
        peer.lose()
    assert (made.count("frame-timeout"), made.count("decompression-bomb")) == (1, 1)


def test_first_event_beyond_the_limit_stores_nothing(server: Make) -> None:
    made = server(max_frame=1_000)
    assert exchange(made, squeezed([b"x" * 991, b"{}"])) == []
    assert made.payloads == []
    assert made.count("decompression-bomb") == 1


@both
def test_large_frame_that_was_damaged_on_its_way_is_accepted_later(server: Make, version: int) -> None:
    """The damaged frame has the same size and beginning as the undamaged one that the writer sends next."""
    made = server()
    good = docs([b"%d" % n * 1_000 for n in range(10_000, 10_100)], version)
    wire = announce(100, version) + Compressed(version=version, payload=zlib.compress(good, 0)).serialize()
    for damaged in (wire[:-1] + b"!", wire[:-5_000] + bytes(4_990) + wire[-10:]):
        assert exchange(made, damaged) == []
        made.clock.advance(2 * FIRST)
    made.clock.advance(2 * FIRST)
    assert exchange(made, wire) == [(version, 100)]


def test_small_frame_with_a_wrong_checksum_is_stored_once(server: Make) -> None:
    made = server(max_frame=8 << 20)
    payload = bytearray(zlib.compress(docs([b"%d" % n * 1_000 for n in range(1_000, 2_000)]), 9))
    payload[-1] ^= 1
    assert len(payload) < PIECE
    stored = []
    for _ in range(3):
        assert exchange(made, announce(1_000) + Compressed(payload=bytes(payload)).serialize()) == []
        stored.append(len(made.payloads))
        made.clock.advance(1e6)
    assert stored[0] > 0
    assert stored == stored[:1] * 3


# What is stored is acknowledged before the writer is refused

LARGE = [b"%d" % n * 1_000 for n in range(10_000, 10_600)]
VIOLATIONS = {
    "bad-version": b"\x01J",
    "bad-type": b"2A" + bytes(4),
    "mixed-versions": doc(9, version=1),
    "frame-too-large": b"2J" + pack(">II", 9, 0xFFFFFFFF),
    "too-many-pairs": b"2D" + pack(">II", 9, 0xFFFFFFFF),
    "key-too-large": b"2D" + pack(">IIII", 9, 1, (64 << 10) + 1, 0),
    "nested-compression": Compressed.of(doc(9)).serialize(),
    "partial-frame": b"2J",
}


@pytest.mark.parametrize(
    "cause", [cause for cause in VIOLATIONS if cause not in ("nested-compression", "partial-frame")]
)
def test_events_before_a_violation_are_acknowledged(server: Make, cause: str) -> None:
    made = server(auto=False)
    peer = made.connect()
    peer.send(announce(9) + doc(1) + doc(2) + VIOLATIONS[cause] + doc(3))
    assert peer.acks == []
    made.journal.commit()
    assert (peer.acks, made.payloads, made.count(cause)) == ([(2, 2)], [b"{}"] * 2, 1)
    assert peer.transport.disconnecting


@pytest.mark.parametrize("documents", [LARGE[:2], LARGE], ids=["verified", "stored while it is inflated"])
@pytest.mark.parametrize("cause", VIOLATIONS)
def test_events_before_a_violation_in_a_compressed_frame_are_acknowledged(
    server: Make, cause: str, documents: list[bytes]
) -> None:
    made = server()
    inner = docs(documents) + VIOLATIONS[cause]
    acks = exchange(made, announce(5_000) + Compressed.of(inner).serialize())
    assert (made.payloads, made.count(cause)) == (documents, 1)
    assert acks == [(2, len(documents))]


def test_version_1_writer_is_acknowledged_only_whole_windows_before_a_violation(server: Make) -> None:
    made = server()
    for announced, acks in ((2, [(1, 2)]), (3, [])):
        inner = docs(LARGE[:2], 1) + b"1A" + bytes(4)
        assert exchange(made, announce(announced, 1) + Compressed.of(inner, version=1).serialize()) == acks


def test_damaged_compressed_frame_is_not_acknowledged_but_what_precedes_it_is(server: Make) -> None:
    """The events of a damaged frame may not be those that the writer sent, so they are not acknowledged."""
    made = server()
    payload = bytearray(zlib.compress(docs(LARGE), 0))
    payload[-1] ^= 1
    frames = (
        announce(5_000) + doc(1) + Compressed.of(doc(2)).serialize() + Compressed(payload=bytes(payload)).serialize()
    )
    assert exchange(made, frames) == [(2, 2)]
    assert made.count("bad-compression") == 1
    assert len(made.payloads) > 2


def test_stored_part_of_an_unfinished_compressed_frame_is_acknowledged(server: Make) -> None:
    """A frame that stops arriving, a writer that half-closes, and a server that stops: all of them end a connection."""
    wire = announce(len(LARGE)) + Compressed(payload=zlib.compress(docs(LARGE), 0)).serialize()
    for end in ("timeout", "half-close", "drain"):
        made = server()
        peer = made.connect()
        peer.send(wire[: 6 * PIECE + 100])
        made.settle()
        assert peer.acks == []
        assert made.payloads == LARGE[: len(made.payloads)]
        assert len(b"".join(made.payloads)) > WHOLE
        if end == "timeout":
            made.clock.pump([1.0] * 90)
        elif end == "half-close":
            peer.protocol.readConnectionLost()
        else:
            made.factory.drain()
        assert peer.acks[-1] == (2, len(made.payloads)), end
        assert peer.transport.disconnecting
        peer.lose()


def test_events_before_a_forbidden_publish_are_acknowledged(server: Make) -> None:
    made = server(auto=False)
    made.broker.publish([Run.of("lumberjack", [b"first"], source="test")])
    made.journal.commit()
    made.broker.restrict("lumberjack", 10)
    peer = made.connect()
    peer.send(announce(9) + doc(1) + doc(2))
    peer.send(doc(3, b"x" * 11))
    assert peer.acks == []
    made.journal.commit()
    assert peer.acks == [(2, 2)]
    assert peer.transport.disconnecting
    assert made.payloads == [b"first", b"{}", b"{}"]


def test_events_before_a_full_disk_are_acknowledged(server: Make) -> None:
    made = server(auto=False)
    peer = made.connect()
    peer.send(announce(9) + doc(1) + doc(2))
    made.journal.commit()
    peer.send(doc(3))
    made.journal.enter(JournalState.READ_ONLY, "no room")
    assert (peer.acks, made.payloads) == ([(2, 2)], [b"{}", b"{}"])


# The memory of refused frames


def test_unknown_frame_is_not_refused() -> None:
    frames = RefusedFrames(Clock().seconds)
    frames.add("10.0.0.1", b"a", "bomb", hopeless=True)
    assert frames.reason("10.0.0.1", b"a") == "bomb"
    assert frames.reason("10.0.0.1", b"b") == ""
    assert frames.reason("10.0.0.2", b"a") == "", "networks share nothing"


def test_frame_that_can_be_acknowledged_in_part_is_tried_again_after_pauses_that_double() -> None:
    clock = Clock()
    frames = RefusedFrames(clock.seconds)
    pause = FIRST
    for _ in range(15):
        frames.add("10.0.0.1", b"a", "bomb", hopeless=False)
        clock.advance(pause - 1)
        assert frames.reason("10.0.0.1", b"a") == "bomb"
        clock.advance(1)
        assert frames.reason("10.0.0.1", b"a") == ""
        pause = min(2 * pause, LONGEST)
    assert pause == LONGEST


def test_frame_that_can_never_be_acknowledged_is_not_inflated_again() -> None:
    clock = Clock()
    frames = RefusedFrames(clock.seconds)
    frames.add("10.0.0.1", b"a", "bomb", hopeless=True)
    clock.advance(1e9)
    assert frames.reason("10.0.0.1", b"a") == "bomb"


def test_full_memory_forgets_the_oldest_frame_of_the_network_with_the_most() -> None:
    frames = RefusedFrames(Clock().seconds, most=5)
    frames.add("10.0.0.1", b"own", "bomb", hopeless=True)
    for number in range(10_000):
        frames.add("10.6.6.6", b"%d" % number, "flood", hopeless=True)
        assert len(frames) <= 5
    assert frames.reason("10.0.0.1", b"own") == "bomb"
    assert [bool(frames.reason("10.6.6.6", b"%d" % number)) for number in range(9_994, 10_000)] == [False, False] + [
        True
    ] * 4
    frames.reason("10.6.6.6", b"9996")
    frames.add("10.6.6.6", b"more", "flood", hopeless=True)
    assert frames.reason("10.6.6.6", b"9996"), "a frame that came again counts as the latest"
    assert not frames.reason("10.6.6.6", b"9997")
