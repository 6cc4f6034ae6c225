"""The client: sockets, timers and Deferreds; test_session_client.py tests the protocol."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
import zmq
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from fyrehose.errors import Closed, ConfigError, LocalProtocolError
from fyrehose.interfaces import IPublisher, ITailer
from fyrehose.net.clients import ConnectionFailed
from fyrehose.protocols.eventbus.client import EventBusClient, PubUnconfirmed
from fyrehose.protocols.eventbus.session import EventBusOptions
from fyrehose.protocols.eventbus.zmqport import CONNECTED, DISCONNECTED, FAILED_PROTOCOL, RETRIED

TIME = b"2024-05-01T10:20:30.123Z"


class Reactor(Clock):
    """A clock without a thread pool."""

    def getThreadPool(self) -> None:
        return None


class Bus:
    """A client, and the other end of its sockets."""

    def __init__(self, fake: Any, **options: Any) -> None:
        self.fake = fake
        self.reactor = Reactor()
        self.reported: list[Any] = []
        names = {name: options.pop(name) for name in ("topics", "on_late", "server_key") if name in options}
        self.client = EventBusClient(
            self.reactor,
            options.pop("host", "127.0.0.1"),
            5556,
            options=EventBusOptions(**options),
            on_events=lambda events: self.reported.extend(event.sequence for event in events),
            on_lost=lambda first, last: self.reported.append((first, last)),
            on_restarted=lambda end: self.reported.append(("restarted", end)),
            on_state=lambda alive: self.reported.append(alive),
            now=lambda: 1_714_558_830_123_000,
            producer="tests",
            **names,
        )
        self.connecting = self.client.connect()
        self.publisher, self.snapshot, self.collector = fake.ports
        self.monitors = dict(zip(("publisher", "snapshot", "collector"), fake.monitors, strict=True))

    def up(self, name: str) -> None:
        port = self.fake.ports[self.fake.monitors.index(self.monitors[name])]
        port.full = False
        self.monitors[name].happened(CONNECTED, 0)

    def begin(self) -> None:
        """Connect to a server with an empty stream."""
        for name in ("publisher", "snapshot", "collector"):
            self.up(name)
        (request,) = self.snapshot.sent
        self.snapshot.get([b"SYNCEND", b"", request[2]])
        self.snapshot.sent.clear()


@pytest.fixture
def make_bus(fake_zmq: Any) -> Any:
    fake = fake_zmq("client")
    buses: list[Bus] = []

    def make(**options: Any) -> Bus:
        buses.append(Bus(fake, **options))
        return buses[-1]

    yield make
    for bus in buses:
        bus.connecting.addErrback(lambda failure: failure.trap(Closed))
        bus.client.close()
        assert not bus.reactor.getDelayedCalls()
        assert all(context.ended for context in fake.contexts)


def broadcast(seq: int, uuid: bytes = b"u") -> list[bytes]:
    return [b"/a/", b"%d" % seq, b"me", TIME, uuid, b"x"]


def test_client_connects_to_three_ports_and_subscribes(make_bus: Any) -> None:
    bus = make_bus(subtrees=("/a/", "/b/"), after=0, topics=("/mine/",))
    assert [port.socket.kind for port in bus.fake.ports] == [zmq.SUB, zmq.DEALER, zmq.DEALER]
    assert [port.socket.connected[0][-4:] for port in bus.fake.ports] == ["5557", "5556", "5558"]
    assert bus.publisher.socket.subscriptions == [b"/a/", b"/b/", b"/mine/"]


def test_empty_subtrees_are_one_subscription(make_bus: Any) -> None:
    bus = make_bus(after=0, topics=("/mine/",))
    assert bus.publisher.socket.subscriptions == [b""]


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
    assert bus.publisher.socket.subscriptions == [b"/prepared/", b"/notes/", b"/a/b/", b"/"]
    assert [frames[0] for frames in bus.collector.sent] == [b"/notes/", b"/a/b/", b"/"]
    assert {frames[5] for frames in bus.collector.sent} == {b"\xc4\x02hi"}, "one msgpack byte string"
    with pytest.raises(ConfigError, match="exceeds 255 bytes"):
        bus.client.prepare("x" * 254)


def test_prepared_topics_are_subscribed_at_once(fake_zmq: Any) -> None:
    fake = fake_zmq("client")
    client = EventBusClient(Reactor(), "127.0.0.1", 5556, options=EventBusOptions(subscribe=False))
    client.prepare("notes")
    client.connect().addErrback(lambda failure: failure.trap(Closed))
    assert fake.ports[0].socket.subscriptions == [b"/notes/"]
    client.close()


def test_subscription_yields_runs_of_events(fake_zmq: Any) -> None:
    fake = fake_zmq("client")
    taken: list[Any] = []
    lost: list[Any] = []
    client = EventBusClient(Reactor(), "127.0.0.1", 5556)
    client.subscribe("a;/b/c", taken.append, 7, lambda *numbers: lost.append(numbers))
    client.connect().addErrback(lambda failure: failure.trap(Closed))
    publisher, snapshot, _ = fake.ports
    assert publisher.socket.subscriptions == [b"/a/", b"/b/c/"]
    snapshot.full = False
    for monitor in fake.monitors:
        monitor.happened(CONNECTED, 0)
    assert snapshot.sent == [[b"SYNCSTART", b"/a/;/b/c/", (7).to_bytes(8, "big")]]
    uuid = b"7d444840-9dc0-41d1-b245-5ffdce74fad2"
    snapshot.get([b"SYNC", b"/a/", b"8", b"me", TIME, uuid, b"\xc4\x02hi"], [b"SYNCEND", b"/a/;/b/c/", b"8"])
    (run,) = taken
    (record,) = run.records()
    assert (record.seq, record.topic, record.producer, record.payload) == (8, "/a/", "me", b"hi")
    assert (record.event_time, record.time) == (1_714_558_830_123_000, 0)
    client.on_lost(1, 2)
    assert lost == [(1, 2)]
    with pytest.raises(LocalProtocolError, match="create a new client"):
        client.subscribe(None, taken.append)
    client.close()


def test_client_uses_ipv6_and_keys(make_bus: Any) -> None:
    public, _ = zmq.curve_keypair()
    bus = make_bus(host="::1", server_key=public)
    assert bus.snapshot.socket.connected == ["tcp://[::1]:5556"]
    assert bus.snapshot.socket.options[zmq.IPV6] == 1
    assert bus.snapshot.socket.curve_publickey != b""


def test_client_synchronizes_once_both_ports_are_connected(make_bus: Any) -> None:
    bus = make_bus(after=0)
    bus.up("snapshot")
    assert bus.snapshot.sent == []
    bus.up("publisher")
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
    published = bus.client.publish_event("/p/", b"data", uuid=uuid)
    assert bus.publisher.socket.subscriptions == [b"/p/"]
    assert bus.collector.sent == [[b"/p/", b"null", b"tests", TIME, str(uuid).encode(), b"data"]]
    bus.publisher.get([b"/p/", b"9", b"tests", TIME, str(uuid).encode(), b"data"])
    assert bus.reported == [True], "without EventBusOptions.subscribe only confirmations are processed"
    assert len(bus.client._session.pubs) == 0
    results: list[int] = []
    published.addCallback(results.append)
    assert results == [9]


def test_publish_sends_given_labels(make_bus: Any) -> None:
    bus = make_bus(subscribe=False)
    bus.begin()
    bus.client.publish_event("/p/", b"", producer="me", timestamp="now").addErrback(lambda _: None)
    assert bus.collector.sent[0][2:4] == [b"me", b"now"]
    assert UUID(bus.collector.sent[0][4].decode()).version == 4


@pytest.mark.parametrize(
    ("topic", "labels"),
    [("x" * 256, {}), ("/a/", {"producer": "x" * 65}), ("/a/", {"timestamp": "x" * 65})],
)
def test_labels_that_are_too_long_are_refused(make_bus: Any, topic: str, labels: dict[str, str]) -> None:
    bus = make_bus(subscribe=False)
    bus.begin()
    with pytest.raises(LocalProtocolError):
        bus.client.publish_event(topic, b"", **labels)


def test_data_that_is_too_large_is_refused(make_bus: Any) -> None:
    bus = make_bus(subscribe=False)
    with pytest.raises(LocalProtocolError):
        bus.client.publish_event("/a/", bytes((16 << 20) + 1))


def test_publish_and_ready_respect_the_window(make_bus: Any) -> None:
    bus = make_bus(subscribe=False, window=2)
    bus.begin()
    for _ in range(2):
        assert bus.client.ready().called
        bus.client.publish_event("/a/", b"x").addErrback(lambda _: None)
    ready = bus.client.ready()
    bus.client.ready().addErrback(lambda failure: failure.trap(Closed))
    assert not ready.called
    for _ in range(2):
        bus.client.publish_event("/a/", b"x").addErrback(lambda _: None)
    with pytest.raises(LocalProtocolError, match="wait for ready"):
        bus.client.publish_event("/a/", b"x")
    bus.publisher.get(*[broadcast(n, frames[4]) for n, frames in enumerate(bus.collector.sent[:3], 1)])
    assert ready.called
    bus.publisher.get(broadcast(4, bus.collector.sent[3][4]))


def test_unsent_event_waits_and_is_queued_once(make_bus: Any) -> None:
    bus = make_bus(subscribe=False, confirm=5)
    bus.up("publisher")
    bus.up("snapshot")
    bus.snapshot.get([b"SYNCEND", b"", b"0"])
    bus.client.publish_event("/a/", b"1").addErrback(lambda _: None)
    bus.client.publish_event("/a/", b"2").addErrback(lambda _: None)
    bus.reactor.advance(6)
    bus.up("collector")
    assert [frames[5] for frames in bus.collector.sent] == [b"1", b"2"]


def test_unconfirmed_publish_fails(make_bus: Any) -> None:
    bus = make_bus(subscribe=False, confirm=1, retries=1)
    bus.begin()
    failed: list[Any] = []
    bus.client.publish_event("/a/", b"1").addErrback(lambda failure: failed.append(failure.value))
    for _ in range(30):
        bus.reactor.advance(0.1)
    assert [type(error) for error in failed] == [PubUnconfirmed]
    assert len(bus.collector.sent) == 2


def test_client_resynchronizes_after_a_reconnect(make_bus: Any) -> None:
    bus = make_bus(after=0)
    bus.begin()
    bus.publisher.get(broadcast(1))
    bus.monitors["publisher"].happened(DISCONNECTED, 0)
    bus.monitors["snapshot"].happened(DISCONNECTED, 0)
    assert bus.reported == [True, 1, False]
    bus.up("snapshot")
    bus.up("publisher")
    assert bus.snapshot.sent == [[b"SYNCSTART", b"", b"\0\0\0\0\0\0\0\x01"]]
    bus.snapshot.get([b"SYNC", *broadcast(2)], [b"SYNCEND", b"", b"2"])
    assert bus.reported[3:] == [2, True]


def test_unanswered_request_is_repeated_on_a_new_connection(make_bus: Any) -> None:
    bus = make_bus(after=0, answer=10)
    for name in ("publisher", "snapshot"):
        bus.up(name)
    for _ in range(101):
        bus.reactor.advance(0.1)
    assert bus.snapshot.socket.closed
    again = bus.fake.ports[-1]
    assert again.socket.kind == zmq.DEALER
    assert again.sent == []
    bus.monitors["snapshot"] = bus.fake.monitors[-1]
    bus.up("snapshot")
    assert again.sent == [[b"SYNCSTART", b"", bytes(8)]], "once"
    again.get([b"SYNCEND", b"", b"0"])
    assert bus.connecting.called


def test_pause_stops_reading_and_resume_requests_missed_events(make_bus: Any) -> None:
    bus = make_bus(after=0)
    bus.begin()
    bus.client.pause()
    assert not bus.publisher.reading
    assert not bus.snapshot.reading
    for _ in range(1_000):
        bus.reactor.advance(0.1)
    assert bus.snapshot.sent == [], "no request while paused"
    bus.client.resume()
    bus.client.resume()
    assert bus.publisher.reading
    assert bus.fake.ports[-1].reading, "a new connection, so that queued messages of the old one are dropped"


def test_events_with_lower_sequences_are_reported_as_late(make_bus: Any) -> None:
    late: list[int] = []
    bus = make_bus(after=0, subtrees=("/a/",), on_late=lambda events: late.extend(e.sequence for e in events))
    bus.begin()
    bus.publisher.get(broadcast(5))
    for _ in range(1_000):
        bus.reactor.advance(0.1)
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


def test_many_topics_become_one_subscription(make_bus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fyrehose.protocols.eventbus.client.MOST_TOPICS", 2)
    bus = make_bus(subscribe=False)
    bus.begin()
    for n in range(5):
        bus.client.publish_event(f"/{n}/", b"").addErrback(lambda _: None)
    assert bus.publisher.socket.subscriptions == [b"/0/", b"/1/", b""]


def test_close_fails_pending_calls_and_closes_sockets(make_bus: Any) -> None:
    bus = make_bus(subscribe=False, window=1)
    assert not bus.connecting.called
    failures: list[Any] = []
    bus.connecting.addErrback(lambda failure: failures.append(failure.value))
    bus.client.publish_event("/a/", b"").addErrback(lambda failure: failures.append(failure.value))
    bus.client.ready().addErrback(lambda failure: failures.append(failure.value))
    assert bus.client.close().called
    assert [type(failure) for failure in failures] == [Closed, PubUnconfirmed, Closed]  # ready() first
    assert bus.fake.ports
    assert all(port.socket.linger for port in bus.fake.ports)  # libzmq may be in the middle of a message
    assert bus.client.close().called
    with pytest.raises(LocalProtocolError):
        bus.client.publish_event("/a/", b"")
    bus.client.resume()


def test_failed_connections_are_the_problem_until_the_server_answers(make_bus: Any) -> None:
    bus = make_bus()
    bus.monitors["snapshot"].happened(RETRIED, 0)
    assert (bus.client.problem, bus.connecting.called) == ("no connection could be made", False)
    bus.begin()
    assert (bus.client.problem, bus.connecting.called) == ("", True)
    bus.monitors["collector"].happened(RETRIED, 0)
    assert bus.client.problem == "", "the client needs only the other two to know that the server answers"
    bus.monitors["publisher"].happened(DISCONNECTED, 0)
    assert bus.client.problem == "the server closed the connection"


def test_client_ends_if_the_server_does_not_speak_zeromq(make_bus: Any) -> None:
    bus = make_bus()
    bus.monitors["snapshot"].happened(FAILED_PROTOCOL, 0)
    with pytest.raises(ConnectionFailed, match="does not speak ZeroMQ"):
        bus.connecting.result.raiseException()
    bus.connecting.addErrback(lambda failure: None)
    assert bus.client.closed


def test_a_client_connects_once(make_bus: Any, fake_zmq: Any) -> None:
    bus = make_bus()
    with pytest.raises(LocalProtocolError, match="create another client"):
        bus.client.connect()
    closed = EventBusClient(Reactor(), "127.0.0.1", 5556)
    closed.close()
    with pytest.raises(LocalProtocolError, match="create another client"):
        closed.connect()


def test_invalid_host_is_refused(fake_zmq: Any) -> None:
    fake_zmq("client")
    client = EventBusClient(Reactor(), "a b", 5556)
    with pytest.raises(LocalProtocolError, match="cannot connect to 'a b', port 5557"):
        client.connect()
    assert client.close().called


def test_client_can_be_closed_before_it_connects(fake_zmq: Any) -> None:
    client = EventBusClient(Reactor(), "127.0.0.1", 5556)
    assert client.position is None
    assert client.close().called
    with pytest.raises(LocalProtocolError):
        client.ready()


def test_client_may_be_closed_from_a_callback(make_bus: Any) -> None:
    bus = make_bus(after=0)
    bus.begin()
    bus.client.on_events = lambda events: bus.client.close()
    bus.publisher.get(broadcast(1))
    assert all(port.socket.closed for port in bus.fake.ports)
