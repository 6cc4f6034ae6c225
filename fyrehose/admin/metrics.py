"""Export the state of the server in the text format of Prometheus.

Labels are protocols and causes, which are names from our code, and streams.  A limited number of streams has series of
its own: those that were created first, so that a new stream never takes the place of an existing series.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import attrs
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from fyrehose import __version__, kernels
from fyrehose.admin.sampling import journal_status, published_by_protocol
from fyrehose.admin.status import Status, cluster_status
from fyrehose.broker.broker import Broker
from fyrehose.interfaces import JournalState
from fyrehose.observe.meters import SECONDS, ClusterStatus, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SUBSCRIPTION = ("subscription",)
#: The metrics by protocol: type, name, help, and the key in :meth:`~fyrehose.admin.status.Status.protocols`.
_PROTOCOLS: tuple[tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, str], ...] = (
    (CounterMetricFamily, "fyrehose_published_messages", "Messages published and durable.", "published_messages"),
    (CounterMetricFamily, "fyrehose_published_bytes", "Payload bytes published and durable.", "published_bytes"),
    (CounterMetricFamily, "fyrehose_acknowledged_publishes", "Publishes acknowledged.", "acknowledged"),
    (CounterMetricFamily, "fyrehose_delivered_messages", "Messages delivered to subscribers.", "delivered_messages"),
    (CounterMetricFamily, "fyrehose_delivered_bytes", "Payload bytes delivered to subscribers.", "delivered_bytes"),
    (CounterMetricFamily, "fyrehose_connections", "Client connections accepted.", "connections_total"),
    (GaugeMetricFamily, "fyrehose_connections_open", "Open client connections.", "connections"),
    (GaugeMetricFamily, "fyrehose_connections_peak", "Highest number of open client connections.", "connections_peak"),
    (GaugeMetricFamily, "fyrehose_publishers", "Producers that published in the last minute or two.", "publishers"),
    (GaugeMetricFamily, "fyrehose_subscribers", "Live subscribers.", "subscribers"),
    (GaugeMetricFamily, "fyrehose_subscriber_lag_messages", "Lag of the subscriber furthest behind.", "lag"),
    (
        GaugeMetricFamily,
        "fyrehose_subscribers_stalled",
        "Subscribers that do not read what they are sent, and are disconnected unless they do.",
        "stalled",
    ),
)

#: The metrics of shared subscriptions: key in the list of subscriptions, and help.
_SHARED = {
    "in_flight": "Messages that are leased.",
    "waiting": "Messages that were looked at and wait to be leased again, for their key, or for a worker.",
    "delayed": "Messages that were returned, and wait for their delay.",
    "oldest_unsettled_seconds": "Age of the oldest message that is not settled, dead-lettered or expired.",
    "window_full": "1 if no new message is leased, because the window is full of open ones.",
    "settled_total": "Messages that were settled.",
    "dead_total": "Messages that became dead letters.",
    "expired_total": "Messages that retention deleted before they were settled.",
    "redelivered_total": "Leases of messages that had been leased before, since the start of the server.",
    "late_refused_total": "Records that a request could not settle, return or extend, since the start of the server.",
}


def registry(status: Status, streams: int) -> CollectorRegistry:
    """Return a registry with the metrics of the server, its process and its Python interpreter.

    :param streams: how many streams have series of their own
    """
    collectors = CollectorRegistry()
    collectors.register(Exporter(status, streams))
    for collector in (ProcessCollector, GCCollector, PlatformCollector):
        collector(registry=collectors)
    return collectors


def text(registry: CollectorRegistry) -> bytes:
    """Return the current value of every metric of *registry* in the text format of Prometheus."""
    return bytes(generate_latest(registry))


@attrs.define(eq=False)
class Exporter:
    """Collect the metrics of the server for ``prometheus_client``.

    :ivar streams: how many streams have series of their own
    """

    status: Status
    streams: int

    @property
    def broker(self) -> Broker:
        return self.status.broker

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its current value."""
        yield InfoMetricFamily(
            "fyrehose_build",
            "Version of Fyrehose, and whether its kernels are native or pure Python.",
            {"version": __version__, "kernels": "native" if kernels.NATIVE else "python"},
        )
        yield from self._protocols()
        yield from self._refusals()
        yield from self._journal()
        yield from self._cluster()
        yield from self._streams()
        yield from self._subscriptions()
        budget = self.broker.budget
        yield _gauge(
            "fyrehose_memory_budget_used_bytes",
            "Memory charged to the budget: data buffered for peers, and their subscriptions.",
            budget.used,
        )
        yield _gauge("fyrehose_memory_budget_bytes", "Limit of the memory budget.", budget.limit)
        yield _histogram("fyrehose_reactor_lag_seconds", "Delay of timers in the reactor.", self.status.sampler.lag)
        stalls = CounterMetricFamily("fyrehose_reactor_stalls", "Turns of the reactor that took more than 2 s.")
        stalls.add_metric((), self.broker.stalls.count)
        yield stalls

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not collect the metrics to learn their names."""
        return ()

    def _protocols(self) -> Iterator[Metric]:
        protocols = self.status.protocols(self.status.sampler.subscriber_lags.lags())
        for kind, name, description, key in _PROTOCOLS:
            family = kind(name, description, labels=("protocol",))
            for protocol in protocols:
                family.add_metric((protocol["name"],), protocol[key])
            yield family
        latency = HistogramMetricFamily(
            "fyrehose_acknowledge_seconds", "Time until a publish is durable.", labels=("protocol",)
        )
        published, nothing = published_by_protocol(self.broker), Histogram(SECONDS)
        for name in sorted({*published, *(protocol for protocol, _ in self.broker.counters.known)}):
            latency.add_metric(
                (name,), *_buckets(self.broker.published[name].seconds if name in published else nothing)
            )
        yield latency

    def _refusals(self) -> Iterator[Metric]:
        counters = self.broker.counters
        refused = CounterMetricFamily(
            "fyrehose_refused", "Requests, messages and connections refused or dropped.", labels=("protocol", "cause")
        )
        other = CounterMetricFamily("fyrehose_events", "Other events counted.", labels=("protocol", "event"))
        for protocol, event in sorted({*counters.counts, *counters.known}):
            count = counters.counts[protocol, event]
            if counters.counts_refusals((protocol, event)):
                refused.add_metric((protocol, event), count)
            elif event != "connections":  # these are counted in fyrehose_connections_total
                other.add_metric((protocol, event), count)
        yield refused
        yield other

    def _journal(self) -> Iterator[Metric]:
        journal, meters = self.broker.journal, self.broker.journal.meters
        state = GaugeMetricFamily("fyrehose_journal_state", "1 for the journal's current state.", labels=("state",))
        for each in JournalState:
            state.add_metric((each.value,), int(journal.state is each))
        yield state
        yield _histogram("fyrehose_journal_commit_bytes", "Size of group commits.", meters.commit_bytes)
        yield _histogram("fyrehose_journal_commit_seconds", "Duration of group commits.", meters.commit_seconds)
        yield _histogram("fyrehose_journal_sync_seconds", "Duration of syncs of a segment.", meters.sync_seconds)
        status = journal_status(self.broker)
        if status is None:
            return
        yield _gauge("fyrehose_journal_position_bytes", "Position of the journal's end.", status.position)
        yield _gauge("fyrehose_journal_durable_bytes", "Position up to which the journal is durable.", status.durable)
        yield _gauge("fyrehose_journal_segments", "Segment files of the journal.", status.segments)
        yield _gauge("fyrehose_journal_size_bytes", "Bytes in the segment files.", status.size)
        if status.free is not None:
            yield _gauge("fyrehose_journal_free_bytes", "Free space of the journal's disk.", status.free)
        overrun = CounterMetricFamily(
            "fyrehose_journal_overrun_subscriptions",
            "Named subscriptions that had not read segments when retention deleted them.",
        )
        overrun.add_metric((), status.overrun_subscriptions)
        yield overrun
        yield _gauge(
            "fyrehose_journal_damaged_segments", "Segments in which reading has found damage.", len(status.damage)
        )

    def _cluster(self) -> Iterator[Metric]:
        status = cluster_status(self.broker)
        if status is None:
            return
        role = GaugeMetricFamily("fyrehose_cluster_role", "1 for the server's current role.", labels=("role",))
        for each in ("follower", "candidate", "leader", "stopped"):
            role.add_metric((each,), int(status.role == each))
        yield role
        yield _gauge("fyrehose_cluster_epoch", "Number of the last take-over that counted.", status.epoch)
        yield _gauge("fyrehose_cluster_behind_bytes", "Bytes of the leader's journal that are missing.", status.behind)
        yield _gauge("fyrehose_cluster_leader_silent_seconds", "Time since the leader was heard.", status.silent)
        yield _gauge("fyrehose_cluster_log_bytes", "Bytes in the shared log; 0 unless it leads.", status.log_size)
        unconfirmed = "Bytes acknowledged that the shared log has not accepted."
        yield _gauge("fyrehose_cluster_unconfirmed_bytes", unconfirmed, status.unconfirmed)
        if status.role == "leader":
            yield from _members(status)
        takeovers = CounterMetricFamily("fyrehose_cluster_takeovers", "Times that this process became the leader.")
        takeovers.add_metric((), status.takeovers)
        yield takeovers

    def _streams(self) -> Iterator[Metric]:
        ends = self.broker.journal.ends()
        last = _by_stream("fyrehose_stream_last_seq", "Number of the stream's last message.")
        first = _by_stream("fyrehose_stream_first_seq", "Number of the oldest message retained.")
        subscribers = _by_stream("fyrehose_stream_subscribers", "Live subscribers to the stream.")
        lag = _by_stream("fyrehose_stream_lag_messages", "Lag of the stream's subscriber furthest behind.")
        lags = self.status.sampler.subscriber_lags.lags().streams
        for stream in islice(ends, self.streams):
            last.add_metric((stream,), ends[stream])
            first.add_metric((stream,), self.broker.bounds(stream)[0])
            subscribers.add_metric((stream,), self.broker.subscribers(stream))
            lag.add_metric((stream,), lags.get(stream, 0))
        yield _gauge("fyrehose_streams", "Streams.", len(ends))
        yield _gauge(
            "fyrehose_streams_unlisted", "Streams without series of their own.", max(0, len(ends) - self.streams)
        )
        yield from (last, first, subscribers, lag)

    def _subscriptions(self) -> Iterator[Metric]:
        """Yield the metrics of named subscriptions; at most ``streams`` of them have series of their own."""
        every = self.broker.named.listed()
        listed = [each for each in every if each["kind"] != "files"]
        yield _gauge("fyrehose_subscriptions", "Named subscriptions.", len(listed))
        for name, description, key in (
            ("fyrehose_subscription_position", "Number of the last acknowledged message.", "position"),
            ("fyrehose_subscription_lag_messages", "Messages that are not acknowledged.", "lag"),
            ("fyrehose_subscription_lag_seconds", "Age of the oldest message not acknowledged.", "lag_seconds"),
        ):
            family = GaugeMetricFamily(name, description, labels=("subscription", "stream"))
            for each in listed[: self.streams]:
                if (value := each.get(key)) is not None:  # A subscription of a pattern has no single position.
                    family.add_metric((str(each["name"]), str(each["stream"])), float(str(value)))
            yield family
        yield from _shared([each for each in listed if each["kind"] == "shared"][: self.streams])
        behind = GaugeMetricFamily(
            "fyrehose_subscription_lag_bytes",
            "Bytes of the journal that a program that reads the files has not read.",
            labels=_SUBSCRIPTION,
        )
        age = GaugeMetricFamily(
            "fyrehose_subscription_age_seconds",
            "Time since such a program updated its subscription.",
            labels=_SUBSCRIPTION,
        )
        now = self.status.sampler.now()
        for each in every:
            if each["kind"] == "files":
                behind.add_metric((str(each["name"]),), float(str(each["behind_bytes"])))
                age.add_metric((str(each["name"]),), max(0.0, now - float(str(each["active"])) / 1e6))
        yield from (behind, age)


def _members(status: ClusterStatus) -> Iterator[Metric]:
    """Yield how far the other servers of the cluster are behind this one, which leads."""
    others = [each for each in status.members if each.name != status.name]
    lacks = "Bytes of the leader's journal that this server lacks."
    oldest = "Time for which this server has lacked the oldest of them."
    for name, description, values in (
        ("behind_bytes", lacks, [each.behind for each in others]),
        ("behind_messages", "Messages that this server lacks, about.", [each.records for each in others]),
        ("behind_seconds", oldest, [each.seconds for each in others]),
        ("silent_seconds", "Time since this server was heard.", [each.heard for each in others]),
    ):
        family = GaugeMetricFamily(f"fyrehose_cluster_member_{name}", description, labels=("member",))
        for each, value in zip(others, values, strict=True):
            if value is not None:  # None: the server lacks more than the leader remembers.
                family.add_metric((each.name,), value)
        yield family


def _shared(listed: Sequence[Mapping[str, object]]) -> Iterator[Metric]:
    """Yield the metrics of shared subscriptions."""
    for key, description in _SHARED.items():
        kind = CounterMetricFamily if key.endswith("_total") else GaugeMetricFamily
        family = kind(f"fyrehose_subscription_{key}", description, labels=("subscription", "stream"))
        for each in listed:
            if isinstance(value := each[key], int | float):  # An age may not be known yet.
                family.add_metric((str(each["name"]), str(each["stream"])), float(value))
        yield family


def _gauge(name: str, description: str, value: float) -> Metric:
    return GaugeMetricFamily(name, description, value)


def _by_stream(name: str, description: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, description, labels=("stream",))


def _histogram(name: str, description: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, description)
    family.add_metric((), *_buckets(histogram))
    return family


def _buckets(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """Return the buckets of *histogram*, and the sum of its observations."""
    buckets, seen = [], 0
    for bound, count in zip([*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True):
        seen += count
        buckets.append((bound, float(seen)))
    return buckets, histogram.total
