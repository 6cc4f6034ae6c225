"""Queue the ranges that the server delivers again from its own journal; the destinations take turns.

in: add(destination, first, last), sent(destination, to)      out: next() -> destination, first, last
"""

from __future__ import annotations

from collections import OrderedDict, deque

import attrs

from fyrehose.protocols.backbone.frames import Address

#: Maximum number of ranges for one destination, and for all; further REQUESTs are dropped, and clients repeat them.
MOST_EACH = 8
MOST = 1_024


@attrs.define(eq=False)
class Replays:
    """Ranges by destination, in the order of the requests."""

    _ranges: OrderedDict[Address, deque[tuple[int, int]]] = attrs.field(factory=OrderedDict, init=False)
    _count: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        """Return the number of destinations."""
        return len(self._ranges)

    def add(self, destination: Address, first: int, last: int) -> bool:
        """Queue the range *first* to *last* for *destination*; return False if too many ranges are queued."""
        ranges = self._ranges.setdefault(destination, deque())
        if (first, last) in ranges:
            return True
        if len(ranges) >= MOST_EACH or self._count >= MOST:
            if not ranges:
                del self._ranges[destination]
            return False
        ranges.append((first, last))
        self._count += 1
        return True

    def next(self) -> tuple[Address, int, int]:
        """Return the next destination and its first range, and move the destination to the end of the queue.

        :raises KeyError: the queue is empty
        """
        destination = next(iter(self._ranges), None)
        if destination is None:
            raise KeyError("no range is queued")
        self._ranges.move_to_end(destination)
        first, last = self._ranges[destination][0]
        return destination, first, last

    def sent(self, destination: Address, to: int) -> None:
        """Record that the first range of *destination* was sent up to and including *to*."""
        ranges = self._ranges[destination]
        _, last = ranges[0]
        if to < last:
            ranges[0] = (to + 1, last)
            return
        ranges.popleft()
        self._count -= 1
        if not ranges:
            del self._ranges[destination]

    def clear(self) -> None:
        """Remove all ranges."""
        self._ranges.clear()
        self._count = 0
