"""Schedule the connections of one listener, which share the reactor, the disk, and the memory for inflating.

A connection requests turns while its session has work.  Connections that were granted memory take turns in a round
robin, a few turns per reactor iteration.  The others wait in the order of their requests, so the pool bounds the memory
for inflating, however many writers reconnect after a restart.

    request -> waiting -> granted -> running in a round robin -> done
                  ^                     |
                  +---------------------+  needs more memory than granted, or a commit of its data first

A publish waits for the disk behind all earlier publishes.  So the data in flight of all connections is bounded, too:
no connection takes a turn while a whole commit is in flight, and a light writer waits only briefly, however many heavy
writers are connected.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import TYPE_CHECKING

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from fyrehose.net.inflight import InFlight

if TYPE_CHECKING:
    from fyrehose.protocols.lumberjack.server import LumberjackProtocol

#: Memory for inflating, shared by all connections of a listener, in bytes.
POOL = 64 << 20
#: Data in flight to the disk at which turns stop, in bytes: the size of a large commit.
MAX_IN_FLIGHT = 16 << 20
#: Largest read of a connection, in bytes: a window of a usual writer, which one turn then publishes at once.
READ = 1 << 20
#: Largest read that a connection publishes without waiting for a turn, in bytes.  A read with compressed data does so
#: only if no other connection waits for a turn; while much data is in flight, only a connection without data in flight
#: of its own does so.
SMALL_READ = 16 << 10
#: How many turns of connections one iteration of the reactor runs.
TURNS_PER_ITERATION = 4


class Outcome(Enum):
    """Result of a turn."""

    DONE = "done"
    MORE = "more"
    HELD_BACK = "held back"  #: the connection requests another turn after a commit


@attrs.define(eq=False)
class WriterTurns:
    """The scheduler that grants turns and memory to the connections of one listener.

    :ivar clock: the reactor, or a Clock
    :ivar budget: memory budget of all protocols
    :ivar in_flight: bytes that the connections published and that are not durable; the connections update it
    :ivar held: whether no connection takes a turn before :meth:`resume`
    """

    clock: IReactorTime
    budget: InFlight
    in_flight: int = attrs.field(default=0, init=False)
    held: bool = attrs.field(default=False, init=False)
    _waiting: OrderedDict[LumberjackProtocol, None] = attrs.field(factory=OrderedDict, init=False)
    _running: OrderedDict[LumberjackProtocol, None] = attrs.field(factory=OrderedDict, init=False)
    _grants: dict[LumberjackProtocol, int] = attrs.field(factory=dict, init=False)
    granted: int = attrs.field(default=0, init=False)
    _call: IDelayedCall | None = attrs.field(default=None, init=False)

    @property
    def saturated(self) -> bool:
        """Return whether no connection may take a turn, because of :meth:`hold`, or of too much data in flight."""
        return self.held or self.in_flight >= min(MAX_IN_FLIGHT, self.budget.limit // 2)

    def hold(self) -> None:
        """Let all connections wait until :meth:`resume`."""
        self.held = True

    def resume(self) -> None:
        """Let connections take turns again."""
        self.held = False
        self.schedule()

    def grant_now(self, size: int) -> int:
        """Return how much memory a connection may use now, without waiting for a turn: *size* bytes, or 0."""
        idle = not (self._waiting or self._running or self._grants or self.saturated)
        return size if idle and self._fits(size) else 0

    def request(self, worker: LumberjackProtocol) -> None:
        """Queue *worker* for a turn, unless it is queued or running already."""
        if worker not in self._grants:
            self._waiting[worker] = None
        self.schedule()

    def withdraw(self, worker: LumberjackProtocol) -> None:
        """Take *worker* out of the queues, and release the memory that it was granted."""
        self._waiting.pop(worker, None)
        self._running.pop(worker, None)
        self.granted -= self._grants.pop(worker, 0)
        self.schedule()

    def schedule(self) -> None:
        """Schedule turns; call this after memory was released or data became durable."""
        if self._call is None and (self._running or self._waiting):
            self._call = self.clock.callLater(0, self._run)

    def _run(self) -> None:
        self._call = None
        for _ in range(TURNS_PER_ITERATION):
            if not self.saturated:
                self._admit()
            if self.saturated or not self._running:
                return  # schedule() is called when memory is released or data becomes durable
            worker, _ = self._running.popitem(last=False)
            self._take_turn(worker)
        self.schedule()

    def _take_turn(self, worker: LumberjackProtocol) -> None:
        granted = self._grants[worker]
        try:
            outcome = worker.take_turn(granted)
        except Exception:  # an error of one connection must not end the turns of the others
            worker.failed(Failure())
            self.withdraw(worker)
            return
        if worker not in self._grants:
            return  # the connection was withdrawn during its turn
        if outcome is Outcome.MORE and worker.needs <= granted:
            self._grant(worker, worker.needs)
            self._running[worker] = None
            return
        self.withdraw(worker)
        if outcome is Outcome.MORE:  # the connection needs more than its grant: move it to the end of the queue
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
        if not self.granted and not self.in_flight:
            return True  # waiting would not release any memory of this listener
        granted = self.granted + needs
        return granted <= POOL and self.budget.used + granted <= self.budget.limit

    def _grant(self, worker: LumberjackProtocol, size: int) -> None:
        self.granted += size - self._grants.get(worker, 0)
        self._grants[worker] = size
