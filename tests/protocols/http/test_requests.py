"""A connection of a client: what it does with answers that are no HTTP, or that close the connection."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.testing import StringTransport

from fyrehose.protocols.http import requests
from fyrehose.protocols.http.requests import MOST_DETAIL, Connection, ServerAnswer


class Caller:
    """Sends requests, and notes their answers."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.connection = Connection(None, "h:1")
        self.transport = StringTransport()
        self.connection.makeConnection(self.transport)  # type: ignore[no-untyped-call]

    def ask(self) -> None:
        self.connection.ask("GET", "/").addCallback(self.note)

    def note(self, answer: ServerAnswer) -> None:
        self.answers.append(answer)


def test_an_answer_that_ends_the_connection_closes_it() -> None:
    caller = Caller()
    caller.ask()
    assert not caller.connection.idle
    caller.connection.dataReceived(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi")
    assert caller.answers == [ServerAnswer(200, b"hi")]
    assert caller.transport.disconnecting
    assert not caller.connection.idle


def test_a_long_reason_is_shown_in_part() -> None:
    caller = Caller()
    caller.ask()
    caller.connection.dataReceived(b"HTTP/1.1 500 X\r\nContent-Length: 9999\r\n\r\n" + b"x" * 9_999)
    (answer,) = caller.answers
    assert (answer.status, answer.detail) == (500, "x" * MOST_DETAIL)
    assert caller.connection.idle


def test_reason_is_the_error_of_an_object_and_otherwise_the_whole_body() -> None:
    for body, reason in ((b'{"error": "no room"}', "no room"), (b"[1]", "[1]"), (b"[" * 5_000, "[" * MOST_DETAIL)):
        assert ServerAnswer(500, body).detail == reason


def test_an_answer_that_is_too_large_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "LARGEST", 10)
    caller = Caller()
    caller.ask()
    caller.connection.dataReceived(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n" + b"x" * 11)
    assert (caller.answers, caller.transport.disconnected) == ([], True)


def test_connection_to_a_server_that_does_not_speak_http_is_closed() -> None:
    caller = Caller()
    caller.ask()
    caller.connection.dataReceived(b"SSH-2.0\r\n\r\n")
    assert caller.transport.disconnected
    assert caller.answers == []
