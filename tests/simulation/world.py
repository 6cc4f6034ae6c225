"""One process, one clock, one source of chance: hosts that crash, and links between them that do what links do.

    World   seed -> Random, Timers, the wall clock, which steps
    Host    what a server takes for its reactor: its timers end when it crashes
    Link    one TCP connection: bytes arrive later, in pieces cut anywhere; it is cut, reset, cut off, read slowly
    Lane    datagrams: lost, doubled, late and out of order

Nothing here knows a protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import attrs
from timers import Timer, Timers
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol, IListeningPort, IStreamClientEndpoint
from twisted.python.failure import Failure
from zope.interface import implementer

#: How often a simulation has messages of 70 KiB to 2 MiB among others.
LARGE = 0.04
#: A step of the wall clock that is no larger is believed, in microseconds.
BELIEVED = 3600 * 1_000_000
#: A step that is no larger does not make a clock unsteady, in microseconds.
STEADY = 60 * 1_000_000


class Violation(Exception):
    """Something that must be true is not."""


class World:
    """Everything that a seed decides.

    :ivar trace: what happened, for whoever has to look at a seed, and to compare two runs of one
    :ivar wall_offset: microseconds since 1970 UTC less the monotonic clock
    :ivar stepped: by how much small steps moved the wall clock at the most, in microseconds; small ones are believed
    :ivar leapt: whether there was a large one
    :ivar steady_since: when the clock stepped by more than a minute last
    :ivar bursts: how many messages are published at once: few, or now and then many
    :ivar sizes: how many bytes they are filled up with
    :ivar large: whether there are messages of hundreds of KiB, too
    :ivar high: what a connection holds in one direction before its producer is paused, in bytes
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        dice = self.random = Random(seed)
        self.bursts: tuple[int, ...] = dice.choice(((1,), (1, 1, 3), (1, 1, 1, 3, 12)))
        self.sizes: tuple[int, ...] = dice.choice(((0, 10), (0, 10, 10, 300), (10, 10, 10, 300, 3000)))
        self.large = dice.random() < LARGE
        self.high = dice.choice((200, 3000))
        self.clock = Timers()
        self.wall_offset = self._began = 1_700_000_000_000_000
        self.stepped, self.leapt, self.steady_since = 0, False, 0.0
        self.trace: list[str] = []
        self.links: list[Link] = []
        self.listening: dict[int, Any] = {}
        self.partitioned: set[str] = set()
        self.lives = 0  #: how many lives of servers have ended
        self._ports = 40_000

    def now(self) -> int:
        """The wall clock."""
        return self.wall_offset + int(self.clock.seconds() * 1_000_000)

    def turn_clock(self, step: int) -> None:
        """Step the wall clock by so many microseconds."""
        self.note(f"the clock steps by {step / 1e6:g} s")
        self.wall_offset += step
        if abs(step) <= BELIEVED:
            self.stepped += abs(step)
        else:
            self.leapt = True
        if abs(step) > STEADY:
            self.steady_since = self.clock.seconds()

    @property
    def lie(self) -> int:
        """By how much the wall clock is wrong, in microseconds."""
        return self.wall_offset - self._began

    def honest(self) -> int:
        """Return what the wall clock would say without steps, in microseconds since 1970 UTC."""
        return self._began + self.monotonic()

    def size(self) -> int:
        """Return how many bytes the next message is filled up with."""
        if self.large and self.random.random() < 0.15:
            return int(70_000 * 30 ** self.random.random())
        return self.random.choice(self.sizes)

    def monotonic(self) -> int:
        """The clock that nobody can set, in microseconds."""
        return int(self.clock.seconds() * 1_000_000)

    def note(self, what: str) -> None:
        self.trace.append(f"{self.clock.seconds():.4f} {what}")

    def port(self) -> int:
        self._ports += 1
        return self._ports

    def partition(self, host: str, seconds: float) -> None:
        """Nothing goes to or from ``host`` for a while; nobody is told."""
        self.partitioned.add(host)
        self.clock.callLater(seconds, self.heal, host)

    def heal(self, host: str) -> None:
        self.partitioned.discard(host)
        for link in self.links:
            link.go_on()


