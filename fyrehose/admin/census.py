"""How far subscribers are behind, found out a few at a time.

    cursors, AT_ONCE of them each beat -> a round -> Lags: the furthest of all, of each protocol and of each stream

With few subscribers every question is answered as of now.  With many the answer is that of the last complete round,
because to look at hundreds of thousands takes longer than others should have to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import attrs

from fyrehose.core.broker import Broker
from fyrehose.core.fanout import Cursor

#: Subscribers that are looked at in one turn of the reactor.
AT_ONCE = 2_000
#: Subscribers that a round remembers by name: those that are furthest behind.
KEPT = 1_000


@attrs.define(eq=False)
class Lags:
    """How many messages subscribers are behind.

    :ivar began: when the first of them was looked at (monotonic clock, seconds)
    :ivar protocols: the furthest of each protocol, where any is behind
    :ivar streams: the furthest of each stream, where any is behind
    :ivar furthest: subscribers that were further behind than all others, and maybe some more
    """

    began: float
    protocols: dict[str, int] = attrs.field(factory=dict)
    streams: dict[str, int] = attrs.field(factory=dict)
    furthest: list[tuple[int, Cursor]] = attrs.field(factory=list)
    #: no subscriber that is less behind than this belongs to the furthest
    _least: int = 0

    @property
    def most(self) -> int:
        """The furthest of all."""
        return max(self.protocols.values(), default=0)

    def look(self, cursors: Iterable[Cursor]) -> None:
        """Look at *cursors*."""
        protocols, streams, furthest = self.protocols, self.streams, self.furthest
        for cursor in cursors:
            if cursor.stopped:
                continue
            place = cursor.place
            lag = place.last - cursor.position
            if lag > 0:
                protocol, stream = cursor.tally.protocol, place.stream
                if lag > protocols.get(protocol, 0):
                    protocols[protocol] = lag
                if lag > streams.get(stream, 0):
                    streams[stream] = lag
            if lag >= self._least:
                furthest.append((lag, cursor))
        if len(furthest) > 2 * KEPT:
            self._cut()

    def _cut(self) -> None:
        self.furthest.sort(key=_lag_of, reverse=True)
        del self.furthest[KEPT:]
        self._least = self.furthest[-1][0] + 1

    def first(self, count: int) -> list[Cursor]:
        """Return *count* subscribers, the furthest first as of now; those that have left do not count."""
        found = [cursor for _, cursor in self.furthest if not cursor.stopped]
        return sorted(found, key=lambda cursor: (-cursor.lag, cursor.subscriber, cursor.stream))[:count]


@attrs.define(eq=False)
class Census:
    """Looks at the subscribers of *broker*, some each time that :meth:`step` is called.

    :ivar seconds: the monotonic clock
    """

    broker: Broker
    seconds: Callable[[], float]
    _done: Lags | None = attrs.field(default=None, init=False)
    _round: Lags = attrs.field(init=False)
    _left: Iterator[list[Cursor]] = attrs.field(factory=lambda: iter(()), init=False)

    def __attrs_post_init__(self) -> None:
        self._round = Lags(self.seconds())

    def step(self) -> None:
        """Look at the next subscribers; with few there is nothing to do before somebody asks."""
        if len(self.broker.cursors()) <= AT_ONCE:
            self._done, self._left = None, iter(())
            return
        part = next(self._left, None)
        if part is None:
            self._round = Lags(self.seconds())
            self._left = _parts(list(self.broker.cursors()))
            part = next(self._left)
        self._round.look(part)
        if self._done is None or len(part) < AT_ONCE:
            self._done = self._round

    def lags(self) -> Lags:
        """Return how far subscribers are behind: now, or with many of them in the last round."""
        if len(self.broker.cursors()) > AT_ONCE and self._done is not None:
            return self._done
        lags = Lags(self.seconds())
        lags.look(self.broker.cursors())
        return lags


def _parts(cursors: list[Cursor]) -> Iterator[list[Cursor]]:
    """Return *cursors* in pieces of :data:`AT_ONCE`; only the last of them has fewer, and may have none."""
    return (cursors[at : at + AT_ONCE] for at in range(0, len(cursors) + 1, AT_ONCE))


def _lag_of(found: tuple[int, Cursor]) -> int:
    return found[0]
