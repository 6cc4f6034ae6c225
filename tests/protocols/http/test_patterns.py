"""Many streams over HTTP: listing them, and following all that match a pattern in one answer."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from fyrehose.broker.quotas import PeerLimits
from fyrehose.net.turns import STEPS
from fyrehose.protocols.http import patterns
from fyrehose.protocols.http.answers import TURN_RECORDS
from fyrehose.records import Run
from tests.doubles.http_world import HttpPeer, HttpWorld


class World(HttpWorld):
    """A server with the streams logs.a, logs.b and other."""

    def __init__(self, policy: Any = None, **settings: Any) -> None:
        super().__init__(policy, **settings)
        for stream in ("logs.a", "logs.b", "other"):
            self.publish(b"old", stream=stream)


def events(peer: HttpPeer) -> list[tuple[str, int]]:
    """Return stream and number of each record that was sent since the last call, in order."""
    found = [json.loads(line) for line in re.findall(rb"^data: (\{.*\})$", peer.hear(), re.MULTILINE)]
    return [(each["stream"], each["seq"]) for each in found if "seq" in each]


def following() -> tuple[World, HttpPeer]:
    """Return a server, and a peer that follows the streams of logs, and has been sent no record yet."""
    world = World()
    peer = world.say("GET /streams/*/live?match=logs.*")
    assert events(peer) == []
    return world, peer


def test_streams_are_listed_with_their_bounds_size_and_ages() -> None:
    world = World()
    world.factory.now = lambda: 5.123456
    world.publish(b"newer", stream="logs.b")
    assert world.ask("GET /streams")[1]["matching"] == 3
    listed = {"name": "logs.b", "first": 1, "last": 2, "bytes": 8, "oldest_age": 4.123456, "newest_age": 4.123456}
    assert world.ask("GET /streams?match=logs.*&limit=1&page=1") == (
        200,
        {"matching": 2, "page": 1, "epoch": "", "streams": [listed]},
    )
    pages = [world.ask(f"GET /streams?match=logs.*&limit=1&page={page}")[1]["streams"] for page in range(3)]
    assert [[stream["name"] for stream in page] for page in pages] == [["logs.a"], ["logs.b"], []]


PATHS = pytest.mark.parametrize("path", ["/streams?", "/streams/*/live?", "/streams/*?subscription=a&"])


@PATHS
@pytest.mark.parametrize("pattern", ["*a" * 8, "a" * 255])
def test_a_pattern_may_have_8_stars_and_255_bytes(path: str, pattern: str) -> None:
    assert World().say(f"GET {path}match={quote(pattern)}").hear().startswith(b"HTTP/1.1 200 ")


@PATHS
@pytest.mark.parametrize("pattern", ["*a" * 9, "*" * 1_000 + "!", "a" * 256, "é" * 128])
def test_a_pattern_with_more_stars_or_bytes_is_refused(path: str, pattern: str) -> None:
    status, answer = World().say(f"GET {path}match={quote(pattern)}").answer()
    assert (status, answer["error"].split(":")[0]) == (400, "invalid pattern")


def test_streams_of_the_server_are_not_listed() -> None:
    world = World()
    world.broker.publish([], [Run.of(".own", [b"x"], source="test")])
    assert [each["name"] for each in world.ask("GET /streams?match=.*")[1]["streams"]] == []
    assert world.ask("GET /streams")[1]["matching"] == 3


@pytest.mark.parametrize(
    ("subscribe", "names"), [("*", ["logs.a", "logs.b", "other"]), ("logs.*", ["logs.a", "logs.b"]), ("x", [])]
)
def test_a_peer_sees_the_streams_that_it_may_read(subscribe: str, names: list[str]) -> None:
    world = World([{"network": "127.0.0.1", "subscribe": subscribe}])
    assert [each["name"] for each in world.ask("GET /streams")[1]["streams"]] == names


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /streams?limit=1001", 400),
        ("GET /streams?page=x", 400),
        ("GET /streams?other=1", 400),
        ("POST /streams", 405),
        ("GET /streams/logs.a/live?match=logs.*", 400),
        ("GET /streams/*/live?match=", 400),
        ("GET /streams/*/live?match=a&from=1", 400),
    ],
)
def test_invalid_requests_are_refused(line: str, status: int) -> None:
    assert World().ask(line)[0] == status


def test_all_streams_that_match_are_followed_in_one_answer() -> None:
    world, peer = following()
    for stream in ("logs.a", "other", "logs.b"):
        world.publish(b"new", stream=stream)
    assert sorted(events(peer)) == [("logs.a", 2), ("logs.b", 2)]


def test_streams_that_are_created_later_are_followed_from_their_first_record() -> None:
    world, peer = following()
    world.publish(b"1", b"2", stream="logs.new")
    world.publish(b"1", stream="elsewhere")
    world.publish(b"3", stream="logs.new")
    assert events(peer) == [("logs.new", 1), ("logs.new", 2), ("logs.new", 3)]


def test_a_retired_stream_that_comes_back_is_followed_once() -> None:
    world, peer = following()
    world.broker.retire(["logs.a"])
    world.publish(b"again", stream="logs.a")
    assert events(peer) == [("logs.a", 2)]


def test_a_peer_follows_only_what_it_may_read() -> None:
    world = World([{"network": "127.0.0.1", "subscribe": "logs.*"}])
    peer = world.say("GET /streams/*/live?match=*")
    peer.hear()
    for stream in ("other", "new", "logs.new", "logs.a"):
        world.publish(b"x", stream=stream)
    assert sorted(events(peer)) == [("logs.a", 2), ("logs.new", 1)]


def test_a_peer_that_does_not_read_pauses_every_stream() -> None:
    world, peer = following()
    peer.protocol.pauseProducing()
    for stream in ("logs.a", "logs.b", "logs.new"):
        world.publish(b"new", stream=stream)
    assert events(peer) == []
    peer.protocol.resumeProducing()
    assert sorted(events(peer)) == [("logs.a", 2), ("logs.b", 2), ("logs.new", 1)]


def test_many_small_records_are_sent_in_several_turns() -> None:
    world, peer = following()
    world.publish(*[b"x"] * (3 * TURN_RECORDS), stream="logs.a")
    assert len(events(peer)) == 3 * TURN_RECORDS


def test_a_gap_names_its_stream() -> None:
    world, peer = following()
    peer.protocol.pauseProducing()
    for payload in (b"2", b"3", b"4"):
        world.publish(payload, stream="logs.a")
    world.journal.forget("logs.a", 4)
    peer.protocol.resumeProducing()
    assert b'event: gap\ndata: {"stream": "logs.a", "first": 2, "last": 3}' in peer.hear()


def test_the_number_of_streams_is_limited() -> None:
    world = World()
    for number in range(patterns.MOST_STREAMS - 2):  # besides logs.a and logs.b
        world.publish(b"old", stream=f"logs.{number}")
    peer = world.say("GET /streams/*/live?match=logs.*")
    peer.hear()
    world.publish(b"x", stream="logs.c")
    world.publish(b"x", stream="logs.d")
    assert peer.hear().count(b"more than 1000 streams match") == 1
    assert len(world.broker.fanout.cursors) == patterns.MOST_STREAMS == 1_000


class TestWhileStreamsAreBeingSubscribed:
    """A server with so many streams that the answer to a pattern begins in a later turn."""

    def asked(self) -> tuple[World, HttpPeer]:
        world = World()
        for number in range(2 * STEPS):
            world.publish(b"old", stream=f"logs.{number}")
        peer = world.say("GET /streams/*/live?match=logs.*")
        assert 0 < len(world.broker.fanout.cursors) <= STEPS
        assert peer.transport.value() == b""
        return world, peer

    def test_a_stream_that_begins_is_followed_from_its_first_record(self) -> None:
        world, peer = self.asked()
        world.publish(b"1", stream="logs.new")
        world.publish(b"2", stream="logs.new")
        world.publish(b"new", stream="logs.0")
        heard = []
        while not (new := events(peer)):
            assert world.clock.getDelayedCalls()
        while new:
            heard += new
            new = events(peer)
        assert [number for stream, number in heard if stream == "logs.new"] == [1, 2]
        assert ("logs.0", 2) in heard
        assert len(world.broker.fanout.cursors) == 2 * STEPS + 3

    def test_a_stream_that_has_begun_before_and_is_told_late_is_followed_once(self) -> None:
        world, peer = self.asked()
        last = f"logs.{2 * STEPS - 1}"
        world.broker.stream_watch.unborn.add(last)
        world.broker.stream_watch.durable((last,))
        while not peer.hear():
            assert world.clock.getDelayedCalls()
        assert len(world.broker.fanout.cursors) == 2 * STEPS + 2
        world.publish(b"new", stream=last)
        assert events(peer).count((last, 2)) == 1

    def test_a_peer_that_leaves_ends_it(self) -> None:
        world, peer = self.asked()
        peer.leave()
        peer.hear()
        world.publish(b"x", stream="logs.new")
        assert len(world.broker.fanout.cursors) == 0

    def test_a_peer_that_had_finished_sending_gets_an_answer_that_ends(self) -> None:
        world, peer = self.asked()
        peer.protocol.readConnectionLost()
        heard = b"".join(peer.hear() for _ in range(9))
        assert heard.startswith(b"HTTP/1.1 200")
        assert peer.transport.disconnecting
        assert len(world.broker.fanout.cursors) == 0

    def test_a_server_that_closes_answers_with_503(self) -> None:
        world, peer = self.asked()
        peer.protocol.hang_up()
        assert peer.hear().startswith(b"HTTP/1.1 503")
        assert len(world.broker.fanout.cursors) == 0

    def test_the_answer_begins_though_all_streams_so_far_are_retired(self) -> None:
        world, peer = self.asked()
        world.broker.retire([stream for stream in world.journal.ends() if stream != "other"])
        assert peer.hear().startswith(b"HTTP/1.1 200")
        world.publish(b"x", stream="logs.new")
        assert events(peer) == [("logs.new", 1)]

    def test_one_address_may_have_no_more_subscriptions_than_its_limit(self) -> None:
        world = World(limits=PeerLimits(subscriptions=STEPS + 10))
        for number in range(2 * STEPS):
            world.publish(b"old", stream=f"logs.{number}")
        assert world.ask("GET /streams/*/live?match=logs.*")[0] == 429
        world.publish(b"x", stream="logs.new")
        assert len(world.broker.fanout.cursors) == 0


def test_subscriptions_count_against_the_limit_of_the_address() -> None:
    world = World(limits=PeerLimits(subscriptions=1))
    assert world.ask("GET /streams/*/live?match=logs.*")[0] == 429
    assert len(world.broker.fanout.cursors) == 0
    peer = world.say("GET /streams/*/live?match=logs.a*")
    peer.hear()
    world.publish(b"x", stream="logs.ab")
    assert b"is not followed" in peer.hear()


def test_disconnected_peer_leaves_no_subscriptions_behind() -> None:
    world, peer = following()
    peer.protocol.connectionLost(Failure(ConnectionDone()))
    assert len(world.broker.fanout.cursors) == 0
    world.publish(b"x", stream="logs.new")
    assert len(world.broker.fanout.cursors) == 0


def test_the_answer_ends_when_the_server_closes() -> None:
    world, peer = following()
    world.broker.close()
    assert peer.hear().count(b"event: ended") == 1
    assert peer.transport.disconnecting


def test_head_request_makes_no_subscriptions() -> None:
    world = World()
    assert world.say("HEAD /streams/*/live?match=logs.*").hear().startswith(b"HTTP/1.1 200")
    assert len(world.broker.fanout.cursors) == 0
