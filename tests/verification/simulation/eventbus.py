"""Simulate clients of the event bus, and check every message that the server receives or sends.

the sequences of broadcasts rise, and no wanted one is left out while the server keeps the records
a snapshot has all events of its subtrees from the requested number to its end, which is not before the durable end of
the stream at the time of the request
a client gets every event that it asked for once, in order or marked as late; the server confirms only durable events
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import attrs
from history import History, Sent
from links import Endpoint, Link
from server import Server
from sides import Side
from world import Violation, World

from fyrehose.protocols.eventbus.client import BUS_OPTIONS, EventBusClient, PubUnconfirmed
from fyrehose.protocols.eventbus.client_session import EventBusOptions
from fyrehose.protocols.eventbus.frames import SYNC, Broadcast, Dialect, Subtrees, Sync, SyncEnd
from fyrehose.protocols.eventbus.plugin import plugin
from fyrehose.protocols.eventbus.session import (
    BusMessage,
    CollectorSession,
    DealerSession,
    PrefixChanged,
    PublisherSession,
    PubsReceived,
    Requested,
    SnapshotSession,
    SubscriberSession,
)
from fyrehose.protocols.eventbus.settings import EventBusSettings
from fyrehose.protocols.eventbus.zmtp import Null
from fyrehose.records import MAX_PAYLOAD
from fyrehose.sessions import events_of

STREAM = "eventbus"
PORT = 5556
TOPICS = ("/a/", "/a/b/", "/c/")
SUBTREES: tuple[tuple[str, ...], ...] = ((), (), ("/a/",), ("/a/b/", "/c/"))
#: After so many failed attempts to reach its server a client tries another one.
MISSES = 10


class CollectorTap:
    """Checks one connection to COLLECTOR, by the bytes that the server reads."""

    def __init__(self, side: EventBus, life: int) -> None:
        self.side, self.life, self.heard = side, life, 0
        self.read_session = CollectorSession(Null(), MAX_PAYLOAD, STREAM)

    def read(self, data: bytes) -> None:
        for event in events_of(self.read_session, data):
            if isinstance(event, PubsReceived):
                for run in event.runs:
                    for payload in run.payloads():
                        self.pub(bytes(payload))

    def pub(self, data: bytes) -> None:
        """Record that an event arrived, and its order among the events of its connection."""
        event = self.side.events[data]
        event.arrivals.append(self.life)
        self.heard += 1
        sent = self.side.history.sent[STREAM][data]
        first = len(event.arrivals) == 1
        # If an event came twice, nobody can tell which copy is stored, so only an event that came once has an order.
        sent.publisher, sent.order = f"{self.life} {id(self)}", self.heard if first else None

    def wrote(self, data: bytes) -> None:
        """Ignore the greeting and the handshake; COLLECTOR sends nothing else."""


class PublisherTap:
    """Checks one connection to PUBLISHER: what is broadcast is durable, and nothing wanted is left out."""

    def __init__(self, side: EventBus, life: int) -> None:
        self.side = side
        self.last: int | None = None
        self.prefixes: set[bytes] = set()
        self.changed = True
        self.heard, self.said = PublisherSession(Null(), Dialect.BINARY), SubscriberSession()

    def read(self, data: bytes) -> None:
        for event in events_of(self.heard, data):
            if isinstance(event, PrefixChanged):
                (self.prefixes.add if event.on else self.prefixes.discard)(event.prefix)
                self.changed = True

    def wrote(self, data: bytes) -> None:
        for event in events_of(self.said, data):
            if isinstance(event, BusMessage):
                self.broadcast(Broadcast.parse(event.frames))

    def broadcast(self, event: Broadcast) -> None:
        wrong = self.side.history.wrong
        if self.last is not None and event.sequence <= self.last:
            wrong(f"broadcast {event.sequence} follows {self.last}")
        self.side.check(event)
        if not event.topic.encode().startswith(tuple(self.prefixes)):
            wrong(f"broadcast of {event.topic}, subscribed is {self.prefixes}")
        wanted = Subtrees(b"", tuple(prefix.decode() for prefix in self.prefixes))
        if self.last is not None and not self.changed:
            owed = self.side.wanted(wanted, self.last, event.sequence)
            if owed != [event.sequence]:
                wrong(f"broadcast {event.sequence} follows {self.last}, and {owed} are wanted")
        self.last, self.changed = event.sequence, False


@attrs.define(eq=False)
class Asked:
    """A request for a snapshot, and the part of its answer that has arrived.

    :ivar end: the durable end of the stream when the server read the request
    """

    subtrees: Subtrees
    since: int
    end: int
    answer: list[int] = attrs.field(factory=list)


class SnapshotTap:
    """Checks one connection to SNAPSHOT: each answer against its request."""

    def __init__(self, side: EventBus, life: int, broker: Any) -> None:
        self.side, self.broker = side, broker
        self.asked: Asked | None = None
        self.heard, self.said = SnapshotSession(Null(), Dialect.BINARY), DealerSession()

    def read(self, data: bytes) -> None:
        for event in events_of(self.heard, data):
            if isinstance(event, Requested):
                self.side.history.look()
                end = self.broker.bounds(STREAM)[1]
                self.asked = Asked(event.request.subtrees, event.request.sequence, end)

    def wrote(self, data: bytes) -> None:
        for event in events_of(self.said, data):
            if isinstance(event, BusMessage):
                self.answers(event.frames)

    def answers(self, frames: list[bytes]) -> None:
        wrong, asked = self.side.history.wrong, self.asked
        if asked is None:
            wrong(f"{frames[0]!r} for somebody who has not asked")
            return
        if frames[0] == SYNC:
            event = Sync.parse(frames)
            self.side.check(event)
            if event.sequence <= max(asked.answer[-1:], default=asked.since):
                wrong(f"SYNC {event.sequence} behind {asked.answer[-1:] or asked.since}")
            asked.answer.append(event.sequence)
            return
        end = SyncEnd.parse(frames).sequence
        self.asked = None
        if asked.since > asked.end:
            right = asked.end <= end <= asked.since  # between the stream's end at the request and its end at the answer
        else:
            right = end == max(asked.answer[-1:], default=asked.since)
        if not right:
            wrong(f"SYNCEND {end} behind SYNC {asked.answer[-1:]} and SYNCSTART {asked.since}")
        upto = max([asked.end, *asked.answer[-1:]])
        owed = self.side.wanted(asked.subtrees, asked.since, upto)
        if asked.answer != owed:
            wrong(f"SYNCEND {end}: {sorted({*owed} ^ {*asked.answer})[:9]} are missing, or were not wanted")


class Client:
    """A client that publishes, and reads from a number on, from now on, or not at all."""

    def __init__(self, side: EventBus, number: int, options: EventBusOptions) -> None:
        self.side, self.name, self.options = side, f"eventbus-{number}", options
        self.subtrees = Subtrees.of(options.subtrees)
        world = side.world
        self.ready = self.dead = self.paused = False
        self.published = self.waiting = 0
        self.after = options.after
        self.highest = options.after or 0
        self.handed: set[int] = set()
        self.where, self.missed = side.made, 0
        self.endpoints: dict[int, Endpoint] = {}
        self.client = EventBusClient(
            world.clock,
            "",
            PORT,
            options=options,
            on_events=self._events,
            on_late=partial(self._events, late=True),
            on_lost=self._lost,
            on_restarted=self._restarted,
            producer=self.name,
            random=Random(world.random.random()),
            now=world.now,
            connect_to=self._endpoint,
            process_exception=self._failed,
            on_state=self._state,
            connection_options=attrs.evolve(
                BUS_OPTIONS, retry=lambda failures: 0.3 * min(failures, 6) * (0.5 + world.random.random())
            ),
        )
        connected = self.client.connect()
        connected.addCallbacks(lambda _: setattr(self, "ready", True), lambda failure: None)

    def _endpoint(self, port: int) -> Endpoint:
        """Return the endpoint of *port*: COLLECTOR of any server, else the port of the client's own server."""
        names = self.side.server.names
        own = names if port == PORT + 2 else (names[self.where % len(names)],)
        endpoint = Endpoint(self.side.world, self.name, port, servers=own)
        endpoint.tap = lambda: self.side.tap(port, endpoint.servers[(endpoint.turn - 1) % len(endpoint.servers)])
        self.endpoints[port] = endpoint
        return endpoint

    def _failed(self, error: Exception) -> None:
        """Read from the next server of the list after too many failures."""
        self.missed += 1
        names = self.side.server.names
        if self.missed > MISSES and len(names) > 1:
            self.where, self.missed = self.where + 1, 0
            for port in (PORT, PORT + 1):
                self.endpoints[port].servers = (names[self.where % len(names)],)
                self._cut(port)

    def _state(self, connected: bool) -> None:
        self.missed = 0 if connected else self.missed

    def _links(self, port: int) -> list[Link]:
        """Return the connections of the client to *port*."""
        links = self.side.world.links
        return [link for link in links if link.host == self.name and link.number == port]

    def _cut(self, port: int) -> None:
        for link in self._links(port):
            link.cut()

    def _restarted(self, end: int) -> None:
        """Handle that a server has fewer events than the client: it may be behind, and sends them again."""
        if len(self.side.server.names) == 1:
            self.side.history.wrong(f"{self.name} is told of another journal")
        self.handed.clear()
        self.after = self.highest = 0

    def _lost(self, first: int, last: int) -> None:
        """Handle that events are reported lost: a server of a cluster may still be copying them."""
        if len(self.side.server.names) == 1:
            self.side.history.wrong(f"{self.name} is told that {first} to {last} are gone")
        self.handed.update(range(first, last + 1))

    def publish(self) -> None:
        side, dice = self.side, self.side.world.random
        for _ in range(dice.choice(side.world.bursts)):
            if self.waiting >= self.options.window:
                return
            self.published += 1
            self.waiting += 1
            topic = dice.choice(TOPICS)
            payload = f"{self.name}:{self.published}:".encode() + b"." * dice.choice((*side.world.sizes, 10, 10))
            event = side.events[payload] = SentEvent(topic)
            side.history.send(STREAM, payload, Sent(self.name, None, partial(event.copies, side.settings.dedup)))
            self.client.publish_event(topic, payload).addCallback(partial(self._confirmed, payload)).addErrback(
                lambda failure: failure.trap(PubUnconfirmed, Violation)
            ).addBoth(self._settled)

    def _confirmed(self, payload: bytes, seq: int) -> None:
        self.side.history.release(STREAM, seq, payload)

    def _settled(self, _: Any) -> None:
        self.waiting -= 1

    def _events(self, events: tuple[Broadcast, ...], late: bool = False) -> None:
        for event in events:
            seq = event.sequence
            self.side.check(event)
            if self.after is None:
                self.after = seq - 1
            if seq in self.handed or seq <= self.after:
                self.side.history.wrong(f"{self.name} is handed {seq} again")
            if not self.subtrees.match(event.topic) or not self.options.subscribe:
                self.side.history.wrong(f"{self.name} is handed {event.topic}")
            if late is not (seq < self.highest) or (late and not self.options.subtrees):
                self.side.history.wrong(f"{self.name} is handed {seq} behind {self.highest}, late: {late}")
            self.handed.add(seq)
            self.highest = max(self.highest, seq)

    def pause(self, paused: bool) -> None:
        if paused is not self.paused:
            self.paused = paused
            (self.client.pause if paused else self.client.resume)()

    def cut_half(self) -> None:
        """Cut the connection to PUBLISHER twice in short succession, while answers at SNAPSHOT are slow."""
        clock, dice = self.side.world.clock, self.side.world.random
        for link in self._links(PORT):
            link.slow = True
        self._cut(PORT + 1)
        clock.callLater(dice.random() * 2.0, self._cut, PORT + 1)

    def owed(self) -> str:
        """Return what the client still waits for, or an empty string."""
        if not self.ready or self.waiting:
            return f"{self.name} is connected: {self.ready}, and {self.waiting} of its events are not confirmed"
        if self.after is None or not self.options.subscribe:
            return ""
        end = len(self.side.history.truth.get(STREAM, ()))
        missing = set(self.side.wanted(self.subtrees, self.after, end)) - self.handed
        return f"{self.name} of {self.subtrees.spec!r} lacks {sorted(missing)[:9]} of {end}" if missing else ""

    def close(self) -> None:
        self.dead = True
        self.client.close()


