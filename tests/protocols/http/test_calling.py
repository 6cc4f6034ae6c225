"""Requests of a client: they are sent again until they are answered."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from twisted.internet import error
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocol, IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import Closed
from fyrehose.net.clients import ConnectionFailed
from fyrehose.protocols.http.calling import SLOWEST, Called, Caller
from fyrehose.protocols.http.requests import HTTP_OPTIONS
from fyrehose.web.client_session import LONGEST_RETRY_AFTER
from tests.doubles.answering import EndingTransport, answer, own, proxy


@implementer(IStreamClientEndpoint)
@attrs.define
class Endpoint:
    """Connects to nothing; refuses the first *refuses* connections; answers no attempt if it is *silent*.

    :ivar made: the transports of the connections, in their order
    """

    refuses: int = 0
    silent: bool = False
    made: list[EndingTransport] = attrs.field(factory=list)

    def connect(self, factory: Any) -> Deferred[IProtocol]:
        if self.refuses:
            self.refuses -= 1
            return fail(error.ConnectionRefusedError())
        if self.silent:
            return Deferred()
        protocol = factory.buildProtocol(None)
        transport = EndingTransport(protocol)
        self.made.append(transport)
        protocol.makeConnection(transport)
        return succeed(protocol)

    def say(self, data: bytes) -> None:
        """Let the server, or a proxy, send *data* on the latest connection."""
        self.made[-1].protocol.dataReceived(data)

    def answer(self, status: int, body: object = None, at: int = -1) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        kind = "Content-Type: application/json\r\n"
        head = f"HTTP/1.1 {status} X\r\n{kind}Content-Length: {len(data)}\r\n\r\n".encode()
        self.made[at].protocol.dataReceived(head + data)


def calling(endpoint: Endpoint, clock: Clock, wait: float = 0.0, **options: Any) -> tuple[Caller, Deferred[Any]]:
    times = attrs.evolve(HTTP_OPTIONS, retry=lambda failures: min(8.0, 0.25 * 2**failures))
    caller = Caller(clock, endpoint, "there:1", options=times, **options)
    return caller, Deferred.fromCoroutine(caller.call("POST", "/x", {"a": 1}, wait))


def test_a_request_has_the_body_and_the_token_and_its_answer_is_an_object() -> None:
    endpoint = Endpoint()
    caller, done = calling(endpoint, Clock(), token="secret")
    sent = endpoint.made[0].value()
    assert sent.startswith(b"POST /x HTTP/1.1\r\n")
    assert sent.endswith(b'\r\n\r\n{"a": 1}')
    assert b"Authorization: Bearer secret" in sent
    endpoint.answer(200, {"b": 2})
    assert done.result[:2] == (200, {"b": 2})
    again: Deferred[Any] = Deferred.fromCoroutine(caller.call("DELETE", "/x"))
    endpoint.answer(204)
    assert (again.result[:2], len(endpoint.made)) == ((204, {}), 1), "the connection is used again"


def test_a_request_whose_answer_is_lost_is_sent_again() -> None:
    endpoint, clock = Endpoint(), Clock()
    _, done = calling(endpoint, clock)
    endpoint.made[0].abortConnection()
    assert not done.called
    clock.advance(1)
    assert endpoint.made[1].value() == endpoint.made[0].value()
    endpoint.answer(200, {})
    assert (done.result[:2], done.result.repeats) == ((200, {}), 1)


def test_request_is_repeated_if_a_server_refuses_the_connection_or_asks_to_retry() -> None:
    endpoint, clock = Endpoint(refuses=2), Clock()
    _, done = calling(endpoint, clock)
    for _ in range(4):
        clock.advance(1)
    endpoint.answer(503, {"error": "the disk is full"})
    assert not done.called
    for _ in range(8):
        clock.advance(1)
    endpoint.answer(200, {})
    assert (done.result[:2], done.result.repeats) == ((200, {}), 0), "the server has refused it, and not lost it"


@pytest.mark.parametrize("wait", [0.0, 1.0, HTTP_OPTIONS.answer_timeout, 100.0])
def test_request_without_an_answer_is_repeated_over_another_connection(wait: float) -> None:
    """The time in which the server may wait before it answers comes on top."""
    endpoint, clock = Endpoint(), Clock()
    _, done = calling(endpoint, clock, wait)
    clock.advance(wait + HTTP_OPTIONS.answer_timeout)
    clock.advance(1)
    assert len(endpoint.made) == 1, "it was given up too early"
    clock.advance(1)
    assert len(endpoint.made) == 2
    endpoint.answer(409, {"error": "no"})
    assert done.result[:2] == (409, {"error": "no"})


def test_an_answer_that_is_no_object_is_an_error() -> None:
    endpoint = Endpoint()
    _, done = calling(endpoint, Clock())
    endpoint.say(answer(200, b"[1]"))
    assert refused(done) == "there:1 is not a Fyrehose http listener"


def refused(done: Deferred[Any]) -> str:
    """Return the beginning of the error with which a request has ended."""
    failures: list[Failure] = []
    done.addErrback(failures.append)
    assert failures[0].check(ConnectionFailed)
    return failures[0].getErrorMessage().partition(": ")[0]


def test_requests_are_sent_one_after_another_and_each_answer_says_when_and_how_often_it_was_asked_for() -> None:
    endpoint, clock = Endpoint(), Clock()
    caller, first = calling(endpoint, clock)
    second: Deferred[Any] = Deferred.fromCoroutine(caller.call("GET", "/y"))
    endpoint.made[0].abortConnection()
    clock.pump([0.25] * 4)
    assert b"/y" not in endpoint.made[1].value()
    endpoint.answer(200, {})
    assert first.result == Called(200, {}, asked_at=0.5, repeats=1)
    assert b"GET /y" in endpoint.made[1].value()
    endpoint.answer(200, {"y": 1})
    assert second.result == Called(200, {"y": 1}, asked_at=1.0, repeats=0)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_an_answer_of_a_proxy_is_a_lost_connection(status: int) -> None:
    endpoint, clock = Endpoint(), Clock()
    _, done = calling(endpoint, clock)
    endpoint.say(proxy(status))
    assert not done.called
    clock.advance(0.5)
    assert endpoint.made[1].value() == endpoint.made[0].value()
    endpoint.answer(200, {})
    assert (done.result[:2], done.result.repeats) == ((200, {}), 1)


@pytest.mark.parametrize("status", [200, 302, 401, 404])
def test_any_answer_of_a_proxy_is_a_lost_connection_once_the_server_has_answered(status: int) -> None:
    endpoint, clock = Endpoint(), Clock()
    caller, done = calling(endpoint, clock)
    endpoint.say(proxy(status))
    assert refused(done) == "there:1 is not a Fyrehose http listener", "the address may be wrong"
    asked: Deferred[Any] = Deferred.fromCoroutine(caller.call("POST", "/x"))
    endpoint.answer(503, {"error": "later"})
    clock.advance(0.5)
    left = [each.disconnecting for each in endpoint.made]
    assert left == [True, True, False], "each attempt has a connection of its own, because another server may lead"
    endpoint.say(proxy(status))
    clock.advance(1)
    endpoint.answer(200, {"a": 1})
    assert asked.result[:2] == (200, {"a": 1})


def test_an_answer_that_ends_early_is_a_lost_connection() -> None:
    endpoint, clock = Endpoint(), Clock()
    _, done = calling(endpoint, clock)
    endpoint.say(own({"a": 1})[:-2])
    endpoint.made[0].protocol.connectionLost(Failure(ConnectionDone()))
    clock.advance(0.5)
    endpoint.say(answer(200, b'{"a": '))  # a proxy has ended it properly
    clock.advance(1)
    endpoint.answer(200, {"a": 1})
    assert done.result[:2] == (200, {"a": 1})


def test_a_pause_grows_and_is_longer_if_an_answer_asks_for_it() -> None:
    endpoint, clock = Endpoint(), Clock()
    _, done = calling(endpoint, clock)
    for retry_after, pause in (("0", 0.5), ("0", 1.0), ("7", 7.0), ("86400", LONGEST_RETRY_AFTER), ("1", 8.0)):
        made = len(endpoint.made)
        endpoint.say(proxy(503, Retry_After=retry_after))
        clock.advance(pause - 0.1)
        assert len(endpoint.made) == made
        clock.advance(0.1)
        assert len(endpoint.made) == made + 1
    endpoint.answer(200, {})
    assert done.called


def test_a_large_request_has_time_to_be_sent() -> None:
    endpoint, clock = Endpoint(), Clock()
    caller = Caller(clock, endpoint, "there:1")
    asked = Deferred.fromCoroutine(caller.ask("POST", "/x", bytes(100 * SLOWEST)))
    clock.advance(HTTP_OPTIONS.answer_timeout + 99)
    endpoint.answer(200, {})
    assert asked.called
    assert len(endpoint.made) == 1


def test_closing_ends_a_request_and_those_behind_it() -> None:
    for close_at in ("answer", "pause", "connecting"):
        endpoint, clock = Endpoint(silent=close_at == "connecting"), Clock()
        caller, done = calling(endpoint, clock)
        behind: Deferred[Any] = Deferred.fromCoroutine(caller.call("GET", "/y"))
        if close_at == "pause":
            endpoint.say(proxy(502))
            endpoint.made[0].lose()
        caller.close()
        for each in (done, behind):
            ended: list[Failure] = []
            each.addErrback(ended.append)
            assert ended[0].check(Closed, CancelledError)
        assert len(endpoint.made) == (close_at != "connecting")
        assert not clock.getDelayedCalls()
