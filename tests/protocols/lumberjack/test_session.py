"""The reader's session: frames of known writers in every chunking, and refused data."""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Callable
from itertools import accumulate, pairwise
from struct import pack
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fyrehose import inflate
from fyrehose.inflate import ENGINE, PIECE, WHOLE
from fyrehose.protocols.lumberjack.frames import Compressed, Data, Json, Window
from fyrehose.protocols.lumberjack.session import PAIRS_WORK, RUN_WORK, LumberjackLimits, LumberjackServerSession
from fyrehose.testing import every_chunking
from tests.doubles.compressed import compressed_frame

Make = Callable[..., Any]
J = "application/json"
both = pytest.mark.parametrize("version", [1, 2])


def doc(sequence: int, payload: bytes = b"{}", version: int = 2) -> bytes:
    return Json(version=version, sequence=sequence, payload=payload).serialize()


def pairs(sequence: int, *found: tuple[bytes, bytes], version: int = 2) -> bytes:
    return Data(version=version, sequence=sequence, pairs=found).serialize()


def announce(size: int, version: int = 2) -> bytes:
    return Window(version=version, number=size).serialize()


def packed(*frames: bytes, version: int = 2) -> bytes:
    return compressed_frame(b"".join(frames), version=version)


def golden(version: int) -> list[tuple[str, bytes, list[tuple[bytes, int]], list[int]]]:
    """Return name, bytes, payloads with their sequences, and acknowledged sequences of each case."""
    v = version

    def d(sequence: int, payload: bytes = b"{}") -> bytes:
        return doc(sequence, payload, v)

    def c(*frames: bytes) -> bytes:
        return packed(*frames, version=v)

    w = lambda size: announce(size, v)  # noqa: E731
    p = lambda sequence, *found: pairs(sequence, *found, version=v)  # noqa: E731
    e = b"{}"
    return [
        ("one window", w(2) + d(1) + d(2), [(e, 1), (e, 2)], [2]),
        ("pairs", w(1) + p(9, (b"k", b"v"), (b"k", b"")), [(b'{"k":"v","k":""}', 9)], [9]),
        ("pairs and documents", w(3) + p(1) + d(2) + p(3), [(e, 1), (e, 2), (e, 3)], [3]),
        ("compressed", w(2) + c(d(1), d(2)), [(e, 1), (e, 2)], [2]),
        ("compressed pairs", w(1) + c(p(1, (b"\xc3\xbc", b"x"))), [(b'{"\xc3\xbc":"x"}', 1)], [1]),
        ("several compressed frames in a window", w(3) + c(d(1)) + c(d(2), d(3)), [(e, 1), (e, 2), (e, 3)], [3]),
        ("a document after a compressed frame", w(2) + c(d(1)) + d(2), [(e, 1), (e, 2)], [2]),
        ("a window that is announced within", c(w(1), d(4)), [(e, 4)], [4]),
        ("an empty window", w(0), [], [0]),
        ("the empty batch of pylogbeat", w(0) + c(), [], [0]),
        ("several empty windows", w(0) + w(0) + w(1) + d(5) + w(0), [(e, 5)], [0, 0, 5, 0]),
        (
            "a compressed frame without a byte",
            w(1) + Compressed(version=v, payload=b"").serialize() + d(1),
            [(e, 1)],
            [1],
        ),
        ("sequences that continue across windows", w(1) + d(7) + w(2) + d(8) + d(9), [(e, 7), (e, 8), (e, 9)], [7, 9]),
        ("sequences that restart", w(1) + d(1) + w(1) + d(1), [(e, 1), (e, 1)], [1, 1]),
        ("sequences that roll over", w(2) + d(0xFFFFFFFF) + d(0), [(e, 0xFFFFFFFF), (e, 0)], [0]),
        ("sequences that repeat and jump", w(3) + d(5) + d(5) + d(2), [(e, 5), (e, 5), (e, 2)], [2]),
        ("a window within a window", w(5) + d(1) + d(2) + w(1) + d(3), [(e, 1), (e, 2), (e, 3)], [2, 3]),
        ("a window that is announced twice", w(5) + w(1) + d(1), [(e, 1)], [1]),
        ("no JSON", w(2) + d(1, b"") + d(2, b"\xff"), [(b"", 1), (b"\xff", 2)], [2]),
        ("arrays and scalars", w(2) + d(1, b"[1]") + d(2, b"7"), [(b"[1]", 1), (b"7", 2)], [2]),
        (
            "bytes behind a zlib stream",
            w(1) + Compressed(version=v, payload=zlib.compress(d(1)) + b"trailing").serialize(),
            [(e, 1)],
            [1],
        ),
    ]


