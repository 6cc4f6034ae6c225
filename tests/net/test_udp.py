"""The UDP port, with a fake socket: batches, and kernels without them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from random import Random
from struct import pack, unpack
from typing import Any

import pytest
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IReadWriteDescriptor
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface.verify import verifyObject

from fyrehose.errors import ConfigError
from fyrehose.net import udp
from fyrehose.net.lifecycle import Timers
from fyrehose.net.udp import TrainProtocol, UDPPort
from fyrehose.observe.counters import Counters
from fyrehose.protocols.backbone.frames import Address
from fyrehose.protocols.backbone.gso_batches import Train

THERE = ("10.0.0.2", 4000)
AWAY = ("10.9.9.9", 4000)


class FakeReactor:
    """Records readers and writers."""

    def __init__(self) -> None:
        self.readers: set[object] = set()
        self.writers: set[object] = set()

    def addReader(self, reader: object) -> None:
        self.readers.add(reader)

    def addWriter(self, writer: object) -> None:
        self.writers.add(writer)

    def removeReader(self, reader: object) -> None:
        self.readers.discard(reader)

    def removeWriter(self, writer: object) -> None:
        self.writers.discard(writer)


class FakeSocket:
    """A socket: sends unless ``refuse`` returns an errno, and receives the items of ``incoming``."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, int, Address]] = []
        self.calls = 0
        self.refuse: Callable[[int, int, Address], int | None] = lambda size, segment, to: None
        self.incoming: list[Any] = []
        self.options: dict[tuple[int, int], int] = {}
        self.no_options: set[int] = set()
        self.receive_buffer = 1 << 30
        self.bind_error: OSError | None = None
        self.closed = False

    def bind(self, address: Address) -> None:
        if self.bind_error is not None:
            raise self.bind_error

    def getsockname(self) -> Address:
        return ("10.0.0.1", 2323)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        if option in self.no_options:
            raise OSError(errno.ENOPROTOOPT, "no such option")
        self.options[level, option] = value

    def getsockopt(self, level: int, option: int) -> int:
        return self.receive_buffer

    def fileno(self) -> int:
        return 77

    def close(self) -> None:
        self.closed = True

    def recvmsg_into(self, buffers: list[memoryview], size: int) -> tuple[int, list[Any], int, Address]:
        if not self.incoming:
            raise BlockingIOError(errno.EAGAIN, "nothing")
        item = self.incoming.pop(0)
        if isinstance(item, OSError):
            raise item
        data, ancillary, source = item
        buffers[0][: len(data)] = data
        return len(data), ancillary, 0, source

    def sendmsg(self, buffers: list[memoryview], ancillary: list[Any], flags: int, to: Address) -> int:
        segment = unpack("=H", ancillary[0][2])[0] if ancillary else 0
        data = bytes(buffers[0])
        self.calls += 1
        error = self.refuse(len(data), segment, to)
        if error is not None:
            raise OSError(error, errno.errorcode[error])
        self.sent.append((data, segment, to))
        return len(data)

    def datagrams(self) -> list[bytes]:
        """Return the datagrams on the wire."""
        return [d[at : at + (s or len(d))] for d, s, _ in self.sent for at in range(0, len(d), s or len(d))]


class Owner(TrainProtocol):
    timers = Timers(Clock())
    name = "backbone"

    def __init__(self) -> None:
        self.counters = Counters()
        self.received: list[tuple[bytes, int, Address]] = []
        self.turns = 0
        self.calls: list[str] = []
        self.fail = False

    def datagrams_received(self, data: memoryview, segment: int, source: Address) -> None:
        if self.fail:
            raise RuntimeError("a bug")
        self.received.append((bytes(data), segment, source))

    def turn_over(self) -> None:
        self.turns += 1

    def congested(self) -> None:
        self.calls.append("congested")

    def relieved(self) -> None:
        self.calls.append("relieved")


