"""The example protocol of docs/adding-a-protocol.md works as the page says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from zope.interface.verify import verifyObject

from fyrehose import plugins
from fyrehose.core.broker import Broker
from fyrehose.core.sequencer import Sequencer
from fyrehose.errors import Broken
from fyrehose.interfaces import IProtocolPlugin
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal, every_chunking, feed

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the folder of examples on sys.path, as the author of a protocol would."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "lines"]:
        del sys.modules[name]


class Transport(StringTransport):
    """A transport with the socket options that the shell sets."""

    def setTcpNoDelay(self, enabled: bool) -> None: ...

    def setTcpKeepAlive(self, enabled: bool) -> None: ...


class Peer:
    """A connection to a server whose commits the test controls."""

    def __init__(self) -> None:
        from fyrehose.net.tcp import TCPSettings
        from lines.server import LineFactory

        self.journal, self.clock = MemoryJournal(auto=False), Clock()
        self.broker = Broker(self.clock, self.journal, Sequencer())
        self.broker.open()
        self.factory = LineFactory(self.broker, TCPSettings(refusal_delay=0.0), self.clock)
        self.transport = Transport()
        self.protocol: Any = self.factory.buildProtocol(self.transport.getPeer())
        self.protocol.makeConnection(self.transport)

    def send(self, data: bytes) -> bytes:
        """Send *data*, commit everything, and return the answer of the server."""
        self.transport.clear()
        self.protocol.dataReceived(data)
        self.journal.commit()
        self.clock.advance(0)
        answer: bytes = self.transport.value()
        return answer

    def disconnect(self) -> None:
        self.protocol.connectionLost()


def test_the_plugin_is_found_by_the_name_of_its_module() -> None:
    plugin = plugins.load("lines.plugin")
    assert verifyObject(IProtocolPlugin, plugin)
    assert plugin.name == "lines"


def test_a_line_is_acknowledged_when_it_is_durable() -> None:
    peer = Peer()
    peer.protocol.dataReceived(b"+log one line\n")
    assert peer.transport.value() == b""
    assert peer.send(b"+log another\n") == b"ok 1\nok 2\n"
    peer.disconnect()


def test_a_subscriber_receives_records_of_every_publisher() -> None:
    peer = Peer()
    peer.broker.publish([Run.of("log", [b"two\nlines", b"\xff"], source="test")])
    assert peer.send(b"?log 0\n") == b"1 9\ntwo\nlines\n2 1\n\xff\n"
    assert peer.send(b"+log live\n") in (b"ok 3\n3 4\nlive\n", b"3 4\nlive\nok 3\n")
    peer.disconnect()


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"hello\n", "line-unknown"),
        (b"\n", "line-unknown"),
        (b"+log\n", "line-unknown"),
        (b"?log one\n", "line-malformed"),
        (b"?log -1\n", "line-malformed"),
        (b"+\xff x\n", "line-malformed"),
        (b"?log 0\n?log 0\n", "subscribed-twice"),
        (b"+log " + b"x" * (64 << 10) + b"\n", "line-too-long"),
        (b"x" * (64 << 10) + b"x", "line-too-long"),
    ],
)
def test_an_invalid_line_closes_the_connection(data: bytes, cause: str) -> None:
    peer = Peer()
    peer.send(data)
    assert peer.broker.counters.counts["lines", cause] == 1
    assert peer.transport.disconnecting
    peer.disconnect()


def test_events_do_not_depend_on_chunking() -> None:
    from lines.session import LineSession

    data = b"+log a\n+other b c\n?log 7\n+ d\nnonsense\n+log never\n"
    events = feed(LineSession(), [data])
    assert isinstance(events[-1], Broken)
    assert len(events) == 5
    for chunks in every_chunking(data):
        made = feed(LineSession(), chunks)
        assert made[:-1] == events[:-1]
        assert made[-1].error.cause == "line-unknown"


def test_an_invalid_stream_name_closes_the_connection() -> None:
    peer = Peer()
    peer.send(b"+ a payload\n")
    assert peer.transport.disconnecting
    peer.disconnect()
