"""Check that the example protocol of docs/adding-a-protocol.md works as the page says."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import FakeDatagramTransport, MemoryReactorClock, StringTransport
from zope.interface.verify import verifyObject

from fyrehose import plugins
from fyrehose.broker.broker import Broker
from fyrehose.broker.guard import Guard
from fyrehose.broker.policy import LOOPBACK
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import Broken, Closed, ConfigError
from fyrehose.interfaces import IProtocolPlugin
from fyrehose.records import Run
from fyrehose.testing import ClientSide, MemoryJournal, PluginConformance, every_chunking, feed


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, lines_path: list[Path]) -> Iterator[None]:
    """Put the example on sys.path, as if it were installed."""
    for folder in lines_path:
        monkeypatch.syspath_prepend(str(folder))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "lines"]:
        del sys.modules[name]


PAGE = Path(__file__).parents[2].joinpath("docs", "adding-a-protocol.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.partition("\n")[0])
def test_each_program_of_the_page_imports_what_it_uses(program: str) -> None:
    from lines.session import LineSession

    names: dict[str, object] = {"LineSession": LineSession}
    exec(compile(program, "adding-a-protocol.md", "exec"), names)
    assert names.keys() - {"LineSession", "__builtins__"}


def test_the_service_over_udp_acknowledges_a_datagram_once_it_is_durable() -> None:
    names: dict[str, Any] = {}
    exec(compile(next(each for each in PROGRAMS if "NoteService" in each), "adding-a-protocol.md", "exec"), names)
    journal, reactor = MemoryJournal(auto=False), MemoryReactorClock()
    broker = Broker(reactor, journal, Sequencer(), guard=Guard(LOOPBACK))
    broker.open()
    with pytest.raises(ConfigError, match="invalid --listen notes=tcp:9: expected udp:PORT"):
        names["NoteService"](reactor, broker, "tcp:9")
    protocol = names["NoteService"](reactor, broker, "udp:9:interface=127.0.0.1").protocol
    protocol.transport = FakeDatagramTransport()
    protocol.datagramReceived(b"note", ("127.0.0.1", 7))
    protocol.datagramReceived(b"forbidden", ("192.0.2.1", 7))
    assert protocol.transport.written == []
    journal.commit()
    assert protocol.transport.written == [(b"ok 1\n", ("127.0.0.1", 7))]


class LineServer:
    """A server with one peer; the test decides when publishes become durable."""

    def __init__(self) -> None:
        from fyrehose.net.tcp import TCPSettings
        from lines.server import LineFactory

        self.journal, self.clock = MemoryJournal(auto=False), Clock()
        self.broker = Broker(self.clock, self.journal, Sequencer())
        self.broker.open()
        self.factory = LineFactory(self.broker, TCPSettings(refusal_delay=0.0), self.clock)
        self.peer = ClientSide.connect(self.factory, self.clock)

    def answer(self, data: bytes) -> bytes:
        """Send *data*, make all publishes durable, and return the server's answer."""
        self.peer.send(data)
        self.journal.commit()
        return self.peer.received()


def test_the_plugin_is_found_by_its_entry_point() -> None:
    assert "lines" in plugins.names()
    plugin = plugins.load("lines")
    assert verifyObject(IProtocolPlugin, plugin)
    assert plugin.name == "lines"


def test_a_line_is_acknowledged_when_it_is_durable() -> None:
    server = LineServer()
    server.peer.send(b"+log one line\n")
    assert server.peer.transport.value() == b""
    assert server.answer(b"+log another\n") == b"ok 1\nok 2\n"
    server.peer.leave()


def test_a_subscriber_receives_records_of_every_publisher() -> None:
    server = LineServer()
    server.broker.publish([Run.of("log", [b"two\nlines", b"\xff"], source="test")])
    assert server.answer(b"?log 0\n") == b"1 9\ntwo\nlines\n2 1\n\xff\n"
    assert server.answer(b"+log live\n") in (b"ok 3\n3 4\nlive\n", b"3 4\nlive\nok 3\n")
    server.peer.leave()


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
    server = LineServer()
    server.answer(data)
    assert server.broker.counters.counts["lines", cause] == 1
    assert server.peer.transport.disconnecting
    server.peer.leave()


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
    server = LineServer()
    server.answer(b"+ a payload\n")
    assert server.peer.transport.disconnecting
    server.peer.leave()


