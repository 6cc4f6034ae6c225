"""Dumps of the reference program's collection, in each form in which MongoDB's tools write them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from typing import Any
from uuid import UUID

import bson
import pytest
from bson import json_util
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fyrehose.errors import FyrehoseError
from fyrehose.protocols.eventbus import mongodump
from fyrehose.protocols.eventbus.columns import event_frames
from fyrehose.protocols.eventbus.frames import Dialect
from fyrehose.protocols.eventbus.mongodump import Dump, Unusable, event_of
from fyrehose.records import Record

STORED = datetime(2016, 11, 18, 14, 36, 50, 250_000)


def document(n: int, stored: datetime = STORED, **raw: Any) -> dict[str, Any]:
    """Return event *n* as the reference program stores it."""
    event = {
        "topic": "/example/topic",
        "sequence": n,
        "producer": "someproducer",
        "timestamp": datetime(2016, 11, 18, 14, 36, 49, 7_000),
        "uuid": str(UUID(int=n, version=4)),
        "data": b"\xa8somedata",
    }
    return {"_id": bson.ObjectId(), "sequence": n, "created": stored, "raw": event | raw, "__v": 0}


def as_bson(documents: list[dict[str, Any]]) -> bytes:
    return b"".join(map(bson.encode, documents))


def lines(options: json_util.JSONOptions) -> Callable[[list[dict[str, Any]]], bytes]:
    return lambda documents: b"".join(
        json_util.dumps(each, json_options=options).encode() + b"\n" for each in documents
    )


FORMS = {
    "bson": as_bson,
    "bson.gz": lambda documents: gzip.compress(as_bson(documents)),
    "json, version 1": lines(json_util.LEGACY_JSON_OPTIONS),
    "json, version 2": lines(json_util.RELAXED_JSON_OPTIONS),
    "json, version 2, canonical": lines(json_util.CANONICAL_JSON_OPTIONS),
}


def refuse(where: str, reason: str) -> None:
    raise FyrehoseError(f"{where}: {reason}")


def read(path: Path, data: bytes, refused: list[tuple[str, str]] | None = None) -> list[Record]:
    path.write_bytes(data)
    dump = Dump(path, "bus", refuse if refused is None else lambda *about: refused.append(about))
    return [record for run in dump.runs() for record in run.records()]


@pytest.mark.parametrize("form", FORMS)
def test_event_keeps_number_and_times_in_every_form(tmp_path: Path, form: str) -> None:
    (record,) = read(tmp_path / "dump", FORMS[form]([document(42)]))
    assert (record.stream, record.seq, record.topic, record.producer) == ("bus", 42, "/example/topic", "someproducer")
    assert record.time == int(STORED.replace(tzinfo=UTC).timestamp() * 1_000_000)
    assert record.event_time == 1_479_479_809_007_000
    assert record.event_id == UUID(int=42, version=4).bytes
    assert record.payload == b"\xa8somedata"


def test_recorded_lines_of_mongoexport_are_read(tmp_path: Path) -> None:
    """Lines as mongoexport 3.2 and 4.4 write them, not by the library that reads them."""
    raw = '"topic":"/a/","producer":"me","uuid":"7d444840-9dc0-41d1-b245-5ffdce74fad2"'
    data = (
        '{"_id":{"$oid":"582f11a1e4b0a1a2b3c4d5e6"},"sequence":1,"created":{"$date":"2016-11-18T14:36:50.250Z"},'
        f'"raw":{{{raw},"timestamp":{{"$date":"2016-11-18T14:36:49.007Z"}},"data":{{"$binary":"gaFuAQ==","$type":"00"}}'
        '},"__v":0}\n'
        '{"_id":{"$oid":"582f11a1e4b0a1a2b3c4d5e7"},"sequence":{"$numberLong":"2"},"created":{"$date":"2016-11-18T14:36:50.250Z"},'
        f'"raw":{{{raw},"timestamp":{{"$date":"2016-11-18T14:36:49.007Z"}},"data":{{"$binary":{{"base64":"gaFuAQ==",'
        '"subType":"00"}}},"__v":{"$numberInt":"0"}}\n'
    ).encode()
    one, two = read(tmp_path / "dump", data)
    assert (one.seq, two.seq) == (1, 2)
    assert one.payload == two.payload == b"\x81\xa1n\x01"
    assert one.event_time == two.event_time == 1_479_479_809_007_000


def test_frames_of_an_imported_event_equal_those_of_the_reference_program(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes(as_bson([document(1)]))
    (run,) = Dump(path, "bus", refuse).runs()
    assert list(event_frames(run, Dialect.DECIMAL)) == [
        (
            b"/example/topic",
            b"1",
            b"someproducer",
            b"2016-11-18T14:36:49.007Z",
            str(UUID(int=1, version=4)).encode(),
            b"\xa8somedata",
        )
    ]


@pytest.mark.parametrize(
    ("raw", "frames"),
    [
        ({"data": None}, {5: b"null"}),
        ({"data": "text"}, {5: b"text"}),
        ({"topic": None}, {0: b""}),
        ({"timestamp": None}, {3: b""}),
        ({"timestamp": "yesterday"}, {3: b"yesterday"}),
        ({"uuid": UUID(int=5).bytes}, {4: str(UUID(int=5)).encode()}),
    ],
)
def test_unusual_fields_are_sent_as_the_reference_program_does(raw: dict[str, Any], frames: dict[int, bytes]) -> None:
    event = event_of("here", document(1, **raw))
    assert {at: event.frames[at] for at in frames} == frames


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ([], "no event"),
        ({"sequence": 1}, "no event"),
        (document(1) | {"sequence": None}, "sequence is None"),
        (document(1) | {"sequence": True}, "whole number"),
        (document(1) | {"sequence": 1.5}, "sequence is 1.5"),
        (document(1) | {"sequence": float("nan")}, "whole number"),
        (document(1) | {"sequence": float("inf")}, "whole number"),
        (document(1) | {"sequence": 0}, "whole number from 1 to"),
        (document(1) | {"sequence": 1 << 48}, "whole number from 1 to"),
        (document(1, topic="/" * 256), "topic-too-long"),
        (document(1, topic=5), "raw.topic is 5"),
        (document(1, data={"n": 1}), "raw.data is"),
        (document(1, uuid="u" * 65), "label-too-long"),
    ],
)
def test_unusable_document_is_refused_with_the_reason(broken: Any, reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        event_of("here", broken)


def test_unusable_documents_are_named_by_their_place(tmp_path: Path) -> None:
    refused: list[tuple[str, str]] = []
    good = json_util.dumps(document(2)).encode()
    records = read(tmp_path / "dump", b'{"sequence": 1}\n\n' + good + b"\nnonsense\n[1]\n", refused)
    assert [record.seq for record in records] == [2]
    assert [where for where, _ in refused] == ["line 1", "line 4", "line 5"]
    assert "without --jsonArray" in refused[2][1]
    bad = bson.encode({"sequence": 1})
    assert [record.seq for record in read(tmp_path / "dump", as_bson([document(1)]) + bad, refused)] == [1]
    assert refused[3][0] == f"the document at byte {len(as_bson([document(1)]))}"


def test_deeply_nested_json_is_refused(tmp_path: Path) -> None:
    refused: list[tuple[str, str]] = []
    assert read(tmp_path / "dump", b'{"raw":' * 100_000 + b"\n", refused) == []
    assert refused[0][0] == "line 1"


@pytest.mark.parametrize("cut", [3, 4, 50])
def test_file_that_ends_within_a_document_is_damaged(tmp_path: Path, cut: int) -> None:
    data = as_bson([document(1), document(2)])
    with pytest.raises(FyrehoseError, match=r"claims|the file ends"):
        read(tmp_path / "dump", data[: len(data) // 2 + cut])


def test_compressed_file_that_is_cut_off_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(FyrehoseError, match="is damaged"):
        read(tmp_path / "dump", gzip.compress(as_bson([document(1), document(2)]))[:-12])


def test_empty_file_has_no_events(tmp_path: Path) -> None:
    assert read(tmp_path / "dump", b"") == []


def test_documents_are_sorted_by_their_numbers(tmp_path: Path) -> None:
    for order in permutations(range(1, 5)):
        records = read(tmp_path / "dump", as_bson([document(n) for n in order]))
        assert [record.seq for record in records] == [1, 2, 3, 4]


def test_documents_too_far_out_of_order_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mongodump, "SORTED", 2)
    assert [each.seq for each in read(tmp_path / "dump", as_bson([document(n) for n in (3, 2, 1, 4)]))] == [1, 2, 3, 4]
    with pytest.raises(FyrehoseError, match="number 1 follows 3, too far out of order; sort the dump"):
        read(tmp_path / "dump", as_bson([document(n) for n in (4, 3, 2, 5, 1)]))


def test_repeated_document_is_one_event_and_another_event_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes(as_bson([document(1), document(2), document(2), document(3)]))
    dump = Dump(path, "bus", refuse)
    assert sum(map(len, dump.runs())) == 3
    assert dump.repeated == 1
    refused: list[tuple[str, str]] = []
    read(path, as_bson([document(1), document(1, data=b"other")]), refused)
    assert "number 1 is that of another event" in refused[0][1]


def test_runs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mongodump, "RUN_EVENTS", 3)
    path = tmp_path / "dump"
    path.write_bytes(as_bson([document(n) for n in range(1, 9)]))
    assert [len(run) for run in Dump(path, "bus", refuse).runs()] == [3, 3, 2]


def test_progress_reaches_the_size_of_the_file(tmp_path: Path) -> None:
    path, seen = tmp_path / "dump", list[tuple[int, int]]()
    path.write_bytes(as_bson([document(1)]))
    list(Dump(path, "bus", refuse, lambda *at: seen.append(at)).runs())
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


events = st.builds(
    document,
    st.integers(1, 40),
    st.datetimes(datetime(2015, 1, 1), datetime(2024, 1, 1)).map(
        lambda d: d.replace(microsecond=d.microsecond // 1000 * 1000)
    ),
    topic=st.sampled_from(["/a/", "/b/"]),
    data=st.binary(max_size=20),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(events, max_size=30, unique_by=lambda each: each["sequence"]), st.sampled_from([*FORMS]))
def test_every_event_of_any_dump_is_read_unchanged(tmp_path: Path, documents: list[dict[str, Any]], form: str) -> None:
    records = read(tmp_path / "dump", FORMS[form](documents))
    wanted = sorted(documents, key=lambda each: each["sequence"])
    assert [(r.seq, r.topic, r.payload) for r in records] == [
        (each["sequence"], each["raw"]["topic"], each["raw"]["data"]) for each in wanted
    ]
    assert [r.time for r in records] == [
        round(each["created"].replace(tzinfo=UTC).timestamp() * 1000) * 1000 for each in wanted
    ]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(
        lambda v: json.dumps({"raw": v, "sequence": v}).encode()
    )
)
def test_any_invalid_file_raises_only_a_fyrehose_error(tmp_path: Path, data: bytes) -> None:
    try:
        found = read(tmp_path / "dump", data, [])
    except FyrehoseError:
        return
    assert found == []
