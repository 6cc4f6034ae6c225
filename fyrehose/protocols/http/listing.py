"""The answer to a request for a list of streams, made in several turns of the reactor.

all names -> a turn: some are compared with the pattern -> ... -> the names that match
names     -> a turn: the bounds, and the two ends of some streams -> ... -> one JSON object for each stream
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any

import attrs
from twisted.internet.defer import Deferred

from fyrehose.broker.ends import Ends
from fyrehose.interfaces import IBroker
from fyrehose.net.lifecycle import Timers
from fyrehose.patterns import Pattern

#: The most names that are compared with a pattern in one turn: the worst pattern of a peer needs about 1 us for each.
MOST_COMPARED = 2_000


@attrs.define(eq=False)
class Matching:
    """Finds the streams that a pattern covers.

    :ivar streams: all names, which do not change meanwhile
    """

    timers: Timers
    pattern: Pattern
    streams: Collection[str]
    _left: Iterator[str] = attrs.field(init=False)
    _compared: int = attrs.field(default=0, init=False)
    _found: list[str] = attrs.field(factory=list, init=False)
    _done: Deferred[list[str]] = attrs.field(factory=Deferred, init=False)

    def start(self) -> Deferred[list[str]]:
        """Return a Deferred that fires with the names that match, in their order."""
        self._left = iter(self.streams)
        self._turn()
        return self._done

    def _turn(self) -> None:
        self._found += filter(self.pattern.covers, islice(self._left, MOST_COMPARED))
        self._compared += MOST_COMPARED
        if self._compared < len(self.streams):
            self.timers.start(0, self._turn)
        else:
            self._done.callback(self._found)


@attrs.define(eq=False)
class Listing:
    """Describes streams.

    :ivar broker: the broker with the peer's permissions
    :ivar names: the streams
    :ivar now: the time, in seconds since 1970 UTC
    """

    broker: IBroker
    timers: Timers
    ends: Ends
    names: Sequence[str]
    now: Callable[[], float]
    _listed: list[dict[str, Any]] = attrs.field(factory=list, init=False)
    _done: Deferred[list[dict[str, Any]]] = attrs.field(factory=Deferred, init=False)

    def start(self) -> Deferred[list[dict[str, Any]]]:
        """Return a Deferred that fires with the objects, in the order of the names."""
        self._turn()
        return self._done

    def _turn(self) -> None:
        self.ends.begin()
        while len(self._listed) < len(self.names) and self.ends.left > 1:
            self._listed.append(self._describe(self.names[len(self._listed)]))
        if len(self._listed) < len(self.names):
            self.timers.start(0, self._turn)
        else:
            self._done.callback(self._listed)

    def _describe(self, name: str) -> dict[str, Any]:
        first, last = self.broker.bounds(name)
        end, now = self.ends.of(name, first, last, False), self.now()
        return {
            "name": name,
            "first": first,
            "last": last,
            "bytes": 0 if first > last else None if end.mean is None else round(end.mean * (last - first + 1)),
            "oldest_age": None if end.oldest is None else max(0.0, round(now - end.oldest, 6)),
            "newest_age": None if end.newest is None else max(0.0, round(now - end.newest, 6)),
        }
