"""Requests over HTTP that wait for records: those of named subscriptions, and reads with at-least."""

from __future__ import annotations

import json
from math import inf
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.guard import Guard
from fyrehose.broker.policy import parse
from fyrehose.broker.quotas import PeerLimits
from fyrehose.broker.sequencer import Sequencer
from fyrehose.interfaces import FileLag, JournalState
from fyrehose.protocols.http.server import HttpFactory, HttpSettings
from fyrehose.records import Run
from fyrehose.standing import Standing
from fyrehose.testing import ClientSide, MemoryJournal
from tests.doubles.awkward import NUMBERS


@attrs.define(eq=False)
class HttpPeer(ClientSide):
    """An HTTP client.

    :ivar head: the status line and headers of the last answer
    """

    head: bytes = b""

    def say(self, line: str, body: object = None, *headers: str) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        length = [] if body is None else [f"Content-Length: {len(data)}"]
        lines = [f"{line} HTTP/1.1", "Host: localhost", *length, *headers, "", ""]
        self.send("\r\n".join(lines).encode() + data)

    def hear(self) -> bytes:
        return self.received()

    def ask(self, line: str, body: object = None, *headers: str) -> tuple[int, Any]:
        """Return the status, and the JSON objects of the answer: one, or a list of lines."""
        self.say(line, body, *headers)
        return self.answer()

    def answer(self) -> tuple[int, Any]:
        self.head, _, rest = self.hear().partition(b"\r\n\r\n")
        objects = [json.loads(line) for line in rest.split(b"\n") if line.strip().startswith(b"{")]
        one = b"content-length" in self.head.lower()
        return int(self.head.split()[1]), objects[0] if one and objects else objects


class HttpWorld:
    """A server, and peers that each send a request over a connection of their own."""

    def __init__(self, policy: Any = None, journal: MemoryJournal | None = None, **settings: Any) -> None:
        self.journal, self.clock = journal or MemoryJournal(), Clock()
        guard = Guard() if policy is None else Guard(parse({"allow": policy}))
        self.broker = Broker(self.clock, self.journal, Sequencer(), guard=guard, **settings)
        self.broker.open()
        self.factory = HttpFactory(self.broker, HttpSettings(refusal_delay=0.0), self.clock)

    def peer(self) -> HttpPeer:
        return HttpPeer.connect(self.factory, self.clock, port=5000)

    def say(self, line: str, body: object = None, *headers: str) -> HttpPeer:
        """Return a peer that has sent a request."""
        peer = self.peer()
        peer.say(line, body, *headers)
        return peer

    def ask(self, line: str, body: object = None) -> tuple[int, Any]:
        return self.say(line, body).answer()


class World(HttpWorld):
    """A server whose stream "s" has ten records."""

    def __init__(self, policy: Any = None, **settings: Any) -> None:
        super().__init__(policy, **settings)
        self.broker.table.now = lambda: 5_000_000
        self.publish(10)

    def publish(self, count: int, stream: str = "s") -> None:
        if count:
            self.broker.publish([Run.of(stream, [b"x"] * count, source="test")])

    def seqs(self, query: str = "") -> list[int]:
        status, lines = self.ask(f"GET /streams/s?subscription=a&consumer=me{query}")
        assert status == 200
        return numbers(lines)


def drained() -> World:
    """Return a world whose subscription "a" has acknowledged all records."""
    world = World()
    world.seqs()
    world.ask("POST /subscriptions/a/ack", {"seq": 10})
    return world


def waiting(world: World, line: str = "GET /streams/s?subscription=a&wait=30") -> HttpPeer:
    """Return a peer whose request *line* has no answer yet."""
    peer = world.say(line)
    assert peer.hear() == b""
    return peer


def numbers(lines: Any) -> list[int]:
    return [line["seq"] for line in lines]


def test_a_new_subscription_begins_with_the_oldest_record_or_where_the_request_says() -> None:
    world = World()
    assert world.seqs("&limit=3") == [1, 2, 3]
    status, lines = world.ask("GET /streams/s?subscription=b&from=9")
    assert (status, numbers(lines)) == (200, [9, 10])


