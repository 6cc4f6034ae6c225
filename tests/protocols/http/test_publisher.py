"""Publishing by HTTP: many messages per request, sent again with the same key until the server answers."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.errors import Closed, ConfigError, FyrehoseError, PublishError
from fyrehose.protocols.http.publisher import MOST_LINES, HttpPublisher
from tests.doubles.answering import EndingEndpoint, answer, proxy


class Bench(EndingEndpoint):
    """A publisher, whose connections are in the test's hands."""

    def __init__(self, window: int = 10, answers: bool = True) -> None:
        super().__init__()
        self.publisher = HttpPublisher(self.clock, self, "h:1", window)  # type: ignore[arg-type]
        self.connected = self.publisher.connect()
        if answers:
            assert self.requests[0][0] == "GET / HTTP/1.1"
            self.answer(200)

    @property
    def requests(self) -> list[tuple[str, dict[str, str], bytes]]:
        """Return the requests of the latest connection: first line, headers, body."""
        rest, found = self.connections[-1][1].value(), []
        while rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines)
            size = int(headers.get("Content-Length", 0))
            found.append((first, headers, rest[:size]))
            rest = rest[size:]
        return found

    def publish(self, *payloads: bytes, stream: str = "s") -> list[Any]:
        """Publish, and return a list to which each outcome is added."""
        outcomes: list[Any] = []
        for payload in payloads:
            self.publisher.publish(stream, payload).addBoth(outcomes.append)
        return outcomes


def test_connect_fires_when_the_server_answers() -> None:
    bench = Bench(answers=False)
    assert not bench.connected.called
    bench.answer(200)
    assert bench.connected.called


def test_messages_that_wait_for_an_answer_become_one_request() -> None:
    bench = Bench()
    outcomes = bench.publish(b"one", b"two", b'{"three": 3}')
    assert [body for _, _, body in bench.requests[1:]] == [b"one"]
    bench.answer(200)
    assert outcomes == [None]
    first, headers, body = bench.requests[2]
    assert (first, body) == ("POST /streams/s HTTP/1.1", b'two\n{"three": 3}')
    assert headers["Content-Type"] == "application/x-ndjson"
    bench.answer(200)
    assert outcomes == [None] * 3


@pytest.mark.parametrize("payload", [b"", b"a\nb", b"end\r", b"x" * (MOST_LINES + 1)])
def test_message_that_cannot_be_a_line_gets_a_separate_request(payload: bytes) -> None:
    bench = Bench()
    bench.publish(b"a", payload, b"b")
    for _ in range(3):
        bench.answer(200)
    assert [body for _, _, body in bench.requests[1:]] == [b"a", payload, b"b"]
    assert bench.requests[2][1]["Content-Type"] == "application/octet-stream"


def test_streams_do_not_share_requests_and_a_request_is_limited() -> None:
    bench = Bench(window=100)
    bench.publish(b"a")
    bench.publish(b"b")
    bench.publish(b"c", stream="t/u")
    bench.publish(*[b"x" * (MOST_LINES // 2)] * 3, stream="t/u")
    for _ in range(5):
        bench.answer(200)
    sent = bench.requests[1:]
    assert [first.split()[1] for first, *_ in sent] == ["/streams/s"] * 2 + ["/streams/t%2Fu"] * 3
    assert all(len(body) <= MOST_LINES for *_, body in sent)


@pytest.mark.parametrize("status", [0, 429, 503])
def test_a_request_without_a_final_answer_is_sent_again_with_its_key(status: int) -> None:
    bench = Bench()
    outcomes = bench.publish(b"one")
    before = bench.requests[1]
    if status:
        bench.answer(status)
        assert bench.connections[-1][1].disconnecting
    bench.lose()
    assert len(bench.connections) == 2
    assert bench.requests == [before], "the same key and body, and no other request"
    bench.answer(200)
    assert outcomes == [None]


def test_permanent_refusal_fails_only_the_messages_of_its_request() -> None:
    bench = Bench()
    outcomes = bench.publish(b"one", b"two")
    bench.answer(403, b'{"error": "may not publish"}')
    bench.answer(200)
    assert isinstance(outcomes[0].value, PublishError)
    assert str(outcomes[0].value) == "the server answered 403: may not publish"
    assert outcomes[1] is None


def test_the_window_has_room_again_after_an_answer() -> None:
    bench = Bench(window=1)
    bench.publish(b"one")
    ready = bench.publisher.ready()
    assert not ready.called
    bench.answer(200)
    assert ready.called


def test_closing_the_publisher_fails_unanswered_messages() -> None:
    bench = Bench(window=1)
    outcomes = bench.publish(b"one", b"two")
    refused: list[Any] = []
    bench.publisher.ready().addErrback(refused.append)
    bench.publisher.close()
    assert [type(outcome.value) for outcome in [*outcomes, *refused]] == [Closed] * 3


def test_an_answer_after_closing_changes_nothing() -> None:
    bench = Bench()
    outcomes = bench.publish(b"one")
    bench.publisher.close()
    bench.answer(200)
    assert [type(outcome.value) for outcome in outcomes] == [Closed]
    assert bench.publisher._unacknowledged == 0


def test_publishing_without_a_stream_is_refused() -> None:
    with pytest.raises(ConfigError, match="use --stream NAME"):
        Bench().publisher.prepare(None)


@pytest.mark.parametrize("said", [proxy(502), proxy(200), proxy(413), answer(200, b'{"count"')])
def test_only_the_server_acknowledges_and_refuses(said: bytes) -> None:
    bench = Bench()
    outcomes = bench.publish(b"one")
    before = bench.requests[1]
    bench.connections[-1][0].dataReceived(said)
    assert outcomes == []
    bench.clock.pump([1] * 10)
    assert bench.requests == [before]
    bench.answer(200)
    assert outcomes == [None]


def test_another_program_is_an_error_of_connecting() -> None:
    bench = Bench(answers=False)
    bench.connections[-1][0].dataReceived(proxy(404))
    failures: list[Any] = []
    bench.connected.addErrback(failures.append)
    assert failures[0].check(FyrehoseError)
    assert "h:1 is not a Fyrehose http listener" in str(failures[0])
