"""The tail: the latest, what was left out, and the beginning of what is large."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

from fyrehose.admin.tail import PART, SHOWN, Tail, as_event


def seqs(new: Any) -> list[int]:
    return [record["seq"] for record in new["records"]]


def test_it_begins_with_the_last_and_goes_on(watched: Any) -> None:
    watched.publish(*[b"x"] * 100)
    tail = Tail(watched.broker, "s", back=3)
    assert seqs(tail.look()) == [98, 99, 100]
    assert tail.look() is None
    watched.publish(b"a", b"b")
    new = tail.look()
    assert (seqs(new), new["skipped"]) == ([101, 102], 0)


def test_more_than_can_be_read_is_left_out_and_said(watched: Any) -> None:
    tail = Tail(watched.broker, "s")
    watched.publish(*[b"x"] * 1000)
    new = tail.look()
    assert (len(new["records"]), new["skipped"], seqs(new)[-1]) == (SHOWN, 1000 - SHOWN, 1000)


def test_what_is_large_is_shown_in_part(watched: Any) -> None:
    watched.publish(b"\xff" * (PART + 1))
    (record,) = Tail(watched.broker, "s").look()["records"]
    assert (record["size"], b64decode(record["payload"])) == (PART + 1, b"\xff" * PART)
    assert (record["source"], record["stream"]) == ("http", "s")


def test_large_ones_come_one_look_after_the_other(watched: Any) -> None:
    tail = Tail(watched.broker, "s")
    watched.publish(*[b"x" * 600_000] * 4)
    found = []
    while (new := tail.look()) is not None:
        assert new["skipped"] == 0
        found += seqs(new)
    assert found == [1, 2, 3, 4]


def test_a_stream_that_is_not_there_yet(watched: Any) -> None:
    tail = Tail(watched.broker, "new")
    assert tail.look() is None
    watched.publish(b"x", stream="new")
    assert seqs(tail.look()) == [1]


def test_what_retention_took_is_left_out(watched: Any) -> None:
    tail = Tail(watched.broker, "s")
    watched.publish(b"a")
    watched.publish(b"b")
    watched.journal.forget("s", 2)
    new = tail.look()
    assert (seqs(new), new["skipped"]) == ([2], 1)


def test_an_event_is_one_line_of_json() -> None:
    event = as_event("records", {"text": "a\nb\u2028ä"}).decode()
    name, data, *rest = event.split("\n")
    assert (name, rest) == ("event: records", ["", ""])
    assert json.loads(data.removeprefix("data: ")) == {"text": "a\nb\u2028ä"}
