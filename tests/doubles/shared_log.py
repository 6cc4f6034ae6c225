"""A shared log in memory, with a network that the test controls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.cluster.entries import EntryWriter, LogEntry
from fyrehose.cluster.shared_log import EntryRange, ISharedLog, Refused, Unavailable
from fyrehose.journal.exchange import Batches
from fyrehose.records import Buffer


def whole(*batches: Buffer) -> list[Batches]:
    """Return *batches* as a leader appends them, for tests that do not read them."""
    return [Batches(each, 0) for each in batches]


@attrs.define(eq=False)
class Hub:
    """The shared log, for any number of servers.

    :ivar clock: runs requests and answers later
    :ivar rnd: chooses delays, and which requests and answers are lost
    :ivar loss: the share of requests, and of answers, that is lost
    :ivar slowest: how long a request, an answer or a message takes at most, in seconds
    :ivar queues: how much later everything reaches each server, by its name, in seconds, as behind a slow link
    :ivar looked: when the log last did what each server asked for, by the name of the server
    :ivar away: servers that reach nothing at the moment
    :ivar entries: all entries, including those before ``first``, which were purged
    """

    clock: Any
    rnd: Random = attrs.field(factory=lambda: Random(1))
    loss: float = 0.0
    slowest: float = 0.05
    queues: dict[str, float] = attrs.field(factory=dict)
    looked: dict[str, float] = attrs.field(factory=dict)
    entries: list[LogEntry] = attrs.field(factory=list)
    first: int = 1
    away: set[str] = attrs.field(factory=set)
    hears: dict[str, Callable[[bytes], None]] = attrs.field(factory=dict)
    asks: dict[str, Callable[[bytes], None]] = attrs.field(factory=dict)
    #: the servers that are connected, by name
    here: dict[str, EntryWriter | None] = attrs.field(factory=dict)
    #: the answer to the question whether a server is connected; None: the truth
    answers: bool | None = None
    #: the answer to the question for the extent of the log; None: the truth
    outdated: EntryRange | None = None
    #: how often each server has asked it
    extents: Counter[str] = attrs.field(factory=Counter)
    #: how often each server has read, and told the others about itself
    reads: Counter[str] = attrs.field(factory=Counter)
    said: Counter[str] = attrs.field(factory=Counter)
    #: how many of the last entries are not found by reads yet, as by a NATS server that is behind
    unread: int = 0
    #: whether that question is answered, whether reads are, and whether what servers say to each other arrives
    tells_extent: bool = True
    answers_reads: bool = True
    hears_others: bool = True

    def log(self, name: str) -> MemoryLog:
        """Return the connection of the server *name* to the log."""
        return MemoryLog(self, name)

    @property
    def size(self) -> int:
        """Return the size of the entries that were not purged, in bytes."""
        return sum(len(entry.data) for entry in self.entries[self.first - 1 :])

    def ask(self, request: bytes) -> None:
        """Deliver an operator's request to all servers that are connected."""
        for name in self.hears:
            self.clock.callLater(0.01, self.asks[name], request)

    def append(self, entry: LogEntry, expect: int) -> int:
        last = len(self.entries)
        if last != expect:
            if expect < last and self.entries[expect] == entry:  # a repeated append
                return expect + 1
            raise Refused(last)
        self.entries.append(entry)
        return last + 1

    def read(self, number: int, most: int) -> list[tuple[int, LogEntry]]:
        if number < self.first:
            return []
        found = self.entries[number - 1 : len(self.entries) - self.unread]
        return list(enumerate(found[:most], number))

    def purge(self, number: int) -> None:
        self.first = max(self.first, number)


@implementer(ISharedLog)
@attrs.define(eq=False)
class MemoryLog:
    """One server's connection to a :class:`Hub`."""

    hub: Hub
    name: str
    timeout: float = 2.0
    closed: bool = attrs.field(default=False, init=False)

    def open(
        self,
        heard: Callable[[bytes], None],
        writer: EntryWriter | None = None,
        asked: Callable[[bytes], None] = lambda message: None,
    ) -> Deferred[list[str]]:
        def opened() -> list[str]:
            if self.closed:  # it was closed while it was being opened
                return []
            self.hub.hears[self.name], self.hub.here[self.name] = heard, writer
            self.hub.asks[self.name] = asked
            return []

        return self._ask(opened)

    def append(self, entry: LogEntry, expect: int) -> Deferred[int]:
        return self._ask(lambda: self.hub.append(entry, expect))

    def extent(self) -> Deferred[EntryRange]:
        hub = self.hub
        hub.extents[self.name] += 1
        return self._ask(lambda: hub.outdated or EntryRange(hub.first, len(hub.entries), hub.size), hub.tells_extent)

    def read(self, number: int, most: int) -> Deferred[list[tuple[int, LogEntry]]]:
        self.hub.reads[self.name] += 1
        return self._ask(lambda: self.hub.read(number, most), self.hub.answers_reads)

    def purge(self, number: int) -> Deferred[None]:
        return self._ask(lambda: self.hub.purge(number))

    def say(self, message: bytes) -> None:
        self.hub.said[self.name] += 1
        for name, heard in self.hub.hears.items():
            if self.hub.hears_others and not {name, self.name} & self.hub.away:
                late = self._delay() + self.hub.queues.get(name, 0.0)
                self.hub.clock.callLater(late, self._deliver, heard, name, message)

    def _deliver(self, heard: Callable[[bytes], None], name: str, message: bytes) -> None:
        if self.hub.hears.get(name) == heard:
            heard(message)

    def is_here(self, writer: EntryWriter) -> Deferred[bool]:
        here = self.hub.here.get(writer.name) == writer and writer.name not in self.hub.away
        here = here if self.hub.answers is None else self.hub.answers
        return self._ask(lambda: here)

    def close(self) -> Deferred[None]:
        self.closed = True
        self.hub.hears.pop(self.name, None)
        self.hub.here.pop(self.name, None)
        closed: Deferred[None] = Deferred()
        self.hub.clock.callLater(0, closed.callback, None)
        return closed

    def _delay(self) -> float:
        return self.hub.rnd.random() ** 3 * self.hub.slowest

    def _ask(self, act: Callable[[], Any], arrives: bool = True) -> Deferred[Any]:
        hub = self.hub
        done: Deferred[Any] = Deferred()
        late = hub.clock.callLater(self.timeout, lambda: answer(Failure(Unavailable("no answer"))))

        def answer(result: Any) -> None:
            if late.active():
                late.cancel()
            if not done.called:
                done.callback(result)

        def arrive() -> None:
            if not arrives or self.name in hub.away or hub.rnd.random() < hub.loss:
                return
            try:
                hub.looked[self.name] = hub.clock.seconds()
                result = act()
            except Refused:
                result = Failure()
            if hub.rnd.random() >= hub.loss:
                hub.clock.callLater(self._delay() + hub.queues.get(self.name, 0.0), come_back, result)

        def come_back(result: Any) -> None:
            if self.name not in hub.away:
                answer(result)

        hub.clock.callLater(self._delay(), arrive)
        return done
