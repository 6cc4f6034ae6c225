"""Columns: as few runs as topics and content types allow, without loss or change of events."""

from __future__ import annotations

from struct import pack, unpack

import pytest

from fyrehose.protocols.lumberjack.columns import JSON, LARGE, NOT_JSON, RAW_PAIRS, Columns, text_of
from fyrehose.protocols.lumberjack.frames import Data
from fyrehose.records import MAX_NAME, MAX_PAYLOAD

TOPIC = (b"t",)


def columns(path: tuple[bytes, ...] = TOPIC) -> Columns:
    return Columns((path,))


def add(columns: Columns, sequences: int | bytes, *documents: bytes) -> None:
    columns.add_json(len(documents), sequences, pack(f"<{len(documents)}I", *map(len, documents)), b"".join(documents))


def add_pairs(columns: Columns, sequence: int, *pairs: tuple[bytes, bytes]) -> None:
    columns.add_pairs(sequence, Data(sequence=sequence, pairs=pairs).serialize()[6:], pairs)


def test_consecutive_events_of_one_topic_are_one_run() -> None:
    made = columns()
    add(made, 1, b'{"t":"a"}', b'{"t":"a","n":1}')
    add(made, 3, b'{"t":"a"}')
    (run,) = made.take()
    assert (len(run), run.producer_seq, run.topic, run.content_type) == (3, 1, "a", JSON)
    assert run.payload == b'{"t":"a"}{"t":"a","n":1}{"t":"a"}'
    assert made.take() == []


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ([(1, 2), (1, 1)], (1, 2, 1)),
        ([(0xFFFFFFFF, 1), (0, 1)], (0xFFFFFFFF, 0)),
        ([(5, 1), (pack("<2Q", 9, 7), 2)], (5, 9, 7)),
        ([(pack("<2Q", 9, 7), 2), (8, 2)], (9, 7, 8, 9)),
    ],
)
def test_sequences_that_are_not_consecutive_become_a_column(
    parts: list[tuple[int | bytes, int]], wanted: tuple[int]
) -> None:
    made = columns()
    for sequences, count in parts:
        add(made, sequences, *[b"{}"] * count)
    (run,) = made.take()
    assert isinstance(run.producer_seq, bytes)
    assert unpack(f"<{len(wanted)}Q", run.producer_seq) == wanted


def test_large_event_is_a_run_of_its_own() -> None:
    """Large payloads are not joined with others; order and content are kept."""
    made, large = columns(), b'{"t":"a","x":"%s"}' % (b"x" * LARGE)
    for sequence, document in enumerate([b"{}", b"{}", large, large, b'{"t":"a"}', b'{"t":"a"}'], 1):
        add(made, sequence, document)
    runs = made.take()
    assert [(len(run), run.producer_seq, run.topic) for run in runs] == [
        (2, 1, None),
        (1, 3, "a"),
        (1, 4, "a"),
        (2, 5, "a"),
    ]
    assert [bytes(run.payload) for run in runs] == [b"{}{}", large, large, b'{"t":"a"}{"t":"a"}']


def test_topics_split_a_run_in_order() -> None:
    made = columns()
    add(made, 7, b'{"t":"a"}', b'{"t":"b"}', b'{"t":"b"}', b"{}")
    add(made, pack("<2Q", 3, 1), b'{"t":"c"}', b'{"t":"c"}')
    runs = made.take()
    assert [(run.topic, len(run)) for run in runs] == [("a", 1), ("b", 2), (None, 1), ("c", 2)]
    *ordered, mixed = [run.producer_seq for run in runs]
    assert ordered == [7, 8, 10]
    assert mixed == pack("<2Q", 3, 1)
    assert [bytes(run.payload) for run in runs] == [b'{"t":"a"}', b'{"t":"b"}' * 2, b"{}", b'{"t":"c"}' * 2]


def test_document_that_cannot_be_json_has_another_content_type() -> None:
    made = columns()
    add(made, 1, b"{}", b"", b"not json", b"[]")
    assert [(run.content_type, len(run)) for run in made.take()] == [(JSON, 1), (NOT_JSON, 2), (JSON, 1)]


def test_pairs_and_documents_share_a_run() -> None:
    made = columns()
    add_pairs(made, 1, (b"t", b"a"), (b"t", b"b"))
    add(made, 2, b'{"t":"a"}')
    (run,) = made.take()
    assert (run.topic, run.content_type, run.producer_seq) == ("a", JSON, 1)
    assert run.payload == b'{"t":"a","t":"b"}{"t":"a"}'


def test_pairs_that_are_not_utf_8_stay_in_wire_format() -> None:
    made = columns()
    add(made, 1, b"{}")
    add_pairs(made, 2, (b"k", b"\xff"))
    add_pairs(made, 3, (b"k", b"v"))
    runs = made.take()
    assert [run.content_type for run in runs] == [JSON, RAW_PAIRS, JSON]
    assert runs[1].payload == bytes.fromhex("00000001 00000001 6b 00000001 ff")
    assert [run.producer_seq for run in runs] == [1, 2, 3]


def test_pairs_too_large_as_json_stay_in_wire_format() -> None:
    made = columns()
    add_pairs(made, 1, (b"k", b"\0" * (MAX_PAYLOAD // 6)))
    assert made.take()[0].content_type == RAW_PAIRS


@pytest.mark.parametrize(
    ("raw", "topic"),
    [
        (b"filebeat", "filebeat"),
        ("ü".encode(), "ü"),
        (b"\\u00fc\\n", "ü\n"),
        (b"x" * MAX_NAME, "x" * MAX_NAME),
        (b"x" * (MAX_NAME + 1), None),
        ("ü".encode() * 128, None),
        (b"", None),
        (b"\xff", None),
        (b"\\ud800", None),
        (b"\\x", None),
        (b"\\", None),
        (b"a\tb\\n", None),
    ],
)
def test_text_of_decodes_valid_topics_only(raw: bytes, topic: str | None) -> None:
    assert text_of(raw) == topic
