"""The status of the server as an object for JSON."""

from __future__ import annotations

import json
import socket
from typing import Any

import attrs
import pytest
from twisted.logger import Logger
from zope.interface import implementer

from fyrehose import __version__
from fyrehose.admin import metrics
from fyrehose.admin.status import summary, time_to_full
from fyrehose.admin.subscriber_lags import SubscriberLags
from fyrehose.broker import fanout
from fyrehose.broker.broker import Broker
from fyrehose.interfaces import FileLag, IRelay
from fyrehose.observe.listeners import Listener
from fyrehose.observe.meters import ClusterStatus, JournalMeters, JournalStatus, SharedLogStatus
from fyrehose.subscriptions.pool import Item
from fyrehose.subscriptions.progress import SubscriptionOptions
from fyrehose.testing import RecordingSink
from tests.doubles.steps import finished

log = Logger()


def by_name(listed: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in listed}


def test_status_of_a_new_server(watched: Any) -> None:
    status = finished(watched.status.complete())
    assert json.loads(json.dumps(status)) == status
    assert status["version"] == __version__
    assert status["uptime"] == 0
    assert status["journal"]["state"] == "writable"
    assert status["journal"]["commit_p50"] is None
    assert status["streams"] == {"total": 0, "matching": 0, "listed": []}
    assert status["subscribers"] == {"total": 0, "lag": 0, "lag_age": 0, "listed": []}
    assert status["protocols"] == status["refusals"] == status["last_refusals"] == []
    assert status["writers"] == {"total": 0, "listed": []}
    assert status["host"] == socket.gethostname()
    assert status["memory"]["resident"] > 1 << 20
    assert watched.status.ready() == (True, "writable")


def test_listeners_are_listed_with_present_access_and_connections(watched: Any) -> None:
    there = 0
    watched.broker.listeners.append(
        Listener(
            name="x/y",
            protocol="x",
            endpoint="tcp:1",
            access=lambda: f"{there} peers",
            connections=lambda: there or None,
        )
    )
    said = {
        "name": "x/y",
        "protocol": "x",
        "endpoint": "tcp:1",
        "encryption": "",
        "access": "0 peers",
        "connections": None,
    }
    assert finished(watched.status.complete())["listeners"] == [said]
    there = 2
    assert finished(watched.status.complete())["listeners"] == [{**said, "access": "2 peers", "connections": 2}]


def test_own_records_of_a_protocol_are_not_counted(watched: Any) -> None:
    watched.broker.listeners.append(
        Listener(name="relink", protocol="relink", endpoint="tcp:1", access=lambda: "", connections=lambda: 0)
    )
    for source in ("relink", "relink-links", "figg"):
        watched.publish(b"x", source=source)
    watched.pass_time(1)
    assert list(by_name(finished(watched.status.complete())["protocols"])) == ["figg", "relink"]
    assert set(watched.sampler.samples[-1].published) == {"figg", "relink"}


@implementer(IRelay)
class Relay(RecordingSink):
    """A sink with clients of its own."""

    subscriber = ("backbone", "clients")
    audience = 0
    sent = (0, 0)


def test_a_relay_without_clients_is_no_subscriber_and_delivers_nothing(watched: Any) -> None:
    relay = Relay()
    watched.broker.subscribe("s", None, relay).resumeProducing()
    for _ in range(100):
        watched.publish(b"x")
    watched.pass_time(1)
    status = finished(watched.status.complete())
    backbone = by_name(status["protocols"])["backbone"]
    assert (backbone["subscribers"], backbone["delivered_messages"], backbone["delivered_rate"]) == (0, 0, 0)
    assert (status["subscribers"]["total"], status["subscribers"]["listed"]) == (0, [])
    assert status["streams"]["listed"][0]["subscribers"] == 0
    assert watched.status.subscribers_page(0, 10) == {"total": 0, "page": 0, "listed": []}
    assert b'fyrehose_subscribers{protocol="backbone"} 0.0' in finished(metrics.Exporter(watched.status, 10).text())
    relay.audience, relay.sent = 3, (6, 9)
    status = finished(watched.status.complete())
    assert (status["subscribers"]["total"], status["subscribers"]["listed"][0]["clients"]) == (3, 3)
    assert by_name(status["protocols"])["backbone"]["delivered_messages"] == 6


