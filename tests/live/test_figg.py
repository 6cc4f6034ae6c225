"""Test Figg over real sockets: with hand-made bytes, so that no error of our codec can hide, and with our client."""

from __future__ import annotations

import fcntl
import random
import signal
import socket
import struct
import termios
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.task import deferLater

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.journal.journal import FileJournal
from fyrehose.protocols.figg.client import FIGG_OPTIONS, FiggClient
from fyrehose.protocols.figg.plugin import plugin
from fyrehose.protocols.figg.server import FiggSettings
from fyrehose.records import Run
from fyrehose.testing import until
from fyrehose.testing.ports import free_port

pytestmark = pytest.mark.live

#: How long anything may take on a busy machine before the test fails, in seconds.
PATIENCE = 60.0
#: a client that reconnects without a noticeable delay
AT_ONCE = attrs.evolve(FIGG_OPTIONS, retry=lambda failures: 0.001)
FIGG = ("--listen", "figg=tcp:0:interface=127.0.0.1")
ATTACH, ATTACHED, DETACH, DETACHED, PUBLISH, ACK, DATA, PING, PONG = range(1, 10)


def frame(kind: int, payload: bytes, version: int = 1) -> bytes:
    return struct.pack(">HHI", kind, version, len(payload)) + payload


def field(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def publish(number: int, data: bytes, topic: bytes = b"t") -> bytes:
    return frame(PUBLISH, field(topic) + struct.pack(">Q", number) + field(data))


def attach(topic: bytes, offset: int | None = None, flag: int = 0x8000) -> bytes:
    flags = 0 if offset is None else flag
    return frame(ATTACH, struct.pack(">H", flags) + field(topic) + struct.pack(">Q", offset or 0))


def ack(number: int) -> tuple[int, bytes]:
    return ACK, struct.pack(">Q", number)


def attached(topic: bytes, offset: int) -> tuple[int, bytes]:
    return ATTACHED, field(topic) + struct.pack(">Q", offset)


def data(number: int, payload: bytes, topic: bytes = b"t") -> tuple[int, bytes]:
    return DATA, field(topic) + struct.pack(">Q", number) + field(payload)


@attrs.define(eq=False)
class Peer:
    """A plain socket that speaks Figg with hand-made bytes."""

    port: int
    host: str = "127.0.0.1"  #: the address from which it connects
    socket: socket.socket = attrs.field(init=False)
    stream: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port), PATIENCE, (self.host, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.socket.makefile("rb")

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.socket.close()

    def say(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def hear(self) -> tuple[int, bytes] | None:
        """Return type and payload of the next frame; None when the server has closed the connection."""
        header = self.stream.read(8)
        if not header:
            return None
        kind, version, size = struct.unpack(">HHI", header)
        assert version == 1
        return kind, self.stream.read(size)

    def acknowledged(self, number: int) -> None:
        """Read ACKs, which must rise, until ``number`` is acknowledged."""
        last = 0
        while last != number:
            heard = self.hear()
            assert heard is not None, f"closed after ACK {last}"
            assert heard[0] == ACK
            (this,) = struct.unpack(">Q", heard[1])
            assert last < this <= number
            last = this


def payloads(count: int, seed: int = 1) -> list[bytes]:
    """Return payloads of every kind: empty, text, binary, some of them large."""
    rng = random.Random(seed)
    return [rng.randbytes(rng.choice((0, 1, 7, 128, 1000, 100_000 if i % 100 == 0 else 3))) for i in range(count)]


def read_all(port: int, count: int, topic: bytes = b"t") -> list[tuple[int, bytes]]:
    """Return the first ``count`` messages of a topic."""
    with Peer(port) as peer:
        peer.say(attach(topic, 0))
        assert peer.hear() == attached(topic, 0)
        return [peer.hear() for _ in range(count)]  # type: ignore[misc]


def resident(pid: int) -> int:
    """Return the memory of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the status of the process has no VmRSS")


def ioctl_unread(peer: socket.socket) -> int:
    """Return how many bytes have arrived at *peer* and are unread."""
    return int(struct.unpack("i", fcntl.ioctl(peer, termios.FIONREAD, bytes(4)))[0])


def test_every_message_of_figg_has_the_specified_bytes(start: Any) -> None:
    port = start(*FIGG).port("figg")
    with Peer(port) as writer, Peer(port) as reader:
        reader.say(attach(b"t"))
        assert reader.hear() == attached(b"t", 0)
        writer.say(publish(41, b"one"), publish(42, b""), publish(43, b"\x00\xff"))
        writer.acknowledged(43)
        expected = [data(1, b"one"), data(2, b""), data(3, b"\x00\xff")]
        assert [reader.hear() for _ in range(3)] == expected
        for flag in (0x8000, 0x0001, 0xFFFF):
            reader.say(attach(b"t", 1, flag))
            assert reader.hear() == attached(b"t", 1)
            assert [reader.hear() for _ in range(2)] == expected[1:]
        reader.say(attach(b"t", 1 << 63))
        assert reader.hear() == attached(b"t", 0), "the offset is one of another journal"
        assert [reader.hear() for _ in range(3)] == expected
        reader.say(frame(DETACH, field(b"t")), frame(DETACH, field(b"never")), frame(PING, struct.pack(">Q", 7)))
        assert reader.hear() == (DETACHED, field(b"t"))
        assert reader.hear() == (DETACHED, field(b"never"))
        assert reader.hear() == (PONG, struct.pack(">Q", 7))
        writer.say(publish(44, b"nobody hears this"))
        writer.acknowledged(44)
        reader.say(frame(PING, struct.pack(">Q", 8)))
        assert reader.hear() == (PONG, struct.pack(">Q", 8))


@pytest.mark.parametrize("window", [1, 10_000])
def test_every_payload_comes_back_unchanged_live_and_later(start: Any, window: int) -> None:
    sent = payloads(300 if window == 1 else 20_000)
    port = start(*FIGG).port("figg")
    with Peer(port) as writer, Peer(port) as reader:
        reader.say(attach(b"t"))
        assert reader.hear() == attached(b"t", 0)
        heard: list[Any] = []
        for begin in range(0, len(sent), window):
            end = min(begin + window, len(sent))
            writer.say(*(publish(i + 1, sent[i]) for i in range(begin, end)))
            heard += [reader.hear() for _ in range(begin, end)]
            writer.acknowledged(end)
    expected = [data(i + 1, payload) for i, payload in enumerate(sent)]
    assert heard == expected
    assert read_all(port, len(sent)) == expected


def test_acknowledged_messages_survive_a_stop_and_a_kill(start: Any) -> None:
    sent = payloads(2000)
    expected = [data(i + 1, payload) for i, payload in enumerate(sent)]
    for end, number in ((1000, signal.SIGTERM), (2000, signal.SIGKILL)):
        server = start(*FIGG)
        with Peer(server.port("figg")) as writer:
            writer.say(*(publish(i + 1, sent[i]) for i in range(end - 1000, end)))
            if end == 1000:
                writer.acknowledged(1000)
            else:
                # A new connection numbers its messages from 1 again; none is dropped as a repetition.
                last = 0
                while last < 2000:
                    (last,) = struct.unpack(">Q", writer.hear()[1])  # type: ignore[index]
            server.stop(number)
    port = start(*FIGG).port("figg")
    assert read_all(port, 2000) == expected
    with Peer(port) as reader:
        reader.say(attach(b"t", 1990))
        assert reader.hear() == attached(b"t", 1990)
        assert [reader.hear() for _ in range(10)] == expected[1990:]


def test_a_peer_that_has_finished_sending_still_gets_its_ack(start: Any) -> None:
    port = start(*FIGG).port("figg")
    with Peer(port) as peer:
        peer.say(*(publish(i + 1, b"x" * 1000) for i in range(1000)))
        peer.socket.shutdown(socket.SHUT_WR)
        peer.acknowledged(1000)
        assert peer.hear() is None


HEADER = struct.Struct(">HHI")
MALFORMED = {
    "an unknown type": frame(10, bytes(8)),
    "type 0": frame(0, b""),
    "a type that only servers send": frame(ACK, bytes(8)),
    "a wrong version": frame(PING, bytes(8), version=2),
    "too short": frame(PING, bytes(7)),
    "too long": frame(PING, bytes(9)),
    "4 GiB": HEADER.pack(PUBLISH, 1, 0xFFFFFFFF),
    "more than the largest message": HEADER.pack(PUBLISH, 1, (16 << 20) + 300),
    "a topic that is longer than its frame": frame(DETACH, struct.pack(">I", 200) + b"t" * 100),
    "a topic of 4 GiB": frame(PUBLISH, struct.pack(">I", 0xFFFFFFFF) + bytes(60)),
    "data that is longer than its frame": frame(PUBLISH, field(b"t") + struct.pack(">QI", 1, 5) + b"four"),
    "data that is shorter than its frame": frame(PUBLISH, field(b"t") + struct.pack(">QI", 1, 3) + b"four"),
    "no topic": frame(PUBLISH, field(b"") + struct.pack(">Q", 1) + field(b"x")),
    "a topic of 256 bytes": frame(DETACH, field(b"t" * 256)),
    "a topic that is no UTF-8": frame(DETACH, field(b"\xff")),
}


def test_a_malformed_frame_closes_only_the_connection_of_its_sender(start: Any) -> None:
    server = start(*FIGG)
    port = server.port("figg")
    with Peer(port) as reader, Peer(port) as other:
        reader.say(attach(b"t"))
        assert reader.hear() == attached(b"t", 0)
        for number, (what, wire) in enumerate(MALFORMED.items()):
            # each refusal delays the next one of the same address for longer
            with Peer(port, f"127.0.1.{number + 1}") as rude:
                rude.say(publish(1, what.encode()), wire, publish(2, b"never taken"))
                assert rude.hear() == ack(1), what
                assert rude.hear() is None, what
            assert reader.hear() == data(2 * number + 1, what.encode())
            other.say(publish(number + 1, b"honest"))
            assert other.hear() == ack(number + 1)
            assert reader.hear() == data(2 * number + 2, b"honest")
    assert server.stop() == 0
    assert "Traceback" not in server.log


def connections_in(seconds: float, port: int, *frames: bytes) -> int:
    """Return how often a client connects in *seconds* that sends *frames*, is refused, and reconnects without a pause.

    Figg's Go SDK does this.  The client first reads the acknowledgements before the refusal.
    """
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        count += 1
        with Peer(port) as peer, suppress(ConnectionError):
            peer.say(*frames)
            while peer.hear() is not None:
                pass
    return count


def test_a_client_that_reconnects_without_a_pause_is_slowed_down(start: Any) -> None:
    server = start(*FIGG)
    port = server.port("figg")
    refusals = {
        "a reserved name": publish(2, b"no", topic=b".dot"),
        "an unknown type": frame(99, b""),
        "one byte more than the largest message": HEADER.pack(PUBLISH, 1, (16 << 20) + 18) + struct.pack(">I", 1),
    }
    for what, wire in refusals.items():
        assert connections_in(3.0, port, publish(1, b"good"), wire) <= 10, what
        with Peer(port) as peer:
            peer.say(publish(1, b"good"), wire, publish(3, b"never"))
            assert peer.hear() == ack(1), "the acknowledgement before a delayed refusal is late"
    heard = [payload for kind, payload in filter(None, read_all(port, 6)) if kind == DATA]
    assert all(payload.endswith(b"good") for payload in heard)
    assert server.stop() == 0, "the server waits for delayed connections when it stops"
    assert "names that begin with a dot are reserved" in server.log
    assert "Traceback" not in server.log


def test_a_client_beyond_the_limit_of_its_address_is_slowed_down(start: Any) -> None:
    server = start(*FIGG, "--option", "figg.max-per-host=1")
    port = server.port("figg")
    with Peer(port) as honest:
        honest.say(publish(1, b"here"))
        assert honest.hear() == ack(1)
        assert connections_in(3.0, port) <= 10
        honest.say(publish(2, b"still here"))
        assert honest.hear() == ack(2)


def test_silent_connections_do_not_block_other_clients(start: Any) -> None:
    options = ("--option", "figg.max-connections=300", "--option", "figg.max-per-host=250")
    server = start(*FIGG, *options)
    port = server.port("figg")
    silent: list[socket.socket] = []
    try:
        for number in range(420):
            source = (f"127.0.1.{number % 2}", 0)
            silent.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE, source_address=source))
        with Peer(port) as writer, Peer(port) as reader:
            reader.say(attach(b"t"))
            assert reader.hear() == attached(b"t", 0)
            for number in range(1, 101):
                writer.say(publish(number, b"honest"))
                assert writer.hear() == ack(number)
                assert reader.hear() == data(number, b"honest")
                source = (f"127.0.1.{number % 2}", 0)
                silent.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE, source_address=source))
    finally:
        for peer in silent:
            peer.close()
    assert server.stop() == 0
    assert "made-room from 127.0.1." in server.log
    assert "made-room from 127.0.0.1" not in server.log


def test_announced_and_trickling_frames_use_little_memory_and_delay_nobody(start: Any) -> None:
    server = start(*FIGG)
    port = server.port("figg")
    before = resident(server.process.pid)
    # 190 announced frames of 16 MiB are six times the memory budget.
    idlers = [Peer(port) for _ in range(190)]
    for idler in idlers:
        idler.say(HEADER.pack(PUBLISH, 1, 16 << 20))
    trickle = publish(1, b"one byte at a time")
    with Peer(port) as slow, Peer(port) as honest:
        for i, byte in enumerate(trickle):
            slow.say(bytes([byte]))
            honest.say(publish(i + 1, b"x" * 1000))
            assert honest.hear() == ack(i + 1)
        assert slow.hear() == ack(1)
    assert resident(server.process.pid) - before < 32 << 20
    for idler in idlers:
        idler.__exit__()


def test_a_subscriber_that_never_reads_uses_little_memory_and_delays_nobody(start: Any) -> None:
    server = start(*FIGG)
    port = server.port("figg")
    payload = random.Random(7).randbytes(65_536)
    count = 1024  # 64 MiB
    with Peer(port) as writer, Peer(port) as reader, Peer(port) as never:
        for peer in (never, reader):
            peer.say(attach(b"t", 0))
        assert reader.hear() == attached(b"t", 0)
        writer.say(publish(1, payload))
        assert writer.hear() == ack(1)
        assert reader.hear() == data(1, payload)
        before = resident(server.process.pid)
        highest = 0
        for i in range(2, count + 1):
            writer.say(publish(i, payload))
            assert reader.hear() == data(i, payload)
            assert writer.hear() == ack(i)
            highest = max(highest, resident(server.process.pid))
        assert highest - before < 48 << 20, "unread records are kept in memory, not only in the journal"


def test_few_bytes_are_sent_before_the_answer_to_a_ping_of_a_slow_subscriber(start: Any) -> None:
    port = start(*FIGG).port("figg")
    payload, count = bytes(10_000), 2_000  # 20 MB
    with Peer(port) as writer:
        for first in range(1, count + 1, 200):
            writer.say(*(publish(number, payload) for number in range(first, first + 200)))
            writer.acknowledged(first + 199)
    with socket.socket() as slow:
        # unread bytes in the peer's own buffer count, too
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        slow.settimeout(PATIENCE)
        slow.connect(("127.0.0.1", port))
        slow.sendall(attach(b"t", 0))
        read = unread = 0
        while read < 1 << 20 or unread != (unread := ioctl_unread(slow)):  # until nothing more arrives
            if read < 1 << 20:
                read += len(slow.recv(10_000))
            else:
                time.sleep(0.2)
        slow.sendall(frame(PING, struct.pack(">Q", 7)))
        pong, before = frame(PONG, struct.pack(">Q", 7)), b""
        while pong not in before:
            before += slow.recv(10_000)
    assert before.index(pong) <= 512 << 10


def test_subscribers_that_leave_or_start_again_do_not_affect_others(start: Any) -> None:
    port = start(*FIGG).port("figg")
    sent = payloads(3000, seed=3)
    expected = [data(i + 1, payload) for i, payload in enumerate(sent)]
    with Peer(port) as writer, Peer(port) as steady, Peer(port) as stopping:
        for peer in (steady, stopping):
            peer.say(attach(b"t"))
            assert peer.hear() == attached(b"t", 0)
        leaving = [Peer(port) for _ in range(20)]
        for peer in leaving:
            peer.say(attach(b"t"))
            assert peer.hear() == attached(b"t", 0)
        heard: list[Any] = []
        for begin in range(0, len(sent), 100):
            writer.say(*(publish(i + 1, sent[i]) for i in range(begin, begin + 100)))
            if leaving:
                leaving.pop().__exit__()  # while deliveries to it are under way
            heard += [steady.hear() for _ in range(100)]
            writer.acknowledged(begin + 100)
            if begin == 1500:
                assert read_all(port, 1600) == expected[:1600]
        assert heard == expected
        assert [stopping.hear() for _ in range(3000)] == expected, "a subscriber that did not read misses messages"


def soon(deferred: Deferred[Any]) -> Deferred[Any]:
    """Return ``deferred``, which fails if it takes too long."""
    return deferred.addTimeout(PATIENCE, reactor)  # type: ignore[arg-type]


@asynccontextmanager
async def serving(directory: Path, endpoint: str) -> AsyncIterator[tuple[Broker, int]]:
    """Return the broker and the port of the plugin over a journal on disk, in this process."""
    broker = Broker(reactor, FileJournal(reactor, directory), Sequencer())  # type: ignore[arg-type]
    await broker.open()
    service = plugin.make_service(reactor, broker, endpoint, FiggSettings())
    port = await service.startService()
    try:
        yield broker, getattr(port.getHost(), "port", 0)
    finally:
        await service.stopService()
        await broker.close()


def taker(got: list[tuple[int, bytes]]) -> Callable[[Run], None]:
    def take(run: Run) -> None:
        got.extend((record.seq, bytes(record.payload)) for record in run.records())

    return take


@pytest_twisted.ensureDeferred
async def test_our_client_publishes_and_resumes_over_restarts(tmp_path: Path) -> None:
    sent = payloads(3000, seed=5)
    got: list[tuple[int, bytes]] = []
    states: list[bool] = []
    port = free_port()
    async with serving(tmp_path, f"tcp:{port}:interface=127.0.0.1"):
        endpoint = clientFromString(reactor, f"tcp:127.0.0.1:{port}")
        client = FiggClient(reactor, endpoint, window=50, connection_options=AT_ONCE)  # type: ignore[arg-type]
        client.on_state = states.append
        client.subscribe("t", taker(got), after=0)
        await soon(client.connect())
        await soon(client.publish_many("t", sent[:1000]))
    await until(reactor, lambda: states == [True, False])
    unsent = [client.publish("t", payload) for payload in sent[1000:1010]]
    batch = client.publish_many("t", sent[1010:])
    async with serving(tmp_path, f"tcp:{port}:interface=127.0.0.1"):
        await soon(batch)
        assert all(published.called for published in unsent)
        await until(reactor, lambda: len(got) == 3000)
        await soon(client.close())
    assert got == [(i + 1, payload) for i, payload in enumerate(sent)]
    assert states == [True, False, True, False]


@pytest_twisted.ensureDeferred
async def test_connections_that_break_at_any_moment_lose_nothing(tmp_path: Path) -> None:
    """At least once: every message is stored, repeated ones are the same, and the first copies are in order."""
    rng = random.Random(11)
    sent = [b"%d" % i for i in range(5000)]
    got: list[tuple[int, bytes]] = []
    async with serving(tmp_path, "tcp:0:interface=127.0.0.1") as (_, port):
        endpoint = clientFromString(reactor, f"tcp:127.0.0.1:{port}")
        writer = FiggClient(reactor, endpoint, window=100, connection_options=AT_ONCE)  # type: ignore[arg-type]
        reader = FiggClient(reactor, endpoint, connection_options=AT_ONCE)  # type: ignore[arg-type]
        reader.subscribe("t", taker(got), after=0)
        await soon(writer.connect())
        await soon(reader.connect())
        done = writer.publish_many("t", sent)
        cuts = 0
        while not done.called:
            await deferLater(reactor, rng.random() / 50)  # type: ignore[arg-type]
            for client in (writer, reader):
                if client.connection is not None and cuts < 40:
                    client.connection.transport.abortConnection()
                    cuts += 1
        last = max(number for number, _ in got) if got else 0
        await until(reactor, lambda: got and got[-1][1] == sent[-1])
        assert [number for number, _ in got] == list(range(1, len(got) + 1)), f"after {last}"
        assert list(dict.fromkeys(payload for _, payload in got)) == sent
        await soon(writer.close())
        await soon(reader.close())


@pytest_twisted.ensureDeferred
async def test_our_client_publishes_and_subscribes_over_a_unix_socket(tmp_path: Path) -> None:
    got: list[tuple[int, bytes]] = []
    path = tmp_path / "figg"
    async with serving(tmp_path / "data", f"unix:{path}"):
        client = FiggClient(reactor, clientFromString(reactor, f"unix:{path}"))  # type: ignore[arg-type]
        client.subscribe("t", taker(got), after=0)
        await soon(client.connect())
        await soon(client.publish("t", b"near"))
        await until(reactor, lambda: got)
        await soon(client.close())
    assert got == [(1, b"near")]


@pytest_twisted.ensureDeferred
async def test_a_paused_client_receives_nothing_and_after_resuming_misses_nothing(tmp_path: Path) -> None:
    got: list[tuple[int, bytes]] = []
    sent = [bytes([i % 256]) * 100_000 for i in range(200)]
    async with serving(tmp_path, "tcp:0:interface=127.0.0.1") as (_, port):
        endpoint = clientFromString(reactor, f"tcp:127.0.0.1:{port}")
        writer = FiggClient(reactor, endpoint)  # type: ignore[arg-type]
        reader = FiggClient(reactor, endpoint)  # type: ignore[arg-type]
        reader.subscribe("t", taker(got), after=0)
        await soon(reader.connect())
        await soon(writer.connect())
        await soon(writer.publish("t", b"first"))
        await until(reactor, lambda: got)
        reader.pause()
        await soon(writer.publish_many("t", sent))
        assert len(got) <= 2
        reader.resume()
        await until(reactor, lambda: len(got) == 201)
        assert [payload for _, payload in got[1:]] == sent
        await soon(writer.close())
        await soon(reader.close())
