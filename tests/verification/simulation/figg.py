"""Simulate clients of Figg, and check every byte between them and the server.

A tap checks each connection by itself: acknowledgements rise and cover only durable records; after ATTACHED the offsets
rise one by one.
"""

from __future__ import annotations

from functools import partial

import attrs
from history import History, Reader, Sent
from links import Endpoint
from server import Server
from sides import Side
from world import Violation, World

from fyrehose.errors import Closed
from fyrehose.protocols.figg.client import FIGG_OPTIONS, FiggClient
from fyrehose.protocols.figg.frames import Ack, Attached, DataRun, Detached, Published
from fyrehose.protocols.figg.plugin import plugin
from fyrehose.protocols.figg.server import FiggSettings
from fyrehose.protocols.figg.session import FiggClientSession, FiggServerSession
from fyrehose.records import Run

PORT = 8119
TOPICS = ("a", "b", "c")
#: Errors with which a publish may end: the client was closed, or a violation was already recorded.
EXPECTED = Closed, Violation


@attrs.define(eq=False)
class Tap:
    """Checks one connection, by the bytes that the server reads and writes."""

    history: History
    unsettled: list[tuple[int, str, bytes]] = attrs.field(factory=list)
    acked: int = 0
    offsets: dict[str, int] = attrs.field(factory=dict)
    _heard: FiggServerSession = attrs.field(factory=FiggServerSession)
    _said: FiggClientSession = attrs.field(factory=FiggClientSession)

    def read(self, data: bytes) -> None:
        for event in self._heard.receive_data(data):
            if isinstance(event, Published):
                for run in event.runs:
                    numbers = run.producer_seqs() or ()
                    self.unsettled += [
                        (number, run.stream, bytes(payload))
                        for number, payload in zip(numbers, run.payloads(), strict=True)
                    ]

    def wrote(self, data: bytes) -> None:
        wrong = self.history.wrong
        for event in self._said.receive_data(data):
            if isinstance(event, Ack):
                if event.number < self.acked:
                    wrong(f"ACK {event.number} behind ACK {self.acked}")
                self.acked = event.number
                for number, topic, payload in self.unsettled:
                    if number <= event.number:
                        self.history.acknowledge(topic, payload)
                self.unsettled = [each for each in self.unsettled if each[0] > event.number]
            elif isinstance(event, Attached):
                self.offsets[event.topic] = event.offset
            elif isinstance(event, Detached):
                self.offsets.pop(event.topic, None)
            elif isinstance(event, DataRun):
                if event.topic not in self.offsets:
                    wrong(f"DATA of {event.topic} without ATTACHED")
                if not self.history.follows(event.topic, self.offsets[event.topic], event.first):
                    wrong(f"DATA {event.first} of {event.topic} behind {self.offsets[event.topic]}")
                for seq, payload in enumerate(_payloads(event), event.first):
                    self.history.release(event.topic, seq, payload)
                self.offsets[event.topic] = event.last


def _payloads(event: DataRun) -> list[bytes]:
    run = Run(stream="x", source="x", lengths=event.lengths, payload=event.payload)
    return [bytes(payload) for payload in run.payloads()]


