"""The server's session: accepted and refused messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.eventbus.frames import Dialect
from fyrehose.protocols.eventbus.session import EventBusServerSession, Requested
from fyrehose.protocols.eventbus.settings import EventBusSettings
from fyrehose.protocols.eventbus.snapshots import COST

TIME = b"2024-05-01T10:20:30.123Z"
UUID = b"7d444840-9dc0-41d1-b245-5ffdce74fad2"
EVENT = [b"/a/", b"null", b"me", TIME, UUID, b"\x01"]


def pub(session: EventBusServerSession, *frames: bytes, identity: bytes = b"c", now: float = 0.0) -> str | None:
    """Return the cause if the message is refused."""
    error = session.receive_pub([identity, *frames][:16], 1 + len(frames), now)
    return None if error is None else error.cause


def ask(session: EventBusServerSession, *frames: bytes, identity: bytes = b"c") -> Any:
    answer = session.receive_request([identity, *frames][:16], 1 + len(frames), "10.0.0.1", "10.0.0.1")
    return answer.cause if isinstance(answer, RemoteProtocolError) else answer


class TestPubs:
    def test_turn_becomes_one_batch(self) -> None:
        session = EventBusServerSession(EventBusSettings(stream="bus"))
        assert session.take() is None
        assert pub(session, *EVENT) is None
        assert pub(session, b"", *EVENT) is None, "a REQ socket's delimiter"
        batch = session.take()
        assert batch is not None
        assert (len(batch.runs), batch.count, batch.runs[0].stream) == (1, 2, "bus")
        assert session.take() is None

    def test_a_wrong_number_of_frames_is_refused(self) -> None:
        """Threat: wrong frame count or order."""
        session = EventBusServerSession(EventBusSettings())
        for count in [n for n in range(65) if n != 6]:
            assert pub(session, *[b"x"] * count) == "wrong-frame-count"
        assert session.take() is None

    def test_invalid_events_do_not_affect_others(self) -> None:
        session = EventBusServerSession(EventBusSettings())
        assert pub(session, *EVENT) is None
        assert pub(session, b"\xff", *EVENT[1:]) == "bad-topic"
        assert pub(session, b"/a/", b"\x80" + bytes(7), *EVENT[2:]) is None, "the sequence 2^63 is ignored"
        batch = session.take()
        assert batch is not None
        assert batch.count == 2

    def test_event_of_the_maximum_size_is_accepted(self) -> None:
        session = EventBusServerSession(EventBusSettings(max_payload=10))
        assert pub(session, *EVENT[:5], bytes(10)) is None
        assert pub(session, *EVENT[:5], bytes(11)) == "data-too-large"

    def test_deeply_nested_msgpack_data_is_not_parsed(self) -> None:
        """Threat: a msgpack bomb."""
        session = EventBusServerSession(EventBusSettings())
        bombs = [b"\xdd\xff\xff\xff\xff", b"\x91" * 1_000_000, b"\xdf\xff\xff\xff\xff" * 100, b"\xc1"]
        for bomb in bombs:
            assert pub(session, *EVENT[:5], bomb) is None
        batch = session.take()
        assert batch is not None
        assert [bytes(payload) for payload in batch.runs[0].payloads()] == bombs

    def test_duplicates_are_accepted_by_default(self) -> None:
        session = EventBusServerSession(EventBusSettings())
        assert [pub(session, *EVENT) for _ in range(2)] == [None, None]

    def test_duplicates_are_dropped_by_option(self) -> None:
        session = EventBusServerSession(EventBusSettings(dedup=True))
        assert pub(session, *EVENT) is None
        assert pub(session, *EVENT) == "duplicate"
        assert pub(session, *EVENT, now=599.0) == "duplicate"
        assert pub(session, *EVENT, now=1_199.5) is None
        batch = session.take()
        assert batch is not None
        assert batch.uuids == [UUID, UUID]
        session.failed(batch)
        assert pub(session, *EVENT, now=1_200.0) is None, "it was not published"

    def test_uuid_of_a_refused_event_is_not_remembered(self) -> None:
        session = EventBusServerSession(EventBusSettings(dedup=True))
        assert pub(session, b"\xff", *EVENT[1:]) == "bad-topic"
        assert pub(session, *EVENT[:3]) == "wrong-frame-count"
        assert pub(session, *EVENT) is None

    def test_uuids_expire_by_age_and_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fyrehose.protocols.eventbus.session.MOST_SEEN", 2)
        monkeypatch.setattr("fyrehose.protocols.eventbus.session.SEEN_AGE", 10.0)
        session = EventBusServerSession(EventBusSettings(dedup=True))
        a, b, c = (b"7d444840-9dc0-41d1-b245-%012x" % n for n in range(3))

        def at(uuid: bytes, now: float) -> str | None:
            return pub(session, *EVENT[:4], uuid, b"x", now=now)

        assert [at(a, 0), at(a, 5), at(b, 6)] == [None, "duplicate", None]
        assert at(c, 7) is None, "the oldest, a, is dropped"
        assert at(a, 8) is None
        assert at(c, 12) == "duplicate"
        assert at(c, 22.5) is None, "all are too old"


class TestRequests:
    def test_a_request_waits_for_its_turn(self) -> None:
        session = EventBusServerSession(EventBusSettings())
        for identity in (b"\0\0\0\0\x01", b"\xff\0text", bytes(range(255))):
            assert ask(session, b"SYNCSTART", b"/a/", b"7", identity=identity) == Requested(
                replaced=False, wrong_dialect=True
            )
        session.snapshots.admit(9, 0)
        assert list(session.snapshots.active) == [b"\0\0\0\0\x01", b"\xff\0text", bytes(range(255))]
        assert session.snapshots.active[b"\xff\0text"].request.sequence == 7

    @pytest.mark.parametrize(
        ("sequence", "listener", "dialect"),
        [
            (b"7", Dialect.BINARY, Dialect.DECIMAL),
            (bytes(8), Dialect.DECIMAL, Dialect.BINARY),
            (b"", Dialect.DECIMAL, Dialect.DECIMAL),
            (b"null", Dialect.BINARY, Dialect.BINARY),
        ],
    )
    def test_answer_uses_the_dialect_of_the_request(self, sequence: bytes, listener: Dialect, dialect: Dialect) -> None:
        session = EventBusServerSession(EventBusSettings(dialect=listener))
        ask(session, b"SYNCSTART", b"", sequence)
        session.snapshots.admit(9, 0)
        assert session.snapshots.active[b"c"].dialect is dialect

    def test_delimiters_are_kept(self) -> None:
        session = EventBusServerSession(EventBusSettings())
        ask(session, b"", b"SYNCSTART", b"", b"0")
        session.snapshots.admit(9, 0)
        assert session.snapshots.active[b"c"].delimiter

    def test_subtrees_in_the_syntax_of_the_reference_program_are_accepted(self) -> None:
        recognizing = EventBusServerSession(EventBusSettings())
        assert isinstance(ask(recognizing, b"SYNCSTART", b"a,b", b"0"), Requested)
        assert isinstance(ask(recognizing, b"", b"SYNCSTART", b"a,b", b"0"), Requested), "with a delimiter"
        for sequence in (bytes(8), b"", b"null"):
            assert ask(recognizing, b"SYNCSTART", b"a,b", sequence) == "bad-subtree"
        assert ask(recognizing, b"SYNCSTART", b"a,b", b"-1") == "bad-sequence"
        assert ask(recognizing, b"SYNCSTART", b"a,b") == "bad-subtree"
        lenient = EventBusServerSession(EventBusSettings(dialect=Dialect.DECIMAL))
        for frames in ([b"0"], [b""], [b"null"], []):
            assert isinstance(ask(lenient, b"SYNCSTART", b"a,b", *frames), Requested)
        assert ask(lenient, b"SYNCSTART", b"a,b", bytes(8)) == "bad-subtree"

    def test_a_wrong_number_of_frames_is_refused(self) -> None:
        """Threat: wrong frame count or order."""
        for count in [n for n in range(65) if n not in (2, 3)]:
            frames = [b"SYNCSTART", *[b""] * 64][:count]
            assert ask(EventBusServerSession(EventBusSettings()), *frames) == "wrong-frame-count"

    def test_snapshot_requests_are_bounded(self) -> None:
        """Threat: a storm of snapshots from 0."""
        session = EventBusServerSession(EventBusSettings())
        answers = [ask(session, b"SYNCSTART", b"", b"0", identity=b"%d" % n) for n in range(40_000)]
        assert answers.count("too-many-snapshots") == 40_000 - (32 << 20) // COST
        assert "too-many-snapshots" not in answers[:5_000], "5,000 clients of one address are accepted"
        assert ask(session, b"SYNCSTART", b"", b"0", identity=b"0") == Requested(replaced=True, wrong_dialect=True)
        other = session.receive_request([b"other", b"SYNCSTART", b"", b"0"], 4, "10.0.0.2", "10.0.0.2")
        assert isinstance(other, Requested), "another network has its own half"


@given(st.lists(st.one_of(st.binary(max_size=80), st.sampled_from([b"", b"SYNCSTART", *EVENT])), max_size=10))
def test_any_message_is_accepted_or_refused(frames: list[bytes]) -> None:
    session = EventBusServerSession(EventBusSettings(dedup=True))
    pub(session, *frames)
    ask(session, *frames)
    assert pub(session, *EVENT) in (None, "duplicate")
    batch = session.take()
    assert batch is not None
    assert batch.count <= 2
    assert len(session.snapshots) <= 1
