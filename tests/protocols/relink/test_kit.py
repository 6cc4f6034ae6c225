"""The kit: the rest of it is in tests/conformance."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock

from fyrehose.broker import Broker
from fyrehose.protocols.relink.kit import kit, links_stream, wall_clock
from fyrehose.sequencer import Sequencer
from fyrehose.testing import MemoryJournal


def test_it_writes_its_links_before_it_listens() -> None:
    journal = MemoryJournal(auto=False)
    broker = Broker(Clock(), journal, Sequencer())
    broker.open()
    reactor = MemoryReactorClock()
    service = kit.make_service(reactor, broker, kit.default_endpoint, kit.settings())
    service.startService()
    assert not reactor.tcpServers
    journal.commit()
    assert [server[0] for server in reactor.tcpServers] == [7733]
    assert journal.bounds(links_stream(kit.default_endpoint)) == (1, 1)
    assert service.stopService().called
    assert not reactor.getDelayedCalls()


def test_each_endpoint_has_links_of_its_own() -> None:
    assert links_stream("tcp:1") != links_stream("tcp:2")
    assert "secret.pem" not in links_stream("ssl:1:privateKey=secret.pem")
    assert wall_clock() > 1_700_000_000_000_000
