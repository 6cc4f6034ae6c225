"""The tailer of HTTP against a server in the test's hands: columns, gaps, refusals, and reconnecting without a gap."""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure
from zope.interface.verify import verifyObject

from fyrehose import ndjson, plugins
from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.interfaces import IClientPlugin, ITailer
from fyrehose.protocols.http.client import HttpTailer, runs_of
from fyrehose.records import Run

OK = b"HTTP/1.1 200 OK\r\nContent-Type: x\r\nTransfer-Encoding: chunked\r\n"


class Endpoint:
    """Connects at once; the test has both ends."""

    def __init__(self) -> None:
        self.connections: list[tuple[Any, StringTransport]] = []

    def connect(self, factory: Any) -> Deferred[Any]:
        protocol, transport = factory.buildProtocol(None), StringTransport()
        protocol.makeConnection(transport)
        self.connections.append((protocol, transport))
        return succeed(protocol)


class Bench:
    """A tailer that is connecting, and everything that it passed on."""

    def __init__(self, after: int | None = None) -> None:
        self.clock, self.endpoint = Clock(), Endpoint()
        self.tailer = HttpTailer(self.clock, self.endpoint, "h:1")  # type: ignore[arg-type]
        self.runs: list[Run] = []
        self.lost: list[tuple[int, int]] = []
        self.tailer.subscribe("a/b", self.runs.append, after, lambda *numbers: self.lost.append(numbers))
        self.results: list[Any] = []
        self.tailer.connect().addBoth(self.results.append)
        self.clock.advance(0)

    @property
    def request(self) -> str:
        """The latest request line of the present connection."""
        transport = self.endpoint.connections[-1][1]
        return transport.value().decode().split("\r\n\r\n")[-2].split("\r\n")[0]

    def answer(self, head: bytes, *chunks: bytes) -> None:
        self.endpoint.connections[-1][0].dataReceived(head + b"\r\n")
        for chunk in chunks:
            self.send(chunk)

    def send(self, chunk: bytes) -> None:
        self.endpoint.connections[-1][0].dataReceived(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    def refuse(self, status: int, body: bytes) -> None:
        head = b"HTTP/1.1 %d No\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        self.endpoint.connections[-1][0].dataReceived(head + body)

    def lose(self) -> None:
        self.endpoint.connections[-1][0].connectionLost(Failure(ConnectionLost()))
        self.clock.pump([1] * 60)


def event(run: Run) -> bytes:
    return b"".join(
        b"id: %d\ndata: %b\n\n" % (seq, record) for seq, record in enumerate(ndjson.objects(run), run.first_seq)
    )


def numbered(first: int, *payloads: bytes) -> Run:
    return Run.of("a/b", payloads, source="lumberjack", producer="p", content_type="text/plain").numbered(first, 77)


def test_all_columns_arrive_as_they_were_published() -> None:
    bench = Bench(after=4)
    assert bench.request == "GET /streams/a%2Fb/live?from=5 HTTP/1.1"
    assert not bench.results
    bench.answer(OK)
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


def test_consecutive_records_with_equal_labels_are_one_run() -> None:
    objects = [json.loads(each) for run in (numbered(1, b"a", b"b"), numbered(4, b"c")) for each in ndjson.objects(run)]
    assert [(run.first_seq, len(run)) for run in runs_of("a/b", objects)] == [(1, 2), (4, 1)]


def test_new_records_only_begin_behind_the_last_one_at_the_first_connection() -> None:
    bench = Bench()
    assert bench.request == "HEAD /streams/a%2Fb HTTP/1.1"
    bench.answer(OK + b"Fyrehose-Last: 41\r\n")
    assert bench.request == "GET /streams/a%2Fb/live?from=42 HTTP/1.1"
    bench.lose()
    assert bench.request == "GET /streams/a%2Fb/live?from=42 HTTP/1.1", "nothing is missed in between"


def test_a_stream_that_does_not_exist_yet_is_followed_from_its_start() -> None:
    bench = Bench()
    head = b"HTTP/1.1 404 No\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n"
    bench.endpoint.connections[-1][0].dataReceived(head)
    assert bench.request == "GET /streams/a%2Fb/live?from=1 HTTP/1.1"


def test_a_lost_connection_continues_behind_the_last_record_without_doubles() -> None:
    bench = Bench(after=0)
    bench.answer(OK, event(numbered(1, b"a", b"b")))
    bench.lose()
    assert "was lost" not in bench.tailer.shortfall(True)
    assert bench.request == "GET /streams/a%2Fb/live?from=3 HTTP/1.1"
    bench.answer(OK, event(numbered(2, b"b", b"c")))
    assert [bytes(each) for run in bench.runs for each in run.payloads()] == [b"a", b"b", b"c"]


def test_gaps_and_the_reason_of_an_end_are_reported() -> None:
    bench = Bench(after=0)
    gap = b'event: gap\nid: 9\ndata: {"first": 1, "last": 9}\n\n'
    bench.answer(OK, gap + event(numbered(10, b"x")) + b'event: ended\ndata: {"error": "the server is closing"}\n\n')
    assert bench.lost == [(1, 9)]
    assert [run.first_seq for run in bench.runs] == [10]
    assert bench.tailer.shortfall(False) == "the server is closing"
    assert bench.tailer.shortfall(True) == ""


def test_a_refusal_of_the_first_request_is_an_error() -> None:
    bench = Bench(after=0)
    bench.refuse(403, b'{"error": "10.0.0.1 may not read stream"}')
    [failure] = bench.results
    assert failure.check(FyrehoseError)
    assert failure.getErrorMessage() == "h:1 refused the request with status 403: 10.0.0.1 may not read stream"


def test_a_temporary_refusal_is_repeated(log_lines: list[str]) -> None:
    bench = Bench(after=0)
    bench.refuse(503, b'{"error": "the server is starting"}')
    bench.lose()
    assert not bench.results
    assert "the server is starting; retrying" in log_lines[0]
    bench.answer(OK)
    assert bench.results == [None]


@pytest.mark.parametrize("answer", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
def test_a_server_that_is_not_fyrehose_is_an_error(answer: bytes) -> None:
    bench = Bench()
    bench.endpoint.connections[-1][0].dataReceived(answer)
    [failure] = bench.results
    assert "h:1 is not a Fyrehose http listener" in failure.getErrorMessage()


def test_an_event_larger_than_any_record_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fyrehose.protocols.http.client.MOST_EVENT", 10)
    bench = Bench(after=0)
    bench.answer(OK, b"data: much more")
    assert "larger than any record" in bench.tailer.shortfall(False)


def test_pausing_pauses_every_connection_until_it_is_resumed() -> None:
    bench = Bench(after=0)
    bench.tailer.pause()
    assert bench.endpoint.connections[-1][1].producerState == "paused"
    bench.lose()
    assert bench.endpoint.connections[-1][1].producerState == "paused"
    bench.tailer.resume()
    assert bench.endpoint.connections[-1][1].producerState == "producing"
    bench.tailer.close()
    assert bench.endpoint.connections[-1][1].disconnecting


def test_plugin_makes_a_tailer_and_no_publisher() -> None:
    plugin: Any = plugins.load("http")
    assert verifyObject(IClientPlugin, plugin)
    assert plugin.publisher(MemoryReactorClock(), "h", 1, 5) is None
    tailer = plugin.tailer(MemoryReactorClock(), "::1", 8117)
    assert verifyObject(ITailer, tailer)
    assert tailer.authority == "[::1]:8117"
    with pytest.raises(ConfigError, match="--stream NAME"):
        tailer.subscribe(None, print)