class Bench:
    def __init__(self, prepare: Callable[[FakeSocket], None] = lambda sock: None, **settings: Any) -> None:
        self.reactor, self.owner, self.socket = FakeReactor(), Owner(), FakeSocket()
        prepare(self.socket)
        self.port = UDPPort(0, self.owner, "10.0.0.1", self.reactor, **settings)
        self.port.createInternetSocket = self.create  # type: ignore[method-assign]
        self.port.startListening()

    def create(self) -> Any:
        self.port.socket = self.socket  # type: ignore[assignment]
        return self.socket

    def count(self, what: str) -> int:
        return self.owner.counters.counts["backbone", what]

    def send(self, train: Train, to: Address = THERE) -> None:
        self.port.write_train(train, to)
        self.port.flush()


def train(count: int = 10, segment: int = 100, last: int = 100) -> Train:
    return Train(b"".join(bytes([i]) * segment for i in range(count - 1)) + bytes([count - 1]) * last, segment)


def pieces(whole: Train) -> list[bytes]:
    data = bytes(whole.data)
    return [data[at : at + whole.segment] for at in range(0, len(data), whole.segment)]


def test_port_is_a_read_write_descriptor() -> None:
    bench = Bench()
    assert verifyObject(IReadWriteDescriptor, bench.port)
    assert (bench.port.fileno(), bench.port.logPrefix()) == (77, "Owner (UDP)")
    assert (bench.port.getHost().host, bench.port.getHost().port) == ("10.0.0.1", 2323)
    assert bench.reactor.readers == {bench.port}
    bench.port.connectionLost(Failure(RuntimeError()))
    assert bench.socket.closed
    assert bench.port.fileno() == -1
    assert bench.reactor.readers == set()


def test_address_in_use_fails_listen() -> None:
    def taken(made: FakeSocket) -> None:
        made.bind_error = OSError(errno.EADDRINUSE, "in use")

    with pytest.raises(CannotListenError, match="in use"):
        Bench(taken)


# Sending.


def test_batch_is_sent_by_one_call_and_a_single_datagram_without_segmentation() -> None:
    bench = Bench()
    bench.send(train(last=40))
    bench.send(train(1))
    assert [(len(data), segment, to) for data, segment, to in bench.socket.sent] == [
        (940, 100, THERE),
        (100, 0, THERE),
    ]


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOPROTOOPT, errno.EIO, errno.EOPNOTSUPP])
def test_batching_refused_once_is_never_tried_again(error: int) -> None:
    bench = Bench()
    bench.socket.refuse = lambda size, segment, to: error if segment else None
    bench.send(train())
    assert bench.socket.datagrams() == pieces(train())
    bench.socket.refuse = lambda size, segment, to: None
    bench.send(train())
    assert {segment for _, segment, _ in bench.socket.sent} == {0}
    assert bench.socket.datagrams() == pieces(train()) * 2


def test_destination_that_refuses_single_datagrams_too_does_not_end_batching() -> None:
    bench = Bench()
    bench.socket.refuse = lambda size, segment, to: errno.EINVAL if to == AWAY else None
    bench.send(train(), AWAY)
    bench.send(train())
    assert [segment for _, segment, _ in bench.socket.sent] == [100]
    assert bench.count("send-EINVAL") == 1


def test_path_with_a_smaller_mtu_gets_single_datagrams() -> None:
    bench = Bench()
    bench.socket.refuse = lambda size, segment, to: errno.EMSGSIZE if segment > 1_000 else None
    bench.send(train(segment=1_400, last=1_400))
    bench.send(train(segment=1_400, last=1_400))
    bench.send(train(segment=900, last=900))
    assert [segment for _, segment, _ in bench.socket.sent] == [0] * 20 + [900]
    assert bench.socket.calls == 23


def test_segments_larger_than_a_packet_are_sent_singly() -> None:
    bench = Bench()
    bench.send(train(segment=1_473, last=1_473))
    assert {segment for _, segment, _ in bench.socket.sent} == {0}


