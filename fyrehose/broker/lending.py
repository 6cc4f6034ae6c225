"""Lend memory to connections that send records larger than a piece, so that they need not read them for each piece.

A record that is half sent could be as large as 16 MiB, and as many could be half sent as there are connections.  So a
connection keeps its record only while there is memory for it, and otherwise reads it again for its next piece.  A
connection whose peer does not read gives the memory back as soon as another one needs it; one network never has more
than two thirds.  What is lent is charged to the budget.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Protocol

import attrs


class Lender(Protocol):
    """The budget that the memory is charged to."""

    def keep(self, size: int) -> bool: ...

    def forget(self, size: int) -> None: ...


class Borrower(Protocol):
    """A connection with a record that is half sent."""

    @property
    def network(self) -> str: ...

    def reclaim(self) -> None:
        """Forget the record, because another connection needs its memory."""


@attrs.define(eq=False)
class Lending:
    """The memory that is lent; all sizes are in bytes.

    :ivar limit: the most that is lent
    :ivar lent: what is lent at present
    """

    budget: Lender
    limit: int
    lent: int = attrs.field(default=0, init=False)
    _sizes: dict[Borrower, int] = attrs.field(factory=dict, init=False)
    _networks: Counter[str] = attrs.field(factory=Counter, init=False)
    #: borrowers whose peers do not read, the longest first
    _idle: OrderedDict[Borrower, None] = attrs.field(factory=OrderedDict, init=False)

    def lend(self, borrower: Borrower, size: int) -> bool:
        """Return whether *borrower* may keep its record of *size* bytes, until :meth:`release` or ``reclaim``."""
        if borrower in self._sizes:
            return True
        while not self._fits(borrower.network, size):
            if not self._idle:
                return False
            idle = next(iter(self._idle))
            self.release(idle)
            idle.reclaim()
        if not self.budget.keep(size):
            return False
        self._sizes[borrower] = size
        self._networks[borrower.network] += size
        self.lent += size
        return True

    def leave(self, borrower: Borrower) -> None:
        """Record that *borrower* does not need its record at present."""
        if borrower in self._sizes:
            self._idle[borrower] = None

    def use(self, borrower: Borrower) -> None:
        """Record that *borrower* needs its record again."""
        self._idle.pop(borrower, None)

    def release(self, borrower: Borrower) -> None:
        """Take back the memory of *borrower*, if it has any."""
        self._idle.pop(borrower, None)
        size = self._sizes.pop(borrower, 0)
        if not size:
            return
        self.lent -= size
        self._networks[borrower.network] -= size
        if not self._networks[borrower.network]:
            del self._networks[borrower.network]
        self.budget.forget(size)

    def _fits(self, network: str, size: int) -> bool:
        if self.lent + size > self.limit:
            return False
        return not self.lent or 3 * (self._networks[network] + size) <= 2 * self.limit
