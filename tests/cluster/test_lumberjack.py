"""Lumberjack's ``resent=drop`` over a take-over: a follower finds in its journal what the lost leader has stored."""

from __future__ import annotations

import json

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.testing import StringTransport

from fyrehose.protocols.lumberjack.frames import Ack, Json, Window
from fyrehose.protocols.lumberjack.server import LumberjackFactory, LumberjackSettings

from .test_member import Cluster, Server

ADDRESS = IPv4Address("TCP", "127.0.0.1", 5000)


class Writer:
    """A connection to a server that leads, which opens its listener of lumberjack for it; each send is a window."""

    def __init__(self, server: Server) -> None:
        factory = LumberjackFactory(server.broker, LumberjackSettings(resent="drop"), server.cluster.clock)
        factory.doStart()
        self.protocol = factory.buildProtocol(ADDRESS)
        self.transport = StringTransport(peerAddress=ADDRESS)
        self.protocol.makeConnection(self.transport)

    def send(self, *events: bytes) -> None:
        frames = b"".join(Json(sequence=n, payload=each).serialize() for n, each in enumerate(events, 1))
        self.protocol.dataReceived(Window(number=len(events)).serialize() + frames)

    @property
    def answer(self) -> bytes:
        return bytes(self.transport.value())


def event(n: int) -> bytes:
    return json.dumps(
        {
            "@timestamp": "2026-01-02T03:04:05.006Z",
            "agent": {"ephemeral_id": "e"},
            "log": {"offset": 100 * n, "file": {"path": "/var/log/x"}},
        }
    ).encode()


def acknowledgement(count: int) -> bytes:
    return Ack(number=count).serialize()


@pytest.mark.parametrize("reached", [True, False])
def test_events_are_stored_once_when_another_server_takes_over(cluster: Cluster, reached: bool) -> None:
    """The second window reached the shared log before the leader was lost, without an acknowledgement, or not."""
    old = cluster.elect("ab")
    first = Writer(old)
    first.send(event(1), event(2))
    cluster.run(1)
    assert first.answer == acknowledgement(2)
    if reached:
        first.send(event(3))
        cluster.run(1)
    cluster.hub.away.add(old.name)
    if not reached:
        first.send(event(3))
    new = cluster.elect_other(old)
    assert new.read("lumberjack") == [event(1), event(2), *([event(3)] if reached else [])]
    again = Writer(new)
    again.send(event(2), event(3), event(4))
    cluster.run(1)
    assert again.answer == acknowledgement(3)
    assert new.read("lumberjack") == [event(n) for n in (1, 2, 3, 4)]
    assert new.broker.counters.counts["lumberjack", "resent-dropped"] == (2 if reached else 1)
