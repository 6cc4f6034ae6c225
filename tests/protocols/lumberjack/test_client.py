"""Lumberjack's client: batches, windows, resending and load balancing over one or several servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
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
from fyrehose.net.clients import ClientTarget, ConnectionFailed
from fyrehose.protocols.lumberjack.client import LUMBERJACK_OPTIONS, LumberjackClient, to_document
from fyrehose.protocols.lumberjack.frames import MAX_EVENT, Ack
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


def windows(data: bytes) -> list[list[bytes]]:
    """Return the documents of each window in *data*, which is not compressed; each window counts from 1."""
    found: list[list[bytes]] = []
    announced = at = 0
    while at < len(data):
        number = int.from_bytes(data[at + 2 : at + 6], "big")
        if data[at + 1 : at + 2] == b"W":
            assert not found or len(found[-1]) == announced, "the window before has all its events"
            announced, at = number, at + 6
            found.append([])
        else:
            size = int.from_bytes(data[at + 6 : at + 10], "big")
            found[-1].append(data[at + 10 : at + 10 + size])
            assert number == len(found[-1]), "the sequence numbers of a window count from 1"
            at += 10 + size
    return found


def connected(*endpoints: Endpoint, **options: Any) -> tuple[LumberjackClient, Clock]:
    client, clock = make(*endpoints, **options)
    done: list[object] = []
    client.connect().addBoth(done.append)
    assert done == [None]
    return client, clock


@attrs.define(eq=False)
class Sent:
    """A connection, with the windows that are not acknowledged: the documents that are left, and how many were."""

    windows: list[tuple[list[bytes], int]] = attrs.field(factory=list)


class History:
    """Publishes, acknowledges and loses connections at random; compares a client with lists of documents."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.endpoints = [Endpoint() for _ in range(self.random.randint(1, 3))]
        self.limits = {
            "window": self.random.randint(1, 5),
            "window_bytes": self.random.choice((20, 35, 1_000)),
            "pipelining": self.random.randint(1, 3),
            "max_pending_bytes": self.random.choice((60, 10_000)),
        }
        self.states: list[bool] = []
        self.client, self.clock = make(*self.endpoints, **self.limits)
        self.client.on_server, self.client.on_state = self.noticed, self.states.append
        self.up: dict[Endpoint, Sent] = {}  # in the order in which they were connected
        self.waiting: list[bytes] = []
        self.batches: list[tuple[list[bytes], Deferred[None]]] = []
        self.left: dict[bytes, None] = {}  # the documents that are not acknowledged
        self.watchers: list[tuple[str, Deferred[None]]] = []
        self.count = 0
        self.connected = self.client.connect()

    def noticed(self, endpoint: Any, up: bool) -> None:
        assert (endpoint in self.up) is not up, "each change is told once"
        if up:
            self.up[endpoint] = Sent()
        else:
            unsent = [document for left, _ in self.up.pop(endpoint).windows for document in left]
            self.waiting = unsent + self.waiting

    @property
    def held(self) -> int:
        return sum(len(document) + 4 for document in self.left)

    def has(self, what: str) -> bool:
        """Return whether *what* ("ready" or "flush") does not have to wait."""
        most = self.limits["window"] * self.limits["pipelining"] * len(self.endpoints)
        return not self.left if what == "flush" else len(self.left) < most and self.held < self.client.max_pending_bytes

    def step(self) -> None:
        names = ("publish", "publish", "watch", "send", "send", "acknowledge", "acknowledge", "acknowledge", "lose")
        getattr(self, self.random.choice((*names, "refuse", "second")))()
        for batch, done in self.batches:
            assert done.called is not any(document in self.left for document in batch)
        self.watchers = [(what, watcher) for what, watcher in self.watchers if not watcher.called]
        assert not any(self.has(what) for what, _ in self.watchers), "a caller waits in vain"

    def publish(self) -> None:
        batch = []
        for _ in range(self.random.choice((0, 1, 1, 2, 7))):
            self.count += 1
            batch.append(b"%d" % self.count + b"x" * self.random.choice((0, 0, 7, 30)))
        if self.held > self.limits["max_pending_bytes"]:
            with pytest.raises(LocalProtocolError, match="wait for ready"):
                self.client.publish_many(batch)
            return
        self.batches.append((batch, self.client.publish_many(batch)))
        self.waiting += batch
        self.left |= dict.fromkeys(batch)
        assert not any(endpoint.protocols[-1].transport.value() for endpoint in self.up), "a turn shares windows"

    def watch(self) -> None:
        what = self.random.choice(("ready", "flush"))
        watcher = getattr(self.client, what)()
        assert watcher.called is self.has(what)
        self.watchers.append((what, watcher))

    def send(self) -> None:
        self.clock.advance(0)
        expected: dict[Endpoint, list[list[bytes]]] = {endpoint: [] for endpoint in self.up}
        while self.waiting:
            free = [(len(to.windows), at) for at, to in enumerate(self.up.values())]
            if not free or min(free)[0] == self.limits["pipelining"]:
                break
            endpoint, sent = list(self.up.items())[min(free)[1]]
            window = [self.waiting.pop(0)]
            while self.waiting and len(window) < self.limits["window"]:
                if sum(map(len, [*window, self.waiting[0]])) > self.limits["window_bytes"]:
                    break
                window.append(self.waiting.pop(0))
            sent.windows.append((window, 0))
            expected[endpoint].append(window)
        assert {endpoint: windows(endpoint.wire) for endpoint in self.up} == expected

    def acknowledge(self) -> None:
        """Acknowledge some of the oldest window, all of it, nothing (A 0) or what was acknowledged already."""
        self.send()
        owing = [endpoint for endpoint, sent in self.up.items() if sent.windows]
        if owing:
            endpoint = self.random.choice(owing)
            sent = self.up[endpoint]
            (documents, before) = sent.windows[0]
            number = self.random.choice(
                (0, before, before + len(documents), self.random.randint(0, before + len(documents)))
            )
            settled = documents[: max(0, number - before)]
            sent.windows[0] = documents[len(settled) :], before + len(settled)
            if not sent.windows[0][0]:
                del sent.windows[0]
            for document in settled:
                del self.left[document]
            endpoint.acknowledges(number)

    def lose(self) -> None:
        if self.up:
            endpoint = self.random.choice(list(self.up))
            endpoint.wire  # noqa: B018 - of the connection that is lost
            endpoint.lose()
            assert endpoint not in self.up
            assert self.states[-1] is bool(self.up)

    def refuse(self) -> None:
        endpoint = self.random.choice(self.endpoints)
        endpoint.refuses = not endpoint.refuses

    def second(self) -> None:
        """Wait as long as the client does before it tries again."""
        self.send()
        self.clock.advance(1)
        assert all(endpoint.refuses or endpoint in self.up for endpoint in self.endpoints)
        assert self.connected.called is bool(self.states)
        self.send()

    def end(self) -> None:
        """Acknowledge all windows of a connection in one read; the callback of the first batch closes the client."""
        self.send()
        pending = [(batch, done) for batch, done in self.batches if not done.called]
        failures: list[Any] = []
        for _, done in pending:
            done.addCallback(lambda _: self.client.close())
        for done in [*(done for _, done in pending), *(each for _, each in self.watchers), self.connected]:
            done.addErrback(failures.append)
        endpoint, sent = max(self.up.items(), key=lambda each: len(each[1].windows), default=(None, Sent()))
        data, closed, watching = b"", False, [what for what, _ in self.watchers]
        for documents, before in sent.windows:
            data += Ack(number=before + len(documents)).serialize()
            self.left = self.left if closed else {each: None for each in self.left if each not in documents}
            closed = closed or any(self.left.keys().isdisjoint(batch) for batch, _ in pending)
            watching = watching if closed else [what for what in watching if not self.has(what)]
        if endpoint is not None:
            endpoint.protocols[-1].dataReceived(data)
        lost = sum(not self.left.keys().isdisjoint(batch) for batch, _ in pending) + len(watching)
        self.client.close()
        for each in list(self.up):
            each.lose()
        assert {failure.type for failure in failures} <= {Closed}
        assert len(failures) == lost + (not self.states), "what was not acknowledged fails, and only that"
        assert not [call for call in self.clock.getDelayedCalls() if call.active()]
        with pytest.raises(LocalProtocolError, match="closed"):
            self.client.publish_many(docs(1))


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_client_agrees_with_a_model_of_each_document(seed: int, logged_errors: list[Any]) -> None:
    for each in range(seed, seed + 4):
        history = History(each)
        for _ in range(60):
            history.step()
        history.end()
        assert not logged_errors


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
    assert windows(endpoint.wire) == [docs(1)]
    endpoint.acknowledges(1)
    assert [call for call in clock.getDelayedCalls() if call.getTime() > clock.seconds()] == []
    client.close()


