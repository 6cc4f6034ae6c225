"""Peers that never read use little memory in every protocol that delivers, and no write is larger than a piece.

The test's transport accepts nothing: it pauses its producer at the first write, and counts the bytes that it gets.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import h11
import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock

from fyrehose import ndjson
from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.net.connections import SessionFactory
from fyrehose.protocols.figg.frames import Attach, DataRun
from fyrehose.protocols.figg.server import FiggFactory
from fyrehose.protocols.figg.session import FiggClientSession
from fyrehose.protocols.http.server import HttpFactory
from fyrehose.records import MAX_PAYLOAD, Column, Run
from fyrehose.testing import MemoryJournal, Transport

#: How many peers there are, and how many bytes they may occupy together.
PEERS, MOST = 250, 64 << 20
T = TypeVar("T")
#: How many bytes one write may have: a piece, and its framing.
PIECE = 256 << 10


class Deaf(Transport):
    """A transport whose peer reads only when it is told to; it counts data instead of keeping it.

    :ivar held: bytes that were written since the peer last read
    :ivar largest: the largest write
    """

    held = largest = 0
    protocol: Any
    kept: list[bytes] | None = None  #: what was written, if that is wanted

    def writeSequence(self, data: Any) -> None:
        size = sum(map(len, data))
        self.largest = max(self.largest, size)
        if self.kept is not None:
            self.kept += map(bytes, data)
        if not self.held:
            self.held = size
            self.protocol.pauseProducing()
        else:
            self.held += size

    def write(self, data: Any) -> None:
        self.writeSequence([data])

    def read(self) -> int:
        """Let the peer read everything; return how many bytes that was."""
        size, self.held = self.held, 0
        if size:
            self.protocol.resumeProducing()
        return size


@attrs.define
class World:
    """A server with records, and peers that do not read.

    :ivar request: the bytes that a peer sends
    :ivar payloads: returns the payloads in the data that a peer received
    :ivar live: whether peers receive only what is published after their request
    """

    make: Callable[[Broker], SessionFactory]
    request: bytes
    payloads: Callable[[bytes], list[bytes]]
    live: bool
    clock: Clock = attrs.field(factory=Clock)
    journal: MemoryJournal = attrs.field(factory=lambda: MemoryJournal(auto=True))
    broker: Broker = attrs.field(init=False)
    factory: SessionFactory = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.broker = Broker(self.clock, self.journal, Sequencer())
        self.broker.open()
        self.factory = self.make(self.broker)
        self.factory.clock = self.clock

    def publish(self, payload: bytes, count: int) -> None:
        for _ in range(count):
            self.broker.publish([Run.of("s", [payload], source="test")])

    def connect(self, number: int, host: str = "127.0.0.1") -> Deaf:
        address = IPv4Address("TCP", host, 10_000 + number)
        protocol = self.factory.buildProtocol(address)
        transport = Deaf(peerAddress=address)  # type: ignore[no-untyped-call]
        transport.protocol = protocol
        protocol.makeConnection(transport)
        return transport

    def ask(self, number: int) -> Deaf:
        """Connect a peer that requests the records, and reads the beginning of the answer."""
        peer = self.connect(number)
        peer.protocol.dataReceived(self.request)
        peer.read()
        return peer


def http(target: str, live: bool = False) -> tuple[Any, ...]:
    request = f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    return (lambda broker: HttpFactory(broker, reactor=broker.clock)), request, http_payloads, live


def http_payloads(answer: bytes) -> list[bytes]:
    """Return the payloads in an answer of lines or of events."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(answer)
    body = b""
    while isinstance(event := client.next_event(), (h11.Response, h11.Data)):
        body += event.data if isinstance(event, h11.Data) else b""
    found = [json.loads(line.removeprefix(b"data: ")) for line in body.splitlines() if b'"payload' in line]
    return [
        b64decode(each["payload_base64"]) if "payload_base64" in each else each["payload"].encode() for each in found
    ]


def figg_payloads(frames: bytes) -> list[bytes]:
    session = FiggClientSession()
    runs = [event for event in session.receive_data(frames) if isinstance(event, DataRun)]
    return [bytes(payload) for run in runs for payload in Column(run.lengths, run.payload).payloads()]


def figg(broker: Broker) -> SessionFactory:
    return FiggFactory(broker, reactor=broker.clock)


WAYS = {
    "figg": (figg, Attach(topic="s", offset=0).serialize(), figg_payloads, False),
    "http read": http("/streams/s"),
    "http live": http("/streams/s/live?from=1"),
    "http pattern": http("/streams/*/live?match=*", live=True),
}


@pytest.fixture(params=WAYS)
def world(request: pytest.FixtureRequest) -> World:
    return World(*WAYS[request.param])


def asked(world: World, publish: Callable[[], object], ask: Callable[[], T]) -> T:
    """Publish, then call *ask*; for peers that receive only later records, call *ask* first."""
    if world.live:
        peers = ask()
        publish()
    else:
        publish()
        peers = ask()
    return peers


