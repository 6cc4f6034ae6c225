"""Simulated TCP connections: bytes arrive late, in arbitrary pieces; connections break, stall, or are slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from timers import Timer
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol, IStreamClientEndpoint
from twisted.python.failure import Failure
from world import Host, World
from zope.interface import implementer

#: How long a client waits for a connection, in seconds.
PATIENCE = 3.0


@implementer(IStreamClientEndpoint)
@attrs.define(eq=False)
class Endpoint:
    """A client endpoint that connects the client on ``host`` to a port of a server.

    :ivar tap: makes an observer of each connection, which sees what the server writes and reads
    :ivar address: the address of the client that the server sees
    :ivar servers: names of the servers that it knows; each attempt goes to the next one
    """

    world: World
    host: str
    number: int
    tap: Callable[[], Any] | None = None
    address: str = "127.0.0.1"
    servers: tuple[str, ...] = ("",)
    turn: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.turn = self.world.random.randrange(len(self.servers)) if len(self.servers) > 1 else 0

    def connect(self, factory: Any) -> Deferred[Any]:
        world, server = self.world, self.servers[self.turn % len(self.servers)]
        self.turn += 1
        until = world.clock.seconds() + PATIENCE
        timers: list[Timer] = []
        done: Deferred[Any] = Deferred(lambda _: timers[-1].cancel())

        def reach() -> None:
            host, listener = world.listening.get((server, self.number), (None, None))
            if host is not None and host.frozen and world.clock.seconds() < until:
                timers.append(world.clock.callLater(0.3, reach))
                return
            address = IPv4Address("TCP", self.address, world.port())
            served = None
            if host is not None and not host.frozen and not {self.host, server} & world.partitioned:
                served = listener.buildProtocol(address)
            if served is None:
                done.errback(Failure(ConnectError()))
                return
            client = factory.buildProtocol(address)
            tap = None if self.tap is None else self.tap()
            link = Link(world, self.host, host, served, client, address, tap, self.number)
            world.note(f"{self.host} connects" + (f" to {server}" if server else ""))
            served.makeConnection(link.ends[0])
            client.makeConnection(link.ends[1])
            done.callback(client)

        timers.append(world.clock.callLater(world.random.random() * 0.05, reach))
        return done


class End:
    """One end of a link: the transport of its protocol, and the bytes on their way to the other end."""

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

    #: Closing first delivers unsent bytes, then the end of data; the client then closes its side, too.
    loseWriteConnection = loseConnection

    def abortConnection(self) -> None:
        if self.up:
            self.link.world.clock.callLater(0, self.link.cut)

    def send(self) -> None:
        """Deliver the bytes that are on their way, or the end of data, after a delay."""
        if self.timer is None and (self.flight or (self.disconnecting and not self.finished)):
            world = self.link.world
            delay = world.random.random() * (2.0 if self.link.slow else 0.02)
            self.timer = world.clock.callLater(delay, self.arrive)

    def arrive(self) -> None:
        self.timer = None
        link, other, world = self.link, self.other, self.link.world
        if not other.up or not other.reading or link.is_cut_off() or (self is link.ends[1] and link.server.frozen):
            return
        if self.flight:
            size = world.random.choice((1, 3, 7, 40, 500, len(self.flight), len(self.flight)))
            piece = bytes(self.flight[:size])
            del self.flight[:size]
            if other.tap is not None:
                other.tap.read(piece)
            other.protocol.dataReceived(piece)
            self.relieve()
        elif self.disconnecting and not self.finished:
            self.finished = True
            if other.finished or not IHalfCloseableProtocol.providedBy(other.protocol):
                link.cut(ConnectionDone())
            else:
                other.protocol.readConnectionLost()
        self.send()

    def relieve(self) -> None:
        """Resume the producer if there is room again; a frozen process resumes it when the process continues."""
        link = self.link
        if not self.up or not self.paused or len(self.flight) >= link.world.high // 3:
            return
        if self is link.ends[0] and link.server.frozen:
            return
        self.paused = False
        if self.producer is not None:
            self.producer.resumeProducing()

    def lost(self, reason: Exception) -> None:
        if self is self.link.ends[0] and self.link.server.frozen:
            self.link.server.callLater(0, self.lost, reason)
        elif self.up:
            self.up = False
            self.flight.clear()
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None
            self.protocol.connectionLost(Failure(reason))


class Link:
    """A simulated TCP connection to port ``number``; ``ends[0]`` is the server's end."""

    def __init__(
        self,
        world: World,
        host: str,
        server: Host,
        served: Any,
        client: Any,
        peer: IPv4Address,
        tap: Any,
        number: int = 0,
    ) -> None:
        self.world, self.host, self.server, self.number = world, host, server, number
        self.slow = False
        self.ends = End(self, served, peer, tap), End(self, client, peer, None)
        self.ends[0].other, self.ends[1].other = self.ends[1], self.ends[0]
        world.links.append(self)

    def is_cut_off(self) -> bool:
        return bool({self.host, self.server.name} & self.world.partitioned)

    def go_on(self) -> None:
        for end in self.ends:
            end.relieve()
            end.send()

    def cut(self, reason: Exception | None = None) -> None:
        """Cut the connection: bytes on their way are lost; both ends are told, one a little later than the other."""
        first, second = self.ends if self.world.random.random() < 0.5 else self.ends[::-1]
        self._forget()
        first.lost(reason or ConnectionLost())
        self.world.clock.callLater(self.world.random.random() * 0.2, self._second, second, reason or ConnectionLost())

    def _second(self, end: End, reason: Exception) -> None:
        if end is self.ends[0] and self.server.dead:
            end.up = False  # the process at this end has crashed
        else:
            end.lost(reason)

    def server_crashed(self) -> None:
        """Drop the server's end at once; the client is told after a delay."""
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
