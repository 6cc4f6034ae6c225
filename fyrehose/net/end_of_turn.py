"""Call functions at the end of a turn of the reactor, when all readable sockets have been read.

A commit that begins there has all messages of the turn.  A delayed call of 0 seconds would do the same, but costs more:
an object and an entry in the reactor's heap for each commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.base import ReactorBase
from twisted.logger import Logger

log = Logger()


class TurnEnds:
    """A queue of functions that are called at the end of the turns of *reactor*.

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
        """Call *function* once at the end of this turn, or in the next turn if this one is not reading sockets."""
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
            # A function that one of these calls adds runs at the end of the next turn, after the sockets were read.
            calls, self._calls = self._calls, []
            for function in calls:
                try:
                    function()
                except Exception:
                    log.failure("a call at the end of a turn failed; please report this bug")