@pytest.mark.parametrize(
    "error", [errno.ECONNREFUSED, errno.EMSGSIZE, errno.ENOBUFS, errno.EPERM, errno.ENETUNREACH, errno.EHOSTUNREACH]
)
def test_threat_error_of_one_destination_affects_no_other(error: int) -> None:
    bench = Bench()
    bench.socket.refuse = lambda size, segment, to: error if to == AWAY else None
    for to in (AWAY, THERE, AWAY, THERE):
        bench.port.write_train(train(), to)
    bench.port.flush()
    assert [to for _, _, to in bench.socket.sent] == [THERE, THERE]
    assert bench.socket.datagrams() == pieces(train()) * 2
    assert bench.count(f"send-{errno.errorcode[error]}") == 2
    assert bench.port.waiting == 0
    assert bench.reactor.readers == {bench.port}
    assert not bench.socket.closed


def test_error_of_an_earlier_datagram_does_not_drop_this_one() -> None:
    bench = Bench()
    errors = [errno.ECONNREFUSED]
    bench.socket.refuse = lambda size, segment, to: errors.pop() if errors else None
    bench.send(train())
    assert bench.socket.datagrams() == pieces(train())


def send_in_random_order(dice: Random) -> None:
    """Send trains while the kernel has no room now and then, or refuses batches to a path."""
    bench, wanted = Bench(batching=dice.random() < 0.7), list[tuple[bytes, Address]]()

    def refuse(size: int, segment: int, to: Address) -> int | None:
        return dice.choices((None, errno.EAGAIN, errno.EMSGSIZE if segment else None), (7, 2, 1))[0]

    bench.socket.refuse = refuse
    for step in range(200):
        if step < 60 and dice.random() < 0.6:
            made, to = train(dice.randrange(1, 6), last=dice.randrange(1, 101)), dice.choice((THERE, AWAY))
            bench.port.write_train(made, to)
            wanted += [(piece, to) for piece in pieces(made)]
        elif bench.reactor.writers:
            calls = bench.socket.calls
            bench.port.flush()
            assert bench.socket.calls == calls, "the kernel has not said that it has room"
            bench.port.doWrite()
        else:
            bench.port.flush()
            assert bool(bench.port.waiting) == bool(bench.reactor.writers)
        assert bench.owner.calls == (["congested", "relieved"] * 200)[: len(bench.owner.calls)]
        assert bool(bench.reactor.writers) == (bench.owner.calls[-1:] == ["congested"])
        to_each = [to for data, segment, to in bench.socket.sent for _ in range(0, len(data), segment or len(data))]
        sent = list(zip(bench.socket.datagrams(), to_each, strict=True))
        assert sent == wanted[: len(sent)]
    assert (sent, bench.port.waiting) == (wanted, 0)


def test_datagrams_are_sent_in_order_whenever_the_kernel_has_room() -> None:
    for seed in range(100):
        send_in_random_order(Random(seed))


def test_batch_that_the_kernel_refused_is_sent_whole_later() -> None:
    bench = Bench()
    bench.socket.refuse = lambda size, segment, to: errno.EAGAIN
    bench.send(train())
    bench.socket.refuse = lambda size, segment, to: None
    bench.port.doWrite()
    assert [segment for _, segment, _ in bench.socket.sent] == [100]


def test_sending_is_bounded_per_turn() -> None:
    bench = Bench()
    for _ in range(1_000):
        bench.port.write_train(train(), THERE)
    bench.port.flush()
    assert bench.socket.calls == udp.SEND_TURN
    turns = 0
    while bench.port.waiting:
        bench.port.doWrite()
        turns += 1
    assert bench.socket.calls == 1_000
    assert turns == 7
    assert bench.owner.calls == ["congested", "relieved"]


# Receiving.


def gro(segment: int) -> tuple[int, int, bytes]:
    return (udp.SOL_UDP, udp.UDP_GRO, pack("=i", segment))


