"""Relink's links over a take-over: transactions count exactly once, whatever the old leader has acknowledged."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.testing import StringTransport

from fyrehose.cluster.role import State
from fyrehose.interfaces import JournalState
from fyrehose.protocols.relink.frames import Hello, Op, Terms
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.registry import Registry
from fyrehose.protocols.relink.service import RelinkFactory
from fyrehose.protocols.relink.session import ConnectorSession
from fyrehose.protocols.relink.settings import RelinkSettings

from .test_member import Cluster, Server

ADDRESS = IPv4Address("TCP", "127.0.0.1", 5000)
TERMS = Terms(endpoint="publish:s", connector_size=1, connector_transactions=True)


@attrs.define(eq=False)
class Connector:
    """A connector of Relink at a server that leads, which opens its listener for it.

    :ivar old: the link that the connector resumes; None: it begins one
    """

    server: Server
    old: Link | None = None
    terms: Terms = TERMS
    registry: Registry = attrs.field(init=False)
    factory: RelinkFactory = attrs.field(init=False)
    session: ConnectorSession = attrs.field(init=False)
    protocol: Any = attrs.field(init=False)
    transport: StringTransport = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        cluster, broker, settings = self.server.cluster, self.server.broker, RelinkSettings(refusal_delay=0.0)
        self.registry = Registry(broker, cluster.clock, settings, ".relink/x")
        self.factory = RelinkFactory(broker, settings, cluster.clock, self.registry)
        opened: list[Any] = []
        self.registry.open().addBoth(opened.append)
        cluster.run(10, until=lambda: bool(opened))
        assert opened == [None], opened

    def connect(self) -> None:
        old = self.old
        hello = Hello(terms=self.terms, require=False, epoch=old.epoch if old else 0, link_id=old.id if old else 0)
        self.session = ConnectorSession(
            link=old, hello=hello, new_link=lambda epoch, id_: Link(self.terms, True, epoch, id_)
        )
        self.protocol = self.factory.buildProtocol(ADDRESS)
        self.transport = StringTransport(peerAddress=ADDRESS)
        self.protocol.makeConnection(self.transport)

    def talk(self) -> list[Any]:
        """Exchange bytes for a second; return the events of the connector."""
        events: list[Any] = []
        for _ in range(100):
            if sent := b"".join(self.session.data_to_send()):
                self.protocol.dataReceived(sent)
            self.server.cluster.run(0.01)
            events += self.session.receive_data(self.transport.value())
            self.transport.clear()
        return events


@pytest.mark.parametrize("reached", [True, False])
def test_transactions_count_once_when_another_server_takes_over(cluster: Cluster, reached: bool) -> None:
    """The second transaction reached the shared log before the leader was lost, without an acknowledgement, or not."""
    old = cluster.elect("ab")
    peer = Connector(old)
    peer.connect()
    peer.talk()
    link = peer.session.link
    assert link is not None
    for payload in (b"1", b"2", b"3"):
        link.send((0,), (payload,))
    link.decide(0, Op.COMMIT, 0)
    link.decide(0, Op.ROLLBACK, 1)
    peer.talk()
    assert old.read() == [b"1"]
    link.decide(0, Op.COMMIT, 2)
    if not reached:
        cluster.hub.away.add(old.name)
    peer.protocol.dataReceived(b"".join(peer.session.data_to_send()))
    if reached:
        cluster.run(1)
        assert old.read() == [b"1", b"3"]
        cluster.hub.away.add(old.name)
    new = cluster.elect_other(old)
    assert new.read() == ([b"1", b"3"] if reached else [b"1"])
    peer.session.receive_eof()
    peer.registry.close()
    again = Connector(new, link)
    again.connect()
    events = again.talk()
    assert events[0].resumed
    assert new.read() == [b"1", b"3"]
    assert link.sending[0].base == 3
    again.registry.close()


@pytest.mark.parametrize("suspended", [True, False])
def test_a_server_that_may_not_lead_any_more_makes_no_links(cluster: Cluster, suspended: bool) -> None:
    """Otherwise a subscriber with a link at the new leader would lose that link, and get every message again."""
    old = cluster.elect("ab")
    peer = Connector(old, terms=Terms(endpoint="subscribe:s@0", listener_size=1))
    cluster.hub.away.add(old.name)
    old.publish(b"never confirmed")
    if suspended:
        cluster.run(8)
        assert old.journal.state is JournalState.READ_ONLY
    peer.connect()
    peer.talk()
    cluster.elect_other(old)
    cluster.hub.away.clear()
    peer.talk()
    cluster.run(5)
    peer.talk()
    assert old.role is State.FOLLOWER
    assert peer.session.link is None
    peer.registry.close()
