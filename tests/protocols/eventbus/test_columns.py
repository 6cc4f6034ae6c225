"""Events to runs and back: labels and data unchanged, only wanted topics, and pieces of limited size."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.eventbus.columns import (
    PROTOCOL,
    Encoder,
    EventsByTopic,
    msgpack_bytes,
    run_of,
    runs_of,
    unpack_msgpack_bytes,
)
from fyrehose.protocols.eventbus.frames import Broadcast, Dialect
from fyrehose.protocols.eventbus.session import DealerSession, SnapshotSession
from fyrehose.protocols.eventbus.zmtp import Null, encode
from fyrehose.records import Run
from fyrehose.sessions import PIECE
from fyrehose.testing import feed

TIME = b"2024-05-01T10:20:30.123Z"
UUID = b"7d444840-9dc0-41d1-b245-5ffdce74fad2"


def event(topic: bytes, producer: bytes, data: bytes, timestamp: bytes = TIME, n: int = 0) -> list[bytes]:
    return [topic, b"null", producer, timestamp, b"7d444840-9dc0-41d1-b245-%012x" % n, data]


def encoder(*prefixes: bytes, dialect: Dialect = Dialect.BINARY, head: bytes = b"") -> Encoder:
    return Encoder(frozenset(prefixes or (b"",)), dialect, head)


def sent(runs: list[Run], one: Encoder) -> list[list[bytes]]:
    """Return the messages that *one* makes of *runs*, a piece at a time, each as its frames."""
    session = DealerSession()
    server = SnapshotSession(Null(), Dialect.BINARY)
    while server.out or session.out:
        session.receive_data(b"".join(server.data_to_send()))
        server.receive_data(b"".join(session.data_to_send()))
    found: list[list[bytes]] = []
    last = runs[0].first_seq - 1
    while last < runs[-1].last_seq:
        rest = [run.slice(max(0, last + 1 - run.first_seq), len(run)) for run in runs if run.last_seq > last]
        piece = EventsByTopic(rest).piece(one)
        if piece.last == last:
            head, payload = one.large(rest[0])
            data, last = head + bytes(payload), last + 1
        else:
            data, last = piece.data, piece.last
        found += [event.frames for event in feed(session, [data])]
    return found


@pytest.mark.parametrize("dialect", Dialect)
def test_labels_and_data_are_sent_as_published(dialect: Dialect) -> None:
    published = [
        [b"/a/", b"\xff" * 8, b"me", TIME, UUID, b"\xdd\xff\xff\xff\xff"],
        [b"/a/", b"null", b"me", TIME.replace(b"30", b"31"), UUID.replace(b"7", b"8"), b""],
        [b"/b/", b"", b"\xff", b"yesterday", b"42", b"x" * 1000],
        [b"", b"", b"", b"", b"", b""],
    ]
    runs = [run_of(frames, "s").numbered(seq, 1) for seq, frames in enumerate(published, 1)]
    got = sent(runs, encoder(dialect=dialect))
    assert [[frames[0], *frames[2:]] for frames in got] == [[frames[0], *frames[2:]] for frames in published]
    assert [Broadcast.parse(frames).sequence for frames in got] == [1, 2, 3, 4]
    assert {Broadcast.parse(frames).dialect for frames in got} == {dialect}


def test_refused_event_says_why() -> None:
    with pytest.raises(RemoteProtocolError, match="bad-topic"):
        run_of(event(b"\xff", b"me", b"x"), "s")


def numbered(*topics: bytes, size: int = 1, rows: int = 1) -> list[Run]:
    """Return a run of *rows* events of each topic, with the numbers from 1 on."""
    runs, seq = [], 1
    for topic in topics:
        ids, times = bytes(16 * rows), bytes(8 * rows)
        data = [b"%06d" % (seq + row) + bytes(max(0, size - 6)) for row in range(rows)]
        run = Run.of(
            "s",
            data,
            source=PROTOCOL,
            topic=topic.decode(),
            producer="me",
            content_type="application/msgpack",
            event_ids=ids,
            event_times=times,
        )
        runs.append(run.numbered(seq, 1))
        seq += rows
    return runs


def test_only_wanted_topics_are_sent() -> None:
    runs = numbered(b"/a/", b"/b/", b"/a/b/", b"", b"/c/")
    assert [frames[0] for frames in sent(runs, encoder(b"/a/", b"/c"))] == [b"/a/", b"/a/b/", b"/c/"]
    assert len(sent(runs, encoder(b""))) == 5
    assert EventsByTopic(runs).piece(encoder(b"/z/")) == (b"", 5, 0)
    assert EventsByTopic(runs).piece(encoder(b"/a/"))[1:] == (5, 3), "the last wanted number is that of /a/b/"


@given(
    st.lists(st.sampled_from((b"/a/", b"/a/b/", b"/b/", b"")), min_size=1, max_size=12),
    st.lists(st.sampled_from((b"/a", b"/a/b/", b"/b/", b"/", b"")), min_size=1, max_size=3),
    st.sampled_from((1, 50_000, PIECE)),
)
def test_topics_in_turn_are_sent_in_the_order_of_their_numbers(
    topics: list[bytes], prefixes: list[bytes], size: int
) -> None:
    wanted = [seq for seq, topic in enumerate(topics, 1) if topic.startswith(tuple(prefixes))]
    got = sent(numbered(*topics, size=size), encoder(*prefixes))
    assert [Broadcast.parse(frames).sequence for frames in got] == wanted


def test_a_topic_is_looked_up_once_for_a_delivery() -> None:
    class Counting(Encoder):
        asked: ClassVar[list[bytes]] = []

        def wants(self, topic: bytes) -> bool:
            self.asked.append(topic)
            return super().wants(topic)

    runs = numbered(*(b"/a/", b"/b/") * 50)
    piece = EventsByTopic(runs).piece(Counting(frozenset({b"/b/"}), Dialect.BINARY))
    assert (piece.last, piece.highest) == (100, 100)
    assert Counting.asked == [b"/a/", b"/b/"]


def test_head_precedes_each_event() -> None:
    (frames,) = sent(numbered(b"/a/"), encoder(head=encode((b"SYNC",), more=True)))
    assert (frames[:2], len(frames)) == ([b"SYNC", b"/a/"], 7)


def test_a_piece_is_limited_and_nothing_is_left_out() -> None:
    runs = numbered(b"/a/", b"/b/", b"/c/", size=3_000, rows=40)
    piece = EventsByTopic(runs).piece(encoder(b"/a/", b"/c/"))
    assert len(piece.data) <= PIECE
    assert [int(frames[5][:6]) for frames in sent(runs, encoder(b"/a/", b"/c/"))] == [*range(1, 41), *range(81, 121)]


def test_an_event_larger_than_a_piece_is_not_in_one() -> None:
    runs = numbered(b"/a/", b"/b/", size=PIECE)
    assert EventsByTopic(runs).piece(encoder(b"/b/")) == (b"", 1, 0)
    assert EventsByTopic(runs[1:]).piece(encoder(b"/b/")) == (b"", 1, 0)
    assert [len(frames[5]) for frames in sent(runs, encoder())] == [PIECE, PIECE]


def test_equal_encoders_share_a_piece() -> None:
    assert encoder(b"/a/", b"/b/") == encoder(b"/b/", b"/a/")
    assert hash(encoder(b"/a/", b"/b/")) == hash(encoder(b"/b/", b"/a/"))
    assert encoder(b"/a/") != encoder(b"/a/", dialect=Dialect.DECIMAL)


@given(st.sets(st.sampled_from([b"", b"/", b"/a", b"/a/", b"/a/b/", b"/b/", b"x"]), min_size=1), st.binary(max_size=6))
def test_topic_is_wanted_if_it_begins_with_a_prefix(prefixes: set[bytes], topic: bytes) -> None:
    assert encoder(*prefixes).wants(topic) is topic.startswith(tuple(prefixes))


def test_records_of_other_protocols_are_sent_as_msgpack_bytes() -> None:
    run = Run.of("s", [b'{"a": 1}', b""], source="lumberjack", topic="beat").numbered(5, 1_714_558_830_123_456)
    first, second = map(Broadcast.parse, sent([run], encoder()))
    assert (first.topic, first.sequence, first.producer, first.timestamp) == ("beat", 5, b"lumberjack", TIME)
    assert first.data == b'\xc4\x08{"a": 1}'
    assert second.data == b"\xc4\x00"
    assert first.uuid != second.uuid


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
