"""The state of the server as one object: what the page shows, ``fyrehose top`` and whoever reads JSON.

Sizes are bytes, durations seconds, times seconds since 1970 UTC.  What cannot be told is null.  Lists of streams and
subscribers have an end: the busiest of them, and how many there are.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from heapq import nsmallest
from pathlib import Path
from typing import Any

import attrs

from fyrehose import __version__, kernels
from fyrehose.admin.sampling import Sampler, StreamRates, given_by_kit, meters_of, taken_by_kit
from fyrehose.broker import Broker
from fyrehose.fanout import Cursor
from fyrehose.interfaces import JournalState
from fyrehose.meters import JournalStatus

#: Streams and subscribers that are listed, of however many there are.
LISTED = 200

#: Cursors, and how many messages each is behind.
Lags = list[tuple[Cursor, int]]


@attrs.define(eq=False)
class Status:
    """Says what there is to say of ``broker``."""

    broker: Broker
    sampler: Sampler
    started: float
    rates: StreamRates

    def whole(self, match: str = "", listed: int = LISTED) -> dict[str, Any]:
        """All of it.

        :param match: only streams whose name has this in it
        :param listed: how many streams and subscribers are listed at the most
        """
        ends = self.broker.journal.ends()
        cursors = self.cursors(ends)
        now = self.sampler.now()
        return {
            "time": now,
            "version": __version__,
            "kernels": "native" if kernels.NATIVE else "python",
            "pid": os.getpid(),
            "started": self.started,
            "uptime": now - self.started,
            "memory": {**_memory(), "budget_used": self.broker.budget.used, "budget": self.broker.budget.limit},
            "reactor": {"lag": self._lag(), "lag_p99": self.sampler.lately(3, 0.99)},
            "journal": self.journal(),
            "doors": self._doors(),
            "protocols": self.protocols(cursors),
            "streams": self._streams(ends, cursors, match, listed),
            "subscribers": _subscribers(cursors, listed),
            "refusals": self._refusals(),
        }

    def cursors(self, ends: Mapping[str, int]) -> Lags:
        """Every subscription, and how many messages it is behind."""
        return [(cursor, max(0, ends.get(cursor.stream, 0) - cursor.position)) for cursor in self.broker.cursors()]

    def ready(self) -> tuple[bool, str]:
        """Whether messages are taken in, and a word on it."""
        state = self.broker.journal.state
        return state is JournalState.WRITABLE, state.value

    def journal(self) -> dict[str, Any]:
        """The journal's part."""
        meters = meters_of(self.broker)
        said: dict[str, Any] = {"state": self.broker.journal.state.value, "commits": meters.commit_seconds.count}
        for name, which in (("commit_bytes", 0), ("commit", 1), ("sync", 2)):
            for share in (50, 99):
                said[f"{name}_p{share}"] = self.sampler.lately(which, share / 100)
        status = journal_status(self.broker)
        if status is not None:
            said |= {name: value for name, value in attrs.asdict(status, recurse=False).items() if name != "meters"}
        return said

    def _lag(self) -> float | None:
        return self.sampler.samples[-1].lag if self.sampler.samples else None

    def protocols(self, cursors: Lags) -> list[dict[str, Any]]:
        """What each protocol did and does."""
        counters = self.broker.counters
        taken, given = taken_by_kit(self.broker), given_by_kit(self.broker)
        refused: Counter[str] = Counter()
        for kit, cause in counters.refusals:
            refused[kit] += counters.counts[kit, cause]
        lags = grouped(cursors, lambda cursor: cursor.reader[0])
        sample = self.sampler.samples[-1] if self.sampler.samples else None
        found = []
        for kit in kits_of(self.broker):
            in_rate = sample.taken.get(kit, (0.0, 0.0)) if sample else (None, None)
            out_rate = sample.given.get(kit, (0.0, 0.0)) if sample else (None, None)
            found.append(
                {
                    "name": kit,
                    "connections": counters.gauges[kit, "connections"],
                    "connections_peak": counters.peaks[kit, "connections"],
                    "connections_total": counters.counts[kit, "connections"],
                    "acknowledged": self.broker.taken[kit].publishes if kit in self.broker.taken else 0,
                    "in_messages": taken.get(kit, (0, 0))[0],
                    "in_bytes": taken.get(kit, (0, 0))[1],
                    "in_rate": in_rate[0],
                    "in_bytes_rate": in_rate[1],
                    "out_messages": given.get(kit, (0, 0))[0],
                    "out_bytes": given.get(kit, (0, 0))[1],
                    "out_rate": out_rate[0],
                    "out_bytes_rate": out_rate[1],
                    "subscribers": len(lags.get(kit, ())),
                    "lag": max(lags.get(kit, (0,))),
                    "refused": refused[kit],
                }
            )
        return found

    def _streams(self, ends: Mapping[str, int], cursors: Lags, match: str, listed: int) -> dict[str, Any]:
        rate = self.rates.look(ends)
        readers = Counter(cursor.stream for cursor, _ in cursors)
        found = [stream for stream in ends if match.lower() in stream.lower()] if match else ends
        return {
            "total": len(ends),
            "matching": len(found),
            "listed": [
                {
                    "name": stream,
                    "first": self.broker.bounds(stream)[0],
                    "last": ends[stream],
                    "rate": rate(stream),
                    "subscribers": readers[stream],
                }
                for stream in _busiest(found, rate, listed)
            ],
        }

    def _doors(self) -> list[dict[str, Any]]:
        return [
            {
                "name": door.name,
                "kit": door.kit,
                "endpoint": door.endpoint,
                "encryption": door.encryption,
                "who": door.who(),
                "connections": door.connections(),
            }
            for door in self.broker.doors
        ]

    def _refusals(self) -> list[dict[str, Any]]:
        counters = self.broker.counters
        found = sorted((-counters.counts[key], *key) for key in counters.refusals)
        return [{"protocol": kit, "cause": cause, "count": -count} for count, kit, cause in found]