def test_reading_does_not_acknowledge() -> None:
    world = World()
    assert world.seqs() == world.seqs() == list(range(1, 11))


def test_an_acknowledgement_moves_the_position() -> None:
    world = World()
    world.seqs()
    status, shown = world.ask("POST /streams/s/subscriptions/a/ack", {"seq": 7})
    assert (status, shown["position"], shown["lag"]) == (200, 7, 3)
    assert world.seqs() == [8, 9, 10]
    assert world.ask("GET /subscriptions/a") == (200, shown)
    assert world.ask("GET /subscriptions") == (200, {"subscriptions": [shown]})


def test_an_acknowledgement_is_answered_when_it_is_durable() -> None:
    world = World()
    world.seqs()
    world.journal.auto = False
    peer = world.say("POST /subscriptions/a/ack", {"seq": 7})
    assert peer.hear() == b""
    assert world.ask("GET /subscriptions/a")[1]["position"] == 0
    world.journal.commit()
    assert peer.answer()[1]["position"] == 7


def test_report_of_a_consumer_is_shown_with_its_age_until_the_next_one() -> None:
    world = World()
    world.seqs()
    assert "report" not in world.ask("GET /subscriptions/a")[1]
    world.ask("POST /subscriptions/a/report", {"delivered": 7, "problem": "no route"})
    world.clock.advance(2.5)
    (listed,) = world.ask("GET /subscriptions")[1]["subscriptions"]
    assert listed["report"] == {"delivered": 7, "problem": "no route", "ago": 2.5}
    status, shown = world.ask("POST /streams/s/subscriptions/a/report", {"delivered": 9})
    assert (status, shown["lag"], shown["report"]) == (200, 10, {"delivered": 9, "ago": 0})


@pytest.mark.parametrize(
    ("line", "body", "status"),
    [
        ("POST /subscriptions/b/report", {}, 404),
        ("POST /subscriptions/a/ack", {"seq": 11}, 409),
        ("POST /subscriptions/a/ack", {"seq": 1, "generation": 7}, 409),
        ("POST /subscriptions/b/ack", {"seq": 1}, 404),
        ("POST /streams/t/subscriptions/a/ack", {"seq": 0}, 409),
        ("GET /streams/t?subscription=a", None, 409),
        ("GET /streams/s?subscription=a%20b", None, 400),
        ("DELETE /subscriptions/b", None, 404),
    ],
)
def test_unsuitable_requests_about_a_subscription_are_refused(line: str, body: object, status: int) -> None:
    world = World()
    world.seqs()
    found, answer = world.ask(line, body)
    assert (found, list(answer)) == (status, ["error"])


def test_a_read_waits_for_a_record() -> None:
    world = drained()
    peer = waiting(world)
    world.publish(2)
    assert numbers(peer.answer()[1]) == [11, 12]
    assert len(world.broker.fanout.cursors) == 0


@pytest.mark.parametrize(("wait", "waited"), [(30, 30), (300, 50)])
def test_a_read_waits_as_long_as_it_says_but_no_longer_than_proxies_do(wait: int, waited: int) -> None:
    world = drained()
    peer = waiting(world, f"GET /streams/s?subscription=a&wait={wait}")
    world.clock.advance(waited - 1)
    assert peer.hear() == b""
    world.clock.advance(1)
    assert peer.answer() == (200, [])
    assert world.seqs() == []


@pytest.mark.parametrize("seconds", [0.5, 301.0])
def test_the_longest_wait_is_an_option_within_bounds(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"longest-wait must be from 1 to 300 s, not {seconds:g}"):
        HttpSettings(longest_wait=seconds)


def test_a_second_consumer_is_refused_while_the_first_waits() -> None:
    world = World()
    first = waiting(world, "GET /streams/s?subscription=a&wait=30&from=11")
    assert world.ask("GET /streams/s?subscription=a")[0] == 409
    assert world.ask("GET /streams/s/live?subscription=a")[0] == 409
    first.leave()
    assert world.seqs() == []


