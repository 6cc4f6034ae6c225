"""The publishers and the tailer of ``fyrehose publish`` and ``fyrehose tail``."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock

from fyrehose.errors import ConfigError
from fyrehose.protocols.relink import cli
from fyrehose.protocols.relink.cli import RelinkPublisher, RelinkTailer, TransactionalPublisher
from fyrehose.protocols.relink.outcomes import UnknownOutcome
from fyrehose.protocols.relink.parts import CONTENT_TYPE, join


def outcome(done: Deferred[Any]) -> list[Any]:
    found: list[Any] = []
    done.addCallbacks(lambda value: found.append("done"), lambda failure: found.append(type(failure.value)))
    return found


def test_factories_configure_the_client() -> None:
    clock = MemoryReactorClock()
    assert cli.publisher(clock, "h", 1, "s", 7).client.limits.window == 7
    tailer = cli.tailer(clock, "h", 1, "s", 5, print, print)
    assert tailer.reader.client.name == "subscribe:s@5?seq"
    assert cli.tailer(clock, "h", 1, "s", None, print, print).reader.client.name == "subscribe:s?seq"
    assert cli.tailer(clock, "h", 1, "log@5", None, print, print).reader.client.name == "subscribe:log%405?seq"
    assert cli.publisher(clock, "h", 1, "a?b", 7).client.name == "publish:a%3Fb"
    transactional = cli.transactional_publisher(clock, "h", 1, "s", 7, 50)
    assert (transactional.client.limits.window, transactional.client.transactional) == (50, True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: cli.publisher(MemoryReactorClock(), "h", 1, None, 7),
        lambda: cli.tailer(MemoryReactorClock(), "h", 1, None, 5, print, print),
        lambda: cli.transactional_publisher(MemoryReactorClock(), "h", 1, "s", 7, 5_000),
    ],
)
def test_invalid_arguments_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


def test_publisher_fires_when_messages_are_durable(make_client: Any) -> None:
    client, wire = make_client()
    publisher = RelinkPublisher(client)
    assert outcome(publisher.ready()) == ["done"]
    done = outcome(publisher.publish(b"x"))
    wire.pump()
    assert done == ["done"]
    closed = outcome(publisher.close())
    wire.pump()
    assert closed == ["done"]


def test_transactional_publisher_commits_full_and_delayed_transactions(make_client: Any) -> None:
    client, wire = make_client(transactional=True)
    publisher = TransactionalPublisher(wire.server.clock, client, 3)
    assert outcome(publisher.ready()) == ["done"]
    done = [outcome(publisher.publish(b"%d" % i)) for i in range(5)]
    wire.pump()
    assert done == [["done"]] * 3 + [[]] * 2
    wire.pump(0.2)
    assert done == [["done"]] * 5
    assert wire.server.payloads() == [b"0", b"1", b"2", b"3", b"4"]


def test_open_transaction_fails_when_the_link_is_lost(make_client: Any) -> None:
    client, wire = make_client(transactional=True)
    publisher = TransactionalPublisher(wire.server.clock, client, 3)
    done = [outcome(publisher.publish(b"0"))]
    wire.cut()
    for entry in list(wire.server.registry.entries.values()):
        wire.server.registry.discard(entry)
    wire.near = None
    wire.server.clock.advance(0.1)
    client.link.over = True
    done.append(outcome(publisher.publish(b"1")))
    wire.server.clock.advance(0.2)
    wire.pump(1)
    wire.pump()
    wire.pump(1)
    assert done[0] == [UnknownOutcome]
    closed = outcome(publisher.close())
    wire.pump()
    assert closed == ["done"]


def test_tailer_delivers_runs_and_gaps(make_client: Any) -> None:
    _, wire = make_client()
    runs: list[Any] = []
    gaps: list[tuple[int, int]] = []
    tailer = RelinkTailer(wire.server.clock, wire, "s", 0, runs.append, lambda *gap: gaps.append(gap))
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
