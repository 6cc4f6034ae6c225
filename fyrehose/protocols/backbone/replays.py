"""Queue the ranges that the server sends again from its own journal; the clients that requested them take turns.

in: add(destination, first, last), sent(destination, to)      out: next() -> destination, its ranges
"""

from __future__ import annotations

from collections import OrderedDict

import attrs

from fyrehose.protocols.backbone.frames import Address
from fyrehose.protocols.backbone.ranges import Ranges

#: Maximum number of ranges for one destination, and the number that all destinations share: each may queue an equal
#: part of it, and always LEAST_EACH.  Further REQUESTs are dropped, and clients repeat them.
MOST_EACH = 1_024
MOST = 16_384
LEAST_EACH = 8


@attrs.define(eq=False)
class Replays:
    """The queued ranges of each destination; a destination is sent its ranges in the order of their sequences."""

    _ranges: OrderedDict[Address, Ranges] = attrs.field(factory=OrderedDict, init=False)

    def __len__(self) -> int:
        """Return the number of destinations."""
        return len(self._ranges)

    def add(self, destination: Address, first: int, last: int) -> bool:
        """Queue the range *first* to *last* for *destination*; return False if too many ranges are queued."""
        ranges = self._ranges.setdefault(destination, Ranges())
        return ranges.add(first, last, min(MOST_EACH, max(LEAST_EACH, MOST // len(self._ranges))))

    def next(self) -> tuple[Address, Ranges]:
        """Return the next destination and its ranges, and move the destination to the end of the queue.

        :raises KeyError: the queue is empty
        """
        destination = next(iter(self._ranges), None)
        if destination is None:
            raise KeyError("no range is queued")
        self._ranges.move_to_end(destination)
        return destination, self._ranges[destination]

    def sent(self, destination: Address, to: int) -> None:
        """Record that the ranges of *destination* were sent up to and including *to*."""
        rest = self._ranges[destination].after(to)
        if rest:
            self._ranges[destination] = rest
        else:
            self.remove(destination)

    def remove(self, destination: Address) -> None:
        """Remove all ranges of *destination*."""
        del self._ranges[destination]

    def clear(self) -> None:
        """Remove all ranges."""
        self._ranges.clear()