def test_publishers_and_the_time_until_acknowledgement_are_shown_by_protocol(watched: Any) -> None:
    watched.journal.auto = False
    watched.publish(b"x")
    watched.clock.advance(0.02)
    watched.journal.commit()
    [http] = finished(watched.status.complete())["protocols"]
    assert (http["publishers"], http["acknowledge_p50"], http["acknowledge_p99"]) == (1, 0.025, 0.025)
    watched.pass_time(180)
    [http] = finished(watched.status.complete())["protocols"]
    assert (http["publishers"], http["acknowledge_p50"]) == (0, None)
    assert b'fyrehose_acknowledge_seconds_bucket{le="0.025",protocol="http"} 1.0' in finished(
        metrics.Exporter(watched.status, 10).text()
    )


def journal_with(**figures: Any) -> JournalStatus:
    fields: dict[str, Any] = {"directory": "d", "durability": "batch", "position": 0, "durable": 0, "segments": 1}
    fields |= {"size": 1_000, "free": 10_000, "held_by": "", "overrun_subscriptions": 0, "meters": JournalMeters()}
    return JournalStatus(**{**fields, **figures})


@pytest.mark.parametrize(
    ("figures", "rate", "seconds"),
    [
        ({}, 10.0, 1_000.0),
        ({"min_free": 4_000}, 10.0, 600.0),
        ({"min_free": 40_000}, 10.0, 0.0),
        ({}, 0.0, None),
        ({"free": None}, 10.0, None),
        ({"keep_bytes": 5_000}, 10.0, None),
        ({"keep_bytes": 50_000}, 10.0, 1_000.0),
        ({"keep_age": 60.0}, 10.0, None),
        ({"keep_age": 6_000.0}, 10.0, 1_000.0),
    ],
)
def test_time_to_a_full_disk_follows_from_growth_and_retention(
    figures: dict[str, Any], rate: float, seconds: float | None
) -> None:
    assert time_to_full(journal_with(**figures), rate) == seconds


def test_protocols_are_listed_with_counts_and_rates(watched: Any) -> None:
    counters = watched.broker.counters
    counters.add("lumberjack", "connections", 3)
    counters.gauge("lumberjack", "connections", 3)
    counters.gauge("lumberjack", "connections", -1)
    counters.refuse(log, "lumberjack", "too-large", "x")
    watched.publish(b"abc", b"d")
    watched.subscribe(resumed=False)
    watched.subscribe()
    watched.pass_time(1)
    protocols = by_name(finished(watched.status.complete())["protocols"])
    assert list(protocols) == ["figg", "http", "lumberjack"]
    lumberjack, http, figg = protocols["lumberjack"], protocols["http"], protocols["figg"]
    assert [lumberjack[f"connections{which}"] for which in ("", "_peak", "_total")] == [2, 3, 3]
    assert lumberjack["refused"] == 1
    assert (http["published_messages"], http["published_bytes"], http["acknowledged"]) == (2, 4, 1)
    assert http["published_rate"] > 0
    assert (figg["delivered_messages"], figg["subscribers"], figg["lag"]) == (2, 2, 2)


def test_busiest_streams_are_listed_first(watched: Any) -> None:
    for n in range(5):
        watched.publish(b"x", stream=f"s{n}")
    finished(watched.status.complete())
    watched.clock.advance(1)
    watched.publish(*[b"x"] * 9, stream="s3")
    watched.subscribe("s3")
    streams = finished(watched.status.complete(listed=2))["streams"]
    assert (streams["total"], streams["matching"]) == (5, 5)
    assert [stream["name"] for stream in streams["listed"]] == ["s3", "s0"]
    assert streams["listed"][0] == {
        "name": "s3",
        "first": 1,
        "last": 10,
        "rate": 9.0,
        "bytes_rate": 9.0,
        "bytes": 10,
        "oldest_age": 1000.0,
        "newest_age": 0.0,
        "subscribers": 1,
    }


def test_streams_are_filtered_by_a_part_of_the_name(watched: Any) -> None:
    for stream in ("Orders", "orders.eu", "log"):
        watched.publish(b"x", stream=stream)
    streams = finished(watched.status.complete("ORD"))["streams"]
    assert (streams["total"], streams["matching"]) == (3, 2)
    assert {stream["name"] for stream in streams["listed"]} == {"Orders", "orders.eu"}


def test_subscribers_furthest_behind_are_listed_first(watched: Any) -> None:
    watched.publish(*[b"x"] * 10)
    watched.subscribe()
    watched.subscribe(after=4, resumed=False)
    watched.subscribe(stream="elsewhere", resumed=False)
    subscribers = finished(watched.status.complete(listed=1))["subscribers"]
    assert (subscribers["total"], subscribers["lag"]) == (3, 6)
    assert subscribers["listed"] == [
        {
            "protocol": "figg",
            "peer": "10.0.0.1:5",
            "clients": 1,
            "stream": "s",
            "position": 4,
            "lag": 6,
            "delivered": 0,
            "paused": True,
            "closes_in": None,
        }
    ]


