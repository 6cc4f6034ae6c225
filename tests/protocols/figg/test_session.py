"""Figg's sessions: events do not depend on chunking, and Broken is the last one."""

from __future__ import annotations

from collections import Counter
from random import Random
from struct import pack, unpack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import Broken, RemoteProtocolError
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
    Ping,
    Pong,
    Publish,
    Published,
)
from fyrehose.protocols.figg.session import FiggClientSession, FiggServerSession, encode_data, head_of_data
from fyrehose.records import MAX_PAYLOAD, Run
from fyrehose.sessions import PIECE
from fyrehose.testing import feed
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


LIMIT = 45  #: of the data of one message, in the model: the size of the largest one


def reference(wire: bytes, kinds: frozenset[FrameType], message: FrameType) -> tuple[list[Any], int, int]:
    """Return the events that the rules of figg.md make of *wire*, and what ``expected`` and ``buffered`` are then."""
    events: list[Any] = []
    while len(wire) >= 8:
        kind, version, size = unpack(">HHI", wire[:8])
        cause = ""
        if version != 1:
            cause = "wrong-version"
        elif kind not in range(1, 10):
            cause = "unknown-type"
        elif kind not in kinds:
            cause = "wrong-direction"
        elif size > FRAMES[kind].sizes[1] + LIMIT * (kind == message):
            cause = "frame-too-large"
        elif size < FRAMES[kind].sizes[0]:
            cause = "bad-length"
        elif kind == message and len(wire) >= 12:  # the size of the topic has arrived, and with it that of the data
            topic = int.from_bytes(wire[8:12], "big")
            data = size - 4 - topic - 8 - 4
            cause = "frame-too-large" if data > LIMIT else "bad-length" if data < 0 else ""
            cause = cause if 1 <= topic <= 255 else "bad-topic"
        if not cause and len(wire) < 8 + size:
            return events, 8 + size, len(wire)
        try:
            events.append(("broken", cause) if cause else FRAMES[kind].parse(wire[8 : 8 + size]))
        except RemoteProtocolError as error:
            events.append(("broken", error.cause))
        if isinstance(events[-1], tuple):
            return events, 0, 0
        wire = wire[8 + size :]
    return events, 8 if wire else 0, len(wire)


def spoiled(random: Random, frame: bytes) -> bytes:
    """Return *frame* with a wrong field, or with bytes that are missing or too many."""
    size = int.from_bytes(frame[4:8], "big")
    sizes = (0, 1, size - 1, size + 1, 16 + LIMIT, 16 + LIMIT + 255, 17 + LIMIT + 255, 269, 270, 0xFFFFFFFF)
    topics = (0, 1, 2, size - 17, size - 16, size - 15, 255, 256, 0xFFFFFFFF)
    return random.choice(
        (
            pack(">H", random.choice((*range(12), 0xFFFF))) + frame[2:],
            frame[:2] + pack(">H", random.choice((0, 2))) + frame[4:],
            frame[:4] + pack(">I", max(random.choice(sizes), 0)) + frame[8:] + bytes(random.choice((0, 300))),
            frame[:8] + pack(">I", max(random.choice(topics), 0)) + frame[12:],
            frame[:12] + b"\xff" + frame[13:],
            frame[: random.randrange(len(frame))] + random.randbytes(random.randrange(30)),
            frame[:-1] + b"x" + frame,
        )
    )


@pytest.mark.parametrize(
    ("make", "kinds", "message"),
    [(FiggServerSession, CLIENT_FRAMES, FrameType.PUBLISH), (FiggClientSession, SERVER_FRAMES, FrameType.DATA)],
)
def test_events_of_any_frames_are_those_of_the_rules_as_soon_as_their_bytes_are_there(
    make: Any, kinds: Any, message: FrameType
) -> None:
    """However the bytes are cut: a violation is the last event, and is noticed before the rest of its frame arrives."""
    found: set[str] = set()
    for seed in range(400):
        random = Random(seed)
        frames = [frame.serialize() for frame in random.choices(CLIENT_MESSAGES + SERVER_MESSAGES, k=4)]
        right = [frame for frame in frames if frame[1] in kinds]
        wrong = [spoiled(random, random.choice(frames))] if seed % 4 else []
        wire = b"".join([*right, *wrong, *right * random.randrange(2)])
        session, events, at = make(max_payload=LIMIT), list[Any](), 0
        while at < len(wire):
            cut = at + random.choice((1, 1, 1, 3, 8, 50, 1_000))
            events += feed(session, [wire[at:cut]])
            at = min(cut, len(wire))
            assert (singles(events), session.expected, session.buffered) == reference(wire[:at], kinds, message)
        broken = [cause for event, cause in (each for each in singles(events) if isinstance(each, tuple))]
        if not broken and session.buffered:
            broken = ["truncated-frame"]
            assert singles(session.receive_eof()) == [("broken", "truncated-frame")]
        if broken:
            assert session.receive_eof() == session.receive_data(b"".join(right)) == [], "no event follows a violation"
        found |= {*broken}
    causes = {"wrong-version", "unknown-type", "wrong-direction", "frame-too-large", "bad-length", "bad-topic"}
    assert found == causes | {"truncated-frame"}


