"""A client with several servers goes from one to the next, and to the leader that one of them names."""

from __future__ import annotations

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.error import ConnectingCancelledError
from twisted.internet.protocol import Factory

from fyrehose.net.several import AnyServer, follow_leader, servers_of


@attrs.define(eq=False)
class FakeEndpoint:
    """An endpoint that notes each attempt."""

    name: str
    tried: list[str]
    up: bool = True
    waits: bool = False

    def connect(self, factory: Factory) -> Deferred[str]:
        self.tried.append(self.name)
        if self.waits:
            return Deferred(lambda cancelled: cancelled.errback(ConnectingCancelledError(None)))  # as Twisted's do
        return succeed(self.name) if self.up else fail(ConnectionRefusedError(self.name))


def made(*names: str, down: str = "", addresses: tuple[str, ...] = ()) -> tuple[AnyServer, list[str]]:
    tried: list[str] = []
    return AnyServer([FakeEndpoint(name, tried, name not in down) for name in names], addresses), tried


def connected(servers: AnyServer) -> list[object]:
    found: list[object] = []
    servers.connect(Factory()).addErrback(lambda failure: failure.value).addCallback(found.append)
    return found


def test_each_attempt_connects_to_the_next_server() -> None:
    servers, _ = made("a", "b", "c")
    assert [connected(servers) for _ in range(4)] == [["a"], ["b"], ["c"], ["a"]]


def test_a_server_that_cannot_be_reached_is_passed_over() -> None:
    servers, tried = made("a", "b", "c", down="ab")
    assert connected(servers) == ["c"]
    assert tried == ["a", "b", "c"]


def test_an_attempt_fails_after_each_server_was_tried_once() -> None:
    servers, tried = made("a", "b", down="ab")
    (error,) = connected(servers)
    assert isinstance(error, ConnectionRefusedError)
    assert tried == ["a", "b"]


def test_a_cancelled_attempt_tries_no_further_server() -> None:
    tried: list[str] = []
    attempt = AnyServer([FakeEndpoint("a", tried, waits=True), FakeEndpoint("b", tried)]).connect(Factory())
    ended: list[type] = []
    attempt.addErrback(lambda failure: ended.append(failure.type))
    attempt.cancel()
    assert (ended, tried) == ([CancelledError], ["a"])


@pytest.mark.parametrize("url", ["http://10.0.0.3:8117/streams/s", "https://Host.test:9", "http://[::1]:7/"])
def test_the_next_attempt_connects_to_the_leader_that_a_server_has_named(url: str) -> None:
    servers, tried = made("a", "b", "c", "d", addresses=("10.0.0.1:8117", "Host.Test:9", "10.0.0.3:8117", "[::1]:7"))
    assert follow_leader(servers, url)
    connected(servers)
    assert tried == [{"10": "c", "ho": "b", "[:": "d"}[url.split("//")[1][:2].lower()]]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://10.0.0.9:8117/",
        "http://10.0.0.1:22/",
        "http://10.0.0.1/",
        "http://10.0.0.1:x/",
        "//[",
        "http://a@b:1",
    ],
)
def test_an_address_that_was_not_given_is_never_connected_to(url: str) -> None:
    servers, tried = made("a", "b", addresses=("10.0.0.1:8117", "10.0.0.2:8117"))
    assert not follow_leader(servers, url)
    connected(servers)
    assert tried == ["a"]


def test_a_round_through_all_servers_counts_as_one_failed_attempt() -> None:
    assert servers_of(made("a", "b", "c")[0]) == 3
    assert servers_of(FakeEndpoint("a", [])) == 1


def test_servers_need_endpoints_and_an_address_for_each() -> None:
    with pytest.raises(ValueError, match="at least one endpoint"):
        AnyServer([])
    with pytest.raises(ValueError, match="an address for each"):
        made("a", "b", addresses=("x:1",))