CASES = [(version, *case) for version in (1, 2) for case in golden(version)]


@pytest.mark.parametrize(
    ("version", "name", "data", "events", "acks"), CASES, ids=[f"v{case[0]} {case[1]}" for case in CASES]
)
def test_golden_sessions_do_not_depend_on_chunking(
    peer: Make, version: int, name: str, data: bytes, events: list[tuple[bytes, int]], acks: list[int]
) -> None:
    """Threats: sequences that roll over, repeat or jump, W = 0, W in mid-window, bytes behind a zlib stream."""
    for chunks in every_chunking(data):
        fed = peer().feed(*chunks)
        assert [(payload, sequence) for payload, sequence, *_ in fed.events] == events
        assert fed.acks == [(version, number) for number in acks]
        assert fed.causes == []
        assert (fed.session.expected, fed.session.buffered, fed.session.ack_pending) == (0, 0, False)


BROKEN = [
    ("bad-version", b"\x01J"),
    ("bad-version", b"3W"),
    ("bad-type", b"2A" + b"\0" * 4),
    ("bad-type", b"1Z"),
    ("mixed-versions", announce(2) + doc(1) + doc(2, version=1)),
    ("mixed-versions", announce(1) + packed(doc(1, version=1), version=1)),
    ("mixed-versions", announce(1) + packed(doc(1, version=1))),
    ("mixed-versions", packed(announce(1, version=1))),
    ("mixed-versions", announce(1) + doc(1) + doc(2, version=1)),
    ("frame-too-large", b"2J" + pack(">II", 1, (1 << 30) + 1)),
    ("frame-too-large", b"2J" + pack(">II", 1, 0xFFFFFFFF)),
    ("frame-too-large", b"2D" + pack(">IIII", 1, 1, 0, 16 << 20)),
    ("too-many-pairs", b"2D" + pack(">II", 1, 0xFFFFFFFF)),
    ("too-many-pairs", b"2D" + pack(">II", 1, 4097)),
    ("key-too-large", b"2D" + pack(">III", 1, 1, (64 << 10) + 1)),
    ("nested-compression", packed(packed(doc(1)))),
    ("nested-compression", packed(doc(1), packed(doc(2)), b"2J")),
    # An established server loops for ever on a compressed frame with another one and a truncated frame in it.
    ("nested-compression", packed(packed(doc(1)), b"2J\0\0")),
    ("bad-compression", Compressed(payload=b"no zlib").serialize()),
    ("bad-compression", Compressed(payload=zlib.compress(doc(1))[:-1]).serialize()),
    ("partial-frame", announce(1) + packed(doc(1), b"2J")),
    ("partial-frame", packed(doc(1)[:-1])),
    ("partial-frame", packed(b"2")),
    ("partial-frame", packed(pairs(1, (b"k", b"v"))[:-1])),
    ("too-many-pairs", packed(b"2D" + pack(">II", 1, 2) + b"\0" * 15)),
    ("bad-type", packed(doc(1), b"2A\0\0\0\0")),
    ("bad-type", b"2Q" + doc(2)),
    ("bad-type", announce(1) + packed(doc(1), b"2Q") + doc(2)),
]


@pytest.mark.parametrize(("cause", "data"), BROKEN, ids=[f"{i} {case[0]}" for i, case in enumerate(BROKEN)])
def test_protocol_violation_is_the_last_event_in_every_chunking(peer: Make, cause: str, data: bytes) -> None:
    before = announce(1) + doc(41)
    wanted = peer().feed(before + data)
    assert wanted.causes == [cause]
    assert wanted.acks[0] == (2, 41), "earlier events are acknowledged"
    for chunks in every_chunking(before + data):
        fed = peer().feed(*chunks)
        assert fed.causes == [cause]
        assert fed.events == wanted.events
        assert fed.acks == wanted.acks
        assert fed.session.receive_data(announce(0)) == []
        assert fed.session.next_events() == []
        assert fed.session.data_to_send() == []
        assert (fed.session.expected, fed.session.buffered, fed.session.more_work) == (0, 0, False)


