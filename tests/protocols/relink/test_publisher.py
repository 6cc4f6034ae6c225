"""Clients for any program that publishes and tails, such as ``fyrehose publish`` and ``fyrehose tail``."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.testing import MemoryReactorClock

from fyrehose.errors import ConfigError
from fyrehose.net.clients import ClientTarget
from fyrehose.protocols.relink.events import UnknownOutcome
from fyrehose.protocols.relink.messages import CONTENT_TYPE, join
from fyrehose.protocols.relink.plugin import plugin
from fyrehose.protocols.relink.publisher import TransactionalPublisher
from fyrehose.protocols.relink.reader import RelinkReader

from .test_client import outcome


def test_plugin_configures_the_clients() -> None:
    clock = MemoryReactorClock()
    publisher = plugin.publisher(ClientTarget(clock, "h", 1), 7)
    publisher.prepare("a?b")
    assert (publisher.limits.window, publisher.name) == (7, "publish:a%3Fb")
    for stream, after, name in [
        ("s", 5, "subscribe:s@5?seq"),
        ("s", None, "subscribe:s?seq"),
        ("log@5", None, "subscribe:log%405?seq"),
    ]:
        tailer = plugin.tailer(ClientTarget(clock, "h", 1))
        tailer.subscribe(stream, print, after)
        assert (tailer.name, tailer.shortfall(True)) == (name, "")
    transactional = plugin.transactional_publisher(ClientTarget(clock, "h", 1), 7, 50)
    assert (transactional.limits.window, transactional.transactional, transactional.size) == (50, True, 50)


@pytest.mark.parametrize(
    "use",
    [
        lambda clock: plugin.publisher(ClientTarget(clock, "h", 1), 7).prepare(None),
        lambda clock: plugin.publisher(ClientTarget(clock, "h", 1), 7).connect(),
        lambda clock: plugin.tailer(ClientTarget(clock, "h", 1)).subscribe(None, print),
        lambda clock: plugin.tailer(ClientTarget(clock, "h", 1)).connect(),
        lambda clock: plugin.transactional_publisher(ClientTarget(clock, "h", 1), 7, 5_000),
    ],
)
def test_invalid_arguments_are_refused(use: Any) -> None:
    with pytest.raises(ConfigError):
        use(MemoryReactorClock())


def test_link_publishes_to_one_stream(make_client: Any) -> None:
    client, _ = make_client()
    with pytest.raises(ConfigError, match="create another client"):
        client.publish("other", b"x")


def test_publish_waits_for_the_link(make_client: Any) -> None:
    client, wire = make_client()
    wire.lose_link()
    client.link.over = True
    done = outcome(client.publish("s", b"x"))
    wire.reconnect()
    assert (done, wire.server.payloads()) == (["done"], [b"x"])


def test_transactional_publisher_commits_full_and_delayed_transactions(make_client: Any) -> None:
    publisher, wire = make_client(kind=TransactionalPublisher, size=3)
    assert outcome(publisher.ready()) == ["done"]
    done = [outcome(publisher.publish("s", b"%d" % i)) for i in range(5)]
    wire.pump()
    assert done == [["done"]] * 3 + [[]] * 2
    wire.pump(0.2)
    assert done == [["done"]] * 5
    assert wire.server.payloads() == [b"0", b"1", b"2", b"3", b"4"]


def test_open_transaction_fails_when_the_link_is_lost(make_client: Any) -> None:
    publisher, wire = make_client(kind=TransactionalPublisher, size=3)
    done = [outcome(publisher.publish("s", b"0"))]
    wire.lose_link()
    wire.near = None
    wire.server.clock.advance(0.1)
    publisher.link.over = True
    done.append(outcome(publisher.publish("s", b"1")))
    wire.server.clock.advance(0.2)
    wire.reconnect()
    wire.pump(1)
    assert done[0] == [UnknownOutcome]
    closed = outcome(publisher.close())
    wire.pump()
    assert closed == ["done"]


def test_tailer_delivers_runs_and_gaps(make_client: Any) -> None:
    _, wire = make_client()
    runs: list[Any] = []
    gaps: list[tuple[int, int]] = []
    tailer = RelinkReader(wire.server.clock, wire)
    tailer.subscribe("s", runs.append, 0, lambda *gap: gaps.append(gap))
    connected = outcome(tailer.connect())
    tailer.pause()
    for payload in (b"1", b"2", b"x"):
        wire.server.publish("s", payload)
    wire.server.publish("s", join((b"a", b"b")), content_type=CONTENT_TYPE)
    wire.server.journal.forget("s", 3)
    wire.pump()
    assert (connected, runs) == (["done"], [])
    tailer.resume()
    wire.pump()
    assert [(bytes(run.payload), run.content_type, run.first_seq) for run in runs] == [
        (b"x", None, 3),
        (join((b"a", b"b")), CONTENT_TYPE, 4),
    ]
    assert gaps == [(1, 2)]
    closed = outcome(tailer.close())
    wire.pump()
    assert closed == ["done"]
