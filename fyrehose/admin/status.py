"""Describe the state of the server as one JSON object, for the page, ``fyrehose top``, ``stats`` and other programs.

Sizes are in bytes, durations in seconds, times in seconds since 1970 UTC; unknown values are null.  The object lists a
limited number of streams and subscribers: the busiest streams, and the subscribers furthest behind.  All of them are
available in pages, in the order of their creation.
"""

from __future__ import annotations

import os
import resource
import socket
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from heapq import nlargest
from itertools import chain, islice
from pathlib import Path
from typing import Any

import attrs

from fyrehose import __version__, kernels
from fyrehose.admin.history import Rates
from fyrehose.admin.sampling import (
    Sampler,
    StreamRates,
    Totals,
    WorkRates,
    delivered_by_protocol,
    journal_status,
    published_by_protocol,
)
from fyrehose.admin.subscriber_lags import Lags
from fyrehose.broker.broker import Broker
from fyrehose.broker.fanout import Cursor
from fyrehose.broker.stream_statistics import Ends
from fyrehose.observe.meters import ClusterStatus, JournalStatus
from fyrehose.options import shown_size

#: The default number of streams and of subscribers that an answer lists.
LISTED = 200
#: How many names of streams are compared in one step.
MOST_COMPARED = 1_000
#: An object for JSON that is made in steps.
Listing = Generator[None, None, dict[str, Any]]


