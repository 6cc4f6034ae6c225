"""Test forwarding between servers in this process, or that cannot begin, and what runs when the file changes."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from errno import ECONNREFUSED
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectError
from twisted.internet.task import Clock, deferLater
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure

from fyrehose.broker.broker import Broker
from fyrehose.broker.guard import Guard
from fyrehose.broker.policy import parse
from fyrehose.broker.sequencer import Sequencer
from fyrehose.forward.config import read_config
from fyrehose.forward.destination import ForwardTable, place
from fyrehose.forward.engine import ForwardCounts
from fyrehose.forward.kafka import KafkaTable
from fyrehose.forward.metrics import rows
from fyrehose.forward.service import ANSWER, REPORTED, ForwardService, RunningForward
from fyrehose.identity import digest
from fyrehose.net.several import CONNECT_TIMEOUT
from fyrehose.protocols.http.server import HttpFactory, HttpSettings
from fyrehose.protocols.lumberjack.destination import LumberjackTable
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal


class Server:
    """A server that has an HTTP listener, and wants the token "secret"."""

    def __init__(self, **settings: Any) -> None:
        rights = {"publish": "*", "subscribe": "*", "consume": "*"}
        guard = Guard(parse({"allow": [{"token": f"sha256:{digest('secret')}", **rights}]}))
        self.journal = MemoryJournal()
        self.broker = Broker(reactor, self.journal, Sequencer(), guard=guard)
        self.broker.open()
        self.factory = HttpFactory(self.broker, HttpSettings(**settings), reactor)
        self.listening: Any = reactor.listenTCP(0, self.factory, interface="127.0.0.1")  # type: ignore[attr-defined]
        self.address = f"127.0.0.1:{self.listening.getHost().port}"

    def payloads(self, stream: str) -> list[bytes]:
        return [bytes(each) for run in self.journal.read(stream, 1, 1 << 20) for each in run.payloads()]


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    """Return a server to read, and one that accepts payloads up to 50 bytes."""
    made = Server(), Server(max_payload=50)
    yield made
    for server in made:
        pytest_twisted.blockon(server.listening.stopListening())
        server.broker.close()


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await deferLater(reactor, 0.01)  # type: ignore[arg-type]


@pytest_twisted.ensureDeferred
async def test_once_ends_when_each_record_is_delivered_or_a_dead_letter_and_this_is_reported(
    servers: tuple[Server, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first server of the list is down, and the destination refuses one record."""
    source, there = servers
    with socket.create_server(("127.0.0.1", 0)) as probe:
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
    monkeypatch.setenv("FORWARD_TEST", "secret")
    path, metrics = tmp_path / "forward.toml", tmp_path / "forward.prom"
    path.write_text(
        f'metrics = "{metrics}"\n[[forward]]\nname = "n"\nstreams = "in"\nfrom = ["{nobody}", "{source.address}"]\n'
        f'from-token = "env:FORWARD_TEST"\ntoken = "env:FORWARD_TEST"\n'
        f'to = "fyrehose://{there.address}"\nstream = "copy"\n'
    )
    source.broker.publish([Run.of("in", [b"1", b"x" * 51, b"3"], source="figg")])
    assert await ForwardService(reactor, path, read_config(path)).run(once=True) == 0
    assert there.payloads("copy") == [b"1", b"3"]
    (letter,) = map(json.loads, source.payloads("n.dead"))
    assert (letter["seq"], letter["payload"]) == (2, "x" * 51)
    (row,) = rows(metrics.read_text())
    assert (row["records"], row["bytes"], row["lag_records"]) == ("2", "2", "0")
    report = json.loads(source.broker.table.find("n").report.text)
    assert (report["delivered"], report["dead"], report["to"]) == (2, 1, f"fyrehose {there.address}")
    assert report["error"] == f"record 2 of stream 'in' is a dead letter: {letter['why']}"
    await until(lambda: not source.factory.connections and not there.factory.connections)


def test_report_has_the_rate_since_the_last_one_and_short_texts() -> None:
    clock = Clock()
    clock.advance(100.0)
    to = tuple(place(f"lumberjack://{'h' * 60}{at}:1") for at in range(9))
    running = RunningForward(clock, ForwardTable(name="n", streams="s", to=to), ForwardCounts(10, 99, 1, 2, 3))
    running.counts.delivered, running.counts.error, running.counts.error_at = 111, "e" * 400, 103.25
    running.error = "p" * 400
    clock.advance(4.0)
    shown = running.report()
    assert (shown.pop("rate"), shown.pop("error_ago")) == (25.2, 0.8)
    assert shown.pop("to") == ", ".join(f"lumberjack {each.authority}" for each in to)[:REPORTED]
    assert (shown.pop("problem"), shown.pop("error")) == ("p" * REPORTED, "e" * REPORTED)
    assert shown == {"delivered": 111, "delivered_bytes": 99, "dead": 1, "retries": 2, "lost": 3}
    running.counts.delivered += 1
    assert running.report()["rate"] == 10.0, "two reports at once"
    clock.advance(2.0)
    assert running.report()["rate"] == 0.0


def test_once_without_a_server_says_so_after_it_has_tried_the_ports_of_all(tmp_path: Path) -> None:
    clock, path = MemoryReactorClock(), tmp_path / "forward.toml"
    text = '[[forward]]\nname = "n"\nstreams = "s"\nto = "lumberjack://h:1"\nfrom = ["127.0.0.1", "127.0.0.1:5"]\n'
    path.write_text(text)
    ended: list[Any] = []
    Deferred.fromCoroutine(ForwardService(clock, path, read_config(path)).run(once=True)).addErrback(ended.append)
    tried = set()
    while not ended and clock.seconds() < 60.0:
        while clock.tcpClients:  # a failure begins the attempt at the next server
            _, port, factory, timeout, _ = clock.tcpClients.pop(0)
            tried.add((port, timeout))
            factory.clientConnectionFailed(None, Failure(ConnectError(ECONNREFUSED)))
        clock.advance(0.1)
    assert ended[0].getErrorMessage() == "n: reading: Connection refused"
    assert tried == {(8117, CONNECT_TIMEOUT), (5, CONNECT_TIMEOUT)}
    assert 10.0 < clock.seconds() < 12.0, "a server that starts has some time"


