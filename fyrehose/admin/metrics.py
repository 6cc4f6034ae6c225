"""Export the state of the server in the text format of Prometheus.

Labels are protocols and causes, which are names from our code, and streams.  Only a limited number of streams have time
series of their own: those that were created first, so that a new stream never replaces an existing series.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from typing import Any

import attrs
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from fyrehose import __version__, kernels
from fyrehose.admin.sampling import journal_status, published_by_protocol
from fyrehose.admin.status import Status
from fyrehose.broker.broker import Broker
from fyrehose.interfaces import JournalState
from fyrehose.observe.exporting import families
from fyrehose.observe.meters import SECONDS, ClusterStatus, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: The metrics by protocol: type, name without ``fyrehose_``, help, and the key in the status of a protocol.
_PROTOCOLS: tuple[tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, str], ...] = (
    (CounterMetricFamily, "published_messages", "Messages published and durable.", "published_messages"),
    (CounterMetricFamily, "published_bytes", "Payload bytes published and durable.", "published_bytes"),
    (CounterMetricFamily, "acknowledged_publishes", "Publishes acknowledged.", "acknowledged"),
    (CounterMetricFamily, "delivered_messages", "Messages delivered to subscribers.", "delivered_messages"),
    (CounterMetricFamily, "delivered_bytes", "Payload bytes delivered to subscribers.", "delivered_bytes"),
    (CounterMetricFamily, "connections", "Client connections accepted.", "connections_total"),
    (GaugeMetricFamily, "connections_open", "Open client connections.", "connections"),
    (GaugeMetricFamily, "connections_peak", "Highest number of open client connections.", "connections_peak"),
    (GaugeMetricFamily, "publishers", "Producers that published in the last minute or two.", "publishers"),
    (GaugeMetricFamily, "subscribers", "Live subscribers.", "subscribers"),
    (GaugeMetricFamily, "subscriber_lag_messages", "Lag of the subscriber furthest behind.", "lag"),
    (
        GaugeMetricFamily,
        "subscribers_stalled",
        "Subscribers that do not read what they are sent, and are disconnected unless they do.",
        "stalled",
    ),
)

#: The metrics of all named subscriptions: key in the list of subscriptions, name, and help.
_NAMED = (
    ("position", "position", "Number of the last acknowledged message."),
    ("lag", "lag_messages", "Messages that are not acknowledged."),
    ("lag_seconds", "lag_seconds", "Age of the oldest message not acknowledged."),
)
#: The metrics of shared subscriptions: key in the list of subscriptions, and help.
_SHARED = {
    "in_flight": "Messages that are leased.",
    "waiting": "Messages that were looked at and wait to be leased again, for their key, or for a worker.",
    "delayed": "Messages that were returned, and wait for their delay.",
    "held_until_timestamp_seconds": "Until when messages that had workers before a start wait for them; 0: none do.",
    "oldest_unsettled_seconds": "Age of the oldest message that is not settled, dead-lettered or expired.",
    "window_full": "1 if no new message is leased, because the window is full of open ones.",
    "settled_total": "Messages that were settled.",
    "dead_total": "Messages that became dead letters.",
    "expired_total": "Messages that retention deleted before they were settled.",
    "redelivered_total": "Leases of messages that had been leased before, since the start of the server.",
    "late_refused_total": "Records that a request could not settle, return or extend, since the start of the server.",
}

#: The metrics of the writers of lumberjack: type, name without ``fyrehose_writer_``, help, and the key in the status.
_WRITERS: tuple[tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, str], ...] = (
    (CounterMetricFamily, "events", "Events that the writer has sent.", "events"),
    (CounterMetricFamily, "refused", "Events and connections of the writer that were refused.", "refused"),
    (CounterMetricFamily, "route_misses", "Events of the writer that no route fits.", "missed"),
    (GaugeMetricFamily, "connections", "Open connections of the writer.", "connections"),
    (GaugeMetricFamily, "acknowledged_age_seconds", "Time since its last acknowledgement.", "acknowledged_ago"),
)

#: Replaces characters in names of peers that control a terminal, or at which a reader of the metrics may end a line or
#: the text.  The backslash is replaced as well, so that two names never become one.
_VISIBLE = str.maketrans(
    {"\\": r"\\"}
    | {chr(each): rf"\x{each:02x}" for each in (*range(0x20), *range(0x7F, 0xA0))}
    | {chr(each): rf"\u{each:x}" for each in (0x2028, 0x2029)}
)


@attrs.frozen
class _One:
    """A registry that has one metric, as ``prometheus_client`` reads it."""

    metric: Metric

    def collect(self) -> list[Metric]:
        return [self.metric]


@attrs.define(eq=False)
class Exporter:
    """The metrics of the server, its process and its Python interpreter.

    :ivar streams: how many streams have series of their own
    """

    status: Status
    streams: int
    _others: CollectorRegistry = attrs.field(factory=CollectorRegistry, init=False)

    def __attrs_post_init__(self) -> None:
        for collector in (ProcessCollector, GCCollector, PlatformCollector):
            collector(registry=self._others)

    @property
    def broker(self) -> Broker:
        return self.status.broker

    def text(self) -> Generator[None, None, bytes]:
        """Return the current value of every metric in the text format of Prometheus, in steps."""
        found = []
        for metric in chain(self._collect(), self._others.collect()):
            if metric is not None:
                found.append(generate_latest(_One(metric)))
            yield
        return b"".join(found)

    def _collect(self) -> Iterator[Metric | None]:
        """Yield every metric with its current value, and None after other steps."""
        version = {"version": __version__, "kernels": "native" if kernels.NATIVE else "python"}
        about = "Version of Fyrehose, and whether its kernels are native or pure Python."
        yield InfoMetricFamily("fyrehose_build", about, version)
        yield from self._protocols()
        yield from self._events()
        yield from self._journal()
        yield from self._streams()
        yield from self._subscriptions()
        yield from self._writers()
        budget, stalls = self.broker.budget, self.broker.stalls.count
        used = "Memory charged to the budget: data buffered for peers, and their subscriptions."
        gauges = {
            "memory_budget_used_bytes": (used, budget.used + budget.unread.used),
            "memory_budget_bytes": ("Limit of the memory budget.", budget.limit),
        }
        yield from families(gauges, {"reactor_stalls": ("Turns of the reactor that took more than 2 s.", stalls)})
        yield _histogram("reactor_lag_seconds", "Delay of timers in the reactor.", {(): self.status.sampler.lag})

    def _protocols(self) -> Iterator[Metric]:
        protocols = self.status.protocols(self.status.sampler.subscriber_lags.lags())
        for kind, name, description, key in _PROTOCOLS:
            values = {(protocol["name"],): protocol[key] for protocol in protocols}
            yield _family(kind, name, description, ("protocol",), values)
        published, nothing = published_by_protocol(self.broker), Histogram(SECONDS)
        names = sorted({*published, *(protocol for protocol, _ in self.broker.counters.known)})
        seconds = {(name,): self.broker.published[name].seconds if name in published else nothing for name in names}
        yield _histogram("acknowledge_seconds", "Time until a publish is durable.", seconds, ("protocol",))

    def _events(self) -> Iterator[Metric]:
        counters = self.broker.counters
        counts = {event: counters.counts[event] for event in sorted({*counters.counts, *counters.known})}
        refused = {event: count for event, count in counts.items() if counters.counts_refusals(event)}
        # Connections are left out, because they are counted in fyrehose_connections_total.
        others = {each: count for each, count in counts.items() if each not in refused and each[1] != "connections"}
        text = "Requests, messages and connections refused or dropped."
        yield _family(CounterMetricFamily, "refused", text, ("protocol", "cause"), refused)
        yield _family(CounterMetricFamily, "events", "Other events counted.", ("protocol", "event"), others)

    def _journal(self) -> Iterator[Metric]:
        journal, meters = self.broker.journal, self.broker.journal.meters
        states = {(each.value,): int(journal.state is each) for each in JournalState}
        yield _family(GaugeMetricFamily, "journal_state", "1 for the journal's current state.", ("state",), states)
        yield _histogram("journal_commit_bytes", "Size of group commits.", {(): meters.commit_bytes})
        yield _histogram("journal_commit_seconds", "Duration of group commits.", {(): meters.commit_seconds})
        yield _histogram("journal_sync_seconds", "Duration of syncs of a segment.", {(): meters.sync_seconds})
        age = "Time that the oldest write has waited for the disk; 0: none waits."
        yield from families({"journal_write_age_seconds": (age, meters.write_age)}, {})
        status = journal_status(self.broker)
        if status is None:
            return
        gauges = {
            "journal_position_bytes": ("Position of the journal's end.", status.position),
            "journal_durable_bytes": ("Position up to which the journal is durable.", status.durable),
            "journal_segments": ("Segment files of the journal.", status.segments),
            "journal_size_bytes": ("Bytes in the segment files.", status.size),
            "journal_damaged_segments": ("Segments in which reading has found damage.", len(status.damage)),
        }
        if status.free is not None:
            gauges["journal_free_bytes"] = ("Free space of the journal's disk.", status.free)
        overrun = "Named subscriptions that had not read segments when retention deleted them."
        yield from families(gauges, {"journal_overrun_subscriptions": (overrun, status.overrun_subscriptions)})
        if status.cluster is not None:
            yield from self._cluster(status.cluster)

    def _cluster(self, status: ClusterStatus) -> Iterator[Metric]:
        roles = {(each,): int(status.role == each) for each in ("follower", "candidate", "leader", "stopped")}
        yield _family(GaugeMetricFamily, "cluster_role", "1 for the server's current role.", ("role",), roles)
        gauges = {
            "cluster_epoch": ("Number of the last take-over that counted.", status.epoch),
            "cluster_behind_bytes": ("Bytes of the leader's journal that are missing.", status.behind),
            "cluster_leader_silent_seconds": ("Time since the leader was heard.", status.silent),
            "cluster_log_bytes": ("Bytes in the shared log; 0 unless it leads.", status.log_size),
            "cluster_log_copies": ("NATS servers that have the whole shared log.", status.log.copies),
            "cluster_log_replicas": ("NATS servers that should have it.", status.log.replicas),
        }
        lags, lacks = {(each.name,): each.lag for each in status.nats}, "Entries that a NATS server lacks."
        yield _family(GaugeMetricFamily, "cluster_nats_lag_entries", lacks, ("nats",), lags)
        takeovers = ("Times that this process became the leader.", status.takeovers)
        yield from families(gauges, {"cluster_takeovers": takeovers})
        if status.role == "leader":
            yield from _members(status)

    def _streams(self) -> Iterator[Metric]:
        ends = self.broker.journal.ends()
        lags = self.status.sampler.subscriber_lags.lags().streams
        unlisted = max(0, len(ends) - self.streams)
        streams_text = "Streams without series of their own."
        yield from families({"streams": ("Streams.", len(ends)), "streams_unlisted": (streams_text, unlisted)}, {})
        for name, text, value in (
            ("last_seq", "Number of the stream's last message.", ends.__getitem__),
            ("first_seq", "Number of the oldest message retained.", lambda stream: self.broker.bounds(stream)[0]),
            ("subscribers", "Live subscribers to the stream.", self.broker.fanout.subscribers),
            ("lag_messages", "Lag of the stream's subscriber furthest behind.", lambda stream: lags.get(stream, 0)),
        ):
            values = {(stream,): value(stream) for stream in islice(ends, self.streams)}
            yield _family(GaugeMetricFamily, f"stream_{name}", text, ("stream",), values)

    def _subscriptions(self) -> Iterator[Metric | None]:
        """Yield the metrics of named subscriptions; at most ``streams`` of them have series of their own."""
        every = []
        for each in self.broker.named.listed():
            every.append(each)
            yield None
        listed = [each for each in every if each["kind"] != "files"]
        yield from families({"subscriptions": ("Named subscriptions.", len(listed))}, {})
        for key, name, text in _NAMED:
            yield _of_subscriptions(name, text, key, listed[: self.streams])
        shared = [
            {**each, "held_until_timestamp_seconds": int(str(each["held_until"] or 0)) / 1e6}
            for each in listed
            if each["kind"] == "shared"
        ][: self.streams]
        for key, text in _SHARED.items():
            yield _of_subscriptions(key, text, key, shared)
        files, now = [each for each in every if each["kind"] == "files"], self.broker.record_time()
        behind = {(str(each["name"]),): float(str(each["behind_bytes"])) for each in files}
        age = {(str(each["name"]),): max(0.0, now - float(str(each["active"]))) / 1e6 for each in files}
        for name, text, values in (
            ("lag_bytes", "Bytes of the journal that a program that reads the files has not read.", behind),
            ("age_seconds", "Time since such a program updated its subscription, or the server started.", age),
        ):
            yield _family(GaugeMetricFamily, f"subscription_{name}", text, ("subscription",), values)

    def _writers(self) -> Iterator[Metric]:
        """Yield the metrics of the writers of lumberjack; the latest ``streams`` of them have series of their own."""
        writers = self.broker.counters.writers
        listed = writers.listed()[: self.streams]
        yield from families({"writers": ("Writers that are remembered.", len(writers))}, {})
        about = {(each["name"], each["agent"]): 1 for each in listed}
        yield _family(GaugeMetricFamily, "writer_info", "Beat and version of a writer.", ("writer", "agent"), about)
        for kind, name, text, key in _WRITERS:
            values = {(each["name"],): each[key] for each in listed if each[key] is not None}
            yield _family(kind, f"writer_{name}", text, ("writer",), values)


def _members(status: ClusterStatus) -> Iterator[Metric]:
    """Yield how far the other servers of the cluster are behind this one, which leads."""
    others = [each for each in status.members if each.name != status.name]
    for name, text, field in (
        ("behind_bytes", "Bytes of the leader's journal that this server lacks.", "behind"),
        ("behind_messages", "Messages that this server lacks, about.", "records"),
        ("behind_seconds", "Time for which this server has lacked the oldest of them.", "seconds"),
        ("silent_seconds", "Time since this server was heard.", "heard"),
    ):
        found = {(each.name,): attrs.asdict(each)[field] for each in others}
        # A value is None if the server lacks records from before the leader's oldest sample.
        values = {labels: value for labels, value in found.items() if value is not None}
        yield _family(GaugeMetricFamily, f"cluster_member_{name}", text, ("member",), values)


def _of_subscriptions(name: str, text: str, key: str, listed: Sequence[Mapping[str, object]]) -> Metric:
    """Return a metric with the values that the subscriptions *listed* have for *key*."""
    kind = CounterMetricFamily if key.endswith("_total") else GaugeMetricFamily
    # A value may be missing: a subscription of a pattern has no single position, and an age may not be known yet.
    values = {
        (str(each["name"]), str(each["stream"])): float(value)
        for each in listed
        if isinstance(value := each.get(key), int | float)
    }
    return _family(kind, f"subscription_{name}", text, ("subscription", "stream"), values)


def _family(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    labels: Sequence[str],
    values: Mapping[Any, float],
) -> Metric:
    """Return the metric ``fyrehose_NAME`` with these *values* by the texts of its *labels*."""
    family = kind(f"fyrehose_{name}", text, labels=labels)
    for texts, value in values.items():
        family.add_metric([each.translate(_VISIBLE) for each in texts], value)
    return family


def _histogram(name: str, text: str, histograms: Mapping[Any, Histogram], labels: Sequence[str] = ()) -> Metric:
    """Return the metric ``fyrehose_NAME`` with these *histograms* by the texts of its *labels*."""
    family = HistogramMetricFamily(f"fyrehose_{name}", text, labels=labels)
    for texts, histogram in histograms.items():
        counts = map(float, accumulate(histogram.counts))
        bounds = [*map(str, histogram.bounds), "+Inf"]
        family.add_metric(texts, list(zip(bounds, counts, strict=True)), histogram.total)
    return family
