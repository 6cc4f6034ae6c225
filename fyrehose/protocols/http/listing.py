"""The answer to a request for a list of streams, made in several turns of the reactor.

all names -> a turn: some are compared with the pattern -> ... -> the names that match
names     -> a turn: the bounds, and the two ends of some streams -> ... -> one JSON object for each stream
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Any

from twisted.internet.defer import Deferred

from fyrehose.broker.stream_statistics import Ends
from fyrehose.interfaces import IBroker
from fyrehose.net.lifecycle import Timers
from fyrehose.patterns import Pattern

#: How many names are compared with a pattern in one turn; the worst pattern of a peer needs about 1 us for each name.
MOST_COMPARED = 2_000


def _next_turn(timers: Timers) -> Deferred[None]:
    """Return a Deferred that fires in the next turn of the reactor, or never if the connection of *timers* ends."""
    turn: Deferred[None] = Deferred()
    timers.start(0, lambda: turn.callback(None))
    return turn


async def matching(timers: Timers, pattern: Pattern, streams: Collection[str]) -> list[str]:
    """Return the names among *streams* that *pattern* covers, in their order.

    :param streams: all names, which do not change meanwhile
    """
    names = iter(streams)
    found: list[str] = []
    for compared in range(0, len(streams), MOST_COMPARED):
        if compared:
            await _next_turn(timers)
        found += filter(pattern.covers, islice(names, MOST_COMPARED))
    return found


async def described(
    broker: IBroker, timers: Timers, ends: Ends, names: Sequence[str], now: Callable[[], float]
) -> list[dict[str, Any]]:
    """Return a JSON object for each stream of *names*: the stream's numbers, its size and its ages.

    :param broker: the broker with the peer's permissions
    :param now: returns the time, in seconds since 1970 UTC
    """
    found: list[dict[str, Any]] = []
    ends.begin()
    for name in names:
        if ends.left <= 1:
            await _next_turn(timers)
            ends.begin()
        first, last = broker.bounds(name)
        end = ends.of(name, first, last, False)
        found.append(
            {
                "name": name,
                "first": first,
                "last": last,
                "bytes": 0 if first > last else None if end.mean is None else round(end.mean * (last - first + 1)),
                "oldest_age": None if end.oldest is None else max(0.0, round(now() - end.oldest, 6)),
                "newest_age": None if end.newest is None else max(0.0, round(now() - end.newest, 6)),
            }
        )
    return found
