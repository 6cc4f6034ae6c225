"""Reads over HTTP with at-least, which wait for a record, and how old answers may be."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from fyrehose.broker.quotas import PeerLimits
from fyrehose.interfaces import JournalState
from tests.protocols.http.test_consuming import HttpPeer, World


def waiting(world: World, line: str = "GET /streams/s?from=10&at-least=12&wait=30") -> HttpPeer:
    peer = world.peer()
    peer.say(line)
    assert peer.hear() == b""
    return peer


def seqs(lines: Any) -> list[int]:
    return [line["seq"] for line in lines]


def test_read_of_an_existing_record_is_answered_at_once() -> None:
    world = World()
    status, lines = world.ask("GET /streams/s?from=9&at-least=10")
    assert (status, seqs(lines)) == (200, [9, 10])


def test_a_read_waits_for_its_record_and_not_for_an_earlier_one() -> None:
    world = World()
    peer = waiting(world)
    world.publish(1)
    assert peer.hear() == b""
    world.publish(1)
    status, lines = peer.answer()
    assert (status, seqs(lines)) == (200, [10, 11, 12])
    status, lines = peer.ask("GET /streams/s?from=12")
    assert (status, seqs(lines)) == (200, [12])


def test_a_read_waits_for_a_stream_that_does_not_exist_yet() -> None:
    world = World()
    peer = waiting(world, "GET /streams/new?at-least=1")
    world.publish(1, "new")
    status, lines = peer.answer()
    assert (status, seqs(lines)) == (200, [1])


@pytest.mark.parametrize(("query", "seconds"), [("", 10), ("&wait=3", 3), ("&wait=0", 0)])
def test_a_read_whose_record_does_not_come_is_refused_and_may_be_repeated(query: str, seconds: int) -> None:
    world = World()
    peer = world.peer()
    peer.say(f"GET /streams/s?at-least=12{query}")
    if seconds:
        world.clock.advance(seconds - 0.1)
        assert peer.hear() == b""
    world.clock.advance(0.1)
    status, answer = peer.answer()
    assert status == 503
    assert b"retry-after:" in peer.head.lower()
    assert answer["retriable"] is True
    assert answer["error"] == f"stream 's' ends at number 10 on this server, and 12 has not come within {seconds} s"
    assert world.broker.counters.counts["http", "not-here-yet"] == 1
    assert peer.ask("GET /streams/s?from=10")[0] == 200, "the connection stays usable"


def test_head_request_waits_for_the_record_too() -> None:
    world = World()
    peer = waiting(world, "HEAD /streams/s?at-least=12")
    world.publish(2)
    assert peer.answer()[0] == 200
    assert b"fyrehose-last: 12" in peer.head.lower()


@pytest.mark.parametrize(
    "line",
    [
        "GET /streams/s?at-least=x",
        "GET /streams/s?at-least=1&wait=301",
        "GET /streams/s?wait=5",
        "GET /streams/s?at-least=1&subscription=a",
        "GET /streams/s/live?at-least=1",
    ],
)
def test_invalid_waiting_is_refused(line: str) -> None:
    assert World().ask(line)[0] == 400


def test_a_waiting_read_counts_as_a_subscription_of_its_address() -> None:
    world = World(limits=PeerLimits(subscriptions=1))
    first = waiting(world)
    assert world.peer().ask("GET /streams/s?at-least=12")[0] == 429
    world.publish(2)
    assert first.answer()[0] == 200
    assert world.broker.subscribers("s") == 0
    waiting(world, "GET /streams/s?at-least=14")


def test_peer_that_may_not_read_a_stream_may_not_wait_for_its_records() -> None:
    world = World([{"network": "127.0.0.1", "publish": "*"}])
    assert world.peer().ask("GET /streams/s?at-least=1")[0] == 401


@pytest.mark.parametrize("end", ["close", "half-close", "stop"])
def test_a_waiting_read_ends_with_its_connection(end: str) -> None:
    world = World()
    peer = waiting(world)
    if end == "close":
        peer.leave()
    elif end == "half-close":
        peer.protocol.readConnectionLost()
    else:
        peer.protocol.finish()
        assert peer.answer()[0] == 503
    world.clock.advance(0)
    assert world.broker.subscribers("s") == 0


@pytest.mark.parametrize(("age", "shown"), [(0.0, b"0.000"), (0.4218, b"0.422"), (inf, b"unknown"), (None, None)])
@pytest.mark.parametrize(
    "line", ["GET /streams/s", "HEAD /streams/s", "GET /streams", "GET /streams/s/live", "GET /streams/*/live?match=s"]
)
def test_answers_say_how_old_they_may_be(
    monkeypatch: pytest.MonkeyPatch, line: str, age: float | None, shown: bytes | None
) -> None:
    world = World()
    monkeypatch.setattr(type(world.journal), "age", property(lambda journal: age))
    peer = world.peer()
    peer.say(line)
    head = peer.hear().partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 200 ")
    if shown is None:
        assert b"fyrehose-age" not in head
    else:
        assert b"fyrehose-age: " + shown in head


def test_a_follower_serves_a_record_when_it_has_come() -> None:
    world = World()
    world.journal.state = JournalState.READ_ONLY
    world.broker.follows = True
    peer = waiting(world)
    world.journal.state, world.broker.follows = JournalState.WRITABLE, False
    world.publish(2)
    assert peer.answer()[0] == 200
