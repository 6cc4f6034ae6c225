"""The protocol plugin and its service; tests/conformance has the tests that all plugins share."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import Closed
from fyrehose.interfaces import JournalState
from fyrehose.protocols.relink.plugin import links_stream, plugin
from fyrehose.protocols.relink.service import DISK_FULL_RETRY
from fyrehose.testing import MemoryJournal


def listener(state: JournalState = JournalState.WRITABLE, auto: bool = True) -> tuple[Any, MemoryReactorClock, Any]:
    """Return a journal in *state*, its reactor, and the service of a listener."""
    journal = MemoryJournal(auto=auto)
    broker = Broker(Clock(), journal, Sequencer())
    broker.open()
    journal.enter(state, "a test wants it")
    reactor = MemoryReactorClock()
    service = plugin.make_service(reactor, broker, plugin.default_endpoint, plugin.settings())
    service.broker = broker
    return journal, reactor, service


def test_full_disk_keeps_only_this_listener_closed(log_lines: list[str]) -> None:
    journal, reactor, service = listener(JournalState.READ_ONLY)
    assert service.startService().called, "the start of the server continues with the next listener"
    reactor.advance(DISK_FULL_RETRY)
    assert not reactor.tcpServers
    assert any("the listener stays closed until its links can be written" in line for line in log_lines)
    journal.enter(JournalState.WRITABLE, "room")
    reactor.advance(DISK_FULL_RETRY)
    assert [server[0] for server in reactor.tcpServers] == [7733]
    assert service.stopService().called
    assert not reactor.getDelayedCalls()


def test_a_leader_that_is_deposed_while_it_writes_its_links_keeps_only_this_listener_closed() -> None:
    _, reactor, service = listener(auto=False)
    started: list[Any] = []
    service.startService().addBoth(started.append)
    service.broker.stuck("another server leads")
    assert started == [None], "a start that does not end could not be stopped, and an error would end the server"
    assert not reactor.tcpServers
    service.stopService()
    assert not reactor.getDelayedCalls()


def test_a_journal_that_fails_while_links_are_written_ends_the_start() -> None:
    journal, reactor, service = listener(auto=False)
    started: list[Any] = []
    service.startService().addBoth(started.append)
    journal.enter(JournalState.FAILED, "it failed while it wrote")
    assert started[0].check(Closed)
    service.stopService()
    assert not reactor.getDelayedCalls()


def test_links_that_fail_when_the_server_has_stopped_are_not_written_again() -> None:
    journal, reactor, service = listener(auto=False)
    service.startService()
    service.stopService()
    journal.close()
    assert not reactor.getDelayedCalls()


def test_failed_journal_leaves_the_listener_closed(logged_errors: Any) -> None:
    journal, reactor, service = listener(JournalState.READ_ONLY)
    service.startService()
    journal.enter(JournalState.FAILED, "broken")
    reactor.advance(DISK_FULL_RETRY)
    (error,) = logged_errors.take()
    assert "the listener stays closed" in error["log_format"]
    service.stopService()
    assert not reactor.getDelayedCalls()


def test_each_endpoint_has_its_own_links_stream() -> None:
    assert links_stream("tcp:1") != links_stream("tcp:2")
    assert "secret.pem" not in links_stream("ssl:1:privateKey=secret.pem")


def test_listeners_with_the_same_option_links_share_their_links_over_servers() -> None:
    """The servers of a cluster listen on different addresses; links have to be found at each of them."""

    def stream(endpoint: str, links: str) -> str:
        broker = Broker(Clock(), MemoryJournal(), Sequencer())
        service = plugin.make_service(MemoryReactorClock(), broker, endpoint, plugin.settings(links=links))
        return service.registry.stream

    here, there = "tcp:7733:interface=10.0.0.1", "tcp:7733:interface=10.0.0.2"
    assert stream(here, "") != stream(there, "")
    assert stream(here, "main") == stream(there, "main") != stream(here, "other")


class ServiceHistory:
    """Starts and stops a listener at random, while its disk is full or slow; it listens once its links are durable."""

    def __init__(self, seed: int) -> None:
        self.dice, self.ran = Random(seed), Counter[str]()
        self.journal, self.reactor, self.service = listener(auto=False)
        self.running = False
        self.listening = self.opened = 0

    def step(self, what: str = "") -> None:
        what = what or self.dice.choice(("start", "stop", "commit", "commit", "fill", "room", "wait"))
        self.ran[what] += 1
        getattr(self, what)()
        opened, self.opened = len(self.reactor.tcpServers) - self.opened, len(self.reactor.tcpServers)
        assert not opened or self.running, "a service that was stopped listens"
        assert not opened or what in ("commit", "room"), "it listens before its links are durable"
        self.listening += opened
        assert self.listening < 2, "it listens twice"

    def start(self) -> None:
        if not self.running:
            for what in ("room", "commit", "commit", "commit"):  # a server ends all writes before it starts again
                self.step(what)
            self.running = True
            self.service.startService()

    def stop(self) -> None:
        if self.running:
            self.ran["stopped while it starts"] += not self.listening
            self.running, self.listening = False, 0
            self.service.stopService()
            assert not self.reactor.getDelayedCalls(), "a service that was stopped goes on"

    def commit(self) -> None:
        self.journal.commit()

    def fill(self) -> None:
        self.journal.enter(JournalState.READ_ONLY, "full")

    def room(self) -> None:
        self.journal.enter(JournalState.WRITABLE, "room")

    def wait(self) -> None:
        self.reactor.advance(DISK_FULL_RETRY)

    def end(self) -> None:
        for what in ("start", "room", *("wait", "commit", "commit", "commit") * 3):
            self.step(what)
        assert self.listening == 1, "there is room, and it does not listen"
        self.step("stop")


def test_listener_that_is_started_and_stopped_listens_once_its_links_are_durable() -> None:
    ran = Counter[str]()
    for seed in range(60):
        history = ServiceHistory(seed)
        for _ in range(40):
            history.step()
        history.end()
        ran += history.ran
    assert ran["stopped while it starts"] > 50, "the service was hardly ever stopped while it started"
