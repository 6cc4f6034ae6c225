"""Lags of subscriptions: in records, and as the age of the oldest record that is not acknowledged.

the last acknowledged numbers, the ends of the streams -> records; a look at some streams each second -> ages
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import attrs
from twisted.logger import Logger

from fyrehose.errors import JournalCorrupt
from fyrehose.interfaces import IJournal

if TYPE_CHECKING:
    from fyrehose.subscriptions.subscription import NamedSubscription

log = Logger()

#: How many records are not final, and the age of the oldest of them in seconds; None: it has not been looked up.
StreamLag = tuple[int, float | None]
#: How many streams' oldest unacknowledged records one round of looks reads.
LOOKS = 20


@attrs.define(eq=False)
class SubscriptionLags:
    """The computation of lags: how many records a subscription is behind the ends of its streams, and for how long.

    :ivar now: the time, in microseconds since 1970 UTC
    """

    journal: IJournal
    now: Callable[[], int]
    #: at how many streams that are behind the rounds before have looked, and this one so far
    _next: int = attrs.field(default=0, init=False)
    _behind: int = attrs.field(default=0, init=False)

    def of(self, named: NamedSubscription) -> StreamLag:
        """Return the lag of *named* in all its streams."""
        return total([self.of_stream(named, stream, seq) for stream, seq in named.places.items()])

    def of_stream(self, named: NamedSubscription, stream: str, seq: int) -> StreamLag:
        """Return the lag of *named* in one of its streams; :meth:`of` returns the lag in all of them.

        :param seq: the records of *stream* up to this number are acknowledged
        """
        oldest, last = self.journal.bounds(stream)
        records = max(0, last - max(seq, oldest - 1))
        if not records:
            return 0, 0.0
        time = named.oldest.get(stream, (0, 0))[1]
        return records, max(0, self.now() - time) / 1e6 if time else None

    def begin(self) -> None:
        """Begin another round of looks at all subscriptions, which goes on where the last one has ended."""
        self._next = self._next + LOOKS if self._behind > self._next + LOOKS else 0
        self._behind = 0

    def look(self, named: NamedSubscription, ends: Mapping[str, int]) -> None:
        """Look up the oldest unacknowledged records of *named* in those of its streams whose turn it is.

        :param ends: the journal's ``ends``
        """
        for stream, seq in named.places.items():
            last = ends.get(stream, 0)
            if last <= seq:
                named.oldest.pop(stream, None)
                continue
            if self._next <= self._behind < self._next + LOOKS:
                first = max(seq + 1, self.journal.bounds(stream)[0])  # retention may have deleted some
                if first > last:
                    named.oldest.pop(stream, None)
                elif named.oldest.get(stream, (0, 0))[0] != first:
                    named.oldest[stream] = (first, self._time(named.name, stream, first))
            self._behind += 1

    def _time(self, name: str, stream: str, first: int) -> int:
        try:
            runs = self.journal.read(stream, first, 1)
        except JournalCorrupt as damage:
            log.warn("the lag of subscription {name} is unknown: {why}", name=name, why=str(damage))
            return 0
        return runs[0].time if runs else 0


def total(lags: Collection[StreamLag]) -> StreamLag:
    """Return the lag of a subscription whose lags in its streams are *lags*."""
    ages = [age for records, age in lags if records and age is not None]
    records = sum(records for records, _ in lags)
    return records, max(ages) if ages else None if records else 0.0
