"""Whose turn it is: the connections of one listener share the reactor, and the memory that inflating takes.

A connection asks for turns when its session has more work.  Those that have their memory go round, a turn each, a few
turns between two looks at the sockets.  The others wait in the order in which they asked: what compressed frames may
come to is not known before they are inflated, so few are at a time, and however many writers come back at once after a
restart, what they take is what the pool has.

    ask -> waiting -> granted -> running, round and round -> done
                                    \\-> held back, until something of it is durable -> ask
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Protocol

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from fyrehose.flow import Budget

#: What inflating takes for all connections of a listener together, in bytes; a single frame may take more.
POOL = 64 << 20
#: How many turns there are between two looks at the sockets.
TURNS = 2


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

    @property
    def held(self) -> int:
        """What it holds in memory, and what of ``needs`` it has begun to fill."""

    def take_turn(self, granted: int) -> Outcome:
        """Do a piece of work; never raises."""


@attrs.define(eq=False)
class Turns:
    """Deals out turns.

    :ivar clock: the reactor, or a Clock
    :ivar budget: what all connections of all kits may hold
    :ivar in_flight: what this listener's connections have published and is not durable, in bytes; they say so here
    """

    clock: IReactorTime
    budget: Budget
    in_flight: int = attrs.field(default=0, init=False)
    _waiting: OrderedDict[Worker, None] = attrs.field(factory=OrderedDict, init=False)
    _running: OrderedDict[Worker, None] = attrs.field(factory=OrderedDict, init=False)
    _grants: dict[Worker, int] = attrs.field(factory=dict, init=False)
    _granted: int = attrs.field(default=0, init=False)
    _call: IDelayedCall | None = attrs.field(default=None, init=False)

    def ask(self, worker: Worker) -> None:
        """``worker`` wants a turn; asking twice is asking once."""
        if worker in self._grants:
            self._running[worker] = None
        else:
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
            self._admit()
            if not self._running:
                return  # whoever waits is woken by what it waits for
            worker, _ = self._running.popitem(last=False)
            self._take(worker)
        self.wake()

    def _take(self, worker: Worker) -> None:
        outcome = worker.take_turn(self._grants[worker])
        if worker not in self._grants:
            return  # it left
        if outcome is Outcome.DONE:
            self.leave(worker)
            return
        if worker.needs > worker.held:  # for a frame that has not begun: to the end of the queue, or out of it
            self.leave(worker)
            if outcome is Outcome.MORE:
                self._waiting[worker] = None
            return
        self._grant(worker, min(self._grants[worker], max(worker.held, worker.needs)))
        if outcome is Outcome.MORE:
            self._running[worker] = None

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
        return self._granted + needs <= POOL and self.budget.used + needs <= self.budget.limit

    def _grant(self, worker: Worker, size: int) -> None:
        self._granted += size - self._grants.get(worker, 0)
        self._grants[worker] = size
