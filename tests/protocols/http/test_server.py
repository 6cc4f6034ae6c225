"""The HTTP protocol with a broker, without sockets: answers, their timing, and limits of one peer."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.address import IPv4Address
from twisted.logger import capturedLogs, formatEvent

from fyrehose.broker.policy import Policy, Rule, parse
from fyrehose.broker.quotas import PeerLimits
from fyrehose.broker.signed import SHORTEST_KEY, sign
from fyrehose.broker.streams import UNLIMITED, StreamRule, StreamRules
from fyrehose.errors import JournalCorrupt
from fyrehose.identity import Action, digest
from fyrehose.interfaces import JournalState
from fyrehose.net.holding import FIRST
from fyrehose.net.tcp import CLOSE_TIMEOUT_S
from fyrehose.observe.listeners import Listener
from fyrehose.protocols.http.answers import KEEPALIVE, TURN_RECORDS
from fyrehose.protocols.http.server import MOST_RANGES, HttpSettings, Upload
from fyrehose.records import MAX_PAYLOAD, Run
from fyrehose.sessions import PIECE
from fyrehose.standing import ServerRole, Standing
from fyrehose.testing import MemoryJournal
from tests.doubles.http_world import HttpPeer, HttpWorld

Make = Callable[..., HttpWorld]


@pytest.fixture
def make() -> Make:
    def make(
        auto: bool = True,
        policy: Any = None,
        limits: PeerLimits | None = None,
        rules: StreamRules = UNLIMITED,
        epoch: str = "",
        role: ServerRole = ServerRole.ALONE,
        **settings: Any,
    ) -> HttpWorld:
        journal = MemoryJournal(auto=auto, epoch=epoch, cluster=Standing(role))
        return HttpWorld(policy, journal, settings, limits=limits or PeerLimits(), rules=rules)

    return make


@pytest.fixture
def server(make: Make) -> HttpWorld:
    return make()


def test_post_is_answered_once_the_message_is_durable(make: Make) -> None:
    server = make(auto=False)
    peer = server.say("POST /streams/log", b"hello", "Content-Type: text/plain")
    assert peer.hear() == b""
    server.journal.commit()
    assert peer.reply().json == {"stream": "log", "count": 1, "first": 1, "last": 1}
    (record,) = (record for run in server.journal.read("log", 1, 100) for record in run.records())
    assert (record.payload, record.source, record.content_type) == (b"hello", "http", "text/plain")
    assert record.producer == "127.0.0.1:5000"


TOO_MANY = {"arrayValue": {"values": [{}] * 10_000}}


def _logs(*bodies: dict[str, Any]) -> tuple[str, bytes]:
    """Return a header and the body of a POST of OTLP logs with these bodies of log records."""
    sent = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": body} for body in bodies]}]}]}
    return "Content-Type: application/json", json.dumps(sent).encode()


def test_otlp_logs_are_answered_once_they_are_durable(make: Make) -> None:
    server = make(auto=False, otlp_stream="apps")
    peer = server.peer()
    head, body = _logs({"stringValue": "one"}, TOO_MANY, {"intValue": "2"})
    peer.say("POST /v1/logs", body, head)
    assert peer.hear() == b""
    server.journal.commit()
    answer = peer.reply()
    assert (answer.status, answer.json["partialSuccess"]["rejectedLogRecords"]) == (200, "1")
    assert server.count("rejected-log-records") == 1
    payloads = [bytes(payload) for run in server.journal.read("apps", 1, 100) for payload in run.payloads()]
    assert payloads == [b'{"body": "one"}', b'{"body": 2}']
    assert peer.request("POST /v1/logs", _logs(TOO_MANY)[1], head).status == 200
    assert server.count("rejected-log-records") == 2, "a body without any other log record counts, too"


def test_web_hook_that_is_sent_again_is_stored_once(make: Make) -> None:
    named = attrs.fields(HttpSettings).key_header.metadata["convert"]
    server = make(key_header=named("X-GitHub-Delivery"))
    for delivery, stored in (("72d3162e", 1), ("72d3162e", 1), ("a1b2c3d4", 2)):
        said = server.request("POST /streams/s", {"number": 7}, f"X-GitHub-Delivery: {delivery}").json
        assert (said["first"], server.journal.bounds("s")) == (stored, (1, stored))


def test_otlp_logs_need_the_right_to_publish_to_their_stream(make: Make) -> None:
    server = make(policy=[{"network": "0.0.0.0/0", "publish": ["apps"]}])
    for size in (1, 100_000):
        head, body = _logs({"stringValue": "x" * size})
        assert server.request("POST /v1/logs", body, head).status == 401, "another token may have the right"
    assert server.journal.ends() == {}


def test_published_lines_are_read_back_unchanged(server: HttpWorld) -> None:
    peer = server.peer()
    answer = peer.request("POST /streams/s", b'{"a": 1}\n[2]\r\n\n"3"', "Content-Type: application/x-ndjson")
    assert (answer.status, answer.json) == (200, {"stream": "s", "count": 3, "first": 1, "last": 3})
    answer = peer.request("GET /streams/s")
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert (answer.headers["fyrehose-oldest"], answer.headers["fyrehose-last"]) == ("1", "3")
    assert [line["payload"] for line in answer.lines] == ['{"a": 1}', "[2]", '"3"']
    assert {line["content_type"] for line in answer.lines} == {"application/json"}


def test_lines_that_are_not_json_have_no_content_type(server: Any) -> None:
    peer = server.peer()
    answer = peer.request("POST /streams/s", b'{"a": 1}\nno json\n2', "Content-Type: application/x-ndjson")
    assert answer.json == {"stream": "s", "count": 3, "first": 1, "last": 3}
    lines = peer.request("GET /streams/s").lines
    assert [line.get("content_type") for line in lines] == ["application/json", None, "application/json"]
    assert peer.request("POST /streams/s", b"{", "Content-Type: application/json").json["last"] == 4
    assert "content_type" not in peer.request("GET /streams/s?from=4").lines[0]
    assert server.broker.counters.counts["http", "not-json"] == 2


@pytest.mark.parametrize("count", [MOST_RANGES, MOST_RANGES + 1])
def test_number_of_ranges_in_an_answer_is_limited(count: int) -> None:
    upload = Upload("s")
    for n in range(count):
        upload.add_durable(3 * n + 1, 1)
    ranges = [(3 * n + 1, 3 * n + 1) for n in range(count)]
    expected = {"stream": "s", "count": count, "first": 1, "last": 3 * count - 2}
    assert upload.answer() == expected | ({"ranges": ranges} if count == MOST_RANGES else {})


CHUNKED = ("POST /streams/s", None, "Content-Type: application/x-ndjson", "Transfer-Encoding: chunked")


@attrs.define(eq=False)
class Body:
    """A body of lines: the numbers of its messages, those that are not durable yet, and how it ends."""

    numbers: list[int] = attrs.field(factory=list)
    pending: int = 0
    status: int | None = None

    def answer(self) -> dict[str, Any]:
        """Return what the answer says of the messages."""
        if self.status != 200:
            return {"published": len(self.numbers)}
        firsts = [number for number in self.numbers if number - 1 not in self.numbers]
        lasts = [number for number in self.numbers if number + 1 not in self.numbers]
        ranges = [list(each) for each in zip(firsts, lasts, strict=True)]
        found: dict[str, Any] = {"count": len(self.numbers)}
        if ranges:
            found |= {"stream": "s", "first": firsts[0], "last": lasts[-1]}
        return found | ({"ranges": ranges} if len(ranges) > 1 else {})


class Uploads:
    """Bodies over two connections, commits, publishes of others in between, and a disk that is full at times."""

    def __init__(self, seed: int, server: HttpWorld) -> None:
        self.dice, self.server, self.full, self.end = Random(seed), server, False, 0
        self.peers, self.bodies = [server.peer(), server.peer(5001)], [Body(), Body()]
        self.seen: Counter[int] = Counter()
        self.refused: Counter[str] = Counter()
        for peer in self.peers:
            peer.say(*CHUNKED)

    def step(self) -> None:
        at = self.dice.randrange(2)
        peer, body = self.peers[at], self.bodies[at]
        chance = self.dice.random()
        if chance < 0.2:
            self.server.journal.commit()
            for each in self.bodies:
                each.pending = 0
        elif chance < 0.3 and not self.full:
            self.server.publish(b"other")
            self.end += 1
        elif chance < 0.35:
            self.full = not self.full
            self.server.journal.enter(
                *((JournalState.READ_ONLY, "full") if self.full else (JournalState.WRITABLE, "room"))
            )
            for each in self.bodies if not self.full else ():
                each.pending = 0  # there is room because the journal has written what waited
        elif body.status is None:
            self.send(peer, body)
        for number in range(2):
            self.check(number)

    def send(self, peer: HttpPeer, body: Body) -> None:
        """Send lines, the end of the body, or something that ends it."""
        lines, rest = [b"x" * self.dice.randint(1, 10) for _ in range(self.dice.randint(0, 3))], b""
        kind = self.dice.choice(("lines", "lines", "lines", "end", "end", "long", "broken", "gone"))
        kind = "lines" if lines and self.full else kind
        if kind == "long":
            rest = b"y" * 11 + b"\nbehind it\n"
        data = b"".join(line + b"\n" for line in lines) + rest
        data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        data += {"end": b"0\r\n\r\n", "broken": b"zz\r\n"}.get(kind, b"")
        if lines and self.full:
            body.status = 503
            self.refused["ReadOnly"] += 1
        elif lines:
            body.numbers += range(self.end + 1, self.end + 1 + len(lines))
            self.end += len(lines)
            body.pending += 1
        if body.status is None and kind != "lines":
            body.status = {"end": 200, "long": 413, "broken": 400, "gone": 400}[kind]
            self.refused[{"long": "too-large", "broken": "bad-http", "gone": "bad-http"}.get(kind, "")] += 1
        peer.protocol.dataReceived(data)
        if kind == "gone":
            peer.protocol.readConnectionLost()

    def check(self, at: int) -> None:
        peer, body = self.peers[at], self.bodies[at]
        if body.status is None or body.pending:
            assert peer.hear() == b"", "it is not known yet which messages are durable"
            return
        answer = peer.reply()
        assert answer.status == body.status
        found = {what: value for what, value in answer.json.items() if what not in ("error", "retriable")}
        assert (found or {"published": 0}) == body.answer()
        self.seen[body.status] += 1
        if body.status != 200:
            assert answer.json["error"], "a refusal says why"
            peer.leave()
            self.peers[at] = self.server.peer()
        self.bodies[at] = Body()
        self.peers[at].say(*CHUNKED)


def test_bodies_are_answered_as_in_a_model_whatever_happens_to_them(make: Make) -> None:
    seen: Counter[int] = Counter()
    for seed in range(30):
        uploads = Uploads(seed, make(auto=False, max_payload=10))
        for _ in range(60):
            uploads.step()
        counts = uploads.server.broker.counters.counts
        assert {what: counts["http", what] for what in uploads.refused if what} == {
            what: count for what, count in uploads.refused.items() if what
        }, "each refusal is counted once"
        seen += uploads.seen
    assert seen.keys() == {200, 400, 413, 503}, "the schedules leave an answer out"


def test_pipelined_requests_are_answered_in_order(make: Make) -> None:
    server = make(auto=False)
    peer = server.peer()
    for n in range(3):
        peer.say("POST /streams/s", b"%d" % n)
    server.journal.commit()
    assert peer.reply().json["first"] == 1
    server.journal.commit()
    assert peer.reply().json["first"] == 2
    server.journal.commit()
    assert peer.reply().json["first"] == 3


def test_get_of_an_unknown_stream_is_refused(server: HttpWorld) -> None:
    answer = server.request("GET /streams/none")
    assert (answer.status, answer.json) == (404, {"error": "there is no stream 'none'"})
    assert server.count("no-such-stream") == 1


def test_answer_ends_at_the_last_record_at_the_time_of_the_request(server: HttpWorld) -> None:
    server.publish(*[b"x" * 300_000] * 3)
    peer = server.say("GET /streams/s")
    server.publish(b"late")
    assert [line["seq"] for line in peer.reply().lines] == [1, 2, 3]


def test_answer_that_fails_halfway_aborts_the_connection(server: HttpWorld) -> None:
    server.publish(b"a")

    def damaged(stream: str, start: int) -> None:
        raise JournalCorrupt("damaged")

    server.journal.before_read = damaged
    peer = server.say("GET /streams/s")
    assert not peer.hear().endswith(b"0\r\n\r\n")
    assert peer.transport.aborted


def test_answer_whose_turn_fails_by_a_bug_ends_its_own_connection(server: HttpWorld, logged_errors: Any) -> None:
    server.publish(b"a")
    server.publish(b"b", stream="other")

    def bug(stream: str, start: int) -> None:
        if stream == "s":
            raise RuntimeError("bug")

    server.journal.before_read = bug
    peer, other = server.peer(), server.peer(5001)
    peer.say("GET /streams/s")
    other.say("GET /streams/other")
    assert [line["payload"] for line in other.reply().lines] == ["b"]
    assert not peer.hear().endswith(b"0\r\n\r\n")
    assert peer.transport.aborted
    (event,) = logged_errors.take()
    said = "http: serving 127.0.0.1 failed, and its connection is closed; please report this bug"
    assert formatEvent(event) == said
    assert event["log_failure"].check(RuntimeError)


def events(data: bytes) -> list[tuple[str, Any]]:
    """(id, data) of what was sent as events; comments and the event that begins the answer are left out."""
    found = []
    for block in data.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "data" in fields and fields.get("event") != "begin":
            found.append((fields.get("id", ""), json.loads(fields["data"])))
    return found


def told(heard: bytes) -> list[tuple[str, str]]:
    """Return the type and the id of each server-sent event in *heard*."""
    found = []
    for event in heard.partition(b"\r\n\r\n")[2].decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in event.split("\n") if re.match(r"[a-z]+: ", line))
        if "data" in fields:
            found.append((fields.get("event", "message"), fields.get("id", "")))
    return found


def test_live_get_sends_new_records_and_keepalives(server: HttpWorld) -> None:
    server.publish(b"before")
    peer = server.peer()
    answer = peer.request("GET /streams/s/live")
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.body == b'event: begin\nid: 1\ndata: {"from": 2, "epoch": ""}\n\n'
    server.publish(b"a", b"b")
    assert [(i, e["payload"]) for i, e in events(peer.hear())] == [("2", "a"), ("3", "b")]
    server.clock.advance(KEEPALIVE)
    assert b": still here" in peer.hear()
    peer.leave()
    assert not server.broker.fanout.cursors


@pytest.mark.parametrize("limit", range(1, 8))
def test_limit_counts_records_of_every_size(server: HttpWorld, limit: int) -> None:
    for size in (2 * PIECE, 1, PIECE, PIECE + 1, 0, 3 * PIECE):
        server.publish(b"x" * size)
    answer = server.request(f"GET /streams/s?limit={limit}")
    assert [line["seq"] for line in answer.lines] == list(range(1, min(limit, 6) + 1))


def test_many_small_records_are_sent_in_turns_and_in_order(server: HttpWorld) -> None:
    count = 2 * TURN_RECORDS + 10
    server.publish(*[b"x"] * count)
    peer = server.say("GET /streams/s/live?from=1")
    peer.protocol.resumeProducing()
    server.publish(b"late")
    heard = b"".join(peer.hear() for _ in range(3))
    assert [int(line[4:]) for line in heard.splitlines() if line.startswith(b"id: ")] == list(range(count + 2))
    answer = server.peer(5001).request(f"GET /streams/s?limit={count - 1}")
    assert [line["seq"] for line in answer.lines] == list(range(1, count))
    peer.say("GET /streams/s")
    server.publish(*[b"x"] * count)
    peer.leave()
    server.clock.advance(0)


def test_full_disk_is_answered_with_retry_after(server: HttpWorld) -> None:
    server.journal.enter(JournalState.READ_ONLY, "the disk is full")
    peer = server.peer()
    answer = peer.request("POST /streams/s", b"x")
    assert (answer.status, answer.headers["retry-after"], answer.json["published"]) == (503, "5", 0)
    assert "disk is full" in answer.json["error"]
    server.journal.enter(JournalState.WRITABLE, "room")
    assert peer.request("POST /streams/s", b"x").status == 200


@pytest.mark.parametrize(
    ("leader", "location"),
    [
        ("10.0.0.1:8117", "http://10.0.0.1:8117/streams/a%2Fb?key=1"),
        ("https://one.example/", "https://one.example/streams/a%2Fb?key=1"),
        ("", None),
        ("figg at 10.0.0.1", None),
    ],
)
def test_follower_sends_publishers_to_the_leader(server: HttpWorld, leader: str, location: str | None) -> None:
    server.journal.follow(leader)
    server.broker.open()
    answer = server.request("POST /streams/a%2Fb?key=1", b"x")
    assert (answer.status, answer.headers.get("location"), answer.json["published"]) == (503, location, 0)
    assert "another server leads" in answer.json["error"]
    assert server.count("Following") == 1


def test_follower_serves_readers(server: HttpWorld) -> None:
    server.publish(b"x")
    server.journal.follow()
    server.broker.open()
    assert server.request("GET /streams/s").status == 200


def test_answer_counts_messages_published_before_the_disk_was_full(server: HttpWorld) -> None:
    peer = server.say(*CHUNKED)
    peer.protocol.dataReceived(b"4\r\na\nb\n\r\n")
    server.journal.enter(JournalState.READ_ONLY, "full")
    peer.protocol.dataReceived(b"2\r\nc\n\r\n2\r\nd\n\r\n")
    answer = peer.reply()
    assert (answer.status, answer.json["published"], answer.headers["connection"]) == (503, 2, "close")
    assert peer.transport.half_closed, "what still comes is thrown away, so that the answer is seen"
    peer.protocol.dataReceived(b"2\r\ne\n\r\n")
    server.clock.advance(CLOSE_TIMEOUT_S)
    assert peer.transport.aborted
    assert server.journal.ends() == {"s": 2}


@pytest.mark.parametrize("path", ["/streams/s/live", "/streams/*/live?match=*"])
@pytest.mark.parametrize("reading", [True, False])
def test_disconnected_live_client_is_not_counted(server: HttpWorld, path: str, reading: bool) -> None:
    server.publish(b"a")
    peer = server.say(f"GET {path}")
    peer.hear()
    assert len(server.broker.fanout.cursors) == 1
    if not reading:
        peer.protocol.pauseProducing()
    peer.protocol.readConnectionLost()
    assert peer.transport.disconnecting
    if reading:
        assert b"event: ended" in peer.hear()
    else:
        assert peer.transport.aborted
        peer.leave()
    assert not server.broker.fanout.cursors
    if reading:
        peer.leave()


def test_live_request_of_a_client_that_had_finished_sending_is_not_counted(server: HttpWorld) -> None:
    server.publish(b"a")
    peer = server.say("GET /streams/s")
    peer.say("GET /streams/s/live")
    peer.protocol.readConnectionLost()
    assert b'"payload": "a"' in peer.hear()
    assert not server.broker.fanout.cursors
    assert peer.transport.disconnecting
    peer.leave()


def test_a_peer_that_has_finished_sending_gets_the_whole_answer(server: HttpWorld) -> None:
    payloads = [b"%d" % n * 50_000 for n in range(10)]
    server.publish(*payloads)
    peer = server.say("GET /streams/s")
    peer.protocol.readConnectionLost()
    heard = peer.hear()
    assert [payload in heard for payload in payloads] == [True] * 10
    assert peer.transport.disconnecting
    peer.leave()


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("status", [408, 503])
def test_body_that_ends_with_the_time_or_the_server_is_answered_with_the_count_of_published_messages(
    make: Make, status: int, settled: bool
) -> None:
    server = make(auto=False)
    peer = server.say(*CHUNKED)
    peer.protocol.dataReceived(b"8\r\none\ntwo\n\r\n3\r\nthr\r\n")
    if settled:
        server.journal.commit()
    server.clock.advance(31) if status == 408 else server.factory.drain()
    if not settled:
        assert peer.hear() == b"", "it is not known yet how much of it is durable"
        server.journal.commit()
    answer = peer.reply()
    assert (answer.status, answer.json["published"]) == (status, 2)
    assert server.journal.ends() == {"s": 2}


@pytest.mark.parametrize(
    ("name", "status"),
    [("s", 413), ("other", 507)],
)
def test_publish_that_the_broker_refuses_is_answered_with_its_status(make: Make, name: str, status: int) -> None:
    server = make()
    server.publish(b"x")
    server.broker.restrict("s", 5)
    server.broker.max_streams = 1
    peer = server.peer()
    answer = peer.request(f"POST /streams/{name}", b"x" * 6)
    assert answer.status == status
    assert answer.json["error"]
    assert peer.request("POST /streams/s", b"x").status == 200, "the connection goes on"


def test_streams_beyond_the_limit_of_a_peer_are_refused_with_advice(make: Make) -> None:
    server = make(limits=PeerLimits(streams=2))
    peer = server.peer()
    assert [peer.request(f"POST /streams/{name}", b"x").status for name in "ab"] == [200, 200]
    refused = peer.request("POST /streams/c", b"x")
    assert refused.status == 507
    assert "server.streams-per-address" in refused.json["error"]
    assert server.count("TooManyStreamsFromPeer") == 1
    assert peer.request("POST /streams/a", b"x").status == 200, "the connection goes on"


def test_stream_that_no_peer_may_create_is_refused_without_retry_after(make: Make) -> None:
    server = make(rules=StreamRules((StreamRule(names=("closed",), new_streams=False),)))
    peer = server.peer()
    refused = peer.request("POST /streams/closed", b"x")
    assert refused.status == 403
    assert "retry-after" not in refused.headers
    assert "new-streams = true" in refused.json["error"]
    assert server.count("NewStreamForbidden") == 1
    assert peer.request("GET /streams/closed").status == 404, "it was not made"
    assert peer.request("POST /streams/open", b"x").status == 200, "the connection goes on"


def test_subscription_beyond_the_limit_of_an_address_is_refused_until_one_ends(make: Make) -> None:
    server = make(limits=PeerLimits(subscriptions=1))
    first, second = server.peer(), server.peer()
    first.say("GET /streams/a/live")
    assert first.hear().startswith(b"HTTP/1.1 200")
    refused = second.request("GET /streams/b/live")
    assert (refused.status, refused.headers["retry-after"]) == (429, "5")
    assert "server.subscriptions-per-address" in refused.json["error"]
    assert server.count("TooManySubscriptions") == 1
    first.leave()
    second.say("GET /streams/b/live")
    assert second.hear().startswith(b"HTTP/1.1 200")


RULES = [
    {"token": "sha256:" + "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b", "publish": "s"},
    {"network": "127.0.0.0/8", "subscribe": "open"},
]


def test_request_that_the_policy_does_not_allow_is_refused(make: Make) -> None:
    server = make(policy=RULES)
    server.publish(b"x", stream="open")
    peer = server.peer()
    for line in ("POST /streams/s", "GET /streams/s", "GET /streams/s/live"):
        answer = peer.request(line, b"" if line.startswith("POST") else None)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert peer.request("GET /streams/open").status == 200
    for token, status in (("secret", 200), ("wrong", 403)):
        assert peer.request("POST /streams/s", b"x", f"Authorization: Bearer {token}").status == status
        assert peer.request("GET /streams/s", None, f"Authorization: Bearer {token}").status == 403
    assert peer.request("POST /streams/s", b"x").status == 401, "a token counts for its request"
    assert server.count("Forbidden") > 0


@pytest.mark.parametrize("length", [f"Content-Length: {(64 << 10) + 1}", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize(("token", "status"), [("secret", None), ("wrong", 403)])
def test_large_body_that_the_policy_does_not_allow_is_refused_by_its_head(
    make: Make, length: str, token: str, status: int | None
) -> None:
    peer = make(policy=RULES).peer()
    peer.say("POST /streams/s", None, f"Authorization: Bearer {token}", "Expect: 100-continue", length)
    said = peer.hear()
    assert said.startswith(b"HTTP/1.1 100 " if status is None else b"HTTP/1.1 %d " % status)
    assert b"Continue" in said or b"\r\nConnection: close\r\n" in said


SIGNER = b"k" * SHORTEST_KEY


def signing(*rules: Rule) -> Policy:
    """Return a policy whose rules also ask for tokens that SIGNER has signed."""
    return Policy(tuple(attrs.evolve(rule, signers=(SIGNER,)) for rule in rules))


def test_a_signed_token_in_the_query_follows_one_stream(make: Make) -> None:
    server = make()
    server.publish(b"x")
    server.broker.guard.change(signing(Rule(rights=dict.fromkeys(Action, ("*",)))))
    rights = {Action.SUBSCRIBE: ["s"], Action.PUBLISH: ["s"]}
    good, forged = sign(rights, 1 << 33, SIGNER), sign(rights, 1 << 33, SIGNER[::-1] + b"x")
    peer = server.peer()
    assert peer.request(f"GET /streams/s/live?from=1&token={forged}").status == 403
    assert peer.request(f"HEAD /streams/s/live?from=1&token={good}").status == 200
    assert peer.request(f"GET /streams/t/live?token={good}").status == 403
    assert peer.request("GET /streams/s/live").status == 401, "a token counts for its request"
    for line in (
        f"GET /streams/s?token={good}",
        f"GET /streams/*/live?match=s&token={good}",
        f"POST /streams/s?token={good}",
        "GET /streams/s/live?token=plain",
    ):
        answer = peer.request(line, b"" if line.startswith("POST") else None)
        assert answer.status in (400, 401), line
    assert peer.request(f"GET /streams/s/live?token={good}", None, f"Authorization: Bearer {good}").status == 400
    answer = peer.request(f"GET /streams/s/live?from=1&token={good}")
    assert answer.status == 200
    assert b"id: 1" in answer.body


def test_a_token_that_has_ended_is_refused_with_401_and_the_reason(make: Make) -> None:
    server = make()
    server.broker.guard.change(signing(Rule(rights={Action.PUBLISH: ("*",)})))
    ended = sign({Action.PUBLISH: ["s"]}, 1_000, SIGNER)
    answer = server.request("POST /streams/s", b"x", f"Authorization: Bearer {ended}")
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "with its token: it ended" in answer.json["error"]


def test_live_answer_ends_when_its_token_expires(make: Make) -> None:
    server = make()
    server.broker.guard.now = lambda: 1_000 + server.clock.seconds()
    server.broker.guard.change(signing(Rule(rights={Action.SUBSCRIBE: ("*",)})))
    token = sign({Action.SUBSCRIBE: ["s"]}, 1_060, SIGNER)
    peer = server.peer()
    peer.request(f"GET /streams/s/live?token={token}")
    server.clock.advance(61)
    assert b"event: ended" in peer.hear()


def test_a_page_that_may_only_read_uses_no_named_subscription_and_no_token(make: Make) -> None:
    server = make(origins=("*",))
    server.publish(b"x")
    peer = server.peer()
    page = "Origin: https://other.example"
    assert peer.request("GET /streams/s", None, page).lines[0]["payload"] == "x"
    for query in ("subscription=a", f"token={sign({}, 1 << 33, SIGNER)}"):
        answer = peer.request(f"GET /streams/s/live?{query}", None, page)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (403, "*")
    assert peer.request("GET /streams/none", None, page).headers["access-control-allow-origin"] == "*"


def test_live_get_ends_when_the_policy_forbids_it(make: Make) -> None:
    server = make(policy=RULES)
    peer = server.peer()
    peer.request("GET /streams/open/live")
    server.broker.guard.change(parse({"allow": [{"network": "10.0.0.0/8", "subscribe": "*"}]}))
    end = peer.hear()
    assert end.count(b"event: ended\n") == 1
    assert b"retry" not in end, "the same request would be refused"
    assert peer.transport.disconnecting


def test_stopping_server_answers_pending_requests_before_it_closes(make: Make) -> None:
    server = make(auto=False)
    publisher, reader, uploader, idle = (server.peer(5000 + n) for n in range(4))
    publisher.say("POST /streams/s", b"x")
    reader.say("GET /streams/s/live")
    uploader.say("POST /streams/s", None, "Content-Type: application/x-ndjson", "Transfer-Encoding: chunked")
    uploader.protocol.dataReceived(b"2\r\na\n\r\n")
    drained = server.factory.drain()
    assert idle.transport.disconnecting
    end = reader.hear()
    assert end.count(b"event: ended\n") == 1
    assert b'"retry": true' in end, "the reader may connect again"
    assert end.endswith(b"\r\n0\r\n\r\n")
    assert not publisher.transport.disconnecting
    server.journal.commit()
    answer = uploader.reply()
    expected = {"error": "the server is closing", "retriable": True, "published": 1}
    assert (answer.status, answer.json) == (503, expected)
    assert publisher.reply().status == 200
    assert publisher.transport.disconnecting
    assert not drained.called
    for peer in (publisher, reader, uploader, idle):
        peer.leave()
    assert drained.called
    assert server.broker.budget.used == 0


def test_disconnected_peer_leaves_no_memory_or_timers(make: Make) -> None:
    server = make(auto=False)
    for line, body in (("POST /streams/s", b"x"), ("GET /streams/s/live", None)):
        peer = server.say(line, body)
        peer.leave()
    peer = server.say("POST /streams/s", None, "Content-Length: 1000000")
    published = server.broker.budget.used
    peer.protocol.dataReceived(bytes(1000))
    assert server.broker.budget.used == published + 1000
    peer.leave()
    server.journal.commit()
    peer = server.say("GET /streams/s")
    peer.leave()
    server.clock.advance(0)
    assert server.broker.budget.used == 0
    assert not [call for call in server.clock.getDelayedCalls() if call.active()]


def test_body_that_does_not_arrive_times_out(server: HttpWorld) -> None:
    peer = server.say("POST /streams/s", None, "Content-Length: 1000")
    server.clock.advance(31)
    answer = peer.reply()
    assert (answer.status, answer.json["error"].partition(":")[0]) == (408, "frame-timeout")


def test_reading_a_body_pauses_at_the_memory_budget(make: Make) -> None:
    server = make(auto=False)
    server.broker.budget.each = 1000
    peer = server.say(*CHUNKED)
    peer.protocol.dataReceived(b"800\r\n%b\n\r\n" % (b"x" * 0x7FF))
    assert peer.transport.producerState == "paused"
    server.journal.commit()
    assert peer.transport.producerState == "producing"


def test_invalid_http_is_refused_and_the_connection_closed(server: HttpWorld) -> None:
    peer = server.peer()
    peer.protocol.dataReceived(b"\x16\x03\x01\x00\x00\r\n\r\n")
    assert peer.reply().status == 400
    assert peer.transport.disconnecting
    assert server.count("bad-http") == 1


def test_foreign_host_is_refused(server: HttpWorld) -> None:
    peer = server.peer()
    peer.protocol.dataReceived(b"GET /streams/s HTTP/1.1\r\nHost: rebound.example\r\n\r\n")
    assert peer.reply().status == 421


def test_refusal_is_answered_immediately_and_the_connection_closed_later(make: Make) -> None:
    server = make(refusal_delay=3.2)
    peer = server.peer()
    peer.protocol.dataReceived(b"no HTTP at all\r\n\r\n")
    assert peer.transport.value().startswith(b"HTTP/1.1 400 ")
    assert not peer.transport.disconnecting
    server.clock.advance(FIRST)
    assert peer.transport.disconnecting


def test_address_that_needs_a_token_is_accepted(make: Make) -> None:
    server = make()
    server.broker.guard.change(parse({"allow": [{"token": f"sha256:{digest('secret')}", "publish": "s"}]}))
    peer = server.peer()
    assert peer.request("POST /streams/s", b"x", "Authorization: Bearer secret").status == 200


def test_address_that_no_token_can_allow_is_refused_before_any_request(make: Make) -> None:
    server = make()
    server.broker.guard.change(parse({"allow": [{"network": "10.0.0.0/8", "publish": "s"}]}))
    assert server.factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 5)) is None
    assert server.count("forbidden-address") == 1


def test_connection_with_a_pending_request_is_not_idle(make: Make) -> None:
    server = make(max_connections=1)
    peer = server.say(*CHUNKED)
    assert not peer.protocol.is_idle()
    idle = make().peer()
    idle.request("GET /")
    assert idle.protocol.is_idle()


def test_delete_is_answered_once_the_retirement_is_durable(make: Make) -> None:
    server = make(auto=False)
    peer = server.say("POST /streams/a%2Fb", b"x")
    server.journal.commit()
    assert peer.reply().status == 200
    peer.say("DELETE /streams/a%2Fb")
    assert peer.hear() == b""
    server.journal.commit()
    answer = peer.reply()
    assert (answer.status, answer.body) == (204, b"")
    assert "content-length" not in answer.headers
    assert "content-type" not in answer.headers
    assert peer.request("GET /streams/a%2Fb").status == 404, "the connection goes on"
    peer.say("POST /streams/a%2Fb", b"y")
    server.journal.commit()
    assert peer.reply().json == {"stream": "a/b", "count": 1, "first": 2, "last": 2}
    assert [line["seq"] for line in peer.request("GET /streams/a%2Fb?from=1").lines] == [2]


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("DELETE /streams/none", 404, "there is no stream 'none'"),
        ("DELETE /streams/.own", 409, "reserved for the server"),
        ("DELETE /streams/bound", 409, "the listener backbone is bound to it"),
    ],
)
def test_delete_that_cannot_retire_a_stream_is_refused(make: Make, line: str, status: int, said: str) -> None:
    server = make()
    server.broker.listeners.append(
        Listener(name="backbone", protocol="backbone", endpoint="", access=str, connections=lambda: 0, stream="bound")
    )
    server.broker.publish(
        [Run.of(stream, [b"x"], source="test") for stream in ("s", "bound")], [Run.of(".own", [b"x"], source="test")]
    )
    peer = server.peer()
    answer = peer.request(line)
    assert answer.status == status
    assert said in answer.json["error"]
    assert set(server.journal.ends()) == {"s", ".own", "bound"}
    assert peer.request("DELETE /streams/s").status == 204, "the connection goes on"


def test_delete_requires_the_right_to_administer(make: Make) -> None:
    rules = [
        {"network": "127.0.0.1", "publish": "*", "subscribe": "*"},
        {"token": f"sha256:{digest('secret')}", "administer": "s*"},
    ]
    server = make(policy=rules)
    server.broker.publish([Run.of(stream, [b"x"], source="test") for stream in ("s", "other")])
    peer = server.peer()
    refused = peer.request("DELETE /streams/s")
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert "may not administer stream 's'" in refused.json["error"]
    shown = "Authorization: Bearer secret"
    assert peer.request("DELETE /streams/other", None, shown).status == 403
    assert peer.request("DELETE /streams/s", None, shown).status == 204
    assert set(server.journal.ends()) == {"other"}
    assert server.count("Forbidden") == 2


def test_delete_is_refused_while_the_disk_is_full(make: Make) -> None:
    server = make()
    server.broker.publish([Run.of("s", [b"x"], source="test")])
    server.journal.enter(JournalState.READ_ONLY, "full")
    refused = server.request("DELETE /streams/s")
    assert (refused.status, refused.headers["retry-after"]) == (503, "5")


def test_stopping_server_answers_a_pending_delete(make: Make) -> None:
    server = make(auto=False)
    peer = server.say("POST /streams/s", b"x")
    server.journal.commit()
    assert peer.reply().status == 200
    peer.say("DELETE /streams/s")
    peer.protocol.finish()
    assert peer.hear() == b""
    server.journal.commit()
    assert peer.reply().status == 204
    assert peer.transport.disconnecting


# Positions of another journal.


@pytest.mark.parametrize(("first", "lines"), [(5, 0), (6, 0), (7, 1)])
def test_read_beyond_the_end_is_logged(make: Make, first: int, lines: int) -> None:
    server = make(epoch="e1")
    server.publish(*(b"%d" % number for number in range(5)))
    with capturedLogs() as events:
        assert server.request(f"GET /streams/s?from={first}").status == 200
    assert len([1 for event in events if "this journal is an older copy" in formatEvent(event)]) == lines


def test_position_beyond_the_end_of_a_follower_of_a_cluster_is_no_restart(make: Make) -> None:
    server = make(epoch="e1", role=ServerRole.FOLLOWER)
    peer = server.say("GET /streams/s/live?from=21&epoch=e1")
    assert told(peer.hear()) == [("begin", "e1:20")]


@pytest.mark.parametrize("text", ["e1:", ":x", "e1:-1", "1:2:x"])
def test_invalid_last_event_id_is_refused(server: HttpWorld, text: str) -> None:
    answer = server.request("GET /streams/s/live", None, f"Last-Event-ID: {text}")
    assert answer.status == 400
    assert "invalid Last-Event-ID" in answer.json["error"]


def test_answers_name_the_epoch_of_their_numbers(make: Make) -> None:
    server = make(epoch="e1")
    server.publish(b"1")
    peer = server.peer()
    assert peer.request("GET /streams/s").headers["fyrehose-epoch"] == "e1"
    assert peer.request("GET /streams").json["epoch"] == "e1"


def test_reads_and_events_begin_at_a_time(make: Make) -> None:
    server = make()
    for second in (10, 20, 20, 30):
        server.journal.now = lambda at=second: at * 1_000_000  # type: ignore[misc]
        server.publish(b"%d" % second)
    for text, first in (
        ("1970-01-01", 1),
        ("1970-01-01T00:00:20", 2),
        ("1970-01-01T00:00:20.000001", 4),
        ("2026-01-01", 5),
    ):
        answer = server.request(f"GET /streams/s?from={text}")
        assert [line["seq"] for line in answer.lines] == list(range(first, 5))
        assert answer.headers["fyrehose-from"] == str(first)
        assert server.request(f"HEAD /streams/s?from={text}").headers["fyrehose-from"] == str(first)
        peer = server.say(f"GET /streams/s/live?from={text}")
        assert f'"from": {first}' in peer.hear().decode()
    assert server.request("GET /streams/none?from=-1h").status == 404


@pytest.mark.parametrize("more", ["", "&subscription=x"])
def test_json_messages_are_values_if_the_request_says_so(make: Make, more: str) -> None:
    server = make()
    kind = "Content-Type: application/json"
    server.request("POST /streams/s", b'{"message":"hello"}', kind)
    for payload, found in (("json", {"message": "hello"}), ("text", '{"message":"hello"}')):
        (line,) = server.request(f"GET /streams/s?limit=1&payload={payload}").lines
        assert line["payload"] == found
        for path in ("s/live?from=1&", "*/live?match=s*&"):
            peer = server.say(
                f"GET /streams/{path}payload={payload}{more and more + payload + path[0].replace('*', 'p')}"
            )
            peer.hear()
            server.request("POST /streams/s", b'{"message":"hello"}', kind)
            *_, event = re.findall(r"data: (.*)", peer.hear().decode())
            assert json.loads(event)["payload"] == found
    assert server.request("GET /streams/s?payload=xml").status == 400


@pytest.mark.parametrize(
    ("option", "within", "beyond", "said"),
    [
        ("longest_wait", (1, 300), (0.5, 301), "longest-wait must be from 1 to 300 s, not "),
        ("max_payload", (1, MAX_PAYLOAD), (0, MAX_PAYLOAD + 1), "max-payload must be from 1 to 16MiB, not "),
    ],
)
def test_option_of_a_listener_is_within_its_bounds(
    option: str, within: tuple[int, ...], beyond: tuple[float, ...], said: str
) -> None:
    for value in within:
        assert HttpSettings(**{option: value}).key_header == ""
    for value in beyond:
        with pytest.raises(ValueError, match=said):
            HttpSettings(**{option: value})
