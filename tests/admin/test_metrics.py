"""Metrics: the prometheus_client parser reads them, and their values match the events."""

from __future__ import annotations

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
from fyrehose.admin.status import Status, summary
from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.interfaces import IJournal
from fyrehose.journal import subscriptions
from fyrehose.journal.clock import RecordClock
from fyrehose.journal.commit import InlineWorker
from fyrehose.journal.journal import FileJournal
from fyrehose.observe.meters import (
    ClusterStatus,
    JournalMeters,
    JournalStatus,
    MemberStatus,
    NatsStatus,
    SharedLogStatus,
)
from fyrehose.records import Run
from fyrehose.subscriptions.pool import Item
from fyrehose.subscriptions.progress import SubscriptionOptions
from fyrehose.testing import MemoryJournal
from tests.doubles.steps import finished

log = Logger()
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(status: Status, streams: int = 100) -> Samples:
    """Return all samples by name and labels."""
    text = finished(metrics.Exporter(status, streams).text()).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labelled(samples: Samples, name: str) -> dict[tuple[str, ...], float]:
    return {tuple(value for _, value in labels): value for (found, labels), value in samples.items() if found == name}


def test_metrics_of_a_listener_begin_at_0(watched: Any) -> None:
    """Otherwise an alert on the first increase would never fire: ``rate()`` of a new series has no value."""
    watched.broker.counters.declare("relink", ["links-made"], ["too-many-links"])
    samples = scraped(watched.status)
    for name in (
        "published_messages",
        "published_bytes",
        "acknowledged_publishes",
        "delivered_messages",
        "connections",
    ):
        assert labelled(samples, f"fyrehose_{name}_total")["relink",] == 0
    assert labelled(samples, "fyrehose_acknowledge_seconds_count")["relink",] == 0
    assert labelled(samples, "fyrehose_events_total")["links-made", "relink"] == 0
    refused = labelled(samples, "fyrehose_refused_total")
    assert refused["too-many-links", "relink"] == refused["Forbidden", "relink"] == 0
    assert finished(watched.status.complete())["refusals"] == [], "the page has only what was refused"
    watched.broker.counters.refuse(log, "relink", "too-many-links", "x")
    assert labelled(scraped(watched.status), "fyrehose_refused_total")["too-many-links", "relink"] == 1


def test_writers_have_series_by_name_as_many_as_streams_have(watched: Any) -> None:
    for number in range(3):
        writer = watched.broker.counters.writers.connected(f"web-{number}", "filebeat 8.19.0", "10.0.0.1:5000")
        writer.add(number, 0.0)
    writer.refused, writer.missed, writer.acknowledged_at = 5, 6, watched.broker.counters.seconds()
    samples = scraped(watched.status, streams=2)
    assert labelled(samples, "fyrehose_writers")[()] == 3
    assert labelled(samples, "fyrehose_writer_info").keys() == {("filebeat 8.19.0", f"web-{n}") for n in (1, 2)}
    assert labelled(samples, "fyrehose_writer_events_total") == {("web-1",): 1, ("web-2",): 2}
    assert labelled(samples, "fyrehose_writer_refused_total")["web-2",] == 5
    assert labelled(samples, "fyrehose_writer_route_misses_total")["web-2",] == 6
    assert labelled(samples, "fyrehose_writer_connections")["web-2",] == 1
    assert labelled(samples, "fyrehose_writer_acknowledged_age_seconds").keys() == {("web-2",)}


def test_control_characters_of_names_are_escaped_and_names_stay_different(watched: Any) -> None:
    names = {"a\x00\r\n": r"a\x00\x0d\x0a", r"a\x00": r"a\\x00", "b\x85\u2028\x7f": r"b\x85\u2028\x7f"}
    for name in names:
        watched.publish(b"x", stream=name)
    text = finished(metrics.Exporter(watched.status, 100).text())
    assert not set(b"\x00\r\x7f") & set(text)
    assert text.decode().splitlines() == text.decode().split("\n")[:-1]
    assert labelled(scraped(watched.status), "fyrehose_stream_last_seq") == {(shown,): 1 for shown in names.values()}


def test_age_of_the_oldest_write_is_exported(watched: Any) -> None:
    watched.broker.journal.meters = meters = JournalMeters(seconds=lambda: 112.0)
    assert labelled(scraped(watched.status), "fyrehose_journal_write_age_seconds") == {(): 0}
    meters.write_began = 100.0
    assert labelled(scraped(watched.status), "fyrehose_journal_write_age_seconds") == {(): 12}
    assert watched.status.journal()["write_age"] == 12


