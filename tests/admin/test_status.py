"""The status of the server as an object for JSON."""

from __future__ import annotations

import json
import socket
from collections import Counter, defaultdict
from collections.abc import Callable
from random import Random
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

from .test_metrics import labelled, scraped

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


@attrs.define(eq=False)
class Subscribed:
    """A subscriber, of which the plain list knows this."""

    subscription: Any
    stream: str
    position: int
    paused: bool
    delivered: int = 0
    closes_in: float | None = None


class Figures:
    """A random history of a server, and a plain count of what its status and its metrics say."""

    def __init__(self, watched: Any, seed: int) -> None:
        self.watched, self.dice = watched, Random(seed)
        watched.journal.now = lambda: int(self.now * 1_000_000)
        watched.broker.counters.declare("syslog", ["never"], ["never-refused"])
        self.times: dict[str, list[float]] = {}  #: of the records of each stream
        self.subscribed: list[Subscribed] = []
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)  #: figures of each protocol
        self.refused: Counter[tuple[str, str]] = Counter()
        self.events: Counter[tuple[str, str]] = Counter()
        self.looked_at: float | None = None
        self.elapsed: float | None = None  #: between the last two looks
        self.before: dict[str, int] = {}  #: the ends of streams at the last look
        self.growth: dict[str, int] = {}

    @property
    def now(self) -> float:
        return 1_000.0 + self.watched.clock.seconds()

    def size(self, stream: str) -> int:
        return 10 * len(stream)

    def publish(self) -> None:
        stream = self.dice.choice(("Orders", "orders.eu", "log", "b", 'quo"te', "x" * 9))
        count, protocol = self.dice.choice((1, 1, 9)), self.dice.choice(("http", "relink"))
        self.watched.publish(*[b"x" * self.size(stream)] * count, stream=stream, source=protocol)
        self.times.setdefault(stream, []).extend([self.now] * count)
        self.watched.clock.advance(0)
        size = count * self.size(stream)
        self.counts[protocol].update(published_messages=count, published_bytes=size, acknowledged=1)
        for each in self.subscribed:
            if each.stream == stream and not each.paused:
                self.deliver(each)

    def deliver(self, each: Subscribed) -> None:
        count = len(self.times[each.stream]) - each.position
        self.counts["figg"].update(delivered_messages=count, delivered_bytes=count * self.size(each.stream))
        each.position, each.delivered = each.position + count, each.delivered + count

    def subscribe(self) -> None:
        if self.times:
            stream, paused = self.dice.choice(list(self.times)), self.dice.random() < 0.7
            position = self.dice.randrange(len(self.times[stream]) + 1)
            subscription = self.watched.subscribe(stream, position, resumed=not paused)
            self.subscribed.append(Subscribed(subscription, stream, position, paused))
            self.counts["figg"]["subscribers"] += 1
            if not paused:
                self.deliver(self.subscribed[-1])
            elif self.dice.random() < 0.3:
                self.subscribed[-1].closes_in = subscription.sink.connection.closes_in = 12.5

    def unsubscribe(self) -> None:
        if self.subscribed:
            self.subscribed.pop(self.dice.randrange(len(self.subscribed))).subscription.stopProducing()
            self.counts["figg"]["subscribers"] -= 1

    def count(self) -> None:
        """Refuse something, count an event, or count connections."""
        counters, protocol = self.watched.broker.counters, self.dice.choice(("figg", "syslog"))
        cause, event, change = (
            self.dice.choice("ab"),
            self.dice.choice(("skipped", "resent")),
            self.dice.choice((-1, 1)),
        )
        counters.refuse(log, protocol, cause, "x")
        self.refused[protocol, cause] += 1
        self.counts[protocol]["refused"] += 1
        counters.add(protocol, event, 3)
        self.events[protocol, event] += 3
        counters.add(protocol, "connections")
        counters.gauge(protocol, "connections", change)
        found = self.counts[protocol]
        found.update(connections=change, connections_total=1)
        found["connections_peak"] = max(found["connections_peak"], found["connections"])

    def step(self) -> None:
        often = [self.publish] * 6 + [self.subscribe] * 3 + [self.unsubscribe, self.count]
        self.dice.choice(often)()
        self.watched.clock.advance(0)

    def look(self) -> None:
        """Compute rates from what was published since the last look, if that was half a second ago."""
        if self.looked_at is not None and self.now - self.looked_at < 0.5:
            return
        elapsed = None if self.looked_at is None else self.now - self.looked_at
        self.elapsed = None if elapsed is None or elapsed > 30 else elapsed
        ends = {stream: len(times) for stream, times in self.times.items()}
        grown = {stream: last - self.before.get(stream, 0) for stream, last in ends.items()}
        self.growth = {stream: more for stream, more in grown.items() if more and self.elapsed}
        self.looked_at, self.before = self.now, ends

    def stream(self, stream: str) -> dict[str, Any]:
        times, grown, rate, bytes_rate = self.times[stream], self.growth.get(stream, 0), None, None
        if self.elapsed is not None:
            rate, bytes_rate = grown / self.elapsed, grown * self.size(stream) / self.elapsed
        return {
            "name": stream,
            "first": 1,
            "last": len(times),
            "rate": rate,
            "bytes_rate": bytes_rate,
            "bytes": len(times) * self.size(stream),
            "oldest_age": self.now - times[0],
            "newest_age": 0.0 if rate else self.now - times[-1],
            "subscribers": sum(each.stream == stream for each in self.subscribed),
        }

    def check(self) -> None:
        listed, match = self.dice.choice((2, 100)), self.dice.choice(("", "ORD"))
        status = finished(self.watched.status.complete(match, listed))
        self.look()
        matching = [stream for stream in self.times if match.lower() in stream.lower()]
        streams, described = status["streams"], {stream: self.stream(stream) for stream in self.times}
        assert (streams["total"], streams["matching"]) == (len(self.times), len(matching))
        assert streams["listed"] == [described[each["name"]] for each in streams["listed"]]
        growth = sorted((self.growth.get(stream, 0) for stream in matching), reverse=True)
        assert [self.growth.get(each["name"], 0) for each in streams["listed"]] == growth[:listed]
        idle = [stream for stream in matching if stream not in self.growth]
        found = [each["name"] for each in streams["listed"] if each["name"] not in self.growth]
        assert found == idle[: len(found)], "the others are in the order of their creation"
        pages = self.pages(lambda page: finished(self.watched.status.streams_page(match, page, 2)))
        assert pages == [described[stream] for stream in matching]
        self.check_subscribers(status["subscribers"], listed)
        for each in status["protocols"]:
            self.check_protocol(each)
        most = sorted(self.refused.items(), key=lambda each: (-each[1], each[0]))
        assert status["refusals"] == [{"protocol": name, "cause": cause, "count": n} for (name, cause), n in most]
        events = sorted(self.events.items())
        assert status["events"] == [{"protocol": name, "event": event, "count": n} for (name, event), n in events]
        self.check_metrics()

    def pages(self, ask: Callable[[int], dict[str, Any]]) -> list[Any]:
        """Return what all pages list, the last of which are empty."""
        pages = [ask(page) for page in range(20)]
        assert [page["page"] for page in pages] == list(range(20))
        return [each for page in pages for each in page["listed"]]

    def lag(self, each: Subscribed) -> int:
        return len(self.times[each.stream]) - each.position

    def check_subscribers(self, said: dict[str, Any], listed: int) -> None:
        peer = {"protocol": "figg", "peer": "10.0.0.1:5", "clients": 1}
        described = [
            attrs.asdict(each, filter=lambda field, _: field.name != "subscription") | {**peer, "lag": self.lag(each)}
            for each in self.subscribed
        ]
        assert self.pages(lambda page: self.watched.status.subscribers_page(page, 2)) == described
        furthest = sorted(described, key=lambda each: (-each["lag"], each["stream"]))
        places = [[(each["lag"], each["stream"]) for each in rows] for rows in (said["listed"], furthest[:listed])]
        assert places[0] == places[1]
        assert all(each in described for each in said["listed"])
        assert (said["total"], said["lag"]) == (len(described), max((each["lag"] for each in described), default=0))

    def check_protocol(self, said: dict[str, Any]) -> None:
        name, sampler = said["name"], self.watched.sampler
        expected = self.counts[name] | Counter()
        of_figg = [each for each in self.subscribed if name == "figg"]
        assert said["lag"] == max(map(self.lag, of_figg), default=0)
        assert said["stalled"] == sum(each.closes_in is not None for each in of_figg)
        assert {key: said[key] for key in expected} == expected
        rates = sampler.samples[-1].published.get(name, (0, 0)) if sampler.samples else (None, None)
        assert (said["published_rate"], said["published_bytes_rate"]) == rates

    def check_metrics(self) -> None:
        samples = scraped(self.watched.status, streams=3)
        first = {(stream,): len(self.times[stream]) for stream in list(self.times)[:3]}
        assert labelled(samples, "fyrehose_stream_last_seq") == first, "a new stream replaces no series"
        lags = {
            stream: max([0] + [self.lag(each) for each in self.subscribed if each.stream == stream[0]])
            for stream in first
        }
        assert labelled(samples, "fyrehose_stream_lag_messages") == lags
        readers = Counter((each.stream,) for each in self.subscribed if (each.stream,) in first)
        assert +Counter(labelled(samples, "fyrehose_stream_subscribers")) == readers
        streams = [labelled(samples, f"fyrehose_streams{which}")[()] for which in ("", "_unlisted")]
        assert streams == [len(self.times), max(0, len(self.times) - 3)]
        for metric, key in METRICS.items():
            shown = {(name,): counts[key] for name, counts in self.counts.items()}
            assert +Counter(labelled(samples, f"fyrehose_{metric}")) == +Counter(shown), metric
        furthest = {("figg",): max(map(self.lag, self.subscribed), default=0)}
        assert +Counter(labelled(samples, "fyrehose_subscriber_lag_messages")) == +Counter(furthest)
        stalled = {("figg",): sum(each.closes_in is not None for each in self.subscribed)}
        assert +Counter(labelled(samples, "fyrehose_subscribers_stalled")) == +Counter(stalled)
        for metric, counted in (("refused", self.refused), ("events", self.events)):
            found = labelled(samples, f"fyrehose_{metric}_total")
            assert +Counter(found) == {(cause, name): n for (name, cause), n in counted.items()}


