"""Determine how far subscribers are behind, by examining a bounded number of subscribers at a time.

    cursors, BATCH of them per step -> a round -> Lags: the largest of all, of each protocol and of each stream

With few subscribers the lags are computed when they are requested.  With many they are those of the last complete
round, because examining hundreds of thousands at once would block the reactor for too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter

import attrs

from fyrehose.broker.broker import Broker
from fyrehose.broker.fanout import Cursor

#: Limit of the subscribers that are examined in one iteration of the reactor.
BATCH = 2_000
#: How many of the subscribers that are furthest behind a round lists.
LISTED = 1_000


@attrs.define(eq=False)
class Lags:
    """The lags of subscribers: how many messages each subscriber is behind the end of its stream.

    :ivar started: time at which the first subscriber was examined (monotonic clock, seconds)
    :ivar protocols: the largest lag of each protocol; protocols without any lag are missing
    :ivar streams: the largest lag of each stream; streams without any lag are missing
    :ivar stalled: how many subscribers of each protocol will be disconnected soon because they do not read; protocols
        without any are missing
    :ivar furthest: lag and cursor of the subscribers that are furthest behind, and possibly of a few others, in no
        order
    :ivar listed: how many of them a round lists
    """

    started: float
    protocols: dict[str, int] = attrs.field(factory=dict)
    streams: dict[str, int] = attrs.field(factory=dict)
    stalled: dict[str, int] = attrs.field(factory=dict)
    furthest: list[tuple[int, Cursor]] = attrs.field(factory=list)
    listed: int = LISTED
    #: Subscribers with a smaller lag than this are not added to ``furthest``.
    _threshold: int = 0

    @property
    def largest(self) -> int:
        """Return the largest lag of all subscribers, in messages."""
        return max(self.protocols.values(), default=0)

    def include(self, cursors: Iterable[Cursor]) -> None:
        """Add the lags of the subscribers *cursors* to these lags."""
        protocols, streams, furthest = self.protocols, self.streams, self.furthest
        for cursor in cursors:
            if cursor.stopped or not cursor.audience:  # A relay that serves no clients does not count as a subscriber.
                continue
            if cursor.paused and cursor.closes_in is not None:
                self.stalled[cursor.tally.protocol] = self.stalled.get(cursor.tally.protocol, 0) + 1
            place = cursor.place
            lag = place.last - cursor.position
            if lag > 0:
                protocol, stream = cursor.tally.protocol, place.stream
                if lag > protocols.get(protocol, 0):
                    protocols[protocol] = lag
                if lag > streams.get(stream, 0):
                    streams[stream] = lag
            if lag >= self._threshold:
                furthest.append((lag, cursor))
        if len(furthest) > 2 * self.listed:
            self._truncate()

    def _truncate(self) -> None:
        self.furthest.sort(key=itemgetter(0), reverse=True)
        del self.furthest[self.listed :]
        self._threshold = self.furthest[-1][0] + 1

    def furthest_behind(self, count: int) -> list[Cursor]:
        """Return up to *count* live subscribers, sorted by their present lags, the largest first."""
        live = [cursor for _, cursor in self.furthest if not cursor.stopped]
        return sorted(live, key=lambda cursor: (-cursor.lag, cursor.subscriber, cursor.stream))[:count]


@attrs.define(eq=False)
class SubscriberLags:
    """An examiner of the subscribers of *broker*, a batch of them on each call of :meth:`step`.

    :ivar seconds: the monotonic clock
    :ivar batch: how many subscribers are examined in one iteration of the reactor
    :ivar listed: how many of the subscribers that are furthest behind a round lists
    """

    broker: Broker
    seconds: Callable[[], float]
    batch: int = BATCH
    listed: int = LISTED
    #: The lags of the last complete round; during the first round, the lags that are known so far.
    _complete: Lags | None = attrs.field(default=None, init=False)
    _round: Lags = attrs.field(init=False)
    _batches: Iterator[list[Cursor]] = attrs.field(factory=lambda: iter(()), init=False)

    def __attrs_post_init__(self) -> None:
        self._round = Lags(self.seconds(), listed=self.listed)

    def step(self) -> None:
        """Examine the next batch; with few subscribers do nothing, because :meth:`lags` examines them all."""
        if len(self.broker.fanout.cursors) <= self.batch:
            self._complete, self._batches = None, iter(())
            return
        batch = next(self._batches, None)
        if batch is None:
            self._round = Lags(self.seconds(), listed=self.listed)
            self._batches = _batches(list(self.broker.fanout.cursors), self.batch)
            batch = next(self._batches)
        self._round.include(batch)
        if self._complete is None or len(batch) < self.batch:
            self._complete = self._round

    def lags(self) -> Lags:
        """Return the present lags of all subscribers or, if there are many, those of the last complete round."""
        if len(self.broker.fanout.cursors) > self.batch and self._complete is not None:
            return self._complete
        lags = Lags(self.seconds(), listed=self.listed)
        lags.include(self.broker.fanout.cursors)
        return lags


def _batches(cursors: list[Cursor], size: int) -> Iterator[list[Cursor]]:
    """Return *cursors* in lists of *size*; the last list is always shorter, and may be empty."""
    return (cursors[at : at + size] for at in range(0, len(cursors) + 1, size))