@pytest.mark.parametrize(
    ("options", "problem", "bugs"),
    [({"no.such": "1"}, "options: No such configuration property", 0), (5, "AttributeError(", 1)],
)
@pytest_twisted.ensureDeferred
async def test_failure_to_begin_is_said_and_tried_again(
    options: Any, problem: str, bugs: int, logged_errors: Any
) -> None:
    table = KafkaTable(name="n", streams="s", to=(place("kafka://h:1"),), options=options, longest_pause=0.01)
    running = RunningForward(reactor, table)
    running.start()
    assert problem in running.problem
    assert len(logged_errors.take()) == bugs
    running.error = ""
    await until(lambda: running.problem)
    assert problem in running.problem
    await running.stop()
    logged_errors.take()


@pytest.mark.parametrize("begun", [False, True])
def test_lag_is_unknown_while_no_server_is_asked_or_it_does_not_answer(begun: bool) -> None:
    """``--once`` would end with records left, if the last lag stayed."""
    clock = MemoryReactorClock()
    running = RunningForward(clock, LumberjackTable(name="n", streams="s", to=(place("lumberjack://h:1"),)))
    if begun:
        running.start()
    running.lag = 0
    asked = Deferred.fromCoroutine(running.measure())
    clock.advance(ANSWER * begun)
    assert asked.called
    assert running.lag is None
    if begun:
        ended = running.stop()
        assert ended.called


def test_pauses_begin_again_after_a_connection() -> None:
    """A day of outages must not make the pause after the next one a minute."""
    clock = MemoryReactorClock()
    table = KafkaTable(name="n", streams="s", to=(place("kafka://h:1"),), options={"no.such": "1"})
    running = RunningForward(clock, table)
    running.start()

    def pause() -> float:
        (call,) = clock.getDelayedCalls()
        return float(call.getTime() - clock.seconds())

    for failures in range(12):
        assert pause() == pytest.approx(min(0.1 * 2**failures, table.longest_pause), rel=0.2)
        clock.advance(pause())
    running.error = ""  # it has been connected
    clock.advance(pause())
    assert pause() == pytest.approx(0.1, rel=0.2)
    ended = running.stop()
    assert ended.called


class Running:
    """A subscription that ends when the test says so."""

    def __init__(self, reactor: Any, table: Any) -> None:
        self.table, self.stopping, self.lag = table, False, 3
        self.ended: Deferred[None] = Deferred()

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> Deferred[None]:
        self.stopping = True
        return self.ended

    async def measure(self) -> None:
        """Do nothing."""


def test_last_file_counts_also_while_a_subscription_is_ending(tmp_path: Path) -> None:
    path = tmp_path / "forward.toml"

    def write(*topics: str) -> None:
        tables = (
            f'[[forward]]\nname = "n{at}"\nstreams = "s"\nto = "kafka://h:1"\ntopic = "{topic}"\n'
            for at, topic in enumerate(topics)
        )
        path.write_text("".join(tables))

    def topics() -> dict[str, str]:
        return {name: each.table.topic.parts[0] for name, each in service.running.items()}  # type: ignore[attr-defined]

    write("a", "a")
    clock = Clock()
    service = ForwardService(clock, path, read_config(path), Running)  # type: ignore[arg-type]
    task = Deferred.fromCoroutine(service.run())
    first: Any = service.running["n0"]
    write("b", "a")
    service.reload()
    assert first.stopping
    assert topics() == {"n0": "a", "n1": "a"}
    write("c", "a")
    service.reload()
    first.ended.callback(None)
    assert topics() == {"n1": "a", "n0": "c"}
    other: Any = service.running["n1"]
    write("c")
    service.reload()
    write("c", "d")
    service.reload()
    other.ended.callback(None)
    assert topics() == {"n0": "c", "n1": "d"}
    path.write_text("[[forward]]\nname = 3\n")
    service.reload()
    kept: list[Any] = list(service.running.values())
    assert topics() == {"n0": "c", "n1": "d"}
    assert not any(each.stopping for each in kept), "an invalid file has stopped something"
    task.addErrback(lambda failure: failure.trap(CancelledError)).cancel()
    assert all(each.stopping for each in kept)
    for each in kept:
        each.ended.callback(None)
    assert not service.running
    assert task.called


@pytest.mark.parametrize("metrics", ["", "nowhere"])
def test_once_waits_as_long_as_records_are_left_and_begins_nothing_with_a_mistake(tmp_path: Path, metrics: str) -> None:
    clock, path, ended = Clock(), tmp_path / "forward.toml", list[Any]()
    path.write_text(f'metrics = "{metrics}"\n[[forward]]\nname = "n"\nstreams = "s"\nto = "kafka://h:1"\n')
    service = ForwardService(clock, path, read_config(path), Running)  # type: ignore[arg-type]
    Deferred.fromCoroutine(service.run(once=True)).addBoth(ended.append)
    if metrics:
        assert "expected FILE.prom or HOST:PORT" in ended[0].getErrorMessage()
        assert not service.running
        return
    running: Any = service.running["n"]
    clock.pump([0.2] * 100)
    assert not running.stopping
    running.lag = 0
    clock.advance(0.2)
    running.ended.callback(None)
    assert ended == [0]
