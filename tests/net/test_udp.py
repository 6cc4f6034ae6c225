"""The UDP port, with a fake socket: batches, and kernels without them."""

from __future__ import annotations

import errno
import socket
from collections import Counter
from collections.abc import Callable
from random import Random
from struct import pack, unpack
from typing import Any

import pytest
from twisted.internet.error import CannotListenError, MessageLengthError
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
        assert size == 2 * socket.CMSG_SPACE(4), "the segment and the drops have room"
        if not self.incoming:
            raise BlockingIOError(errno.EAGAIN, "nothing")
        item = self.incoming.pop(0)
        if isinstance(item, OSError):
            raise item
        data, ancillary, source = item
        buffers[0][: len(data)] = data
        return len(data), ancillary, 0, source

    def sendmsg(self, buffers: list[memoryview], ancillary: list[Any], flags: int, to: Address) -> int:
        assert [each[:2] for each in ancillary] in ([], [(17, 103)]), "it is not UDP_SEGMENT of Linux"
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
    name = "backbone"

    def __init__(self) -> None:
        self.timers, self.counters = Timers(Clock()), Counters()
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


class Kernel:
    """A kernel that has no room now and then, and refuses batches for several reasons.

    :ivar learned: whether it has taken a single datagram right after it had refused a batch, as by an old kernel
    :ivar down: the error of each datagram to AWAY, if any
    """

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.unsupported = dice.choice((None, None, None, *REFUSED))
        self.mtu = dice.choice((50, 1_400, 1 << 16))
        self.down = dice.choice((None, None, *DOWN))
        self.learned = False
        self._refused: int | None = None
        self._batch_refused = False
        self.busy = dice.choice((0.0, 0.2))

    def refuse(self, size: int, segment: int, to: Address) -> int | None:
        before, self._refused = self._refused, self.answer(segment, to)
        if self._batch_refused and self._refused is None and before in REFUSED:
            self.learned, self.unsupported = True, None
        self._batch_refused = segment > 0
        return self._refused

    def answer(self, segment: int, to: Address) -> int | None:
        assert not (segment and self.learned), "it is known that the kernel supports no batches"
        if self.dice.random() < self.busy:
            return errno.EAGAIN
        if to == AWAY and self.down is not None:
            return self.down
        if self._refused != errno.ECONNREFUSED and self.dice.random() < 0.1:
            return errno.ECONNREFUSED  # for an earlier datagram
        return self.unsupported if segment and self.unsupported else errno.EMSGSIZE if segment > self.mtu else None


#: The errors with which kernels refuse batches.
REFUSED = (errno.EINVAL, errno.ENOPROTOOPT, errno.EIO, errno.EOPNOTSUPP)
#: The errors of a destination; ENOBUFS is that of the whole machine.
DOWN = (
    errno.ECONNREFUSED,
    errno.EMSGSIZE,
    errno.ENOBUFS,
    errno.EPERM,
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.EINVAL,
)


def send_in_random_order(dice: Random) -> None:
    """Send trains to two destinations, beside a list of what belongs on the wire."""
    kernel, batching = Kernel(dice), dice.random() < 0.8
    bench, wanted, failed = Bench(batching=batching), list[tuple[bytes, int, Address]](), 0
    batches = batching and kernel.unsupported is None
    bench.socket.refuse = kernel.refuse
    for step in range(200):
        if step < 60 and dice.random() < 0.6:
            segment, to = dice.choice((100, 1_000, 1_472, 1_473)), dice.choice((THERE, AWAY))
            made = train(dice.randrange(1, 6), segment, last=dice.randrange(1, segment + 1))
            bench.port.write_train(made, to)
            if to == AWAY and kernel.down is not None:
                failed += 1
            elif batches and made.segment < made.size and segment <= min(kernel.mtu, 1_472):
                wanted.append((bytes(made.data), segment, to))
            else:
                wanted += [(piece, 0, to) for piece in pieces(made)]
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
        assert bench.socket.sent == wanted[: len(bench.socket.sent)]
    assert (bench.socket.sent, bench.port.waiting) == (wanted, 0)
    assert not failed or bench.count(f"send-{errno.errorcode[kernel.down or 0]}") == failed
    assert (bench.reactor.readers, bench.socket.closed) == ({bench.port}, False)


def test_threat_error_of_one_destination_affects_no_other() -> None:
    """Threat: ICMP errors; trains are sent in order, in batches where the kernel and the path allow them."""
    for seed in range(120):
        send_in_random_order(Random(seed))


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


def joined(trains: list[tuple[bytes, int, Address]]) -> list[tuple[bytes, int, Address]]:
    """Join consecutive datagrams of one source and size, of which only the last may be shorter."""
    found: list[tuple[bytes, int, Address]] = []
    for data, segment, source in trains:
        before = found[-1] if found else (b"", 0, AWAY)
        if data and before[0] and before[1:] == (segment, source) and not len(before[0]) % segment:
            found[-1] = before[0] + data, segment, source
        else:
            found.append((data, segment, source))
    return found


