"""The world of a simulation: one process, one clock, one random generator, hosts that crash, and unreliable links.

    World   seed -> Random, Timers, and a wall clock that steps
    Host    the reactor of a server: its timers are dropped when the server crashes, and wait while it is frozen
    Lane    a datagram network that loses, duplicates, delays and reorders

This module knows no protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import attrs
from timers import Timer, Timers
from twisted.internet.address import IPv4Address
from twisted.internet.interfaces import IListeningPort
from zope.interface import implementer

#: How often a simulation has messages of 70 KiB to 2 MiB among others.
LARGE = 0.04
#: The largest step of the wall clock that a server follows at once, in microseconds.
BELIEVED = 3600 * 1_000_000
#: The largest step after which a wall clock still counts as steady, in microseconds.
STEADY = 60 * 1_000_000


class Violation(Exception):
    """A rule that must always hold was violated."""


class World:
    """Everything that a seed decides: the clocks, the random numbers and the sizes of messages.

    :ivar trace: a list of what happened, to examine a seed, and to compare two runs of one seed
    :ivar wall_offset: microseconds since 1970 UTC less the monotonic clock
    :ivar stepped: the largest sum of small steps of the wall clock, in microseconds; servers follow small steps at once
    :ivar leapt: whether there was a large step
    :ivar steady_since: when the clock last stepped by more than a minute
    :ivar bursts: how many messages are published at once: few, or now and then many
    :ivar sizes: how many bytes of filling messages have
    :ivar large: whether there are messages of hundreds of KiB, too
    :ivar high: how many bytes a connection buffers in one direction before its producer is paused
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
        self.links: list[Any] = []
        self.listening: dict[tuple[str, int], tuple[Host, Any]] = {}
        self.partitioned: set[str] = set()
        #: What the timers of servers that have crashed would have called.
        self.buried: list[object] = []
        self._ports = 40_000

    def now(self) -> int:
        """Return the time of the wall clock in microseconds, which may be wrong."""
        return self.wall_offset + int(self.clock.seconds() * 1_000_000)

    def turn_clock(self, step: int) -> None:
        """Step the wall clock by *step* microseconds."""
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
        """Return by how much the wall clock is wrong, in microseconds."""
        return self.wall_offset - self._began

    def honest(self) -> int:
        """Return the right time, in microseconds since 1970 UTC."""
        return self._began + self.monotonic()

    def size(self) -> int:
        """Return how many bytes of filling the next message has."""
        if self.large and self.random.random() < 0.15:
            return int(70_000 * 30 ** self.random.random())
        return self.random.choice(self.sizes)

    def monotonic(self) -> int:
        """Return the monotonic clock, in microseconds."""
        return int(self.clock.seconds() * 1_000_000)

    def note(self, what: str) -> None:
        self.trace.append(f"{self.clock.seconds():.4f} {what}")

    def port(self) -> int:
        self._ports += 1
        return self._ports

    def partition(self, host: str, seconds: float) -> None:
        """Drop all data to and from ``host`` for *seconds*, without an error at either end."""
        self.partitioned.add(host)
        self.clock.callLater(seconds, self.heal, host)

    def heal(self, host: str) -> None:
        self.partitioned.discard(host)
        for link in self.links:
            link.go_on()


class Host:
    """The reactor of one life of a server: the world's clock, until the server crashes.

    :ivar name: the name of the server, which has its own port numbers
    :ivar frozen: whether the process is stopped: no timer runs and no data arrives; the kernel keeps its connections
    """

    def __init__(self, world: World, name: str = "") -> None:
        self.world, self.name = world, name
        self.dead = self.frozen = False
        self.seconds = world.clock.seconds
        self._held: list[Timer] = []

    def callLater(self, delay: float, what: Callable[..., object], *args: Any, **kwargs: Any) -> Timer:
        timer = self.world.clock.callLater(delay, self._call, what, args, kwargs)
        timer.owner = self
        return timer

    def callFromThread(self, what: Callable[..., object], *args: Any) -> None:
        self.callLater(0, what, *args)

    def _call(self, what: Callable[..., object], args: Any, kwargs: Any) -> None:
        if self.dead:  # a process that is killed closes no coroutine, so Python must not close these as garbage
            self.world.buried.append((what, args, kwargs))
        else:
            what(*args, **kwargs)

    def holds(self, timer: Timer) -> bool:
        """Return whether *timer*, which is due, has to wait because the process is frozen."""
        if self.frozen:
            self._held.append(timer)
        return self.frozen

    def freeze(self) -> None:
        self.frozen = True

    def go_on(self) -> None:
        """Continue after :meth:`freeze`, and run everything that became due meanwhile, in its order."""
        self.frozen = False
        held, self._held = self._held, []
        for timer in held:
            if timer.active():
                timer.enter()
        for link in self.world.links:
            if link.server is self:
                link.go_on()

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> Port:
        factory.doStart()
        self.world.listening[self.name, port] = self, factory
        return Port(self, port)

    def crash(self) -> None:
        self.dead, self.frozen = True, False
        self.world.buried.append(self._held)
        self._held = []
        for (name, port), (host, _) in list(self.world.listening.items()):
            if host is self:
                del self.world.listening[name, port]
        for link in list(self.world.links):
            if link.server is self:
                link.server_crashed()


@implementer(IListeningPort)
@attrs.define(eq=False)
class Port:
    host: Host
    number: int

    def startListening(self) -> None:
        """Start to receive datagrams."""

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", "127.0.0.1", self.number)

    def stopListening(self) -> None:
        self.host.world.listening.pop((self.host.name, self.number), None)


@attrs.define(eq=False)
class Lane:
    """An unreliable network that carries datagrams between addresses.

    :ivar loss: how often a datagram is lost
    :ivar double: how often a datagram arrives twice
    :ivar delay: how late a datagram may be, in seconds; a datagram that is later than the next one arrives out of order
    :ivar names: names of servers, by their addresses
    """

    world: World
    loss: float = 0.0
    double: float = 0.0
    delay: float = 0.01
    ports: dict[tuple[str, int], Any] = attrs.field(factory=dict)
    names: dict[str, str] = attrs.field(factory=dict)

    def name(self, address: tuple[str, int]) -> str:
        """Return the name by which the host at *address* can be partitioned."""
        return self.names.get(address[0], address[0])

    def carry(self, datagram: bytes, source: tuple[str, int], destination: tuple[str, int]) -> None:
        world, dice = self.world, self.world.random
        if dice.random() < self.loss or {self.name(source), self.name(destination)} & world.partitioned:
            return
        for _ in range(1 + (dice.random() < self.double)):
            world.clock.callLater(dice.random() * self.delay, self._arrive, datagram, source, destination)

    def _arrive(self, datagram: bytes, source: tuple[str, int], destination: tuple[str, int]) -> None:
        port = self.ports.get(destination)
        if port is None:
            return
        if port.host is not None and port.host.frozen:
            # the kernel of the frozen host keeps the datagram
            self.world.clock.callLater(0.2, self._arrive, datagram, source, destination)
            return
        port.arrived(datagram, source)
