"""The clock of a simulation: timers in a heap, because Twisted's own test clock sorts all of them again for each call.

Timers.callLater(delay, what, ...) -> Timer      Timers.pass_time(seconds): run the due timers in their order
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer


@implementer(IDelayedCall)
class Timer:
    """One scheduled call.

    :ivar turn: the version of its valid entry in the heap; entries with other versions are left over from before a
        reset
    :ivar owner: a process that may be frozen, so that its timers wait until it continues; None if there is none
    """

    __slots__ = ("called", "cancelled", "clock", "owner", "time", "turn", "what")

    def __init__(self, clock: Timers, time: float, what: tuple[Callable[..., object], tuple[Any, ...], Any]) -> None:
        self.clock, self.time, self.what = clock, time, what
        self.called = self.cancelled = False
        self.owner: Any = None
        self.enter()

    def enter(self) -> None:
        self.turn = next(self.clock.turns)
        heappush(self.clock.heap, (self.time, self.turn, self))

    def _check(self) -> None:
        if self.cancelled:
            raise AlreadyCancelled
        if self.called:
            raise AlreadyCalled

    def getTime(self) -> float:
        return self.time

    def active(self) -> bool:
        return not (self.called or self.cancelled)

    def cancel(self) -> None:
        self._check()
        self.cancelled = True
        self.what = _NOTHING

    def reset(self, delay: float) -> None:
        self._check()
        self.time = self.clock.now + delay
        self.enter()

    def delay(self, seconds: float) -> None:
        self._check()
        self.time += seconds
        self.enter()


_NOTHING: tuple[Callable[..., object], tuple[Any, ...], Any] = (lambda: None, (), {})


@implementer(IReactorTime)
class Timers:
    """The scheduled calls, and the time in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = count()
        self.heap: list[tuple[float, int, Timer]] = []

    def seconds(self) -> float:
        return self.now

    def callLater(self, delay: float, what: Callable[..., object], *args: Any, **kwargs: Any) -> Timer:
        return Timer(self, self.now + delay, (what, args, kwargs))

    def getDelayedCalls(self) -> list[Timer]:
        return [timer for _, turn, timer in self.heap if turn == timer.turn and timer.active()]

    def pass_time(self, seconds: float) -> None:
        """Advance the time from timer to timer, so that calls made by a timer are due at the right time."""
        heap, end = self.heap, self.now + seconds
        while heap and heap[0][0] <= end:
            time, turn, timer = heappop(heap)
            if timer.cancelled or turn != timer.turn:
                continue
            if timer.owner is not None and timer.owner.holds(timer):
                continue
            # Real clocks run a little late, too; without this, now + (due - now) could be less than due.
            self.now = max(self.now, time) + 1e-9
            timer.called = True
            (what, args, kwargs), timer.what = timer.what, _NOTHING
            what(*args, **kwargs)
        self.now = max(self.now, end)
