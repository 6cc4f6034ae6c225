"""Ranges of numbers and their states: an ordered map from ranges, which do not overlap, to states.

set(1, 9, A)          1-9 A
set(4, 5, B)          1-3 A   4-5 B   6-9 A        a range splits where a part of it changes
set(4, 5, A)          1-9 A                        and becomes one again
within(3, 12)         3-9 A
over(3, 12, B)        3-9 A   10-12 B
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import attrs

from fyrehose.records import LAST_SEQ

S = TypeVar("S")

#: Ranges of numbers: the first and the last number of each.
Ranges = list[tuple[int, int]]


@attrs.define(eq=False, slots=True)
class Span(Generic[S]):
    """Consecutive numbers in one state."""

    first: int
    last: int
    state: S

    def __len__(self) -> int:
        return self.last - self.first + 1


class Spans(Generic[S]):
    """The states of numbers, as spans in ascending order; some numbers have none."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._spans: list[Span[S]] = []

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[Span[S]]:
        return iter(self._spans)

    @property
    def last(self) -> int:
        """Return the highest number that has a state; there must be one."""
        return self._spans[-1].last

    def find(self, number: int) -> Span[S] | None:
        """Return the span that includes *number*; None if *number* has no state."""
        at = bisect_right(self._firsts, number) - 1
        return self._spans[at] if at >= 0 and number <= self._spans[at].last else None

    def within(self, first: int, last: int) -> list[tuple[int, int, S]]:
        """Return the ranges from *first* to *last* that have a state, each with its state."""
        found = []
        for at in range(max(0, bisect_right(self._firsts, first) - 1), bisect_right(self._firsts, last)):
            span = self._spans[at]
            if span.last >= first:
                found.append((max(first, span.first), min(last, span.last), span.state))
        return found

    def over(self, first: int, last: int, default: S) -> Iterator[tuple[int, int, S]]:
        """Yield the ranges from *first* to *last*, each with its state, which is *default* where there is none."""
        for low, high, state in self.within(first, last):
            if first < low:
                yield first, low - 1, default
            yield low, high, state
            first = high + 1
        if first <= last:
            yield first, last, default

    def behind(self, number: int, most: int) -> list[tuple[int, int, S]]:
        """Return the first *most* ranges behind *number* that have a state, each with its state."""
        at = bisect_right(self._firsts, number)
        if at and self._spans[at - 1].last > number:
            at -= 1
        return [(max(number + 1, span.first), span.last, span.state) for span in self._spans[at : at + most]]

    def remove(self, first: int, last: int) -> list[Span[S]]:
        """Remove the states of the numbers from *first* to *last*, and return their spans."""
        begin, end = self._split(first, last)
        removed = self._spans[begin:end]
        del self._firsts[begin:end], self._spans[begin:end]
        return removed

    def set(self, first: int, last: int, state: S) -> list[Span[S]]:
        """Give the numbers from *first* to *last* the *state*, and return the spans that this replaces."""
        tail = self._spans[-1] if self._spans else None
        if tail is None or first > tail.last + 1 or (first > tail.last and tail.state != state):
            self._firsts.append(first)
            self._spans.append(Span(first, last, state))
            return []
        begin, end = self._split(first, last)
        removed = self._spans[begin:end]
        low, high = begin, end
        if begin and self._spans[begin - 1].last == first - 1 and self._spans[begin - 1].state == state:
            low, first = begin - 1, self._spans[begin - 1].first
        if end < len(self._spans) and self._spans[end].first == last + 1 and self._spans[end].state == state:
            high, last = end + 1, self._spans[end].last
        self._firsts[low:high], self._spans[low:high] = [first], [Span(first, last, state)]
        return removed

    def clear(self) -> None:
        """Remove all states."""
        self._firsts.clear()
        self._spans.clear()

    def _split(self, first: int, last: int) -> tuple[int, int]:
        """Split the spans at both ends of a range; return the index of its first span, and of the first one behind."""
        ends = []
        for number in (first, last + 1):
            at = bisect_right(self._firsts, number - 1)
            if at and self._spans[at - 1].last >= number:
                before = self._spans[at - 1]
                self._firsts.insert(at, number)
                self._spans.insert(at, Span(number, before.last, before.state))
                before.last = number - 1
            ends.append(at)
        return ends[0], ends[1]


class NumberSet:
    """A set of numbers from 1 on: all up to a floor, and ranges above the floor."""

    def __init__(self, floor: int = 0, above: Iterable[tuple[int, int]] = ()) -> None:
        self.floor = floor
        self._above: Spans[bool] = Spans()
        for first, last in above:
            self.add(first, last)

    def __contains__(self, number: int) -> bool:
        return number <= self.floor or self._above.find(number) is not None

    def above(self, number: int = 0, most: int = LAST_SEQ) -> Ranges:
        """Return the first *most* ranges above the floor and behind *number*, in ascending order."""
        return [(first, last) for first, last, _ in self._above.behind(number, most)]

    @property
    def highest(self) -> int:
        """Return the highest number of the set."""
        return self._above.last if len(self._above) else self.floor

    def add(self, first: int, last: int) -> int:
        """Add the numbers from *first* to *last*, and return how many of them are new."""
        first = max(first, self.floor + 1)
        if first > last:
            return 0
        if first == self.floor + 1 and not len(self._above):
            self.floor = last
            return last - first + 1
        new = last - first + 1 - sum(map(len, self._above.set(first, last, True)))
        lowest = next(iter(self._above))
        if lowest.first == self.floor + 1:
            self.floor = lowest.last
            self._above.remove(lowest.first, lowest.last)
        return new

    def gaps(self, first: int, last: int) -> Ranges:
        """Return the ranges from *first* to *last* that are not in the set."""
        at, found = max(first, self.floor + 1), []
        for begin, end, _ in self._above.within(at, last):
            if at < begin:
                found.append((at, begin - 1))
            at = end + 1
        return [*found, (at, last)] if at <= last else found


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return *ranges* in ascending order; those that overlap or follow each other become one."""
    found: Ranges = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found
