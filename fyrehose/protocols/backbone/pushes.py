"""What a publisher has pushed and not seen again: a window, a pace, and time-outs.

A PUSH has no number of its own, so a push is confirmed by the first DELIVER of the same bytes whose sequence is above
all that the publisher had seen when it pushed; equal pushes are confirmed in the order in which they were made.

in: add(payload), delivered(run), the time      out: what to push now, who is confirmed, who waited in vain
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import attrs

from fyrehose.protocols.backbone.rates import Rates
from fyrehose.records import Run

#: How long a publisher that is ahead of its pace waits, at the least, in seconds.
PACE = 0.005


@attrs.define(eq=False, slots=True)
class Push:
    """One message on its way; ``handle`` is the caller's."""

    payload: bytes
    handle: Any
    retries: int
    floor: int = 0  #: the highest sequence seen when it was pushed
    deadline: float = 0.0
    settled: bool = False


@attrs.define(eq=False)
class Pushes:
    """The pushes of one publisher, in order.

    :ivar window: how many may be on their way at a time
    :ivar window_bytes: and how large they may be together; one may always
    :ivar timeout: how long to wait for a DELIVER, in seconds
    :ivar retries: how often to push again after that: at the risk of publishing twice
    """

    window: int
    window_bytes: int
    timeout: float
    retries: int
    pace: Rates
    _unsent: deque[Push] = attrs.field(factory=deque, init=False)
    _unsent_size: int = attrs.field(default=0, init=False)
    _sent: dict[bytes, deque[Push]] = attrs.field(factory=dict, init=False)
    _deadlines: deque[Push] = attrs.field(factory=deque, init=False)
    _flying: int = attrs.field(default=0, init=False)
    _flying_size: int = attrs.field(default=0, init=False)

    @property
    def unsent(self) -> int:
        """What waits for its turn, in bytes."""
        return self._unsent_size

    @property
    def has_room(self) -> bool:
        """Whether one more would be pushed as soon as the pace allows."""
        size = self._flying_size + self._unsent_size
        return self._flying + len(self._unsent) < self.window and size < self.window_bytes

    @property
    def idle(self) -> bool:
        return not self._flying and not self._unsent

    def add(self, payload: bytes, handle: Any) -> None:
        """``payload`` is to be pushed."""
        self._unsent.append(Push(payload, handle, self.retries))
        self._unsent_size += len(payload)

    def take(self, highest: int, now: float) -> list[bytes]:
        """What is to be pushed now, within the window and the pace.

        :param highest: the highest sequence seen so far
        """
        room = self._room()
        count = self.pace.take("", room, now) if room else 0
        payloads = []
        for _ in range(count):
            push = self._unsent.popleft()
            self._unsent_size -= len(push.payload)
            push.floor = highest
            push.deadline = now + self.timeout
            self._sent.setdefault(push.payload, deque()).append(push)
            self._deadlines.append(push)
            self._flying += 1
            self._flying_size += len(push.payload)
            payloads.append(push.payload)
        return payloads

    def delivered(self, run: Run) -> Iterator[tuple[Push, int]]:
        """The pushes that ``run``, seen for the first time, confirms, and the sequence of each."""
        if not self._sent:
            return
        seq = run.first_seq
        for payload in run.payloads():
            waiting = self._sent.get(bytes(payload))
            if waiting is not None and waiting[0].floor < seq:
                push = waiting[0]
                self._settle(push)
                yield push, seq
            seq += 1

    def expired(self, now: float) -> list[Push]:
        """The pushes that nobody will push again; those that may be are, at the next :meth:`take`."""
        hopeless = []
        while self._deadlines and (self._deadlines[0].settled or self._deadlines[0].deadline <= now):
            push = self._deadlines.popleft()
            if push.settled:
                continue
            self._settle(push)
            if push.retries:
                again = Push(push.payload, push.handle, push.retries - 1)
                self._unsent.appendleft(again)
                self._unsent_size += len(again.payload)
            else:
                hopeless.append(push)
        return hopeless

    def abandon(self) -> list[Push]:
        """All that is not confirmed; nothing of it is waited for any more."""
        left = [push for push in self._deadlines if not push.settled] + list(self._unsent)
        for queue in (self._unsent, self._deadlines):
            queue.clear()
        self._sent.clear()
        self._flying = self._flying_size = self._unsent_size = 0
        return left

    def next_due(self, now: float, taking: bool) -> float | None:
        """When :meth:`take` (if it is ``taking``) or :meth:`expired` has something, as far as time alone decides."""
        while self._deadlines and self._deadlines[0].settled:
            self._deadlines.popleft()
        times = []
        if self._deadlines:
            times.append(self._deadlines[0].deadline)
        if taking and self._room():
            times.append(now + PACE)
        return min(times, default=None)

    def _room(self) -> int:
        """How many of those that wait fit into the window."""
        size = self._flying_size
        count = 0
        for push in islice(self._unsent, max(self.window - self._flying, 0)):
            size += len(push.payload)
            if size > self.window_bytes and self._flying + count:
                break
            count += 1
        return count

    def _settle(self, push: Push) -> None:
        push.settled = True
        self._flying -= 1
        self._flying_size -= len(push.payload)
        waiting = self._sent[push.payload]
        waiting.remove(push)
        if not waiting:
            del self._sent[push.payload]