def drops(n: int) -> tuple[int, int, bytes]:
    return (socket.SOL_SOCKET, udp.SO_RXQ_OVFL, pack("=I", n))


def test_received_datagrams_have_their_segment() -> None:
    bench = Bench()
    other = (socket.SOL_IP, 1, b"1234")
    bench.socket.incoming = [(b"abcabc", [other, gro(3)], THERE), (b"abcd", [], AWAY), (b"", [], AWAY)]
    bench.port.doRead()
    assert bench.owner.received == [(b"abcabc", 3, THERE), (b"abcd", 4, AWAY), (b"", 1, AWAY)]
    assert bench.owner.turns == 1


def test_consecutive_datagrams_become_one_batch() -> None:
    bench = Bench()
    bench.socket.incoming = [
        (b"abcdef", [gro(3)], THERE),
        (b"ghi", [], THERE),
        (b"jkl!", [gro(3)], THERE),
        (b"mno", [], THERE),  # behind a shorter one
        (b"pqr", [], AWAY),
        (b"st", [], AWAY),
        (b"uv", [], AWAY),
        (b"", [], AWAY),
        (b"", [], AWAY),
        (b"uv", [], AWAY),
        (b"wxyz", [gro(2)], THERE),
    ]
    bench.port.doRead()
    assert bench.owner.received == [
        (b"abcdefghijkl!", 3, THERE),
        (b"mno", 3, THERE),
        (b"pqr", 3, AWAY),
        (b"stuv", 2, AWAY),
        (b"", 1, AWAY),
        (b"", 1, AWAY),
        (b"uv", 2, AWAY),
        (b"wxyz", 2, THERE),
    ]
    assert bench.owner.turns == 1


