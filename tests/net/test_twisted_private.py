"""The TCP transport writes at once while the kernel accepts data, and otherwise in order and with a pause."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.endpoints import UNIXServerEndpoint
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.error import ConnectionLost
from twisted.internet.main import CONNECTION_LOST
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.tcp import Port, Server
from twisted.internet.testing import StringTransport
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure

from fyrehose.net.sockets import READ
from fyrehose.net.twisted_private import (
    ACCEPTS,
    EVENTS,
    UNSENT,
    WRITE,
    PromptServer,
    ReopeningLogFile,
    _unsent,
    hand_over,
    path_of,
    shorten_turns,
    tune_port,
)

#: More than any kernel takes at once from a socket whose buffers were made small.
MUCH = 3 << 20


@attrs.define(eq=False)
class Reactor:
    """Notes who waits for what."""

    readers: set[Any] = attrs.field(factory=set)
    writers: set[Any] = attrs.field(factory=set)
    called: list[Any] = attrs.field(factory=list)

    def callLater(self, seconds: float, function: Any, *arguments: Any) -> None:
        self.called.append(function)

    def addReader(self, reader: Any) -> None:
        self.readers.add(reader)

    def addWriter(self, writer: Any) -> None:
        self.writers.add(writer)

    def removeReader(self, reader: Any) -> None:
        self.readers.discard(reader)

    def removeWriter(self, writer: Any) -> None:
        self.writers.discard(writer)


class Producer:
    def __init__(self) -> None:
        self.said: list[str] = []

    def pauseProducing(self) -> None:
        self.said.append("pause")

    def resumeProducing(self) -> None:
        self.said.append("resume")

    def stopProducing(self) -> None:
        self.said.append("stop")


@attrs.define(eq=False)
class Pair:
    """A connection, and the socket of its peer."""

    reactor: Reactor
    transport: PromptServer
    peer: socket.socket
    producer: Producer

    def read(self) -> bytes:
        """All that has arrived, the transport writing whenever it waits for that."""
        got = bytearray()
        while True:
            try:
                while data := self.peer.recv(1 << 20):
                    got += data
            except BlockingIOError:
                if self.transport not in self.reactor.writers:
                    return bytes(got)
                self.transport.doWrite()


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setblocking(False)
    reactor = Reactor()
    transport = PromptServer(ours, Protocol(), ("127.0.0.1", 1), None, 0, reactor)  # type: ignore[arg-type]
    producer = Producer()
    transport.registerProducer(producer, True)  # type: ignore[arg-type]
    yield Pair(reactor, transport, theirs, producer)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("seed", range(12))
def test_data_is_written_at_once_while_the_kernel_accepts_it_and_otherwise_in_order_with_a_pause(
    pair: Pair, seed: int
) -> None:
    dice, transport, said = Random(seed), pair.transport, pair.producer.said
    produces, written, got = seed % 4 > 0, b"", b""
    if not produces:
        transport.unregisterProducer()
    for number in range(80):
        pieces = [bytes([number]) * dice.choice((0, 1, 1_000, MUCH // 20)) for _ in range(dice.randrange(4))]
        match dice.randrange(4):
            case 0 | 1:
                transport.writeSequence(pieces)
                written += b"".join(pieces)
            case 2:
                for piece in pieces:
                    transport.write(piece)
                    written += piece
            case _ if transport in pair.reactor.writers:
                transport.doWrite()
        waits = transport in pair.reactor.writers
        changes = [each for each, _ in groupby(said)]  # Twisted pauses again with each large write
        assert changes == ["pause", "resume"] * (len(changes) // 2) + ["pause"] * (waits and produces)
        if not waits or dice.random() < 0.3:
            with suppress(BlockingIOError):
                while data := pair.peer.recv(1 << 20):
                    got += data
            assert got == written if not waits else written.startswith(got)
    assert got + pair.read() == written


@pytest.fixture
def slow() -> Iterator[tuple[PromptServer, socket.socket]]:
    """A TCP connection, and its peer, which has a small buffer."""
    with socket.socket() as listening, socket.socket() as peer:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(listening.getsockname())
        ours, address = listening.accept()
        with ours:
            ours.setblocking(False)
            yield PromptServer(ours, Protocol(), address, None, 0, Reactor()), peer


@pytest.mark.parametrize("size", [100, 10_000, WRITE, MUCH])
def test_the_kernel_holds_a_bounded_number_of_unsent_bytes(slow: tuple[PromptServer, socket.socket], size: int) -> None:
    transport, _ = slow
    for _ in range(MUCH // size):
        transport.write(bytes(size))
    for _ in range(50):
        if select.select([], [transport.socket], [], 0)[1]:
            transport.doWrite()
    assert UNSENT // 4 <= _unsent(transport.socket) <= UNSENT


def test_unsent_data_arrives_when_the_peer_reads(slow: tuple[PromptServer, socket.socket]) -> None:
    transport, peer = slow
    much = bytes(range(256)) * (MUCH // 256)
    transport.write(much)
    got = bytearray()
    while len(got) < len(much):
        got += peer.recv(1 << 16)
        if select.select([], [transport.socket], [], 0)[1]:
            transport.doWrite()
    assert got == much


def test_an_aborted_connection_drops_its_unsent_data_at_once(pair: Pair) -> None:
    pair.transport.write(b"x" * MUCH)
    pair.transport.write(b"y" * MUCH)
    assert len(pair.transport.dataBuffer) == pair.transport._tempDataLen == MUCH
    pair.transport.abortConnection()
    assert (pair.transport.dataBuffer, pair.transport._tempDataBuffer) == (b"", [])
    assert pair.reactor.called == [pair.transport.connectionLost]


def test_a_lost_connection_is_reported_by_the_reactor(pair: Pair) -> None:
    pair.peer.close()
    pair.transport.write(b"to nobody")
    assert pair.transport in pair.reactor.writers
    assert isinstance(pair.transport.doWrite(), ConnectionLost)


def test_a_connection_closes_after_written_data_is_sent(pair: Pair) -> None:
    pair.transport.unregisterProducer()
    pair.transport.write(b"first ")
    pair.transport.loseConnection()
    pair.transport.write(b"last")
    assert pair.transport.doWrite() is not None, "done"
    assert pair.peer.recv(100) == b"first last"


def test_no_plain_text_is_sent_after_start_tls(pair: Pair) -> None:
    class Encrypting(Protocol):
        def __init__(self) -> None:
            self.sealed: list[bytes] = []

        def writeSequence(self, data: list[bytes]) -> None:
            self.sealed += data

    pair.transport.protocol = encrypting = Encrypting()
    pair.transport.TLS = True  # what startTLS sets
    pair.transport.write(b"secret")
    assert encrypting.sealed == [b"secret"]
    with pytest.raises(BlockingIOError):
        pair.peer.recv(10)


def test_large_amounts_are_read_at_once(pair: Pair) -> None:
    got: list[int] = []
    pair.transport.protocol.dataReceived = lambda data: got.append(len(data))
    pair.peer.setblocking(True)
    pair.peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    sent = pair.peer.send(b"x" * (READ // 2))
    pair.transport.doRead()
    assert got == [sent]


def test_only_tcp_ports_are_tuned() -> None:
    port = Port(0, Factory(), reactor=Reactor())
    assert tune_port(port) is port
    assert port.transport is PromptServer

    class Special(Server):
        pass

    port.transport = Special
    tune_port(port)
    assert port.transport is Special
    assert tune_port("something else") == "something else"


def test_a_port_accepts_a_few_connections_at_a_time() -> None:
    made: list[Any] = []

    class Remembered(Protocol):
        def connectionMade(self) -> None:
            made.append(self.transport)

    factory = Factory.forProtocol(Remembered)
    port: Any = tune_port(Port(0, factory, 3 * ACCEPTS, "127.0.0.1", Reactor()))
    port.startListening()
    try:
        clients = [socket.create_connection(("127.0.0.1", port.getHost().port)) for _ in range(2 * ACCEPTS + 1)]
        accepted = []
        for _ in range(4):
            before = port.sessionno
            port.doRead()
            accepted.append(port.sessionno - before)
        assert accepted == [ACCEPTS, ACCEPTS, 1, 0]
    finally:
        for client in (*clients, *(transport.socket for transport in made)):
            client.close()
        port._closeSocket(True)


def test_a_new_connection_has_the_private_attributes_of_twisted_that_we_use(pair: Pair) -> None:
    """A version of Twisted that renames one would only read and write an attribute of ours."""
    transport = Server(pair.transport.socket, Protocol(), ("127.0.0.1", 1), None, 0, Reactor())  # type: ignore[arg-type]
    assert (transport.dataBuffer, transport.offset) == (b"", 0)
    assert (transport._tempDataBuffer, transport._tempDataLen) == ([], 0)
    assert (transport.TLS, transport._writeDisconnected, transport.disconnecting) == (False, False, False)
    assert (transport.producer, Server.bufferSize, Server.SEND_LIMIT) == (None, 1 << 16, 1 << 17)


def test_twisted_itself_accepts_more_connections_in_one_turn() -> None:
    port: Any = Port(0, Factory.forProtocol(Protocol), interface="127.0.0.1", reactor=Reactor())
    port.startListening()
    assert (port.transport, port.numberAccepts > ACCEPTS) == (Server, True)
    port.connectionLost(Failure(ConnectionLost()))


class Recording(Protocol):
    """Remembers what it receives."""

    def __init__(self) -> None:
        self.received = b""

    def dataReceived(self, data: bytes) -> None:
        self.received += data


def test_data_of_a_connection_that_was_handed_over_goes_to_its_new_protocol(pair: Pair) -> None:
    second = Recording()
    hand_over(pair.transport, second)
    assert second.transport is pair.transport
    pair.peer.sendall(b"hello")
    pair.transport.doRead()
    assert second.received == b"hello"


def test_data_of_a_wrapped_connection_that_was_handed_over_goes_to_its_new_protocol() -> None:
    first, second = Recording(), Recording()
    wrapper = ProtocolWrapper(WrappingFactory(Factory()), first)
    wrapper.makeConnection(StringTransport())
    hand_over(wrapper, second)
    wrapper.dataReceived(b"hello")
    assert (first.received, second.received, second.transport) == (b"", b"hello", wrapper)


def test_the_path_of_a_unix_endpoint_is_read() -> None:
    assert path_of(UNIXServerEndpoint(Reactor(), "/run/figg")) == "/run/figg"


def test_log_file_is_opened_again_by_its_name(tmp_path: Path) -> None:
    log = ReopeningLogFile("log", str(tmp_path))  # type: ignore[no-untyped-call]
    first = os.fstat(log.descriptor)
    (tmp_path / "log").rename(tmp_path / "moved")
    log.reopen()
    log.write("behind\n")  # type: ignore[no-untyped-call]
    log.flush()  # type: ignore[no-untyped-call]
    assert not os.path.samestat(first, os.fstat(log.descriptor))
    assert ((tmp_path / "moved").read_text(), (tmp_path / "log").read_text()) == ("", "behind\n")
    log.close()  # type: ignore[no-untyped-call]


@attrs.define(eq=False)
class Readable:
    """An object with a descriptor that is readable at once, and stays so."""

    reactor: Any
    read: Any
    descriptor: int
    lost: list[Any] = attrs.field(factory=list)

    def fileno(self) -> int:
        return self.descriptor

    def doRead(self) -> Any:
        return self.read(self)

    def connectionLost(self, reason: Any) -> None:
        self.lost.append(reason.value)

    def logPrefix(self) -> str:
        return "test"


@pytest.fixture
def readables() -> Iterator[Any]:
    """Return a reactor with short turns, and a function that adds a readable to it, which calls a function."""
    reactor: Any = EPollReactor()
    shorten_turns(reactor)
    readable, other = socket.socketpair()
    other.send(b"x")
    descriptors: list[int] = []

    def add(read: Any) -> Readable:
        descriptors.append(os.dup(readable.fileno()))
        found = Readable(reactor, read, descriptors[-1])
        reactor.addReader(found)
        return found

    yield reactor, add
    for descriptor in descriptors:
        os.close(descriptor)
    readable.close()
    other.close()


def test_a_turn_of_the_reactor_handles_a_bounded_number_of_events(readables: Any) -> None:
    reactor, add = readables
    handled: list[Readable] = []

    def read(readable: Readable) -> None:
        handled.append(readable)
        reactor.removeReader(readable)

    added = [add(read) for _ in range(2 * EVENTS + 1)]
    counts = []
    for _ in range(4):
        before = len(handled)
        reactor.doIteration(0)
        counts.append(len(handled) - before)
    assert counts == [EVENTS, EVENTS, 1, 0]
    assert set(handled) == set(added)


def test_of_many_events_each_network_has_as_many_handled(readables: Any) -> None:
    reactor, add = readables
    handled: list[Any] = []

    class Silent(Protocol):
        def __init__(self, name: str) -> None:
            self.name = name

        def dataReceived(self, data: bytes) -> None:
            handled.append(self.name)

    transports, peers = [], []
    for host in ["10.0.0.1", *["10.0.0.2"] * 2 * EVENTS, "10.0.0.3"]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.send(b"x")
        transports.append(PromptServer(ours, Silent(host), (host, 1), None, 0, reactor))  # type: ignore[arg-type]
        transports[-1].startReading()  # type: ignore[no-untyped-call]
        peers.append(theirs)
    own = add(lambda readable: handled.append("own"))
    reactor.doIteration(0)
    reactor.removeReader(own)
    assert (len(handled), *map(handled.count, ("10.0.0.1", "10.0.0.3", "own"))) == (EVENTS, 1, 1, 1)
    for transport, peer in zip(transports, peers, strict=True):
        reactor.removeReader(transport)
        transport.socket.close()
        peer.close()


def test_an_object_whose_reading_fails_is_lost_and_the_others_are_read(readables: Any, logged_errors: Any) -> None:
    reactor, add = readables
    handled: list[Readable] = []

    def fail(readable: Readable) -> None:
        raise ValueError("a bug")

    failing, others = add(fail), [add(handled.append) for _ in range(2)]
    failing_too = add(fail)
    reactor.doIteration(0)
    assert (set(handled), set(reactor.getReaders()) & set(others)) == (set(others), set(others))
    assert [type(*readable.lost) for readable in (failing, failing_too)] == [ValueError, ValueError]
    assert [error["log_failure"].type for error in logged_errors.take()] == [ValueError, ValueError]
    reactor.doIteration(0)
    assert len(handled) == 4


def test_an_object_that_another_one_removes_in_the_same_turn_is_not_read(readables: Any) -> None:
    reactor, add = readables
    handled: list[Readable] = []

    def read(readable: Readable) -> None:
        handled.append(readable)
        for each in added:
            reactor.removeReader(each)

    added = [add(read) for _ in range(3)]
    reactor.doIteration(0)
    assert len(handled) == 1


def test_an_object_that_says_its_connection_is_lost_is_ended(readables: Any) -> None:
    reactor, add = readables
    readable = add(lambda _: CONNECTION_LOST)
    reactor.doIteration(0)
    assert [type(error) for error in readable.lost] == [ConnectionLost]
    assert readable not in reactor.getReaders()


def test_reactors_without_epoll_are_not_changed() -> None:
    reactor = Reactor()
    before = attrs.asdict(reactor)
    shorten_turns(reactor)
    assert attrs.asdict(reactor) == before