def test_subscriber_that_does_not_read_has_the_time_until_it_is_disconnected(watched: Any) -> None:
    watched.publish(*[b"x"] * 10)
    watched.subscribe()
    stalled = watched.subscribe(after=4, resumed=False)
    stalled.sink.connection.closes_in = 12.5
    status = finished(watched.status.complete(listed=2))
    assert [each["closes_in"] for each in status["subscribers"]["listed"]] == [12.5, None]
    assert [each["stalled"] for each in status["protocols"] if each["name"] == "figg"] == [1]


def test_most_frequent_refusals_are_listed_first(watched: Any) -> None:
    counters = watched.broker.counters
    for cause, times in (("a", 1), ("b", 3)):
        for _ in range(times):
            counters.refuse(log, "figg", cause, "x")
    counters.add("figg", "skipped")
    assert finished(watched.status.complete())["refusals"] == [
        {"protocol": "figg", "cause": "b", "count": 3},
        {"protocol": "figg", "cause": "a", "count": 1},
    ]


def test_who_was_refused_last_is_listed_by_network(watched: Any) -> None:
    watched.broker.counters.seconds = watched.clock.seconds
    for peer in ("2001:db8::1", "10.0.0.1", "2001:db8::2"):
        watched.broker.counters.refuse(log, "figg", "silent", peer, f"from {peer}")
        watched.clock.advance(1)
    both = {"protocol": "figg", "cause": "silent"}
    v6 = {"network": "2001:db8::/64", "peer": "2001:db8::2", "detail": "from 2001:db8::2", "ago": 1, "count": 2}
    v4 = {"network": "10.0.0.1", "peer": "10.0.0.1", "detail": "from 10.0.0.1", "ago": 2, "count": 1}
    assert finished(watched.status.complete())["last_refusals"] == [both | v6, both | v4]
    assert finished(watched.status.complete(listed=1))["last_refusals"] == [both | v6]


def test_shared_subscriptions_are_listed_with_their_rate_and_the_time_until_they_are_empty(watched: Any) -> None:
    watched.publish(*[b"x"] * 100)
    sharing = watched.broker.named
    shared = sharing.create("jobs", SubscriptionOptions(stream="s"), 1).result

    def shown() -> tuple[object, object]:
        (found,) = finished(watched.status.complete())["subscriptions"]["listed"]
        return found["settled_rate"], found["empty_in"]

    def work(count: int) -> None:
        for part in sharing.lease(shared, "w", None, count, 0).result:
            sharing.act(shared, [Item("done", part.lease.first, part.lease.last, part.lease.token)], "w")

    assert shown() == (None, None)
    work(40)
    watched.clock.advance(10)
    assert shown() == (4, 15)
    watched.publish(*[b"x"] * 100)
    watched.clock.advance(10)
    assert shown() == (2, None), "it grows"
    work(100)
    work(60)
    watched.clock.advance(10)
    assert shown() == (pytest.approx(200 / 30), 0)
    watched.clock.advance(120)
    assert shown() == (None, 0), "the last minute has one look only"
    sharing.delete(shared)
    assert finished(watched.status.complete())["subscriptions"]["listed"] == []
    watched.broker.table.close()


def test_events_that_are_no_refusals_are_listed_in_order(watched: Any) -> None:
    counters = watched.broker.counters
    counters.declare("lumberjack", ("resent-dropped", "resent-forgotten", "unrouted"))
    counters.add("lumberjack", "connections", 9)
    counters.add("lumberjack", "resent-forgotten", 1)
    counters.add("lumberjack", "resent-dropped", 300)
    counters.add("figg", "skipped", 2)
    counters.refuse(log, "figg", "a", "x")
    assert finished(watched.status.complete())["events"] == [
        {"protocol": "figg", "event": "skipped", "count": 2},
        {"protocol": "lumberjack", "event": "resent-dropped", "count": 300},
        {"protocol": "lumberjack", "event": "resent-forgotten", "count": 1},
    ]


def test_pages_list_all_streams_in_order_of_creation(watched: Any) -> None:
    for n in range(5):
        watched.publish(b"x", stream=f"s{n * 7 % 5}")
    watched.publish(b"x", stream="other")
    pages = [finished(watched.status.streams_page("S", page, 2)) for page in range(4)]
    assert [[stream["name"] for stream in page["listed"]] for page in pages] == [["s0", "s2"], ["s4", "s1"], ["s3"], []]
    assert [(page["total"], page["matching"], page["page"]) for page in pages] == [(6, 5, n) for n in range(4)]
    first = pages[0]["listed"][0]
    assert (first["name"], first["first"], first["last"], first["rate"]) == ("s0", 1, 1, None)


