"""The order in which shares take turns: the next one is that which has paid least.

A share that begins to wait counts as having paid as much as the one whose turn was last, unless it has paid more.  So
nobody saves up turns, and nobody loses a debt by being idle while others wait: of n shares that wait, each gets an n-th
of what is paid for, and a share that has paid nothing waits for n turns at most.

    order.enter(share)         the share waits for a turn
    order.next()               gives the next turn; the share has to enter again to get another one
    order.pay(share, cost)     for its turn, or for what it got besides
"""

from __future__ import annotations

from heapq import heappop, heappush

import attrs

#: How many shares that do not wait are remembered, before those are forgotten that owe nothing any more.
MOST_IDLE = 1_024


@attrs.define(eq=False)
class FairOrder:
    """The shares that wait for a turn, and what each share has paid, whether it waits or not."""

    _paid: dict[str, float] = attrs.field(factory=dict, init=False)
    #: a heap of the shares that wait: what each had paid when it was added
    _waiting: list[tuple[float, int, str]] = attrs.field(factory=list, init=False)
    _added: int = attrs.field(default=0, init=False)
    #: what the share whose turn was last had paid before it
    _level: float = attrs.field(default=0.0, init=False)

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, share: str) -> None:
        """Let *share*, which does not wait yet, wait for a turn; of two that have paid the same, the first is next."""
        paid = self._paid[share] = max(self._paid.get(share, 0.0), self._level)
        self._added += 1
        heappush(self._waiting, (paid, self._added, share))

    def first(self) -> str | None:
        """Return the share whose turn is next, and which still waits; None if none waits."""
        while self._waiting:
            paid, _, share = self._waiting[0]
            if paid == self._paid[share]:
                return share
            heappop(self._waiting)  # it was charged meanwhile
            self.enter(share)
        return None

    def next(self) -> str | None:
        """Return the share whose turn is next, which does not wait any more; None if none waits."""
        share = self.first()
        if share is not None:
            self._level, _, _ = heappop(self._waiting)
        return share

    def pay(self, share: str, cost: float) -> None:
        """Charge *share*, whether it waits or not."""
        self._paid[share] = max(self._paid.get(share, 0.0), self._level) + cost
        if len(self._paid) > MOST_IDLE + len(self._waiting):
            waiting = {each for _, _, each in self._waiting}
            self._paid = {each: paid for each, paid in self._paid.items() if paid > self._level or each in waiting}

    def forget(self) -> None:
        """Forget who waits, and what each has paid."""
        self._paid.clear()
        self._waiting.clear()
        self._level = 0.0
