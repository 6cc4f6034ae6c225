"""Track the unconfirmed pushes of a publisher: window, pace and timeouts.

A PUSH has no identifier, so the first DELIVER with the same bytes confirms it whose sequence is above all that the
publisher had seen when it sent the PUSH.  Pushes with equal bytes are confirmed in the order in which they were sent.

in: add(payload), delivered(run), the time      out: payloads to push now; confirmed and failed pushes
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import attrs

from fyrehose.protocols.backbone.rates import Rates
from fyrehose.records import Run

#: Delay before the next attempt if the pace allows no push now, in seconds.
PACE = 0.005


@attrs.define(eq=False, slots=True)
class Push:
    """One message to publish; ``handle`` belongs to the caller."""

    payload: bytes
    handle: Any
    retries: int
    floor: int = 0  #: the highest sequence seen when it was sent; its DELIVER has a greater one
    deadline: float = 0.0
    settled: bool = False


@attrs.define(eq=False)
class Pushes:
    """The pushes of one publisher, in order.

    :ivar window: maximum number of unconfirmed pushes
    :ivar window_bytes: maximum size of unconfirmed pushes together, in bytes; a single push may exceed it
    :ivar timeout: how long to wait for a DELIVER, in seconds
    :ivar retries: how often to push again after the timeout, at the risk of publishing twice
    :ivar pace: limits the pushes per second
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
    _in_flight: int = attrs.field(default=0, init=False)
    _in_flight_size: int = attrs.field(default=0, init=False)

    @property
    def unsent(self) -> int:
        """Size of the pushes that wait to be sent, in bytes."""
        return self._unsent_size

    @property
    def has_room(self) -> bool:
        """Whether the window has room for another push."""
        size = self._in_flight_size + self._unsent_size
        return self._in_flight + len(self._unsent) < self.window and size < self.window_bytes

    @property
    def idle(self) -> bool:
        return not self._in_flight and not self._unsent

    def add(self, payload: bytes, handle: Any) -> None:
        """Append *payload* to the pushes that wait to be sent."""
        self._unsent.append(Push(payload, handle, self.retries))
        self._unsent_size += len(payload)

    def take(self, highest: int, now: float) -> list[bytes]:
        """Return the payloads to push now, as window and pace allow.

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
            self._in_flight += 1
            self._in_flight_size += len(push.payload)
            payloads.append(push.payload)
        return payloads

    def delivered(self, run: Run) -> Iterator[tuple[Push, int]]:
        """Yield the pushes that *run* confirms, each with its sequence.

        :param run: delivered records, which were not passed before
        """
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
        """Return the pushes that have timed out without retries left; the others are sent again by :meth:`take`."""
        failed = []
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
                failed.append(push)
        return failed

    def abandon(self) -> list[Push]:
        """Return all pushes that are not confirmed, and forget them."""
        left = [push for push in self._deadlines if not push.settled] + list(self._unsent)
        for queue in (self._unsent, self._deadlines):
            queue.clear()
        self._sent.clear()
        self._in_flight = self._in_flight_size = self._unsent_size = 0
        return left

    def next_due(self, now: float, sending: bool) -> float | None:
        """Return when :meth:`expired`, or :meth:`take` if *sending*, has to be called; None: no time is known."""
        while self._deadlines and self._deadlines[0].settled:
            self._deadlines.popleft()
        times = []
        if self._deadlines:
            times.append(self._deadlines[0].deadline)
        if sending and self._room():
            times.append(now + PACE)
        return min(times, default=None)

    def _room(self) -> int:
        """Return how many waiting pushes fit into the window."""
        size = self._in_flight_size
        count = 0
        for push in islice(self._unsent, max(self.window - self._in_flight, 0)):
            size += len(push.payload)
            if size > self.window_bytes and self._in_flight + count:
                break
            count += 1
        return count

    def _settle(self, push: Push) -> None:
        push.settled = True
        self._in_flight -= 1
        self._in_flight_size -= len(push.payload)
        waiting = self._sent[push.payload]
        waiting.remove(push)
        if not waiting:
            del self._sent[push.payload]