def test_datagrams_are_read_in_order_and_each_turn_joins_and_reads_a_bounded_number() -> None:
    """Threat: receive buffer overflow; a turn is bounded in calls, datagrams and bytes, and drops are counted."""
    bounds: Counter[str] = Counter()
    for seed in range(60):
        dice, bench, reported, errors = Random(seed), Bench(), 0, 0
        unit, many, total = dice.choice((1, 1, 500)), dice.choice((1, 20)), dice.choice((0, 0xFFFFFFF0))
        arrived: list[tuple[bytes, int, Address] | None] = []
        for _ in range(dice.choice((10, 600))):
            segment, source = dice.choice((1, 2, 3)) * unit, THERE if dice.random() < 0.8 else AWAY
            data = bytes(dice.choices(b"abc", k=dice.randrange(6) * many)) * unit
            options = [(socket.SOL_IP, 1, b"1234")] * dice.randrange(2)
            if dice.random() < 0.5 and data:
                options.append(gro(segment))
            else:
                segment = max(len(data), 1)
            failed = dice.random() < 0.05
            if dice.random() < 0.1 and not failed:
                reported = total = total + dice.randrange(10)
                options.append(drops(total & 0xFFFFFFFF))
            arrived.append(None if failed else (data, segment, source))
            error = OSError(dice.choice((errno.ECONNREFUSED, errno.ENOMEM)), "an error")
            bench.socket.incoming.append(error if failed else (data, options, source))
        while arrived:
            calls = size = datagrams = 0
            got: list[tuple[bytes, int, Address]] = []
            while arrived and calls < udp.READ_CALLS and datagrams < udp.READ_TURN and size <= (1 << 20) - (1 << 16):
                calls += 1
                if (item := arrived.pop(0)) is None:
                    errors += 1
                    continue
                got.append(item)
                size, datagrams = size + len(item[0]), datagrams + max(1, -(-len(item[0]) // item[1]))
            bench.owner.received.clear()
            bench.port.doRead()
            assert bench.owner.received == joined(got)
            assert len(bench.socket.incoming) == len(arrived)
            cause = "calls" if calls == udp.READ_CALLS else "datagrams" if datagrams >= udp.READ_TURN else "bytes"
            bounds[cause] += bool(arrived)
        assert (bench.count("receive-error"), bench.count("dropped-by-kernel")) == (errors, reported)
    assert min(bounds[each] for each in ("calls", "datagrams", "bytes")) > 3, f"hardly tried: {bounds}"


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
        (socket.SOL_SOCKET, 40): 1,  # SO_RXQ_OVFL of Linux
        (17, 104): 1,  # SOL_UDP, UDP_GRO
        (socket.IPPROTO_IP, 10): 0,  # IP_MTU_DISCOVER, IP_PMTUDISC_DONT
    }
    assert (udp.SOL_UDP, udp.UDP_GRO) not in Bench(batching=False).socket.options
    assert not [line for line in log_lines if "rmem_max" in line], "the buffer is as large as it was asked for"


def test_default_bind_address_faces_the_server() -> None:
    assert udp.host_towards(("127.0.0.1", 2323)) == "127.0.0.1"
    assert [udp.is_local(host) for host in ("127.0.0.1", "192.0.2.1")] == [True, False]


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
        "udp:2323:interface=1.2.3.4.5",
        "udp:2323:interface=::1",
        "udp:2323:interface=127.0.0.1:backlog=5",
        "udp:2323:host=127.0.0.1",
    ],
)
def test_invalid_endpoint_is_refused_with_the_expected_form(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="expected udp:PORT or udp:PORT:interface=IP"):
        udp.parse_endpoint("notes", endpoint)


# A transport that moves one datagram per call.


class PlainTransport:
    """The part of Twisted's UDP port that a protocol uses."""

    maxPacketSize = 8_192

    def __init__(self, error: Exception | None = None) -> None:
        self.sent: list[tuple[bytes, Address]] = []
        self.error = error

    def write(self, datagram: bytes, addr: Address) -> None:
        if self.error is not None and addr == AWAY:
            raise self.error
        self.sent.append((bytes(datagram), addr))


def test_datagrams_that_arrive_together_are_one_turn_of_a_plain_transport() -> None:
    owner, clock = Owner(), Clock()
    owner.timers = Timers(clock)
    owner.makeConnection(PlainTransport())
    assert owner.transport.maxPacketSize == 65_507, "large datagrams are not truncated"
    for datagram in (b"one", b"", b"three"):
        owner.datagramReceived(datagram, THERE)
    assert owner.turns == 0
    clock.advance(0)
    owner.datagramReceived(b"four", AWAY)
    assert (owner.received, owner.turns) == (
        [(b"one", 3, THERE), (b"", 1, THERE), (b"three", 5, THERE), (b"four", 4, AWAY)],
        1,
    )
    owner.doStop()
    assert (owner.turns, clock.getDelayedCalls()) == (1, [])


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (MessageLengthError("message too long"), "send-EMSGSIZE"),
        (OSError(errno.ENOBUFS, "no buffer space"), "send-ENOBUFS"),
        (BlockingIOError(errno.EAGAIN, "no room"), "send-EAGAIN"),
        (OSError("something else"), "send-error"),
    ],
)
def test_threat_error_of_one_destination_of_a_plain_transport_affects_no_other(error: Exception, cause: str) -> None:
    owner, transport = Owner(), PlainTransport(error)
    owner.makeConnection(transport)
    owner.send(Train(b"aabb", 2), AWAY)
    owner.send(Train(b"aabbc", 2), THERE)
    owner.flush()
    assert transport.sent == [(b"aa", THERE), (b"bb", THERE), (b"c", THERE)]
    assert (owner.counters.counts["backbone", cause], owner.waiting) == (2, 0)
