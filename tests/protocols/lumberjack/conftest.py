"""Fixtures of the Lumberjack tests: a session that is fed, a server over a journal in memory, and its clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.broker.streams import UNLIMITED, StreamRules
from fyrehose.errors import Broken
from fyrehose.net.inflight import InFlight
from fyrehose.protocols.lumberjack.frames import DIGITS, SHORT, EventRun, FrameType, Json, Window
from fyrehose.protocols.lumberjack.server import LumberjackFactory, LumberjackSettings
from fyrehose.protocols.lumberjack.session import LumberjackServerSession
from fyrehose.records import Record, Run
from fyrehose.testing import MemoryJournal, Transport, shell
from tests.doubles.compressed import compressed_frame

Event = tuple[bytes, int, str | None, str]


def acks_of(data: bytes) -> list[tuple[int, int]]:
    """Return version and sequence of the A frames in *data*."""
    frames = list(SHORT.iter_unpack(data))
    assert {kind for _, kind, _ in frames} <= {FrameType.ACK}
    return [(DIGITS[version], number) for version, _, number in frames]


def flatten(events: Sequence[Any]) -> list[Event]:
    """Split runs into single events: payload, sequence, topic, content type."""
    found: list[Event] = []
    for event in events:
        if isinstance(event, EventRun):
            run = Run(
                stream="s",
                source="x",
                lengths=event.lengths,
                payload=event.payload,
                producer_seq=event.producer_seq,
            )
            seqs = run.producer_seqs() or ()
            found += [
                (bytes(payload), seq, event.topic, event.content_type)
                for payload, seq in zip(run.payloads(), seqs, strict=True)
            ]
    return found


@attrs.define
class Peer:
    """A session whose events become durable at once, or with ``auto=False`` when a test calls commit()."""

    session: LumberjackServerSession = attrs.field(factory=LumberjackServerSession)
    auto: bool = True
    events: list[Event] = attrs.field(factory=list)
    causes: list[str] = attrs.field(factory=list)
    answers: bytes = b""
    undurable: int = 0
    turns: int = 0

    def take(self, made: Sequence[Any]) -> None:
        flat = flatten(made)
        self.events += flat
        self.undurable += len(flat)
        assert not any(isinstance(event, Broken) for event in made[:-1])
        if made and isinstance(made[-1], Broken):
            self.causes.append(made[-1].error.cause)
        if self.auto:
            self.commit()
        self.answers += b"".join(self.session.data_to_send())

    def commit(self) -> None:
        """Make all received events durable."""
        count, self.undurable = self.undurable, 0
        if count:
            self.session.durable(count)
        self.answers += b"".join(self.session.data_to_send())

    def feed(self, *chunks: bytes) -> Peer:
        """Receive *chunks*, with as many turns as needed."""
        for chunk in chunks:
            self.take(self.session.receive_data(chunk))
            while self.session.more_work:
                self.turns += 1
                assert self.turns < 100_000, "no end after many turns"
                self.take(self.session.next_events())
        return self

    @property
    def payloads(self) -> list[bytes]:
        return [payload for payload, *_ in self.events]

    @property
    def acks(self) -> list[tuple[int, int]]:
        """Return version and sequence of all acknowledgements so far."""
        return acks_of(self.answers)


@pytest.fixture(scope="session")
def peer() -> Callable[..., Peer]:
    """Return the class of peers."""
    return Peer


def _window(
    count: int,
    *,
    version: int = 2,
    first: int = 1,
    size: int | None = None,
    compressed: bool = False,
    level: int = 3,
    topic: str = "fb",
) -> bytes:
    """Return a window as Beats send it; *size* is the announced number of events, if it differs from *count*."""
    document = b'{"@metadata":{"beat":"%b"},"n":%%d}' % topic.encode()
    numbers = [(first + i) % (1 << 32) for i in range(count)]
    frames = b"".join(
        Json(version=version, sequence=number, payload=document % i).serialize() for i, number in enumerate(numbers)
    )
    if compressed:
        frames = compressed_frame(frames, version=version, level=level)
    return Window(version=version, number=count if size is None else size).serialize() + frames


@pytest.fixture(scope="session")
def window() -> Callable[..., bytes]:
    """Return the function that makes the bytes of windows."""
    return _window


@attrs.define(eq=False)
class Connection(shell.ClientSide):
    """The client side of a connection to a server."""

    @property
    def acks(self) -> list[tuple[int, int]]:
        """Return version and sequence of all acknowledgements so far."""
        return acks_of(self.transport.value())

    def lose(self) -> None:
        self.transport.disconnecting = True
        self.leave()


@attrs.define(eq=False)
class Server:
    """A lumberjack factory over a journal in memory."""

    journal: MemoryJournal
    clock: Clock
    broker: Broker
    factory: Any

    @classmethod
    def make(
        cls,
        auto: bool = True,
        budget: InFlight | None = None,
        rules: StreamRules = UNLIMITED,
        in_flight: int = 1 << 30,
        **settings: Any,
    ) -> Server:
        """Return a server whose journal takes *in_flight* bytes before input waits."""
        journal, clock = MemoryJournal(auto=auto, window=in_flight), Clock()
        broker = Broker(clock, journal, Sequencer(), budget=budget or InFlight(), rules=rules)
        broker.open()
        return cls(
            journal,
            clock,
            broker,
            LumberjackFactory(broker, LumberjackSettings(**{"refusal_delay": 0.0, **settings}), clock),
        )

    def connect(self, host: str = "10.0.0.1", port: int = 5000, transport: Transport | None = None) -> Connection:
        return Connection.connect(self.factory, self.clock, host, port, transport)

    def settle(self) -> None:
        """Run the reactor until no call is due."""
        for _ in range(10_000):
            if not [call for call in self.clock.getDelayedCalls() if call.getTime() <= self.clock.seconds()]:
                return
            self.clock.advance(0)
        raise AssertionError("no end after many turns")

    def count(self, what: str) -> int:
        return self.broker.counters.counts["lumberjack", what]

    @property
    def records(self) -> list[Record]:
        return self.records_of("lumberjack")

    def records_of(self, stream: str) -> list[Record]:
        runs = self.journal.read(stream, 1, 1 << 40)
        return [record for run in runs for record in run.records()]

    @property
    def payloads(self) -> list[bytes]:
        return [record.payload for record in self.records]


@pytest.fixture(scope="session")
def server() -> Callable[..., Server]:
    """Return the function that makes servers."""
    return Server.make