@attrs.define(eq=False)
class Status:
    """The status of a server: describes the state of *broker* as objects for JSON.

    :ivar started: start of the server, in seconds since 1970 UTC
    :ivar host: the name of this machine
    """

    broker: Broker
    sampler: Sampler
    started: float
    rates: StreamRates
    host: str = attrs.field(factory=socket.gethostname, kw_only=True)
    work: WorkRates = attrs.field(
        default=attrs.Factory(lambda self: WorkRates(self.sampler.clock.seconds), takes_self=True), init=False
    )
    ends: Ends = attrs.field(default=attrs.Factory(lambda self: Ends(self.broker), takes_self=True))

    def complete(self, match: str = "", listed: int = LISTED) -> Listing:
        """Return the complete status, in steps.

        :param match: list only streams whose name contains this text, in any case
        :param listed: limit of the streams, and of the subscribers, that are listed
        """
        streams = yield from self._streams(match, listed)
        subscriptions = yield from self._subscriptions(listed)
        lags = self.sampler.subscriber_lags.lags()
        budget, counters = self.broker.budget, self.broker.counters
        now = self.sampler.now()
        yield
        return {
            "time": now,
            "host": self.host,
            "version": __version__,
            "kernels": "native" if kernels.NATIVE else "python",
            "pid": os.getpid(),
            "started": self.started,
            "uptime": now - self.started,
            "memory": {
                **_memory(),
                "budget_used": budget.used + budget.unread.used,
                "budget": budget.limit,
            },
            "reactor": {"lag": self._lag(), "lag_p99": self.sampler.recent_quantile(3, 0.99)},
            "journal": self.journal(),
            "listeners": self._listeners(),
            "protocols": self.protocols(lags),
            "streams": streams,
            "subscribers": {
                "total": sum(tally.subscribers for tally in self.broker.fanout.tallies.values()),
                "lag": lags.largest,
                "lag_age": round(max(0.0, self.sampler.clock.seconds() - lags.started), 3),
                "listed": [_subscriber(cursor) for cursor in lags.furthest_behind(listed)],
            },
            "subscriptions": subscriptions,
            "writers": {"total": len(counters.writers), "listed": counters.writers.listed()[:listed]},
            "refusals": self._refusals(),
            "last_refusals": self._last_refusals(listed),
            "events": self._events(),
        }

    def streams_page(self, match: str, page: int, limit: int) -> Listing:
        """Return page *page* (from 0) of the streams whose names contain *match*, in steps; it has *limit* entries."""
        matching = yield from _matching(self.broker.journal.ends(), match)
        listed = yield from self._described(islice(matching, page * limit, (page + 1) * limit))
        return {"total": len(self.broker.journal.ends()), "matching": len(matching), "page": page, "listed": listed}

    def subscribers_page(self, page: int, limit: int) -> dict[str, Any]:
        """Return page *page* (from 0) of the subscribers; a page has *limit* entries."""
        cursors = (cursor for cursor in self.broker.fanout.cursors if cursor.audience)
        listed = islice(cursors, page * limit, (page + 1) * limit)
        total = sum(tally.subscribers for tally in self.broker.fanout.tallies.values())
        return {"total": total, "page": page, "listed": [_subscriber(cursor) for cursor in listed]}

    def ready(self) -> tuple[bool, str]:
        """Return whether the server accepts messages, so that clients should use it; and the state of the journal."""
        return self.broker.standing.may_write and not self.broker.draining, self.broker.journal.state.value

    def ready_for_readers(self) -> tuple[bool, str]:
        """Return whether readers find every acknowledged record on this server; and the state of the journal.

        A follower of a cluster is ready when it has applied the entries that the leader has announced.
        """
        return self.broker.standing.caught_up, self.broker.journal.state.value

    def journal(self) -> dict[str, Any]:
        """Return the state of the journal, and quantiles of its commits and syncs over the last minute."""
        meters = self.broker.journal.meters
        journal: dict[str, Any] = {"state": self.broker.journal.state.value, "commits": meters.commit_seconds.count}
        journal["write_age"] = round(meters.write_age, 3)
        for name, which in (("commit_bytes", 0), ("commit", 1), ("sync", 2)):
            for percent in (50, 99):
                journal[f"{name}_p{percent}"] = self.sampler.recent_quantile(which, percent / 100)
        status = journal_status(self.broker)
        if status is not None:
            figures = attrs.asdict(
                status, recurse=False, filter=lambda field, _: field.name not in ("meters", "cluster")
            )
            journal |= figures
            journal["written_rate"] = rate = self.sampler.written()
            journal["full_in"] = None if rate is None else time_to_full(status, rate)
            if status.cluster is not None:
                journal["cluster"] = attrs.asdict(status.cluster) | {"summary": summary(status.cluster)}
        return journal

    def _lag(self) -> float | None:
        return self.sampler.samples[-1].lag if self.sampler.samples else None

    def protocols(self, lags: Lags) -> list[dict[str, Any]]:
        """Return counts and rates of each protocol, sorted by name."""
        counters = self.broker.counters
        published, delivered = published_by_protocol(self.broker), delivered_by_protocol(self.broker)
        refused: Counter[str] = Counter()
        for protocol, cause in counters.refusals:
            refused[protocol] += counters.counts[protocol, cause]
        tallies, of_broker = self.broker.fanout.tallies, self.broker.published
        sample = self.sampler.samples[-1] if self.sampler.samples else None
        protocols = []
        for protocol in protocols_of(self.broker):
            protocols.append(
                {
                    "name": protocol,
                    "connections": counters.gauges[protocol, "connections"],
                    "connections_peak": counters.peaks[protocol, "connections"],
                    "connections_total": counters.counts[protocol, "connections"],
                    "acknowledged": of_broker[protocol].publishes if protocol in of_broker else 0,
                    "acknowledge_p50": self.sampler.recent_quantile(protocol, 0.5),
                    "acknowledge_p99": self.sampler.recent_quantile(protocol, 0.99),
                    "publishers": self.sampler.publishers(protocol),
                    **_traffic("published", protocol, published, sample.published if sample else None),
                    **_traffic("delivered", protocol, delivered, sample.delivered if sample else None),
                    "subscribers": tallies[protocol].subscribers if protocol in tallies else 0,
                    "lag": lags.protocols.get(protocol, 0),
                    "stalled": lags.stalled.get(protocol, 0),
                    "refused": refused[protocol],
                }
            )
        return protocols

    def _streams(self, match: str, listed: int) -> Listing:
        """Return the busiest streams, followed by the others in the order of their creation, in steps."""
        matching = yield from _matching(self.broker.journal.ends(), match)
        self.rates.current()
        growth = self.rates.growth
        growing = yield from _matching(growth, match)
        busiest = nlargest(listed, growing, key=lambda stream: growth[stream])
        others = (stream for stream in matching if stream not in growth)
        shown = yield from self._described(islice(chain(busiest, others), listed))
        return {"total": len(self.broker.journal.ends()), "matching": len(matching), "listed": shown}

    def _described(self, streams: Iterable[str]) -> Generator[None, None, list[dict[str, Any]]]:
        """Describe those of *streams* that are not retired, in steps."""
        ends, rate, found = self.broker.journal.ends(), self.rates.current(), list[dict[str, Any]]()
        for stream in streams:
            if stream in ends:
                found.append(self._stream(stream, ends[stream], rate(stream)))
                yield
        return found

    def _stream(self, stream: str, last: int, rate: float | None) -> dict[str, Any]:
        first = self.broker.bounds(stream)[0]
        end = self.ends.of(stream, first, last, bool(rate))
        now = self.sampler.now()
        return {
            "name": stream,
            "first": first,
            "last": last,
            "rate": rate,
            "bytes_rate": self.rates.bytes_rate(stream),
            "bytes": None if end.mean is None else round(end.mean * (last - first + 1)),
            "oldest_age": None if end.oldest is None else max(0.0, now - end.oldest),
            "newest_age": 0.0 if rate else None if end.newest is None else max(0.0, now - end.newest),
            "subscribers": self.broker.fanout.subscribers(stream),
        }

    def _subscriptions(self, listed: int) -> Listing:
        """Return the named subscriptions that are furthest behind, in steps."""
        every = []
        for each in self.broker.named.listed():
            every.append(each)
            yield
        furthest = nlargest(listed, every, key=lambda each: int(str(each.get("lag", 0))))
        return {"total": len(every), "listed": self.work.added(every, furthest)}

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
        refusals = sorted((-counters.counts[key], *key) for key in counters.refusals)
        return [{"protocol": protocol, "cause": cause, "count": -count} for count, protocol, cause in refusals]

    def _last_refusals(self, listed: int) -> list[dict[str, Any]]:
        """Return the last refusal of each protocol, cause and network, the latest first."""
        counters = self.broker.counters
        now = counters.seconds()
        return [
            {
                "protocol": protocol,
                "cause": cause,
                "network": network,
                "peer": last.peer,
                "detail": last.detail,
                "ago": round(now - last.at, 3),
                "count": last.count,
            }
            for (protocol, cause, network), last in islice(reversed(counters.recent.items()), listed)
        ]

    def _events(self) -> list[dict[str, Any]]:
        """Return the counted events other than refusals and connections, as in ``fyrehose_events_total``."""
        counters = self.broker.counters
        return [
            {"protocol": protocol, "event": event, "count": count}
            for (protocol, event), count in sorted(counters.counts.items())
            if count and event != "connections" and not counters.counts_refusals((protocol, event))
        ]


