"""Drop events whose UUID was seen lately, because a publisher sends an event again if no BROADCAST has confirmed it.

runs of events, the time -> the same without the events that were seen before
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

import attrs

from fyrehose.protocols.eventbus.columns import PROTOCOL
from fyrehose.protocols.eventbus.labels import WireLabels
from fyrehose.records import Run

#: Number of UUIDs that are remembered, and for how long, in seconds.
MOST_SEEN = 100_000
SEEN_AGE = 600.0


@attrs.define(eq=False)
class SeenEvents:
    """The UUIDs of recent events."""

    _seen: OrderedDict[bytes, float] = attrs.field(factory=OrderedDict, init=False)

    def new(self, runs: Iterable[Run], now: float) -> list[Run]:
        """Return *runs* without the events that were seen before *now*, and remember the others."""
        seen, found = self._seen, []
        while seen and now - next(iter(seen.values())) > SEEN_AGE:
            seen.popitem(last=False)
        for run in runs:
            rows = enumerate(self._is_new(uuid, now) for uuid in _uuids(run))
            for new, group in groupby(rows, itemgetter(1)):
                if new:
                    at = [row for row, _ in group]
                    found.append(run.slice(at[0], at[-1] + 1))
        return found

    def forget(self, runs: Iterable[Run]) -> None:
        """Forget the events of *runs*, which were not published."""
        for run in runs:
            for uuid in _uuids(run):
                self._seen.pop(uuid, None)

    def _is_new(self, uuid: bytes, now: float) -> bool:
        known = uuid in self._seen
        self._seen[uuid] = now
        self._seen.move_to_end(uuid)
        if len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)
        return not known


def _uuids(run: Run) -> Iterator[bytes]:
    """Yield the UUID of each event, or its text if it is no UUID."""
    if run.event_ids is None:
        written = WireLabels(run, PROTOCOL)
        yield from (written.uuid(row) for row in range(len(run)))
    else:
        ids = bytes(run.event_ids)
        yield from (ids[at : at + 16] for at in range(0, len(ids), 16))
