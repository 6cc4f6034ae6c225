"""Metrics of ``fyrehose forward`` for Prometheus, and the table that ``--status`` makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import attrs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from fyrehose.observe.exporting import CommandMetrics

if TYPE_CHECKING:
    from fyrehose.forward.service import RunningForward

LABELS = ("subscription", "destination")


@attrs.define(eq=False)
class ForwardMetrics(CommandMetrics):
    """The metrics of all subscriptions.

    :ivar running: by name; it changes with reloads
    """

    running: Mapping[str, RunningForward]

    def collect(self) -> Iterable[Metric]:
        counters = {
            "records": CounterMetricFamily("fyrehose_forward_records", "Records delivered.", labels=LABELS),
            "bytes": CounterMetricFamily("fyrehose_forward_bytes", "Their payloads.", labels=LABELS),
            "dead": CounterMetricFamily("fyrehose_forward_dead", "Records made dead letters.", labels=LABELS),
            "retries": CounterMetricFamily("fyrehose_forward_retries", "Batches that were sent again.", labels=LABELS),
            "lost": CounterMetricFamily("fyrehose_forward_lost", "Records that the server lost.", labels=LABELS),
        }
        lag = GaugeMetricFamily("fyrehose_forward_lag_records", "Records that are not delivered.", labels=LABELS)
        age = GaugeMetricFamily("fyrehose_forward_lag_seconds", "Age of the oldest of them.", labels=LABELS)
        up = GaugeMetricFamily(
            "fyrehose_forward_up", "1 while records are delivered, else 0.", labels=(*LABELS, "problem")
        )
        for name, each in list(self.running.items()):
            values, counts = (name, each.table.to[0].scheme), each.counts
            numbers = (counts.delivered, counts.delivered_bytes, counts.dead, counts.retries, counts.lost)
            for family, number in zip(counters.values(), numbers, strict=True):
                family.add_metric(values, number)
            if each.lag is not None:
                lag.add_metric(values, each.lag)
                age.add_metric(values, each.age)
            up.add_metric((*values, each.problem), int(not each.problem))
        return [*counters.values(), lag, age, up]


def rows(text: str) -> list[dict[str, str]]:
    """Return the state of each subscription, of the metrics in *text*."""
    found: dict[str, dict[str, str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("fyrehose_forward_").removesuffix("_total")
            if name == sample.name:
                continue
            row = found.setdefault(sample.labels["subscription"], {"destination": sample.labels["destination"]})
            row[name] = f"{sample.value:,.0f}"
            if name == "up":
                row["problem"] = sample.labels["problem"]
    return [{"subscription": name, **row} for name, row in found.items()]
