"""Test forwarding that cannot begin, and which subscriptions run when the file changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock, deferLater
from twisted.internet.testing import MemoryReactorClock

from fyrehose.forward.config import read_config
from fyrehose.forward.destination import place
from fyrehose.forward.kafka import KafkaTable
from fyrehose.forward.service import ForwardService, RunningForward


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
    while not running.problem:
        await deferLater(reactor, 0.01)  # type: ignore[arg-type]
    assert problem in running.problem
    await running.stop()
    logged_errors.take()


def test_pauses_begin_again_after_a_connection() -> None:
    """A day of outages must not make the pause after the next one a minute."""
    clock = MemoryReactorClock()
    table = KafkaTable(name="n", streams="s", to=(place("kafka://h:1"),), options={"no.such": "1"})
    running = RunningForward(clock, table)
    running.start()

    def pause() -> float:
        (call,) = clock.getDelayedCalls()
        return float(call.getTime() - clock.seconds())

    for _ in range(8):
        clock.advance(pause())
    assert pause() >= 20
    running.error = ""  # it has been connected
    clock.advance(pause())
    assert pause() <= 2
    ended = running.stop()
    assert ended.called


class Running:
    """A subscription that ends when the test says so."""

    def __init__(self, reactor: Any, table: Any) -> None:
        self.table, self.stopping, self.lag = table, False, None
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
    kept: list[Any] = list(service.running.values())
    task.addErrback(lambda failure: failure.trap(CancelledError)).cancel()
    assert all(each.stopping for each in kept)
    for each in kept:
        each.ended.callback(None)
    assert not service.running
    assert task.called