def protocols_of(broker: Broker) -> list[str]:
    """Return the sorted names of the protocols with a listener, and of those that have counted anything."""
    counters = broker.counters
    counted = {protocol for protocol, _ in [*counters.known, *counters.counts, *counters.gauges]}
    return sorted((counted | published_by_protocol(broker).keys() | broker.fanout.tallies.keys()) - {""})


def summary(member: ClusterStatus) -> str:
    """Return the role of a server in its cluster, its leader and its lag, and what is wrong with the shared log."""
    log = member.log
    return _role(member) + (f"; the shared log: {log.problem}; {log.remedy}" if log.problem else "")


def _role(member: ClusterStatus) -> str:
    epoch = f"epoch {member.epoch}"
    if member.role == "leader":
        return f"{member.name} leads, {epoch}"
    if member.role == "candidate":
        return f"{member.name} is taking over, {epoch}"
    if member.role == "stopped":
        return f"{member.name} has stopped replicating, {epoch}"
    if not member.leader:
        return f"{member.name} follows, no leader is known"
    behind = f"{shown_size(member.behind)} behind" if member.behind else "not behind"
    return f"{member.name} follows {member.leader}, {epoch}, {behind}, leader heard {member.silent:.1f} s ago"


def time_to_full(status: JournalStatus, rate: float) -> float | None:
    """Return in how many seconds the disk will be full if the journal grows by *rate* bytes per second.

    :return: None if the journal does not grow, or retention deletes segments before the disk is full
    """
    if status.free is None or rate <= 0:
        return None
    room = max(0, status.free - status.min_free)
    limits: list[float] = [status.keep_bytes] if status.keep_bytes else []
    limits += [rate * status.keep_age] if status.keep_age else []
    if limits and min(limits) - status.size < room:
        return None
    return room / rate


def _subscriber(cursor: Cursor) -> dict[str, Any]:
    protocol, peer = cursor.subscriber
    return {
        "protocol": protocol,
        "peer": peer,
        "clients": cursor.audience,
        "stream": cursor.stream,
        "position": cursor.position,
        "lag": cursor.lag,
        "delivered": cursor.delivered,
        "paused": cursor.paused,
        "closes_in": cursor.closes_in,
    }


def _traffic(kind: str, protocol: str, totals: Totals, rates: Rates | None) -> dict[str, float | None]:
    """Return totals and rates, in messages and bytes, of what was published or delivered with *protocol*.

    :param kind: ``published`` or ``delivered``
    :param rates: the rates; None if they are not known yet
    """
    messages, size = totals.get(protocol, (0, 0))
    rate, bytes_rate = (None, None) if rates is None else rates.get(protocol, (0.0, 0.0))
    found = {"messages": messages, "bytes": size, "rate": rate, "bytes_rate": bytes_rate}
    return {f"{kind}_{name}": value for name, value in found.items()}


def _matching(streams: Mapping[str, int], match: str) -> Generator[None, None, list[str]]:
    """Return the names among *streams*, which may change meanwhile, that contain *match* in any case, in steps."""
    names, text, found = list(streams), match.lower(), list[str]()
    for at in range(0, len(names) if match else 0, MOST_COMPARED):
        found += (name for name in names[at : at + MOST_COMPARED] if text in name.lower())
        yield
    return found if match else names


def _memory() -> dict[str, int]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    try:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        resident = usage.ru_maxrss << 10
    return {"resident": resident, "peak": usage.ru_maxrss << 10}