def test_every_header_is_accepted_or_refused_by_its_version_and_type(peer: Make) -> None:
    """All 256 x 256 headers, including reader-only frames, unknown types and unknown versions."""
    for version in range(256):
        for kind in range(256):
            fed = peer().feed(bytes((version, kind)))
            if version not in b"12":
                assert fed.causes == ["bad-version"]
            elif kind not in b"CDJW":
                assert fed.causes == ["bad-type"]
            else:
                assert fed.causes == []
                assert fed.session.expected >= 6


# The threats of docs/security.md


def test_bomb_is_inflated_within_bounded_memory(peer: Make) -> None:
    """A bomb of 1 GiB: zeros are refused at the first slice, events are events; tests/live measure the process."""
    unit = doc(1, b"\0" * ((1 << 20) - 10))
    for inner, causes, least in ((b"\0" * (1 << 20), ["bad-version"], 0), (unit, [], 1020 << 20)):
        squeeze = zlib.compressobj(9)
        head = squeeze.compress(inner) + squeeze.flush(zlib.Z_FULL_FLUSH)
        payload = head + (squeeze.compress(inner) + squeeze.flush(zlib.Z_FULL_FLUSH)) * 1024
        fed = peer()
        made = most = 0
        fed.take(fed.session.receive_data(announce(1_025) + Compressed(payload=payload).serialize()))
        while fed.session.more_work:
            fed.take(fed.session.next_events())
            most = max(most, fed.session.buffered)
            made += sum(len(payload) for payload in fed.payloads)
            fed.events.clear()
        assert (fed.causes, fed.acks) == (causes, [] if causes else [(2, 1)])
        assert most <= (4 << 20) + len(payload)
        assert made >= least


#: Windows that Filebeat may send with its defaults: the documents and the compression level by name.
LARGE_WINDOWS = {
    "2,048 events of 40 KB": (
        lambda: [random.Random(n).randbytes(14_600).hex().encode()[:29_200] + b"x" * 10_800 for n in range(2_048)],
        3,
    ),
    "80 JSON lines of 1 MB": (
        lambda: [b'{"level":"info","request":"GET /","n":%07d}' % n * 23_256 for n in range(80)],
        3,
    ),
    "a line of 300 KB of NULs": (lambda: [b'{"message":"' + b"\\u0000" * 300_000 + b'"}'], 3),
    "a line of 300 KB of raw NULs": (lambda: [b'{"message":"' + b"\0" * 300_000 + b'"}'], 3),
    "a line of 3 MB of spaces": (lambda: [b'{"message":"' + b" " * 3_000_000 + b'"}'], 9),
    "a line of 8 MB of quotes": (lambda: [b'{"message":"' + b'\\"' * 8_000_000 + b'"}'], 3),
    "a line of 10 MB of quotes": (lambda: [b'{"message":"' + b'\\"' * 10_000_000 + b'"}', b"{}"], 3),
    "an event of 16 MiB of random text": (lambda: [random.Random(1).randbytes(8 << 20).hex().encode()], 3),
}


