"""Messages over inproc sockets, with the native kernel and with pyzmq."""

from __future__ import annotations

import errno
import gc
import struct
import time
from collections.abc import Callable, Iterator
from socket import create_connection
from types import ModuleType
from typing import Any

import pytest
import zmq
from hypothesis import example, given
from hypothesis import strategies as st

from fyrehose import kernels
from fyrehose.bench.wires.zmtp import GREETING, ready
from fyrehose.bench.wires.zmtp import frame as zmtp_frame
from fyrehose.identity import Action
from fyrehose.protocols.eventbus import messages as pure
from fyrehose.protocols.eventbus.messages import NOWHERE, Fastest, Origin
from fyrehose.protocols.eventbus.zap import ADDRESS, DOMAINS, Authenticator

try:
    from fyrehose.protocols.eventbus import zeromq as native
except ImportError:
    native = None

KERNELS = [
    pytest.param(pure, id="pure"),
    pytest.param(
        native, id="native", marks=pytest.mark.skipif(native is None, reason="the native kernels are not built")
    ),
]
both = pytest.mark.parametrize("kernel", KERNELS)

#: A limit that no call reaches.
MUCH = 1 << 20
MESSAGES = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=8), max_size=12)


class Pair:
    """Two connected inproc sockets; a sent message arrives at once."""

    def __init__(self, kind: int = zmq.PAIR, other: int = zmq.PAIR, **options: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket, self.other = self._context.socket(kind), self._context.socket(other)
        for option, value in {"SNDHWM": 0, "RCVHWM": 0, **options}.items():
            for socket in (self.socket, self.other):
                socket.setsockopt(getattr(zmq, option), value)
        self.socket.bind("inproc://test")
        self.other.connect("inproc://test")

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(0)


def until(condition: Callable[[], bool]) -> None:
    """Wait until a thread of ZeroMQ's or pyzmq's has done its part."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair() as pair:
        yield pair


def test_native_messages_are_used_with_native_kernels() -> None:
    """The kernel finds its functions in the libzmq of the installed pyzmq."""
    assert Fastest is (native if kernels.NATIVE else pure).Messages


@both
def test_messages_are_received_whole(kernel: ModuleType, pair: Pair) -> None:
    messages = kernel.Messages(pair.socket, 3)
    assert messages.receive(MUCH, MUCH) == ([], MUCH, MUCH)
    for frames in ([b"a", b"", b"\0\xff" * 50_000], [b""], [b"1", b"2", b"3", b"4", b"5"]):
        pair.other.send_multipart(frames)
    found, frames_left, bytes_left = messages.receive(MUCH, MUCH)
    assert found == [
        ([b"a", b"", b"\0\xff" * 50_000], 3, NOWHERE),
        ([b""], 1, NOWHERE),
        ([b"1", b"2", b"3"], 5, NOWHERE),
    ]
    assert (MUCH - frames_left, MUCH - bytes_left) == (9, 100_004), "frames that are not kept count no bytes"
    assert messages.receive(MUCH, MUCH) == ([], MUCH, MUCH)


@both
def test_message_has_its_origin(kernel: ModuleType) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.RCVTIMEO, 20_000)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        messages = kernel.Messages(router, 16)
        origins: list[Origin] = []
        dealers = [context.socket(zmq.DEALER) for _ in range(2)]
        for dealer in (*dealers, dealers[0]):
            dealer.connect(f"tcp://127.0.0.1:{port}") if dealer not in dealers[: len(origins)] else None
            dealer.send_multipart([b"x", b"y"])
            assert router.poll(20_000)
            ((_, count, origin),) = messages.receive(MUCH, MUCH)[0]
            assert count == 3
            origins.append(origin)
    finally:
        context.destroy(0)
    assert origins == [("127.0.0.1", -1, 0)] * 3, "a descriptor says nothing without a number"


@both
def test_message_has_the_number_that_the_zap_handler_gave_its_connection(kernel: ModuleType) -> None:
    """The address is that of the socket, even if the peer sends a property of that name in its READY."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    numbers = []
    try:
        handler, router = context.socket(zmq.REP), context.socket(zmq.ROUTER)
        handler.setsockopt(zmq.RCVTIMEO, 20_000)
        handler.bind(ADDRESS)
        router.setsockopt(zmq.ZAP_DOMAIN, DOMAINS[Action.SUBSCRIBE])
        port = router.bind_to_random_port("tcp://127.0.0.1")
        messages = kernel.Messages(router, 16)
        for number in (7, 12_345_678_901):
            with create_connection(("127.0.0.1", port)) as peer:
                forged = b"\x07User-Id" + struct.pack(">I", 2) + b"99"
                peer.sendall(GREETING + zmtp_frame(ready(b"DEALER")[2:] + forged, 4))
                handler.send_multipart(Authenticator().answer(handler.recv_multipart(), number).frames)
                for _ in range(2):
                    peer.sendall(zmtp_frame(b"x"))
                    assert router.poll(20_000)
                    numbers += [origin[2] for _, _, origin in messages.receive(MUCH, MUCH)[0]]
    finally:
        context.destroy(0)
    assert numbers == [7, 7, 12_345_678_901, 12_345_678_901]


@both
def test_message_may_take_several_calls(kernel: ModuleType, pair: Pair) -> None:
    messages = kernel.Messages(pair.socket, 16)
    pair.other.send_multipart([b"ab", b"cd", b"ef"])
    assert messages.receive(1, 100) == ([], 0, 98)
    assert messages.receive(100, 1) == ([], 99, -1)
    assert messages.receive(0, 100) == ([], 0, 100)
    assert messages.receive(100, 0) == ([], 100, 0)
    assert messages.receive(100, 100) == ([([b"ab", b"cd", b"ef"], 3, NOWHERE)], 99, 98)


@both
def test_messages_before_an_error_are_returned(kernel: ModuleType) -> None:
    """A REP socket raises if it is read again before its answer."""
    with Pair(zmq.REP, zmq.DEALER) as pair:
        messages = kernel.Messages(pair.socket, 16)
        for question in (b"1", b"2"):
            pair.other.send_multipart([b"", question])
        assert messages.receive(MUCH, MUCH)[0] == [([b"1"], 1, NOWHERE)]
        with pytest.raises(zmq.ZMQError) as raised:
            messages.receive(MUCH, MUCH)
        assert raised.value.errno == zmq.EFSM
        messages.send([b"answer"])
        assert messages.receive(MUCH, MUCH)[0] == [([b"2"], 1, NOWHERE)]
        assert pair.other.recv_multipart() == [b"", b"answer"]


@both
def test_reading_a_closed_socket_raises(kernel: ModuleType, pair: Pair) -> None:
    messages = kernel.Messages(pair.socket, 16)
    pair.socket.close()
    for call in (lambda: messages.receive(MUCH, MUCH), lambda: messages.send([b"x"]), lambda: messages.lend([b"x"])):
        with pytest.raises(zmq.ZMQError) as raised:
            call()
        assert raised.value.errno == errno.ENOTSOCK


@both
def test_any_bytes_are_sent(kernel: ModuleType, pair: Pair) -> None:
    messages = kernel.Messages(pair.socket, 16)
    messages.send((bytearray(b"a"), memoryview(b"-bc-")[1:3], b""))
    messages.send([b"d"], True)
    messages.send([], True)
    messages.send([b"e"])
    assert pair.other.recv_multipart() == [b"a", b"bc", b""]
    assert pair.other.recv_multipart() == [b"d", b"e"]
    with pytest.raises(TypeError):
        messages.send(["text"])


@both
def test_sending_to_a_full_socket_or_an_unknown_peer_raises(kernel: ModuleType) -> None:
    with Pair(zmq.PUSH, zmq.PULL, SNDHWM=1, RCVHWM=1) as pair:
        messages = kernel.Messages(pair.socket, 16)
        for n in range(2):
            messages.send([b"%d" % n, b"."])
        with pytest.raises(zmq.Again):
            messages.send([b"2", b"."])
        assert [pair.other.recv_multipart() for _ in range(2)] == [[b"0", b"."], [b"1", b"."]]
        assert pair.socket.getsockopt(zmq.EVENTS) & zmq.POLLOUT  # asking has it take in that there is room
        messages.send([b"3"])
        assert pair.other.recv_multipart() == [b"3"], "no part of the refused messages was sent"
    with Pair(zmq.ROUTER, zmq.DEALER) as pair:
        pair.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        with pytest.raises(zmq.ZMQError) as raised:
            kernel.Messages(pair.socket, 16).send([b"nobody", b"x"])
        assert raised.value.errno == errno.EHOSTUNREACH


@both
def test_borrowed_messages_are_counted_until_every_subscriber_has_received_them(kernel: ModuleType) -> None:
    """Events of two topics, each with a subscriber that reads nothing until asked."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket, readers = context.socket(zmq.XPUB), [context.socket(zmq.SUB) for _ in range(2)]
        socket.bind("inproc://test")
        for reader, topic in zip(readers, (b"/a/", b"/b/"), strict=True):
            reader.setsockopt(zmq.SUBSCRIBE, topic)
            reader.connect("inproc://test")
            assert socket.recv() == b"\1" + topic
        messages = kernel.Messages(socket, 16)
        for topic, data in ((b"/c/", b"nobody"), (b"/a/", b"x"), (b"/b/", memoryview(bytes(100_000))), (b"/b/", b"")):
            messages.lend((topic, b"1", data))
        until(lambda: messages.held() == (3, 3 * 4 + 100_001))
        assert readers[0].recv_multipart() == [b"/a/", b"1", b"x"]
        until(lambda: messages.held() == (2, 2 * 4 + 100_000))
        assert readers[1].recv_multipart() == [b"/b/", b"1", bytes(100_000)]
        until(lambda: messages.held() == (1, 4))
        readers[1].close()  # the sending socket notices when it processes its commands
        until(lambda: socket.getsockopt(zmq.EVENTS) >= 0 and messages.held() == (0, 0))
        with pytest.raises(TypeError):
            messages.lend((b"/a/", "text"))
    finally:
        context.destroy(0)


@both
def test_option_is_set_to_each_of_many_values(kernel: ModuleType) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        subscriber, publisher = context.socket(zmq.SUB), context.socket(zmq.XPUB)
        publisher.bind("inproc://all")
        subscriber.connect("inproc://all")
        messages = kernel.Messages(subscriber, 16)
        messages.set_all(zmq.SUBSCRIBE, [b"a", b"\0b", b""])
        messages.set_all(zmq.UNSUBSCRIBE, [b"a"])
        heard = []
        while publisher.poll(1_000 if len(heard) < 4 else 0):
            heard.append(publisher.recv())
        with pytest.raises(zmq.ZMQError):
            messages.set_all(zmq.LAST_ENDPOINT, [b"is read only"])
    finally:
        context.destroy(0)
    assert heard == [b"\1a", b"\1\0b", b"\1", b"\0a"]
    with pytest.raises(zmq.ZMQError):
        messages.set_all(zmq.SUBSCRIBE, [b"closed"])


@both
def test_socket_releases_borrowed_messages_after_the_sending_object_is_deleted(kernel: ModuleType) -> None:
    with Pair() as pair:
        messages = kernel.Messages(pair.socket, 16)
        messages.lend([b"x", bytes(1_000)])
        assert messages.held() == (1, 1_001)
        del messages
        gc.collect()
        assert pair.other.recv_multipart() == [b"x", bytes(1_000)]


@pytest.mark.skipif(native is None, reason="the native kernels are not built")
@given(MESSAGES, st.integers(0, 5), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 100)), max_size=10))
@example([[b"1", b"2", b"3"]], 2, [(1, 100), (100, 1)])
def test_native_and_pure_implementation_return_equal_messages(
    sent: list[list[bytes]], kept: int, calls: list[tuple[int, int]]
) -> None:
    """Both implementations read the same messages with the same limits, call by call."""

    def run(writer: Any, reader: Any) -> list[object]:
        with Pair() as pair:
            write, read = writer.Messages(pair.other, kept), reader.Messages(pair.socket, kept)
            for frames in sent:
                write.send(frames)
            return [read.receive(*limits) for limits in (*calls, (MUCH, MUCH), (MUCH, MUCH))]

    found = run(pure, native)
    assert found == run(native, pure)
    last: Any = found[-1]
    assert last == ([], MUCH, MUCH)
    messages = [message for each in found for message in each[0]]  # type: ignore[index]
    assert messages == [(frames[:kept], len(frames), NOWHERE) for frames in sent]
