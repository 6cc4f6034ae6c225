"""``fyrehose work``: what becomes of a record, by the exit status of its process."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure

from fyrehose.cli.client.remote import RemoteServer
from fyrehose.cli.client.work import Handling, client, run_work
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


def test_exit_status_of_the_command_decides_about_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    world, processes = World(), Processes([0, 75, 1, 137, *[0] * 6])
    done = run(processes, share(world))
    assert done.result == 1
    shown = world.show()
    assert (shown["settled_total"], shown["delayed"], shown["in_flight"]) == (7, 3, 0)
    args, env, data = processes.started[1]
    assert (args, data) == (["handle", "-x"], b"2")
    assert (env["FYREHOSE_STREAM"], env["FYREHOSE_SEQ"], env["FYREHOSE_FAILURES"]) == ("orders", "2", "0")
    said = capsys.readouterr().err
    assert "record 3 of orders: handle ended with status 1" in said
    assert "record 4 of orders: handle ended with status 137" in said
    assert "7 settled, 2 failed, 1 returned" in said
    world.clock.advance(2)
    assert [(each["seq"], each["failures"]) for each in world.lease(3)] == [(2, 0), (3, 1), (4, 1)]


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