class Host:
    """The reactor of one life of a server: the world's clock, until it crashes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dead = False
        self.seconds = world.clock.seconds

    def callLater(self, delay: float, what: Callable[..., object], *args: Any, **kwargs: Any) -> Timer:
        return self.world.clock.callLater(delay, self._call, what, args, kwargs)

    def _call(self, what: Callable[..., object], args: Any, kwargs: Any) -> None:
        if not self.dead:
            what(*args, **kwargs)

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> Port:
        self.world.listening[port] = factory
        return Port(self.world, port)

    def crash(self) -> None:
        self.dead = True
        self.world.lives += 1


@implementer(IListeningPort)
@attrs.define(eq=False)
class Port:
    world: World
    number: int

    def startListening(self) -> None:
        """It does."""

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", "127.0.0.1", self.number)

    def stopListening(self) -> None:
        self.world.listening.pop(self.number, None)


@implementer(IStreamClientEndpoint)
@attrs.define(eq=False)
class Endpoint:
    """How the client on ``host`` connects to a port of the server.

    :ivar tap: makes, for each connection, what sees the server write and read
    :ivar address: where the server sees it come from
    """

    world: World
    host: str
    number: int
    tap: Callable[[], Any] | None = None
    address: str = "127.0.0.1"

    def connect(self, factory: Any) -> Deferred[Any]:
        world = self.world
        done: Deferred[Any] = Deferred(lambda _: timer.cancel())

        def reach() -> None:
            listener = world.listening.get(self.number)
            address = IPv4Address("TCP", self.address, world.port())
            served = None
            if listener is not None and self.host not in world.partitioned:
                served = listener.buildProtocol(address)
            if served is None:
                done.errback(Failure(ConnectError()))
                return
            client = factory.buildProtocol(address)
            link = Link(world, self.host, served, client, address, None if self.tap is None else self.tap())
            world.note(f"{self.host} connects")
            served.makeConnection(link.ends[0])
            client.makeConnection(link.ends[1])
            done.callback(client)

        timer = world.clock.callLater(world.random.random() * 0.05, reach)
        return done


class End:
    """One end of a link: the transport of its protocol, and the bytes on their way to the other."""

    disconnecting = False

    def __init__(self, link: Link, protocol: Any, peer: IPv4Address, tap: Any) -> None:
        self.link, self.protocol, self.peer, self.tap = link, protocol, peer, tap
        self.other: End
        self.flight = bytearray()
        self.up, self.finished, self.reading = True, False, True
        self.producer: Any = None
        self.paused = False
        self.timer: Any = None

    def getPeer(self) -> IPv4Address:
        return self.peer

    getHost = getPeer

    def write(self, data: bytes) -> None:
        if not self.up or self.disconnecting or not data:
            return
        if self.tap is not None:
            self.tap.wrote(bytes(data))
        self.flight += data
        self.send()
        if self.producer is not None and not self.paused and len(self.flight) > self.link.world.high:
            self.paused = True
            self.producer.pauseProducing()

    def writeSequence(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self.producer = producer

    def unregisterProducer(self) -> None:
        self.producer = None

    def pauseProducing(self) -> None:
        self.reading = False

    def resumeProducing(self) -> None:
        self.reading = True
        if self.up:
            self.other.send()

    def loseConnection(self) -> None:
        self.disconnecting = True
        self.send()

    def abortConnection(self) -> None:
        if self.up:
            self.link.world.clock.callLater(0, self.link.cut)

    def send(self) -> None:
        """What is on its way, or the end of it, goes on after a while."""
        if self.timer is None and (self.flight or (self.disconnecting and not self.finished)):
            world = self.link.world
            delay = world.random.random() * (2.0 if self.link.slow else 0.02)
            self.timer = world.clock.callLater(delay, self.arrive)

    def arrive(self) -> None:
        self.timer = None
        link, other, world = self.link, self.other, self.link.world
        if not other.up or not other.reading or link.host in world.partitioned:
            return
        if self.flight:
            size = world.random.choice((1, 3, 7, 40, 500, len(self.flight), len(self.flight)))
            piece = bytes(self.flight[:size])
            del self.flight[:size]
            if other.tap is not None:
                other.tap.read(piece)
            other.protocol.dataReceived(piece)
            if self.up and self.paused and len(self.flight) < world.high // 3:
                self.paused = False
                if self.producer is not None:
                    self.producer.resumeProducing()
        elif self.disconnecting and not self.finished:
            self.finished = True
            if other.finished or not IHalfCloseableProtocol.providedBy(other.protocol):
                link.cut(ConnectionDone())
            else:
                other.protocol.readConnectionLost()
        self.send()

    def lost(self, reason: Exception) -> None:
        if self.up:
            self.up = False
            self.flight.clear()
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None
            self.protocol.connectionLost(Failure(reason))


class Link:
    """A connection; ``ends[0]`` is the server's."""

    def __init__(self, world: World, host: str, served: Any, client: Any, peer: IPv4Address, tap: Any) -> None:
        self.world, self.host = world, host
        self.life = world.lives
        self.slow = False
        self.ends = End(self, served, peer, tap), End(self, client, peer, None)
        self.ends[0].other, self.ends[1].other = self.ends[1], self.ends[0]
        world.links.append(self)

    def go_on(self) -> None:
        for end in self.ends:
            end.send()

    def cut(self, reason: Exception | None = None) -> None:
        """Both ends hear of it, one a little later; what is on its way is lost."""
        first, second = self.ends if self.world.random.random() < 0.5 else self.ends[::-1]
        self._forget()
        first.lost(reason or ConnectionLost())
        self.world.clock.callLater(self.world.random.random() * 0.2, self._second, second, reason or ConnectionLost())

    def _second(self, end: End, reason: Exception) -> None:
        if end is self.ends[0] and self.life != self.world.lives:
            end.up = False  # whoever would hear of it is dead
        else:
            end.lost(reason)

    def server_crashed(self) -> None:
        """Its end is no more, whatever it was about to do; the client hears of it in a while."""
        end, client = self.ends
        end.up = False
        end.flight.clear()
        if end.timer is not None:
            end.timer.cancel()
            end.timer = None
        self._forget()
        self.world.clock.callLater(self.world.random.random(), client.lost, ConnectionLost())

    def _forget(self) -> None:
        if self in self.world.links:
            self.world.links.remove(self)


@attrs.define(eq=False)
class Lane:
    """Datagrams between addresses.

    :ivar loss: how often one is lost; :ivar double: how often it comes twice
    :ivar delay: how late one may be, in seconds: whoever is later than the next has lost its place
    """

    world: World
    loss: float = 0.0
    double: float = 0.0
    delay: float = 0.01
    ports: dict[tuple[str, int], Any] = attrs.field(factory=dict)

    def carry(self, datagram: bytes, source: tuple[str, int], destination: tuple[str, int]) -> None:
        world, dice = self.world, self.world.random
        if dice.random() < self.loss or {source[0], destination[0]} & world.partitioned:
            return
        for _ in range(1 + (dice.random() < self.double)):
            world.clock.callLater(dice.random() * self.delay, self._arrive, datagram, source, destination)

    def _arrive(self, datagram: bytes, source: tuple[str, int], destination: tuple[str, int]) -> None:
        port = self.ports.get(destination)
        if port is not None:
            port.arrived(datagram, source)
