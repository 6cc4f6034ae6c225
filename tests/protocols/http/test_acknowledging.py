"""Acknowledging by HTTP: one request at a time, repeated after a lost connection, and none for nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from fyrehose.net.several import AnyServer
from fyrehose.protocols.http.acknowledging import MOST_STREAMS, Acknowledger
from fyrehose.protocols.http.client import HttpTailer
from fyrehose.protocols.http.requests import HTTP_OPTIONS
from tests.doubles.answering import EndingEndpoint, EndingTransport
from tests.doubles.awkward import NAMES, NOT_UTF8


class Bench(EndingEndpoint):
    """An acknowledger, whose connections are in the test's hands."""

    def __init__(self) -> None:
        super().__init__()
        self.acknowledger = Acknowledger(self.clock, self, "h:1", "a b")  # type: ignore[arg-type]

    @property
    def posted(self) -> list[tuple[int, int]]:
        """The numbers and generations that were posted on the latest connection."""
        texts = self.connections[-1][1].value().decode().split("POST /subscriptions/a%20b/ack HTTP/1.1\r\n")[1:]
        bodies = [json.loads(text.split("\r\n\r\n")[1]) for text in texts]
        return [(body["seq"], body["generation"]) for body in bodies]

    def answer(self, status: int, body: bytes = b'{"error": "no"}') -> None:
        super().answer(status, body)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Yield an acknowledger, which leaves no timer when it is closed, whatever it has been through."""
    made = Bench()
    yield made
    closed = made.acknowledger.close()
    for _ in range(5):
        if not closed.called and made.connections:
            made.answer(200)
    made.clock.pump([1] * 60 if not closed.called else [0])
    assert closed.called, "it does not close"
    assert not made.clock.getDelayedCalls(), "a timer is left"


def test_report_is_answered_with_the_subscription(bench: Bench) -> None:
    reporting = Deferred.fromCoroutine(bench.acknowledger.report({"rate": 2.5}))
    head, _, body = bench.connections[-1][1].value().decode().partition("\r\n\r\n")
    assert head.startswith("POST /subscriptions/a%20b/report HTTP/1.1\r\n")
    assert json.loads(body) == {"rate": 2.5}
    bench.answer(200, b'{"name": "a b", "lag": 3}')
    assert reporting.result == {"name": "a b", "lag": 3}
    asking = Deferred.fromCoroutine(bench.acknowledger.report(None))
    assert bench.connections[-1][1].value().count(b"GET /subscriptions/a%20b HTTP/1.1\r\n") == 1
    bench.answer(404, b'{"error": "there is none"}')
    failure = asking.result
    assert isinstance(failure, Failure)
    assert failure.getErrorMessage() == "status 404: there is none"
    asking.addErrback(lambda _: None)


def test_each_name_of_a_stream_is_acknowledged_as_it_was_received(bench: Bench) -> None:
    for seq, name in enumerate((*NAMES, *(raw.decode(errors="surrogateescape") for raw in NOT_UTF8)), 1):
        bench.acknowledger.acknowledge(seq, 1, name)
        body = bench.connections[-1][1].value().rpartition(b"\r\n\r\n")[2]
        assert json.loads(body.decode(errors="surrogateescape"))["positions"] == {name: seq}
        bench.answer(200)


def test_waiting_acknowledgements_of_a_stream_become_one_request(bench: Bench) -> None:
    for seq in (1, 2, 3):
        bench.acknowledger.acknowledge(seq, 1)
    assert bench.posted == [(1, 1)]
    bench.answer(200)
    assert bench.posted == [(1, 1), (3, 1)]
    bench.answer(200)
    assert len(bench.posted) == 2
    bench.acknowledger.acknowledge(4, 1)
    assert bench.posted[2:] == [(4, 1)]
    assert len(bench.connections) == 1


def test_no_connection_is_made_without_an_acknowledgement(bench: Bench) -> None:
    bench.acknowledger.acknowledge(5, 1)
    bench.answer(200)
    bench.lose()
    assert len(bench.connections) == 1
    bench.acknowledger.acknowledge(6, 1)
    assert bench.posted == [(6, 1)]


def test_a_temporary_refusal_is_retried_over_another_connection(bench: Bench) -> None:
    bench.acknowledger.acknowledge(5, 1)
    bench.answer(503, b'{"error": "closing"}')
    assert bench.connections[0][1].disconnecting
    bench.lose()
    assert bench.posted == [(5, 1)]


@pytest.mark.parametrize("seq", [2, 5])
def test_a_refusal_of_an_old_generation_is_reported_and_not_repeated(
    bench: Bench, log_lines: list[str], seq: int
) -> None:
    bench.acknowledger.acknowledge(5, 1)
    bench.acknowledger.acknowledge(seq, 2)
    bench.answer(409, b'{"error": "it was rewound"}')
    assert bench.posted == [(5, 1), (seq, 2)], "a newer generation is newer, also with no larger number"
    assert "refused to acknowledge record 5 of subscription 'a b' with status 409: it was rewound" in log_lines[0]
    assert bench.acknowledger.refused == 1


def test_closing_waits_for_the_answer_for_a_limited_time(bench: Bench) -> None:
    bench.acknowledger.acknowledge(5, 1)
    closed: list[Any] = []
    bench.acknowledger.close().addCallback(closed.append)
    assert bench.connections[0][1].protocol is not None
    bench.clock.advance(HTTP_OPTIONS.close_timeout)
    assert bench.connections[0][1].protocol is None
    assert closed == [None]
    assert not bench.clock.getDelayedCalls()


def test_an_answer_that_is_not_http_closes_the_connection(bench: Bench, log_lines: list[str]) -> None:
    bench.acknowledger.acknowledge(5, 1)
    bench.connections[-1][0].dataReceived(b"garbage\r\n\r\n")
    assert "h:1 is not a Fyrehose http listener" in log_lines[0]


def test_streams_of_a_pattern_that_wait_are_acknowledged_together(bench: Bench) -> None:
    for seq, stream in ((1, "a"), (2, "a"), (7, "b"), (3, "a")):
        bench.acknowledger.acknowledge(seq, 1, stream)
    bench.answer(200)
    text = bench.connections[-1][1].value().decode()
    bodies = [json.loads(part.split("\r\n\r\n")[1]) for part in text.split("POST ")[1:]]
    assert bodies == [{"positions": {"a": 1}, "generation": 1}, {"positions": {"a": 3, "b": 7}, "generation": 1}]
    bench.answer(200)
    bench.lose()
    assert len(bench.connections) == 1


def test_many_streams_are_acknowledged_in_several_requests(bench: Bench) -> None:
    for number in range(MOST_STREAMS + 2):
        bench.acknowledger.acknowledge(5, 1, f"s{number}")
    for _ in range(3):
        bench.answer(200)
    text = bench.connections[-1][1].value().decode()
    bodies = [json.loads(part.split("\r\n\r\n")[1])["positions"] for part in text.split("POST ")[1:]]
    assert [len(body) for body in bodies] == [1, MOST_STREAMS, 1]
    assert len({stream for body in bodies for stream in body}) == MOST_STREAMS + 2


@pytest.mark.parametrize("seed", range(15))
def test_newest_acknowledgement_of_each_stream_is_answered_whatever_happens(bench: Bench, seed: int) -> None:
    """Numbers rise while requests are under way, refused or lost, some with an old generation, until it closes."""
    dice, generation = Random(seed), 1
    wanted: dict[str, int] = {}
    told: dict[str, int] = {}
    answered: Counter[int] = Counter()  # by connection

    def answer(status: int) -> bool:
        nonlocal told
        at = len(bench.connections)
        alive = bool(at) and bench.connections[-1][1].protocol is not None
        text = bench.connections[-1][1].value().decode() if alive else ""
        requests = [json.loads(each.split("\r\n\r\n")[1]) for each in text.split("POST ")[1:]]
        if answered[at] >= len(requests):
            return False
        body = requests[answered[at]]
        if body["generation"] == generation:
            assert all(told.get(stream, 0) <= seq for stream, seq in body["positions"].items()), (
                "an older number follows"
            )
            told |= body["positions"]
        answered[at] += 1
        bench.answer(status)
        return True

    for _ in range(60):
        chance = dice.random()
        if chance < 0.5:
            stream = dice.choice("abc")
            seq = max(1, wanted.get(stream, 0) + dice.randint(0, 3))
            late = dice.random() < 0.1
            bench.acknowledger.acknowledge(seq, generation - late, stream)
            wanted |= {} if late else {stream: seq}
        elif chance < 0.85:
            answer(dice.choice([200, 200, 409, 502]))
        elif chance < 0.95 and bench.connections:
            bench.lose()
        elif chance > 0.97:
            generation, wanted, told = generation + 1, {}, {}
            bench.acknowledger.acknowledge(1, generation, "a")
            wanted["a"] = 1
    for _ in range(20):
        while answer(200):
            pass
        bench.clock.advance(1)  # a lost connection is replaced
    assert told == wanted, "each stream's newest number was sent, and answered"
    bench.acknowledger.acknowledge(100, generation, "a")
    closing = bench.acknowledger.close()
    assert not closing.called, "it waits for the last answer"
    assert answer(dice.choice([200, 409]))
    assert not answer(200)
    assert (closing.called, told["a"]) == (True, 100), "it closes as soon as everything is answered"
    assert not bench.clock.getDelayedCalls()


def test_a_refusal_names_the_streams(bench: Bench, log_lines: list[str]) -> None:
    bench.acknowledger.acknowledge(5, 1, "logs.a")
    bench.answer(409, b'{"error": "no"}')
    assert "refused to acknowledge record 5 of stream 'logs.a' of subscription 'a b'" in log_lines[0]


ADDRESSES = ("10.0.0.1:8117", "10.0.0.2:8117", "10.0.0.3:8117")


class Servers:
    """Three servers; notes which one each connection goes to."""

    def __init__(self) -> None:
        self.connected: list[int] = []
        self.protocol: Any = None
        self.endpoint = AnyServer([self._endpoint(number) for number in (1, 2, 3)], ADDRESSES)

    def _endpoint(self, number: int) -> Any:
        servers = self

        class Endpoint:
            def connect(self, factory: Any) -> Deferred[Any]:
                servers.connected.append(number)
                servers.protocol = factory.buildProtocol(None)
                servers.protocol.makeConnection(EndingTransport(servers.protocol))
                return succeed(servers.protocol)

        return Endpoint()

    def refuse(self, clock: Clock, location: str) -> None:
        """Answer as a server that follows does, and close the connection."""
        body = b'{"error": "this server follows c"}'
        head = f"HTTP/1.1 503 No\r\nLocation: {location}\r\nContent-Type: application/json\r\n"
        self.protocol.dataReceived(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.protocol.connectionLost(Failure(ConnectionLost()))
        clock.pump([1] * 5)


@pytest.mark.parametrize(
    ("location", "second"), [("http://10.0.0.3:8117/streams/s", 3), ("http://10.0.0.9:8117/streams/s", 2)]
)
@pytest.mark.parametrize("client", ["tailer", "acknowledger"])
def test_client_connects_to_the_leader_only_if_its_address_is_one_of_those_given(
    client: str, location: str, second: int
) -> None:
    """An address that was not given is not connected to, so that no server can send a client anywhere."""
    clock, servers = Clock(), Servers()
    if client == "tailer":
        tailer = HttpTailer(clock, servers.endpoint, "10.0.0.1:8117")
        tailer.subscribe("s", lambda run: None, 0, name="a subscription")
        tailer.connect()
    else:
        Acknowledger(clock, servers.endpoint, "10.0.0.1:8117", "a subscription").acknowledge(5, 1)
    servers.refuse(clock, location)
    assert servers.connected[:2] == [1, second]
