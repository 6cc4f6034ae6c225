"""``fyrehose work``: what becomes of a record, by the exit status of its process."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure

from fyrehose.cli.client.remote import RemoteServer
from fyrehose.cli.client.work import COUNTS, Handling, client, run_work
from fyrehose.errors import ConfigError
from fyrehose.protocols.http.workers import SharedWork
from tests.protocols.http.test_leasing import World
from tests.protocols.http.test_workers import share


@attrs.define
class Processes:
    """A reactor whose processes end with the next of *statuses*; above 128: by a signal; None: they do not end."""

    statuses: list[int | None]
    started: list[tuple[list[str], dict[str, str], bytes]] = attrs.field(factory=list)
    handling: list[Handling] = attrs.field(factory=list)
    signals: list[object] = attrs.field(factory=list)

    def spawnProcess(self, handling: Handling, program: str, args: list[str], env: Any, childFDs: Any) -> None:
        handling.transport = self
        self.handling.append(handling)
        self.started.append((list(args), env, b""))
        handling.connectionMade()
        status = self.statuses.pop(0)
        if status is not None:
            self.end(status)

    def end(self, status: int) -> None:
        reason = ProcessDone(0) if status == 0 else ProcessTerminated(status if status < 128 else None, status % 128)
        self.handling[-1].processEnded(Failure(reason))

    def write(self, data: bytes) -> None:
        args, env, _ = self.started[-1]
        self.started[-1] = args, env, data

    def closeStdin(self) -> None:
        """End the standard input of the process."""

    def signalProcess(self, number: object) -> None:
        self.signals.append(number)


def run(processes: Processes, *works: SharedWork) -> Deferred[int]:
    return Deferred.fromCoroutine(run_work(processes, works, ["handle", "-x"]))


#: What becomes of a record whose process ends with a status; -1: with 0, after another
#: worker has settled the record.
OUTCOMES = {0: "settled", 75: "returned", 1: "failed", 137: "failed", -1: "lost"}


def test_random_exit_statuses_and_lost_leases_decide_about_records(capsys: pytest.CaptureFixture[str]) -> None:
    """The worker's clock stands still, so that it does not extend its leases; the server's is that of the model."""
    dice, happened, statuses = Random(3), Counter[str](), Counter[int | None]()
    for number in range(40):
        world, processes, counts, failures = World(), Processes([None] * 99), Counter[str](), Counter[str]()
        kinds, lines = dice.sample(list(OUTCOMES), dice.randint(1, 4)), list[str]()
        done = run(processes, share(world, clock=Clock()))
        while not done.called:
            args, env, data = processes.started[-1]
            seq = env["FYREHOSE_SEQ"]
            assert (args, data, env["FYREHOSE_STREAM"]) == (["handle", "-x"], seq.encode(), "orders")
            assert env["FYREHOSE_FAILURES"] == f"{failures[seq]}", f"failures of record {seq} in run {number}"
            status = dice.choice(kinds) if len(processes.started) <= 10 else 0
            counts[OUTCOMES[status]] += 1
            failures[seq] += OUTCOMES[status] == "failed"
            if status in (1, 137):
                lines.append(f"fyrehose: record {seq} of orders: handle ended with status {status}")
            if status == -1:
                world.clock.pump([31, 60])
                taken = world.lease(99, "w2")
                items = {str(each["seq"]): [each["seq"], each["token"]] for each in taken}
                world.settle(done=[items.pop(seq)], untried=[[*item, {"delay": 0}] for item in items.values()])
                lines.append(f"fyrehose: record {seq} of stream 'orders' was not settled: final")
            processes.end(max(status, 0))
        names = [name for name in COUNTS if counts[name] or name == "settled"]
        lines.append("fyrehose: " + ", ".join(f"{counts[name]} {name}" for name in names))
        assert capsys.readouterr().err.splitlines() == lines
        assert done.result == bool(counts["failed"] or counts["lost"]), f"exit status after {lines[-1]}"
        shown = world.show()
        assert (shown["settled_total"], shown["in_flight"]) == (counts["settled"] + counts["lost"], 0)
        statuses[done.result] += 1
        happened += counts
    assert (happened.keys(), statuses.keys()) == (set(COUNTS), {0, 1}), "not every outcome, or not both statuses"


def test_several_processes_run_at_once() -> None:
    world, processes = World(), Processes([None, None])
    done = run(processes, *(share(world) for _ in range(2)))
    assert len(processes.started) == 2
    done.cancel()
    assert len(processes.signals) == 2
    assert world.show()["in_flight"] == 0, "an interrupted record is returned"
    done.addErrback(lambda _: None)


def test_a_refusal_ends_the_command() -> None:
    world = World()
    done = run(Processes([]), share(world, limit=-1))
    error: list[Any] = []
    done.addErrback(error.append)
    assert "limit" in str(error[0].value)


def test_client_requires_a_url_without_path_and_authorities_for_tls() -> None:
    made = client(MemoryReactorClock(), RemoteServer.of("http://there:8117"))
    assert made.authority == "there:8117"
    for url in ("http://there:1/path", "https://there:1"):
        with pytest.raises(ConfigError):
            client(MemoryReactorClock(), RemoteServer.of(url))