def test_a_second_consumer_takes_over() -> None:
    world = World()
    first, second = world.peer(), world.peer()
    first.say("GET /streams/s?subscription=a&wait=30&from=11")
    assert first.hear() == b""
    second.say("GET /streams/s?subscription=a&wait=30&takeover=1")
    assert first.answer()[0] == 409
    world.publish(1)
    assert numbers(second.answer()[1]) == [11]
    assert b"Fyrehose-Generation: 2" in second.head


def test_a_live_answer_begins_behind_the_position_and_is_exclusive() -> None:
    world = World()
    peer = world.say("GET /streams/s/live?subscription=a&from=9")
    said = peer.hear()
    assert said.count(b"id: 9\n") == 1
    assert said.count(b"id: 8\n") == 1, "that of the event which begins the answer"
    assert world.ask("GET /subscriptions/a")[1]["consumer"] is True
    assert world.ask("GET /streams/s?subscription=a")[0] == 409
    world.ask("POST /subscriptions/a/rewind", {"seq": "start"})
    said = peer.hear()
    assert b'event: ended\ndata: {"error": "subscription \'a\' was rewound"}' in said
    assert b"\nid\n" in said, "an EventSource that connects again must not undo the rewind"
    peer.leave()
    assert world.seqs("&limit=1") == [1]


@pytest.mark.parametrize(
    ("query", "headers", "position"),
    [
        ("&from=51", (), 0),
        ("&from=1", ("Last-Event-ID: 50",), 0),
        ("&from=4", ("Last-Event-ID: 50",), 3),
        ("&from=4", ("Last-Event-ID: other:6",), 3),
    ],
)
def test_a_number_of_another_journal_is_told_and_the_position_counts(
    query: str, headers: tuple[str, ...], position: int
) -> None:
    world = World()
    peer = world.say(f"GET /streams/s/live?subscription=a{query}", None, *headers)
    said = peer.hear()
    assert b'event: restarted\nid: %d\ndata: {"end": 10, ' % position in said
    assert said.count(b"id: ") == 1 + 10 - position
    assert world.ask("GET /subscriptions/a")[1]["position"] == position


@pytest.mark.parametrize(("first", "position"), [(10, 9), (11, 10), (12, 0)])
def test_a_new_subscription_beyond_the_end_begins_at_the_start(first: int, position: int) -> None:
    world = World()
    world.ask(f"GET /streams/s?subscription=polled&from={first}")
    assert world.ask("GET /subscriptions/polled")[1]["position"] == position
    status, shown = world.ask("PUT /subscriptions/shared", {"stream": "s", "shared": True, "from": first})
    assert (status, shown["floor"]) == (200, {"s": position})


def test_last_event_id_acknowledges() -> None:
    world = World()
    peer = world.say("GET /streams/s/live?subscription=a&from=1", None, "Last-Event-ID: 6")
    said = peer.hear()
    assert said.count(b"id: 7\n") == 1
    assert said.count(b"id: 6\n") == 1, "that of the event which begins the answer"
    assert world.ask("GET /subscriptions/a")[1]["position"] == 6


def test_a_consumer_that_is_displaced_while_it_is_answered_sees_an_incomplete_answer() -> None:
    world = World()
    world.publish(5_000)
    peer = world.say("GET /streams/s?subscription=a&limit=5000")
    peer.protocol.pauseProducing()
    world.ask("POST /subscriptions/a/rewind", {"seq": 3})
    assert peer.transport.aborted


def test_rewinding_sets_the_next_record() -> None:
    world = World()
    world.seqs()
    world.ask("POST /subscriptions/a/ack", {"seq": 9})
    assert world.ask("POST /subscriptions/a/rewind", {"seq": 5})[1]["position"] == 5
    assert world.seqs() == [6, 7, 8, 9, 10]
    assert world.ask("POST /subscriptions/a/rewind", {"seq": "latest"})[1]["position"] == 10


