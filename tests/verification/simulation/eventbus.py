"""Simulate clients of the event bus, and check every message that the server receives or sends.

the numbers of broadcasts follow on, one by one, in each life of the server
a snapshot has all events of its subtrees from the requested number to its end, which is not before the durable end of
the stream at the time of the request
a client gets every event that it asked for once, in order or marked as late; the server confirms only durable events
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import attrs
from history import History, Sent
from server import Server
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from world import Host, Violation, World
from zeromq import ClientPort, Message, ServerPort

from fyrehose.protocols.eventbus.client import EventBusClient, PubUnconfirmed
from fyrehose.protocols.eventbus.frames import SYNC, Broadcast, Dialect, Subtrees, Sync, SyncEnd, SyncStart
from fyrehose.protocols.eventbus.server import EventBusServer
from fyrehose.protocols.eventbus.session import EventBusOptions
from fyrehose.protocols.eventbus.settings import EventBusSettings
from fyrehose.protocols.eventbus.zmqport import CONNECTED

STREAM = "eventbus"
TOPICS = ("/a/", "/a/b/", "/c/")
SUBTREES: tuple[tuple[str, ...], ...] = ((), (), ("/a/",), ("/a/b/", "/c/"))
#: After so many failed attempts to reach its server a client tries another one.
MISSES = 10


@attrs.define(eq=False)
class Asked:
    """A request for a snapshot, and the part of its answer that has arrived.

    :ivar end: the durable end of the stream when the server read the request
    """

    subtrees: Subtrees
    since: int
    end: int
    answer: list[int] = attrs.field(factory=list)


class Judge:
    """Checks the messages that a server receives and sends during one life."""

    def __init__(self, side: EventBus, life: int, broker: Any) -> None:
        self.side, self.history, self.life, self.broker = side, side.history, life, broker
        self.asked: dict[bytes, Asked] = {}
        self.heard: dict[bytes, int] = {}
        self.broadcast: int | None = None

    def pub(self, message: Message) -> None:
        """Record that an event arrived, and its order among the events of its connection."""
        identity, data = message[0], message[6]
        event = self.side.events[data]
        event.arrivals.append(self.life)
        self.heard[identity] = self.heard.get(identity, 0) + 1
        sent = self.history.sent[STREAM][data]
        first = len(event.arrivals) == 1
        # If an event came twice, nobody can tell which copy is stored, so only an event that came once has an order.
        sent.publisher, sent.order = f"{self.life} {identity!r}", self.heard[identity] if first else None

    def request(self, message: Message) -> None:
        asked = SyncStart.parse(message[1:])
        self.history.look()
        end = self.broker.bounds(STREAM)[1]
        self.asked[message[0]] = Asked(asked.subtrees, asked.sequence, end)

    def broadcasts(self, message: Message) -> None:
        event = Broadcast.parse(message)
        if self.broadcast is not None and event.sequence != self.broadcast + 1:
            self.history.wrong(f"broadcast {event.sequence} follows {self.broadcast}")
        self.broadcast = event.sequence
        self.side.check(event)

    def answers(self, message: Message) -> None:
        identity, *frames = message
        asked = self.asked.get(identity)
        if asked is None:
            self.history.wrong(f"{frames[0]!r} for somebody who has not asked")
        if frames[0] == SYNC:
            event = Sync.parse(frames)
            self.side.check(event)
            if event.sequence <= max(asked.answer[-1:], default=asked.since):
                self.history.wrong(f"SYNC {event.sequence} behind {asked.answer[-1:] or asked.since}")
            asked.answer.append(event.sequence)
            return
        end = SyncEnd.parse(frames).sequence
        del self.asked[identity]
        if asked.since > asked.end:
            right = asked.end <= end <= asked.since  # between the stream's end at the request and its end at the answer
        else:
            right = end == max(asked.answer[-1:], default=asked.since)
        if not right:
            self.history.wrong(f"SYNCEND {end} behind SYNC {asked.answer[-1:]} and SYNCSTART {asked.since}")
        upto = max([asked.end, *asked.answer[-1:]])
        owed = self.side.wanted(asked.subtrees, asked.since, upto)
        if asked.answer != owed:
            self.history.wrong(
                f"SYNCEND {end}: {sorted({*owed} ^ {*asked.answer})[:9]} are missing, or were not wanted"
            )


class Listener(Service):
    """The listener of the event bus, on simulated sockets."""

    def __init__(self, side: EventBus, host: Host, broker: Any) -> None:
        self.side, self.host, self.broker = side, host, broker
        self.server = EventBusServer(host, broker, side.settings)

    def startService(self) -> None:
        Service.startService(self)
        side, server = self.side, self.server
        judge = Judge(side, side.next_life(), self.broker)

        def pub(message: Message, count: int) -> None:
            judge.pub(message)
            server.pub_received(message, count)

        def request(message: Message, count: int) -> None:
            judge.request(message)
            server.request_received(message, count)

        snapshot = ServerPort(self.host, side.room, judge.answers, request, server.serve_snapshots)
        publisher = ServerPort(self.host, side.room * 10, judge.broadcasts)
        collector = ServerPort(self.host, 1, judge.answers, pub, server.publish_turn)
        ports = side.listening[self.host.name] = {"snapshot": snapshot, "publisher": publisher}
        leading: Deferred[None] = self.broker.when_leading()
        leading.addCallback(lambda _: ports.update(collector=collector))
        server.start(snapshot, publisher, collector)

    def stopService(self) -> Deferred[None]:
        Service.stopService(self)
        return self.server.stop()


class Threads:
    """The reactor of a client; it starts no thread to end a ZeroMQ context, because there is none."""

    def __init__(self, world: World) -> None:
        self.seconds, self.callLater = world.clock.seconds, world.clock.callLater

    def getThreadPool(self) -> Threads:
        return self

    def callInThreadWithCallback(self, done: Any, what: Any) -> None:
        done(True, what())

    def callFromThread(self, what: Any, *args: Any) -> None:
        what(*args)


class Nothing:
    """A substitute for the ZeroMQ context, without sockets."""

    def close(self) -> None:
        """Do nothing."""

    term = close


class SimulatedClient(EventBusClient):
    """A client of the event bus whose sockets are the simulated ports of :mod:`zeromq`."""

    side: EventBus
    name: str
    #: the index of the server that it reads from, and how often it failed to reach it
    where: int
    missed: int = 0

    def move(self) -> None:
        """Read from the next server of the list."""
        self.where, self.missed = self.where + 1, 0
        for name in ("snapshot", "publisher"):
            port = self._ports.get(name)
            if port is not None and port.channel is not None and port.channel.up:
                port.channel.cut()

    def _open(self, name: str, kind: int, offset: int) -> None:
        messages: list[Message] = []
        port: Any = ClientPort(
            self.side.world,
            self.name,
            lambda: self.side.find(self, name),
            self.side.room,
            subscribes=name == "publisher",
            receive=lambda message, count: messages.append(message),
            turn_over=partial(self._turn_over, name, messages),
            happened=lambda event, value: self._connection(name, event == CONNECTED),
        )
        self._ports[name] = port
        if not self._paused:
            port.start()


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
        self.client = SimulatedClient(
            Threads(world),
            "",
            0,
            options=options,
            on_events=self._events,
            on_late=partial(self._events, late=True),
            on_lost=self._lost,
            on_restarted=self._restarted,
            producer=self.name,
            random=Random(world.random.random()),
            now=world.now,
        )
        self.client.side, self.client.name, self.client.where = side, self.name, side.made
        with patch("zmq.Context", Nothing):
            connected = self.client.connect()
        connected.addCallbacks(lambda _: setattr(self, "ready", True), lambda failure: None)

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
            event = side.events[payload] = Published(topic)
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
        snapshot: Any = self.client._ports.get("snapshot")
        if snapshot is not None and snapshot.channel is not None:
            snapshot.channel.slow = True
        self._cut_publisher()
        clock.callLater(dice.random() * 2.0, self._cut_publisher)

    def _cut_publisher(self) -> None:
        publisher: Any = self.client._ports.get("publisher")
        if publisher is not None and publisher.channel is not None and publisher.channel.up:
            publisher.channel.cut()

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
class Published:
    """An event, and the lives of the server in which it arrived."""

    topic: str
    arrivals: list[int] = attrs.field(factory=list)

    def copies(self, dedup: bool) -> int:
        return len(set(self.arrivals) if dedup else self.arrivals)


class EventBus:
    """All event bus clients of a simulation.

    :param herd: how many clients there are, of a server with default options; 0 means a few
    """

    #: whether its clients cope with records that were lost or deleted
    gaps = False
    topics = (STREAM,)

    def __init__(self, world: World, server: Server, history: History, herd: int = 0) -> None:
        dice = world.random
        self.world, self.server, self.history = world, server, history
        self.events: dict[bytes, Published] = {}
        self.room = 1000 if herd else dice.choice((2, 20, 1000))
        few = EventBusSettings(
            dedup=dice.random() < 0.5,
            dialect=dice.choice((Dialect.BINARY, Dialect.BINARY, Dialect.DECIMAL)),
            snapshots=dice.choice((1, 8)),
            snapshots_memory=dice.choice((8 << 10, 64 << 20)),
        )
        self.settings = EventBusSettings() if herd else few
        self.listening: dict[str, dict[str, ServerPort]] = {}
        self.lives = 0
        server.listen(partial(Listener, self))
        server.on_crash.append(lambda name: self.listening.pop(name, None))
        self.clients: list[Client] = []
        self.made = self._published = 0
        self.last: Client | None = None
        for _ in range(herd or dice.randint(1, 3)):
            self.connect()

    def next_life(self) -> int:
        self.lives += 1
        return self.lives

    def find(self, client: SimulatedClient | None, name: str) -> ServerPort | None:
        """Return the port *name* that *client* reaches: any server's open COLLECTOR, else its own server's port."""
        names = self.server.names
        where = 0 if client is None else client.where
        tries = range(where, where + (len(names) if name == "collector" else 1))
        for server in (names[turn % len(names)] for turn in tries):
            port = self.listening.get(server, {}).get(name)
            if port is not None and not port.host.frozen and server not in self.world.partitioned:
                return port
        if client is not None and name != "collector" and len(names) > 1:
            client.missed += 1
            if client.missed > MISSES:
                client.move()
        return None

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

    def everybody(self) -> None:
        """Publish one event with every client of a herd."""
        for client in self.clients:
            client.publish()

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
        return next(filter(None, (client.owed() for client in self.clients)), "")

    def counts(self) -> int:
        return self._published + sum(client.published for client in self.clients)

    def close(self) -> None:
        for client in self.clients:
            client.close()
