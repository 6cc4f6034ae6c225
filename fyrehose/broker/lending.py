"""Lend memory to connections that send large records piece by piece, so that a record is not read again for each piece.

A record has up to 16 MiB, and each connection may have sent one in part.  So a connection keeps its record only while
there is memory for it, and otherwise reads it again for its next piece.  A connection whose peer does not read gives
the memory back as soon as another one needs it; one network never has more than two thirds.  The memory that is lent
is charged to the budget.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

import attrs

from fyrehose.broker.fairness import FairShare

if TYPE_CHECKING:
    from fyrehose.broker.budget import Budget


class Borrower(Protocol):
    """A connection that has sent a record in part, and borrows memory to keep the record until the rest is sent."""

    @property
    def network(self) -> str: ...

    def reclaim(self) -> None:
        """Forget the record, because another connection needs its memory."""


def within(limit: int) -> FairShare[Borrower]:
    """Return a table that lends up to *limit* bytes, and two thirds of them at most to one network."""
    return FairShare(limit, each=limit * 2 // 3)


@attrs.define(eq=False)
class Lending:
    """The memory that is lent to connections that have sent a large record in part; all sizes are in bytes.

    :ivar shares: how much memory each network was lent, see :func:`within`
    """

    budget: Budget
    shares: FairShare[Borrower]
    #: the borrowers whose peers do not read; first the one that has not read for the longest time
    _idle: OrderedDict[Borrower, None] = attrs.field(factory=OrderedDict, init=False)

    @property
    def lent(self) -> int:
        """Return how many bytes are lent at present."""
        return self.shares.used

    def lend(self, borrower: Borrower, size: int) -> bool:
        """Return whether *borrower* may keep its record of *size* bytes until :meth:`release` or ``reclaim``."""
        if borrower in self.shares:
            return True
        while not self._fits(borrower.network, size):
            if not self._idle:
                return False
            idle = next(iter(self._idle))
            self.release(idle)
            idle.reclaim()
        if not self.budget.keep(size):
            return False
        self.shares.add(borrower, borrower.network, size)
        return True

    def leave(self, borrower: Borrower) -> None:
        """Record that *borrower* does not need its record at present."""
        if borrower in self.shares:
            self._idle[borrower] = None

    def use(self, borrower: Borrower) -> None:
        """Record that *borrower* needs its record again."""
        self._idle.pop(borrower, None)

    def release(self, borrower: Borrower) -> None:
        """Take back the memory that was lent to *borrower*, if any."""
        self._idle.pop(borrower, None)
        before = self.lent
        self.shares.discard(borrower)
        if before != self.lent:
            self.budget.forget(before - self.lent)

    def _fits(self, network: str, size: int) -> bool:
        return self.shares.fits(size, network if self.lent else None)
