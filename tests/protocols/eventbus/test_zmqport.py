"""ZeroMQ ports, over inproc sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from select import select
from socket import create_connection
from typing import Any

import attrs
import pytest
import zmq
from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface.verify import verifyObject

from fyrehose.protocols.eventbus.queued_memory import Full
from fyrehose.protocols.eventbus.zmqport import (
    ACCEPTED,
    BYTES_TURN,
    DISCONNECTED,
    FRAMES_TURN,
    MOST_FRAMES,
    Gone,
    ZMQPort,
)

Context = zmq.Context[zmq.Socket[bytes]]


class Reactor(Clock):
    """A clock that has readers."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: set[Any] = set()

    def addReader(self, reader: Any) -> None:
        self.readers.add(reader)

    def removeReader(self, reader: Any) -> None:
        self.readers.discard(reader)

    def turn(self, timeout: float = 0.0) -> None:
        """Call readable readers, then calls that are due; wait up to *timeout* seconds for the former."""
        readable, _, _ = select([reader for reader in self.readers if reader.fileno() >= 0], [], [], timeout)
        for reader in readable:
            reader.doRead()
        for call in self.due():
            if call.active():
                self.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)

    def due(self) -> list[Any]:
        return [call for call in self.calls if call.getTime() <= self.seconds()]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            self.turn(0.0 if self.due() else 0.01)


_sockets: list[zmq.Socket[bytes]] = []


class KeepingContext(zmq.Context[zmq.Socket[bytes]]):
    """Keeps references to its sockets, so that all can be closed."""

    def socket(self, *args: Any, **options: Any) -> Any:
        _sockets.append(super().socket(*args, **options))
        return _sockets[-1]


@pytest.fixture
def context() -> Iterator[Context]:
    context = KeepingContext()
    yield context
    context.destroy(0)
    _sockets.clear()


def fill(port: ZMQPort, *frames: bytes) -> int:
    """Send until the queue of the peer is full; return the number of messages."""
    for sent in range(10_000):
        try:
            port.send([b"\0peer\xff", *frames])
        except Full:
            return sent
    raise AssertionError("it has never enough")


@attrs.define(eq=False)
class Pair:
    """A port and a plain socket that is connected to it."""

    reactor: Reactor
    port: ZMQPort
    peer: zmq.Socket[bytes]
    received: list[tuple[list[bytes], int]]
    turns: list[int]

    @classmethod
    def make(cls, context: Context, kind: int, peer: int, **options: Any) -> Pair:
        reactor, socket = Reactor(), context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        for option, value in options.items():
            socket.setsockopt(getattr(zmq, option), value)
        socket.bind("inproc://test")
        received: list[tuple[list[bytes], int]] = []
        turns: list[int] = []
        port = ZMQPort(
            reactor, socket, lambda frames, count: received.append((frames, count)), lambda: turns.append(len(received))
        )
        other = context.socket(peer)
        other.setsockopt(zmq.LINGER, 0)
        other.setsockopt(zmq.RCVHWM, 1)
        if peer != zmq.SUB:
            other.setsockopt(zmq.IDENTITY, b"\0peer\xff")
            other.setsockopt(zmq.SNDHWM, 0)
        other.connect("inproc://test")
        return cls(reactor, port, other, received, turns)


def test_port_is_a_read_descriptor(context: Context) -> None:
    pair = Pair.make(context, zmq.ROUTER, zmq.DEALER)
    assert verifyObject(IReadDescriptor, pair.port)
    assert pair.port.logPrefix() == "eventbus"
    assert pair.port.fileno() >= 0
    pair.port.close()
    assert pair.port.fileno() == -1
    pair.port.close()
    pair.port.start()
    pair.port.process_commands()
    assert pair.port.drained()
    assert not pair.reactor.readers
    assert not pair.reactor.getDelayedCalls()


def test_messages_come_whole_with_binary_routing_ids(context: Context) -> None:
    pair = Pair.make(context, zmq.ROUTER, zmq.DEALER)
    pair.port.start()
    pair.peer.send_multipart([b"", b"\0", b"x" * 100_000])
    pair.reactor.until(lambda: bool(pair.received))
    assert pair.received == [([b"\0peer\xff", b"", b"\0", b"x" * 100_000], 4)]
    assert pair.turns[-1] == 1


