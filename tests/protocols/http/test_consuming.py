"""Requests over HTTP that wait for records: those of named subscriptions, and reads with at-least."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

import attrs
import pytest

from fyrehose.broker.policy import LOOPBACK, parse
from fyrehose.broker.quotas import PeerLimits
from fyrehose.interfaces import FileLag, JournalState
from fyrehose.standing import Standing
from fyrehose.testing import MemoryJournal
from tests.doubles.awkward import NUMBERS
from tests.doubles.http_world import HttpPeer, HttpWorld


class World(HttpWorld):
    """A server whose stream "s" has ten records."""

    def __init__(self, policy: Any = None, **settings: Any) -> None:
        super().__init__(policy, **settings)
        self.broker.table.now = lambda: 5_000_000
        self.add(10)

    def add(self, count: int, stream: str = "s") -> None:
        self.publish(*[b"x"] * count, stream=stream)

    def seqs(self, query: str = "") -> list[int]:
        status, lines = self.ask(f"GET /streams/s?subscription=a&consumer=me{query}")
        assert status == 200
        return numbers(lines)


def waiting(world: World, line: str = "GET /streams/s?from=10&at-least=12&wait=30") -> HttpPeer:
    """Return a peer whose request *line* has no answer yet."""
    peer = world.say(line)
    assert peer.hear() == b""
    return peer


def numbers(lines: Any) -> list[int]:
    return [line["seq"] for line in lines]


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


@pytest.mark.parametrize(("first", "position"), [(10, 9), (11, 10), (12, 0)])
def test_a_new_subscription_beyond_the_end_begins_at_the_start(first: int, position: int) -> None:
    world = World()
    world.ask(f"GET /streams/s?subscription=polled&from={first}")
    assert world.ask("GET /subscriptions/polled")[1]["position"] == position
    status, shown = world.ask("PUT /subscriptions/shared", {"stream": "s", "shared": True, "from": first})
    assert (status, shown["floor"]) == (200, {"s": position})


def test_a_consumer_that_is_displaced_while_it_is_answered_sees_an_incomplete_answer() -> None:
    world = World()
    world.add(5_000)
    peer = world.say("GET /streams/s?subscription=a&limit=5000")
    peer.protocol.pauseProducing()
    world.ask("POST /subscriptions/a/rewind", {"seq": 3})
    assert peer.transport.aborted


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
    world.add(3, "logs.a")
    world.add(3, "logs.b")
    return world


def places(lines: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return sorted((line["stream"], line["seq"]) for line in lines if "seq" in line)


def events(said: bytes) -> list[tuple[str, int]]:
    return places([json.loads(line[6:]) for line in said.split(b"\n") if line.startswith(b"data: {")])


def test_a_stream_beyond_the_limit_is_reported_and_not_followed() -> None:
    world = logs(named_subscriptions=8)
    peer = world.say(FOLLOW)
    world.broker.table.room.change(3)
    world.add(1, "logs.c")
    said = peer.hear()
    assert b"stream 'logs.c' is not followed: the limit server.named-subscriptions is reached" in said
    assert events(said) == []
    peer.leave()
    peer = world.say(FOLLOW)
    assert b"stream 'logs.c' is not followed" in peer.hear()


def test_request_that_waits_is_answered_by_a_new_stream_that_it_may_not_wait_for() -> None:
    world = logs(limits=PeerLimits(subscriptions=2))
    world.ask(POLL)
    world.ask("POST /subscriptions/a/rewind", {"seq": "latest"})
    peer = waiting(world, f"{POLL}&wait=30")
    world.add(1, "logs.new")
    assert places(peer.answer()[1]) == [("logs.new", 1)]


def test_rewinding_to_a_time_finds_its_number_in_each_stream() -> None:
    world = World()
    for second, streams in ((1, ("logs.a", "logs.b")), (9, ("logs.b", "logs.b"))):
        world.journal.now = lambda second=second: second * 1_000_000
        for stream in streams:
            world.add(1, stream)
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


def test_refusal_of_a_second_polling_consumer_says_when_to_ask_again() -> None:
    world = World()
    world.seqs()
    status, refusal = world.ask("GET /streams/s?subscription=a&consumer=other")
    assert (status, "ask again in 30 s" in refusal["error"]) == (409, True)


def test_an_acknowledgement_renews_the_lease_before_it_is_durable() -> None:
    world = World()
    world.seqs("&lease=10")
    world.journal.auto = False
    for seq in (4, 5):
        world.clock.advance(4.5)
        world.peer().say("POST /subscriptions/a/ack", {"seq": seq})
    world.journal.auto = True
    world.journal.commit()
    world.clock.advance(9)
    assert world.ask("GET /streams/s?subscription=a&consumer=other")[0] == 409
    world.clock.advance(2)
    assert world.ask("GET /streams/s?subscription=a&consumer=other")[0] == 200


# Reads with at-least, and how old answers may be.


@pytest.mark.parametrize(("query", "seconds"), [("", 10), ("&wait=3&from=1970-01-01", 3), ("&wait=0", 0)])
def test_a_read_whose_record_does_not_come_is_refused_and_may_be_repeated(query: str, seconds: int) -> None:
    world = World()
    peer = world.say(f"GET /streams/s?at-least=12{query}")
    if seconds:
        world.clock.advance(seconds - 0.1)
        assert peer.hear() == b""
    world.clock.advance(0.1)
    answer = peer.reply()
    assert (answer.status, answer.json["retriable"]) == (503, True)
    assert "retry-after" in answer.headers
    assert (
        answer.json["error"] == f"stream 's' ends at number 10 on this server, and 12 has not come within {seconds} s"
    )
    assert world.count("not-here-yet") == 1
    assert peer.ask("GET /streams/s?from=10")[0] == 200, "the connection stays usable"


def test_head_request_waits_for_the_record_too() -> None:
    world = World()
    peer = waiting(world, "HEAD /streams/s?at-least=12")
    world.add(2)
    answer = peer.reply()
    assert (answer.status, answer.body, answer.headers["fyrehose-last"]) == (200, b"", "12")


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
    first = waiting(world)
    assert world.peer().ask("GET /streams/s?at-least=12")[0] == 429
    world.add(2)
    assert first.answer()[0] == 200
    assert world.broker.fanout.subscribers("s") == 0
    waiting(world, "GET /streams/s?at-least=14")


def test_peer_that_may_not_read_a_stream_may_not_wait_for_its_records() -> None:
    world = World([{"network": "127.0.0.1", "publish": "*"}])
    assert world.peer().ask("GET /streams/s?at-least=1")[0] == 401


def test_a_waiting_read_ends_when_the_server_stops() -> None:
    world = World()
    peer = waiting(world)
    peer.protocol.finish()
    assert peer.answer()[0] == 503
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
    peer = waiting(world)
    world.journal.state, world.broker.follows = JournalState.WRITABLE, False
    world.add(2)
    assert peer.answer()[0] == 200


def test_a_peer_that_may_consume_nothing_does_not_learn_which_subscriptions_exist() -> None:
    world = World([{"network": "127.0.0.0/8", "subscribe": "t"}])
    world.broker.named.open("a", "s", 0)
    for line, body in (("GET {}", None), ("DELETE {}", None), ("POST {}/rewind", {"seq": 0})):
        (known, here), (unknown, there) = (world.ask(line.format(f"/subscriptions/{name}"), body) for name in "ab")
        assert known == unknown == 401
        assert str(here).replace("'a'", "'b'") == str(there)


# Random requests, in comparison with a model.


@attrs.define(eq=False)
class Asked:
    """A request that is not answered completely: a poll, a live answer, or a read with at-least.

    :ivar name: the subscription, or the stream of a request without one
    """

    kind: str
    name: str
    holder: str = ""
    limit: int = 1_000
    lease: int = 30
    until: float = inf
    first: int = 0
    at_least: int = 0


@attrs.define(eq=False)
class Named:
    """A subscription: its place in each stream, its consumer, and the lease of a consumer that polls."""

    places: dict[str, int]
    generation: int
    consumer: HttpPeer | None = None
    holder: str = ""
    until: float = 0
    seconds: float = 0
    sent: dict[str, int] = attrs.field(factory=dict)


Said = list[tuple[Any, ...]]
NUMBERED = ("seq", "from", "end", "first", "last")


def in_order(said: Said) -> Said:
    """Return what belongs to one stream in its order, because the streams of a pattern have none among themselves."""
    return sorted(said, key=lambda each: str(each[0]))


def parsed(heard: bytes) -> Said:
    """Return the statuses, generations, events and records of answers; the id of an event comes last."""
    found, kind, number = Said(), "", list[int]()
    for line in heard.decode().splitlines():
        name, _, rest = line.partition(" ")
        if name in ("HTTP/1.1", "Fyrehose-Generation:", "Fyrehose-Oldest:", "Fyrehose-Last:"):
            found.append((name, int(rest.split()[0])))
        elif name == "event:":
            kind = rest
        elif name == "id:":
            number = [int(rest.removeprefix("e1:"))]
        elif line == "id":
            found.append((line,))
        elif line.removeprefix("data: ").startswith("{"):
            value = json.loads(line.removeprefix("data: "))
            stream = [value.get("stream", "")] if kind == "gap" else []
            numbers = [value[each] for each in NUMBERED if each in value]
            found.append((kind or value.get("stream", "error"), *stream, *numbers, *number))
            kind, number = "", []
    return in_order(found)


class Requests:
    """Random requests of three connections about the subscriptions "a" of a stream and "p" of a pattern."""

    def __init__(self, seed: int) -> None:
        self.dice, self.world = Random(seed), HttpWorld(journal=MemoryJournal(epoch="e1"))
        self.streams: dict[str, tuple[int, int]] = {}  #: the oldest record, and the last one
        self.named: dict[str, Named] = {}
        self.waiting: dict[HttpPeer, Asked] = {}
        self.expected: dict[HttpPeer, Said] = {}
        self.answered: list[tuple[HttpPeer, Asked]] = []
        self.closed: list[HttpPeer] = []
        self.skipped = 0  #: how many records were missing in live answers
        self.story: list[str] = []  #: what was done, for the message of a failure
        self.seen: Counter[str] = Counter()
        self.peers = [self.world.peer() for _ in range(3)]
        for stream in ("s", "logs.a"):
            self.publish(stream)

    def run(self) -> None:
        most: dict[Callable[[], None], float] = {
            self.publish: 6,
            self.consume: 10,
            self.follow: 2,
            self.acknowledge: 6,
            self.read: 3,
            self.pass_time: 4,
            self.delete_records: 2,
            self.rewind: 1,
            self.delete: 0.5,
            self.leave: 1,
            self.forbid: 0.3,
        }
        for operation in self.dice.choices(list(most), list(most.values()), k=40):
            self.story.append(operation.__name__)
            operation()
            self.compare()
            for name in self.named:
                self.check_shown(name)
            self.check_closed()
        for peer in self.peers:
            peer.leave()
        self.world.clock.advance(0)
        assert not self.world.broker.fanout.cursors, "a request waits although its peer has left"
        counts = self.world.broker.counters.counts
        assert [counts["http", what] for what in ("restarted", "skipped")] == [self.seen["restarted"], self.skipped]

    # The operations.

    def publish(self, stream: str = "") -> None:
        stream = stream or self.dice.choice(("s", "s", "logs.a", "logs.b", "logs.c"))
        for _ in range(self.dice.choice((1, 1, 3, 12))):
            self.world.publish(b"x", stream=stream)
            oldest, last = self.streams.get(stream, (1, 0))
            self.streams[stream] = oldest, last + 1
            for name, named in self.named.items():
                if stream in self.covered(name):
                    named.places.setdefault(stream, 0)
            for peer, asked in list(self.waiting.items()):
                if asked.kind == "live" and stream in self.covered(asked.name):
                    self.expect(peer, self.record(asked, stream, last + 1))
                elif (asked.kind == "poll" and any(self.unread(asked.name).values())) or (
                    asked.kind == "read" and asked.name == stream and last + 1 >= asked.at_least
                ):
                    self.answer(peer)
            if self.answered:
                self.compare()

    def delete_records(self) -> None:
        """Let retention delete the first records of a stream, or all of them."""
        stream = self.dice.choice([each for each, (oldest, last) in self.streams.items() if oldest <= last] or ["none"])
        if stream in self.streams:
            oldest, last = self.streams[stream]
            oldest = self.dice.choice((self.dice.randint(oldest, last), last + 1))
            self.world.journal.forget(stream, oldest) if oldest <= last else self.world.journal.empty(stream)
            self.streams[stream] = oldest, last

    def consume(self) -> None:
        dice, name = self.dice, self.dice.choice("ap")
        peer, live, takeover, first = (
            self.idle(),
            dice.random() < 0.4,
            dice.random() < 0.3,
            dice.choice((0, 0, 1, 5, 200)),
        )
        asked = Asked("live" if live else "poll", name, f"connection {id(peer)}", first=first)
        words = f"subscription={name}" + f"&from={first}" * bool(first) + "&takeover=1" * takeover
        seen: tuple[str, int] | None = None
        if live and name == "a" and dice.random() < 0.5:
            seen = dice.choice(("", "e1:", "e0:")), dice.randint(0, self.streams["s"][1] + 1)
        elif not live:
            asked.limit, asked.lease, wait = (
                dice.choice((0, 1, 2, 3, 20)),
                dice.choice((5, 30)),
                dice.choice((0, 10, 45, 300)),
            )
            asked.until = self.now + min(wait, 50)  # no longer than proxies wait
            words += f"&limit={asked.limit}&lease={asked.lease}" + f"&wait={wait}" * bool(wait)
            if dice.random() < 0.6:
                asked.holder = dice.choice(("consumer x", "consumer y"))
                words += f"&consumer={asked.holder[-1]}"
        # Each generation of an earlier subscription took a record of the server's own stream.
        generation = self.world.broker.bounds(".subscriptions")[1] + 1
        path = {"a": "s", "p": "*"}[name] + "/live" * live + "?" + "match=logs.*&" * (name == "p") + words
        self.say(peer, path, *[f"Last-Event-ID: {each[0]}{each[1]}" for each in [seen] if each])
        if name not in self.named:
            self.named[name] = Named({each: self.begin(each, asked) for each in self.covered(name)}, generation)
        named = self.named[name]
        if not self.attach(named, asked, takeover):
            self.expect(peer, ("HTTP/1.1", 409), ("error",))
            return
        if seen is not None and seen[0] != "e0:" and seen[1] <= self.streams["s"][1]:
            self.move(named, {"s": seen[1]})
        self.waiting[peer], named.consumer = asked, peer
        if live:
            last, known = self.streams["s"][1], first - 1 if seen is None else seen[1]
            beyond = known > max(last, named.places.get("s", 0))
            self.expect(peer, ("Fyrehose-Generation:", named.generation))
            self.begin_live(
                peer, asked, named.places, name == "a" and (beyond or (seen is not None and seen[0] == "e0:"))
            )
        elif asked.until == self.now or any(self.unread(name).values()):
            self.answer(peer)

    def follow(self) -> None:
        """Follow a stream without a subscription, perhaps behind a number of this epoch or of another one."""
        peer, stream = self.idle(), self.dice.choice(("s", "logs.c"))
        last = self.streams.get(stream, (1, 0))[1]
        number, epoch = self.dice.choice((None, *range(last + 2))), self.dice.choice(("", "e1", "e0"))
        path, header = f"{stream}/live", []
        if number is not None and self.dice.random() < 0.5:
            header = [f"Last-Event-ID: {epoch}{':' * bool(epoch)}{number}"]
        elif number is not None:
            path += f"?from={number + 1}" + f"&epoch={epoch}" * bool(epoch)
        self.say(peer, path, *header)
        self.waiting[peer] = asked = Asked("live", stream)
        restarted = number is not None and (number > last or epoch == "e0")
        self.begin_live(peer, asked, {stream: 0 if restarted else last if number is None else number}, restarted)

    def read(self) -> None:
        """Read a stream at once, or as soon as it has a record."""
        stream, wait, peer = self.dice.choice(("s", "logs.c")), self.dice.choice((0, 3, 40)), self.idle()
        last = self.streams.get(stream, (1, 0))[1]
        asked = Asked("read", stream, first=self.dice.randint(0, last + 2), limit=self.dice.choice((0, 1, 5, 1_000)))
        path = f"{stream}?limit={asked.limit}" + f"&from={asked.first}" * bool(asked.first)
        if self.dice.random() < 0.7:
            asked.at_least, asked.until = max(1, last + self.dice.randint(0, 4)), self.now + wait
            path += f"&at-least={asked.at_least}&wait={wait}"
        self.say(peer, path)
        self.waiting[peer] = asked
        if not asked.at_least and stream not in self.streams:
            self.end(peer, 404)
        elif last >= asked.at_least:
            self.answer(peer)
        elif not wait:
            self.end(peer, 503)

    def acknowledge(self) -> None:
        dice = self.dice
        for name in dice.sample(sorted(self.named), min(1, len(self.named))):
            named, beyond = self.named[name], 40 * (dice.random() < 0.1)
            numbers = {
                stream: max(0, self.streams[stream][1] - dice.choice((0, 0, 1, 2, 30))) for stream in named.places
            }
            numbers = {stream: seq + beyond for stream, seq in numbers.items() if name == "a" or dice.random() < 0.7}
            generation = dice.choice((None, named.generation, named.generation - 1))
            body: dict[str, Any] = {"seq": numbers["s"]} if name == "a" else {"positions": numbers}
            body |= {} if generation is None else {"generation": generation}
            status, _ = self.ask(f"POST /subscriptions/{name}/ack", body)
            valid = generation != named.generation - 1 and not (beyond and numbers)
            assert status == (200 if valid else 409), f"{body} was answered with {status}"
            if valid:
                self.move(named, numbers)

    def rewind(self) -> None:
        for name in self.dice.sample(sorted(self.named), min(1, len(self.named))):
            named, to = self.named[name], self.dice.choice(("start", "latest", *[1] * (name == "a")))
            assert self.ask(f"POST /subscriptions/{name}/rewind", {"seq": to})[0] == 200
            self.displace(named, 409)
            ends = {stream: self.streams[stream][1] for stream in named.places}
            named.places = ends if to == "latest" else dict.fromkeys(ends, 0 if to == "start" else 1)
            named.generation += 1

    def delete(self) -> None:
        for name in self.dice.sample(sorted(self.named), min(1, len(self.named))):
            assert self.ask(f"DELETE /subscriptions/{name}")[0] == 204
            self.displace(self.named.pop(name), 410)

    def leave(self) -> None:
        """Let a peer disconnect, or finish sending, which ends all requests that wait."""
        peer = self.dice.choice(list(self.waiting) or self.peers)
        asked = self.waiting.pop(peer, None)
        for named in self.named.values():
            named.consumer = None if named.consumer is peer else named.consumer
        if asked is not None and self.dice.random() < 0.5:
            peer.protocol.readConnectionLost()
            self.seen[f"{asked.kind} of {asked.name} half-closed"] += 1
            self.expect(peer, *[("ended",)] * (asked.kind == "live"))
            self.closed.append(peer)
        else:
            self.replace(peer)

    def forbid(self) -> None:
        """Forbid everything for a moment, which ends all requests that wait."""
        self.world.broker.guard.change(parse({"allow": [{"network": "127.0.0.1", "publish": "elsewhere"}]}))
        for named in self.named.values():
            named.consumer = None
        for peer, asked in list(self.waiting.items()):
            if asked.kind == "live":  # each stream that is lost is reported, and the last one ends the answer
                self.expect(peer, *[("error",)] * (len(self.covered(asked.name)) - 1))
            self.end(peer, 401)
        self.world.clock.advance(0)
        self.world.broker.guard.change(LOOPBACK)

    def pass_time(self) -> None:
        self.world.clock.advance(self.dice.choice((0.5, 4, 6, 11, 31)))
        for peer, asked in list(self.waiting.items()):
            if asked.until <= self.now:
                self.answer(peer) if asked.kind == "poll" else self.end(peer, 503)

    # The model.

    @property
    def now(self) -> float:
        return self.world.clock.seconds()

    def idle(self) -> HttpPeer:
        """Return a connection without a request; let one leave if each has one."""
        while not (idle := [peer for peer in self.peers if peer not in self.waiting]):
            self.leave()
            self.compare()
            self.check_closed()
        return self.dice.choice(idle)

    def replace(self, peer: HttpPeer) -> None:
        peer.leave()
        self.peers = [self.world.peer() if each is peer else each for each in self.peers]

    def say(self, peer: HttpPeer, path: str, *headers: str) -> None:
        self.story.append(f"{self.peers.index(peer)}: {path} {headers}")
        peer.say(f"GET /streams/{path}", None, *headers)

    def ask(self, line: str, body: object = None) -> tuple[int, Any]:
        """Ask over a connection of its own, which is closed again."""
        peer = self.world.peer()
        answer = peer.ask(line, body)
        peer.leave()
        return answer

    def expect(self, peer: HttpPeer, *said: tuple[Any, ...]) -> None:
        self.expected.setdefault(peer, []).extend(said)

    def record(self, asked: Asked, stream: str, seq: int) -> tuple[Any, ...]:
        return (stream, seq) if asked.name == "p" else (stream, seq, seq)

    def covered(self, name: str) -> list[str]:
        """Return the streams of a subscription, or the stream itself."""
        return (
            [each for each in self.streams if each.startswith("logs.")]
            if name == "p"
            else ["s" if name == "a" else name]
        )

    def unread(self, name: str) -> dict[str, int]:
        """Return how many records of each stream are behind the position, and still there."""
        bounds = {
            stream: (max(place, self.streams[stream][0] - 1)) for stream, place in self.named[name].places.items()
        }
        return {stream: max(0, self.streams[stream][1] - before) for stream, before in bounds.items()}

    def begin(self, stream: str, asked: Asked) -> int:
        """Return the position of a new subscription in *stream*."""
        oldest, last = self.streams[stream]
        if asked.kind == "live" and not asked.first:
            return last
        after = max(0, asked.first - 1)
        return max(after if after <= last else last if asked.name == "p" else 0, oldest - 1)

    def attach(self, named: Named, asked: Asked, takeover: bool) -> bool:
        """Return whether a request may have the subscription, and displace another consumer."""
        changes = False
        if named.holder and named.holder != asked.holder:
            if named.until > self.now and not takeover:
                return False
            named.holder, changes = "", True
        if named.consumer is not None:
            if not takeover:
                return False
            self.displace(named, 409)
            changes = True
        named.generation += changes
        self.seen["took over" if changes else "attached"] += 1
        return True

    def displace(self, named: Named, status: int) -> None:
        peer, named.consumer, named.holder = named.consumer, None, ""
        if peer is not None:
            if self.waiting[peer].kind == "live":  # an EventSource must not undo a rewind when it connects again
                self.expect(peer, ("id",))
            self.end(peer, status)

    def end(self, peer: HttpPeer, status: int) -> None:
        """Expect the end of an answer that has begun, or a refusal."""
        asked = self.waiting.pop(peer)
        self.seen[f"{asked.kind} ended with {status}"] += 1
        if asked.kind == "live":
            self.expect(peer, ("ended",))
            self.closed.append(peer)
        else:
            self.expect(peer, ("HTTP/1.1", status), ("error",))

    def begin_live(self, peer: HttpPeer, asked: Asked, places: dict[str, int], restarted: bool) -> None:
        """Expect the beginning of a live answer: what is missing, and the records that are there."""
        single = asked.name != "p"
        self.expect(peer, ("HTTP/1.1", 200), *[("begin",)] * (not single))
        for stream, place in places.items():
            oldest, last = self.streams.get(stream, (1, 0))
            if single:
                self.expect(peer, ("Fyrehose-Last:", last), ("begin", place + 1, *[place] * (not restarted)))
            if restarted:
                self.expect(peer, ("restarted", last, place))
                self.seen["restarted"] += 1
            if oldest > place + 1:
                missing = place + 1, oldest - 1
                self.expect(peer, ("gap", "", *missing, oldest - 1) if single else ("gap", stream, *missing))
                self.skipped += oldest - 1 - place
            self.expect(peer, *(self.record(asked, stream, seq) for seq in range(max(oldest, place + 1), last + 1)))

    def answer(self, peer: HttpPeer) -> None:
        self.answered.append((peer, self.waiting.pop(peer)))

    def move(self, named: Named, numbers: dict[str, int]) -> None:
        """Move the position forward, which renews the lease of a consumer that has more to acknowledge."""
        ahead = {stream: seq for stream, seq in numbers.items() if seq > named.places[stream]}
        named.places |= ahead
        if ahead and named.holder:
            self.hold(named, named.holder, named.seconds, named.sent, otherwise="")

    def hold(self, named: Named, holder: str, seconds: float, sent: dict[str, int], otherwise: str) -> None:
        left = any(seq > named.places[stream] for stream, seq in sent.items())
        if left:
            named.until, named.seconds, named.sent = self.now + seconds, seconds, sent
        named.holder = holder if left else otherwise

    # The comparison.

    def compare(self) -> None:
        said = {peer: parsed(peer.hear()) for peer in self.peers}
        for peer, asked in self.answered:
            self.check_answer(asked, said.pop(peer))
        for peer, found in said.items():
            assert found == in_order(self.expected.get(peer, []))
        self.answered, self.expected = [], {}
        follows = Counter(stream for asked in self.waiting.values() for stream in self.covered(asked.name))
        for stream in ("s", "logs.a", "logs.b", "logs.c"):
            waits = self.world.broker.fanout.subscribers(stream)
            assert waits == follows[stream], f"{waits} requests wait for records of {stream}, not {follows[stream]}"

    def check_closed(self) -> None:
        """Check that connections are closed whose answers have ended, and connect again."""
        # The server also closes connections on which nothing is asked for.
        self.closed += [peer for peer in self.peers if peer not in self.waiting and peer.transport.disconnecting]
        for peer in self.closed:
            assert peer.transport.disconnecting or peer.transport.aborted, "an answer has ended, its connection has not"
            self.replace(peer)
        self.closed = []

    def check_shown(self, name: str) -> None:
        named, shown = self.named[name], self.ask(f"GET /subscriptions/{name}")[1]
        places = (
            {"s": shown["position"]}
            if name == "a"
            else {stream: each["position"] for stream, each in shown["positions"].items()}
        )
        assert places == named.places
        assert (shown["generation"], shown["consumer"]) == (named.generation, named.consumer is not None)
        assert shown["lag"] == sum(self.unread(name).values())

    def check_answer(self, asked: Asked, said: Said) -> None:
        """Check that an answer has as many records as it may have, and that each stream has its share."""
        self.seen[f"{asked.kind} answered"] += 1
        head, found = (
            [each for each in said if each[0] not in self.streams],
            [each for each in said if each[0] in self.streams],
        )
        if asked.kind == "read":
            oldest, last = self.streams[asked.name]
            assert head == [("Fyrehose-Last:", last), ("Fyrehose-Oldest:", oldest), ("HTTP/1.1", 200)]
            assert found == [(asked.name, seq) for seq in range(max(oldest, asked.first), last + 1)][: asked.limit]
            return
        named = self.named[asked.name]
        oldest, last = self.streams["s"]
        bounds = [("Fyrehose-Last:", last), ("Fyrehose-Oldest:", oldest)] if asked.name == "a" else []
        assert head == [("Fyrehose-Generation:", named.generation), *bounds, ("HTTP/1.1", 200)]
        named.consumer = None
        sent: dict[str, int] = {}
        unread = {stream: count for stream, count in self.unread(asked.name).items() if count}
        assert len(found) == min(asked.limit, sum(unread.values())), "there is room for more records"
        # Those with the fewest unread records come first, and each has its share.
        for at, (count, stream) in enumerate(sorted((count, stream) for stream, count in unread.items())):
            share = max(at < asked.limit, asked.limit // len(unread))
            seqs = [seq for each, seq in found if each == stream]
            first = max(named.places[stream] + 1, self.streams[stream][0])
            assert seqs == list(range(first, first + len(seqs))), f"{stream} does not begin behind its position"
            assert len(seqs) >= min(count, share), f"{stream} has less than its share"
            sent |= {stream: seqs[-1]} if seqs else {}
        self.hold(named, asked.holder, asked.lease, sent, otherwise=named.holder)


def test_subscriptions_are_those_of_a_model_whatever_is_requested() -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        requests = Requests(seed)
        try:
            requests.run()
        except Exception as error:
            error.add_note("\n".join([f"seed {seed}", *requests.story]))
            raise
        seen += requests.seen
    ends = {f"{kind} ended with {status}" for kind in ("poll", "live") for status in (401, 409, 410)}
    reads = {"read answered", *(f"read ended with {status}" for status in (401, 404, 503))}
    closed = {f"{kind} of {name} half-closed" for kind in ("poll", "live") for name in "ap"}
    others = {"poll answered", "attached", "took over", "restarted"}
    assert not {*ends, *reads, *closed, *others} - seen.keys(), "the schedules leave something out"
