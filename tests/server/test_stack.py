"""What a server opens from its configuration, and that a process opens it again in place of a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from fyrehose.errors import ConfigError, JournalFull
from fyrehose.observe.counters import Counters
from fyrehose.server.stack import Stack
from fyrehose.server.tap import RETRY, Options, ServerProcess
from tests.doubles.own_process import Ending, ServedJournal, StoppingReactor

LISTEN = "figg=tcp:8119:interface=127.0.0.1"
REPLICATION = '[replication]\nservers = ["nats://127.0.0.1:1"]\nname = "a"\n'


class Journal(ServedJournal):
    """A journal that opens and closes when the test says so."""

    opening: Any = None
    closing: Any = None

    def open(self, observer: Any) -> Any:
        opened = super().open(observer)
        return self.opening or opened

    def close(self) -> Any:
        closed = super().close()
        return self.closing or closed


class Reactor(StoppingReactor):
    """A reactor that says where it listens."""

    @property
    def listening(self) -> list[int]:
        return [port for port, *_ in self.tcpServers]


class World:
    """A server process whose journals are in memory; they are kept in the order in which they were made."""

    def __init__(self, ending: Ending, *words: str) -> None:
        self.own = ending.own
        self.journals: list[Journal] = []
        self.next: list[Journal | Exception] = []
        self.reactor = Reactor()
        self.options = Options()
        self.options.parseOptions(["--listen", LISTEN, *words])

    def journal(self, *_: Any, **__: Any) -> Journal:
        made = self.next.pop(0) if self.next else Journal()
        if isinstance(made, Exception):
            raise made
        self.journals.append(made)
        return made

    def start(self) -> ServerProcess:
        config, reread = self.options.resolved, self.options.resolve
        self.server = ServerProcess(self.reactor, config, reread=reread, own=self.own, make_journal=self.journal)
        self.server.startService()
        return self.server


@pytest.fixture
def world(ending: Ending, tmp_path: Path) -> Iterator[World]:
    made = World(ending, "--data-dir", str(tmp_path / "data"))
    yield made
    made.server.stopService()


def test_a_stack_has_the_journal_and_the_listeners_of_its_configuration(ending: Ending, tmp_path: Path) -> None:
    options = Options()
    options.parseOptions(["--data-dir", str(tmp_path / "data"), "--listen", LISTEN])
    counters = Counters()
    stack = Stack(Reactor(), options.resolved, counters)
    assert stack.journal.directory == tmp_path / "data"
    assert [service.name for service in stack.fyrehose] == ["figg (tcp:8119:interface=127.0.0.1)"]
    assert stack.fyrehose.broker.counters is counters
    assert not stack.journal.directory.exists(), "only a start creates files"


def test_a_member_of_a_cluster_asks_its_process_for_another_stack(ending: Ending, tmp_path: Path) -> None:
    tmp_path.joinpath("fyrehose.toml").write_text(REPLICATION)
    options = Options()
    options.parseOptions(["--config", str(tmp_path / "fyrehose.toml"), "--data-dir", str(tmp_path), "--listen", LISTEN])
    asked: list[str] = []
    stack = Stack(Reactor(), options.resolved, on_reopen=asked.append)
    stack.journal.gate.cluster.on_reopen("another server has taken over")
    assert asked == ["another server has taken over"]
    shared_log = stack.journal.gate.cluster.log
    assert (shared_log.name, shared_log.replicas, shared_log.limit) == ("fyrehose", 3, 8 << 30)


def test_a_server_that_cannot_continue_closes_everything_and_opens_it_again(world: World, log_lines: list[str]) -> None:
    server = world.start()
    first = server.stack
    closing: Deferred[None] = Deferred()
    world.journals[0].closing = closing
    first.on_reopen("another server has taken over")
    assert server.stack is first, "the journal is not closed yet"
    assert any("another server has taken over; the journal and all listeners are closed" in line for line in log_lines)
    closing.callback(None)
    assert server.stack is not first
    assert len(world.journals) == 2
    assert not first.fyrehose.running
    assert server.fyrehose.running
    assert world.reactor.listening == [8119, 8119]
    assert log_lines.count("serving") == 2
    assert server.fyrehose.broker.counters.counts["server", "reopenings"] == 1
    assert not world.reactor.stopped


def test_objects_of_a_closed_stack_are_freed_before_another_one_opens(world: World, ending: Ending) -> None:
    server = world.start()
    assert ending.freed == 1, "what the start has left"
    world.journals[0].closing = Deferred()
    server.stack.on_reopen("another server has taken over")
    assert ending.freed == 1, "the old stack is still open"
    world.journals[0].closing.callback(None)
    assert ending.freed == 3, "the old stack, and what the second start has left"


def test_only_the_first_of_several_reasons_opens_the_journal_again(world: World) -> None:
    server = world.start()
    world.journals[0].closing = Deferred()
    server.stack.on_reopen("one")
    server.stack.on_reopen("another")
    world.journals[0].closing.callback(None)
    assert len(world.journals) == 2


def test_a_server_that_is_stopped_while_it_reopens_stays_closed(world: World) -> None:
    server = world.start()
    world.journals[0].closing = closing = Deferred()
    server.stack.on_reopen("another server has taken over")
    stopped: list[None] = []
    server.stopService().addCallback(stopped.append)
    assert not stopped, "the reactor ends only when the journal is closed"
    closing.callback(None)
    assert stopped == [None]
    assert len(world.journals) == 1


def test_a_server_that_drains_continues_draining_after_it_was_reopened(world: World) -> None:
    server = world.start()
    server.fyrehose.broker.draining = True
    server.stack.journal.gate.unfit = "it is stopping"
    server.stack.on_reopen("another server has taken over")
    assert len(world.journals) == 2
    assert server.fyrehose.broker.draining
    assert server.stack.journal.gate.unfit == "it is stopping", "another server of the cluster goes on leading"


def test_reopening_uses_the_configuration_of_the_last_reload(world: World) -> None:
    server = world.start()
    world.options["option"] = {"server": {"max_streams": "7"}}
    server.reload()
    server.stack.on_reopen("another server has taken over")
    assert server.fyrehose.broker.max_streams == 7


def test_a_reload_during_a_reopening_applies_to_the_new_stack(world: World) -> None:
    server = world.start()
    world.journals[0].closing = closing = Deferred()
    server.stack.on_reopen("another server has taken over")
    world.options["option"] = {"server": {"max_streams": "7"}}
    answers: list[Any] = []
    server.reload().addCallback(answers.append)
    assert not answers
    closing.callback(None)
    assert answers[0].changed == ("server.max-streams: 100000 -> 7",)
    assert server.fyrehose.broker.max_streams == 7


def test_reopening_waits_while_the_disk_is_full(world: World) -> None:
    server = world.start()
    full, opened = Journal(), Journal()
    full.opening = Deferred()
    world.next = [full, opened]
    server.stack.on_reopen("another server has taken over")
    full.opening.errback(Failure(JournalFull("no space left")))
    assert not server.fyrehose.running
    world.reactor.advance(RETRY)
    assert server.fyrehose.running
    assert world.journals[2] is opened
    assert not world.reactor.stopped


def test_server_can_be_stopped_while_it_waits_for_a_full_disk(world: World) -> None:
    server = world.start()
    full = Journal()
    full.opening = Deferred()
    world.next = [full]
    server.stack.on_reopen("another server has taken over")
    full.opening.errback(Failure(JournalFull("no space left")))
    server.stopService()
    world.reactor.advance(RETRY)
    assert len(world.journals) == 2


def test_a_configuration_that_cannot_be_used_any_more_ends_the_process(
    world: World, ending: Ending, logged_errors: Any
) -> None:
    server = world.start()
    world.next = [ConfigError("the certificate is missing")]
    server.stack.on_reopen("another server has taken over")
    assert ending == ["twistd fyrehose: the certificate is missing", 2]
    assert world.reactor.stopped == 1
    assert logged_errors.take()
