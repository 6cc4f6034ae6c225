"""The tailer of HTTP against a server in the test's hands: columns, gaps, refusals, and reconnecting without a gap."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock
from zope.interface.verify import verifyObject

from fyrehose import plugins
from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.interfaces import IClientPlugin, ITailer
from fyrehose.net.clients import ClientTarget
from fyrehose.protocols.http.client import MOST_EVENT, HttpTailer
from fyrehose.protocols.http.runs import RunForm
from fyrehose.records import Run
from tests.doubles.answering import EndingEndpoint, answer, proxy
from tests.doubles.steps import advance_until

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.fyrehose.runs\r\nTransfer-Encoding: chunked\r\n"


class Bench(EndingEndpoint):
    """A tailer that is connecting, and everything that it passed on."""

    def __init__(self, after: int | str | None = None, stream: str = "a/b", take: Any = None, **named: Any) -> None:
        super().__init__()
        self.tailer = HttpTailer(self.clock, self, "h:1")  # type: ignore[arg-type]
        self.runs: list[Run] = []
        self.lost: list[tuple[Any, ...]] = []
        self.restarted: list[tuple[Any, ...]] = []
        self.tailer.subscribe(
            stream,
            take or self.runs.append,
            after,
            lambda *numbers: self.lost.append(numbers),
            lambda *end: self.restarted.append(end),
            **named,
        )
        self.results: list[Any] = []
        self.tailer.connect().addBoth(self.results.append)
        self.clock.advance(0)

    @property
    def request(self) -> str:
        """Return the latest request line of the present connection."""
        transport = self.connections[-1][1]
        return transport.value().decode().split("\r\n\r\n")[-2].split("\r\n")[0]

    def begin(self, head: bytes, *chunks: bytes) -> None:
        """Begin an answer."""
        self.say(head + b"\r\n")
        for chunk in chunks:
            self.send(chunk)

    def send(self, chunk: bytes) -> None:
        self.say(b"%x\r\n%b\r\n" % (len(chunk), chunk))


def event(run: Run) -> bytes:
    return RunForm(b"", b"").encode((run,)).data


def numbered(first: int, *payloads: bytes) -> Run:
    return Run.of("a/b", payloads, source="lumberjack", producer="p", content_type="text/plain").numbered(first, 77)


def test_all_columns_arrive_as_they_were_published() -> None:
    bench = Bench(after=4)
    assert bench.request == "GET /streams/a%2Fb/live?from=5 HTTP/1.1"
    assert not bench.results
    bench.begin(OK)
    assert bench.results == [None]
    full = Run.of(
        "a/b",
        [b"\xff", b"y"],
        source="eventbus",
        topic="t",
        producer_seq=9,
        event_ids=bytes(range(32)),
        event_times=bytes(16),
    ).numbered(7, 78)
    text = b": still here\n\n" + event(numbered(5, b"one", b"two")) + event(full)
    for at in range(0, len(text), 11):
        bench.send(text[at : at + 11])
    assert [record for run in bench.runs for record in run.records()] == [
        *numbered(5, b"one", b"two").records(),
        *full.records(),
    ]
    assert bench.tailer.shortfall(False) == ""


def test_client_without_a_position_begins_behind_the_last_record() -> None:
    bench = Bench()
    assert bench.request == "HEAD /streams/a%2Fb HTTP/1.1"
    bench.begin(OK + b"Fyrehose-Last: 41\r\n")
    assert bench.request == "GET /streams/a%2Fb/live?from=42 HTTP/1.1"
    bench.lose()
    assert bench.request == "GET /streams/a%2Fb/live?from=42 HTTP/1.1", "nothing is missed in between"


@pytest.mark.parametrize("after", [None, 0])
def test_a_stream_that_does_not_exist_yet_is_absent(after: int | None) -> None:
    bench = Bench(after=after)
    if after is None:
        bench.answer(404, b"")
    assert not bench.tailer.absent
    bench.begin(OK + b"Fyrehose-Last: 0\r\n")
    assert bench.tailer.absent


def test_a_stream_that_does_not_exist_yet_is_followed_from_its_start() -> None:
    bench = Bench()
    bench.say(answer(404, b"12345").removesuffix(b"12345"))  # a HEAD has no body
    assert bench.request == "GET /streams/a%2Fb/live?from=1 HTTP/1.1"


def test_gaps_and_the_reason_why_the_server_ends_the_answer_are_reported() -> None:
    bench = Bench(after=0)
    gap = b'event: gap\nid: 9\ndata: {"first": 1, "last": 9}\n\n'
    bench.begin(OK, gap + event(numbered(10, b"x")) + b'event: ended\ndata: {"error": "the server is closing"}\n\n')
    assert bench.lost == [(1, 9)]
    assert [run.first_seq for run in bench.runs] == [10]
    assert bench.connections[-1][1].protocol is None, "it connects again, perhaps to another server"
    assert bench.tailer.shortfall(False) == "the server is closing"
    assert bench.tailer.shortfall(True) == ""


def test_a_refusal_of_the_first_request_is_an_error() -> None:
    bench = Bench(after=0)
    bench.answer(403, b'{"error": "10.0.0.1 may not read stream"}')
    [failure] = bench.results
    assert failure.check(FyrehoseError)
    assert failure.getErrorMessage() == "h:1 refused the request with status 403: 10.0.0.1 may not read stream"


def test_a_temporary_refusal_is_repeated(log_lines: list[str]) -> None:
    bench = Bench(after=0)
    bench.answer(503, b'{"error": "the server is starting"}')
    bench.lose()
    assert not bench.results
    assert "h:1: status 503: the server is starting; retrying" in log_lines
    bench.begin(OK)
    assert bench.results == [None]


@pytest.mark.parametrize("answer", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
def test_a_server_that_is_not_fyrehose_is_an_error(answer: bytes) -> None:
    bench = Bench()
    bench.say(answer)
    [failure] = bench.results
    assert "h:1 is not a Fyrehose http listener" in failure.getErrorMessage()


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_an_answer_of_a_proxy_is_a_lost_connection(status: int, log_lines: list[str]) -> None:
    bench = Bench(after=0)
    bench.say(proxy(status))
    assert not bench.results
    assert f"h:1: status {status}: the answer is not that of a Fyrehose server; retrying" in log_lines
    bench.lose()
    bench.begin(OK)
    assert bench.results == [None]


@pytest.mark.parametrize("status", [200, 404])
def test_another_program_is_an_error(status: int) -> None:
    for after in (None, 0):
        bench = Bench(after)
        bench.say(proxy(status))
        assert "h:1 is not a Fyrehose http listener" in bench.results[0].getErrorMessage()


def test_the_end_of_a_stream_is_asked_again_after_an_answer_of_a_proxy() -> None:
    bench = Bench()
    bench.say(proxy(502).partition(b"\r\n\r\n")[0] + b"\r\n\r\n")  # a HEAD has no body
    bench.lose()
    assert bench.request == "HEAD /streams/a%2Fb HTTP/1.1"
    bench.say(b"HTTP/1.1 200 OK\r\nFyrehose-Last: 7\r\nContent-Length: 0\r\n\r\n")
    assert bench.request == "GET /streams/a%2Fb/live?from=8 HTTP/1.1"


def test_a_proxy_is_asked_less_often_and_not_before_it_wants_to_be() -> None:
    bench = Bench(after=0)

    def pause_after(said: bytes) -> float:
        """Let the proxy answer, and return the seconds until the next connection."""
        bench.say(said)
        began, made = bench.clock.seconds(), len(bench.connections)
        advance_until(lambda: len(bench.connections) > made, bench.clock, 0.1)
        return bench.clock.seconds() - began

    pauses = [pause_after(proxy(502)) for _ in range(9)]
    assert pauses[0] < 1, "each connection was made, and yet its answer is a failure"
    assert pauses[-1] >= 4, "the longest pause is 5 s, give or take a fifth"
    assert pause_after(proxy(503, Retry_After="9")) >= 9


@pytest.mark.parametrize("data", [b'event: run\ndata: {"size": 99999999}\n\n', b"data: " + bytes(MOST_EVENT)])
def test_an_event_larger_than_any_record_ends_the_connection(data: bytes) -> None:
    bench = Bench(after=0)
    bench.begin(OK, data)
    assert "larger than any record" in bench.tailer.shortfall(False)


def test_pausing_pauses_every_connection_until_it_is_resumed() -> None:
    bench = Bench(after=0)
    bench.tailer.pause()
    assert bench.connections[-1][1].producerState == "paused"
    bench.lose()
    assert bench.connections[-1][1].producerState == "paused"
    bench.tailer.resume()
    assert bench.connections[-1][1].producerState == "producing"
    bench.tailer.close()
    assert bench.connections[-1][1].disconnecting


def test_plugin_makes_a_tailer_and_a_publisher() -> None:
    plugin: Any = plugins.load("http")
    assert verifyObject(IClientPlugin, plugin)
    assert plugin.publisher(ClientTarget(MemoryReactorClock(), "::1", 1), 5).authority == "[::1]:1"
    tailer = plugin.tailer(ClientTarget(MemoryReactorClock(), "::1", 8117))
    assert verifyObject(ITailer, tailer)
    assert tailer.authority == "[::1]:8117"
    with pytest.raises(ConfigError, match="--stream NAME"):
        tailer.subscribe(None, print)


class Followed:
    """A stream with retention and backups that are restored, whose server a tailer follows over bad connections."""

    def __init__(self, seed: int) -> None:
        self.dice, self.bench = Random(seed), Bench(after=0)
        self.epoch, self.oldest, self.last = 1, 1, 0
        self.place, self.known = 0, 0  #: where the tailer is, and in which epoch
        self.records: list[tuple[int, int]] = []
        self.lost: list[tuple[int, int]] = []
        self.restarted: list[tuple[int]] = []
        self.live = False

    def run(self) -> None:
        for _ in range(60):
            self.dice.choice(
                (self.publish, self.publish, self.publish, self.answer, self.answer, self.cut, self.change)
            )()
            found = [(int(record.payload), record.seq) for run in self.bench.runs for record in run.records()]
            assert found == self.records
            assert (self.bench.lost, self.bench.restarted) == (self.lost, self.restarted)

    def publish(self) -> None:
        first, self.last = self.last + 1, self.last + self.dice.randint(1, 3)
        if self.live:
            self.send(first)

    def send(self, first: int) -> None:
        """Send the records from *first* on, in one event or in two, the second perhaps not completely."""
        middle = self.dice.randint(first, self.last)
        for begin, end in ((first, middle), (middle + 1, self.last)):
            if begin <= end:
                text = event(numbered(begin, *[b"%d" % self.epoch] * (end + 1 - begin)))
                whole = self.dice.random() < 0.9
                cut = self.dice.choice((text.index(b"\n\n") + 1, self.dice.randint(1, len(text) - 1)))
                for part in (text[:cut], text[cut:])[: 1 + whole]:
                    self.bench.send(part)
                if not whole:
                    return self.lose()
                self.records += [(self.epoch, seq) for seq in range(max(begin, self.place + 1), end + 1)]
                self.place = max(self.place, end)
        return None

    def answer(self) -> None:
        """Answer the request, as a server does, a server that starts, or a proxy."""
        if self.live:
            return None
        epoch = f"&epoch=e{self.known}" if self.known else ""
        assert self.bench.request == f"GET /streams/a%2Fb/live?from={self.place + 1}{epoch} HTTP/1.1"
        if self.dice.random() < 0.2:
            status = self.dice.choice((200, 302, 401, 404, 503)) if self.records else 503
            if self.dice.random() < 0.5:
                self.bench.say(proxy(status))
            else:
                self.bench.answer(503, b'{"error": "the server is starting"}')
            return self.lose()
        self.live = True
        self.bench.begin(OK + b"Fyrehose-Epoch: e%d\r\n" % self.epoch)
        other = self.known not in (0, self.epoch)
        if self.dice.random() < 0.2:  # before it is told of a restart
            self.known = self.known or self.epoch
            return self.lose()
        self.known = self.epoch
        if other or self.place > self.last:
            self.place = 0
            self.bench.send(
                b'event: restarted\nid: e%d:0\ndata: {"end": %d, "epoch": "e%d"}\n\n'
                % (self.epoch, self.last, self.epoch)
            )
            self.restarted.append((self.last,))
        if self.oldest > self.place + 1:
            self.bench.send(b'event: gap\ndata: {"first": %d, "last": %d}\n\n' % (self.place + 1, self.oldest - 1))
            self.lost.append((self.place + 1, self.oldest - 1))
            self.place = self.oldest - 1
        if self.place < self.last:  # a proxy may repeat a record
            self.send(max(self.oldest, self.place + self.dice.choice((0, 1))))
        return None

    def cut(self) -> None:
        if self.live:
            self.lose()

    def lose(self) -> None:
        self.live, made = False, len(self.bench.connections)
        self.bench.connections[-1][1].lose()
        advance_until(lambda: len(self.bench.connections) > made, self.bench.clock, 0.5)

    def change(self) -> None:
        """Delete old records, or restore a backup, after which the server begins again with another epoch."""
        if self.dice.random() < 0.7:
            self.oldest = self.dice.randint(self.oldest, self.last + 1)
        else:
            self.epoch += 1
            self.last = self.dice.randint(0, self.last)
            self.oldest = min(self.oldest, self.last + 1)
            self.cut()


@pytest.mark.parametrize("seed", range(30))
def test_each_record_is_passed_on_once_over_bad_connections(seed: int) -> None:
    Followed(seed).run()


# Patterns.


def of(stream: str, first: int, *payloads: bytes) -> bytes:
    return event(Run.of(stream, payloads, source="http").numbered(first, 77))


def listed(bench: Bench, **lasts: int) -> None:
    """Answer the request for the list of streams."""
    assert bench.request == "GET /streams?match=logs.%2A&limit=1000 HTTP/1.1"
    streams = [{"name": f"logs.{name}", "first": 1, "last": last} for name, last in lasts.items()]
    body = json.dumps({"matching": len(streams), "page": 0, "streams": streams}).encode()
    bench.begin(OK.replace(b"application/vnd.fyrehose.runs", b"application/json"), body[:20], body[20:])
    bench.say(b"0\r\n\r\n")


def records_of(bench: Bench) -> list[tuple[str, int, bytes]]:
    return [(record.stream, record.seq, record.payload) for run in bench.runs for record in run.records()]


def test_a_pattern_follows_all_streams_and_records_name_theirs() -> None:
    bench = Bench(stream="logs.*")
    listed(bench, a=3)
    assert bench.request == "GET /streams/*/live?match=logs.%2A HTTP/1.1"
    bench.begin(OK, of("logs.a", 5, b"x", b"y") + of("logs.new", 1, b"z") + of("logs.a", 7, b"w"))
    assert bench.results == [None]
    expected = [("logs.a", 5, b"x"), ("logs.a", 6, b"y"), ("logs.new", 1, b"z"), ("logs.a", 7, b"w")]
    assert records_of(bench) == expected
    assert bench.lost == [], "nothing is missing that came while it was connecting"


def test_pattern_reports_records_published_while_not_connected() -> None:
    bench = Bench(stream="logs.*")
    listed(bench, a=3, quiet=9)
    bench.begin(OK, of("logs.a", 4, b"x"))
    bench.lose()
    listed(bench, a=6, quiet=9, new=2)
    assert bench.lost == [(5, 6, "logs.a"), (1, 2, "logs.new")]
    bench.begin(OK, of("logs.a", 6, b"double") + of("logs.a", 7, b"next") + of("logs.quiet", 12, b"y"))
    assert bench.lost[2:] == [(10, 11, "logs.quiet")], "they came between the list and the events"
    assert records_of(bench) == [("logs.a", 4, b"x"), ("logs.a", 7, b"next"), ("logs.quiet", 12, b"y")]


def test_a_pattern_reports_gaps_and_streams_that_are_not_followed(log_lines: list[str]) -> None:
    bench = Bench(stream="logs.*")
    listed(bench)
    gap = b'event: gap\ndata: {"stream": "logs.a", "first": 1, "last": 4}\n\n'
    bench.begin(OK, gap + b'event: error\ndata: {"error": "more than 1000 streams match"}\n\n')
    assert bench.lost == [(1, 4, "logs.a")]
    assert "more than 1000 streams match" in log_lines[-1]
    assert bench.tailer.shortfall(False) == "more than 1000 streams match"


def test_a_pattern_with_a_position_is_refused() -> None:
    with pytest.raises(ConfigError, match="begins with new records; leave --since out"):
        Bench(after=0, stream="logs.*")
    with pytest.raises(ConfigError, match="no number suits all streams of a pattern"):
        Bench(after=5, stream="logs.*", name="billing")


# Named subscriptions.

CONSUMING = OK + b"Fyrehose-Generation: %d\r\n"


class Consuming(Bench):
    """A tailer of the subscription "billing", each of whose records the test consumes."""

    def __init__(self, **more: Any) -> None:
        self.taken: list[Deferred[Any]] = []
        super().__init__(take=self.take, name="billing", **more)

    def take(self, run: Run) -> Deferred[Any]:
        self.runs.append(run)
        self.taken.append(Deferred())
        return self.taken[-1]

    def acknowledgements(self) -> list[str]:
        """The bodies that were posted on any connection."""
        sent = [transport.value().decode() for _, transport in self.connections]
        posted = [text for text in sent if text.startswith("POST /subscriptions/billing/ack HTTP/1.1")]
        return [part.split("\r\n\r\n")[1] for text in posted for part in text.split("POST ")[1:]]


def test_a_named_subscription_is_acknowledged_when_a_record_is_consumed() -> None:
    bench = Consuming(after=4, takeover=True)
    assert bench.request == "GET /streams/a%2Fb/live?subscription=billing&from=5&takeover=1 HTTP/1.1"
    bench.begin(CONSUMING % 7, event(numbered(5, b"a", b"b")) + event(numbered(9, b"c")))
    assert bench.results == [None]
    assert bench.acknowledgements() == []
    bench.taken[0].callback(None)
    assert bench.acknowledgements() == ['{"seq": 6, "generation": 7}']


def test_only_the_consumed_records_of_a_run_are_acknowledged() -> None:
    bench = Consuming()
    bench.begin(CONSUMING % 1, event(numbered(5, b"a", b"b", b"c")))
    bench.taken[0].callback(6)
    assert bench.acknowledgements() == ['{"seq": 6, "generation": 1}']


def test_records_are_delivered_once_unless_the_subscription_is_rewound() -> None:
    bench = Consuming(takeover=True)
    assert bench.request == "GET /streams/a%2Fb/live?subscription=billing&takeover=1 HTTP/1.1"
    bench.begin(CONSUMING % 1, event(numbered(5, b"a", b"b")))
    bench.lose()
    assert bench.request == "GET /streams/a%2Fb/live?subscription=billing HTTP/1.1", "it displaces nobody again"
    bench.begin(CONSUMING % 1, event(numbered(5, b"a", b"b", b"c")))
    bench.lose()
    bench.begin(CONSUMING % 2, event(numbered(1, b"z")))
    assert [(run.first_seq, len(run)) for run in bench.runs] == [(5, 2), (7, 1), (1, 1)]


def test_a_record_that_fails_is_read_again_and_nothing_behind_it_is_acknowledged(log_lines: list[str]) -> None:
    bench = Consuming()
    bench.begin(CONSUMING % 1, event(numbered(5, b"a")) + event(numbered(7, b"b")))
    bench.taken[0].errback(ValueError("no room"))
    bench.taken[1].callback(None)
    assert bench.acknowledgements() == []
    assert "no room" in log_lines[0]
    bench.lose()
    bench.begin(CONSUMING % 1, event(numbered(5, b"a")))
    assert [run.first_seq for run in bench.runs] == [5, 7, 5]


def test_a_subscription_with_another_consumer_is_an_error() -> None:
    bench = Consuming()
    bench.answer(409, b'{"error": "subscription has a consumer"}')
    [failure] = bench.results
    assert failure.getErrorMessage() == "h:1 refused the request with status 409: subscription has a consumer"


def test_closing_waits_for_the_last_acknowledgement() -> None:
    bench = Consuming()
    bench.begin(CONSUMING % 1, event(numbered(5, b"a")))
    following = bench.connections[0][1]
    bench.taken[0].callback(None)
    bench.tailer.close()
    assert not following.disconnecting
    bench.answer(200, b"{}")
    assert bench.connections[1][1].protocol is None
    assert following.disconnecting


def test_a_subscription_of_a_pattern_is_acknowledged_stream_by_stream() -> None:
    bench = Consuming(stream="logs.*", after=0)
    assert bench.request == "GET /streams/*/live?match=logs.%2A&subscription=billing&from=1 HTTP/1.1"
    bench.begin(CONSUMING % 3, of("logs.a", 4, b"x") + of("logs.b", 9, b"y"))
    for taken in bench.taken:
        taken.callback(None)
    bench.answer(200, b"{}")
    assert bench.acknowledgements() == [
        '{"positions": {"logs.a": 4}, "generation": 3}',
        '{"positions": {"logs.b": 9}, "generation": 3}',
    ]
    assert bench.lost == []


def test_records_of_a_pattern_are_delivered_once_unless_its_subscription_is_rewound() -> None:
    bench = Consuming(stream="logs.*")
    bench.begin(CONSUMING % 1, of("logs.a", 4, b"x") + of("logs.b", 9, b"y"))
    bench.lose()
    bench.begin(CONSUMING % 1, of("logs.a", 4, b"x") + of("logs.a", 5, b"z"))
    bench.lose()
    bench.begin(CONSUMING % 2, of("logs.b", 9, b"y"))
    assert [(run.stream, run.first_seq) for run in bench.runs] == [
        ("logs.a", 4),
        ("logs.b", 9),
        ("logs.a", 5),
        ("logs.b", 9),
    ]


def test_named_subscription_in_another_journal_is_read_from_the_position_there() -> None:
    runs: list[Run] = []

    def take(run: Run) -> Deferred[None]:
        runs.append(run)
        return Deferred()  # it is not consumed yet, and so it is not acknowledged

    bench = Bench(after=0, take=take, name="s")
    head = OK + b"Fyrehose-Generation: 1\r\nFyrehose-Last: %d\r\nFyrehose-Epoch: e%d\r\n"
    bench.begin(head % (9, 1), event(numbered(8, b"old", b"old")))
    bench.lose()
    bench.begin(head % (2, 2), event(numbered(1, b"1", b"2")))
    assert bench.restarted == [(2,)]
    assert [run.first_seq for run in runs] == [8, 1]


def listing(epoch: str, last: int) -> bytes:
    body = json.dumps({"matching": 1, "page": 0, "streams": [{"name": "a/b", "first": 1, "last": last}]}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nFyrehose-Epoch: %b\r\nContent-Length: %d\r\n"
    return head % (epoch.encode(), len(body)) + b"%b\r\n" + body


@pytest.mark.parametrize(("epoch", "last"), [("e1", 5), ("e2", 5), ("e2", 30)])
def test_pattern_is_told_which_streams_have_begun_again(epoch: str, last: int) -> None:
    bench = Bench(stream="a/*")
    bench.say(listing("e1", 20) % b"")
    bench.begin(OK, event(numbered(21, b"old")))
    bench.lose()
    bench.say(listing(epoch, last) % b"")
    assert bench.restarted == [(last, "a/b")]
    assert bench.lost == [(1, last, "a/b")]
    bench.begin(OK, event(numbered(last + 1, b"new")))
    assert [run.first_seq for run in bench.runs] == [21, last + 1]


def test_list_of_a_follower_that_lags_is_no_restart() -> None:
    bench = Bench(stream="a/*")
    bench.say(listing("e1", 20) % b"")
    bench.begin(OK)
    bench.lose()
    bench.say(listing("e1", 5) % b"Fyrehose-Age: 0.100\r\n")
    assert (bench.restarted, bench.lost) == ([], [])


def test_tailer_asks_which_number_a_time_has_and_begins_there() -> None:
    bench = Bench("-1h")
    assert bench.request == "HEAD /streams/a%2Fb?from=-1h HTTP/1.1"
    bench.begin(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nFyrehose-Last: 9\r\nFyrehose-From: 5\r\n")
    bench.clock.advance(0)
    assert bench.request.startswith("GET /streams/a%2Fb/live?from=5")


def test_named_subscription_of_a_tailer_may_begin_at_a_time() -> None:
    assert "from=2026-11-28T12%3A00" in Bench("2026-11-28T12:00", name="billing").request
