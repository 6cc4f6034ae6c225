"""Clients for any program that publishes and tails, such as ``fyrehose publish`` and ``fyrehose tail``."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from twisted.internet.testing import MemoryReactorClock

from fyrehose.errors import Closed, ConfigError
from fyrehose.net.clients import ClientTarget
from fyrehose.protocols.relink.events import UnknownOutcome
from fyrehose.protocols.relink.link import LinkLimits
from fyrehose.protocols.relink.messages import CONTENT_TYPE, join
from fyrehose.protocols.relink.plugin import plugin
from fyrehose.protocols.relink.publisher import COMMIT_DELAY, TransactionalPublisher
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


class TransactionsHistory:
    """Publishes in transactions of three over lost connections, lost links and crashes.

    What is confirmed is stored once; nothing of a transaction is stored before it is full, or 0.2 s old.
    """

    def __init__(self, make_client: Any, seed: int) -> None:
        self.dice, self.ran = Random(seed), Counter[Any]()
        limits = LinkLimits(window=4)
        self.publisher, self.wire = make_client(kind=TransactionalPublisher, size=3, limits=limits)
        self.clock, self.server = self.wire.server.clock, self.wire.server
        self.published: dict[bytes, list[Any]] = {}
        self.open: list[bytes] = []
        self.last = 0.0
        self.surely = True  #: whether each publish was added to the open transaction at once

    def step(self) -> None:
        usual = ("publish", "publish", "publish", "wait", "wait", "pump", "stall")
        what = self.dice.choice((*usual, "cut", "lose_link", "crash", "settle") if self.dice.random() < 0.25 else usual)
        if what in ("cut", "lose_link", "crash"):
            self.surely = False
            if self.wire.near is not None:
                getattr(self.wire, what)()
        else:
            getattr(self, what)()
        if self.clock.seconds() - self.last >= COMMIT_DELAY:
            self.open.clear()
        stored = self.server.payloads()
        early = set(stored) & set(self.open) if self.surely else set()
        assert not early, f"{early} were committed before their transaction was full, or old enough"
        for payload, found in self.published.items():
            assert stored.count(payload) in ((1,) if found == ["done"] else (0, 1)), f"{payload!r}: {found}"
        reasons = {reason for found in self.published.values() for reason in found} - {"done", UnknownOutcome}
        assert not reasons, f"publishes failed although no link was lost: {reasons}"
        assert all(len(found) < 2 for found in self.published.values())

    def publish(self) -> None:
        payload = b"%d" % len(self.published)
        self.ran["waited"] += self.publisher.link is not None and not self.publisher.room(0)
        self.published[payload] = outcome(self.publisher.publish("s", payload))
        self.open = [*self.open, payload] if len(self.open) < 2 else []
        self.last = self.clock.seconds()

    def wait(self) -> None:
        self.wire.pump(0.0625)

    def pump(self) -> None:
        self.wire.pump()

    def stall(self) -> None:
        """Let time pass in which the server answers nothing, so that messages wait for room in the window."""
        self.clock.advance(0.125)

    def settle(self) -> None:
        """Wait until all is committed; what was lost with a link has failed, and the next publishes succeed."""
        self.wire.settle()
        failed = [payload for payload, found in self.published.items() if found == []]
        assert not failed, f"{failed} are never confirmed, and do not fail"
        if any(found == [UnknownOutcome] for found in self.published.values()):
            self.ran["lost"] += 1
        before = len(self.published)
        for _ in range(2):  # the first one may find that its link is lost
            self.publish()
            self.wire.pump(COMMIT_DELAY)
            self.wire.settle()
        assert list(self.published.values())[before + 1] == ["done"], "the publisher does not recover"
        self.surely, self.open = True, []

    def end(self) -> None:
        """Close the publisher with an open transaction, which is rolled back."""
        self.settle()
        for _ in range(self.dice.randint(0, 2)):
            self.publish()
        closed, opened = outcome(self.publisher.close()), self.open
        self.wire.pump()
        self.wire.pump(COMMIT_DELAY)
        assert closed == ["done"]
        assert [self.published[payload] for payload in opened] == [[Closed]] * len(opened)
        assert not set(opened) & set(self.server.payloads()), "the open transaction was committed"


def test_transactions_are_stored_once_or_fail_and_are_committed_when_full_or_old(make_client: Any) -> None:
    ran = Counter[Any]()
    for seed in range(30):
        history = TransactionsHistory(make_client, seed)
        for _ in range(60):
            history.step()
        history.end()
        ran += history.ran
    assert {"lost", "waited"} <= ran.keys(), f"no publish was lost with its link, or none waited for room: {ran}"


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