#: The metrics of protocols, and the figures that they show.
METRICS = {
    "published_messages_total": "published_messages",
    "published_bytes_total": "published_bytes",
    "acknowledged_publishes_total": "acknowledged",
    "delivered_messages_total": "delivered_messages",
    "delivered_bytes_total": "delivered_bytes",
    "connections_total": "connections_total",
    "connections_open": "connections",
    "connections_peak": "connections_peak",
    "subscribers": "subscribers",
}


@pytest.mark.parametrize("seed", range(8))
def test_figures_of_the_status_and_of_the_metrics_are_those_of_a_plain_count(watched: Any, seed: int) -> None:
    figures = Figures(watched, seed)
    for _ in range(12):
        for _ in range(figures.dice.randrange(12)):
            figures.step()
        watched.clock.advance(figures.dice.choice((0.25, 1.0, 5.0, 40.0)))
        figures.check()


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

    def work(count: int, result: str = "done") -> None:
        for part in sharing.lease(shared, "w", None, count, 0).result:
            sharing.act(shared, [Item(result, part.lease.first, part.lease.last, part.lease.token)], "w")

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
    watched.publish(b"x")
    work(1, "failed")
    assert shown()[1] is None, "a record that failed waits for its delay"
    sharing.delete(shared)
    assert finished(watched.status.complete())["subscriptions"]["listed"] == []
    watched.broker.table.close()


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