def test_subscriptions_are_deleted() -> None:
    world = World()
    world.seqs()
    world.journal.keeper.kept.append(FileLag("archive", 5, 6))
    assert len(world.ask("GET /subscriptions")[1]["subscriptions"]) == 2
    assert len(world.ask("GET /streams/s/subscriptions")[1]["subscriptions"]) == 1
    for name in ("a", "archive"):
        assert world.ask(f"DELETE /subscriptions/{name}")[0] == 204
        assert world.ask(f"DELETE /subscriptions/{name}")[0] == 404
    assert world.ask("GET /subscriptions") == (200, {"subscriptions": []})


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:6])
def test_awkward_number_is_refused_or_shown_as_json(number: str) -> None:
    """In every field that takes a number, of both kinds of subscription."""
    world = World()
    world.seqs()
    assert world.ask("PUT /subscriptions/w", {"stream": "s", "shared": True})[0] == 200
    shared = ("lease", "limit", "window", "most_waiting")
    for line, fields in (
        ("POST /subscriptions/a/ack", ("seq", "generation")),
        ("POST /subscriptions/a/rewind", ("seq", "since", "positions")),
        ("POST /subscriptions/a/report", ("delivered",)),
        ("PUT /subscriptions/v", shared),
        ("POST /subscriptions/w/lease", ("most", "wait")),
        ("POST /subscriptions/w/release", ("consumer",)),
        ("POST /subscriptions/w/pause", ("seconds", "paused")),
    ):
        for field in fields:
            rest = {"PUT": '"stream": "s", "shared": true, ', "POS": ""}[line[:3]]
            rest += '"consumer": "c", ' * line.endswith("lease") + '"seq": 1, ' * (field == "generation")
            data = f'{{{rest}"{field}": {number}}}'.encode()
            peer = world.peer()
            peer.send(f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            assert peer.answer()[0] in (200, 400, 404, 409), f"{line} {field}"
    shown = world.ask("GET /subscriptions")[1]
    json.dumps(shown, allow_nan=False)


@pytest.mark.parametrize("path", ["s?", "s/live?", "*?match=logs.*&", "*/live?match=logs.*&"])
def test_a_head_request_creates_nothing(path: str) -> None:
    world = World()
    assert world.ask(f"HEAD /streams/{path}subscription=a")[0] == 200
    assert world.ask("GET /subscriptions/a")[0] == 404


def test_a_full_disk_refuses_acknowledgements_and_serves_records() -> None:
    world = World()
    world.seqs()
    world.journal.enter(JournalState.READ_ONLY, "full")
    assert world.ask("POST /subscriptions/a/ack", {"seq": 3})[0] == 503
    assert world.seqs("&limit=1") == [1]
    assert world.ask("GET /subscriptions/a")[0] == 200
    assert world.ask("GET /streams/s?subscription=new")[0] == 503


def test_consuming_requires_the_right_consume() -> None:
    world = World([{"network": "127.0.0.1", "subscribe": "*", "publish": "*"}])
    assert world.ask("GET /streams/s?subscription=a")[0] == 401
    assert world.ask("GET /streams/s/live?subscription=a")[0] == 401
    assert world.ask("GET /subscriptions") == (200, {"subscriptions": []})
    world.broker.named.open("a", "s", 0)
    for line in ("POST /subscriptions/a/ack", "POST /subscriptions/a/report", "POST /subscriptions/a/rewind"):
        assert world.ask(line, {"seq": 1})[0] == 401
    assert world.ask("DELETE /subscriptions/a")[0] == 401
    assert world.ask("GET /subscriptions/a")[0] == 401


def test_client_that_disconnects_before_its_subscription_is_created_blocks_no_other_consumer() -> None:
    world = World()
    world.journal.auto = False
    peer = world.say("GET /streams/s?subscription=a&wait=30")
    peer.leave()
    world.journal.commit()
    world.journal.auto = True
    assert world.seqs("&limit=1") == [1]


@pytest.mark.parametrize(
    "request_line", ["GET /streams/s/live?subscription=a", "GET /streams/s?subscription=a&wait=60"]
)
def test_disconnected_consumer_frees_the_subscription_at_once(request_line: str) -> None:
    world = drained()
    gone = world.say(request_line)
    gone.hear()
    assert world.ask(request_line)[0] == 409
    gone.protocol.readConnectionLost()  # The transport knows no more until something is written.
    world.publish(1)
    assert world.seqs() == [11]


def test_a_half_closed_peer_that_does_not_wait_gets_its_records() -> None:
    world = World()
    peer = world.say("GET /streams/s?subscription=new&limit=2")
    peer.protocol.readConnectionLost()
    status, lines = peer.answer()
    assert (status, len(lines)) == (200, 2)


# Patterns.

POLL, FOLLOW = (
    "GET /streams/*?match=logs.*&subscription=a&consumer=me",
    "GET /streams/*/live?match=logs.*&subscription=a",
)


def logs(**settings: Any) -> World:
    """Return a server whose streams "logs.a" and "logs.b" have three records each."""
    world = World(**settings)
    world.publish(3, "logs.a")
    world.publish(3, "logs.b")
    return world


def places(lines: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return sorted((line["stream"], line["seq"]) for line in lines if "seq" in line)


def events(said: bytes) -> list[tuple[str, int]]:
    return places([json.loads(line[6:]) for line in said.split(b"\n") if line.startswith(b"data: {")])


def test_a_pattern_is_read_behind_its_position_in_each_stream() -> None:
    world = logs()
    assert places(world.ask(POLL)[1]) == [(f"logs.{each}", seq) for each in "ab" for seq in (1, 2, 3)]
    status, shown = world.ask("POST /subscriptions/a/ack", {"positions": {"logs.a": 2, "logs.b": 3}})
    assert (status, shown["lag"], shown["positions"]["logs.a"]["position"]) == (200, 1, 2)
    world.publish(2, "logs.new")
    peer = world.peer()
    assert places(peer.ask(POLL)[1]) == [("logs.a", 3), ("logs.new", 1), ("logs.new", 2)]
    assert b"Fyrehose-Generation: 1" in peer.head
    assert [each["kind"] for each in world.ask("GET /subscriptions")[1]["subscriptions"]] == ["pattern"]


@pytest.mark.parametrize("seed", range(20))
def test_a_busy_stream_leaves_room_for_the_others_also_behind_retention(seed: int) -> None:
    dice, world = Random(seed), World()
    counts = {f"logs.{number}": dice.choice((1, 3, 10, 500)) for number in range(dice.randint(1, 5))}
    deleted = {stream: dice.choice((0, 0, count // 2, count)) for stream, count in counts.items()}
    for stream, count in counts.items():
        for part in (deleted[stream], count - deleted[stream]):
            world.publish(part, stream)
    world.ask(f"{POLL}&limit=0")
    for stream, count in deleted.items():
        world.journal.forget(stream, count + 1)
    limit = dice.choice((0, 1, 2, 5, 20, 1_000))
    found = places(world.ask(f"{POLL}&limit={limit}")[1])
    assert len(found) == min(limit, sum(counts.values()) - sum(deleted.values()))
    for stream, count in counts.items():
        seqs, first = [seq for each, seq in found if each == stream], deleted[stream] + 1
        assert seqs == list(range(first, first + len(seqs)))
        assert len(seqs) >= min(count - deleted[stream], limit // len(counts)), f"{stream} has its share"


def test_a_request_for_a_pattern_waits_for_a_record_of_any_stream() -> None:
    for stream in ("logs.a", "logs.new"):
        world = logs()
        world.ask(POLL)
        world.ask("POST /subscriptions/a/rewind", {"seq": "latest"})
        peer = world.say(f"{POLL}&wait=30")
        assert peer.hear() == b""
        assert world.ask(POLL)[0] == 409
        world.publish(1, "elsewhere")
        assert peer.hear() == b""
        world.publish(2, stream)
        assert [each for each, _ in places(peer.answer()[1])] == [stream, stream]
        assert len(world.broker.fanout.cursors) == 0


def test_waiting_for_a_pattern_ends_without_records() -> None:
    world = logs()
    world.ask(POLL)
    world.ask("POST /subscriptions/a/rewind", {"seq": "latest"})
    peer = world.say(f"{POLL}&wait=30")
    peer.hear()
    world.clock.advance(30)
    assert peer.answer() == (200, [])
    peer.say(f"{POLL}&wait=30")
    peer.leave()
    assert len(world.broker.fanout.cursors) == 0
    world.publish(1, "logs.new")


def test_a_pattern_is_followed_behind_its_position_in_each_stream() -> None:
    world = logs()
    world.ask(f"{POLL}&limit=0")
    world.ask("POST /subscriptions/a/ack", {"positions": {"logs.a": 2}})
    peer = world.say(FOLLOW)
    said = peer.hear()
    assert b"Fyrehose-Generation: 1" in said
    assert events(said) == [("logs.a", 3), ("logs.b", 1), ("logs.b", 2), ("logs.b", 3)]
    world.publish(1, "logs.a")
    world.publish(1, "logs.new")
    assert events(peer.hear()) == [("logs.a", 4), ("logs.new", 1)]
    assert world.ask(FOLLOW)[0] == 409
    other = world.say(f"{FOLLOW}&takeover=1")
    assert b"Fyrehose-Generation: 2" in other.hear()
    assert b"event: ended" in peer.hear()


def test_a_new_subscription_of_a_pattern_that_is_followed_begins_with_new_records() -> None:
    world = logs()
    peer = world.say(FOLLOW)
    world.publish(1, "logs.a")
    assert events(peer.hear()) == [("logs.a", 4)]
    peer.leave()
    peer = world.say("GET /streams/*/live?match=logs.*&subscription=b&from=3")
    assert events(peer.hear()) == [("logs.a", 3), ("logs.a", 4), ("logs.b", 3)]


def test_a_gap_behind_the_position_is_reported_with_its_stream() -> None:
    world = logs()
    world.ask(f"{POLL}&limit=0")
    world.publish(1, "logs.b")
    world.journal.forget("logs.b", 4)
    peer = world.say(FOLLOW)
    assert b'event: gap\ndata: {"stream": "logs.b", "first": 1, "last": 3}' in peer.hear()


def test_a_stream_beyond_the_limit_is_reported_and_not_followed() -> None:
    world = logs(named_subscriptions=8)
    peer = world.say(FOLLOW)
    world.broker.table.room.change(3)
    world.publish(1, "logs.c")
    said = peer.hear()
    assert b"stream 'logs.c' is not followed: the limit server.named-subscriptions is reached" in said
    assert events(said) == []
    peer.leave()
    peer = world.say(FOLLOW)
    assert b"stream 'logs.c' is not followed" in peer.hear()


def test_rewinding_to_a_time_finds_its_number_in_each_stream() -> None:
    world = World()
    for second, streams in ((1, ("logs.a", "logs.b")), (9, ("logs.b", "logs.b"))):
        world.journal.now = lambda second=second: second * 1_000_000
        for stream in streams:
            world.publish(1, stream)
    world.ask("GET /streams/*?match=logs.*&subscription=a&from=1")
    shown = world.ask("POST /subscriptions/a/rewind", {"since": "1970-01-01T00:00:05Z"})[1]
    assert (shown["lag"], world.broker.table.find("a").places) == (2, {"logs.a": 1, "logs.b": 1})
    assert world.ask("POST /subscriptions/a/rewind", {"since": "yesterday"})[0] == 400
    assert world.ask("POST /subscriptions/a/rewind", {"since": "-1h", "seq": 1})[0] == 400
    made = {"match": "logs.*", "shared": True, "from": "1970-01-01T00:00:05Z"}
    assert world.ask("PUT /subscriptions/w", made)[1]["lag"] == 2


def test_subscription_to_a_stream_cannot_be_used_for_a_pattern_and_vice_versa() -> None:
    world = logs()
    world.ask(POLL)
    assert world.ask("GET /streams/logs.a?subscription=a")[0] == 409
    assert world.ask("GET /streams/logs.*?subscription=a")[0] == 409
    assert world.ask("GET /streams/*?match=*&subscription=a")[0] == 409
    assert world.ask("POST /subscriptions/a/ack", {"seq": 3})[0] == 409
    assert world.ask("POST /subscriptions/a/ack", {"positions": {"s": 3}})[0] == 409
    assert world.ask("POST /subscriptions/a/rewind", {"seq": 3})[0] == 409
    assert world.ask("POST /subscriptions/a/rewind", {"positions": {"logs.a": 3}})[1]["lag"] == 3
    assert world.ask("POST /subscriptions/a/rewind", {"seq": "start"})[1]["lag"] == 6


@pytest.mark.parametrize(
    "line",
    [
        "GET /streams/*?match=logs.*",
        "GET /streams/*?match=&subscription=a",
        "GET /streams/logs.a?match=logs.*&subscription=a",
        "GET /streams/*/live?match=logs.*&from=1",
        "GET /streams/*/live?match=logs.*&subscription=a&limit=1",
        "GET /streams/*/live?match=logs.*&subscription=a&wait=1",
    ],
)
def test_invalid_requests_for_a_pattern_are_refused(line: str) -> None:
    assert logs().ask(line)[0] == 400


def test_consuming_a_pattern_needs_the_right_for_all_that_it_matches() -> None:
    world = World([{"network": "127.0.0.1", "subscribe": "*", "consume": "logs.a*"}])
    assert world.ask(POLL)[0] == 401
    assert world.ask("GET /streams/*?match=logs.a*&subscription=a")[0] == 200


# Polling consumers.


def test_a_second_polling_consumer_is_refused_until_everything_is_acknowledged() -> None:
    world = World()
    assert world.seqs("&limit=3") == [1, 2, 3]
    poll = "GET /streams/s?subscription=a&consumer=other"
    status, refusal = world.ask(poll)
    assert (status, "ask again in 30 s" in refusal["error"]) == (409, True)
    assert world.ask("GET /streams/s/live?subscription=a")[0] == 409
    world.ask("POST /subscriptions/a/ack", {"seq": 2})
    assert world.ask(poll)[0] == 409, "record 3 is not acknowledged"
    world.ask("POST /subscriptions/a/ack", {"seq": 3})
    status, lines = world.ask(poll)
    assert (status, lines[0]["seq"]) == (200, 4)


@pytest.mark.parametrize("durable", [True, False])
def test_each_acknowledgement_renews_the_lease(durable: bool) -> None:
    world = World()
    world.seqs("&lease=10")
    world.journal.auto = durable
    for seq in (4, 5):
        world.clock.advance(4.5)
        world.peer().say("POST /subscriptions/a/ack", {"seq": seq})
    world.journal.auto = True
    world.journal.commit()
    world.clock.advance(9)
    assert world.ask("GET /streams/s?subscription=a&consumer=other")[0] == 409
    world.clock.advance(2)
    assert world.ask("GET /streams/s?subscription=a&consumer=other")[0] == 200


@pytest.mark.parametrize(("wait", "query"), [(31, ""), (0, "&takeover=1")])
def test_acknowledgements_of_a_displaced_polling_consumer_are_refused(wait: float, query: str) -> None:
    world = World()
    world.seqs()
    world.clock.advance(wait)
    peer = world.peer()
    status, lines = peer.ask(f"GET /streams/s?subscription=a&consumer=other{query}")
    assert (status, len(lines), b"Fyrehose-Generation: 2" in peer.head) == (200, 10, True)
    assert world.ask("POST /subscriptions/a/ack", {"seq": 10, "generation": 1})[0] == 409
    assert world.ask("POST /subscriptions/a/ack", {"seq": 10, "generation": 2})[0] == 200


def test_an_answer_without_records_takes_no_lease() -> None:
    world = drained()
    assert world.seqs() == []
    assert world.ask("GET /streams/s?subscription=a&consumer=other") == (200, [])


def test_a_rewind_ends_the_lease() -> None:
    world = World()
    world.seqs()
    world.ask("POST /subscriptions/a/rewind", {"seq": 5})
    status, lines = world.ask("GET /streams/s?subscription=a&consumer=other")
    assert (status, lines[0]["seq"]) == (200, 6)


# Reads with at-least, and how old answers may be.


AT_LEAST_12 = "GET /streams/s?from=10&at-least=12&wait=30"


def test_read_of_an_existing_record_is_answered_at_once() -> None:
    world = World()
    status, lines = world.ask("GET /streams/s?from=9&at-least=10")
    assert (status, numbers(lines)) == (200, [9, 10])


def test_a_read_waits_for_its_record_and_not_for_an_earlier_one() -> None:
    world = World()
    peer = waiting(world, AT_LEAST_12)
    world.publish(1)
    assert peer.hear() == b""
    world.publish(1)
    status, lines = peer.answer()
    assert (status, numbers(lines)) == (200, [10, 11, 12])
    status, lines = peer.ask("GET /streams/s?from=12")
    assert (status, numbers(lines)) == (200, [12])


def test_a_read_waits_for_a_stream_that_does_not_exist_yet() -> None:
    world = World()
    peer = waiting(world, "GET /streams/new?at-least=1")
    world.publish(1, "new")
    status, lines = peer.answer()
    assert (status, numbers(lines)) == (200, [1])


@pytest.mark.parametrize(("query", "seconds"), [("", 10), ("&wait=3", 3), ("&wait=0", 0)])
def test_a_read_whose_record_does_not_come_is_refused_and_may_be_repeated(query: str, seconds: int) -> None:
    world = World()
    peer = world.say(f"GET /streams/s?at-least=12{query}")
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
def test_invalid_parameters_of_a_read_that_waits_are_refused(line: str) -> None:
    assert World().ask(line)[0] == 400


def test_a_waiting_read_counts_as_a_subscription_of_its_address() -> None:
    world = World(limits=PeerLimits(subscriptions=1))
    first = waiting(world, AT_LEAST_12)
    assert world.peer().ask("GET /streams/s?at-least=12")[0] == 429
    world.publish(2)
    assert first.answer()[0] == 200
    assert world.broker.fanout.subscribers("s") == 0
    waiting(world, "GET /streams/s?at-least=14")


def test_peer_that_may_not_read_a_stream_may_not_wait_for_its_records() -> None:
    world = World([{"network": "127.0.0.1", "publish": "*"}])
    assert world.peer().ask("GET /streams/s?at-least=1")[0] == 401


@pytest.mark.parametrize("end", ["close", "half-close", "stop"])
def test_a_waiting_read_ends_with_its_connection(end: str) -> None:
    world = World()
    peer = waiting(world, AT_LEAST_12)
    if end == "close":
        peer.leave()
    elif end == "half-close":
        peer.protocol.readConnectionLost()
    else:
        peer.protocol.finish()
        assert peer.answer()[0] == 503
    world.clock.advance(0)
    assert world.broker.fanout.subscribers("s") == 0


@pytest.mark.parametrize(("age", "shown"), [(0.0, b"0.000"), (0.4218, b"0.422"), (inf, b"unknown"), (None, None)])
@pytest.mark.parametrize(
    "line", ["GET /streams/s", "HEAD /streams/s", "GET /streams", "GET /streams/s/live", "GET /streams/*/live?match=s"]
)
def test_answers_say_how_old_they_may_be(line: str, age: float | None, shown: bytes | None) -> None:
    world = World()
    world.journal.cluster = Standing(age=age)
    peer = world.say(line)
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
    peer = waiting(world, AT_LEAST_12)
    world.journal.state, world.broker.follows = JournalState.WRITABLE, False
    world.publish(2)
    assert peer.answer()[0] == 200


def test_a_peer_that_may_consume_nothing_does_not_learn_which_subscriptions_exist() -> None:
    world = World([{"network": "127.0.0.0/8", "subscribe": "t"}])
    world.broker.named.open("a", "s", 0)
    for line, body in (("GET {}", None), ("DELETE {}", None), ("POST {}/rewind", {"seq": 0})):
        (known, here), (unknown, there) = (world.ask(line.format(f"/subscriptions/{name}"), body) for name in "ab")
        assert known == unknown == 401
        assert str(here).replace("'a'", "'b'") == str(there)