def test_metrics_of_the_process_and_the_reactor_are_exported(watched: Any) -> None:
    watched.pass_time(1)
    samples = scraped(watched.status)
    assert labelled(samples, "process_resident_memory_bytes")[()] > 1 << 20
    assert labelled(samples, "fyrehose_reactor_lag_seconds_count")[()] == watched.sampler.lag.count > 0
    assert labelled(samples, "fyrehose_reactor_stalls_total") == {(): 0}
    watched.broker.stalls.add(2.5)
    assert labelled(scraped(watched.status), "fyrehose_reactor_stalls_total") == {(): 1}
    assert ("fyrehose_build_info", ()) not in samples
    assert [value for (name, _), value in samples.items() if name == "fyrehose_build_info"] == [1]


@pytest.fixture
def real(tmp_path: Path) -> Any:
    clock = Clock()

    def microseconds() -> int:
        return int(clock.seconds() * 1_000_000)

    journal = FileJournal(clock, tmp_path / "j", worker=InlineWorker(), clock=RecordClock(microseconds, microseconds))
    broker = Broker(clock, journal, Sequencer())
    broker.open()
    clock.advance(1)
    yield Status(broker, Sampler(clock, broker, lambda: 0.0), 0.0, StreamRates(clock.seconds, broker))
    broker.close()


def test_metrics_of_the_journal_are_exported(real: Status) -> None:
    for _ in range(5):
        real.broker.publish([Run.of("s", [b"x" * 2000], source="test")])
    samples = scraped(real)
    assert labelled(samples, "fyrehose_journal_commit_seconds_count")[()] == 5
    buckets = labelled(samples, "fyrehose_journal_commit_bytes_bucket")
    assert (buckets["1024.0",], buckets["4096.0",], buckets["+Inf",]) == (0, 5, 5)
    assert 10_000 < labelled(samples, "fyrehose_journal_commit_bytes_sum")[()] < 12_000
    assert labelled(samples, "fyrehose_journal_sync_seconds_count")[()] >= 5
    assert labelled(samples, "fyrehose_journal_durable_bytes")[()] > 10_000
    assert labelled(samples, "fyrehose_journal_segments")[()] == 1
    assert labelled(samples, "fyrehose_journal_free_bytes")[()] > 0
    assert labelled(samples, "fyrehose_journal_overrun_subscriptions_total")[()] == 0
    assert labelled(samples, "fyrehose_journal_damaged_segments")[()] == 0
    assert labelled(samples, "fyrehose_subscription_lag_bytes") == {}
    journal = finished(real.complete())["journal"]
    assert journal["durable"] == labelled(samples, "fyrehose_journal_durable_bytes")[()]
    assert (journal["durability"], journal["commits"], journal["commit_bytes_p50"]) == ("batch", 5, 4096)


def test_subscriptions_to_the_files_show_how_far_their_programs_are_behind(real: Status) -> None:
    real.broker.publish([Run.of("s", [b"x" * 2000], source="test")])
    before = finished(real.complete())["journal"]
    directory = Path(before["directory"])
    subscriptions.update(directory, "archive", before["durable"] - 100)
    finished(real.complete())
    real.sampler.clock.advance(5)
    subscriptions.update(directory, "ahead", before["durable"] + 100)
    assert [
        (each["kind"], each["name"], each["behind_bytes"])
        for each in finished(real.complete())["subscriptions"]["listed"]
    ] == [
        ("files", "archive", 100),
        ("files", "ahead", 0),
    ]
    samples = scraped(real)
    assert labelled(samples, "fyrehose_subscription_lag_bytes") == {("archive",): 100, ("ahead",): 0}
    assert labelled(samples, "fyrehose_subscription_age_seconds") == {("archive",): 5.0, ("ahead",): 0.0}


def test_closed_journal_exports_its_state_only(real: Status) -> None:
    real.broker.close()
    samples = scraped(real)
    states = {state: int(state == "closed") for state in ("closed", "writable", "read-only", "failed")}
    assert labelled(samples, "fyrehose_journal_state") == {(state,): value for state, value in states.items()}
    assert not labelled(samples, "fyrehose_journal_durable_bytes")