@pytest.mark.parametrize(
    ("size", "count"), [(100, 20_000), (1 << 20, 3), (2 << 20, 2)], ids=["small", "of 1 MiB", "large"]
)
def test_peers_that_never_read_use_little_memory(world: World, size: int, count: int) -> None:
    def publish() -> None:
        if size == 100:
            world.broker.publish([Run.of("s", [b"\1" * size] * count, source="test")])
        else:
            world.publish(b"\1" * size, count)

    peers = asked(world, publish, lambda: [world.ask(number) for number in range(PEERS)])
    for _ in range(1_000):
        world.clock.advance(0)
    assert all(peer.held for peer in peers), "a peer has received nothing"
    assert sum(peer.held for peer in peers) + world.broker.budget.unread.used <= MOST
    assert max(peer.largest for peer in peers) <= PIECE


class Turns(Clock):
    """A clock that runs one turn of the reactor for each 10 ms."""

    def callLater(self, delay: float, *args: Any, **kw: Any) -> Any:
        return super().callLater(max(delay, 0.01), *args, **kw)


@pytest.mark.parametrize("way", ["http read", "http live", "http pattern"])
def test_no_turn_checks_the_whole_of_a_large_record(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON requires to know whether a payload is UTF-8 before its first byte is sent, which takes 20 ms for 16 MiB."""
    checked: list[int] = [0]

    class Counting(ndjson._Decoder):  # type: ignore[misc, name-defined]
        def decode(self, data: Any, final: bool = False) -> Any:
            checked[-1] += len(data)
            return super().decode(data, final)

    monkeypatch.setattr(ndjson, "_Decoder", Counting)
    world = World(*WAYS[way], clock=Turns())
    peers = asked(
        world, lambda: world.publish(b"a" * MAX_PAYLOAD, 1), lambda: [world.ask(number) for number in range(10)]
    )
    for _ in range(250):
        checked.append(0)
        world.clock.advance(0.01)
    assert all(peer.held for peer in peers), "a peer has not received the beginning"
    assert max(checked) <= MAX_PAYLOAD // 4 + PIECE
    assert sum(checked) <= MAX_PAYLOAD + 10 * PIECE, "the record is checked for each peer"


@pytest.mark.parametrize("way", ["figg", "http live", "http pattern"])
def test_subscribers_that_do_not_read_say_when_they_are_disconnected(way: str) -> None:
    world = World(*WAYS[way])
    [peer] = asked(world, lambda: world.publish(b"x" * 100_000, 3), lambda: [world.ask(1)])
    for _ in range(10):
        world.clock.advance(0)
    [cursor] = world.broker.fanout.cursors
    timeout = world.factory.settings.timeout
    assert cursor.paused
    assert timeout <= (cursor.closes_in or 0) <= timeout + 10
    peer.read()
    assert cursor.closes_in is None


@pytest.mark.parametrize(
    "payload",
    [b"\1" * 300_000, b"a" * 300_000, "ä€𝄞".encode() * 50_000, b"\xff\0" * 200_000, b'"\\\n' * 100_000],
    ids=["control characters", "text", "wide characters", "bytes", "escapes"],
)
def test_a_large_record_arrives_as_a_whole_between_its_neighbours(world: World, payload: bytes) -> None:
    kept: list[bytes] = []

    def publish() -> None:
        world.publish(b"before", 1)
        world.publish(payload, 2)
        world.publish(b"after", 1)

    def ask() -> Deaf:
        reader = world.connect(1)
        reader.kept = kept
        reader.protocol.dataReceived(world.request)
        return reader

    reader = asked(world, publish, ask)
    for _ in range(300):
        reader.read()
        world.clock.advance(0)
    assert world.payloads(b"".join(kept)) == [b"before", payload, payload, b"after"]


@pytest.mark.slow
def test_large_answers_that_are_not_read_share_a_part_of_the_memory() -> None:
    world = World(*http("/streams?limit=1000"))
    for number in range(1_000):
        world.broker.publish([Run.of(f"{number:03}{chr(1) * 250}", [b"x"], source="test")])
    honest = world.connect(0, "127.0.0.9")
    honest.protocol.dataReceived(world.request)
    peers = [world.connect(number) for number in range(PEERS)]
    for peer in peers:
        peer.protocol.dataReceived(world.request)
    for _ in range(1_000):
        world.clock.advance(0)
    assert honest.held > 1 << 20, "the answer is a large one"
    assert not honest.aborted, "those of the network with the most go first"
    kept = [peer for peer in peers if not peer.aborted]
    assert 1 < len(kept) < PEERS
    assert sum(peer.held for peer in kept) <= world.broker.budget.limit // 16 <= MOST // 2
    honest.read()
    assert world.broker.budget.unread.used == sum(peer.held for peer in kept)


def test_the_only_unread_large_answer_stays_however_little_memory_is_free() -> None:
    world = World(*http("/streams?limit=1000"))
    world.broker.budget.unread.capacity = 1
    for number in range(1_000):
        world.broker.publish([Run.of(f"{number:03}{'n' * 250}", [b"x"], source="test")])
    peer = world.ask(0)
    for _ in range(1_000):
        world.clock.advance(0)
    assert peer.held > PIECE
    assert not peer.aborted
