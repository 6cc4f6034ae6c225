"""The tail of a stream: latest records, skipped records, truncated payloads."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

from fyrehose.admin.tail import MOST_RECORDS, PART, StreamTail, as_event
from fyrehose.sessions import PIECE


def seqs(new: Any) -> list[int]:
    return [record["seq"] for record in new["records"]]


def test_tail_starts_with_the_last_records_and_continues(watched: Any) -> None:
    watched.publish(*[b"x"] * 100)
    tail = StreamTail(watched.broker, "s", back=3)
    assert seqs(tail.read()) == [98, 99, 100]
    assert tail.read() is None
    watched.publish(b"a", b"b")
    new = tail.read()
    assert (seqs(new), new["skipped"]) == ([101, 102], 0)


def test_records_beyond_the_limit_are_counted_as_skipped(watched: Any) -> None:
    tail = StreamTail(watched.broker, "s")
    watched.publish(*[b"x"] * 1000)
    new = tail.read()
    assert (len(new["records"]), new["skipped"], seqs(new)[-1]) == (MOST_RECORDS, 1000 - MOST_RECORDS, 1000)


def test_one_event_of_a_tail_fits_into_a_piece(watched: Any) -> None:
    tail = StreamTail(watched.broker, "s")
    watched.publish(*[b"x" * PART] * 40)
    new = tail.read()
    assert len(as_event("records", new)) <= PIECE
    assert (len(new["records"]) + new["skipped"], seqs(new)[-1]) == (40, 40)
    assert len(new["records"]) >= 10


def test_large_payload_is_truncated(watched: Any) -> None:
    watched.publish(b"\xff" * (PART + 1))
    (record,) = StreamTail(watched.broker, "s").read()["records"]
    assert (record["size"], b64decode(record["payload"])) == (PART + 1, b"\xff" * PART)
    assert (record["source"], record["stream"]) == ("http", "s")


def test_large_records_are_returned_in_several_reads(watched: Any) -> None:
    tail = StreamTail(watched.broker, "s")
    watched.publish(*[b"x" * 600_000] * 4)
    found = []
    while (new := tail.read()) is not None:
        assert new["skipped"] == 0
        found += seqs(new)
    assert found == [1, 2, 3, 4]


def test_a_tail_may_begin_before_its_stream_exists(watched: Any) -> None:
    tail = StreamTail(watched.broker, "new")
    assert tail.read() is None
    watched.publish(b"x", stream="new")
    assert seqs(tail.read()) == [1]


def test_records_deleted_by_retention_are_skipped(watched: Any) -> None:
    tail = StreamTail(watched.broker, "s")
    watched.publish(b"a")
    watched.publish(b"b")
    watched.journal.forget("s", 2)
    new = tail.read()
    assert (seqs(new), new["skipped"]) == ([2], 1)


def test_a_tail_event_is_one_line_of_json() -> None:
    event = as_event("records", {"text": "a\nb\u2028ä"}).decode()
    name, data, *rest = event.split("\n")
    assert (name, rest) == ("event: records", ["", ""])
    assert json.loads(data.removeprefix("data: ")) == {"text": "a\nb\u2028ä"}