def test_metrics_of_named_subscriptions_are_exported_up_to_a_limit(watched: Any) -> None:
    watched.publish(b"a", b"b", b"c")
    watched.broker.table.now = lambda: 4_000_000
    for name in ("billing", "other"):
        watched.broker.named.open(name, "s", 0)
    watched.broker.named.acknowledge(watched.broker.named.find("billing"), 1)
    watched.clock.advance(1)
    samples = scraped(watched.status, streams=1)
    assert labelled(samples, "fyrehose_subscriptions") == {(): 2}
    assert labelled(samples, "fyrehose_subscription_position") == {("s", "billing"): 1}
    assert labelled(samples, "fyrehose_subscription_lag_messages") == {("s", "billing"): 2}
    assert labelled(samples, "fyrehose_subscription_lag_seconds") == {("s", "billing"): 3}
    assert labelled(scraped(watched.status, streams=0), "fyrehose_subscription_position") == {}


def test_metrics_of_shared_subscriptions_are_exported(watched: Any) -> None:
    watched.publish(b"a", b"b", b"c")
    sharing = watched.broker.named
    shared = sharing.create("work", SubscriptionOptions(stream="s"), 1).result
    leased = sharing.lease(shared, "w", None, 2, 0).result[0].lease
    sharing.act(shared, [Item("reject", leased.first, leased.first, leased.token)], "w")
    samples = scraped(watched.status)
    assert labelled(samples, "fyrehose_subscriptions") == {(): 1}
    values = {"in_flight": 1, "dead_total": 1, "settled_total": 0, "lag_messages": 1, "held_until_timestamp_seconds": 0}
    for name, value in values.items():
        assert labelled(samples, f"fyrehose_subscription_{name}") == {("s", "work"): value}, name
    sharing.delete(shared)
    watched.broker.table.close()


@implementer(IJournal)
class Member(MemoryJournal):
    """The journal of a server of a cluster."""

    figures: ClusterStatus | None = None

    def status(self) -> JournalStatus:
        return JournalStatus(
            directory="d",
            durability="batch",
            position=0,
            durable=0,
            segments=1,
            size=0,
            free=None,
            held_by="",
            overrun_subscriptions=0,
            cluster=self.figures,
            meters=self.meters,
        )


def test_metrics_of_a_server_of_a_cluster_are_exported(make_watched: Any) -> None:
    watched = make_watched(journal=Member())
    assert not [name for name, _ in scraped(watched.status) if name.startswith("fyrehose_cluster")]
    status = ClusterStatus(
        name="b",
        role="follower",
        leader="a",
        epoch=7,
        behind=1234,
        silent=0.5,
        takeovers=2,
        entries=90,
        log_size=512,
        nats=[NatsStatus(name="n3", leads=False, current=False, offline=False, lag=17)],
        log=SharedLogStatus(copies=2, replicas=3),
    )
    watched.journal.figures = status
    samples = scraped(watched.status)
    assert labelled(samples, "fyrehose_cluster_role") == {
        ("follower",): 1,
        ("candidate",): 0,
        ("leader",): 0,
        ("stopped",): 0,
    }
    assert labelled(samples, "fyrehose_cluster_epoch") == {(): 7}
    assert labelled(samples, "fyrehose_cluster_behind_bytes") == {(): 1234}
    assert labelled(samples, "fyrehose_cluster_leader_silent_seconds") == {(): 0.5}
    assert labelled(samples, "fyrehose_cluster_takeovers_total") == {(): 2}
    assert labelled(samples, "fyrehose_cluster_log_bytes") == {(): 512}
    assert labelled(samples, "fyrehose_cluster_log_copies") == {(): 2}
    assert labelled(samples, "fyrehose_cluster_log_replicas") == {(): 3}
    assert labelled(samples, "fyrehose_cluster_nats_lag_entries") == {("n3",): 17}
    assert not [name for name, _ in samples if name.startswith("fyrehose_cluster_member")]
    others = [
        MemberStatus(name="a", role="follower", heard=0.2, behind=512, records=3, seconds=0.7),
        MemberStatus(name="c", role="follower", alive=False, heard=99.0, behind=9000),
    ]
    watched.journal.figures = attrs.evolve(
        status, role="leader", members=[MemberStatus(name="b", role="leader"), *others]
    )
    samples = scraped(watched.status)
    assert labelled(samples, "fyrehose_cluster_member_behind_bytes") == {("a",): 512, ("c",): 9000}
    assert labelled(samples, "fyrehose_cluster_member_behind_messages") == {("a",): 3}
    assert labelled(samples, "fyrehose_cluster_member_behind_seconds") == {("a",): 0.7}
    assert labelled(samples, "fyrehose_cluster_member_silent_seconds") == {("a",): 0.2, ("c",): 99}
    assert watched.status.journal()["cluster"]["members"][1]["records"] == 3
    watched.journal.figures = status
    assert watched.status.journal()["cluster"]["leader"] == "a"
    assert watched.status.journal()["cluster"]["summary"] == summary(status)
