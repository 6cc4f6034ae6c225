"""Check that the example for Prometheus and Grafana is valid, and that the server exports each of its metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from prometheus_client.parser import text_string_to_metric_families
from twisted.internet.task import Clock
from twisted.logger import Logger
from zope.interface import implementer

from fyrehose.admin import metrics
from fyrehose.admin.sampling import Sampler, StreamRates
from fyrehose.admin.status import Status
from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.interfaces import IJournal
from fyrehose.journal.commit import InlineWorker
from fyrehose.journal.journal import FileJournal
from fyrehose.observe.meters import ClusterStatus, JournalStatus
from fyrehose.records import Run
from fyrehose.subscriptions.progress import SubscriptionOptions
from tests.doubles.steps import finished

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "examples" / "monitoring"
FILES = ["prometheus.yml", "alerts.yml", "dashboard.json"]
#: Matches the name of a metric in an expression.
NAME = re.compile(r"\b(?:fyrehose|process|python)_[a-z_]+\b")


@implementer(IJournal)
class Member(FileJournal):
    """A journal with the status of a cluster's server."""

    def status(self) -> JournalStatus:
        leads = ClusterStatus(
            name="a", role="leader", leader="a", epoch=1, behind=0, silent=0.0, takeovers=1, entries=1
        )
        return attrs.evolve(super().status(), cluster=leads)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the names of all metrics and samples that a server exports after publishing and reading a little."""
    clock = Clock()
    broker = Broker(clock, Member(clock, tmp_path_factory.mktemp("j"), worker=InlineWorker()), Sequencer())
    broker.open()
    broker.publish([Run.of("s", [b"x"], source="figg")])
    broker.named.create("work", SubscriptionOptions(stream="s"), 1)
    broker.counters.refuse(Logger(), "figg", "too-large", "x")
    broker.counters.add("figg", "skipped")
    broker.counters.writers.connected("web-1", "filebeat 8.19.0", "10.0.0.1:5000").acknowledged_at = 0.0
    clock.advance(1)
    status = Status(broker, Sampler(clock, broker, lambda: 0.0), 0.0, StreamRates(clock.seconds, broker))
    families = list(text_string_to_metric_families(finished(metrics.Exporter(status, 10).text()).decode()))
    broker.close()
    return {family.name for family in families} | {sample.name for family in families for sample in family.samples}


@pytest.mark.parametrize("file", FILES)
def test_every_metric_in_the_example_is_exported(file: str, exported: set[str]) -> None:
    named = set(NAME.findall((EXAMPLE / file).read_text()))
    assert named <= exported, named - exported
    assert named or file == "prometheus.yml"


def test_the_page_lists_every_exported_metric(exported: set[str]) -> None:
    text = (DOCS / "page.md").read_text()
    listed: set[str] = set()
    for line in text.splitlines():
        names = re.findall(r"`((?:fyrehose)?_[a-z_]+)`", line.partition("|")[2].partition("|")[0])
        for name in names:
            # ``_bytes_total`` after ``fyrehose_x_messages_total`` abbreviates ``fyrehose_x_bytes_total``.
            listed.add(name) if name.startswith("fyrehose") else listed.update(_expand(names[0], name, exported))
    assert listed <= exported, listed - exported
    ours = {name for name in exported if name.startswith("fyrehose_")}
    endings = ("_bucket", "_sum", "_count", "_created", "_total", "_info")
    missing = {
        name
        for name in ours
        if not any(
            name == each or name.removesuffix(e) in (each, each.removesuffix("_total"))
            for each in listed
            for e in endings
        )
    }
    assert missing <= {"fyrehose_build", "fyrehose_build_info"}, missing


def _expand(first: str, end: str, exported: set[str]) -> set[str]:
    """Replace the abbreviation *end* by the longest prefix of *first* followed by *end* that is an exported name."""
    for cut in range(len(first), 0, -1):
        if first[:cut] + end in exported:
            return {first[:cut] + end}
    return {first + end}


def test_the_dashboard_has_unique_panels_within_its_grid() -> None:
    board: dict[str, Any] = json.loads((EXAMPLE / "dashboard.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for target in panel["targets"]:
            assert target["expr"].count("(") == target["expr"].count(")"), panel["title"]


def test_prometheus_scrapes_the_default_listener() -> None:
    from fyrehose.admin.plugin import plugin

    port = plugin.default_endpoint.split(":")[1]
    assert f'targets: ["127.0.0.1:{port}"]' in (EXAMPLE / "prometheus.yml").read_text()
    assert "alerts.yml" in (EXAMPLE / "prometheus.yml").read_text()
