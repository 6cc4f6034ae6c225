"""Lumberjack's ``resent=drop`` over a take-over: a follower finds in its journal what the lost leader has stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import attrs
import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.cluster.replicated import replicated
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.journal.commit import InlineWorker
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.protocols.lumberjack.frames import Ack, Json, Window
from fyrehose.protocols.lumberjack.server import LumberjackFactory, LumberjackSettings
from tests.doubles.shared_log import Hub

ADDRESS = IPv4Address("TCP", "127.0.0.1", 5000)


@attrs.define(eq=False)
class Server:
    """One server of a cluster, with a listener of lumberjack that opens when it leads."""

    clock: Clock
    hub: Hub
    directory: Path
    journal: FileJournal = attrs.field(init=False)
    broker: Broker = attrs.field(init=False)
    factory: LumberjackFactory = attrs.field(init=False)
    leads: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        name = self.directory.name
        self.journal = replicated(
            self.clock,
            self.directory,
            JournalSettings(segment_size=1 << 16, min_free=0),
            worker=InlineWorker(),
            replication=ReplicationSettings(servers=("nats://x:1",), name=name, members=2),
            shared_log=self.hub.log(name),
            incarnation=ord(name),
        )
        self.broker = Broker(self.clock, self.journal, Sequencer())
        self.broker.open()
        self.factory = LumberjackFactory(self.broker, LumberjackSettings(resent="drop"), self.clock)
        self.broker.when_leading().addCallback(self._open)

    def _open(self, _: None) -> None:
        self.leads = True
        self.factory.doStart()

    def connect(self) -> Writer:
        return Writer(self)

    def payloads(self) -> list[bytes]:
        return [bytes(each) for run in self.journal.read("lumberjack", 1, 1 << 20) for each in run.payloads()]


class Writer:
    """A connection to a server; each send is a window."""

    def __init__(self, server: Server) -> None:
        self.protocol = server.factory.buildProtocol(ADDRESS)
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


def pass_time(clock: Clock, seconds: float, until: Server | None = None) -> None:
    """Advance *clock* by *seconds*, or until *until* leads."""
    for _ in range(int(seconds * 100)):
        clock.advance(0.01)
        if until is not None and until.leads:
            return
    assert until is None, "the server does not lead"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    """Two servers; the first leads."""
    clock = Clock()
    hub = Hub(clock, Random(1))
    made = [Server(clock, hub, tmp_path / "a")]
    pass_time(clock, 20, made[0])
    made.append(Server(clock, hub, tmp_path / "b"))
    pass_time(clock, 1)
    yield made
    hub.away.clear()
    for server in made:
        closed: list[None] = []
        server.broker.close().addBoth(closed.append)
        pass_time(clock, 10)
        assert closed == [None]


@pytest.mark.parametrize("reached", [True, False])
def test_events_are_stored_once_when_another_server_takes_over(servers: list[Server], reached: bool) -> None:
    """The second window reached the shared log before the leader was lost, without an acknowledgement, or not."""
    old, new = servers
    first = old.connect()
    first.send(event(1), event(2))
    pass_time(old.clock, 1)
    assert first.answer == acknowledgement(2)
    if reached:
        first.send(event(3))
        pass_time(old.clock, 1)
    old.hub.away.add("a")
    if not reached:
        first.send(event(3))
    pass_time(old.clock, 30, new)
    assert new.payloads() == [event(1), event(2), *([event(3)] if reached else [])]
    again = new.connect()
    again.send(event(2), event(3), event(4))
    pass_time(new.clock, 1)
    assert again.answer == acknowledgement(3)
    assert new.payloads() == [event(n) for n in (1, 2, 3, 4)]
    assert new.broker.counters.counts["lumberjack", "resent-dropped"] == (2 if reached else 1)
