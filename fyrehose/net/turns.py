"""Give all work its turns, so that no network delays the others: input, output, and the server's own.

    what a network sends       share "<" + network    received bytes, beyond what is handled as it arrives
                               share "<<" + network   such input that is large, or what a first turn has left of it
    what a network receives    share network          cursors, answers to reads, large records
    work of the server         share ""               searches of the log, the page

Work is done in *turns*.  A turn is bounded by whoever takes it, and has a cost: the bytes that it handled, or its time
if that is more; ROUND bytes cost as much as ROUND_S.  A *round* is as many turns as cost about that much.  Then the
reactor runs, and reads and writes sockets, before the next round.

- The next turn is one of the share that has paid least (:mod:`fyrehose.fair_order`).  Within a share, works follow each
  other in their order.
- Input is handled as it arrives while no input of its network waits, and until that has taken INPUT_S since the last
  round; then one follows, even if nothing waits.  It pays for that as for a turn.
- A turn that costs LONG, which is 50 ms, is a defect, or the machine is overloaded: it is counted by the kind of its
  work.  Where time stands still, as in simulations, the bytes count.

    turns.ready(work, network)          work.take_turn() is called in a later turn of the reactor, once
    SteppedWork(turns, steps, network)  the steps of a generator are taken, some in each turn
    turns.open(share)                   whether input may be handled now; then turns.charge(share, seconds)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from fyrehose.fair_order import FairOrder

#: How many bytes the turns of one round handle, at most, before the reactor runs again.
ROUND = 512 << 10
#: How long one round may take, in seconds: a turn that reads much and finds little handles few bytes, and takes long.
ROUND_S = 0.005
#: A turn costs at least this many bytes, because a turn takes time even if it handles little.
LEAST = 1 << 10
#: How long input is handled as it arrives, between two rounds, in seconds.
INPUT_S = 0.005
#: How many steps one turn takes at most, and how long it takes them, in seconds: a step may be short or long.
STEPS, STEPS_S = 128, 0.001
#: A turn that costs as much as this many bytes, or takes as many seconds, is counted.
LONG, LONG_S = 10 * ROUND, 10 * ROUND_S


class TakesTurns(Protocol):
    """Something that is done in turns."""

    def take_turn(self) -> int:
        """Do a bounded part, and return how many bytes were handled; call :meth:`Turns.ready` again for more."""

    def failed(self, failure: Failure) -> None:
        """Log *failure*, by which a turn has ended, and end what waits for further turns, such as the connection."""


@attrs.define(eq=False)
class Turns:
    """The queues of works that wait for a turn, by share.

    :ivar clock: lets the reactor run between two rounds; None: the first listener sets it
    :ivar long: called with the kind of each work whose turn cost LONG: its class, or ``input`` as it arrived
    :ivar left: for how many seconds input may still be handled as it arrives before the next round
    :ivar waiting: the works that wait, by share
    """

    clock: IReactorTime | None = None
    long: Callable[[str], object] = attrs.field(default=lambda kind: None, kw_only=True)
    left: float = attrs.field(default=INPUT_S, init=False)
    waiting: dict[str, deque[TakesTurns]] = attrs.field(factory=dict, init=False)
    #: the shares in ``waiting``, but the one whose turn it is; they pay in bytes
    _order: FairOrder = attrs.field(factory=FairOrder, init=False)
    _running: bool = attrs.field(default=False, init=False)
    _next_round: IDelayedCall | None = attrs.field(default=None, init=False)

    def ready(self, work: TakesTurns, share: str = "") -> None:
        """Give *work*, which does not wait for a turn yet, a turn in a later turn of the reactor."""
        self.add(work, share)
        self._schedule()

    def add(self, work: TakesTurns, share: str) -> None:
        """Queue *work*, which does not wait for a turn yet, without beginning or scheduling a round."""
        queue = self.waiting.get(share)
        if queue is None:
            queue = self.waiting[share] = deque()
            self._order.enter(share)
        queue.append(work)

    def open(self, share: str) -> bool:
        """Return whether input of *share* may be handled as it arrives: it waits for nothing, and there is time."""
        return self.left > 0 and share not in self.waiting

    def charge(self, share: str, seconds: float) -> None:
        """Let *share* pay for *seconds* in which its input was handled as it arrived."""
        self.left -= seconds
        if seconds * (ROUND / ROUND_S) >= LONG:
            self.long("input")
        if self.waiting:
            self._order.pay(share, seconds * (ROUND / ROUND_S))
        elif self.left <= 0:
            self._schedule()

    def run(self, work: TakesTurns | None = None, share: str = "") -> None:
        """Begin a round now, unless one is scheduled or running already; queue *work* for it."""
        if self.waiting or self._running or self._next_round is not None or work is None:
            if work is not None:
                self.add(work, share)
            self._round()
            return
        # Most rounds have one turn.  While nothing waits, nobody has to pay.
        clock = self.clock
        assert clock is not None, "a listener sets the clock"
        self._running, began, cost = True, clock.seconds(), 0
        try:
            cost = work.take_turn()
        except BaseException:  # as in _round()
            work.failed(Failure())
        if cost >= LONG or (clock.seconds() - began) * (ROUND / ROUND_S) >= LONG:
            self.long(type(work).__name__)
        self._running, self.left = False, INPUT_S
        if self.waiting:
            self._schedule()

    def _round(self) -> None:
        """Take turns for a round, unless one is scheduled or running already."""
        if self._running or self._next_round is not None:
            return
        self._running = True
        left, clock = float(ROUND), self._clock
        last = clock.seconds()
        end = last + ROUND_S if len(self._order) > 1 else 0.0
        while left > 0 and (share := self._order.next()) is not None:
            queue = self.waiting[share]
            work = queue.popleft()
            cost = float(LEAST)
            try:
                cost = max(work.take_turn(), cost)
            except BaseException:
                # An error of one work must not affect the others, nor the commit that runs a round: not even
                # GeneratorExit, or the CancelledError of asyncio.
                work.failed(Failure())
            now = clock.seconds()
            spent = (now - last) * (ROUND / ROUND_S)
            if cost >= LONG or spent >= LONG:
                self.long(type(work).__name__)
            if end:
                cost = max(cost, spent)
            last, end = now, end or now + ROUND_S
            left = left - cost if now < end else 0.0
            self._order.pay(share, cost)
            if not queue:
                self.waiting.pop(share, None)
            elif share in self.waiting:  # the turn has not closed everything
                self._order.enter(share)
        self._end_round()

    def _end_round(self) -> None:
        self._running = False
        self.left = INPUT_S
        if self.waiting:
            self._schedule()
        else:
            self._order.forget()

    def close(self) -> None:
        """Forget everything that waits."""
        self.waiting.clear()
        self._order.forget()
        if self._next_round is not None:
            self._next_round.cancel()
            self._next_round = None

    @property
    def _clock(self) -> IReactorTime:
        assert self.clock is not None, "a listener sets the clock"
        return self.clock

    def _schedule(self) -> None:
        if self._next_round is None and not self._running:
            self._next_round = self._clock.callLater(0, self._run_later)

    def _run_later(self) -> None:
        self._next_round = None
        if self.waiting:
            self._round()
        else:  # only the time for input was over
            self.left = INPUT_S


@attrs.define(eq=False)
class SteppedWork:
    """Work in steps, some of which are taken in each turn.

    :ivar steps: yields after each step, which may not take long
    :ivar done: fires with what *steps* returns, or fails with its error; never, after :meth:`stop`
    """

    turns: Turns
    steps: Iterator[None]
    share: str = ""
    done: Deferred[Any] = attrs.field(factory=Deferred, init=False)
    _ended: bool = attrs.field(default=False, init=False)

    def begin(self) -> Deferred[Any]:
        """Take the first steps now, as part of what the caller does, and return :attr:`done`."""
        try:
            self.take_turn()
        except Exception:
            self.failed(Failure())
        return self.done

    def later(self) -> Deferred[Any]:
        """Take the first steps in a turn, and return :attr:`done`; without any step, that is the end of the turn."""
        self.turns.ready(self, self.share)
        return self.done

    def stop(self) -> None:
        """Take no further step."""
        self._ended = True

    def take_turn(self) -> int:
        """Take some steps, each of which costs as much as the least turn."""
        clock, taken = self.turns.clock, 0
        assert clock is not None, "it has a turn"
        end = clock.seconds() + STEPS_S
        while not self._ended:
            try:
                next(self.steps)
            except StopIteration as last:
                self._ended = True
                self.done.callback(last.value)
                break
            taken += 1
            if taken == STEPS or clock.seconds() >= end:
                if not self._ended:
                    self.turns.ready(self, self.share)
                break
        return taken * LEAST

    def failed(self, failure: Failure) -> None:
        self._ended = True
        self.done.errback(failure)
