"""The sessions of the three ports: events, requests and subscriptions, and what is refused without a violation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import Broken
from fyrehose.protocols.eventbus.columns import Encoder, EventsByTopic
from fyrehose.protocols.eventbus.frames import Dialect, SyncStart
from fyrehose.protocols.eventbus.session import (
    MAX_PREFIX,
    MAX_PREFIXES,
    MAX_RUN,
    CollectorSession,
    DealerSession,
    Ponged,
    PrefixChanged,
    PublisherSession,
    PubsReceived,
    Requested,
    SnapshotSession,
    SubscriberSession,
)
from fyrehose.protocols.eventbus.zmtp import MessageRefused, Null, ZmtpSession, command, encode, frame
from fyrehose.records import Run
from fyrehose.testing import every_chunking, feed

TIME = b"2024-05-01T10:20:30.123Z"
EVERYTHING = Encoder(frozenset({b""}), Dialect.BINARY)
UUID = b"7d444840-9dc0-41d1-b245-5ffdce74fad2"


def pub(n: int = 0, topic: bytes = b"/a/", data: bytes | None = None, **labels: bytes) -> list[bytes]:
    named = {"sequence": b"null", "producer": b"me", "timestamp": TIME, "uuid": UUID[:-4] + b"%04d" % n, **labels}
    return [topic, *named.values(), b"%d" % n if data is None else data]


def joined(one: ZmtpSession, client: Any) -> tuple[Any, Any]:
    """Return both sessions after their handshake."""
    while one.out or client.out:
        client.receive_data(b"".join(one.data_to_send()))
        one.receive_data(b"".join(client.data_to_send()))
    assert one.linked
    assert client.linked
    return one, client


def collector(largest: int = 1_000) -> Any:
    return joined(CollectorSession(Null(), largest, "bus"), DealerSession())[0]


def snapshot(dialect: Dialect = Dialect.BINARY) -> Any:
    return joined(SnapshotSession(Null(), dialect), DealerSession())[0]


def publisher(usual: Dialect = Dialect.BINARY) -> Any:
    return joined(PublisherSession(Null(), usual), SubscriberSession())[0]


def sent(events: list[Any]) -> list[list[bytes]]:
    """Return the events that were published, each as the frames of its BROADCAST without the sequence."""
    found, seq = [], 1
    for event in events:
        assert isinstance(event, PubsReceived), event
        for run in event.runs:
            piece = EventsByTopic([run.numbered(seq, 1)]).piece(EVERYTHING)
            found += map(without_sequence, messages(piece.data))
            seq += len(run)
    return found


def messages(data: bytes) -> list[list[bytes]]:
    """Return encoded messages as their frames."""
    _, client = joined(SnapshotSession(Null(), Dialect.BINARY), DealerSession())
    return [event.frames for event in feed(client, [data])]


def without_sequence(frames: list[bytes]) -> list[bytes]:
    return [frames[0], *frames[2:]]


def causes(events: list[Any]) -> list[str]:
    return [event.error.cause for event in events]


USUAL = [pub(n, topic=b"/%d/" % (n // 3)) for n in range(9)]
UNUSUAL = [
    pub(1, timestamp=b"now"),
    pub(2, uuid=b"42"),
    pub(3, producer=b"\xff"),
    pub(4, timestamp=b"2024-05-01T10:20:30Z"),
    pub(5, topic=b""),
    pub(6, data=b""),
    pub(7, data=b"x" * 300),
    pub(8, data=b"\xdd\xff\xff\xff\xff", sequence=b"\x80" + bytes(7)),
]


class TestCollector:
    def test_consecutive_events_with_equal_labels_share_a_run(self) -> None:
        (event,) = collector().receive_data(b"".join(map(encode, USUAL)))
        assert [(run.stream, run.source, run.topic, run.producer, len(run)) for run in event.runs] == [
            ("bus", "eventbus", f"/{n}/", "me", 3) for n in range(3)
        ]
        assert {run.content_type for run in event.runs} == {"application/msgpack"}
        assert all(run.producer_seq is None for run in event.runs), "sequences from clients are ignored"

    def test_events_keep_their_order_and_every_byte_however_they_are_cut(self) -> None:
        every = [*USUAL[2:5], *UNUSUAL, *USUAL[:2]]
        wire = b"".join(map(encode, every))
        for chunks in every_chunking(wire, sizes=(1, 7, 100, 1_000)):
            assert sent(feed(collector(), chunks)) == list(map(without_sequence, every))

    def test_delimiter_of_a_req_socket_is_removed(self) -> None:
        assert sent(collector().receive_data(encode((b"", *pub())))) == [without_sequence(pub())]

    @pytest.mark.parametrize(
        ("frames", "cause"),
        [
            ([b"x"], "wrong-frame-count"),
            (pub()[:5], "wrong-frame-count"),
            ([*pub(), b""], "wrong-frame-count"),
            ([b"x"] * 8, "wrong-frame-count"),
            ([b"x"] * 20_000, "wrong-frame-count"),
            (pub(topic=b"x" * 256), "topic-too-long"),
            (pub(topic=b"x" * 5_000), "label-too-long"),
            (pub(topic=b"\xff"), "bad-topic"),
            (pub(producer=b"x" * 65), "label-too-long"),
            (pub(sequence=b"x" * 65), "label-too-long"),
            (pub(data=b"x" * 1_001), "data-too-large"),
        ],
    )
    def test_invalid_message_is_refused_and_the_next_is_not(self, frames: list[bytes], cause: str) -> None:
        session = collector()
        events = feed(session, [encode(pub(1)) + encode(frames) + encode(pub(2))])
        assert causes(events[1:-1]) == [cause]
        assert sent([events[0], events[-1]]) == [without_sequence(pub(1)), without_sequence(pub(2))]

    def test_runs_of_one_event_are_limited(self) -> None:
        session = collector(largest=MAX_RUN)
        wire = encode(pub(data=b"x" * 400_000)) * 6
        sizes = [len(run.payload) for event in session.receive_data(wire) for run in event.runs]
        assert sum(sizes) == 2_400_000
        assert max(sizes) <= MAX_RUN

    def test_a_turn_ends_after_many_topics(self) -> None:
        session = collector()
        wire = b"".join(encode(pub(0, topic=b"/%d/" % n)) for n in range(2_000))
        runs = sum(len(event.runs) for event in session.receive_data(wire))
        assert runs < 2_000
        assert session.more
        assert runs + sum(len(event.runs) for event in feed(session, [b""])) == 2_000

    def test_a_msgpack_bomb_is_not_parsed(self) -> None:
        bomb = b"\x91" * 900
        assert sent(collector().receive_data(encode(pub(data=bomb))))[0][4] == bomb


class TestSnapshot:
    def test_request_is_parsed_in_both_dialects(self) -> None:
        for sequence, dialect in ((bytes(7) + b"\7", Dialect.BINARY), (b"7", Dialect.DECIMAL)):
            (event,) = snapshot().receive_data(encode((b"SYNCSTART", b"/a/", sequence)))
            assert (event.request.sequence, event.dialect, event.delimiter) == (7, dialect, False)

    def test_request_without_a_sequence_has_the_dialect_of_the_listener(self) -> None:
        for dialect in Dialect:
            for frames in ((b"SYNCSTART", b""), (b"SYNCSTART", b"", b""), (b"SYNCSTART", b"", b"null")):
                (event,) = snapshot(dialect).receive_data(encode(frames))
                assert (event.request.sequence, event.dialect) == (0, dialect)

    def test_answer_has_the_frames_of_the_specification_and_the_delimiter(self) -> None:
        request = SyncStart.parse([b"SYNCSTART", b"/a/", b"3"])
        plain = Requested(request=request, dialect=Dialect.DECIMAL, delimiter=False)
        assert (plain.head, plain.end(9)) == (b"\1\4SYNC", encode((b"SYNCEND", b"/a/", b"9")))
        delimited = Requested(request=request, dialect=Dialect.BINARY, delimiter=True)
        assert (delimited.head, delimited.end(9)) == (
            b"\1\0\1\4SYNC",
            encode((b"", b"SYNCEND", b"/a/", bytes(7) + b"\x09")),
        )

    def test_encoder_of_an_answer_wants_the_subtrees(self) -> None:
        (event,) = snapshot().receive_data(encode((b"", b"SYNCSTART", b"/a/;/b/", b"0")))
        assert event.delimiter
        assert [event.encoder.wants(topic) for topic in (b"/a/x", b"/b/", b"/c/", b"")] == [True, True, False, False]
        (event,) = snapshot().receive_data(encode((b"SYNCSTART", b"", b"0")))
        assert event.encoder.wants(b"")

    @pytest.mark.parametrize(
        ("frames", "cause"),
        [
            ([b"SYNCSTART"], "wrong-frame-count"),
            ([b"SYNCSTART", b"", b"", b"", b""], "wrong-frame-count"),
            ([b"SYNCEND", b"", b"0"], "unknown-command"),
            ([b"SYNCSTART", b"", b"-1"], "bad-sequence"),
            ([b"SYNCSTART", b"/a", bytes(8)], "bad-subtree"),
            ([b"SYNCSTART", b";".join(b"/%d/" % n for n in range(65)), b"0"], "too-many-subtrees"),
            ([b"SYNCSTART", b"/" + b"x" * 254 + b"/", b"0"], "subtree-too-long"),
            ([b"SYNCSTART", b"x" * 40_000, b"0"], "label-too-long"),
        ],
    )
    def test_invalid_request_is_refused_and_the_next_is_not(self, frames: list[bytes], cause: str) -> None:
        events = feed(snapshot(), [encode(frames) + encode((b"SYNCSTART", b"", b"0"))])
        assert causes(events[:-1]) == [cause]
        assert isinstance(events[-1], Requested)

    def test_refused_subtree_names_the_option_that_helps(self) -> None:
        (event,) = snapshot().receive_data(encode((b"SYNCSTART", b"/a")))
        assert "pass --option eventbus.dialect=decimal" in str(event.error)


class TestPublisher:
    def test_subscriptions_of_both_versions_are_a_set(self) -> None:
        session = publisher()
        events = feed(
            session,
            [
                encode((b"\1/a/",))
                + command(b"SUBSCRIBE", b"/b/")
                + encode((b"\1/a/",))
                + command(b"CANCEL", b"/b/")
                + encode((b"\0/a/",))
                + command(b"CANCEL", b"/never/")
            ],
        )
        assert events == [
            PrefixChanged(b"/a/", True),
            PrefixChanged(b"/b/", True),
            PrefixChanged(b"/b/", False),
            PrefixChanged(b"/a/", False),
        ]
        assert not session.subscribed

    @pytest.mark.parametrize(
        ("usual", "prefixes", "dialect"),
        [
            (Dialect.BINARY, [b"/a/", b""], Dialect.BINARY),
            (Dialect.BINARY, [b"/a/", b"/b"], Dialect.DECIMAL),
            (Dialect.BINARY, [b"plain/"], Dialect.DECIMAL),
            (Dialect.DECIMAL, [b"/a/", b""], Dialect.DECIMAL),
            (Dialect.DECIMAL, [b"/a/", b"\0binary"], Dialect.BINARY),
            (Dialect.DECIMAL, [b"\0binary", b"/b"], Dialect.BINARY),
            (Dialect.BINARY, [b"\0decimal", b"/a/"], Dialect.DECIMAL),
            (Dialect.BINARY, [b"\0decimal", b"\0binary"], Dialect.DECIMAL),
        ],
    )
    def test_dialect_is_recognized_by_the_subscriptions(
        self, usual: Dialect, prefixes: list[bytes], dialect: Dialect
    ) -> None:
        session, served = publisher(usual), publisher(usual)
        feed(session, [encode((b"\1" + prefix,)) for prefix in prefixes])
        assert session.dialect is session.encoder.dialect is dialect
        for prefix in prefixes:  # each may arrive after events were sent
            feed(served, [encode((b"\1" + prefix,))])
            assert served.encoder.dialect is served.dialect
        assert served.encoder == session.encoder

    def test_encoder_follows_the_subscriptions(self) -> None:
        session = publisher()
        feed(session, [encode((b"\1/a/",))])
        first = session.encoder
        assert session.encoder is first
        feed(session, [encode((b"\1/b/",))])
        assert [session.encoder.wants(topic) for topic in (b"/a/x", b"/b/x", b"/c/")] == [True, True, False]
        feed(session, [encode((b"\1",))])
        assert session.encoder.wants(b"")
        feed(session, [encode((b"\0",)), encode((b"\0/a/",))])
        assert [session.encoder.wants(topic) for topic in (b"/a/x", b"/b/x", b"")] == [False, True, False]

    def test_subscriptions_are_limited(self) -> None:
        session = publisher()
        feed(session, [encode((b"\1%d" % n,)) for n in range(MAX_PREFIXES)])
        (broken,) = feed(session, [encode((b"\1one more",))])
        assert isinstance(broken, Broken)
        assert broken.error.cause == "too-many-subscriptions"

    def test_prefixes_are_limited(self) -> None:
        (event,) = feed(publisher(), [encode((b"\1" + b"x" * MAX_PREFIX,))])
        assert isinstance(event, PrefixChanged)
        (event,) = feed(publisher(), [encode((b"\1" + b"x" * (MAX_PREFIX + 1),))])
        assert isinstance(event, MessageRefused)

    def test_other_messages_of_a_subscriber_are_refused(self) -> None:
        events = feed(publisher(), [encode((b"\2x",)) + encode((b"\1a", b"b")) + encode((b"",))])
        assert causes(events) == ["unknown-command", "wrong-frame-count", "unknown-command"]


class TestClient:
    def test_subscriptions_are_commands_or_messages_by_the_version_of_the_server(self) -> None:
        _, client = joined(PublisherSession(Null(), Dialect.BINARY), SubscriberSession())
        client.send_subscribe(b"/a/")
        assert client.data_to_send() == [command(b"SUBSCRIBE", b"/a/")]
        old = SubscriberSession()
        (greeting, *_) = PublisherSession(Null(), Dialect.BINARY).out
        old.receive_data(greeting[:11] + b"\0" + greeting[12:] + command(b"READY", b"\x0bSocket-Type\0\0\0\x03PUB"))
        old.data_to_send()
        old.send_subscribe(b"/a/")
        assert (old.data_to_send(), old.pings) == ([frame(b"\1/a/")], False)

    def test_ping_shows_that_earlier_subscriptions_were_handled(self) -> None:
        server, client = joined(PublisherSession(Null(), Dialect.BINARY), SubscriberSession())
        client.send_subscribe(b"/a/")
        client.send_ping(0)
        assert server.receive_data(b"".join(client.data_to_send())) == [PrefixChanged(b"/a/", True)]
        assert client.receive_data(b"".join(server.data_to_send())) == [Ponged()]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 2)), max_size=40), st.integers(1, 400))
def test_order_is_kept_and_runs_begin_only_where_labels_change(
    sent_events: list[tuple[int, int, int]], size: int
) -> None:
    every = [
        pub(
            n, topic=b"/%d/" % topic, producer=b"%d" % producer, timestamp=(TIME, b"now", b"2024-05-01T10:20:30Z")[form]
        )
        for n, (topic, producer, form) in enumerate(sent_events)
    ]
    wire = b"".join(map(encode, every))
    chunks = [wire[at : at + size] for at in range(0, len(wire), size)]
    events = feed(collector(), chunks)
    assert sent(events) == list(map(without_sequence, every))
    runs: list[Run] = [run for event in events for run in event.runs]
    assert all(run.topic == every[int(bytes(next(run.payloads())))][0].decode() for run in runs)