def test_messages_before_start_are_read(context: Context) -> None:
    pair = Pair.make(context, zmq.ROUTER, zmq.DEALER)
    pair.peer.send(b"early")
    pair.port.start()
    pair.reactor.until(lambda: bool(pair.received))
    assert pair.received == [([b"\0peer\xff", b"early"], 2)]


def test_long_turn_is_continued_in_the_next(context: Context) -> None:
    pair = Pair.make(context, zmq.ROUTER, zmq.DEALER, RCVHWM=0)
    for n in range(FRAMES_TURN):
        pair.peer.send(b"%d" % n)
    pair.port.start()
    pair.reactor.turn()
    pair.reactor.until(lambda: len(pair.received) == FRAMES_TURN)
    assert pair.turns[:2] == [FRAMES_TURN // 2, FRAMES_TURN], "two frames each: the routing id counts"
    assert [frames[1] for frames, _ in pair.received] == [b"%d" % n for n in range(FRAMES_TURN)]


def test_large_messages_end_a_turn_sooner(context: Context) -> None:
    pair = Pair.make(context, zmq.ROUTER, zmq.DEALER, RCVHWM=0)
    for _ in range(10):
        pair.peer.send(bytes(BYTES_TURN // 2))
    pair.port.start()
    pair.reactor.until(lambda: len(pair.received) == 10)
    assert pair.turns[:2] == [2, 4], "and the routing id counts"


def test_frames_beyond_the_limit_are_counted_and_not_kept(context: Context) -> None:
    """Threat: wrong frame count, huge messages."""
    pair = Pair.make(context, zmq.ROUTER, zmq.DEALER)
    pair.port.start()
    pair.peer.send_multipart([b"x"] * (3 * FRAMES_TURN))
    pair.peer.send(b"next")
    pair.reactor.until(lambda: len(pair.received) == 2)
    (frames, count), (after, _) = pair.received
    assert (len(frames), count) == (MOST_FRAMES, 3 * FRAMES_TURN + 1)
    assert after == [b"\0peer\xff", b"next"]


def test_paused_port_reads_nothing(context: Context) -> None:
    pair = Pair.make(context, zmq.ROUTER, zmq.DEALER)
    pair.port.start()
    pair.port.pause()
    pair.peer.send(b"x")
    for _ in range(5):
        pair.reactor.turn()
    pair.port.doRead()
    assert pair.received == []
    assert not pair.port.drained()
    pair.port.schedule_turn()
    assert not pair.reactor.getDelayedCalls(), "a paused port schedules nothing"
    pair.port.start()
    pair.reactor.until(lambda: bool(pair.received))
    pair.reactor.turn()
    assert pair.port.drained()


def test_messages_whose_readiness_a_send_has_cleared_are_read(context: Context) -> None:
    """Thousands of interleaved sends and receives: no wake-up is lost."""
    pair = Pair.make(context, zmq.ROUTER, zmq.DEALER, RCVHWM=0, SNDHWM=0)
    pair.peer.setsockopt(zmq.RCVHWM, 0)
    pair.port.start()
    for n in range(5_000):
        pair.peer.send(b"%d" % n)
        if n:
            pair.port.send([b"\0peer\xff", b"back"])
        else:
            pair.reactor.until(lambda: bool(pair.received))
        if n % 50 == 0:
            pair.reactor.turn()
    pair.reactor.until(lambda: len(pair.received) == 5_000)
    assert [frames[1] for frames, _ in pair.received] == [b"%d" % n for n in range(5_000)]


@pytest.mark.parametrize("failure", [Full, Gone])
def test_messages_whose_readiness_a_failed_send_has_cleared_are_read(
    context: Context, failure: type[Exception]
) -> None:
    pair = Pair.make(context, zmq.ROUTER, zmq.DEALER, SNDHWM=2)
    pair.port.start()
    pair.peer.send(b"here I am")
    pair.reactor.until(lambda: bool(pair.received))
    if failure is Full:
        fill(pair.port, b"a")
    for _ in range(3):
        pair.reactor.turn()
    pair.peer.send(b"unread")
    # libzmq does this in a send when enough time has passed: it processes all pending commands.
    pair.port.process_commands()
    assert select([pair.port], [], [], 0)[0] == [], "the descriptor is not readable"
    with pytest.raises(failure):
        pair.port.send([b"\0peer\xff" if failure is Full else b"nobody", b"a"])
    pair.reactor.until(lambda: len(pair.received) == 2)


def test_failed_send_schedules_no_turn_without_messages(context: Context) -> None:
    pair = Pair.make(context, zmq.ROUTER, zmq.DEALER, SNDHWM=2)
    pair.port.start()
    pair.peer.send(b"here I am")
    pair.reactor.until(lambda: bool(pair.received))
    pair.reactor.turn()
    pair.reactor.turn()
    fill(pair.port, b"a")
    pair.reactor.turn()
    for name in (b"\0peer\xff", b"nobody"):
        with pytest.raises((Full, Gone)):
            pair.port.send([name, b"a"])
    assert not pair.reactor.getDelayedCalls(), "a full peer would keep the reactor busy"


def test_send_to_a_full_or_disconnected_peer_raises(context: Context) -> None:
    pair = Pair.make(context, zmq.ROUTER, zmq.DEALER, SNDHWM=2)
    pair.port.start()
    pair.peer.send(b"here I am")
    pair.reactor.until(lambda: bool(pair.received))
    sent = fill(pair.port, b"a", b"b")
    assert sent == 3, "two are queued here, one at the peer"
    for _ in range(sent):
        assert pair.peer.recv_multipart() == [b"a", b"b"], "no part of the refused message was sent"
    pair.reactor.turn()
    with pytest.raises(Gone):
        pair.port.send([b"nobody", b"a"])
    pair.port.send([b"\0peer\xff", b"again"])
    assert pair.peer.recv_multipart() == [b"again"]


def test_room_that_a_failed_send_has_hidden_leads_to_a_turn(context: Context) -> None:
    pair = Pair.make(context, zmq.DEALER, zmq.DEALER, SNDHWM=2)
    pair.port.start()
    fill(pair.port, b"a")
    for _ in range(3):
        pair.reactor.turn()
    pair.turns.clear()
    send = pair.port._messages.send

    def full(*args: Any) -> None:
        try:
            send(*args)
        finally:
            for _ in range(3):  # the peer makes room before the port has looked
                pair.peer.recv_multipart()

    pair.port._messages = attrs.make_class("Failing", {"send": attrs.field(default=full)})()  # type: ignore[assignment]
    with pytest.raises(Full):
        pair.port.send([b"a"])
    assert pair.reactor.getDelayedCalls()


def test_owner_is_called_when_there_is_room_again(context: Context) -> None:
    pair = Pair.make(context, zmq.ROUTER, zmq.DEALER, SNDHWM=2)
    pair.port.start()
    pair.peer.send(b"here I am")
    pair.reactor.until(lambda: bool(pair.received))
    fill(pair.port, b"a")
    pair.reactor.turn()
    pair.turns.clear()
    for _ in range(3):
        pair.peer.recv()
    pair.reactor.until(lambda: bool(pair.turns))
    pair.port.send([b"\0peer\xff", b"again"])
    assert pair.peer.recv() == b"again"


def test_publisher_processes_subscriptions(context: Context) -> None:
    pair = Pair.make(context, zmq.XPUB, zmq.SUB)
    pair.port.start()
    pair.peer.setsockopt(zmq.SUBSCRIBE, b"/a/")
    pair.port.process_commands()
    pair.reactor.turn()
    pair.port.send([b"/b/", b"x"])
    pair.port.send([b"/a/", memoryview(b"y" * 100_000)])
    assert pair.peer.recv_multipart() == [b"/a/", b"y" * 100_000]


def test_failing_owner_does_not_stop_the_port(context: Context, logged_errors: Any) -> None:
    pair = Pair.make(context, zmq.ROUTER, zmq.DEALER)
    seen: list[bytes] = []

    def receive(frames: list[bytes], count: int) -> None:
        seen.append(frames[1])
        raise ValueError(frames[1])

    pair.port.receive = receive
    pair.port.start()
    pair.peer.send(b"1")
    pair.peer.send(b"2")
    pair.reactor.until(lambda: len(seen) == 2)
    assert len(logged_errors.take()) == 2


def test_connection_lost_stops_reading(context: Context) -> None:
    pair = Pair.make(context, zmq.ROUTER, zmq.DEALER)
    pair.port.start()
    pair.port.connectionLost(Failure(Exception()))
    assert not pair.reactor.getDelayedCalls()


def test_monitor_reports_connections(context: Context) -> None:
    reactor, happened = Reactor(), []
    port = ZMQPort(reactor, context.socket(zmq.ROUTER))
    port.watch(ACCEPTED | DISCONNECTED, lambda event, value: happened.append(event))
    assert len(reactor.readers) == 1
    number = port.socket.bind_to_random_port("tcp://127.0.0.1")
    with create_connection(("127.0.0.1", number)):
        reactor.until(lambda: happened == [ACCEPTED])
    reactor.until(lambda: happened == [ACCEPTED, DISCONNECTED])
    port.close()
    port.close()
    assert not reactor.readers
    assert not reactor.getDelayedCalls()


def test_socket_is_monitored_while_the_monitor_of_a_closed_port_still_ends(context: Context) -> None:
    for _ in range(200):  # the new objects lie where the old ones have lain
        reactor = Reactor()
        port = ZMQPort(reactor, context.socket(zmq.DEALER))
        port.watch(ACCEPTED, lambda event, value: None)
        assert len(reactor.readers) == 1
        port.socket.connect("tcp://127.0.0.1:1")
        port.close(1000)


def test_pending_connection_events_can_be_reported_at_once(context: Context) -> None:
    reactor, happened = Reactor(), []
    port = ZMQPort(reactor, context.socket(zmq.ROUTER))
    port.process_events()
    port.watch(ACCEPTED, lambda event, value: happened.append(event))
    with create_connection(("127.0.0.1", port.socket.bind_to_random_port("tcp://127.0.0.1"))):
        for _ in range(1_000):
            port.process_events()
            if happened:
                break
            time.sleep(0.01)
    assert happened == [ACCEPTED]
    port.close()


def test_key_chooses_the_subscribers_and_is_not_sent(context: Context) -> None:
    """The dialects of the event bus are kept apart by this; see ``recognition.py``."""
    publisher = context.socket(zmq.XPUB)
    publisher.setsockopt(zmq.XPUB_MANUAL, 1)
    publisher.bind("inproc://keys")
    keys = iter([b"/a/", b"\xffa/", b"\xffa/", b"\xff"])
    port = ZMQPort(Reactor(), publisher, lambda message, count: port.resubscribe([next(keys)], []))
    port.start()
    text, one, two, everything = [context.socket(zmq.SUB) for _ in range(4)]
    for peer, prefix in ((text, b"/a/"), (one, b"/a/"), (two, b"/a/"), (everything, b"")):
        peer.connect("inproc://keys")
        peer.setsockopt(zmq.RCVTIMEO, 20_000)
        peer.setsockopt(zmq.SUBSCRIBE, prefix)
        port.process_commands()
    large = bytes(100_000)
    for size in (3, 40, 255):  # ZeroMQ keeps small frames in the message itself
        topic = b"/a/".ljust(size, b"x")
        port.lend([topic, b"usual", b"x"])
        port.lend_by_key(b"\xff" + topic[1:], [topic, b"other", memoryview(large)])
        assert text.recv_multipart() == [topic, b"usual", b"x"]
        for peer in (one, two, everything):
            assert peer.recv_multipart() == [topic, b"other", large]
    port.lend_by_key(b"", [b"", b"no topic", b"x"])
    assert everything.recv_multipart() == [b"", b"no topic", b"x"]
    port.lend_by_key(b"\xffz", [b"/z", b"nobody but everything", b"x"])
    assert everything.recv_multipart()[1] == b"nobody but everything"
    assert not any(peer.poll(0) for peer in (text, one, two))
    port.close()


def test_message_for_a_key_without_subscribers_is_dropped(context: Context) -> None:
    publisher = context.socket(zmq.XPUB)
    publisher.setsockopt(zmq.XPUB_MANUAL, 1)
    publisher.bind("inproc://nobody")
    port = ZMQPort(Reactor(), publisher)
    for _ in range(1_000):
        port.lend_by_key(b"\xffa/", [b"/a/", b"1", b"x"])
    deadline = time.monotonic() + 20
    while port.held() != (0, 0):  # a thread of pyzmq takes note of what ZeroMQ has dropped
        assert time.monotonic() < deadline, port.held()
        time.sleep(0.01)
    port.close()
