"""Who is sent away, and who is not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from fyrehose.policy import Action, Identity
from fyrehose.protocols.eventbus.connections import REMEMBERED, Connections

PUBLISH, SUBSCRIBE = Action.PUBLISH, Action.SUBSCRIBE


class Pair:
    """A connection over loopback."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.listening = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.port = self.listening.getsockname()[1]
        self.client = socket.create_connection((host, self.port), timeout=10)
        self.server, _ = self.listening.accept()

    @property
    def lost(self) -> bool:
        self.client.setblocking(False)
        try:
            return self.client.recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def connect() -> Iterator[Any]:
    made: list[Pair] = []

    def connecting(*args: Any) -> Pair:
        made.append(Pair(*args))
        return made[-1]

    yield connecting
    for pair in made:
        for end in (pair.listening, pair.client, pair.server):
            end.close()


def speaks_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


HOSTS = [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "::ffff:127.0.0.1"), *([("::1", "::1")] if speaks_ipv6() else [])]


@pytest.mark.parametrize(("host", "said"), HOSTS)
def test_who_may_not_be_here_any_more_is_sent_away(connect: Any, host: str, said: str) -> None:
    pair, peers = connect(host), Connections()
    peers.accepted(pair.server.fileno())
    peers.admit(Identity(host=said), PUBLISH)
    peers.admit(Identity(host=said), SUBSCRIBE)
    assert peers.part(lambda identity, action: True, [pair.port]) == 0
    assert not pair.lost
    assert peers.part(lambda identity, action: action is SUBSCRIBE, [pair.port]) == 1
    assert pair.lost
    peers.disconnected(pair.server.fileno())
    assert peers.count == 0
    assert peers.part(lambda identity, action: action is SUBSCRIBE, [pair.port]) == 0, "it is known no more"


def test_others_stay(connect: Any) -> None:
    ours, not_ours, gone = connect(), connect(), connect()
    peers = Connections()
    for pair in (ours, not_ours, gone):
        peers.accepted(pair.server.fileno())
    gone.server.close()
    peers.accepted(100_000)
    peers.admit(Identity(host="10.0.0.1"), PUBLISH)
    assert peers.part(lambda *_: False, [ours.port, gone.port]) == 0, "nobody is here from there"
    peers.admit(Identity(host="127.0.0.1"), PUBLISH)
    assert peers.part(lambda *_: False, [ours.port, gone.port]) == 1
    assert (ours.lost, not_ours.lost) == (True, False)


def test_a_descriptor_that_is_a_file_by_now(connect: Any, tmp_path: Any) -> None:
    peers = Connections()
    with tmp_path.joinpath("file").open("w") as file:
        peers.accepted(file.fileno())
        peers.admit(Identity(), PUBLISH)
        assert peers.part(lambda *_: False, [1]) == 0
        file.write("still open")


def test_those_that_are_too_many_to_be_remembered_are_judged_again_all(connect: Any) -> None:
    pair, peers = connect(), Connections()
    peers.accepted(pair.server.fileno())
    peers.admit(Identity(), PUBLISH)
    for n in range(REMEMBERED):
        peers.admit(Identity(host=f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"), PUBLISH)
    assert len(peers._admitted) == REMEMBERED
    assert peers.part(lambda *_: True, [pair.port]) == 1
    assert pair.lost
