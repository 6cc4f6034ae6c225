"""The client: batches acknowledged over connections that come and go, to one server or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionDone
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import Closed, LocalProtocolError
from fyrehose.protocols.lumberjack.client import LumberjackClient
from fyrehose.protocols.lumberjack.frames import MAX_EVENT, Ack, Window

Make = Callable[..., Any]


class Transport(StringTransport):
    aborted = False

    def abortConnection(self) -> None:
        self.aborted = True

    def loseConnection(self) -> None:
        self.aborted = True


@implementer(IStreamClientEndpoint)
@attrs.define(eq=False)
class Endpoint:
    """Somewhere that connections can be made to, one after the other."""

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
        """What the last connection was sent since it was looked at."""
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
    options = {"compression": 0, "retry": lambda attempt: 1.0, **options}
    return LumberjackClient(clock, list(endpoints), **options), clock


def docs(count: int) -> list[bytes]:
    return [b'{"n":%d}' % n for n in range(count)]


def windows(data: bytes) -> list[int]:
    """The sizes of the windows in ``data``, none of them compressed."""
    found, at = [], 0
    while at < len(data):
        if data[at + 1 : at + 2] == b"W":
            found.append(Window.parse(data[at : at + 6]).number)
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


def test_a_batch_is_acknowledged() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint)
    done = client.publish(docs(3))
    assert endpoint.wire == b"", "what is published in one turn goes out together"
    clock.advance(0)
    assert windows(endpoint.wire) == [3]
    endpoint.acknowledges(0, 2)
    assert not done.called
    endpoint.acknowledges(3)
    assert done.called
    assert client.publish([]).called
    client.close()


def test_batches_of_one_turn_share_a_window_and_large_ones_are_divided() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint, window=4, pipelining=3)
    batches = [client.publish(docs(count)) for count in (1, 2, 6)]
    clock.advance(0)
    assert windows(endpoint.wire) == [4, 4, 1]
    endpoint.acknowledges(4)
    assert [batch.called for batch in batches] == [True, True, False]
    endpoint.acknowledges(4, 1)
    assert batches[2].called
    client.close()


def test_windows_are_bounded_in_bytes_but_take_one_event() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint, window_bytes=10, pipelining=9)
    done = client.publish([b"x" * 30, b"12345", b"12345", b"1"])
    clock.advance(0)
    assert windows(endpoint.wire) == [1, 2, 1]
    endpoint.acknowledges(1, 2, 1)
    assert done.called
    client.close()


def test_pipelining_is_how_many_windows_are_under_way() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint, window=1, pipelining=2)
    client.publish(docs(5))
    clock.advance(0)
    assert windows(endpoint.wire) == [1, 1]
    endpoint.acknowledges(1)
    clock.advance(0)
    assert windows(endpoint.wire) == [1]
    endpoint.acknowledges(1, 1)
    clock.advance(0)
    endpoint.acknowledges(1, 1)
    client.close()


def test_what_was_not_acknowledged_goes_out_again_in_order() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint, window=3)
    first, second = client.publish(docs(5)), client.publish([b"last"])
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
    assert b'{"n":1}' not in again, "it was acknowledged"
    assert b'{"n":1}' in before
    endpoint.acknowledges(3)
    assert first.called
    endpoint.acknowledges(1)
    assert second.called
    client.close()


def test_load_is_balanced_over_servers() -> None:
    one, two = Endpoint(), Endpoint()
    client, clock = connected(one, two, window=1, pipelining=2)
    done = client.publish(docs(6))
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


def test_what_one_server_loses_another_gets() -> None:
    one, two = Endpoint(), Endpoint()
    client, clock = connected(one, two, window=1, pipelining=1)
    done = client.publish(docs(2))
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


def test_a_server_that_is_not_there_at_first() -> None:
    endpoint = Endpoint(refuses=True)
    client, clock = make(endpoint)
    states: list[bool] = []
    client.on_state = lambda where, up: states.append(up)
    ready = client.connect()
    done = client.publish(docs(1))
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


def test_a_server_that_says_nothing_is_given_up() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint, timeout=30.0)
    clock.advance(100)
    client.publish(docs(1))
    clock.advance(0)
    transport = endpoint.protocols[-1].transport
    clock.advance(29)
    endpoint.acknowledges(0)
    clock.advance(29)
    assert not transport.aborted, "it asked for patience"
    clock.advance(2)
    assert transport.aborted
    endpoint.lose()
    clock.advance(1)
    clock.advance(0)
    assert windows(endpoint.wire) == [1]
    endpoint.acknowledges(1)
    assert [call for call in clock.getDelayedCalls() if call.getTime() > clock.seconds()] == []
    client.close()


def test_a_server_that_breaks_the_protocol_is_given_up() -> None:
    endpoint = Endpoint()
    client, _ = connected(endpoint)
    endpoint.protocols[-1].dataReceived(b"HTTP/1.1 400")
    assert endpoint.protocols[-1].transport.aborted
    client.close()


def test_ready_and_flush() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint, window=2, pipelining=1)
    assert client.ready().called
    assert client.flush().called
    client.publish(docs(2))
    ready, flushed = client.ready(), client.flush()
    assert not ready.called
    clock.advance(0)
    endpoint.acknowledges(1)
    assert ready.called
    assert not flushed.called
    endpoint.acknowledges(2)
    assert flushed.called
    client.close()


def test_what_waits_is_bounded() -> None:
    client, _ = make(Endpoint(refuses=True), max_pending_bytes=10)
    client.publish([b"x" * 20]).addErrback(lambda failure: failure.trap(Closed))
    with pytest.raises(LocalProtocolError, match="ready"):
        client.publish([b"x"])
    client.close()


def test_closing_fails_what_was_not_acknowledged() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint)
    done = client.publish(docs(2))
    clock.advance(0)
    waiting = client.publish(docs(1))
    flushed = client.flush()
    failures: list[type] = []
    for deferred in (done, waiting, flushed):
        deferred.addErrback(lambda failure: failures.append(failure.type))
    client.close()
    assert failures == [Closed] * 3
    with pytest.raises(LocalProtocolError, match="closed"):
        client.publish(docs(1))
    endpoint.lose()
    assert not [call for call in clock.getDelayedCalls() if call.active()]


def test_closing_when_the_first_of_two_is_acknowledged(logged_errors: list[Any]) -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint, window=1)
    done = [client.publish(docs(1)), client.publish(docs(1))]
    clock.advance(0)
    failures: list[Any] = []
    done[1].addErrback(failures.append)
    done[0].addCallback(lambda _: client.close())
    both = Ack(number=1).serialize() * 2
    endpoint.protocols[-1].dataReceived(both)  # in one read, and a program may close at the first of them
    endpoint.protocols[-1].dataReceived(b"")
    assert [failure.type for failure in failures] == [Closed]
    assert not logged_errors


def test_closing_before_anybody_answered() -> None:
    client, _ = make(Endpoint(refuses=True))
    failures: list[type] = []
    client.connect().addErrback(lambda failure: failures.append(failure.type))
    client.close()
    assert failures == [Closed]
    with pytest.raises(LocalProtocolError, match="called before"):
        client.connect()


def test_misuse_is_said_at_once() -> None:
    for wrong in ({"version": 3}, {"compression": 10}, {"window": 0}, {"pipelining": 0}):
        with pytest.raises(LocalProtocolError):
            make(Endpoint(), **wrong)
    with pytest.raises(LocalProtocolError):
        make()
    client, _ = make(Endpoint())
    with pytest.raises(LocalProtocolError, match="exceeds the limit"):
        client.publish([bytes(MAX_EVENT + 1)])


# Cut anywhere


@implementer(IStreamClientEndpoint)
@attrs.define(eq=False)
class Link:
    """A server behind a line that is cut after so many bytes, once.

    :ivar up: bytes to the server before the cut; None: never
    :ivar down: bytes to the client before the cut; None: never
    """

    server: Any
    up: int | None
    down: int | None
    acknowledged_early: list[int] = attrs.field(factory=list)
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
        """Carry what there is, as far as the line goes."""
        client, served = self._ends
        data = client.transport.value()
        client.transport.clear()
        self.up = self._carry(data, self.up, served.says)
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
    """A whole session over a line that is cut: the server, and how many connections it took."""
    made = server(auto=False)
    link = Link(made, up, down)
    clock = made.clock
    client = LumberjackClient(
        clock, [link], version=version, compression=compression, window=3, pipelining=2, retry=lambda attempt: 0.5
    )
    client.connect()
    settled: list[list[bytes]] = []
    for batch in BATCHES:

        def done(_: None, batch: list[bytes] = batch) -> None:
            stored = made.payloads
            assert all(stored.count(document) >= 1 for document in batch), "nothing is acknowledged but what is durable"
            settled.append(batch)

        client.publish(batch).addCallback(done)
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
    """Whether ``stored`` is everything in order, but for pieces that came again."""
    rest = iter(stored)
    return all(document in rest for document in FLAT) and set(stored) == set(FLAT)


@pytest.mark.parametrize("compression", [0, 6])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("where", ["up", "down"])
def test_a_line_that_is_cut_at_any_byte_loses_nothing(server: Make, version: int, compression: int, where: str) -> None:
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
