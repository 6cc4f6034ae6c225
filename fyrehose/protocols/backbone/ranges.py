"""Sets of sequences, as ranges in order.

Many small REQUESTs cost no more than one large REQUEST: ranges that overlap or touch become one range, and one read of
the journal answers all ranges in it.

in: add(first, last)      out: the ranges, the parts of runs that are in them

:class:`Replays` queues the ranges that the server sends again from its own journal; the clients that requested them
take turns.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from operator import itemgetter

import attrs

from fyrehose.protocols.backbone.frames import Address
from fyrehose.records import Run

#: First and last sequence, both included.
Range = tuple[int, int]

_first, _last = itemgetter(0), itemgetter(1)


class Ranges:
    """Ranges that neither overlap nor touch, in order."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._ranges = list(ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[Range]:
        return iter(self._ranges)

    def __getitem__(self, index: int) -> Range:
        return self._ranges[index]

    @property
    def sequences(self) -> int:
        """Return the number of sequences in all ranges."""
        return sum(last - first + 1 for first, last in self._ranges)

    def add(self, first: int, last: int, most: int) -> bool:
        """Add the range *first* to *last*; return False if there would be more than *most* ranges."""
        begin = bisect_left(self._ranges, first - 1, key=_last)
        end = bisect_right(self._ranges, last + 1, key=_first)
        joined = self._ranges[begin:end]
        if joined:
            first, last = min(first, joined[0][0]), max(last, joined[-1][1])
        elif len(self._ranges) >= most:
            return False
        self._ranges[begin:end] = [(first, last)]
        return True

    def first(self, count: int) -> Ranges:
        """Return the first *count* ranges."""
        return Ranges(self._ranges[:count])

    def after(self, seq: int) -> Ranges:
        """Return the parts of the ranges that are above *seq*."""
        rest = self._ranges[bisect_right(self._ranges, seq, key=_last) :]
        if rest and rest[0][0] <= seq:
            rest[0] = (seq + 1, rest[0][1])
        return Ranges(rest)

    def select(self, runs: Iterable[Run]) -> tuple[Run, ...]:
        """Return the parts of *runs* that are in the ranges."""
        parts = []
        for run in runs:
            at = bisect_left(self._ranges, run.first_seq, key=_last)
            while at < len(self._ranges) and self._ranges[at][0] <= run.last_seq:
                first, last = self._ranges[at]
                parts.append(run.slice(max(first - run.first_seq, 0), last - run.first_seq + 1))
                at += 1
        return tuple(parts)


#: Maximum number of ranges for one destination, and for all destinations together.  Each destination may queue an equal
#: part of the total, and always LEAST_EACH.  Further REQUESTs are dropped, and clients repeat them.
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

    def take(self) -> tuple[Address, Ranges]:
        """Remove and return the destination whose turn is next, and its ranges.

        :raises KeyError: the queue is empty
        """
        return self._ranges.popitem(last=False)

    def put(self, destination: Address, ranges: Ranges) -> None:
        """Queue what is left of the *ranges* of *destination*, behind all others; nothing if none are left."""
        if ranges:
            self._ranges[destination] = ranges

    def clear(self) -> None:
        """Remove all ranges."""
        self._ranges.clear()
