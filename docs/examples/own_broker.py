"""Use a protocol with a broker of your own: Figg clients talk to a program that stores messages in its own way.

    twistd -ny docs/examples/own_broker.py

This broker keeps the last messages of each stream in memory and writes nothing to disk, so an acknowledgement promises
no more than that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import attrs
from twisted.application.service import Application, IService
from twisted.internet import reactor
from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from fyrehose import Run
from fyrehose.broker import Cursor, Fanout, NoSubscriptions
from fyrehose.identity import Action, Identity
from fyrehose.interfaces import IBroker, ISink
from fyrehose.net import InFlight, TCPService, Turns
from fyrehose.observe import Counters
from fyrehose.protocols.figg import FiggFactory, FiggSettings
from fyrehose.standing import Standing


@implementer(IBroker)
@attrs.define(eq=False)
class LastMessages:
    """A broker that keeps the last ``keep`` runs of each stream.

    :ivar clock: the reactor; deliveries are scheduled on it, and it stamps the records
    """

    clock: Any
    keep: int = 1000
    counters: Counters = attrs.field(factory=Counters)
    budget: InFlight = attrs.field(factory=InFlight)
    turns: Turns = attrs.field(init=False)
    named: NoSubscriptions = attrs.field(factory=NoSubscriptions)
    standing = Standing()  # This server is alone, and always accepts messages.
    epoch = ""  # Its numbers begin again with each start, so they belong to no journal.
    _streams: dict[str, deque[Run]] = attrs.field(factory=dict, init=False)
    _fanout: Fanout = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.turns = Turns(self.clock)
        self._fanout = Fanout(self.turns, self.read)

    def record_time(self) -> int:
        """Return the time that a record would get now, in microseconds since 1970 UTC."""
        return int(self.clock.seconds() * 1_000_000)

    def monotonic(self) -> int:
        """Return the microseconds of a clock that never steps."""
        return time.monotonic_ns() // 1000

    def when_leading(self) -> Deferred[None]:
        """Return a Deferred that has fired: this broker is no member of a cluster."""
        return succeed(None)

    def when_stuck(self, let_go: Callable[[str], None]) -> None:
        """Do nothing: no publish waits for a disk."""

    def identified(self, identity: Identity) -> LastMessages:
        """Return this broker: every peer that can connect may do everything."""
        return self

    def admit(self, proofs: Collection[str]) -> None:
        """Admit every peer."""

    def streams(self) -> Iterator[str]:
        return iter(tuple(self._streams))

    def watch_streams(self, created: Callable[[str], None]) -> Callable[[], None]:
        """Report no new streams: nobody follows streams by pattern here."""
        return lambda: None

    def permits(self, action: Action, stream: str) -> bool:
        return True

    def has(self, action: Action) -> bool:
        return True

    def check(self, action: Action, stream: str) -> None:
        """Allow every action."""

    def publish(
        self, runs: Sequence[Run], own: Sequence[Run] = (), key: str | None = None
    ) -> Deferred[tuple[int, ...]]:
        """Keep *runs*; this broker remembers no keys, so it stores a repetition again."""
        firsts = []
        for run in (*runs, *own):
            first = self.bounds(run.stream)[1] + 1
            firsts.append(first)
            kept = self._streams.setdefault(run.stream, deque(maxlen=self.keep))
            kept.append(run.numbered(first, self.record_time()))
        self._fanout.durable({run.stream: self.bounds(run.stream)[1] for run in (*runs, *own)})
        return succeed(tuple(firsts))

    def subscribe(self, stream: str, after: int | None, sink: ISink) -> Cursor:
        oldest, last = self.bounds(stream)
        position = last if after is None else max(after, oldest - 1)
        if position > last:
            position = oldest - 1  # The number is not one of this run of the program.
        return self._fanout.subscribe(stream, position, last, sink)

    def exists(self, stream: str) -> bool:
        return stream in self._streams

    def bounds(self, stream: str, seen: int = 0) -> tuple[int, int]:
        runs = self._streams.get(stream)
        return (runs[0].first_seq, runs[-1].last_seq) if runs else (1, 0)

    def first_since(self, stream: str, time: int) -> int:
        raise NotImplementedError("Figg does not use this method")

    def read(self, stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        for run in self._streams.get(stream, ()):
            if run.last_seq >= start:
                rest = run.slice(max(0, start - run.first_seq), len(run))
                return (rest.slice(0, rest.fitting(max_bytes)),)
        return ()

    def latest(self, size: int, source: str) -> Iterator[Run]:
        raise NotImplementedError("Figg does not use this method")

    def retire(self, streams: Sequence[str]) -> Deferred[None]:
        raise NotImplementedError("Figg does not use this method")

    def restrict(self, stream: str, max_payload: int) -> None:
        raise NotImplementedError("Figg does not use this method")


def make_service(reactor: Any, endpoint: str) -> TCPService:
    """Return a service that listens for Figg clients at *endpoint*."""
    factory = FiggFactory(LastMessages(reactor), FiggSettings(max_connections=100), reactor)
    return TCPService(reactor, "figg", endpoint, factory)


application = Application("last messages")
make_service(reactor, "tcp:8119:interface=127.0.0.1").setServiceParent(IService(application))
