"""The state of the server for Prometheus: text in its own format, made when it is asked for.

Labels are protocols and causes, which are names from our code, and streams: as many of these as were allowed, those
that were made first, so that a series once begun goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import attrs
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from fyrehose import __version__, kernels
from fyrehose.admin.sampling import meters_of
from fyrehose.admin.status import Status, journal_status
from fyrehose.core.broker import Broker
from fyrehose.interfaces import JournalState
from fyrehose.observe.meters import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


#: Each family by protocol, and what it is called in the status.
_PROTOCOLS: tuple[tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, str], ...] = (
    (CounterMetricFamily, "fyrehose_published_messages", "Messages that became durable.", "published_messages"),
    (CounterMetricFamily, "fyrehose_published_bytes", "Their payload.", "published_bytes"),
    (CounterMetricFamily, "fyrehose_acknowledged_publishes", "Publishes, of one or more of them.", "acknowledged"),
    (CounterMetricFamily, "fyrehose_delivered_messages", "Messages given to subscribers.", "delivered_messages"),
    (CounterMetricFamily, "fyrehose_delivered_bytes", "Their payload.", "delivered_bytes"),
    (CounterMetricFamily, "fyrehose_connections", "Connections there have been.", "connections_total"),
    (GaugeMetricFamily, "fyrehose_connections_open", "Connections there are.", "connections"),
    (GaugeMetricFamily, "fyrehose_connections_peak", "The most there ever were.", "connections_peak"),
    (GaugeMetricFamily, "fyrehose_subscribers", "Subscriptions there are.", "subscribers"),
    (GaugeMetricFamily, "fyrehose_subscriber_lag_messages", "How far the furthest is behind.", "lag"),
)


def registry(status: Status, streams: int) -> CollectorRegistry:
    """What is exported: the server, and the process that it is."""
    made = CollectorRegistry()
    made.register(Exporter(status, streams))
    for collector in (ProcessCollector, GCCollector, PlatformCollector):
        collector(registry=made)
    return made


def text(registry: CollectorRegistry) -> bytes:
    """All of it, as it is now."""
    return bytes(generate_latest(registry))


@attrs.define(eq=False)
class Exporter:
    """A collector of prometheus_client's.

    :ivar streams: how many streams have series of their own
    """

    status: Status
    streams: int

    @property
    def broker(self) -> Broker:
        return self.status.broker

    def collect(self) -> Iterator[Metric]:
        """Every family, as it is now."""
        yield InfoMetricFamily(
            "fyrehose_build",
            "What is running.",
            {"version": __version__, "kernels": "native" if kernels.NATIVE else "python"},
        )
        yield from self._protocols()
        yield from self._refusals()
        yield from self._journal()
        yield from self._streams()
        budget = self.broker.budget
        yield _gauge(
            "fyrehose_memory_budget_used_bytes",
            "What peers have sent in and is held, and their subscriptions.",
            budget.used,
        )
        yield _gauge("fyrehose_memory_budget_bytes", "How much that may be.", budget.limit)
        yield _histogram("fyrehose_reactor_lag_seconds", "How late timers were.", self.status.sampler.lag)

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that it is not collected to find out."""
        return ()

    def _protocols(self) -> Iterator[Metric]:
        protocols = self.status.protocols(self.status.sampler.census.lags())
        for family, name, about, key in _PROTOCOLS:
            made = family(name, about, labels=("protocol",))
            for protocol in protocols:
                made.add_metric((protocol["name"],), protocol[key])
            yield made

    def _refusals(self) -> Iterator[Metric]:
        counters = self.broker.counters
        refused = CounterMetricFamily("fyrehose_refused", "Refusals and drops.", labels=("protocol", "cause"))
        other = CounterMetricFamily("fyrehose_events", "What else is counted.", labels=("protocol", "event"))
        for (protocol, what), count in sorted(counters.counts.items()):
            if (protocol, what) in counters.refusals:
                refused.add_metric((protocol, what), count)
            elif what != "connections":  # they have families of their own
                other.add_metric((protocol, what), count)
        yield refused
        yield other

    def _journal(self) -> Iterator[Metric]:
        journal, meters = self.broker.journal, meters_of(self.broker)
        state = GaugeMetricFamily("fyrehose_journal_state", "1 for the state that it is in.", labels=("state",))
        for each in JournalState:
            state.add_metric((each.value,), int(journal.state is each))
        yield state
        yield _histogram("fyrehose_journal_commit_bytes", "The size of each group commit.", meters.commit_bytes)
        yield _histogram("fyrehose_journal_commit_seconds", "How long each took.", meters.commit_seconds)
        yield _histogram("fyrehose_journal_sync_seconds", "How long each sync took.", meters.sync_seconds)
        status = journal_status(self.broker)
        if status is None:
            return
        yield _gauge("fyrehose_journal_position_bytes", "Where the log ends.", status.position)
        yield _gauge("fyrehose_journal_durable_bytes", "Up to where it is on disk.", status.durable)
        yield _gauge("fyrehose_journal_segments", "Files of the log.", status.segments)
        yield _gauge("fyrehose_journal_size_bytes", "What they hold.", status.size)
        if status.free is not None:
            yield _gauge("fyrehose_journal_free_bytes", "What its disk has left.", status.free)
        broken = CounterMetricFamily(
            "fyrehose_journal_broken_holds", "Retention holds that covered segments when they were deleted."
        )
        broken.add_metric((), status.broken_holds)
        yield broken

    def _streams(self) -> Iterator[Metric]:
        ends = self.broker.journal.ends()
        last = GaugeMetricFamily("fyrehose_stream_last_seq", "The number of its last message.", labels=("stream",))
        first = GaugeMetricFamily("fyrehose_stream_first_seq", "That of the oldest that is kept.", labels=("stream",))
        readers = GaugeMetricFamily("fyrehose_stream_subscribers", "Subscriptions to it.", labels=("stream",))
        behind = GaugeMetricFamily(
            "fyrehose_stream_lag_messages", "How far the furthest is behind.", labels=("stream",)
        )
        lags = self.status.sampler.census.lags().streams
        for stream in islice(ends, self.streams):
            last.add_metric((stream,), ends[stream])
            first.add_metric((stream,), self.broker.bounds(stream)[0])
            readers.add_metric((stream,), self.broker.subscribers(stream))
            behind.add_metric((stream,), lags.get(stream, 0))
        yield _gauge("fyrehose_streams", "Streams there are.", len(ends))
        yield _gauge(
            "fyrehose_streams_unlisted", "Of these, without series of their own.", max(0, len(ends) - self.streams)
        )
        yield from (last, first, readers, behind)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value)


def _histogram(name: str, about: str, histogram: Histogram) -> Metric:
    buckets, seen = [], 0
    for bound, count in zip([*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True):
        seen += count
        buckets.append((bound, float(seen)))
    made = HistogramMetricFamily(name, about)
    made.add_metric((), buckets, histogram.total)
    return made
