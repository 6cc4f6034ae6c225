"""Track the unconfirmed pushes of a publisher: window, pace and timeouts.

A PUSH has no identifier.  It is confirmed by the first DELIVER that has the same bytes and a higher sequence than the
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
class PendingPush:
    """One message to publish; ``handle`` belongs to the caller."""

    payload: bytes
    handle: Any
    retries: int
    floor: int = 0  #: the highest sequence seen when it was sent; its DELIVER has a greater one
    deadline: float = 0.0


@attrs.define(eq=False)
class Pushes:
    """The pushes of one publisher, in order.

    :ivar window: maximum number of unconfirmed pushes
    :ivar window_bytes: maximum size of unconfirmed pushes together, in bytes; a single push may exceed it
    :ivar timeout: how long to wait for a DELIVER, in seconds
    :ivar retries: how often to push again after the timeout, at the risk of publishing twice
    :ivar pace: limits the pushes per second
    :ivar unsent: size of the pushes that wait to be sent, in bytes
    """

    window: int
    window_bytes: int
    timeout: float
    retries: int
    pace: Rates
    _unsent: deque[PendingPush] = attrs.field(factory=deque, init=False)
    _sent: dict[PendingPush, None] = attrs.field(factory=dict, init=False)
    #: the sent pushes, by their bytes
    _equal: dict[bytes, deque[PendingPush]] = attrs.field(factory=dict, init=False)
    #: sizes of the pushes in _unsent and in _sent, in bytes
    unsent: int = attrs.field(default=0, init=False)
    _sent_size: int = attrs.field(default=0, init=False)

    @property
    def has_room(self) -> bool:
        """Return whether the window has room for another push."""
        size = self._sent_size + self.unsent
        return len(self._sent) + len(self._unsent) < self.window and size < self.window_bytes

    @property
    def idle(self) -> bool:
        return not self._sent and not self._unsent

    def add(self, payload: bytes, handle: Any) -> None:
        """Append *payload* to the pushes that wait to be sent."""
        self._unsent.append(PendingPush(payload, handle, self.retries))
        self.unsent += len(payload)

    def take(self, highest: int, now: float) -> list[bytes]:
        """Return the payloads to push now, as window and pace allow.

        :param highest: the highest sequence seen so far
        """
        room = self._room()
        payloads = []
        for _ in range(self.pace.take("", room, now) if room else 0):
            push = self._unsent.popleft()
            push.floor, push.deadline = highest, now + self.timeout
            self.unsent -= len(push.payload)
            self._sent_size += len(push.payload)
            self._sent[push] = None
            self._equal.setdefault(push.payload, deque()).append(push)
            payloads.append(push.payload)
        return payloads

    def delivered(self, run: Run) -> Iterator[tuple[PendingPush, int]]:
        """Yield the pushes that *run* confirms, each with its sequence.

        :param run: delivered records, which were not passed before
        """
        if not self._sent:
            return
        seq = run.first_seq
        for payload in run.payloads():
            waiting = self._equal.get(bytes(payload))
            if waiting is not None and waiting[0].floor < seq:
                push = waiting[0]
                self._settle(push)
                yield push, seq
            seq += 1

    def expired(self, now: float) -> list[PendingPush]:
        """Return the pushes that have timed out without retries left; the others are sent again by :meth:`take`."""
        failed, again = list[PendingPush](), list[PendingPush]()
        while self._sent and next(iter(self._sent)).deadline <= now:
            push = next(iter(self._sent))
            self._settle(push)
            if push.retries:
                again.append(PendingPush(push.payload, push.handle, push.retries - 1))
                self.unsent += len(push.payload)
            else:
                failed.append(push)
        self._unsent.extendleft(reversed(again))
        return failed

    def abandon(self) -> list[PendingPush]:
        """Forget all unconfirmed pushes, and return them."""
        left = [*self._sent, *self._unsent]
        for pushes in (self._unsent, self._sent, self._equal):
            pushes.clear()
        self.unsent = self._sent_size = 0
        return left

    def renumber(self, floor: int) -> None:
        """Expect the DELIVERs of the sent pushes behind sequence *floor*, because the sequences have begun again."""
        for push in self._sent:
            push.floor = floor

    def next_due(self, now: float, sending: bool) -> float | None:
        """Return when :meth:`expired` has to be called, or :meth:`take` if *sending*; None: neither is due."""
        times = [push.deadline for push in islice(self._sent, 1)]
        if sending and self._room():
            times.append(now + PACE)
        return min(times, default=None)

    def _room(self) -> int:
        """Return how many waiting pushes fit into the window."""
        size = self._sent_size
        count = 0
        for push in islice(self._unsent, max(self.window - len(self._sent), 0)):
            size += len(push.payload)
            if size > self.window_bytes and len(self._sent) + count:
                break
            count += 1
        return count

    def _settle(self, push: PendingPush) -> None:
        del self._sent[push]
        self._sent_size -= len(push.payload)
        waiting = self._equal[push.payload]
        waiting.remove(push)
        if not waiting:
            del self._equal[push.payload]
