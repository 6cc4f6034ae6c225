"""Test the quotas of a real server with the standard library's HTTP client, from two addresses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest

from tests.live.conftest import PATIENCE, listening

pytestmark = [pytest.mark.live, pytest.mark.slow]

HERE, THERE = "127.0.0.1", "127.0.0.2"


class Server:
    """A server with small quotas, and connections to it."""

    def __init__(self, start: Any, connections: ExitStack, *options: str) -> None:
        words = [word for option in options for word in ("--option", f"server.{option}")]
        self.process = start(*listening("http", "admin"), *words)
        self.connections = connections

    def get(self, path: str, host: str = HERE) -> HTTPResponse:
        """Send a GET on a connection of its own, which stays open until the test ends."""
        port = self.process.port("admin" if path.startswith(("/api", "/metrics")) else "http")
        connection = HTTPConnection("127.0.0.1", port, PATIENCE, (host, 0))
        self.connections.callback(connection.close)
        connection.request("GET", path)
        return connection.getresponse()

    def publish(self, stream: str, host: str = HERE) -> tuple[int, str]:
        """Publish to *stream*; return the status and the error."""
        port = self.process.port("http")
        with closing(HTTPConnection("127.0.0.1", port, PATIENCE, (host, 0))) as connection:
            connection.request("POST", f"/streams/{stream}", b"x")
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()).get("error", "")


@pytest.fixture
def connections() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_one_address_is_limited_in_streams_and_subscriptions(start: Any, connections: ExitStack) -> None:
    server = Server(start, connections, "streams-per-address=2", "subscriptions-per-address=2")
    assert [server.publish(name)[0] for name in ("a", "b", "c")] == [200, 200, 507]
    assert "server.streams-per-address" in server.publish("c")[1]
    assert server.publish("a")[0] == 200
    assert server.publish("c", THERE)[0] == 200

    live = [server.get(f"/streams/{name}/live") for name in "aba"]
    assert [answer.status for answer in live] == [200, 200, 429]
    assert live[2].headers["Retry-After"] == "5"
    assert server.get("/streams/a/live", THERE).status == 200

    status = json.loads(server.get("/api/status").read())
    assert status["subscribers"]["total"] == 3
    assert {(each["cause"], each["count"]) for each in status["refusals"]} == {
        ("TooManyStreamsFromPeer", 2),
        ("TooManySubscriptions", 1),
    }
    subscribers = json.loads(server.get("/api/subscribers?limit=2&page=1").read())
    assert [each["peer"].partition(":")[0] for each in subscribers["listed"]] == [THERE]
    assert b'fyrehose_subscribers{protocol="http"} 3.0' in server.get("/metrics").read()