@both
@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE_WINDOWS)
def test_large_windows_of_honest_writers_need_little_memory(peer: Make, name: str, version: int) -> None:
    make, level = LARGE_WINDOWS[name]
    documents = make()
    inner = b"".join(doc(n, document, version) for n, document in enumerate(documents, 1))
    wire = announce(len(documents), version) + compressed_frame(inner, version, level)
    fed = peer()
    digest, count, most = hashlib.sha256(), 0, 0

    def look() -> None:
        nonlocal count, most
        most = max(most, fed.session.buffered, fed.session.expected)
        for payload in fed.payloads:
            digest.update(payload)
            count += 1
        fed.events.clear()

    for begin in range(0, len(wire), 1 << 20):
        fed.take(fed.session.receive_data(wire[begin : begin + (1 << 20)]))
        look()
        while fed.session.more_work:
            fed.take(fed.session.next_events())
            look()
    assert fed.causes == []
    assert fed.acks == [(version, len(documents))], "one acknowledgement, at the end"
    records = sum(1 + (len(document) - 1) // (16 << 20) for document in documents)
    assert (count, digest.digest()) == (records, hashlib.sha256(b"".join(documents)).digest())
    assert most <= min(16 << 20, max(map(len, documents))) + (3 << 20), (
        "the largest event, a read, and what is inflated at a time"
    )


PART, LAST_PART = "application/x-lumberjack-part", "application/x-lumberjack-last-part"


@both
@pytest.mark.parametrize("squeezed", [False, True])
@pytest.mark.parametrize("size", [(16 << 20) - 1, 16 << 20, (16 << 20) + 1, 32 << 20, (32 << 20) + 1])
def test_event_larger_than_a_record_is_stored_in_parts(peer: Make, size: int, squeezed: bool, version: int) -> None:
    head = b'{"@metadata":{"beat":"fb"},"message":"'
    document = head + b"x" * (size - len(head) - 2) + b'"}'
    frames = doc(4, b"{}", version) + doc(5, document, version) + doc(6, b"[]", version)
    wire = announce(3, version) + (packed(frames, version=version) if squeezed else frames)
    fed = peer(auto=False)
    for at in range(0, len(wire), 3_000_000):
        assert fed.acks == []
        fed.feed(wire[at : at + 3_000_000])
        if at % 2:
            fed.commit()
    fed.commit()
    assert fed.acks == [(version, 6)]
    parts = -(-size // (16 << 20))
    middle = fed.events[1:-1]
    assert b"".join(payload for payload, *_ in middle) == document
    assert [sequence for _, sequence, *_ in fed.events] == [4, *[5] * parts, 6]
    assert {topic for *_, topic, _ in middle} == {"fb"}
    assert [kind for *_, kind in middle] == ([J] if parts == 1 else [PART] * (parts - 1) + [LAST_PART])
    assert (fed.session.buffered, fed.session.expected, fed.session.ack_pending) == (0, 0, False)


@both
def test_window_is_not_acknowledged_before_the_last_part_of_its_event(peer: Make, version: int) -> None:
    frame = doc(1, b" " * (40 << 20), version)
    fed = peer().feed(announce(1, version) + frame[: 33 << 20])
    fed.session.acknowledge_silence()
    fed.commit()
    assert (len(fed.events), fed.acks, fed.session.expected) == (2, [], 8 << 20)
    fed.feed(frame[33 << 20 :])
    assert fed.acks == [(version, 1)]


@both
def test_window_is_not_acknowledged_before_every_part_of_its_event_is_durable(peer: Make, version: int) -> None:
    fed = peer(auto=False).feed(announce(2, version) + doc(1, b" " * (40 << 20), version) + doc(2, b"{}", version))
    assert len(fed.events) == 4
    found = []
    for _ in fed.events:
        fed.session.durable(1)
        fed.session.acknowledge_silence()
        found.append(b"".join(fed.session.data_to_send()))
    assert found == [b"", b"", b"", b"%dA" % version + pack(">I", 2)]


def test_compressed_frame_that_ends_between_parts_of_an_event_is_refused(peer: Make) -> None:
    inner = doc(1, b" " * (20 << 20))[: 10 + (16 << 20)]
    fed = peer().feed(announce(1) + packed(inner))
    assert (fed.causes, fed.acks) == (["partial-frame"], [])


def test_silent_peer_holds_about_as_much_memory_as_it_sent(peer: Make) -> None:
    """An event of 16 MiB that compresses to 16 KB is inflated only after all of it arrived."""
    inner = doc(1, b" " * (16 << 20)) + doc(2, random.Random(1).randbytes(2 << 20))
    payload = zlib.compress(inner, 9)
    fed = peer().feed(announce(2) + b"2C" + pack(">I", len(payload)))
    for at in range(0, len(payload) - 1, 10_000):
        fed.feed(payload[at : min(at + 10_000, len(payload) - 1)])
        assert not fed.session.more_work
        held = fed.session.buffered
        assert held <= at + 10_000 + 2 * PIECE + ENGINE
        assert fed.session.expected >= held
    assert fed.payloads == []
    assert fed.feed(payload[-1:]).acks == [(2, 2)]


def test_large_compressed_frame_with_a_wrong_checksum_is_not_acknowledged(peer: Make) -> None:
    """Some events of the frame may be stored already; the writer sends the whole window again."""
    documents = [b"%d" % n * 1_000 for n in range(1_000, 3_000)]
    payload = bytearray(zlib.compress(b"".join(doc(n, each) for n, each in enumerate(documents, 1)), 0))
    payload[-1] ^= 1
    fed = peer().feed(announce(2_000) + Compressed(payload=bytes(payload)).serialize())
    assert (fed.causes, fed.acks) == (["bad-compression"], [])
    assert fed.payloads == documents[: len(fed.payloads)]
    assert fed.payloads


@pytest.mark.parametrize("size", [WHOLE - 10, WHOLE - 9, 2 * WHOLE])
def test_bytes_after_a_stream_may_arrive_later(peer: Make, size: int) -> None:
    payload = zlib.compress(doc(1, b"x" * (size - 10))) + b"trailing" * 100_000
    wire = announce(1) + Compressed(payload=payload).serialize() + announce(1) + doc(2)
    for step in (50_000, 300_000, len(wire)):
        fed = peer().feed(*(wire[at : at + step] for at in range(0, len(wire), step)))
        assert (fed.causes, fed.acks) == ([], [(2, 1), (2, 2)])
        assert (fed.session.expected, fed.session.buffered) == (0, 0)


def test_pairs_within_a_large_compressed_frame_are_stored(peer: Make) -> None:
    inner = b"".join(pairs(n, (b"key", b"v" * 3_000), (b"n", b"%d" % n)) for n in range(1, 2_049))
    fed = peer().feed(announce(2_048) + packed(inner))
    assert (fed.causes, fed.acks, len(fed.events)) == ([], [(2, 2_048)], 2_048)
    assert peer().feed(announce(2_048) + packed(inner[:-1])).causes == ["partial-frame"]


def test_refusal_names_the_option_that_helps() -> None:
    for limits, data, words in (
        (LumberjackLimits(), b"2J" + pack(">II", 1, (1 << 30) + 1), "max_bytes of its input"),
        (LumberjackLimits(), b"2D" + pack(">IIII", 1, 1, 0, 16 << 20), "max_bytes of its input"),
        (LumberjackLimits(max_frame=100), b"2J" + pack(">II", 1, 101), "lumberjack.max-frame"),
        (LumberjackLimits(max_frame=100), b"2D" + pack(">IIII", 1, 1, 0, 200), "lumberjack.max-frame"),
    ):
        (broken,) = LumberjackServerSession(limits).receive_data(data)
        assert "the writer will send it again and again" in str(broken.error)
        assert words in str(broken.error)


@pytest.mark.parametrize("depth", [2, 3, 1000])
def test_nested_compression_is_refused(peer: Make, depth: int) -> None:
    data = doc(1)
    for _ in range(depth):
        data = packed(data)
    fed = peer().feed(announce(1) + data)
    assert fed.causes == ["nested-compression"]
    assert fed.acks == []


@both
def test_compressed_frame_truncated_anywhere_is_not_acknowledged(peer: Make, version: int) -> None:
    """The zlib stream, the inner frames and the C frame are each truncated at every byte."""
    inner = doc(1, b'{"a":1}', version) + doc(2, b"x" * 50, version)
    stream = zlib.compress(inner)
    for cut in range(len(stream)):
        fed = peer().feed(announce(2, version) + Compressed(version=version, payload=stream[:cut]).serialize())
        assert fed.causes == ["bad-compression"] if cut else fed.causes == []
        assert fed.acks == []
        assert fed.events == []
    for cut in range(1, len(inner)):
        whole = cut == len(doc(1, b'{"a":1}', version))
        fed = peer().feed(announce(1, version) + packed(inner[:cut], version=version))
        assert fed.causes == ([] if whole else ["partial-frame"])
        assert fed.acks == ([(version, 1)] if whole else []), (
            "complete windows within a malformed frame are not acknowledged, either"
        )
    for cut in range(6 + len(stream)):
        frame = Compressed(version=version, payload=stream).serialize()[:cut]
        fed = peer().feed(announce(2, version) + frame)
        assert (fed.causes, fed.acks) == ([], [])
        assert fed.session.expected == (len(stream) if cut >= 6 else 6 if cut else 0)


def test_empty_and_largest_documents_are_stored_and_larger_ones_refused(peer: Make) -> None:
    """A document of 0 bytes is stored with another content type; one beyond max_frame is refused."""
    (event,) = peer().feed(announce(1) + doc(1, b"")).events
    assert event == (b"", 1, None, "application/x-lumberjack-j")
    limits = LumberjackLimits(max_frame=100)
    for size, causes in ((100, []), (101, ["frame-too-large"])):
        fed = peer(LumberjackServerSession(limits)).feed(announce(1) + doc(1, b"x" * size))
        assert fed.causes == causes
    whole = peer().feed(announce(1) + doc(1, b"x" * (16 << 20)))
    assert whole.acks == [(2, 1)]
    assert len(whole.payloads[0]) == 16 << 20


def test_huge_window_allocates_nothing(peer: Make) -> None:
    fed = peer().feed(announce(0xFFFFFFFF) + doc(1) * 10)
    assert len(fed.events) == 10
    assert fed.acks == []
    assert fed.session.buffered == 0


def test_version_may_change_between_windows(peer: Make) -> None:
    fed = peer().feed(announce(1, 1) + doc(1, version=1) + announce(1) + doc(2))
    assert fed.acks == [(1, 1), (2, 2)]


# Acknowledgements


def test_events_beyond_the_window_are_acknowledged_by_version(peer: Make) -> None:
    """Version 2: each event is acknowledged, because the writer may wait for any; version 1: another window starts."""
    assert peer().feed(announce(1) + doc(1), doc(2), doc(3)).acks == [(2, 1), (2, 2), (2, 3)]
    assert peer().feed(announce(2, 1) + b"".join(doc(n, version=1) for n in range(1, 8))).acks == [
        (1, 2),
        (1, 4),
        (1, 6),
    ]


def test_events_without_a_window_are_acknowledged(peer: Make) -> None:
    assert peer().feed(doc(5)).acks == [(2, 5)]
    fed = peer().feed(doc(5, version=1))
    assert fed.acks == []
    fed.session.acknowledge_silence()
    fed.commit()
    assert fed.acks == [(1, 5)]


def test_keep_alive_sends_nothing_before_the_first_frame(peer: Make) -> None:
    fed = peer()
    fed.session.keep_alive()
    assert fed.session.data_to_send() == []
    assert fed.session.version == 0
    assert not fed.session.silence_ack_due


# Turns


def test_turns_process_a_limited_number_of_events(peer: Make, window: Make) -> None:
    limits = LumberjackLimits(turn_events=10, turn_bytes=1000)
    data = window(100, compressed=True) + window(35)
    fed = peer(LumberjackServerSession(limits))
    fed.take(fed.session.receive_data(data))
    assert fed.session.more_work
    assert fed.session.receive_data(b"") == []
    sizes = [len(fed.events)]
    while fed.session.more_work:
        before = len(fed.events)
        fed.take(fed.session.next_events())
        sizes.append(len(fed.events) - before)
    assert max(sizes) == 10
    assert sum(sizes) == 135
    assert fed.acks == [(2, 100), (2, 35)]


def test_turns_of_many_topics_or_of_pairs_are_shorter(peer: Make) -> None:
    limits = LumberjackLimits(turn_events=160)
    documents = [doc(n, b'{"@metadata":{"beat":"%d"}}' % (n % 2)) for n in range(1, 401)]
    fed = peer(LumberjackServerSession(limits))
    first = fed.session.receive_data(announce(400) + b"".join(documents))
    assert sum(map(len, first)) == 159 // 4, "the number of runs is not known yet, and the W frame counts as well"
    second = fed.session.next_events()
    assert 0 < len(second) == sum(map(len, second)) <= 160 // RUN_WORK + 1, "each is a run of its own"
    fed = peer(LumberjackServerSession(limits))
    assert sum(map(len, fed.session.receive_data(b"".join(pairs(n) for n in range(400))))) == 160 // PAIRS_WORK


def test_buffered_bytes_are_counted_as_held_memory(peer: Make, window: Make) -> None:
    data = window(100)
    fed = peer(LumberjackServerSession(LumberjackLimits(turn_events=40)))
    fed.take(fed.session.receive_data(data + b"2"))
    assert 0 < fed.session.buffered < len(data)
    assert fed.session.expected == fed.session.buffered
    fed.feed(b"")
    assert fed.session.buffered == 1
    assert fed.session.expected == 6


@pytest.mark.parametrize("count", [3, 50], ids=["received", "inflated"])
def test_eof_drops_data_that_waits_for_a_turn(peer: Make, window: Make, count: int) -> None:
    fed = peer(LumberjackServerSession(LumberjackLimits(turn_events=3)))
    fed.take(fed.session.receive_data(window(count, compressed=True)))
    fed.take(fed.session.next_events())
    assert (fed.session.buffered > 0) == (count > 3)
    assert fed.session.receive_eof() == []
    assert (fed.session.more_work, fed.session.buffered, fed.session.expected) == (False, 0, 0)


def test_turn_bytes_limit_is_exact(peer: Make, window: Make) -> None:
    last = announce(1) + doc(9)
    data = announce(2) + doc(1) + pairs(2, (b"k", b"v")) + window(1, version=2, topic="b") + announce(0)
    for size, events, more in [(len(data), 3, True), (len(data + last), 4, False)]:
        fed = peer(LumberjackServerSession(LumberjackLimits(turn_bytes=size)))
        fed.take(fed.session.receive_data(data + last))
        assert (len(fed.events), fed.session.more_work) == (events, more)


def test_topic_is_found_at_the_configured_path(peer: Make) -> None:
    session = LumberjackServerSession(LumberjackLimits(topic=(b"a", b"b")))
    fed = peer(session).feed(doc(1, b'{"a":{"b":"t"}}') + doc(2, b'{"b":"t"}') + pairs(3, (b"a", b"b")))
    assert [topic for *_, topic, _ in fed.events] == ["t", None, None]
    assert [
        topic for *_, topic, _ in peer(LumberjackServerSession(LumberjackLimits(topic=()))).feed(doc(1)).events
    ] == [None]


# Random streams

FRAMES = st.one_of(
    st.builds(announce, st.integers(0, 4) | st.just(0xFFFFFFFF), st.sampled_from([1, 2, 2, 2])),
    st.builds(
        doc, st.integers(0, 5) | st.just(0xFFFFFFFF), st.sampled_from([b"{}", b"", b'{"@metadata":{"beat":"x"}}'])
    ),
    st.builds(pairs, st.integers(0, 5), st.tuples(st.binary(max_size=3), st.binary(max_size=3))),
)
STREAMS = st.lists(
    FRAMES | st.lists(FRAMES, max_size=4).map(lambda frames: packed(*frames)) | st.binary(max_size=2), max_size=12
).map(b"".join)


def pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    """Return *data* cut into pieces of *sizes*, and the rest of it."""
    ends = [0, *accumulate(sizes), len(data)]
    return [data[begin:end] for begin, end in pairwise(ends)]


@given(STREAMS, st.lists(st.integers(1, 30), max_size=30), st.integers(1, 20), st.integers(1, 300))
@example(packed() + doc(0, b"{}") + packed(doc(2, b"{}"), announce(0xFFFFFFFF, 1)), [], 1, 1)
@settings(max_examples=300, deadline=None)
def test_events_depend_neither_on_chunking_nor_on_turns(
    peer: Make, data: bytes, cuts: list[int], events: int, size: int
) -> None:
    wanted = peer().feed(data)
    limits = LumberjackLimits(turn_events=events, turn_bytes=size)
    fed = peer(LumberjackServerSession(limits)).feed(*pieces(data, cuts))
    assert (fed.events, fed.causes) == (wanted.events, wanted.causes)
    # Events without a window are acknowledged as they become durable, so the chunking decides how often, and whether
    # they are acknowledged before a protocol violation in the same chunk.
    assert wanted.causes or fed.acks[-1:] == wanted.acks[-1:]
    rest = iter(fed.acks)
    assert all(ack in rest for ack in wanted.acks), "in the same order"


@given(STREAMS, st.lists(st.integers(1, 30), max_size=30), st.integers(1, 40), st.integers(1, 20))
@settings(max_examples=300, deadline=None)
def test_inflating_as_a_stream_yields_the_same_events(
    peer: Make, data: bytes, cuts: list[int], piece: int, events: int
) -> None:
    """With small constants, small compressed frames are parsed before their checksums are verified."""
    wanted = peer().feed(data)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("PIECE", piece), ("WHOLE", piece), ("SLICE", piece + 2), ("_INPUT", piece // 2 + 1)):
            patch.setattr(inflate, name, value)
        limits = LumberjackLimits(turn_events=events, turn_bytes=10 * events, turn_inflated=piece)
        fed = peer(LumberjackServerSession(limits)).feed(*pieces(data, cuts))
    assert fed.causes or not wanted.causes, "a violation may be found earlier"
    assert fed.events[: len(wanted.events)] == wanted.events, (
        "more events of a malformed compressed frame may be returned"
    )
    assert fed.causes or len(fed.events) == len(wanted.events)
    assert fed.causes or fed.acks[-1:] == wanted.acks[-1:]
    acks = iter(fed.acks)
    assert all(ack in acks for ack in wanted.acks), "in the same order"
