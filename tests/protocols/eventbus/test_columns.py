"""Events to runs, few and in the order of each client; runs to events, unchanged if the event bus published them."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from struct import unpack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.eventbus.columns import (
    PROTOCOL,
    RunBuilder,
    event_frames,
    msgpack_bytes,
    runs_of,
    unpack_msgpack_bytes,
)
from fyrehose.protocols.eventbus.frames import Broadcast, Dialect
from fyrehose.records import Run

TIME = b"2024-05-01T10:20:30.123Z"
UUID = b"7d444840-9dc0-41d1-b245-5ffdce74fad2"


def event(topic: bytes, producer: bytes, data: bytes, timestamp: bytes = TIME, n: int = 0) -> list[bytes]:
    return [topic, b"null", producer, timestamp, b"7d444840-9dc0-41d1-b245-%012x" % n, data]


def taken(builder: RunBuilder) -> list[Run]:
    batch = builder.take()
    return [] if batch is None else batch.runs


def test_equal_labels_share_a_run() -> None:
    builder = RunBuilder("bus", "eventbus")
    for n in range(100):
        builder.add(b"client", event(b"/a/", b"me", b"%d" % n, n=n))
    batch = builder.take()
    assert batch is not None
    assert batch.count == 100
    (run,) = batch.runs
    assert (run.stream, run.source, run.topic, run.producer) == ("bus", "eventbus", "/a/", "me")
    assert run.content_type == "application/msgpack"
    assert [bytes(payload) for payload in run.payloads()] == [b"%d" % n for n in range(100)]
    assert run.event_ids is not None
    assert len(run.event_ids) == 1600
    assert run.event_times is not None
    assert unpack("<100q", run.event_times) == (1_714_558_830_123_000,) * 100
    assert run.producer_seq is None, "sequences from clients are ignored"
    assert builder.take() is None


def test_interleaved_producers_make_one_run_each() -> None:
    builder = RunBuilder("bus", "eventbus")
    for n in range(1_000):
        client = b"%d" % (n % 10)
        builder.add(client, event(b"/a/", client, b"%d" % n))
    assert len(taken(builder)) == 10


def test_client_with_two_topics_keeps_its_order() -> None:
    builder = RunBuilder("bus", "eventbus")
    for n in range(4):
        builder.add(b"client", event(b"/%d/" % (n % 2), b"me", b"%d" % n))
    assert [bytes(payload) for run in taken(builder) for payload in run.payloads()] == [b"0", b"1", b"2", b"3"]


def test_other_label_forms_get_their_own_runs() -> None:
    builder = RunBuilder("bus", "eventbus")
    for n, timestamp in enumerate([TIME, b"2024-05-01T10:20:30Z", b"2024-05-01T10:20:31Z", b"now", TIME]):
        builder.add(b"%d" % n, event(b"/a/", b"me", b"x", timestamp))
    runs = taken(builder)
    assert [(run.content_type, len(run), run.event_times is None) for run in runs] == [
        ("application/msgpack", 2, False),
        ("application/msgpack; time=0Z", 2, False),
        ('application/msgpack; timestamp="now"', 1, True),
    ]


def test_refused_event_leaves_nothing_behind() -> None:
    builder = RunBuilder("bus", "eventbus")
    with pytest.raises(RemoteProtocolError):
        builder.add(b"client", event(b"\xff", b"me", b"x"))
    assert builder.take() is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), max_size=60))
def test_order_of_each_client_is_kept_and_nothing_is_lost(sent: list[tuple[int, int, int]]) -> None:
    builder = RunBuilder("bus", "eventbus")
    for n, (client, topic, producer) in enumerate(sent):
        builder.add(b"%d" % client, event(b"/%d/" % topic, b"%d" % producer, b"%d" % n, n=n))
    runs = taken(builder)
    order = [int(bytes(payload)) for run in runs for payload in run.payloads()]
    assert sorted(order) == list(range(len(sent)))
    by_client: dict[int, list[int]] = defaultdict(list)
    for n in order:
        by_client[sent[n][0]].append(n)
    assert all(numbers == sorted(numbers) for numbers in by_client.values())
    for run in runs:
        check(run, sent)
    assert len(runs) <= max(1, sum(1 for a, b in pairwise(sent) if a[1:] != b[1:]) + 1)


def check(run: Run, sent: list[tuple[int, int, int]]) -> None:
    """Check that the columns of each run belong to its events."""
    ids = bytes(run.event_ids or b"")
    for row, payload in enumerate(run.payloads()):
        n = int(bytes(payload))
        _, topic, producer = sent[n]
        assert (run.topic, run.producer) == (f"/{topic}/", str(producer))
        assert int.from_bytes(ids[16 * row + 10 : 16 * row + 16], "big") == n


@pytest.mark.parametrize("dialect", Dialect)
def test_labels_and_data_are_sent_as_published(dialect: Dialect) -> None:
    builder = RunBuilder("s", PROTOCOL)
    sent = [
        [b"/a/", b"\xff" * 8, b"me", TIME, UUID, b"\xdd\xff\xff\xff\xff"],
        [b"/a/", b"null", b"me", TIME.replace(b"30", b"31"), UUID.replace(b"7", b"8"), b""],
        [b"/b/", b"", b"\xff", b"yesterday", b"42", b"x" * 1000],
        [b"", b"", b"", b"", b"", b""],
    ]
    for frames in sent:
        builder.add(b"id", frames)
    seq = 1
    got = []
    batch = builder.take()
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


def broadcast(sequence: int, data: bytes, topic: str = "/a/", **labels: bytes) -> Broadcast:
    every: dict[str, Any] = {
        "producer": b"me",
        "timestamp": b"2024-05-01T10:20:30.123Z",
        "uuid": b"7d444840-9dc0-41d1-b245-5ffdce74fad2",
        **labels,
    }
    return Broadcast(topic=topic, sequence=sequence, dialect=Dialect.BINARY, data=data, **every)


def test_consecutive_events_become_one_run() -> None:
    events = (
        broadcast(1, b"\x01"),
        broadcast(2, b"\xc4\x01x"),
        broadcast(4, b""),
        broadcast(5, b"a", topic="/b/"),
        broadcast(6, b"b", topic="/b/", producer=b"you", uuid=b"none", timestamp=b"never"),
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
