"""A connection of a client: what it does with answers that are no HTTP, or that close the connection."""

from __future__ import annotations

from typing import Any

from twisted.internet.testing import StringTransport

from fyrehose.protocols.http.requests import MOST_ANSWER, ClientRequest, Connection


class Caller:
    """Sends requests, and notes their answers."""

    endpoint, authority = None, "h:1"

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.connection = Connection(self)
        self.transport = StringTransport()
        self.connection.makeConnection(self.transport)

    def connection_changed(self, connection: Any) -> None:
        pass

    def answered(self, sent: Any, status: int, detail: str) -> bool:
        self.answers.append((sent, status, detail))
        return True


def test_an_answer_that_ends_the_connection_closes_it() -> None:
    caller = Caller()
    caller.connection.send(ClientRequest(method="GET", target="/", sent=7))
    assert not caller.connection.idle
    caller.connection.dataReceived(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi")
    assert caller.answers == [(7, 200, "hi")]
    assert caller.transport.disconnecting


def test_a_long_answer_is_kept_in_part() -> None:
    caller = Caller()
    caller.connection.send(ClientRequest(method="GET", target="/"))
    caller.connection.dataReceived(b"HTTP/1.1 500 X\r\nContent-Length: 9999\r\n\r\n" + b"x" * 9_999)
    assert caller.answers == [(None, 500, "x" * MOST_ANSWER)]
    assert caller.connection.idle


def test_a_server_that_does_not_speak_http_is_left() -> None:
    caller = Caller()
    caller.connection.send(ClientRequest(method="GET", target="/"))
    caller.connection.dataReceived(b"SSH-2.0\r\n\r\n")
    assert caller.transport.disconnected
    assert caller.answers == []
