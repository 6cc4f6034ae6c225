"""The client: connections, timers and Deferreds; test_client_session.py tests the protocol."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionDone
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer
from zope.interface.verify import verifyObject

from fyrehose.errors import Closed, ConfigError, LocalProtocolError
from fyrehose.interfaces import IPublisher, ITailer
from fyrehose.net.clients import ConnectionFailed
from fyrehose.protocols.eventbus.client import BUS_OPTIONS, EventBusClient, KeyRefused, PubUnconfirmed
from fyrehose.protocols.eventbus.client_session import EventBusOptions
from fyrehose.protocols.eventbus.curve import CurveServer, new_keys
from fyrehose.protocols.eventbus.frames import Dialect
from fyrehose.protocols.eventbus.session import (
    CollectorSession,
    PrefixChanged,
    PublisherSession,
    PubsReceived,
    Requested,
    SnapshotSession,
)
from fyrehose.protocols.eventbus.zmtp import Mechanism, Null
from fyrehose.records import MAX_PAYLOAD
from fyrehose.sessions import events_of
from fyrehose.testing import Transport

TIME = b"2024-05-01T10:20:30.123Z"


@implementer(IStreamClientEndpoint)
@attrs.define(eq=False)
class Port:
    """The server's side of one port: accepts or refuses the client's connections, and records what it sends."""

    name: str
    clock: Clock
    mechanism: Any = Null
    attempts: list[tuple[Any, Deferred[Any]]] = attrs.field(factory=list)
    protocol: Any = None
    transport: Any = None
    session: Any = None
    sent: list[list[bytes]] = attrs.field(factory=list)
    subscriptions: list[bytes] = attrs.field(factory=list)
    deaf: bool = False
    old: Any = None  #: the protocol and the session of a connection that another has replaced

    def connect(self, factory: Any) -> Deferred[Any]:
        made: Deferred[Any] = Deferred()
        self.attempts.append((factory, made))
        return made

    def accept(self) -> None:
        """Accept the latest attempt, and complete the handshake; a connection that it replaces has more to say."""
        self.old = (self.protocol, self.session) if self.transport is not None else None
        factory, made = self.attempts.pop()
        self.attempts.clear()
        mechanism: Mechanism = self.mechanism()
        self.session = {
            "snapshot": lambda: SnapshotSession(mechanism, Dialect.BINARY),
            "publisher": lambda: PublisherSession(mechanism, Dialect.BINARY),
            "collector": lambda: CollectorSession(mechanism, MAX_PAYLOAD, "s"),
        }[self.name]()
        self.protocol, self.transport, self.deaf = factory.buildProtocol(None), Transport(), False
        self.protocol.makeConnection(self.transport)
        made.callback(self.protocol)
        self.carry()
        if self.old is not None and self.name == "snapshot":
            protocol, session = self.old
            session.send([b"SYNC", *broadcast(900)])
            protocol.dataReceived(b"".join(session.data_to_send()))

    def refuse(self) -> None:
        _, made = self.attempts.pop(0)
        made.errback(Failure(ConnectError()))

    def carry(self) -> None:
        """Exchange bytes until nobody has more to say."""
        while self.transport is not None and not self.deaf:
            wire = self.transport.value()
            self.transport.clear()
            for each in events_of(self.session, wire):
                if isinstance(each, PrefixChanged):
                    self.subscriptions.append(each.prefix)
                elif isinstance(each, Requested):
                    self.sent.append(each.request.serialize())
                elif isinstance(each, PubsReceived):
                    self.sent += [[(run.topic or "").encode(), bytes(p)] for run in each.runs for p in run.payloads()]
            reply = b"".join(self.session.data_to_send()) if self.transport.reads else b""
            if not wire and not reply:
                return
            if reply and not self.transport.disconnecting:
                self.protocol.dataReceived(reply)

    def get(self, *messages: list[bytes]) -> None:
        """Send *messages* to the client; a connection that this one has replaced ends behind them."""
        for frames in messages:
            self.session.send(frames)
        self.carry()
        if self.old is not None:
            (protocol, _), self.old = self.old, None
            protocol.connectionLost(Failure(ConnectionDone()))

    def cut(self) -> None:
        protocol, self.transport = self.protocol, None
        protocol.connectionLost(Failure(ConnectionDone()))


class Bus:
    """A client, and the other end of its connections."""

    def __init__(self, mechanism: Any = Null, **options: Any) -> None:
        self.reactor = Clock()
        self.reported: list[Any] = []
        more = {name: options.pop(name) for name in ("topics", "on_late", "server_key", "keys") if name in options}
        ports = [Port(name, self.reactor, mechanism) for name in ("snapshot", "publisher", "collector")]
        self.snapshot, self.publisher, self.collector = ports
        self.client = EventBusClient(
            self.reactor,
            "127.0.0.1",
            5556,
            options=EventBusOptions(**options),
            on_events=lambda events: self.reported.extend(event.sequence for event in events),
            on_lost=lambda first, last: self.reported.append((first, last)),
            on_restarted=lambda end: self.reported.append(("restarted", end)),
            on_state=lambda alive: self.reported.append(alive),
            now=lambda: 1_714_558_830_123_000,
            producer="tests",
            connect_to=lambda port: ports[port - 5556],
            **more,
        )
        self.connecting = self.client.connect()

    def begin(self) -> None:
        """Connect to a server with an empty stream."""
        for port in (self.publisher, self.snapshot, self.collector):
            port.accept()
        (request,) = self.snapshot.sent
        self.snapshot.get([b"SYNCEND", b"", request[2]])
        self.snapshot.sent.clear()

    def carry(self) -> None:
        for port in (self.publisher, self.snapshot, self.collector):
            port.carry()

    def wait(self, seconds: float) -> None:
        """Let time pass, in which the server answers."""
        for _ in range(int(seconds * 10)):
            self.reactor.advance(0.1)
            self.carry()

    def publish(self, *arguments: Any, **more: Any) -> Deferred[int]:
        published = self.client.publish_event(*arguments, **more)
        self.carry()
        return published


@pytest.fixture
def make_bus() -> Any:
    buses: list[Bus] = []

    def make(**options: Any) -> Bus:
        buses.append(Bus(**options))
        return buses[-1]

    yield make
    for bus in buses:
        bus.connecting.addErrback(lambda failure: failure.trap(Closed, ConnectionFailed))
        bus.client.close()
        for port in (bus.publisher, bus.snapshot, bus.collector):
            if port.transport is not None:
                port.cut()
        bus.reactor.advance(BUS_OPTIONS.close_timeout)
        assert not [call for call in bus.reactor.getDelayedCalls() if call.active()]


def broadcast(seq: int, uuid: bytes = b"u") -> list[bytes]:
    return [b"/a/", b"%d" % seq, b"me", TIME, uuid, b"x"]


@pytest.mark.parametrize(
    ("more", "subscriptions"),
    [({"subtrees": ("/a/", "/b/"), "topics": ("/mine/",)}, [b"/a/", b"/b/", b"/mine/"]), ({}, [b""])],
)
def test_client_connects_to_three_ports_and_subscribes(
    make_bus: Any, more: dict[str, Any], subscriptions: list[bytes]
) -> None:
    bus = make_bus(after=0, **more)
    assert [len(port.attempts) for port in (bus.snapshot, bus.publisher, bus.collector)] == [1, 1, 1]
    bus.publisher.accept()
    assert sorted(bus.publisher.subscriptions) == subscriptions


def test_client_provides_publisher_and_tailer(make_bus: Any) -> None:
    client = make_bus().client
    assert verifyObject(IPublisher, client)
    assert verifyObject(ITailer, client)
    assert client.shortfall(False) == ""


def test_streams_are_topics(make_bus: Any) -> None:
    bus = make_bus(subscribe=False, topics=("/prepared/",))
    bus.begin()
    bus.client.prepare("notes")
    for stream in ("notes", "/a/b/", None):
        bus.client.publish(stream, b"hi").addErrback(lambda _: None)
    bus.carry()
    assert bus.publisher.subscriptions == [b"/prepared/", b"/notes/", b"/a/b/", b"/"]
    assert bus.collector.sent == [[topic, b"\xc4\x02hi"] for topic in (b"/notes/", b"/a/b/", b"/")]
    with pytest.raises(ConfigError, match="exceeds 255 bytes"):
        bus.client.prepare("x" * 254)


def test_subscription_yields_runs_of_events() -> None:
    taken: list[Any] = []
    lost: list[Any] = []
    bus = Bus()
    bus.connecting.addErrback(lambda failure: failure.trap(Closed))
    bus.client.close()
    ports = {
        5556: Port("snapshot", bus.reactor),
        5557: Port("publisher", bus.reactor),
        5558: Port("collector", Clock()),
    }
    client = EventBusClient(bus.reactor, "127.0.0.1", 5556, connect_to=ports.__getitem__)
    client.subscribe("a;/b/c", taken.append, 7, lambda *numbers: lost.append(numbers))
    client.connect().addErrback(lambda failure: failure.trap(Closed))
    ports[5557].accept()
    ports[5556].accept()
    assert sorted(ports[5557].subscriptions) == [b"/a/", b"/b/c/"]
    assert ports[5556].sent == [[b"SYNCSTART", b"/a/;/b/c/", (7).to_bytes(8, "big")]]
    uuid = b"7d444840-9dc0-41d1-b245-5ffdce74fad2"
    ports[5556].get([b"SYNC", b"/a/", b"8", b"me", TIME, uuid, b"\xc4\x02hi"], [b"SYNCEND", b"/a/;/b/c/", b"8"])
    (run,) = taken
    (record,) = run.records()
    assert (record.seq, record.topic, record.producer, record.payload) == (8, "/a/", "me", b"hi")
    assert (record.event_time, record.time) == (1_714_558_830_123_000, 0)
    client.on_lost(1, 2)
    assert lost == [(1, 2)]
    with pytest.raises(LocalProtocolError, match="create a new client"):
        client.subscribe(None, taken.append)
    client.close()


def test_client_uses_keys(make_bus: Any) -> None:
    server, own = new_keys(), new_keys()
    bus = make_bus(
        mechanism=lambda: CurveServer(server.public, server.secret, frozenset({own.public})),
        server_key=server.public,
        keys=own,
    )
    bus.begin()
    assert bus.connecting.called
    assert bus.snapshot.session.key == own.public


def test_client_whose_key_is_refused_says_so_and_tries_again(make_bus: Any) -> None:
    server = new_keys()
    mechanism = lambda: CurveServer(server.public, server.secret, frozenset())  # noqa: E731
    bus = make_bus(mechanism=mechanism, server_key=server.public)
    bus.snapshot.accept()
    assert isinstance(bus.snapshot.protocol.reason, KeyRefused)
    bus.snapshot.cut()
    assert bus.client.problem == "the server does not accept the client's key"
    assert not bus.connecting.called


def test_weak_key_of_the_server_is_the_problem(make_bus: Any) -> None:
    bus = make_bus(mechanism=lambda: CurveServer(*attrs.astuple(new_keys()), None), server_key=bytes(32))
    bus.snapshot.accept()
    bus.snapshot.cut()
    assert bus.client.problem.startswith("the server's public key is weak")


def test_client_synchronizes_once_its_subscriptions_are_handled(make_bus: Any) -> None:
    bus = make_bus(after=0)
    bus.snapshot.accept()
    assert bus.snapshot.sent == []
    bus.publisher.accept()
    bus.carry()
    assert bus.snapshot.sent == [[b"SYNCSTART", b"", bytes(8)]]
    assert not bus.connecting.called
    bus.snapshot.get([b"SYNC", *broadcast(1)])
    assert bus.reported == [1]
    bus.snapshot.get([b"SYNCEND", b"", b"1"])
    assert bus.connecting.called
    assert bus.reported == [1, True]
    bus.publisher.get(broadcast(2), broadcast(3))
    assert bus.reported[2:] == [2, 3]
    assert bus.client.position == 3


def test_publish_fires_with_the_sequence(make_bus: Any) -> None:
    bus = make_bus(subscribe=False)
    bus.begin()
    uuid = UUID("7d444840-9dc0-41d1-b245-5ffdce74fad2")
    published = bus.publish("/p/", b"data", uuid=uuid)
    assert bus.publisher.subscriptions == [b"/p/"]
    assert bus.collector.sent == [[b"/p/", b"data"]]
    bus.publisher.get([b"/p/", b"9", b"tests", TIME, str(uuid).encode(), b"data"])
    assert bus.reported == [True], "without EventBusOptions.subscribe only confirmations are processed"
    results: list[int] = []
    published.addCallback(results.append)
    assert results == [9]


@pytest.mark.parametrize(
    ("topic", "size", "labels"),
    [
        ("x" * 256, 0, {}),
        ("/a/", 0, {"producer": "x" * 65}),
        ("/a/", 0, {"timestamp": "x" * 65}),
        ("/a/", (16 << 20) + 1, {}),
    ],
)
def test_event_that_is_too_large_is_refused(make_bus: Any, topic: str, size: int, labels: dict[str, str]) -> None:
    bus = make_bus(subscribe=False)
    bus.begin()
    with pytest.raises(LocalProtocolError):
        bus.client.publish_event(topic, bytes(size), **labels)


UUIDS = [UUID(int=n, version=4) for n in range(1, 9)]


def test_publish_and_ready_respect_the_window(make_bus: Any) -> None:
    bus = make_bus(subscribe=False, window=2)
    bus.begin()
    for uuid in UUIDS[:2]:
        assert bus.client.ready().called
        bus.publish("/a/", b"x", uuid=uuid).addErrback(lambda _: None)
    ready = bus.client.ready()
    bus.client.ready().addErrback(lambda failure: failure.trap(Closed))
    assert not ready.called
    for uuid in UUIDS[2:4]:
        bus.publish("/a/", b"x", uuid=uuid).addErrback(lambda _: None)
    with pytest.raises(LocalProtocolError, match="wait for ready"):
        bus.client.publish_event("/a/", b"x")
    bus.publisher.get(*[broadcast(n, str(uuid).encode()) for n, uuid in enumerate(UUIDS[:3], 1)])
    assert ready.called


def test_unsent_event_waits_and_is_queued_once(make_bus: Any) -> None:
    bus = make_bus(subscribe=False, confirm=5)
    bus.publisher.accept()
    bus.snapshot.accept()
    bus.carry()
    bus.snapshot.get([b"SYNCEND", b"", b"0"])
    bus.publish("/a/", b"1").addErrback(lambda _: None)
    bus.publish("/a/", b"2").addErrback(lambda _: None)
    bus.wait(6)
    bus.collector.accept()
    assert [data for _, data in bus.collector.sent] == [b"1", b"2"]


def test_unconfirmed_publish_fails(make_bus: Any) -> None:
    bus = make_bus(subscribe=False, confirm=1, retries=1)
    bus.begin()
    failed: list[Any] = []
    bus.publish("/a/", b"1").addErrback(lambda failure: failed.append(failure.value))
    bus.wait(3)
    assert [type(error) for error in failed] == [PubUnconfirmed]
    assert len(bus.collector.sent) == 2


def test_half_open_collector_is_noticed_before_the_retries_end(make_bus: Any) -> None:
    bus = make_bus(subscribe=False, quiet=1_000.0)
    bus.begin()
    failed: list[Any] = []
    bus.collector.deaf = True
    bus.publish("/a/", b"1").addErrback(failed.append)
    bus.wait(BUS_OPTIONS.silence + BUS_OPTIONS.ping_after)
    assert bus.collector.transport.aborted
    bus.collector.cut()
    bus.wait(60)
    assert failed == [], "no retry is spent without a connection"
    bus.collector.accept()
    assert bus.collector.sent == [[b"/a/", b"1"]], "it is sent at once on the new connection"


def test_client_resynchronizes_after_a_reconnect(make_bus: Any) -> None:
    bus = make_bus(after=0)
    bus.begin()
    bus.publisher.get(broadcast(1))
    bus.publisher.cut()
    bus.snapshot.cut()
    assert bus.reported == [True, 1, False]
    bus.wait(10)
    bus.snapshot.accept()
    bus.publisher.accept()
    bus.carry()
    assert bus.snapshot.sent == [[b"SYNCSTART", b"", b"\0\0\0\0\0\0\0\x01"]]
    bus.snapshot.get([b"SYNC", *broadcast(2)], [b"SYNCEND", b"", b"2"])
    assert bus.reported[3:] == [2, True]


def test_unanswered_request_is_repeated_on_a_new_connection(make_bus: Any) -> None:
    bus = make_bus(after=0, answer=10)
    bus.publisher.accept()
    bus.snapshot.accept()
    bus.carry()
    bus.wait(10.2)
    assert bus.snapshot.transport.disconnecting
    bus.snapshot.sent.clear()
    bus.snapshot.accept()
    assert bus.snapshot.sent == [[b"SYNCSTART", b"", bytes(8)]], "once"
    bus.snapshot.get([b"SYNCEND", b"", b"0"])
    assert bus.connecting.called
    assert bus.reported == [True], "the old connection has no say any more"


def test_pause_stops_reading_and_resume_requests_missed_events(make_bus: Any) -> None:
    bus = make_bus(after=0)
    bus.begin()
    bus.client.pause()
    assert not bus.publisher.transport.reads
    assert not bus.snapshot.transport.reads
    bus.wait(100)
    assert bus.snapshot.sent == [], "no request while paused"
    bus.client.resume()
    bus.client.resume()
    assert bus.publisher.transport.reads
    assert len(bus.snapshot.attempts) == 1, "a new connection, so that queued messages of the old one are dropped"


def test_client_that_is_paused_while_it_needs_a_new_connection_reads_nothing_from_it(make_bus: Any) -> None:
    bus = make_bus(after=0)
    bus.begin()
    bus.client.on_events = lambda events: bus.client.pause()
    bus.publisher.get(broadcast(1), broadcast(1))  # a number that does not rise: the server has another journal
    bus.snapshot.accept()
    bus.wait(30)
    assert bus.snapshot.sent == [], "the handshake was read while paused"
    bus.client.resume()
    bus.snapshot.accept()
    assert bus.snapshot.sent == [[b"SYNCSTART", b"", bytes(8)]]


def test_events_with_lower_sequences_are_reported_as_late(make_bus: Any) -> None:
    late: list[int] = []
    bus = make_bus(after=0, subtrees=("/a/",), on_late=lambda events: late.extend(e.sequence for e in events))
    bus.begin()
    bus.publisher.get(broadcast(5))
    while not bus.snapshot.sent:
        bus.wait(1)
    bus.snapshot.get([b"SYNC", *broadcast(3)], [b"SYNC", *broadcast(5)], [b"SYNCEND", b"/a/", b"5"])
    assert late == [3]
    assert 5 in bus.reported


def test_callbacks_report_lost_restarted_and_ignored(make_bus: Any) -> None:
    bus = make_bus(after=0)
    bus.begin()
    bus.publisher.get(broadcast(5))
    bus.snapshot.get([b"SYNC", *broadcast(3)], [b"SYNCEND", b"", b"5"])
    assert bus.reported == [True, (1, 2), 3, (4, 4), 5]
    bus.publisher.get([b"nonsense"], broadcast(2))
    assert bus.reported[-1] == ("restarted", 2)
    assert bus.client.ignored == {"wrong-frame-count": 1}


def test_failing_callback_does_not_end_the_client(make_bus: Any, logged_errors: Any) -> None:
    bus = make_bus(after=0)
    bus.begin()

    def fail(events: Any) -> None:
        raise ValueError

    bus.client.on_events = fail
    bus.publisher.get(broadcast(1))
    assert len(logged_errors.take()) == 1
    assert bus.client.position == 1


def test_many_topics_become_one_subscription(make_bus: Any) -> None:
    bus = make_bus(subscribe=False, window=2_000)
    bus.begin()
    for n in range(1_002):
        bus.client.publish_event(f"/{n}/", b"").addErrback(lambda _: None)
    bus.carry()
    assert (len(bus.publisher.subscriptions), bus.publisher.subscriptions[-1]) == (1_001, b"")


def test_close_fails_pending_calls_and_closes_connections(make_bus: Any) -> None:
    bus = make_bus(subscribe=False, window=1)
    assert not bus.connecting.called
    failures: list[Any] = []
    bus.connecting.addErrback(lambda failure: failures.append(failure.value))
    bus.client.publish_event("/a/", b"").addErrback(lambda failure: failures.append(failure.value))
    bus.client.ready().addErrback(lambda failure: failures.append(failure.value))
    bus.publisher.accept()
    closed = bus.client.close()
    assert [type(failure) for failure in failures] == [Closed, PubUnconfirmed, Closed]  # ready() first
    assert bus.publisher.transport.disconnecting
    assert not closed.called
    bus.publisher.cut()
    assert closed.called
    assert bus.client.close().called
    with pytest.raises(LocalProtocolError):
        bus.client.publish_event("/a/", b"")
    bus.client.resume()


def test_failed_connections_are_the_problem_until_the_server_answers(make_bus: Any) -> None:
    bus = make_bus()
    bus.snapshot.refuse()
    assert bus.client.problem
    assert not bus.connecting.called
    bus.wait(1)
    bus.begin()
    assert (bus.client.problem, bus.connecting.called) == ("", True)
    bus.collector.cut()
    assert bus.client.problem == "", "the client needs only the other two to know that the server answers"
    bus.publisher.cut()
    assert bus.client.problem == "the server closed the connection"


def test_client_ends_if_the_server_does_not_speak_zmtp(make_bus: Any) -> None:
    bus = make_bus()
    bus.snapshot.accept()
    bus.snapshot.cut()
    bus.wait(1)
    factory, made = bus.snapshot.attempts.pop()
    protocol, transport = factory.buildProtocol(None), Transport()
    protocol.makeConnection(transport)
    made.callback(protocol)
    protocol.dataReceived(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert transport.aborted
    protocol.connectionLost(Failure(ConnectionDone()))
    with pytest.raises(ConnectionFailed, match="the server is an HTTP server"):
        bus.connecting.result.raiseException()
    bus.connecting.addErrback(lambda failure: None)
    assert bus.client.closed


def test_a_client_connects_once(make_bus: Any) -> None:
    bus = make_bus()
    with pytest.raises(LocalProtocolError, match="create another client"):
        bus.client.connect()
    closed = EventBusClient(Clock(), "127.0.0.1", 5556)
    closed.close()
    with pytest.raises(LocalProtocolError, match="create another client"):
        closed.connect()


def test_client_can_be_closed_before_it_connects() -> None:
    client = EventBusClient(Clock(), "127.0.0.1", 5556)
    assert client.position is None
    assert client.close().called
    with pytest.raises(LocalProtocolError):
        client.ready()


def test_client_may_be_closed_from_a_callback(make_bus: Any) -> None:
    bus = make_bus(after=0)
    bus.begin()
    bus.client.on_events = lambda events: bus.client.close()
    bus.publisher.get(broadcast(1))
    assert bus.publisher.transport.disconnecting
