"""What the server's journal owes: ranges to be delivered again, each destination in its turn.

in: add(destination, first, last)      out: next() -> whose turn it is, and what; sent(...) -> how far it came
"""

from __future__ import annotations

from collections import OrderedDict, deque

import attrs

from fyrehose.protocols.backbone.frames import Address

#: Ranges that wait for one destination, and for all together: beyond them a REQUEST is dropped, and will come again.
MOST_EACH = 8
MOST = 1_024


@attrs.define(eq=False)
class Replays:
    """Ranges by destination, in the order in which they were asked for; the destinations take turns."""

    _ranges: OrderedDict[Address, deque[tuple[int, int]]] = attrs.field(factory=OrderedDict, init=False)
    _count: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        """How many destinations wait."""
        return len(self._ranges)

    def add(self, destination: Address, first: int, last: int) -> bool:
        """``first`` to ``last`` for ``destination``; False when too much is owed already."""
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
        """The destination whose turn it is, and what it is owed first; it goes to the end of the row.

        :raises KeyError: nobody waits
        """
        destination = next(iter(self._ranges), None)
        if destination is None:
            raise KeyError("nobody waits")
        self._ranges.move_to_end(destination)
        first, last = self._ranges[destination][0]
        return destination, first, last

    def sent(self, destination: Address, to: int) -> None:
        """The range that :meth:`next` named was sent up to and including number ``to``."""
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
        """Nothing is owed any more."""
        self._ranges.clear()
        self._count = 0
