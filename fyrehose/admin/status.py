"""The state of the server as one object: what the page shows, ``fyrehose top`` and whoever reads JSON.

Sizes are bytes, durations seconds, times seconds since 1970 UTC.  What cannot be told is null.  Lists of streams and
subscribers have an end: the busiest streams and the subscribers furthest behind, and how many there are.  All of them
are listed page by page, in the order in which they were made.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from heapq import nlargest
from itertools import chain, islice
from pathlib import Path
from typing import Any

import attrs

from fyrehose import __version__, kernels
from fyrehose.admin.census import Lags
from fyrehose.admin.sampling import Sampler, StreamRates, given_by_protocol, meters_of, taken_by_protocol
from fyrehose.core.broker import Broker
from fyrehose.core.fanout import Cursor
from fyrehose.interfaces import JournalState
from fyrehose.observe.meters import JournalStatus

#: Streams and subscribers that are listed, of however many there are.
LISTED = 200


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
        lags = self.sampler.census.lags()
        budget = self.broker.budget
        now = self.sampler.now()
        return {
            "time": now,
            "version": __version__,
            "kernels": "native" if kernels.NATIVE else "python",
            "pid": os.getpid(),
            "started": self.started,
            "uptime": now - self.started,
            "memory": {
                **_memory(),
                "budget_used": budget.used,
                "budget": budget.limit,
            },
            "reactor": {"lag": self._lag(), "lag_p99": self.sampler.lately(3, 0.99)},
            "journal": self.journal(),
            "listeners": self._listeners(),
            "protocols": self.protocols(lags),
            "streams": self._streams(match, listed),
            "subscribers": {
                "total": len(self.broker.cursors()),
                "lag": lags.most,
                "lag_age": round(max(0.0, self.sampler.clock.seconds() - lags.began), 3),
                "listed": [_subscriber(cursor) for cursor in lags.first(listed)],
            },
            "refusals": self._refusals(),
        }

    def streams_page(self, match: str, page: int, limit: int) -> dict[str, Any]:
        """Return page *page*, the first being 0, of the streams whose name has *match* in it."""
        ends = self.broker.journal.ends()
        found = _matching(ends, match)
        rate = self.rates.look()
        listed = islice(found, page * limit, (page + 1) * limit)
        return {
            "total": len(ends),
            "matching": len(found),
            "page": page,
            "listed": [self._stream(stream, ends[stream], rate(stream)) for stream in listed],
        }

    def subscribers_page(self, page: int, limit: int) -> dict[str, Any]:
        """Return page *page*, the first being 0, of the subscribers."""
        cursors = self.broker.cursors()
        listed = islice(cursors, page * limit, (page + 1) * limit)
        return {"total": len(cursors), "page": page, "listed": [_subscriber(cursor) for cursor in listed]}

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

    def protocols(self, lags: Lags) -> list[dict[str, Any]]:
        """What each protocol did and does."""
        counters = self.broker.counters
        taken, given = taken_by_protocol(self.broker), given_by_protocol(self.broker)
        refused: Counter[str] = Counter()
        for protocol, cause in counters.refusals:
            refused[protocol] += counters.counts[protocol, cause]
        tallies, published = self.broker.tallies(), self.broker.published
        sample = self.sampler.samples[-1] if self.sampler.samples else None
        found = []
        for protocol in protocols_of(self.broker):
            published_rate = sample.taken.get(protocol, (0.0, 0.0)) if sample else (None, None)
            delivered_rate = sample.given.get(protocol, (0.0, 0.0)) if sample else (None, None)
            found.append(
                {
                    "name": protocol,
                    "connections": counters.gauges[protocol, "connections"],
                    "connections_peak": counters.peaks[protocol, "connections"],
                    "connections_total": counters.counts[protocol, "connections"],
                    "acknowledged": published[protocol].publishes if protocol in published else 0,
                    "published_messages": taken.get(protocol, (0, 0))[0],
                    "published_bytes": taken.get(protocol, (0, 0))[1],
                    "published_rate": published_rate[0],
                    "published_bytes_rate": published_rate[1],
                    "delivered_messages": given.get(protocol, (0, 0))[0],
                    "delivered_bytes": given.get(protocol, (0, 0))[1],
                    "delivered_rate": delivered_rate[0],
                    "delivered_bytes_rate": delivered_rate[1],
                    "subscribers": tallies[protocol].subscriptions if protocol in tallies else 0,
                    "lag": lags.protocols.get(protocol, 0),
                    "refused": refused[protocol],
                }
            )
        return found

    def _streams(self, match: str, listed: int) -> dict[str, Any]:
        """The busiest streams; then the others, in the order in which they were made."""
        ends = self.broker.journal.ends()
        rate = self.rates.look()
        found = _matching(ends, match)
        growth = self.rates.growth
        busiest = nlargest(listed, _matching(growth, match), key=lambda stream: growth[stream])
        others = (stream for stream in found if stream not in growth)
        return {
            "total": len(ends),
            "matching": len(found),
            "listed": [
                self._stream(stream, ends[stream], rate(stream)) for stream in islice(chain(busiest, others), listed)
            ],
        }

    def _stream(self, stream: str, last: int, rate: float | None) -> dict[str, Any]:
        return {
            "name": stream,
            "first": self.broker.bounds(stream)[0],
            "last": last,
            "rate": rate,
            "subscribers": self.broker.subscribers(stream),
        }

    def _listeners(self) -> list[dict[str, Any]]:
        return [
            {
                "name": listener.name,
                "protocol": listener.protocol,
                "endpoint": listener.endpoint,
                "encryption": listener.encryption,
                "access": listener.access(),
                "connections": listener.connections(),
            }
            for listener in self.broker.listeners
        ]

    def _refusals(self) -> list[dict[str, Any]]:
        counters = self.broker.counters
        found = sorted((-counters.counts[key], *key) for key in counters.refusals)
        return [{"protocol": protocol, "cause": cause, "count": -count} for count, protocol, cause in found]


def protocols_of(broker: Broker) -> list[str]:
    """The protocols that have done anything yet, by name."""
    counters = broker.counters
    named = {protocol for protocol, _ in [*counters.counts, *counters.gauges]} | set(taken_by_protocol(broker))
    return sorted(named | broker.tallies().keys() - {""})


def journal_status(broker: Broker) -> JournalStatus | None:
    """What the journal says of itself, while it is open; None of a journal that says nothing."""
    status: Callable[[], JournalStatus] | None = getattr(broker.journal, "status", None)
    if status is None or broker.journal.state in (JournalState.CLOSED, JournalState.FAILED):
        return None
    return status()


def _subscriber(cursor: Cursor) -> dict[str, Any]:
    protocol, peer = cursor.subscriber
    return {
        "protocol": protocol,
        "peer": peer,
        "stream": cursor.stream,
        "position": cursor.position,
        "lag": cursor.lag,
        "delivered": cursor.delivered,
        "paused": cursor.paused,
    }


def _matching(streams: Mapping[str, int], match: str) -> Collection[str]:
    wanted = match.lower()
    return [stream for stream in streams if wanted in stream.lower()] if match else streams.keys()


def _memory() -> dict[str, int]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    try:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        resident = usage.ru_maxrss << 10
    return {"resident": resident, "peak": usage.ru_maxrss << 10}
