"""Figg's sessions: events do not depend on chunking, and Broken is the last one."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.errors import Broken
from fyrehose.protocols.figg.frames import (
    CLIENT_FRAMES,
    FRAMES,
    SERVER_FRAMES,
    Ack,
    Attach,
    Attached,
    Data,
    DataRun,
    Detach,
    Detached,
    FrameType,
    Pong,
    Publish,
    Published,
)
from fyrehose.protocols.figg.session import FiggClientSession, FiggServerSession, head_of_data
from fyrehose.records import MAX_PAYLOAD, Run
from fyrehose.testing import every_chunking, feed
from tests.doubles.awkward import NAMES


def split(topic: str, kind: Any, numbers: Any, lengths: Any, payload: Any) -> list[Any]:
    """Return the messages of a run one by one."""
    run = Run(stream="x", source="x", producer_seq=numbers, lengths=lengths, payload=payload)
    return [
        kind(topic=topic, number=number, data=bytes(data))
        for number, data in zip(run.producer_seqs() or (), run.payloads(), strict=True)
    ]


def singles(events: list[Any]) -> list[Any]:
    """Split runs into single messages, because where runs end depends on the chunking and their messages do not.

    The messages of one Published have rising numbers, so sorting restores the order of arrival.
    """
    flat: list[Any] = []
    for event in events:
        if isinstance(event, DataRun):
            flat += split(event.topic, Data, event.first, event.lengths, event.payload)
        elif isinstance(event, Published):
            messages = [
                m for run in event.runs for m in split(run.stream, Publish, run.producer_seq, run.lengths, run.payload)
            ]
            flat += sorted(messages, key=lambda message: message.number)
            assert flat[-1].number == event.last
        elif isinstance(event, Broken):
            flat.append(("broken", event.error.cause))
        else:
            flat.append(event)
    return flat


CLIENT_MESSAGES = [
    Attach(topic="foo"),
    Publish(topic="foo", number=1, data=b"one"),
    Publish(topic="foo", number=2, data=b""),
    Publish(topic="bar", number=3, data=b"three" * 9),
    Publish(topic="bar", number=9, data=b"a gap in the numbers"),
    Attach(topic="bar", offset=4),
    Detach(topic="foo"),
    Publish(topic="bar", number=1, data=b"and back"),
]
SERVER_MESSAGES = [
    Attached(topic="foo", offset=0),
    Data(topic="foo", number=1, data=b"one"),
    Data(topic="foo", number=2, data=b"two"),
    Data(topic="bar", number=3, data=b""),
    Ack(number=17),
    Pong(number=99),
    Detached(topic="foo"),
]


@pytest.mark.parametrize(("make", "sent"), [(FiggServerSession, CLIENT_MESSAGES), (FiggClientSession, SERVER_MESSAGES)])
def test_events_do_not_depend_on_chunking(make: Any, sent: list[Any]) -> None:
    wire = b"".join(frame.serialize() for frame in sent)
    for chunks in every_chunking(wire):
        session = make()
        assert singles(feed(session, chunks)) == sent
        assert session.expected == 0


def test_consecutive_messages_are_one_run() -> None:
    wire = b"".join(Publish(topic="t", number=i, data=b"%d" % i).serialize() for i in range(1, 101))
    (event,) = FiggServerSession().receive_data(wire)
    assert isinstance(event, Published)
    (run,) = event.runs
    assert (event.last, run.producer_seq, len(run)) == (100, 1, 100)
    assert run.payload == b"".join(b"%d" % i for i in range(1, 101))


def test_alternating_topics_become_one_run_each() -> None:
    wire = b"".join(Publish(topic=f"t{i % 3}", number=i, data=b"%d" % i).serialize() for i in range(1, 10))
    (event,) = FiggServerSession().receive_data(wire)
    assert isinstance(event, Published)
    assert [(run.stream, run.producer_seq, run.payload) for run in event.runs] == [
        ("t1", pack("<3Q", 1, 4, 7), b"147"),
        ("t2", pack("<3Q", 2, 5, 8), b"258"),
        ("t0", pack("<3Q", 3, 6, 9), b"369"),
    ]
    assert event.last == 9


def header(kind: int, size: int, version: int = 1) -> bytes:
    return pack(">HHI", kind, version, size)


VIOLATIONS = [
    ("unknown-type", header(0, 0)),
    ("unknown-type", header(10, 0)),
    ("unknown-type", header(0xFFFF, 0)),
    ("wrong-version", header(5, 20, 0)),
    ("wrong-version", header(5, 20, 2)),
    ("frame-too-large", header(5, 0xFFFFFFFF)),
    ("frame-too-large", header(5, (16 << 20) + 400)),
    ("bad-length", header(5, 16)),
    ("frame-too-large", header(3, 1 << 16)),
    ("frame-too-large", header(8, 9) + bytes(9)),
    ("bad-length", header(1, 3)),
    ("bad-length", header(5, 20) + pack(">I", 1) + b"t" + pack(">QI", 1, 2) + b"abc"),
    ("bad-length", header(5, 20) + pack(">I", 1) + b"t" + pack(">QI", 1, 4) + b"abc"),
    ("bad-length", header(3, 8) + pack(">I", 3) + b"abcd"),
    ("bad-topic", header(5, 20) + pack(">I", 1) + b"\xff" + pack(">QI", 1, 3) + b"abc"),
    ("bad-topic", header(3, 5) + pack(">I", 1) + b"\xff"),
]


@pytest.mark.parametrize(("cause", "wire"), VIOLATIONS)
def test_broken_is_the_last_event_and_keeps_the_events_before_it(cause: str, wire: bytes) -> None:
    before = [Publish(topic="t", number=7, data=b"kept"), Detach(topic="x")]
    good = b"".join(frame.serialize() for frame in before)
    for chunks in every_chunking(good + wire, sizes=(1, 3)):
        session = FiggServerSession()
        assert singles(feed(session, chunks)) == [*before, ("broken", cause)]
        assert session.receive_data(good) == [], "no event follows Broken"


@pytest.mark.parametrize(("make", "kinds"), [(FiggServerSession, (2, 4, 6, 7, 9)), (FiggClientSession, (1, 3, 5, 8))])
def test_frames_that_only_this_side_sends_are_refused(make: Any, kinds: tuple[int, ...]) -> None:
    for kind in kinds:
        assert singles(make().receive_data(header(kind, 8))) == [("broken", "wrong-direction")]


def test_empty_payload_is_refused_for_every_type_and_version() -> None:
    for kind in range(300):
        for version in (0, 1, 2, 255, 65535):
            events = FiggServerSession().receive_data(header(kind, 0, version))
            assert len(events) == 1, "no type allows an empty payload"
            assert isinstance(events[0], Broken)


def message(kind: int, topic: bytes, size: int) -> bytes:
    """Return a PUBLISH or DATA of *size* bytes of data, which our own frames refuse to make if they are too many."""
    body = pack(">I", len(topic)) + topic + pack(">QI", 1, size) + bytes(size)
    return header(kind, len(body)) + body


@pytest.mark.parametrize("topic", [b"t", b"x" * 254, b"x" * 255])
@pytest.mark.parametrize(("make", "kind"), [(FiggServerSession, 5), (FiggClientSession, 7)])
def test_data_limit_is_exact_at_the_default(make: Any, kind: int, topic: bytes) -> None:
    for size in (MAX_PAYLOAD - 1, MAX_PAYLOAD):
        session = make()
        (event,) = session.receive_data(message(kind, topic, size))
        assert not isinstance(event, Broken)
        assert session.expected == 0
    wire = message(kind, topic, MAX_PAYLOAD + 1)
    for chunks in ([wire], [wire[:8], wire[8:]], [wire[:12]], [wire[:3], wire[3:9], wire[9:12]]):
        session = make()
        assert singles(feed(session, chunks)) == [("broken", "frame-too-large")]
        assert not session._buffer, "the frame is refused before it arrives, and none of it is kept"


@pytest.mark.parametrize(("make", "kind"), [(FiggServerSession, 5), (FiggClientSession, 7)])
@pytest.mark.parametrize("size", [MAX_PAYLOAD + 2, MAX_PAYLOAD + 254, MAX_PAYLOAD + 255, MAX_PAYLOAD + 256])
def test_data_beyond_the_limit_breaks_the_session_without_raising(make: Any, kind: int, size: int) -> None:
    for topic in (b"t", b"x" * 255):
        assert singles(make().receive_data(message(kind, topic, size))) == [("broken", "frame-too-large")]


@pytest.mark.parametrize(("make", "kind"), [(FiggServerSession, 5), (FiggClientSession, 7)])
@pytest.mark.parametrize("topic", [0, 256, 0xFFFFFFFF])
def test_invalid_topic_size_is_refused_before_the_data_arrives(make: Any, kind: int, topic: int) -> None:
    wire = header(kind, 1 << 20) + pack(">I", topic)
    assert singles(make().receive_data(wire)) == [("broken", "bad-topic")]
    *_, event = make().receive_data(message(kind, b"t", 1 << 20) + wire)
    assert isinstance(event, Broken), "behind another frame, too"


@pytest.mark.parametrize(("make", "kind"), [(FiggServerSession, 5), (FiggClientSession, 7)])
@pytest.mark.parametrize("topic", [1, 200, 255])
def test_frame_too_small_for_its_topic_is_refused_before_the_rest_arrives(make: Any, kind: int, topic: int) -> None:
    fields = topic + 4 + 8 + 4
    assert make().receive_data(header(kind, fields) + pack(">I", topic)) == []
    if topic > 1:
        wire = header(kind, fields - 1) + pack(">I", topic)
        assert singles(make().receive_data(wire)) == [("broken", "bad-length")]


@pytest.mark.parametrize(("make", "kind"), [(FiggServerSession, 5), (FiggClientSession, 7)])
def test_data_size_that_does_not_fill_the_frame_is_refused_at_the_default_limit(make: Any, kind: int) -> None:
    wire = bytearray(message(kind, b"t", MAX_PAYLOAD))
    for lie in (MAX_PAYLOAD - 1, MAX_PAYLOAD + 1, 0xFFFFFFFF):
        wire[21:25] = pack(">I", lie)
        (event,) = make().receive_data(bytes(wire))
        assert isinstance(event, Broken)


def test_ack_of_a_lower_number_does_not_cover_a_higher_one() -> None:
    session = FiggServerSession()
    session.send_acks((7, 9, 9, 2, 3))
    assert session.data_to_send() == [Ack(number=9).serialize(), Ack(number=3).serialize()]
    assert session.data_to_send() == []


def test_eof_within_a_frame_breaks_the_session() -> None:
    wire = Publish(topic="t", number=1, data=b"x").serialize()
    for cut in range(len(wire) + 1):
        session = FiggServerSession()
        session.receive_data(wire[:cut])
        assert singles(session.receive_eof()) == ([("broken", "truncated-frame")] if 0 < cut < len(wire) else [])
        assert (session.expected, session.buffered) == (0, 0)
    session = FiggServerSession()
    assert (session.expected, session.receive_eof()) == (0, [])
    session.receive_data(header(0, 0))
    assert session.receive_eof() == [], "it is broken already"


@pytest.mark.parametrize(("make", "says"), [(FiggServerSession, CLIENT_MESSAGES), (FiggClientSession, SERVER_MESSAGES)])
def test_expected_and_buffered_follow_each_byte_of_a_frame(make: Any, says: list[Any]) -> None:
    session = make()
    for frame in says:
        wire = frame.serialize()
        for count in range(1, len(wire)):
            assert session.receive_data(wire[count - 1 : count]) == []
            assert (session.expected, session.buffered) == (8 if count < 8 else len(wire), count)
        assert singles(session.receive_data(wire[-1:])) == [frame]
        assert (session.expected, session.buffered) == (0, 0)
    both = says[0].serialize() + says[1].serialize()
    assert singles(session.receive_data(both[:-1])) == says[:1]
    assert session.expected == session.buffered + 1 == len(says[1].serialize())
    assert singles(session.receive_data(both[-1:])) == says[1:2]


@pytest.mark.parametrize(("make", "kinds"), [(FiggServerSession, CLIENT_FRAMES), (FiggClientSession, SERVER_FRAMES)])
def test_size_limits_of_the_header_are_exact(make: Any, kinds: frozenset[FrameType]) -> None:
    for kind in kinds:
        smallest, largest = FRAMES[kind].sizes
        if kind in (FrameType.PUBLISH, FrameType.DATA):
            largest += 100
        for size, causes in (
            (smallest - 1, [("broken", "bad-length")]),
            (smallest, []),
            (largest, []),
            (largest + 1, [("broken", "frame-too-large")]),
        ):
            session = make(max_payload=100)
            assert singles(session.receive_data(header(kind, size))) == causes
            assert session.expected == (0 if causes else 8 + size)


@pytest.mark.parametrize(("make", "kind"), [(FiggServerSession, Publish), (FiggClientSession, Data)])
def test_messages_that_come_at_once_become_runs_of_a_mebibyte_at_the_most(make: Any, kind: Any) -> None:
    wire = b"".join(kind(topic="t", number=n, data=bytes(64 << 10)).serialize() for n in range(1, 41))
    events = make().receive_data(wire)
    runs = [event.runs[0] if isinstance(event, Published) else event for event in events]
    assert [len(run.payload) for run in runs] == [1 << 20, 1 << 20, 512 << 10]


@given(st.lists(st.binary(max_size=200), max_size=8))
@settings(max_examples=200, deadline=None)
def test_random_bytes_never_raise_and_chunking_does_not_matter(chunks: list[bytes]) -> None:
    cut, whole = FiggServerSession(), FiggServerSession()
    assert singles(feed(cut, chunks)) == singles(whole.receive_data(b"".join(chunks)))


frames = st.one_of(
    st.builds(Publish, topic=st.sampled_from(["a", "b"]), number=st.integers(1, 5), data=st.binary(max_size=20)),
    st.builds(Attach, topic=st.sampled_from(["a", "é"]), offset=st.none() | st.integers(0, 9)),
    st.builds(Detach, topic=st.text("abc", min_size=1, max_size=5)),
)


@given(st.lists(frames, max_size=20), st.lists(st.integers(1, 60), max_size=10))
@settings(max_examples=200, deadline=None)
def test_frames_are_received_as_they_were_sent(sent: list[Any], cuts: list[int]) -> None:
    wire, chunks = b"".join(frame.serialize() for frame in sent), []
    for cut in cuts:
        chunks.append(wire[:cut])
        wire = wire[cut:]
    assert singles(feed(FiggServerSession(), [*chunks, wire])) == sent


@pytest.mark.parametrize("topic", NAMES)
def test_beginning_of_a_data_frame_and_its_data_are_the_frame(topic: str) -> None:
    run = Run.of(topic, [b"data", b"more"], source="x").numbered(7, 1)
    assert head_of_data(run) + b"data" == Data(topic=topic, number=7, data=b"data").serialize()


def test_messages_that_a_client_publishes_are_numbered_from_the_first() -> None:
    client, server = FiggClientSession(), FiggServerSession()
    client.send_publish("t", 7, [b"one", b"", b"three"])
    client.send_publish("t", 10, [])
    assert singles(server.receive_data(b"".join(client.data_to_send()))) == [
        Publish(topic="t", number=7, data=b"one"),
        Publish(topic="t", number=8, data=b""),
        Publish(topic="t", number=9, data=b"three"),
    ]
