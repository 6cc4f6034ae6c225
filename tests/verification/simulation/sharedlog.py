"""Simulate the shared log of a cluster: the log is replicated and durable, but the network to it is unreliable.

    SharedLog.connect(host, name) -> a Connection for one life of a server (ISharedLog)

Requests and answers take any time, are lost, repeated, or overtake each other; a request that timed out may still
arrive.  A server may be cut off from the log, and the log may lack a quorum: then it answers nothing, and executes
requests later or never.  Reads may be answered by a machine that is a little behind.  The shared log also defines which
bytes are valid: those of all entries that were not void, in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from world import Host, Violation, World
from zope.interface import implementer

from fyrehose.cluster.entries import EntryKind, EntryWriter, LogEntry, Validity
from fyrehose.cluster.shared_log import EntryRange, ISharedLog, Refused, Unavailable

#: How long a server waits for an answer, in seconds.
TIMEOUT = 2.0
#: How late a request that timed out may arrive, in seconds: later than a take-over takes.
LATE = 9.0
#: How many answers in sequence may come from a machine that is behind.
STALE = 3


class SharedLog:
    """All entries of the shared log, and its valid bytes.

    :ivar entries: all entries, including those before number ``first``, which were purged
    :ivar truth: the bytes of the valid entries
    :ivar away: names of the servers that do not reach the log
    :ivar mute: names of the servers whose appends do not reach the log, while their other requests do
    :ivar loss: how often a request or an answer is lost
    :ivar quorum: whether the log executes requests at the moment
    :ivar connections: by the names of the servers
    :ivar on_purge: called with the position before which only the servers will have the bytes
    """

    def __init__(self, world: World, on_purge: Callable[[int], None]) -> None:
        self.world, self.on_purge = world, on_purge
        self.entries: list[LogEntry] = []
        self.numbers: dict[tuple[str, int], int] = {}
        self.first = 1
        self.past: deque[EntryRange] = deque([EntryRange(1, 0)], maxlen=4)
        self.truth = bytearray()
        self.takeovers = self.voids = 0
        self.away: set[str] = set()
        self.mute: set[str] = set()
        self.loss = 0.0
        self.quorum = True
        self.connections: dict[str, Connection] = {}
        self._validity, self._parts = Validity(), b""
        self._ends: list[int] = []
        self._waiting: list[Callable[[], None]] = []

    def connect(self, host: Host, name: str) -> Connection:
        return Connection(self, host, name)

    def append(self, entry: LogEntry, expect: int) -> int:
        last = len(self.entries)
        known = self.numbers.get((entry.ident, expect))
        # a repeated append is sometimes no longer recognised, as after the log's duplicate window
        if known is not None and self.world.random.random() < 0.8:
            return known
        if last != expect:
            raise Refused(last)
        self._grow(LogEntry.unpack(entry.pack()))
        return last + 1

    def _grow(self, entry: LogEntry) -> None:
        self._ends.append(len(self.truth))
        self.entries.append(entry)
        self.numbers[entry.ident, len(self.entries) - 1] = len(self.entries)
        self.past.append(EntryRange(self.first, len(self.entries)))
        if len(self.entries) == 1:
            self._validity.begin(entry)
        counts = self._validity.counts(entry)
        self.world.note(
            f"entry {len(self.entries)}: {entry.kind.name.lower()} of {entry.writer.name}, epoch {entry.epoch}, "
            f"{entry.position} to {entry.end}{'' if counts else ', VOID'}"
        )
        if not counts:
            self.voids += 1
        elif entry.kind is not EntryKind.DATA:
            self._parts = b""
            self.takeovers += entry.kind is EntryKind.TAKEOVER
        else:
            self._parts += entry.data
            if not entry.part:
                self.truth += self._parts
                self._parts = b""

    @property
    def epoch(self) -> int:
        return self._validity.epoch

    def admits(self, name: str) -> bool:
        """Return whether the server *name* is a member, or may become one without an operator."""
        members = self._validity.members
        return members is None or members.admits(name)

    def left(self) -> int:
        """Return the position of the first entry that was not purged."""
        return self._ends[self.first - 1] if self.first <= len(self._ends) else len(self.truth)

    def read(self, number: int, most: int, behind: int) -> list[tuple[int, LogEntry]]:
        if number < self.first:
            return []
        last = max(number - 1, len(self.entries) - behind)
        return list(enumerate(self.entries[number - 1 : min(last, number - 1 + most)], number))

    def purge(self, number: int) -> None:
        if number > self.first:
            self.world.note(f"purged before entry {number}")
            self.on_purge(self._ends[number - 1] if number <= len(self._ends) else len(self.truth))
            self.first = number
            self.past.append(EntryRange(self.first, len(self.entries)))

    def arrives(self, act: Callable[[], None]) -> None:
        """Execute a request that arrives; without a quorum, some requests wait for one and the others are lost."""
        if self.quorum:
            act()
        elif self.world.random.random() < 0.5:
            self._waiting.append(act)

    def lose_quorum(self) -> None:
        self.quorum = False

    def regain_quorum(self) -> None:
        self.quorum = True
        waiting, self._waiting = self._waiting, []
        self.world.random.shuffle(waiting)
        for act in waiting:
            self.world.clock.callLater(self.world.random.random(), act)


@implementer(ISharedLog)
@attrs.define(eq=False)
class Connection:
    """The connection of one life of a server to the shared log; answers wait while the server is frozen.

    :ivar answered: when the last answer came, by the world's clock
    """

    log: SharedLog
    host: Host
    name: str
    heard: Callable[[bytes], None] = lambda message: None
    asked: Callable[[bytes], None] = lambda message: None
    writer: EntryWriter | None = None
    answered: float = 0.0
    stale: int = 0
    closed: bool = False

    def open(
        self,
        heard: Callable[[bytes], None],
        writer: EntryWriter | None = None,
        asked: Callable[[bytes], None] = lambda message: None,
    ) -> Deferred[list[str]]:
        def opened() -> list[str]:
            # The request may arrive after the server has closed this connection or was killed, and has opened another
            # one.
            if not (self.closed or self.host.dead):
                self.heard, self.writer, self.asked = heard, writer, asked
                self.log.connections[self.name] = self
            return []

        return self._ask(opened)

    def append(self, entry: LogEntry, expect: int) -> Deferred[int]:
        mute = self.name in self.log.mute
        return self._ask(lambda: self.log.append(entry, expect), repeats=not mute, lost=mute)

    def extent(self) -> Deferred[EntryRange]:
        return self._ask(self._extent)

    def _extent(self) -> EntryRange:
        past = self.log.past
        if not self._is_behind():
            return past[-1]
        return self.log.world.random.choice(past)

    def _is_behind(self) -> bool:
        """Return at random, but not often in sequence, whether the answering machine is behind."""
        behind = self.log.world.random.random() < 0.05 and self.stale < STALE
        self.stale = self.stale + 1 if behind else 0
        return behind

    def read(self, number: int, most: int) -> Deferred[list[tuple[int, LogEntry]]]:
        return self._ask(lambda: self.log.read(number, most, 2 if self._is_behind() else 0))

    def purge(self, number: int) -> Deferred[None]:
        return self._ask(lambda: self.log.purge(number), repeats=True)

    def say(self, message: bytes) -> None:
        world = self.log.world
        for other in list(self.log.connections.values()):
            if not {self.name, other.name} & self.log.away and world.random.random() >= self.log.loss:
                world.clock.callLater(self._delay(), other.tell, message)

    def ask(self, request: bytes) -> None:
        """Deliver an operator's request unless the server is cut off; a frozen server reads it when it continues."""
        if self.name not in self.log.away:
            self.host.callLater(0, self.asked, request)

    def is_here(self, writer: EntryWriter) -> Deferred[bool]:
        return self._ask(lambda: self._is_here(writer))

    def _is_here(self, writer: EntryWriter) -> bool:
        """Return whether the life *writer* of a server still runs; now and then return the wrong answer."""
        other, dice = self.log.connections.get(writer.name), self.log.world.random
        here = other is not None and other.writer == writer and not other.host.dead
        cut_off = writer.name in self.log.away and dice.random() < 0.5
        return (here and not cut_off) != (dice.random() < 0.03)

    def tell(self, message: bytes) -> None:
        """Deliver a message of another server; a frozen server reads it when it continues."""
        self.host.callLater(0, self._hear, message)

    def _hear(self, message: bytes) -> None:
        if self.log.connections.get(self.name) is self:
            self.heard(message)

    def close(self) -> Deferred[None]:
        self.closed = True
        if self.log.connections.get(self.name) is self:
            del self.log.connections[self.name]
        closed: Deferred[None] = Deferred()
        self.host.callLater(0, closed.callback, None)
        return closed

    def _delay(self) -> float:
        dice = self.log.world.random
        return float(dice.random() ** 3 * (1.0 if dice.random() < 0.02 else 0.05))

    def _is_lost(self) -> bool:
        return self.name in self.log.away or self.log.world.random.random() < self.log.loss

    def _ask(self, act: Callable[[], Any], repeats: bool = False, lost: bool = False) -> Deferred[Any]:
        """Send a request that calls *act*; return its answer.

        :param repeats: whether the request changes something, so that it may arrive twice or late
        :param lost: whether the request must not arrive
        """
        log, clock = self.log, self.log.world.clock
        done: Deferred[Any] = Deferred()
        late = self.host.callLater(TIMEOUT, lambda: answer(Failure(Unavailable("no answer"))))

        def answer(result: Any) -> None:
            if late.active():
                late.cancel()
            if not done.called:
                done.callback(result)

        def arrive() -> None:
            try:
                result = act()
            except (Refused, Violation):
                result = Failure()
            clock.callLater(self._delay(), come_back, result)

        def come_back(result: Any) -> None:
            if not self._is_lost():
                self.host.callLater(0, got, result)

        def got(result: Any) -> None:
            self.answered = log.world.clock.seconds()
            answer(result)

        dice = log.world.random
        for _ in range(2 if repeats and dice.random() < 0.05 else 1):
            if not (lost or self._is_lost()):
                clock.callLater(self._delay(), log.arrives, arrive)
            elif repeats and dice.random() < 0.5:  # delayed in the network
                clock.callLater(dice.random() * LATE, log.arrives, arrive)
        return done
