"""Figg clients of ``fyrehose publish`` and ``fyrehose tail``."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure
from zope.interface.verify import verifyObject

from fyrehose.errors import ConfigError
from fyrehose.interfaces import IClients, IPublisher, ITailer
from fyrehose.protocols.figg import cli
from fyrehose.protocols.figg.frames import Ack, Attach, Attached, Data, Publish
from fyrehose.records import Run


def accept(reactor: MemoryReactorClock) -> tuple[Any, StringTransport]:
    """Accept the pending connection attempt."""
    reactor.advance(0)
    host, port, factory, _, _ = reactor.tcpClients.pop()
    assert (host, port) == ("127.0.0.1", 8119)
    protocol, transport = factory.buildProtocol(None), StringTransport()
    protocol.makeConnection(transport)
    return protocol, transport


def lose(protocol: Any) -> None:
    protocol.connectionLost(Failure(ConnectionDone()))


def test_cli_module_provides_IClients() -> None:
    assert verifyObject(IClients, cli)
    assert cli.default_port == 8119


@pytest.mark.parametrize(
    "make",
    [
        lambda reactor: cli.publisher(reactor, "h", 1, None, 1),
        lambda reactor: cli.tailer(reactor, "h", 1, None, 0, print, print),
    ],
)
def test_missing_stream_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match="--stream NAME"):
        make(MemoryReactorClock())


def test_publisher_respects_its_window_and_publishes_to_its_topic() -> None:
    reactor = MemoryReactorClock()
    publisher = cli.publisher(reactor, "127.0.0.1", 8119, "t", 1)
    assert verifyObject(IPublisher, publisher)
    connected = publisher.connect()
    protocol, transport = accept(reactor)
    assert connected.called
    first, second = publisher.publish(b"a"), publisher.publish(b"b")
    ready = publisher.ready()
    reactor.advance(0)
    assert transport.value() == Publish(topic="t", number=1, data=b"a").serialize()
    protocol.dataReceived(Ack(number=1).serialize())
    reactor.advance(0)
    protocol.dataReceived(Ack(number=2).serialize())
    assert first.called
    assert second.called
    assert ready.called
    closed = publisher.close()
    lose(protocol)
    assert closed.called


def test_tailer_delivers_runs_and_reports_expired_offsets() -> None:
    reactor = MemoryReactorClock()
    taken: list[Run] = []
    lost: list[tuple[int, int]] = []
    tailer = cli.tailer(
        reactor, "127.0.0.1", 8119, "t", 3, taken.append, lambda first, last: lost.append((first, last))
    )
    assert verifyObject(ITailer, tailer)
    tailer.connect()
    protocol, transport = accept(reactor)
    assert transport.value() == Attach(topic="t", offset=3).serialize()
    tailer.pause()
    assert transport.producerState == "paused"
    tailer.resume()
    assert transport.producerState == "producing"
    said = [Attached(topic="t", offset=7), *(Data(topic="t", number=n, data=b"%d" % n) for n in (8, 9))]
    protocol.dataReceived(b"".join(frame.serialize() for frame in said))
    assert lost == [(4, 7)]
    assert [(run.stream, record.seq, record.payload) for run in taken for record in run.records()] == [
        ("t", 8, b"8"),
        ("t", 9, b"9"),
    ]
    closed = tailer.close()
    lose(protocol)
    assert closed.called


def test_tailer_reports_no_loss_if_it_starts_at_the_requested_offset() -> None:
    reactor = MemoryReactorClock()
    lost: list[Any] = []
    for after in (None, 7):
        tailer = cli.tailer(reactor, "127.0.0.1", 8119, "t", after, print, lambda *gap: lost.append(gap))
        tailer.connect()
        protocol, _ = accept(reactor)
        protocol.dataReceived(Attached(topic="t", offset=7).serialize())
        tailer.close()
        lose(protocol)
    assert lost == []
