"""Handle the output for peers and the input from peers in turns, so that no peer delays the others.

    cursors of subscriptions, answers to reads, large records  -> Rounds.ready() -> take_turn() -> take_turn() ...
    received bytes, beyond INPUT_S in one round                -> Intake.wait() -> handle_more() -> handle_more() ...

One turn of the reactor produces about ROUND bytes for all peers together, for ROUND_S at the most.  A producer that has
had its turn and has more to send goes to the end of the queue.

Input is handled as it arrives, until that has taken INPUT_S.  Input that arrives later, or exceeds one slice of a
session, waits: the networks of the peers take turns, and within a network its connections, one slice at a time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Protocol

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

#: How many bytes are produced, at most, for all peers together before the reactor runs again.
ROUND = 512 << 10
#: How long one round may take, in seconds: a turn that reads much and finds little produces few bytes, and takes long.
ROUND_S = 0.005
#: A turn counts as at least this many bytes, because a turn takes time even if it produces little.
LEAST = 1 << 10
#: How long input is handled before the first round, and in each round, in seconds; the reactor runs between two rounds.
INPUT_S = 0.005
#: How many turns one round of the intake has, at most, even if they are short.
INPUT_TURNS = 64


class Producer(Protocol):
    """Something that produces data for a peer in turns."""

    def take_turn(self) -> int:
        """Produce a bounded number of bytes, and return how many; call :meth:`Turns.ready` if there are more."""

    def failed(self, failure: Failure) -> None:
        """Log *failure*, by which a turn has ended, and end what waits for further turns, such as the connection."""


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

        In a round the producers have their turns in order, until they have produced ROUND bytes, or until ROUND_S after
        the first turn; the rest follow in the next round.
        """
        queue, left, end = self._queue, ROUND, 0.0
        queue.extend(producers)
        if self._next_round is not None:
            return
        while left > 0 and queue:
            producer = queue.popleft()
            try:
                left -= max(producer.take_turn(), LEAST)
            except BaseException:
                # An error of one producer must not affect the others, nor the commit that runs a round: not even
                # GeneratorExit, or the CancelledError of asyncio.
                producer.failed(Failure())
            if queue:  # most rounds have one turn, so they do not read the clock
                now = self.clock.seconds()
                end = end or now + ROUND_S
                if now >= end:
                    break
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


class Receiver(Protocol):
    """A connection that has received more than it has handled."""

    @property
    def network(self) -> str: ...

    @property
    def clock(self) -> IReactorTime: ...

    def handle_more(self) -> None:
        """Handle a bounded part of what was received; call :meth:`Intake.wait` again if there is more."""

    def failed(self, failure: Failure) -> None:
        """Log *failure*, by which handling the input has ended, and end the connection."""


@attrs.define(eq=False)
class Intake:
    """The queues of connections that wait to handle what they have received, by network.

    :ivar left: for how many seconds input may still be handled as it arrives before the next round; 0 while a
        connection waits
    """

    left: float = attrs.field(default=INPUT_S, init=False)
    #: the waiting connections by network; the network whose turn is next comes first
    _waiting: OrderedDict[str, deque[Receiver]] = attrs.field(factory=OrderedDict, init=False)
    _scheduled: bool = attrs.field(default=False, init=False)

    def wait(self, receiver: Receiver) -> None:
        """Queue *receiver*, which is not in the queue, for its next turn."""
        queue = self._waiting.get(receiver.network)
        if queue is None:
            queue = self._waiting[receiver.network] = deque()
        queue.append(receiver)
        self.left = 0.0
        self._schedule(receiver)

    def _schedule(self, receiver: Receiver) -> None:
        if not self._scheduled:
            self._scheduled = True
            receiver.clock.callLater(0, self._run, receiver.clock)

    def _run(self, clock: IReactorTime) -> None:
        """Give the networks their turns, for INPUT_S."""
        self._scheduled = False
        end = clock.seconds() + INPUT_S
        for _ in range(INPUT_TURNS):
            if not self._waiting:
                break
            network, queue = self._waiting.popitem(last=False)
            receiver = queue.popleft()
            if queue:  # the second turn of a network comes after one of every other network
                self._waiting[network] = queue
            try:
                receiver.handle_more()
            except Exception:  # an error of one connection must not affect the others
                receiver.failed(Failure())
            if clock.seconds() >= end:
                break
        self.left = 0.0 if self._waiting else INPUT_S
        for queue in self._waiting.values():
            self._schedule(queue[0])
            return
