"""Whose turn it is: the connections of one listener share the reactor, the disk, and the memory that inflating takes.

A connection asks for turns when its session has more work.  Those that have their memory go round, a turn each, a few
turns between two looks at the sockets.  The others wait in the order in which they asked: however many writers come
back at once after a restart, what they inflate at a time is what the pool has.

    ask -> waiting -> granted -> running, round and round -> done
              ^                     |
              +---------------------+  needs more than it was granted, or something of it has to become durable first

What is published waits for the disk behind everything that was published before it.  So what all connections together
have on their way there is bounded, too: nobody has a turn while it is as much as a commit takes, and a light writer
waits for little, however many heavy ones there are.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Protocol

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from fyrehose.core.budget import Budget

#: What inflating takes for all connections of a listener together, in bytes.
POOL = 64 << 20
#: What they have on their way to the disk before the next one has a turn, in bytes: as much as a commit takes.
FLIGHT = 16 << 20
#: What a connection reads at once at the most, in bytes: a window of a usual writer.  So much is a turn, a publish, and
#: a part of a commit.
READ = 1 << 20
#: What it publishes without a turn if it has nothing on its way, in bytes.
LEAST = 16 << 10
#: How many turns there are between two looks at the sockets.
TURNS = 4


class Outcome(Enum):
    """What a connection says after its turn."""

    DONE = "done"
    MORE = "more"
    HELD_BACK = "held back"  #: it asks again when something that it published has become durable


class Worker(Protocol):
    """What a connection is to :class:`Turns`."""

    @property
    def needs(self) -> int:
        """What it has to be granted for its next turn, in bytes."""

    def take_turn(self, granted: int) -> Outcome:
        """Do a piece of work; never raises."""


@attrs.define(eq=False)
class Turns:
    """Deals out turns.

    :ivar clock: the reactor, or a Clock
    :ivar budget: what all connections of all protocols may hold
    :ivar in_flight: what its connections have published and is not durable, in bytes; they say so here
    """

    clock: IReactorTime
    budget: Budget
    in_flight: int = attrs.field(default=0, init=False)
    _waiting: OrderedDict[Worker, None] = attrs.field(factory=OrderedDict, init=False)
    _running: OrderedDict[Worker, None] = attrs.field(factory=OrderedDict, init=False)
    _grants: dict[Worker, int] = attrs.field(factory=dict, init=False)
    _granted: int = attrs.field(default=0, init=False)
    _call: IDelayedCall | None = attrs.field(default=None, init=False)

    @property
    def crowded(self) -> bool:
        """Whether so much is on its way to the disk that nobody has a turn."""
        return self.in_flight >= min(FLIGHT, self.budget.limit // 2)

    def ask(self, worker: Worker) -> None:
        """``worker`` wants a turn; asking twice is asking once."""
        if worker not in self._grants:
            self._waiting[worker] = None
        self.wake()

    def leave(self, worker: Worker) -> None:
        """``worker`` wants no turn any more, and holds nothing."""
        self._waiting.pop(worker, None)
        self._running.pop(worker, None)
        self._granted -= self._grants.pop(worker, 0)
        self.wake()

    def wake(self) -> None:
        """Something has changed that may let somebody on."""
        if self._call is None and (self._running or self._waiting):
            self._call = self.clock.callLater(0, self._run)

    def _run(self) -> None:
        self._call = None
        for _ in range(TURNS):
            if not self.crowded:
                self._admit()
            if self.crowded or not self._running:
                return  # whoever waits is woken by what it waits for
            worker, _ = self._running.popitem(last=False)
            self._take(worker)
        self.wake()

    def _take(self, worker: Worker) -> None:
        granted = self._grants[worker]
        outcome = worker.take_turn(granted)
        if worker not in self._grants:
            return  # it left
        if outcome is Outcome.MORE and worker.needs <= granted:
            self._grant(worker, worker.needs)
            self._running[worker] = None
            return
        self.leave(worker)
        if outcome is Outcome.MORE:  # for more than it was granted: to the end of the queue
            self._waiting[worker] = None

    def _admit(self) -> None:
        while self._waiting:
            worker = next(iter(self._waiting))
            if not self._fits(worker.needs):
                return
            del self._waiting[worker]
            self._grant(worker, worker.needs)
            self._running[worker] = None

    def _fits(self, needs: int) -> bool:
        if not needs:
            return True
        if not self._granted and not self.in_flight:
            return True  # nothing of ours will be released by waiting
        granted = self._granted + needs
        return granted <= POOL and self.budget.used + granted <= self.budget.limit

    def _grant(self, worker: Worker, size: int) -> None:
        self._granted += size - self._grants.get(worker, 0)
        self._grants[worker] = size