def kits_of(broker: Broker) -> list[str]:
    """The protocols that have done anything yet, by name."""
    counters = broker.counters
    named = {kit for kit, _ in [*counters.counts, *counters.gauges]} | set(taken_by_kit(broker))
    return sorted(named | {cursor.reader[0] for cursor in broker.cursors()} - {""})


def grouped(cursors: Lags, key: Callable[[Cursor], str]) -> dict[str, list[int]]:
    """How far cursors are behind, by what ``key`` says of them."""
    lags: dict[str, list[int]] = {}
    for cursor, lag in cursors:
        lags.setdefault(key(cursor), []).append(lag)
    return lags


def journal_status(broker: Broker) -> JournalStatus | None:
    """What the journal says of itself, while it is open; None of a journal that says nothing."""
    status: Callable[[], JournalStatus] | None = getattr(broker.journal, "status", None)
    if status is None or broker.journal.state in (JournalState.CLOSED, JournalState.FAILED):
        return None
    return status()


def _subscribers(cursors: Lags, listed: int) -> dict[str, Any]:
    furthest = sorted(cursors, key=lambda each: (-each[1], each[0].reader, each[0].stream))
    return {
        "total": len(cursors),
        "lag": furthest[0][1] if furthest else 0,
        "listed": [
            {
                "protocol": cursor.reader[0],
                "peer": cursor.reader[1],
                "stream": cursor.stream,
                "position": cursor.position,
                "lag": lag,
                "delivered": cursor.delivered,
                "paused": cursor.paused,
            }
            for cursor, lag in furthest[:listed]
        ],
    }


def _busiest(streams: Collection[str], rate: Callable[[str], float | None], most: int) -> list[str]:
    """Those that grow, the fastest first; then the others by name.  There may be a hundred thousand."""
    growing = [(-grows, stream) for stream in streams if (grows := rate(stream))]
    busiest = [stream for _, stream in nsmallest(most, growing)]
    if len(busiest) < most:
        chosen = set(busiest)
        busiest += nsmallest(most - len(busiest), (stream for stream in streams if stream not in chosen))
    return busiest


def _memory() -> dict[str, int]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    try:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        resident = usage.ru_maxrss << 10
    return {"resident": resident, "peak": usage.ru_maxrss << 10}
