"""Lumberjack's client: batches, windows, resending and load balancing over one or several servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionDone
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from zope.interface import implementer
from zope.interface.verify import verifyObject

from fyrehose import plugins
from fyrehose.errors import Closed, ConfigError, LocalProtocolError
from fyrehose.interfaces import IClientPlugin, IPublisher
from fyrehose.net.clients import ClientTarget
from fyrehose.protocols.lumberjack.client import LUMBERJACK_OPTIONS, LumberjackClient, to_document
from fyrehose.protocols.lumberjack.frames import MAX_EVENT, SHORT, Ack
from fyrehose.testing import Transport

Make = Callable[..., Any]
RETRIES = attrs.evolve(LUMBERJACK_OPTIONS, retry=lambda failures: 1.0)


@implementer(IStreamClientEndpoint)
@attrs.define(eq=False)
class Endpoint:
    """An endpoint that accepts one connection after the other, or refuses them."""

    protocols: list[Any] = attrs.field(factory=list)
    refuses: bool = False

    def connect(self, factory: Any) -> Deferred[Any]:
        connected: Deferred[Any] = Deferred()
        if self.refuses:
            connected.errback(ConnectError())
            return connected
        protocol = factory.buildProtocol(None)
        protocol.makeConnection(Transport())
        self.protocols.append(protocol)
        connected.callback(protocol)
        return connected

    @property
    def wire(self) -> bytes:
        """Return the bytes sent on the last connection since the previous call."""
        transport = self.protocols[-1].transport
        data: bytes = transport.value()
        transport.clear()
        return data

    def acknowledges(self, *numbers: int) -> None:
        for number in numbers:
            self.protocols[-1].dataReceived(Ack(number=number).serialize())

    def lose(self) -> None:
        self.protocols[-1].connectionLost(Failure(ConnectionDone()))


def make(*endpoints: Endpoint, **options: Any) -> tuple[LumberjackClient, Clock]:
    clock = Clock()
    options = {"compression": 0, "connection_options": RETRIES, **options}
    return LumberjackClient(clock, list(endpoints), **options), clock


def docs(count: int) -> list[bytes]:
    return [b'{"n":%d}' % n for n in range(count)]


def windows(data: bytes) -> list[int]:
    """Return the sizes of the uncompressed windows in *data*."""
    found, at = [], 0
    while at < len(data):
        if data[at + 1 : at + 2] == b"W":
            found.append(SHORT.unpack_from(data, at)[2])
            at += 6
        else:
            at += 10 + int.from_bytes(data[at + 6 : at + 10], "big")
    return found


def connected(*endpoints: Endpoint, **options: Any) -> tuple[LumberjackClient, Clock]:
    client, clock = make(*endpoints, **options)
    done: list[object] = []
    client.connect().addBoth(done.append)
    assert done == [None]
    return client, clock


def test_batch_fires_when_all_its_events_are_acknowledged() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint)
    done = client.publish_many(docs(3))
    assert endpoint.wire == b"", "batches of one turn are sent together"
    clock.advance(0)
    assert windows(endpoint.wire) == [3]
    endpoint.acknowledges(0, 2)
    assert not done.called
    endpoint.acknowledges(3)
    assert done.called
    assert client.publish_many([]).called
    client.close()


def test_small_batches_share_a_window_and_large_ones_are_split() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint, window=4, pipelining=3)
    batches = [client.publish_many(docs(count)) for count in (1, 2, 6)]
    clock.advance(0)
    assert windows(endpoint.wire) == [4, 4, 1]
    endpoint.acknowledges(4)
    assert [batch.called for batch in batches] == [True, True, False]
    endpoint.acknowledges(4, 1)
    assert batches[2].called
    client.close()


def test_window_bytes_limits_windows_of_several_events() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint, window_bytes=10, pipelining=9)
    done = client.publish_many([b"x" * 30, b"12345", b"12345", b"1"])
    clock.advance(0)
    assert windows(endpoint.wire) == [1, 2, 1]
    endpoint.acknowledges(1, 2, 1)
    assert done.called
    client.close()


def test_pipelining_limits_unacknowledged_windows() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint, window=1, pipelining=2)
    client.publish_many(docs(5))
    clock.advance(0)
    assert windows(endpoint.wire) == [1, 1]
    endpoint.acknowledges(1)
    clock.advance(0)
    assert windows(endpoint.wire) == [1]
    endpoint.acknowledges(1, 1)
    clock.advance(0)
    endpoint.acknowledges(1, 1)
    client.close()


def test_unacknowledged_events_are_resent_in_order() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint, window=3)
    first, second = client.publish_many(docs(5)), client.publish_many([b"last"])
    clock.advance(0)
    endpoint.acknowledges(2)
    before = endpoint.wire
    endpoint.lose()
    clock.advance(1)
    clock.advance(0)
    assert len(endpoint.protocols) == 2
    again = endpoint.wire
    assert windows(again) == [3, 1]
    assert again.index(b'{"n":2}') < again.index(b'{"n":3}') < again.index(b'{"n":4}') < again.index(b"last")
    assert b'{"n":1}' not in again, "acknowledged events are not resent"
    assert b'{"n":1}' in before
    endpoint.acknowledges(3)
    assert first.called
    endpoint.acknowledges(1)
    assert second.called
    client.close()


def test_windows_go_to_the_server_with_the_fewest_unacknowledged() -> None:
    one, two = Endpoint(), Endpoint()
    client, clock = connected(one, two, window=1, pipelining=2)
    done = client.publish_many(docs(6))
    clock.advance(0)
    assert (windows(one.wire), windows(two.wire)) == ([1, 1], [1, 1])
    one.acknowledges(1)
    clock.advance(0)
    assert (windows(one.wire), windows(two.wire)) == ([1], [])
    two.acknowledges(1)
    clock.advance(0)
    assert (windows(one.wire), windows(two.wire)) == ([], [1])
    one.acknowledges(1, 1)
    two.acknowledges(1, 1)
    assert done.called
    client.close()


def test_events_of_a_lost_connection_are_resent_to_another_server() -> None:
    one, two = Endpoint(), Endpoint()
    client, clock = connected(one, two, window=1, pipelining=1)
    done = client.publish_many(docs(2))
    clock.advance(0)
    assert (windows(one.wire), windows(two.wire)) == ([1], [1])
    one.refuses = True
    one.lose()
    two.acknowledges(1)
    clock.advance(0)
    assert windows(two.wire) == [1]
    two.acknowledges(1)
    assert done.called
    client.close()


def test_client_retries_until_the_server_is_available() -> None:
    endpoint = Endpoint(refuses=True)
    client, clock = make(endpoint)
    states: list[bool] = []
    client.on_server = lambda where, up: states.append(up)
    ready = client.connect()
    done = client.publish_many(docs(1))
    clock.advance(0)
    assert not ready.called
    endpoint.refuses = False
    clock.advance(1)
    assert ready.called
    clock.advance(0)
    endpoint.acknowledges(1)
    assert done.called
    endpoint.lose()
    assert states == [True, False]
    client.close()


def test_silent_server_is_disconnected_after_the_timeout() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint)
    clock.advance(100)
    client.publish_many(docs(1))
    clock.advance(0)
    transport = endpoint.protocols[-1].transport
    clock.advance(29)
    endpoint.acknowledges(0)
    clock.advance(29)
    assert not transport.aborted, "A 0 restarts the timeout"
    clock.advance(2)
    assert transport.aborted
    endpoint.lose()
    clock.advance(1)
    clock.advance(0)
    assert windows(endpoint.wire) == [1]
    endpoint.acknowledges(1)
    assert [call for call in clock.getDelayedCalls() if call.getTime() > clock.seconds()] == []
    client.close()


def test_ready_fires_with_room_and_flush_when_all_is_acknowledged() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint, window=2, pipelining=1)
    assert client.ready().called
    assert client.flush().called
    client.publish_many(docs(2))
    ready, flushed = client.ready(), client.flush()
    assert not ready.called
    clock.advance(0)
    endpoint.acknowledges(1)
    assert ready.called
    assert not flushed.called
    endpoint.acknowledges(2)
    assert flushed.called
    client.close()


def test_publish_is_refused_beyond_max_pending_bytes() -> None:
    client, _ = make(Endpoint(refuses=True), max_pending_bytes=10)
    client.publish_many([b"x" * 20]).addErrback(lambda failure: failure.trap(Closed))
    with pytest.raises(LocalProtocolError, match="ready"):
        client.publish_many([b"x"])
    client.close()


def test_close_fails_unacknowledged_publishes() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint)
    done = client.publish_many(docs(2))
    clock.advance(0)
    waiting = client.publish_many(docs(1))
    flushed = client.flush()
    failures: list[type] = []
    for deferred in (done, waiting, flushed):
        deferred.addErrback(lambda failure: failures.append(failure.type))
    client.close()
    assert failures == [Closed] * 3
    with pytest.raises(LocalProtocolError, match="closed"):
        client.publish_many(docs(1))
    endpoint.lose()
    assert not [call for call in clock.getDelayedCalls() if call.active()]


def test_closing_the_client_in_a_callback_of_an_acknowledgement_fails_all_other_events(
    logged_errors: list[Any],
) -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint, window=1)
    done = [client.publish_many(docs(1)), client.publish_many(docs(1))]
    clock.advance(0)
    failures: list[Any] = []
    done[1].addErrback(failures.append)
    done[0].addCallback(lambda _: client.close())
    both = Ack(number=1).serialize() * 2
    endpoint.protocols[-1].dataReceived(both)  # both in one read; the callback of the first closes the client
    endpoint.protocols[-1].dataReceived(b"")
    assert [failure.type for failure in failures] == [Closed]
    assert not logged_errors


def test_close_before_the_first_connection_fails_connect() -> None:
    client, _ = make(Endpoint(refuses=True))
    failures: list[type] = []
    client.connect().addErrback(lambda failure: failures.append(failure.type))
    client.close()
    assert failures == [Closed]
    with pytest.raises(LocalProtocolError, match="called before"):
        client.connect()


def test_invalid_arguments_are_refused() -> None:
    for wrong in ({"version": 3}, {"compression": 10}, {"window": 0}, {"pipelining": 0}):
        with pytest.raises(LocalProtocolError):
            make(Endpoint(), **wrong)
    with pytest.raises(LocalProtocolError):
        make()
    client, _ = make(Endpoint())
    with pytest.raises(LocalProtocolError, match="exceeds the limit"):
        client.publish_many([bytes(MAX_EVENT + 1)])


# A connection that is lost at any byte


@implementer(IStreamClientEndpoint)
@attrs.define(eq=False)
class Link:
    """A server behind a connection that is lost once, after a number of bytes.

    :ivar up: bytes to the server before the loss; None: no loss
    :ivar down: bytes to the client before the loss; None: no loss
    """

    server: Any
    up: int | None
    down: int | None
    _ends: Any = None
    connections: int = 0

    def connect(self, factory: Any) -> Deferred[Any]:
        self.connections += 1
        connected: Deferred[Any] = Deferred()
        protocol = factory.buildProtocol(None)
        protocol.makeConnection(Transport())
        self._ends = protocol, self.server.connect(port=5000 + self.connections)
        connected.callback(protocol)
        return connected

    def pump(self) -> None:
        """Deliver the pending bytes of both sides, up to the loss."""
        client, served = self._ends
        data = client.transport.value()
        client.transport.clear()
        self.up = self._carry(data, self.up, served.send)
        self.server.settle()
        data = served.transport.value()
        served.transport.clear()
        if self.up is None or self.up > 0:
            self.down = self._carry(data, self.down, client.dataReceived)
        if self.up == 0 or self.down == 0:
            self.up = self.down = None
            served.lose()
            client.connectionLost(Failure(ConnectionDone()))

    @staticmethod
    def _carry(data: bytes, left: int | None, to: Callable[[bytes], None]) -> int | None:
        if left is not None:
            data, left = data[:left], max(left - len(data), 0)
        if data:
            to(data)
        return left


BATCHES = [[b'{"n":1}', b'{"n":2}', b'{"n":3}'], [b"{}"], [b'{"n":4}', b"", b'{"n":5}']]
FLAT = [document for batch in BATCHES for document in batch]


def session(server: Make, version: int, compression: int, up: int | None, down: int | None) -> tuple[Any, int]:
    """Run a session whose connection is lost; return the server and the number of connections."""
    made = server(auto=False)
    link = Link(made, up, down)
    clock = made.clock
    client = LumberjackClient(
        clock, [link], version=version, compression=compression, window=3, pipelining=2, connection_options=RETRIES
    )
    client.connect()
    settled: list[list[bytes]] = []
    for batch in BATCHES:

        def done(_: None, batch: list[bytes] = batch) -> None:
            stored = made.payloads
            assert all(stored.count(document) >= 1 for document in batch), "only durable events are acknowledged"
            settled.append(batch)

        client.publish_many(batch).addCallback(done)
        clock.advance(0)
    for turn in range(200):
        if len(settled) == len(BATCHES):
            break
        link.pump()
        if turn % 3 == 2:
            made.journal.commit()
            link.pump()
        clock.advance(0.25)
    assert settled == BATCHES, "everything is acknowledged, in order"
    client.close()
    made.journal.commit()
    return made, link.connections


def is_resent(stored: list[bytes]) -> bool:
    """Return whether *stored* holds every document in order, apart from resent ones."""
    rest = iter(stored)
    return all(document in rest for document in FLAT) and set(stored) == set(FLAT)


@pytest.mark.parametrize("compression", [0, 6])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("where", ["up", "down"])
def test_connection_lost_at_any_byte_loses_no_event(server: Make, version: int, compression: int, where: str) -> None:
    made, connections = session(server, version, compression, None, None)
    assert (made.payloads, connections) == (FLAT, 1)
    cuts = 0
    for cut in range(1, 2_000):
        up, down = (cut, None) if where == "up" else (None, cut)
        made, connections = session(server, version, compression, up, down)
        assert is_resent(made.payloads), cut
        if connections == 1:
            break
        cuts += 1
    assert cuts >= (15 if where == "down" else 60)


def test_plugin_makes_a_publisher_that_divides_its_window_by_the_pipelining() -> None:
    plugin: Any = plugins.load("lumberjack")
    assert verifyObject(IClientPlugin, plugin)
    for window, each in ((1, 1), (2, 1), (1000, 500)):
        publisher = plugin.publisher(ClientTarget(MemoryReactorClock(), "127.0.0.1", 5044), window)
        assert verifyObject(IPublisher, publisher)
        assert publisher.window == each
    assert (plugin.default_port, plugin.tailer(ClientTarget(Clock(), "127.0.0.1", 5044))) == (5044, None)


def test_named_stream_is_refused() -> None:
    client = LumberjackClient(Clock(), [Endpoint()])
    for call in (lambda: client.prepare("log"), lambda: client.publish("log", b"")):
        with pytest.raises(ConfigError, match="leave --stream out"):
            call()


def test_json_objects_are_sent_unchanged_and_other_text_as_field_message() -> None:
    for payload in (b"{}", b'{ "a": 1 }', '{"ü":"ü"}'.encode()):
        assert to_document(payload) == payload
    for text in ("plain", "", "[1]", "7", '"s"', "{cut", "ü \n\\ \x00", "[" * 100_000):
        assert json.loads(to_document(text.encode())) == {"message": text}
    with pytest.raises(LocalProtocolError, match="not UTF-8"):
        to_document(b"\xff")
