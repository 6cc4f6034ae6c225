"""The end of a turn of the reactor: everything that was readable has been read, and nothing is waited for yet.

A commit that begins there has all messages of the turn.  A delayed call of 0 seconds does the same, but costs an object
and a heap for each commit, and time for the reactor to find it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.base import ReactorBase
from twisted.logger import Logger

log = Logger()


class TurnEnds:
    """Calls functions at the end of the turns of *reactor*.

    A reactor whose main loop is not that of ``ReactorBase``, such as that on asyncio, never calls ``doIteration``, so
    that every function becomes a delayed call there.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._reads = False
        self._calls: list[Callable[[], object]] = []
        if isinstance(reactor, ReactorBase):
            self._iterate = reactor.doIteration
            reactor.doIteration = self._turn  # type: ignore[method-assign]

    def call(self, function: Callable[[], object]) -> None:
        """Call *function* once at the end of this turn, or in the next one if nothing is being read now."""
        if self._reads:
            self._calls.append(function)
        else:
            self._reactor.callLater(0, function)

    def _turn(self, delay: float | None) -> None:
        self._reads = True
        try:
            self._iterate(delay)
        finally:
            self._reads = False
        if self._calls:
            # What these functions add belongs to the next turn, so that the sockets are read in between.
            calls, self._calls = self._calls, []
            for function in calls:
                try:
                    function()
                except Exception:
                    log.failure("a call at the end of a turn failed; please report this bug")
