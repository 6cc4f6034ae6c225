"""Relink's links over a take-over: transactions count exactly once, whatever the old leader has acknowledged."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.cluster.replicated import replicated
from fyrehose.cluster.role import State
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.interfaces import JournalState
from fyrehose.journal.commit import InlineWorker
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.protocols.relink.frames import Hello, Op, Terms
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.registry import Registry
from fyrehose.protocols.relink.service import RelinkFactory
from fyrehose.protocols.relink.session import ConnectorSession
from fyrehose.protocols.relink.settings import RelinkSettings
from fyrehose.records import Run
from tests.doubles.shared_log import Hub

TERMS = Terms(endpoint="publish:s", connector_size=1, connector_transactions=True)


@attrs.define(eq=False)
class Server:
    """One server of a cluster, with a listener of Relink that opens when it leads."""

    clock: Clock
    hub: Hub
    directory: Path
    incarnation: int
    journal: FileJournal = attrs.field(init=False)
    broker: Broker = attrs.field(init=False)
    registry: Registry = attrs.field(init=False)
    factory: RelinkFactory | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        name = self.directory.name
        self.journal = replicated(
            self.clock,
            self.directory,
            JournalSettings(segment_size=1 << 16, min_free=0),
            worker=InlineWorker(),
            replication=ReplicationSettings(servers=("nats://x:1",), name=name, members=2),
            shared_log=self.hub.log(name),
            incarnation=self.incarnation,
        )
        self.broker = Broker(self.clock, self.journal, Sequencer())
        self.broker.open()
        settings = RelinkSettings(refusal_delay=0.0)
        self.registry = Registry(self.broker, self.clock, settings, ".relink/x")

        def opened(_: None) -> None:
            self.factory = RelinkFactory(self.broker, settings, self.clock, self.registry)

        self.broker.when_leading().addCallback(lambda _: self.registry.open()).addCallback(opened)

    def connect(self, old: Link | None = None, terms: Terms = TERMS) -> tuple[ConnectorSession, Any, StringTransport]:
        """Return a connector that resumes the link *old*, or begins one."""
        assert self.factory is not None
        address = IPv4Address("TCP", "127.0.0.1", 5000)
        hello = Hello(terms=terms, require=False, epoch=old.epoch if old else 0, link_id=old.id if old else 0)
        session = ConnectorSession(link=old, hello=hello, new_link=lambda epoch, id_: Link(terms, True, epoch, id_))
        protocol, transport = self.factory.buildProtocol(address), StringTransport(peerAddress=address)
        protocol.makeConnection(transport)
        return session, protocol, transport

    def payloads(self) -> list[bytes]:
        return [record.payload for run in self.journal.read("s", 1, 1 << 20) for record in run.records()]


@pytest.fixture
def servers(tmp_path: Path) -> Any:
    """Two servers; the first leads."""
    clock = Clock()
    hub = Hub(clock, Random(1))
    made = [Server(clock, hub, tmp_path / "a", 1)]
    pass_time(clock, 20, made[0])
    made.append(Server(clock, hub, tmp_path / "b", 2))
    pass_time(clock, 1)
    yield made
    hub.away.clear()
    for server in made:
        server.registry.close()
        closed: list[Any] = []
        server.broker.close().addBoth(closed.append)
        pass_time(clock, 10)
        assert closed == [None]


def pass_time(clock: Clock, seconds: float, until: Server | None = None) -> None:
    """Advance *clock* by *seconds*, or until *until* has opened its listener."""
    for _ in range(int(seconds * 100)):
        clock.advance(0.01)
        if until is not None and until.factory is not None:
            return
    assert until is None, "the server does not lead"


def talk(clock: Clock, session: ConnectorSession, protocol: Any, transport: StringTransport) -> list[Any]:
    """Exchange bytes for a second; return the events of the connector."""
    events: list[Any] = []
    for _ in range(100):
        if sent := b"".join(session.data_to_send()):
            protocol.dataReceived(sent)
        clock.advance(0.01)
        events += session.receive_data(transport.value())
        transport.clear()
    return events


@pytest.mark.parametrize("reached", [True, False])
def test_transactions_count_once_when_another_server_takes_over(servers: list[Server], reached: bool) -> None:
    """The second transaction reached the shared log before the leader was lost, without an acknowledgement, or not."""
    old, new = servers
    clock = old.clock
    peer = old.connect()
    talk(clock, *peer)
    link = peer[0].link
    assert link is not None
    for payload in (b"1", b"2", b"3"):
        link.send((0,), (payload,))
    link.decide(0, Op.COMMIT, 0)
    link.decide(0, Op.ROLLBACK, 1)
    talk(clock, *peer)
    assert old.payloads() == [b"1"]
    assert new.factory is None
    link.decide(0, Op.COMMIT, 2)
    if not reached:
        old.hub.away.add("a")
    peer[1].dataReceived(b"".join(peer[0].data_to_send()))
    if reached:
        pass_time(clock, 1)
        assert old.payloads() == [b"1", b"3"]
        old.hub.away.add("a")
    pass_time(clock, 30, new)
    assert new.journal.state is JournalState.WRITABLE
    assert new.payloads() == ([b"1", b"3"] if reached else [b"1"])
    peer[0].receive_eof()
    again = new.connect(link)
    events = talk(clock, *again)
    assert events[0].resumed
    assert new.payloads() == [b"1", b"3"]
    assert link.sending[0].base == 3


@pytest.mark.parametrize("suspended", [True, False])
def test_a_server_that_may_not_lead_any_more_makes_no_links(servers: list[Server], suspended: bool) -> None:
    """Otherwise a subscriber with a link at the new leader would lose that link, and get every message again."""
    old, new = servers
    old.hub.away.add("a")
    old.broker.publish([Run.of("s", [b"never confirmed"], source="t")]).addErrback(lambda failure: None)
    if suspended:
        pass_time(old.clock, 8)
        assert old.journal.state is JournalState.READ_ONLY
    peer = old.connect(terms=Terms(endpoint="subscribe:s@0", listener_size=1))
    talk(old.clock, *peer)
    pass_time(old.clock, 30, new)
    old.hub.away.clear()
    talk(old.clock, *peer)
    pass_time(old.clock, 5)
    talk(old.clock, *peer)
    assert old.journal.gate.cluster.role.state is State.FOLLOWER
    assert peer[0].link is None
