"""A connection of a client: what it does with answers that are no HTTP, or that close the connection."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from fyrehose.protocols.http.calling import Caller
from fyrehose.protocols.http.requests import Connection
from fyrehose.web.client_session import LARGEST


class SilentEndpoint:
    """An endpoint that nobody connects to."""


class Asking:
    """Sends requests, and notes their answers: the status and the body, or the reason why there is none."""

    def __init__(self, largest: int = LARGEST) -> None:
        self.answers: list[Any] = []
        self.connection = Connection("h:1", largest=largest)
        self.connection.factory = Caller(Clock(), SilentEndpoint(), "h:1")  # type: ignore[arg-type]
        self.transport = StringTransport()
        self.connection.makeConnection(self.transport)  # type: ignore[no-untyped-call]

    def ask(self) -> None:
        asked = self.connection.ask("GET", "/").addCallback(lambda answer: (answer.status, answer.body))
        asked.addErrback(lambda failure: failure.value.reason).addCallback(self.answers.append)

    def lose(self, reason: Exception) -> None:
        self.connection.connectionLost(Failure(reason))


def test_an_answer_that_ends_the_connection_closes_it() -> None:
    caller = Asking()
    caller.ask()
    caller.connection.dataReceived(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi")
    assert caller.answers == [(200, b"hi")]
    assert caller.transport.disconnecting
    assert not caller.connection.usable


def test_an_answer_may_end_with_its_connection_but_only_if_that_is_closed_and_not_lost() -> None:
    lost = ConnectionLost()
    for reason, answer in ((ConnectionDone(), (200, b"hi")), (lost, lost)):
        caller = Asking()
        caller.ask()
        caller.connection.dataReceived(b"HTTP/1.0 200 OK\r\n\r\nhi")
        caller.lose(reason)
        assert caller.answers == [answer]


@pytest.mark.parametrize("head", [b"Content-Length: 3\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n3\r\n"])
def test_an_answer_that_ends_early_is_a_lost_connection(head: bytes) -> None:
    caller = Asking()
    caller.ask()
    caller.connection.dataReceived(b"HTTP/1.1 200 OK\r\n" + head + b"hi")
    done = ConnectionDone()
    caller.lose(done)
    assert caller.answers == [done]


def test_an_answer_that_is_too_large_ends_the_connection() -> None:
    caller = Asking(largest=10)
    caller.ask()
    caller.connection.dataReceived(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n" + b"x" * 11)
    assert (caller.answers, caller.transport.disconnected) == ([], True)


def test_connection_to_a_server_that_does_not_speak_http_is_closed() -> None:
    caller = Asking()
    caller.ask()
    caller.connection.dataReceived(b"SSH-2.0\r\n\r\n")
    assert caller.transport.disconnected
    assert caller.answers == []
