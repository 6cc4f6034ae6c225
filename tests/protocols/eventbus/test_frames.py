"""Golden messages in both dialects, and invalid frames."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.eventbus.frames import (
    MAX_SUBTREES,
    Broadcast,
    Dialect,
    Pub,
    Subtrees,
    Sync,
    SyncEnd,
    SyncStart,
    check_event,
    pack_sequence,
    parse_sequence,
    without_delimiter,
)
from fyrehose.records import LAST_SEQ, MAX_PAYLOAD

TIME = b"2024-05-01T10:20:30.123Z"
UUID = b"7d444840-9dc0-41d1-b245-5ffdce74fad2"
DATA = b"\x81\xa1n\x01"
LABELS: dict[str, Any] = {"topic": "/a/b/", "producer": b"me", "timestamp": TIME, "uuid": UUID, "data": DATA}

VECTORS: list[tuple[Any, list[bytes]]] = [
    (
        SyncStart(subtrees=Subtrees(b"", ()), sequence=0, dialect=Dialect.BINARY),
        [b"SYNCSTART", b"", b"\0\0\0\0\0\0\0\0"],
    ),
    (
        SyncStart(subtrees=Subtrees(b"/a/;/b/c/", ("/a/", "/b/c/")), sequence=42, dialect=Dialect.BINARY),
        [b"SYNCSTART", b"/a/;/b/c/", b"\0\0\0\0\0\0\0\x2a"],
    ),
    (
        SyncStart(subtrees=Subtrees(b"/a/", ("/a/",)), sequence=42, dialect=Dialect.DECIMAL),
        [b"SYNCSTART", b"/a/", b"42"],
    ),
    (SyncStart(subtrees=Subtrees(b"", ()), sequence=0, dialect=None), [b"SYNCSTART", b"", b""]),
    (
        SyncEnd(subtrees=b"/a/", sequence=LAST_SEQ, dialect=Dialect.BINARY),
        [b"SYNCEND", b"/a/", b"\0\0\xff\xff\xff\xff\xff\xff"],
    ),
    (SyncEnd(subtrees=b"", sequence=12345678, dialect=Dialect.DECIMAL), [b"SYNCEND", b"", b"12345678"]),
    (
        Sync(**LABELS, sequence=7, dialect=Dialect.BINARY),
        [b"SYNC", b"/a/b/", b"\0\0\0\0\0\0\0\x07", b"me", TIME, UUID, DATA],
    ),
    (Sync(**LABELS, sequence=7, dialect=Dialect.DECIMAL), [b"SYNC", b"/a/b/", b"7", b"me", TIME, UUID, DATA]),
    (
        Broadcast(**LABELS, sequence=258, dialect=Dialect.BINARY),
        [b"/a/b/", b"\0\0\0\0\0\0\x01\x02", b"me", TIME, UUID, DATA],
    ),
    (Broadcast(**LABELS, sequence=258, dialect=Dialect.DECIMAL), [b"/a/b/", b"258", b"me", TIME, UUID, DATA]),
    (Pub(**LABELS, sequence=0, dialect=None), [b"/a/b/", b"null", b"me", TIME, UUID, DATA]),
]


@pytest.mark.parametrize(("message", "frames"), VECTORS)
def test_messages_match_their_golden_bytes_both_ways(message: Any, frames: list[bytes]) -> None:
    assert message.serialize() == frames
    assert type(message).parse(frames) == message


@pytest.mark.parametrize(
    ("frame", "sequence", "dialect"),
    [
        (b"", 0, None),
        (b"null", 0, None),
        (b"0", 0, Dialect.DECIMAL),
        (b"00000000", 0, Dialect.DECIMAL),
        (b"12345678", 12345678, Dialect.DECIMAL),
        (b"281474976710655", LAST_SEQ, Dialect.DECIMAL),
        (bytes(8), 0, Dialect.BINARY),
        (b"\0\0" + b"0" * 6, 0x303030303030, Dialect.BINARY),
        (b"\0\0" + b"\xff" * 6, LAST_SEQ, Dialect.BINARY),
    ],
)
def test_sequence_is_parsed_in_both_dialects(frame: bytes, sequence: int, dialect: Dialect | None) -> None:
    assert parse_sequence(frame) == (sequence, dialect)


@pytest.mark.parametrize(
    "frame",
    [
        b"\x80" + bytes(7),  # 2^63
        b"\0\x01" + bytes(6),  # 2^48
        b"281474976710656",
        b"9" * 65,
        b"-1",
        b"+1",
        b"1.0",
        b"4 2",
        b"NaN",
        b"undefined",
        bytes(7),
        bytes(9),
        "\uff14\uff12".encode(),
        "²".encode(),
    ],
)
def test_invalid_sequence_is_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="bad-sequence"):
        parse_sequence(frame)


@given(st.integers(0, LAST_SEQ), st.sampled_from(Dialect))
def test_sequence_round_trip(sequence: int, dialect: Dialect) -> None:
    assert parse_sequence(pack_sequence(sequence, dialect)) == (sequence, dialect)


@given(st.binary(max_size=70))
def test_any_bytes_are_a_sequence_or_refused(frame: bytes) -> None:
    try:
        sequence, dialect = parse_sequence(frame)
    except RemoteProtocolError:
        return
    assert 0 <= sequence <= LAST_SEQ
    assert dialect is not None or frame in (b"", b"null")


class TestSubtrees:
    def test_empty_specification_matches_every_topic(self) -> None:
        assert Subtrees.parse(b"").match("/a/")
        assert Subtrees.parse(b"").match(None)
        assert Subtrees.parse(b"").match("")

    def test_a_prefix_ends_at_a_slash(self) -> None:
        subtrees = Subtrees.parse(b"/a/b/;/c/")
        assert [
            topic for topic in ("/a/", "/a/b/", "/a/b/x", "/a/bc/", "/c/d/", "c/", "") if subtrees.match(topic)
        ] == [
            "/a/b/",
            "/a/b/x",
            "/c/d/",
        ]
        assert not subtrees.match(None)

    @pytest.mark.parametrize(
        ("spec", "cause"),
        [
            (b"a", "bad-subtree"),
            (b"/a", "bad-subtree"),
            (b"a/", "bad-subtree"),
            (b"/a/;", "bad-subtree"),
            (b"/a/,b", "bad-subtree"),
            (b"/\xff/", "bad-subtree"),
            (b"/" + b"a" * 254 + b"/", "subtree-too-long"),
            (b";".join([b"/a/"] * 65), "too-many-subtrees"),
            (b";".join([b"/"] * 10_000), "too-many-subtrees"),
            (b"/" * (1 << 20), "too-many-subtrees"),
        ],
    )
    def test_invalid_subtrees_are_refused(self, spec: bytes, cause: str) -> None:
        with pytest.raises(RemoteProtocolError) as raised:
            Subtrees.parse(spec)
        assert raised.value.cause == cause

    def test_request_may_have_exactly_the_maximum_number_of_subtrees(self) -> None:
        """Threat: 10,000 subtrees in one request."""
        longest = b"/" + b"a" * 253 + b"/"
        assert len(Subtrees.parse(b";".join([longest] * MAX_SUBTREES)).prefixes) == 64

    def test_reference_syntax_accepts_commas_and_prefixes(self) -> None:
        subtrees = Subtrees.parse(b"/a/,plain;/b", lenient=True)
        assert subtrees.prefixes == ("/a/", "plain", "/b")
        assert subtrees.spec == b"/a/,plain;/b"
        assert subtrees.match("plainly")

    def test_comma_is_part_of_a_topic_in_text_syntax(self) -> None:
        assert Subtrees.parse(b"/a,b/").prefixes == ("/a,b/",)

    def test_subtrees_are_made_from_prefixes(self) -> None:
        assert Subtrees.of(["/a/", "/b/"]).spec == b"/a/;/b/"
        assert Subtrees.of([]).spec == b""
        for wrong in (["a"], ["/a"], ["/\ud800/"], ["/a/"] * 65):
            with pytest.raises(LocalProtocolError):
                Subtrees.of(wrong)


class TestWrongFrames:
    """Wrong frame count or order; huge frames; bad UTF-8."""

    @pytest.mark.parametrize(
        ("parse", "first", "right"),
        [
            (Pub.parse, b"x", {6}),
            (Broadcast.parse, b"x", {6}),
            (check_event, b"x", {6}),
            (SyncStart.parse, b"SYNCSTART", {2, 3}),
            (SyncEnd.parse, b"SYNCEND", {3}),
        ],
        ids=["PUB", "BROADCAST", "event", "SYNCSTART", "SYNCEND"],
    )
    def test_another_number_of_frames_is_refused(self, parse: Any, first: bytes, right: set[int]) -> None:
        for count in {*range(65)} - right:
            with pytest.raises(RemoteProtocolError, match="wrong-frame-count"):
                parse([first, *[b""] * 64][:count])

    def test_syncstart_without_sequence_is_from_the_start(self) -> None:
        assert SyncStart.parse([b"SYNCSTART", b"/a/"]) == SyncStart.parse([b"SYNCSTART", b"/a/", b""])
        assert SyncStart.parse([b"SYNCSTART", b"/a/", b"null"]).sequence == 0

    @pytest.mark.parametrize("first", [b"", b"syncstart", b"SYNCSTART ", b"SYNC", b"SYNCEND", b"\xff"])
    def test_unknown_commands_are_refused(self, first: bytes) -> None:
        for parse in (SyncStart.parse, Sync.parse, SyncEnd.parse):
            if (first, parse) in ((b"SYNC", Sync.parse), (b"SYNCEND", SyncEnd.parse)):
                continue
            with pytest.raises(RemoteProtocolError, match="unknown-command"):
                parse([first, b"", b"0"])

    @pytest.mark.parametrize(
        ("at", "frame", "cause"),
        [
            (0, b"\xff", "bad-topic"),
            (0, b"\xed\xa0\x80", "bad-topic"),
            (0, b"a" * 256, "topic-too-long"),
            (1, b"1" * 65, "label-too-long"),
            (2, b"p" * 65, "label-too-long"),
            (3, b"t" * 65, "label-too-long"),
            (4, b"u" * 65, "label-too-long"),
            (5, bytes(MAX_PAYLOAD + 1), "data-too-large"),
        ],
    )
    def test_oversized_frames_are_refused(self, at: int, frame: bytes, cause: str) -> None:
        frames = [b"/a/", b"1", b"p", TIME, UUID, DATA]
        frames[at] = frame
        with pytest.raises(RemoteProtocolError) as raised:
            Pub.parse(frames)
        assert raised.value.cause == cause
        assert len(str(raised.value)) < 200, "errors do not repeat what a peer has sent"

    def test_largest_frames_are_accepted(self) -> None:
        frames = [b"a" * 255, b"s" * 64, b"\xff" * 64, b"t" * 64, b"u" * 64, b""]
        assert Pub.parse(frames).producer == b"\xff" * 64

    def test_client_supplied_sequence_is_ignored(self) -> None:
        """Threat: a sequence that the client supplies."""
        for forged in (b"\x80" + bytes(7), b"\xff" * 8, b"9" * 20, b"nonsense", b""):
            assert Pub.parse([b"/a/", forged, b"p", TIME, UUID, DATA]).sequence == 0

    @pytest.mark.parametrize("sequence", [b"", b"null", b"0", bytes(8)])
    def test_broadcast_without_a_sequence_is_refused(self, sequence: bytes) -> None:
        with pytest.raises(RemoteProtocolError, match="bad-sequence"):
            Broadcast.parse([b"/a/", sequence, b"p", TIME, UUID, DATA])


def test_delimiter_is_removed() -> None:
    frames = [b"", b"SYNCSTART", b"", b""]
    assert without_delimiter(frames, counts=(2, 3)) == (frames[1:], True)
    assert without_delimiter(frames[1:], counts=(2, 3)) == (frames[1:], False)
    event = [b"", b"1", b"p", TIME, UUID, DATA]
    assert without_delimiter(event, counts=(6,)) == (event, False), "an empty topic"
    assert without_delimiter([b"", *event], counts=(6,)) == (event, True)
    assert without_delimiter([b"x", *event], counts=(6,)) == ([b"x", *event], False)
    assert without_delimiter([], counts=(6,)) == ([], False)