@attrs.define(eq=False)
class Client:
    """A client that publishes, reads, or does both."""

    world: World
    history: History
    name: str
    servers: tuple[str, ...]
    client: FiggClient = attrs.field(init=False)
    connections: int = 0
    connected: bool = False
    published: int = 0
    paused: bool = False
    readers: dict[str, Reader] = attrs.field(factory=dict)
    unacked: set[bytes] = attrs.field(factory=set)

    def __attrs_post_init__(self) -> None:
        dice = self.world.random
        options = attrs.evolve(FIGG_OPTIONS, retry=lambda failures: 0.3 * min(failures, 6) * (0.5 + dice.random()))
        self.client = FiggClient(
            self.world.clock,
            Endpoint(self.world, self.name, PORT, partial(Tap, self.history), servers=self.servers),
            window=dice.choice((1, 4, 256)),
            on_state=self._state,
            connection_options=options,
        )
        self.client.connect().addErrback(lambda failure: None)

    def _state(self, connected: bool) -> None:
        self.connections += connected
        self.connected = connected

    def publish(self) -> None:
        dice = self.world.random
        topic = dice.choice(TOPICS)
        payloads = []
        base = self.connections - self.connected
        for _ in range(dice.choice(self.world.bursts)):
            self.published += 1
            size = self.world.size()
            payload = f"{self.name}:{self.published}:".encode() + b"." * size
            sent = Sent(self.name, self.published, lambda: self.connections - base)
            self.history.send(topic, payload, sent)
            payloads.append(payload)
        self.unacked.update(payloads)
        done = self.client.publish_many(topic, payloads)
        done.addCallback(lambda _: self._acked(topic, payloads)).addErrback(lambda failure: failure.trap(*EXPECTED))

    def _acked(self, topic: str, payloads: list[bytes]) -> None:
        for payload in payloads:
            self.history.acknowledge(topic, payload)
            self.unacked.discard(payload)

    def subscribe(self, topic: str) -> None:
        dice = self.world.random
        known = len(self.history.truth.get(topic, ()))
        offset = dice.choice((0, None, dice.randint(0, known)))
        reader = self.readers[topic] = Reader(self.history, topic, self.name)
        self.client.subscribe(topic, partial(self._data, reader), offset, on_attached=partial(self._attached, reader))

    def unsubscribe(self, topic: str) -> None:
        self.readers.pop(topic, None)
        self.client.unsubscribe(topic)

    def _data(self, reader: Reader, run: Run) -> None:
        reader.take(run.first_seq, [bytes(payload) for payload in run.payloads()])

    def _attached(self, reader: Reader, began: int, asked: int | None) -> None:
        # A server of a cluster may be behind the server before it, and then sends again what the client already has.
        behind = len(self.servers) > 1 and asked is not None and began < asked
        if asked not in (None, began) and not behind and not self.history.follows(reader.stream, asked, began + 1):
            self.history.wrong(f"{self.name} asked for {reader.stream} from {asked} and got it from {began}")
        reader.position = began

    def pause(self, paused: bool) -> None:
        if paused != self.paused:
            self.paused = paused
            (self.client.pause if paused else self.client.resume)()

    def owed(self) -> str:
        if self.unacked:
            return f"{self.name} waits for {len(self.unacked)} acknowledgements"
        for topic, reader in self.readers.items():
            if reader.position is None or not self.history.is_complete(topic, reader.position):
                end = len(self.history.truth.get(topic, ()))
                return f"{self.name} has {topic} up to {reader.position} of {end}"
        return ""

    def close(self) -> None:
        self.client.close()


class Figg(Side):
    """All Figg clients of a simulation.

    :param topics: further topics that clients read, which clients of other protocols publish
    :param herd: how many clients there are; 0 means a few
    """

    def __init__(
        self, world: World, server: Server, history: History, topics: tuple[str, ...] = (), herd: int = 0
    ) -> None:
        self.world, self.history = world, history
        self.topics = TOPICS + topics
        server.listen(lambda host, broker: plugin.make_service(host, broker, f"tcp:{PORT}", FiggSettings()))
        count = herd or world.random.randint(1, 4)
        self.clients = [Client(world, history, f"figg-{n}", server.names) for n in range(count)]

    def step(self) -> None:
        dice = self.world.random
        client = dice.choice(self.clients)
        what = dice.random()
        if what < 0.6:
            client.publish()
        elif what < 0.75:
            client.subscribe(dice.choice(self.topics))
        elif what < 0.8 and client.readers:
            client.unsubscribe(dice.choice(sorted(client.readers)))
        else:
            client.pause(dice.random() < 0.3)

    def everybody(self) -> None:
        """Publish one message with every client of a herd, and let one in ten read."""
        for client in self.clients[::10]:
            if not client.readers:
                client.subscribe(self.world.random.choice(self.topics))
        super().everybody()

    def calm(self) -> None:
        for client in self.clients:
            client.pause(False)
