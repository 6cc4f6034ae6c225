"""Ranges of records in their first lease, without an object for each record, because most are settled in that lease.

add -> cut, which splits ranges where an action begins or ends -> remove
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import attrs


@attrs.define(eq=False)
class FreshLease:
    """The lease of the records from *first* to *last*, which were never leased before.

    It holds for those records for which a :class:`FreshRange` still refers to it.
    """

    first: int
    last: int
    end: float
    consumer: str


@attrs.define(eq=False)
class FreshRange:
    """Consecutive records in their first lease.

    :ivar closing: whether their settling is being written
    """

    first: int
    last: int
    lease: FreshLease
    closing: bool = False

    def __len__(self) -> int:
        return self.last - self.first + 1


@attrs.define(eq=False)
class FreshRanges:
    """The records of one stream that are in their first lease, as ranges in ascending order that do not overlap."""

    _firsts: list[int] = attrs.field(factory=list, init=False)
    _ranges: list[FreshRange] = attrs.field(factory=list, init=False)

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[FreshRange]:
        return iter(self._ranges)

    def add(self, added: FreshRange) -> None:
        """Add a range whose numbers are higher than those of all others."""
        self._firsts.append(added.first)
        self._ranges.append(added)

    def find(self, seq: int) -> FreshRange | None:
        """Return the range that includes record *seq*; None if no range does."""
        at = bisect_right(self._firsts, seq) - 1
        return self._ranges[at] if at >= 0 and seq <= self._ranges[at].last else None

    def cut(self, first: int, last: int) -> list[FreshRange]:
        """Return the ranges of the records from *first* to *last*; first split ranges that reach beyond them."""
        begin = self._split(first)
        return self._ranges[begin : self._split(last + 1)]

    def _split(self, seq: int) -> int:
        """Split the range around *seq*, if any, before *seq*; return the index of the first range from *seq* on."""
        at = bisect_right(self._firsts, seq - 1)
        if at and self._ranges[at - 1].last >= seq:
            before = self._ranges[at - 1]
            self._firsts.insert(at, seq)
            self._ranges.insert(at, FreshRange(seq, before.last, before.lease, before.closing))
            before.last = seq - 1
        return at

    def remove(self, first: int, last: int) -> list[FreshRange]:
        """Remove the records from *first* to *last*, and return their ranges."""
        begin = self._split(first)
        end = self._split(last + 1)
        removed = self._ranges[begin:end]
        del self._firsts[begin:end], self._ranges[begin:end]
        return removed

    def clear(self) -> None:
        """Remove all ranges."""
        self._firsts.clear()
        self._ranges.clear()
