"""Let everything that sends records take turns, so that no peer delays the others.

    cursors of subscriptions, answers to reads, large records  -> ready() -> take_turn() -> take_turn() ...

One turn of the reactor produces about ROUND bytes for all peers together.  A producer that has had its turn and has
more to send goes to the end of the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

log = Logger()

#: The most bytes that are produced for all peers before the reactor runs again.
ROUND = 512 << 10
#: What a turn counts at the least, in bytes, because a turn also takes time when it produces little.
LEAST = 1 << 10


class Producer(Protocol):
    """Something that produces data for a peer in turns."""

    def take_turn(self) -> int:
        """Produce a bounded number of bytes, and return how many; call :meth:`Turns.ready` if there are more."""


@attrs.define(eq=False)
class Rounds:
    """The queue of producers that have something to send.

    :ivar clock: lets the reactor run between two rounds
    """

    clock: IReactorTime
    _queue: deque[Producer] = attrs.field(factory=deque, init=False)
    _next_round: IDelayedCall | None = attrs.field(default=None, init=False)

    def ready(self, producer: Producer) -> None:
        """Queue *producer*, which is not in the queue, for a turn in a later turn of the reactor."""
        self._queue.append(producer)
        if self._next_round is None:
            self._next_round = self.clock.callLater(0, self._run_later)

    def run(self, producers: Iterable[Producer] = ()) -> None:
        """Queue *producers*, and begin a round now, unless one is scheduled already.

        In a round the producers have their turns in order, until ROUND bytes are produced; the rest follows in another.
        """
        queue, left = self._queue, ROUND
        queue.extend(producers)
        if self._next_round is not None:
            return
        while left > 0 and queue:
            try:
                left -= max(queue.popleft().take_turn(), LEAST)
            except Exception:  # an error of one producer must not affect the others, nor the commit that runs a round
                log.failure("what is sent to one peer ends: its turn failed")
        if queue and self._next_round is None:
            self._next_round = self.clock.callLater(0, self._run_later)

    def close(self) -> None:
        """Forget all producers."""
        self._queue.clear()
        if self._next_round is not None:
            self._next_round.cancel()
            self._next_round = None

    def _run_later(self) -> None:
        self._next_round = None
        self.run()