def test_events_of_the_client_do_not_depend_on_chunking() -> None:
    from lines.session import LineClientSession, Received, Stored

    data = b"ok 1\n1 3\na\nb\nok 2\n2 0\n\n"
    expected = [Stored(seq=1), Received(seq=1, payload=b"a\nb"), Stored(seq=2), Received(seq=2, payload=b"")]
    for chunks in every_chunking(data):
        assert feed(LineClientSession(), chunks) == expected


@pytest.mark.parametrize("data", [b"no 1\n", b"1 x\n", b"\n", b"1" * 50])
def test_client_refuses_what_no_server_sends(data: bytes) -> None:
    from lines.session import LineClientSession

    (event,) = feed(LineClientSession(), [data])
    assert event.error.cause == "line-unknown"


class LinePair:
    """A client and a server in memory; the test connects and disconnects them."""

    def __init__(self) -> None:
        from lines.client import LineClient

        self.server = LineServer()
        self.server.peer.leave()
        self._factory: Any = None
        self.client = LineClient(self.server.clock, self)  # type: ignore[arg-type]  # it is the endpoint
        self.client.connect()
        self._connect()

    def connect(self, factory: Any) -> Deferred[Any]:
        """Keep *factory*, with which the test makes the connection."""
        self._factory = factory
        return Deferred()

    def reconnect(self) -> None:
        """Connect the client after its delay."""
        self._factory = None
        self.server.clock.advance(10)
        self._connect()

    def _connect(self) -> None:
        self.server.peer = ClientSide.connect(self.server.factory, self.server.clock)
        self.transport = StringTransport()
        self.connection = self._factory.buildProtocol(None)
        self.connection.makeConnection(self.transport)

    def exchange(self, commit: bool = True) -> None:
        """Pass on what both sides have sent."""
        self.server.peer.send(self.transport.value())
        self.transport.clear()
        if commit:
            self.server.journal.commit()
        self.connection.dataReceived(self.server.peer.received())

    def lose(self) -> None:
        self.server.peer.leave()
        self.connection.connectionLost()


def test_client_publishes_and_reads() -> None:
    pair, taken = LinePair(), list[tuple[int, bytes]]()
    first = pair.client.publish("log", b"one")
    assert not first.called
    pair.exchange()
    assert first.result == 1
    pair.lose()
    pair.client.subscribe("log", lambda run: taken.append((run.first_seq, bytes(run.payload))), 0)
    pair.reconnect()
    second = pair.client.publish("log", b"two")
    pair.exchange()
    pair.exchange()
    assert second.result == 2
    assert taken == [(1, b"one"), (2, b"two")]
    pair.lose()


def test_the_client_publishes_again_what_was_not_acknowledged() -> None:
    pair, taken = LinePair(), list[int]()
    pair.lose()
    pair.client.subscribe("log", lambda run: taken.append(run.first_seq), None)
    pair.reconnect()
    lost = pair.client.publish("log", b"one")
    pair.exchange(commit=False)
    pair.lose()
    pair.reconnect()
    pair.exchange()
    pair.exchange()
    assert lost.result == 2  # sent twice, because the server already had it: at least once
    assert taken == [1, 2]
    pair.lose()


def test_client_reports_records_that_are_gone() -> None:
    from lines.session import Received

    pair, gone = LinePair(), list[tuple[int, int]]()
    pair.lose()
    pair.client.subscribe("log", lambda run: None, 3, lambda first, last: gone.append((first, last)))
    pair.client.handle(Received(seq=4, payload=b""))
    pair.client.handle(Received(seq=9, payload=b""))
    assert gone == [(5, 8)]


def test_client_waits_for_room_in_its_window() -> None:
    pair = LinePair()
    pair.client.window = 1
    stored = pair.client.publish("log", b"one")
    room = pair.client.ready()
    assert not room.called
    pair.exchange()
    assert (stored.result, room.called) == (1, True)
    pair.lose()


def test_publishes_of_a_closed_client_fail() -> None:
    pair = LinePair()
    stored = pair.client.publish("log", b"one")
    pair.client.close()
    assert isinstance(stored.result.value, Closed)
    stored.addErrback(lambda failure: None)
    pair.lose()


@pytest.mark.parametrize("stream", [None, "", "a b", "a\nb"])
def test_the_client_refuses_stream_names_that_the_protocol_cannot_carry(stream: str | None) -> None:
    with pytest.raises(ConfigError, match="without spaces"):
        LinePair().client.prepare(stream)


class TestLinesPlugin(PluginConformance):
    plugin_name = "lines"