@attrs.define(eq=False)
class SentEvent:
    """An event, and the lives of the server in which it arrived."""

    topic: str
    arrivals: list[int] = attrs.field(factory=list)

    def copies(self, dedup: bool) -> int:
        return len(set(self.arrivals) if dedup else self.arrivals)


class EventBus(Side):
    """All event bus clients of a simulation.

    :param herd: how many clients there are, of a server with default options; 0 means a few
    """

    #: whether its clients cope with records that were lost or deleted
    gaps = False
    topics = (STREAM,)

    def __init__(self, world: World, server: Server, history: History, herd: int = 0) -> None:
        dice = world.random
        self.world, self.server, self.history = world, server, history
        self.events: dict[bytes, SentEvent] = {}
        few = EventBusSettings(
            dedup=dice.random() < 0.5,
            dialect=dice.choice((Dialect.BINARY, Dialect.BINARY, Dialect.DECIMAL)),
        )
        self.settings = EventBusSettings() if herd else few
        self.running: dict[str, tuple[int, Any]] = {}  #: the present life of each server, and its broker
        self.lives = 0
        server.listen(self._service)
        self.clients: list[Client] = []
        self.made = 0
        self.last: Client | None = None
        for _ in range(herd or dice.randint(1, 3)):
            self.connect()

    def _service(self, host: Any, broker: Any) -> Any:
        self.lives += 1
        self.running[host.name] = self.lives, broker
        return plugin.make_service(host, broker, f"tcp:{PORT}:interface=127.0.0.1", self.settings)

    def tap(self, port: int, server: str) -> Any:
        """Return the observer of a new connection to *port* of *server*."""
        life, broker = self.running[server]
        if port == PORT:
            return SnapshotTap(self, life, broker)
        return (PublisherTap if port == PORT + 1 else CollectorTap)(self, life)

    def connect(self, after: int | None = -1, **options: Any) -> Client:
        """Return a new client that reads behind the number ``after``; without it the client begins anywhere."""
        dice = self.world.random
        known = len(self.history.truth.get(STREAM, ()))
        options.setdefault("subtrees", dice.choice(SUBTREES))
        options.setdefault("subscribe", dice.random() < 0.9)
        if after == -1:
            after = dice.choice((0, None, dice.randint(0, known)))
        self.made += 1
        choice = {
            "window": dice.choice((1, 5, 1000)),
            "confirm": dice.choice((0.5, 5.0)),
            "quiet": dice.choice((1.0, 15.0)),
            "recheck": dice.choice((2.0, 60.0)),
            "dialect": dice.choice((Dialect.BINARY, Dialect.DECIMAL)),
        }
        client = Client(self, self.made, EventBusOptions(after=after, **{**choice, **options}))
        self.clients.append(client)
        return client

    def step(self) -> None:
        dice = self.world.random
        client = dice.choice(self.clients)
        what = dice.random()
        if what < 0.7:
            client.publish()
        elif what < 0.75:
            client.cut_half()
        elif what < 0.87:
            client.pause(dice.random() < 0.5)
        elif what < 0.95 and len(self.clients) < 4:
            self.connect()
        elif len(self.clients) > 1:
            self._published += client.published
            self.clients.remove(client)
            client.close()

    def check(self, event: Broadcast) -> None:
        """Check that ``event``, which the server sends or a client receives, is durable under its number."""
        data = bytes(event.data)
        self.history.release(STREAM, event.sequence, data)
        if self.events[data].topic != event.topic:
            self.history.wrong(f"{event.sequence} has the topic {event.topic}, and not {self.events[data].topic}")

    def wanted(self, subtrees: Subtrees, after: int, upto: int) -> list[int]:
        """Return the numbers from ``after`` + 1 to ``upto`` of the events in ``subtrees``."""
        truth = self.history.truth.get(STREAM, [])
        return [
            seq
            for seq in range(after + 1, min(upto, len(truth)) + 1)
            if subtrees.match(self.events[truth[seq - 1]].topic)
        ]

    def calm(self) -> None:
        for client in self.clients:
            client.pause(False)

    def settled(self) -> str:
        """Return what a client still waits for, or an empty string; a new client must receive every event."""
        if self.last is None:
            self.last = self.connect(0, subtrees=(), subscribe=True)
            self.last.publish()
        return super().settled()