def test_pages_list_all_subscribers_in_order_of_creation(watched: Any) -> None:
    watched.publish(*[b"x"] * 5)
    for after in (3, 1, 4):
        watched.subscribe(after=after, resumed=False)
    pages = [watched.status.subscribers_page(page, 2) for page in range(2)]
    assert [[each["lag"] for each in page["listed"]] for page in pages] == [[2, 4], [1]]
    assert [(page["total"], page["page"]) for page in pages] == [(3, 0), (3, 1)]


def test_no_answer_examines_every_stream_or_subscriber(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.sampler.subscriber_lags = SubscriberLags(watched.broker, watched.clock.seconds, batch=50, listed=10)
    for n in range(400):
        watched.publish(b"x", stream=f"s{n}")
        watched.subscribe(f"s{n}", resumed=False)
    watched.pass_time(2)
    finished(watched.status.complete(listed=10))
    watched.clock.advance(1)
    looked: list[str] = []
    lag = fanout.Cursor.lag.fget
    monkeypatch.setattr(fanout.Cursor, "lag", property(lambda cursor: (looked.append(cursor.stream), lag(cursor))[1]))
    bounds = watched.broker.bounds
    monkeypatch.setattr(Broker, "bounds", lambda broker, stream: (looked.append(stream), bounds(stream))[1])
    monkeypatch.setattr(
        watched.sampler.subscriber_lags.lags().__class__, "include", lambda lags, cursors: looked.extend("?" * 10_000)
    )
    finished(watched.status.complete(listed=10))
    finished(metrics.Exporter(watched.status, 10).text())
    finished(watched.status.streams_page("", 5, 10))
    watched.status.subscribers_page(5, 10)
    assert 0 < len(looked) < 200


def test_named_subscriptions_are_listed_the_one_furthest_behind_first(watched: Any) -> None:
    watched.publish(b"a", b"b", b"c")
    for name, after in (("done", 3), ("behind", 0)):
        watched.broker.named.open(name, "s", after)
    found = finished(watched.status.complete())["subscriptions"]
    assert (found["total"], [(each["name"], each["lag"]) for each in found["listed"]]) == (
        2,
        [("behind", 3), ("done", 0)],
    )
    assert finished(watched.status.complete(listed=0))["subscriptions"]["listed"] == []


def test_programs_that_read_the_files_are_listed_behind_the_consumers_of_streams(watched: Any) -> None:
    watched.broker.journal.keeper.kept.append(FileLag("archive", 600, 990_000_000))
    watched.broker.named.open("billing", "s", 0)
    consumer, files = finished(watched.status.complete())["subscriptions"]["listed"]
    assert (consumer["kind"], consumer["name"]) == ("stream", "billing")
    assert files == {"name": "archive", "kind": "files", "behind_bytes": 600, "active": 990_000_000}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"role": "leader"}, "b leads, epoch 7"),
        ({"role": "candidate"}, "b is taking over, epoch 7"),
        ({"role": "stopped"}, "b has stopped replicating, epoch 7"),
        ({}, "b follows a, epoch 7, 2.0 KiB behind, leader heard 0.5 s ago"),
        ({"behind": 0}, "b follows a, epoch 7, not behind, leader heard 0.5 s ago"),
        ({"leader": ""}, "b follows, no leader is known"),
        (
            {
                "role": "leader",
                "log": SharedLogStatus(copies=2, replicas=3, problem="n3 is offline", remedy="start n3"),
            },
            "b leads, epoch 7; the shared log: n3 is offline; start n3",
        ),
    ],
)
def test_the_role_of_a_server_in_its_cluster_is_described_in_plain_words(changes: dict[str, Any], words: str) -> None:
    member = ClusterStatus(
        name="b", role="follower", leader="a", epoch=7, behind=2048, silent=0.5, takeovers=0, entries=9
    )
    assert summary(attrs.evolve(member, **changes)) == words


@pytest.mark.parametrize("answer", ["complete", "page", "metrics"])
def test_no_answer_describes_many_streams_or_subscriptions_in_one_step(watched: Any, answer: str) -> None:
    for n in range(60):
        watched.publish(b"x", stream=f"s{n}")
        watched.broker.named.open(f"n{n}", f"s{n}", 0)
    described: list[str] = []
    watched.journal.before_read = lambda stream, start: described.append(stream)
    steps = {
        "complete": lambda: watched.status.complete("s", 60),
        "page": lambda: watched.status.streams_page("s", 0, 60),
        "metrics": lambda: metrics.Exporter(watched.status, 10).text(),
    }[answer]()
    taken = 0
    for _ in steps:
        taken += 1
        assert len(described) <= 3
        described.clear()
    assert taken >= 60