@pytest.mark.parametrize(
    ("data", "options", "calls"),
    [
        (b"x", [], udp.READ_CALLS),
        (b"", [], udp.READ_CALLS),
        (b"xy" * 64, [gro(2)], udp.READ_TURN // 64),
        (bytes(65_507), [], 16),
    ],
)
def test_threat_receive_buffer_overflow_a_flood_leaves_others_their_turn(
    data: bytes, options: list[Any], calls: int
) -> None:
    """Threat: receive buffer overflow; a turn is bounded in calls, datagrams and bytes."""
    bench = Bench()
    bench.socket.incoming = [(data, options, THERE)] * 1_000
    bench.port.doRead()
    assert len(bench.socket.incoming) == 1_000 - calls
    assert b"".join(received for received, _, _ in bench.owner.received) == data * calls


def test_datagrams_dropped_by_the_kernel_are_counted() -> None:
    """Threat: receive buffer overflow."""
    bench = Bench()
    bench.socket.incoming = [(b"x", [drops(n)], THERE) for n in (0, 0, 5, 5, 7, 0xFFFFFFFF)]
    bench.port.doRead()
    assert bench.count("dropped-by-kernel") == 0xFFFFFFFF
    bench.socket.incoming = [(b"x", [drops(3)], THERE)]
    bench.port.doRead()
    assert bench.count("dropped-by-kernel") == 0xFFFFFFFF + 4


def test_errors_while_reading_do_not_stop_the_port() -> None:
    bench = Bench()
    bench.socket.incoming = [OSError(errno.ECONNREFUSED, "refused"), (b"x", [], THERE)]
    bench.port.doRead()
    assert len(bench.owner.received) == 1
    assert bench.count("receive-error") == 1
    bench.socket.incoming = [OSError(errno.ENOMEM, "no memory")] * 1_000
    bench.port.doRead()
    assert len(bench.socket.incoming) == 1_000 - udp.READ_CALLS


def test_exception_for_one_datagram_does_not_stop_the_port(logged_errors: Any) -> None:
    bench = Bench()
    bench.owner.fail = True
    bench.socket.incoming = [(b"x", [], THERE), (b"x", [], AWAY)]
    bench.port.doRead()
    assert len(logged_errors.take()) == 2
    assert bench.owner.turns == 1
    turn_over = bench.owner.turn_over
    bench.owner.turn_over = lambda: 1 // 0  # type: ignore[method-assign]
    bench.port.doRead()
    assert len(logged_errors.take()) == 1
    bench.owner.turn_over = turn_over  # type: ignore[method-assign]
    bench.owner.fail = False
    bench.socket.incoming = [(b"y", [], THERE)]
    bench.port.doRead()
    assert bench.owner.received == [(b"y", 1, THERE)]


def test_port_may_be_closed_while_reading() -> None:
    bench = Bench()
    bench.owner.datagrams_received = lambda *_: bench.port.stopListening()  # type: ignore[method-assign]
    bench.socket.incoming = [(b"x", [], THERE), (b"x", [], AWAY), (b"x", [], AWAY)]
    bench.port.doRead()
    assert len(bench.socket.incoming) == 1
    assert bench.count("receive-error") == 0
    bench.port.doRead()
    bench.port.stopListening()
    bench.port.stopReading()


def test_port_works_without_kernel_support(log_lines: list[str]) -> None:
    def old(made: FakeSocket) -> None:
        made.no_options = {udp.UDP_GRO, udp.SO_RXQ_OVFL, socket.SO_RCVBUF, udp.IP_MTU_DISCOVER}
        made.receive_buffer = 1_000

    bench = Bench(old)
    assert "receive buffer of 500 bytes instead of 4194304: raise net.core.rmem_max" in log_lines[1]
    bench.send(train())
    assert {segment for _, segment, _ in bench.socket.sent} == {0}
    bench.socket.incoming = [(b"x", [], THERE)]
    bench.port.doRead()
    assert bench.owner.received == [(b"x", 1, THERE)]


def test_socket_options_are_set(log_lines: list[str]) -> None:
    assert Bench().socket.options == {
        (socket.SOL_SOCKET, socket.SO_RCVBUF): 4 << 20,
        (socket.SOL_SOCKET, udp.SO_RXQ_OVFL): 1,
        (udp.SOL_UDP, udp.UDP_GRO): 1,
        (socket.IPPROTO_IP, udp.IP_MTU_DISCOVER): udp.IP_PMTUDISC_DONT,
    }
    assert (udp.SOL_UDP, udp.UDP_GRO) not in Bench(batching=False).socket.options
    assert not [line for line in log_lines if "rmem_max" in line], "the buffer is as large as it was asked for"


def test_default_bind_address_faces_the_server() -> None:
    assert udp.host_towards(("127.0.0.1", 2323)) == "127.0.0.1"


def test_port_that_has_stopped_reading_still_sends() -> None:
    bench = Bench()
    bench.port.stopReading()
    assert bench.reactor.readers == set()
    bench.send(train())
    assert bench.socket.datagrams() == pieces(train())


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("udp:2323:interface=127.0.0.1", ("127.0.0.1", 2323)),
        ("udp:0:interface=10.0.0.7", ("10.0.0.7", 0)),
        ("udp:65535", ("0.0.0.0", 65535)),
    ],
)
def test_valid_endpoint_is_parsed_into_host_and_port(endpoint: str, address: tuple[str, int]) -> None:
    assert udp.parse_endpoint("notes", endpoint) == address


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "udp",
        "udp:",
        "tcp:2323",
        "UDP:2323",
        "udp:65536",
        "udp:-1",
        "udp: 1",
        "udp:٣",
        "udp:2323:",
        "udp:2323:127.0.0.1",
        "udp:2323:interface=",
        "udp:2323:interface=localhost",
        "udp:2323:interface=::1",
        "udp:2323:interface=127.0.0.1:backlog=5",
        "udp:2323:host=127.0.0.1",
    ],
)
def test_invalid_endpoint_is_refused_with_the_expected_form(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="expected udp:PORT or udp:PORT:interface=IP"):
        udp.parse_endpoint("notes", endpoint)