def header(kind: int, size: int, version: int = 1) -> bytes:
    return pack(">HHI", kind, version, size)


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


def test_one_turn_has_a_limited_number_of_events_and_a_run_counts_for_each_of_its_topics() -> None:
    ping, session = Ping(number=1).serialize(), FiggServerSession()
    assert (len(session.receive_data(ping * 70)), session.more, session.expected) == (32, True, 0)
    assert [(len(session.next_events()), session.more) for _ in range(2)] == [(32, True), (6, False)]
    topics = b"".join(Publish(topic=f"t{n}", number=n, data=b"x").serialize() for n in range(1, 16))
    assert (len(session.receive_data((topics + ping) * 3)), session.more) == (4, True)
    assert (len(session.next_events()), session.more) == (2, False)


@given(st.lists(st.integers(1, 5) | st.integers(0, (1 << 64) - 1), min_size=1, max_size=6))
def test_each_rise_of_the_numbers_is_one_ack_because_an_ack_covers_no_higher_number(numbers: list[int]) -> None:
    session = FiggServerSession()
    session.send_acks(numbers)
    ends = [number for number, after in zip(numbers, [*numbers[1:], -1], strict=True) if after < number]
    assert b"".join(session.data_to_send()) == b"".join(Ack(number=number).serialize() for number in ends)
    assert session.data_to_send() == []


@pytest.mark.parametrize(("make", "kind"), [(FiggServerSession, Publish), (FiggClientSession, Data)])
def test_messages_that_come_at_once_become_runs_of_a_mebibyte_at_the_most(make: Any, kind: Any) -> None:
    wire = b"".join(kind(topic="t", number=n, data=bytes(64 << 10)).serialize() for n in range(1, 41))
    events = make().receive_data(wire)
    runs = [event.runs[0] if isinstance(event, Published) else event for event in events]
    assert [len(run.payload) for run in runs] == [1 << 20, 1 << 20, 512 << 10]


def test_records_are_sent_in_pieces_of_whole_frames_and_a_larger_record_as_its_head_and_its_data() -> None:
    """Compare each piece with the frames of its records, made one by one: as many of the first as fit."""
    seen: Counter[str] = Counter()
    for seed in range(60):
        random = Random(seed)
        topic, (most, rows) = random.choice(NAMES), random.choice(((9, 60), (3_000, 60), (2 * PIECE, 4)))
        runs, seq = list[Run](), random.choice((1, 1 << 40))
        for _ in range(random.randint(1, 4)):
            sizes = [random.choice((0, 1, random.randint(0, most))) for _ in range(random.randint(1, rows))]
            if seed % 4 == 0:  # the last record fits exactly, or not by one byte
                head = len(Data(topic=topic, number=1, data=b"").serialize())
                sizes[-1] = max(0, PIECE - head * len(sizes) - sum(sizes[:-1]) + random.randint(-1, 1))
            runs.append(Run.of(topic, map(random.randbytes, sizes), source="x").numbered(seq, 1))
            seq += len(sizes) + random.choice((0, 0, 2))
        while runs:
            frames = [
                Data(topic=topic, number=record.seq, data=bytes(record.payload)).serialize()
                for run in runs
                for record in run.records()
            ]
            data, last, count = encode_data(runs)
            numbers = [record.seq for run in runs for record in run.records()]
            assert data == b"".join(frames[:count])
            assert len(data) <= PIECE
            if not count:
                assert len(frames[0]) > PIECE, "a record that fits is left out"
                assert last == numbers[0] - 1
                assert head_of_data(runs[0]) + next(iter(runs[0].payloads())) == frames[0]
                last = numbers[0]
                seen["large"] += 1
            else:
                assert last == numbers[count - 1]
                seen["whole" if count == len(frames) else "cut"] += 1
                begins = {run.first_seq for run in runs}
                if count < len(frames) and numbers[count] in begins:
                    assert len(data) + len(frames[count]) > PIECE, "the first record of the next run fits as well"
                    seen["between runs"] += 1
                assert count == len(frames) or sum(map(len, frames)) > PIECE, "all records fit"
            runs = [run.slice(max(0, last + 1 - run.first_seq), len(run)) for run in runs if run.last_seq > last]
    assert {"large", "whole", "cut", "between runs"} == set(seen), seen


def test_messages_that_a_client_publishes_are_numbered_from_the_first() -> None:
    client, server = FiggClientSession(), FiggServerSession()
    client.send_publish("t", 7, [b"one", b"", b"three"])
    client.send_publish("t", 10, [])
    assert singles(server.receive_data(b"".join(client.data_to_send()))) == [
        Publish(topic="t", number=7, data=b"one"),
        Publish(topic="t", number=8, data=b""),
        Publish(topic="t", number=9, data=b"three"),
    ]
