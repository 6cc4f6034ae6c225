"""Events from runs: unchanged if the event bus published them, otherwise as msgpack byte strings."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.protocols.eventbus.drafts import Drafts
from fyrehose.protocols.eventbus.encoding import PROTOCOL, event_frames, msgpack_bytes, runs_of, unpack_msgpack_bytes
from fyrehose.protocols.eventbus.frames import Broadcast, Dialect
from fyrehose.records import Run

TIME = b"2024-05-01T10:20:30.123Z"
UUID = b"7d444840-9dc0-41d1-b245-5ffdce74fad2"


@pytest.mark.parametrize("dialect", Dialect)
def test_labels_and_data_are_sent_as_published(dialect: Dialect) -> None:
    drafts = Drafts("s", PROTOCOL)
    sent = [
        [b"/a/", b"\xff" * 8, b"me", TIME, UUID, b"\xdd\xff\xff\xff\xff"],
        [b"/a/", b"null", b"me", TIME.replace(b"30", b"31"), UUID.replace(b"7", b"8"), b""],
        [b"/b/", b"", b"\xff", b"yesterday", b"42", b"x" * 1000],
        [b"", b"", b"", b"", b"", b""],
    ]
    for frames in sent:
        drafts.add(b"id", frames)
    seq = 1
    got = []
    batch = drafts.take()
    assert batch is not None
    for run in batch.runs:
        numbered = run.numbered(seq, 1)
        got += [[bytes(part) for part in frames] for frames in event_frames(numbered, dialect)]
        seq += len(run)
    assert [[frames[0], *frames[2:]] for frames in got] == [[frames[0], *frames[2:]] for frames in sent]
    assert [Broadcast.parse(frames).sequence for frames in got] == [1, 2, 3, 4]
    assert {Broadcast.parse(frames).dialect for frames in got} == {dialect}


def test_records_of_other_protocols_are_sent_as_msgpack_bytes() -> None:
    run = Run.of("s", [b'{"a": 1}', b""], source="lumberjack", topic="beat").numbered(5, 1_714_558_830_123_456)
    first, second = (Broadcast.parse([bytes(part) for part in frames]) for frames in event_frames(run, Dialect.BINARY))
    assert (first.topic, first.sequence, first.producer, first.timestamp) == ("beat", 5, b"lumberjack", TIME)
    assert first.data == b'\xc4\x08{"a": 1}'
    assert second.data == b"\xc4\x00"
    assert first.uuid != second.uuid


def test_run_without_a_topic_has_an_empty_topic() -> None:
    run = Run.of("s", [b"x"], source="figg").numbered(1, 1)
    assert next(event_frames(run, Dialect.BINARY))[0] == b""


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (0, b"\xc4\x00"),
        (255, b"\xc4\xff"),
        (256, b"\xc5\x01\x00"),
        (65_535, b"\xc5\xff\xff"),
        (65_536, b"\xc6\x00\x01\x00\x00"),
    ],
)
def test_msgpack_bytes_round_trip(size: int, head: bytes) -> None:
    packed = msgpack_bytes(memoryview(b"x" * size))
    assert packed == head + b"x" * size
    assert unpack_msgpack_bytes(packed) == b"x" * size


@pytest.mark.parametrize(
    "data", [b"", b"\xc4", b"\xc4\x05abc", b"\xc5\x00", b"\xc6\x00\x00\x00", b"\x93\x01\x02\x03", b"\xc4\x01ab"]
)
def test_other_msgpack_data_stays_unchanged(data: bytes) -> None:
    assert unpack_msgpack_bytes(data) == data


def event(sequence: int, data: bytes, topic: str = "/a/", **labels: bytes) -> Broadcast:
    every: dict[str, Any] = {
        "producer": b"me",
        "timestamp": b"2024-05-01T10:20:30.123Z",
        "uuid": b"7d444840-9dc0-41d1-b245-5ffdce74fad2",
        **labels,
    }
    return Broadcast(topic=topic, sequence=sequence, dialect=Dialect.BINARY, data=data, **every)


def test_consecutive_events_become_one_run() -> None:
    events = (
        event(1, b"\x01"),
        event(2, b"\xc4\x01x"),
        event(4, b""),
        event(5, b"a", topic="/b/"),
        event(6, b"b", topic="/b/", producer=b"you", uuid=b"none", timestamp=b"never"),
    )
    runs = list(runs_of(events))
    assert [(run.first_seq, len(run), run.topic, run.producer) for run in runs] == [
        (1, 2, "/a/", "me"),
        (4, 1, "/a/", "me"),
        (5, 1, "/b/", "me"),
        (6, 1, "/b/", "you"),
    ]
    assert [bytes(payload) for run in runs for payload in run.payloads()] == [b"\x01", b"x", b"", b"a", b"b"]
    assert runs[3].event_ids is None
    assert runs[3].event_times is None
