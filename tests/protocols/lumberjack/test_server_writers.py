"""The table of writers says who is connected, what each was refused, and that no route fits."""

from __future__ import annotations

import json
from struct import pack
from typing import Any

from fyrehose.routes import routes

FILEBEAT = {"agent": {"name": "web-1", "type": "filebeat", "version": "8.19.0"}}


def window(*events: object) -> bytes:
    frames = b""
    for number, event in enumerate(events, 1):
        payload = json.dumps(event).encode()
        frames += b"2J" + pack(">II", number, len(payload)) + payload
    return b"2W" + pack(">I", len(events)) + frames


def row(made: Any) -> dict[str, Any]:
    [found] = made.broker.counters.writers.listed()
    return dict(found)


def test_a_writer_is_listed_by_its_agent_while_it_is_connected_and_later(server: Any) -> None:
    made = server()
    peer = made.connect()
    assert made.broker.counters.writers.listed() == [], "it has not said who it is"
    peer.send(window(FILEBEAT, {"n": 2}))
    made.settle()
    found = row(made)
    assert (found["name"], found["agent"], found["connections"]) == ("web-1", "filebeat 8.19.0", 1)
    assert (found["events"], found["refused"], found["missed"]) == (2, 0, 0)
    assert found["acknowledged_ago"] is not None
    peer.lose()
    assert row(made)["connections"] == 0


def test_a_writer_without_a_name_is_listed_by_its_address(server: Any) -> None:
    made = server()
    made.connect().send(window({"message": "x"}))
    assert (row(made)["name"], row(made)["agent"]) == ("10.0.0.1", "")


def test_a_route_that_misses_is_logged_once_for_each_reason(server: Any, log_lines: list[str]) -> None:
    made = server(routes=routes("{fields.service},{topic}.{fields.zone}"))
    for _ in range(2):
        peer = made.connect()
        peer.send(window({"n": 1}, {"n": 2, "fields": {"zone": "a"}}, {"fields": {"service": ".a"}}))
    said = [line.partition("no route fits: ")[2].partition(";")[0] for line in log_lines]
    assert said == [
        "it has no fields.service and no topic and no fields.zone",
        "it has no fields.service and no topic",
        "it has no topic and no fields.zone",
    ]
    assert row(made)["missed"] == made.count("unrouted") == 6


def test_what_is_refused_is_counted_for_its_writer(server: Any) -> None:
    made = server()
    peer = made.connect()
    peer.send(window(FILEBEAT) + b"9")
    assert made.count("bad-version") == 1
    assert row(made)["refused"] == 1
