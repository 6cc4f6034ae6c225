"""A server of the event bus in memory, and the peers that tests connect to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.protocols.eventbus.server import (
    BusProtocol,
    CollectorProtocol,
    EventBusFactory,
    PortFactory,
    PublisherProtocol,
    SnapshotProtocol,
    null,
)
from fyrehose.protocols.eventbus.session import BusMessage, DealerSession, SubscriberSession
from fyrehose.protocols.eventbus.settings import EventBusSettings
from fyrehose.protocols.eventbus.zmtp import Mechanism
from fyrehose.sessions import events_of
from fyrehose.testing import ClientSide, MemoryJournal, Transport

TIME = b"2024-05-01T10:20:30.123Z"


def event(n: int, topic: bytes = b"/a/", data: bytes | None = None, **labels: bytes) -> list[bytes]:
    """Return the frames of a PUB."""
    named = {
        "sequence": b"null",
        "producer": b"me",
        "timestamp": TIME,
        "uuid": b"7d444840-9dc0-41d1-b245-%012x" % n,
        **labels,
    }
    return [topic, *named.values(), b"%d" % n if data is None else data]


@attrs.define(eq=False)
class Peer(ClientSide):
    """A client that sends and receives messages, after the handshake."""

    session: Any = None

    def say(self, *messages: list[bytes]) -> None:
        """Send *messages* in one write."""
        for frames in messages:
            self.session.send(frames)
        self.flush()

    def flush(self) -> None:
        data = b"".join(self.session.data_to_send())
        if data:
            self.send(data)

    def subscribe(self, *prefixes: bytes) -> None:
        for prefix in prefixes:
            self.session.send_subscribe(prefix)
        self.flush()

    def hear(self) -> list[list[bytes]]:
        """Return the messages that arrived since the last call."""
        found = list(events_of(self.session, self.received()))
        self.flush()
        return [each.frames for each in found if isinstance(each, BusMessage)]


@attrs.define(eq=False)
class World:
    journal: MemoryJournal
    broker: Broker
    clock: Clock
    factory: EventBusFactory

    def connect(
        self, kind: type[BusProtocol], session: Any, host: str = "127.0.0.1", transport: Transport | None = None
    ) -> Peer:
        """Return a peer that has completed its handshake."""
        peer = Peer.connect(
            PortFactory(self.factory, kind), self.clock, host=host, transport=transport, session=session
        )
        for _ in range(3):
            peer.flush()
            peer.hear()
        return peer

    def collector(self, **more: Any) -> Peer:
        return self.connect(CollectorProtocol, DealerSession(), **more)

    def subscriber(self, *prefixes: bytes, **more: Any) -> Peer:
        peer = self.connect(PublisherProtocol, SubscriberSession(), **more)
        peer.subscribe(*prefixes)
        return peer

    def snapshot(self, **more: Any) -> Peer:
        return self.connect(SnapshotProtocol, DealerSession(), **more)

    def stored(self) -> list[bytes]:
        """Return the data of all events."""
        runs = self.broker.read("eventbus", 1, 1 << 30)
        return [bytes(payload) for run in runs for payload in run.payloads()]

    def count(self, what: str) -> int:
        return self.broker.counters.counts["eventbus", what]

    def publish(self, count: int, topic: bytes = b"/a/", size: int = 0) -> None:
        """Store events with the numbers from 1 on in their data."""
        peer = self.collector()
        for n in range(1, count + 1):
            peer.say(event(n, topic, b"%06d" % n + bytes(size)))
        peer.leave()


def make_world(auto: bool = True, mechanism: Callable[[], Mechanism] = null, **settings: Any) -> World:
    """Return a server.

    :param auto: whether each publish is durable at once; else ``journal.commit()`` makes it so
    """
    journal, clock = MemoryJournal(auto=auto), Clock()
    broker = Broker(clock, journal, Sequencer())
    broker.open()
    settings = {"refusal_delay": 0.0, **settings}
    return World(journal, broker, clock, EventBusFactory(broker, EventBusSettings(**settings), clock, mechanism))