def test_final_error_ends_the_client_only_while_no_server_is_connected() -> None:
    one, two = Endpoint(), Endpoint()
    client, clock = connected(one, two, process_exception=lambda error: error)
    failures: list[type] = []
    client.publish_many(docs(1)).addErrback(lambda failure: failures.append(failure.type))
    clock.advance(0)
    one.lose()
    clock.advance(1)
    assert not client.closed
    assert len(one.protocols) == 2, "it tries again"
    for endpoint in (one, two):
        endpoint.lose()
    assert client.closed
    assert failures == [ConnectionFailed]


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
        client.publish_many([b"{}", bytes(MAX_EVENT + 1)])
    assert not client.publish_many([bytes(MAX_EVENT)]).addErrback(lambda failure: failure.trap(Closed)).called
    client.close()


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


def test_defaults_are_those_of_the_documentation() -> None:
    client = LumberjackClient(Clock(), [Endpoint()])
    assert (client.version, client.compression, client.connection_options.silence) == (2, 3, 30.0)
    assert (client.window, client.window_bytes, client.pipelining) == (2_048, 4 << 20, 2)
    assert client.max_pending_bytes == 64 << 20


def test_payload_is_published_as_a_document() -> None:
    endpoint = Endpoint()
    client, clock = connected(endpoint)
    done = client.publish(None, b"plain")
    clock.advance(0)
    assert windows(endpoint.wire) == [[b'{"message": "plain"}']]
    endpoint.acknowledges(1)
    assert done.called
    client.close()


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
