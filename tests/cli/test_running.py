"""A reactor for one command: its status, its errors, and Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from fyrehose.cli import running
from fyrehose.cli.client.failures import FinalFailures
from fyrehose.errors import FyrehoseError

PROGRAM = """
import sys
from twisted.internet.defer import Deferred, CancelledError
from twisted.internet.task import deferLater
from fyrehose.cli import running
from fyrehose.errors import FyrehoseError
{command}
try:
    sys.exit(running.run(command))
except FyrehoseError as error:
    sys.exit(f"said: {{error}}")
"""

SLOW = """
async def command(reactor):
    reactor.callLater(0, print, "running", flush=True)
    try:
        await Deferred()
    finally:
        print("cleaned up", flush=True)
"""


def program(command: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(command=command)]


def ran(command: str) -> tuple[int, str, str]:
    ended = subprocess.run(program(command), capture_output=True, text=True, check=False, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("status", [0, 1])
def test_exit_status_is_that_of_the_command(status: int) -> None:
    code = f"async def command(reactor):\n await deferLater(reactor, 0.01, print, 'x')\n return {status}"
    assert ran(code) == (status, "x\n", "")


@pytest.mark.slow
def test_fyrehose_error_is_raised_unchanged() -> None:
    assert ran("async def command(reactor): raise FyrehoseError('no server')") == (1, "", "said: no server\n")


@pytest.mark.slow
def test_other_exceptions_keep_their_traceback() -> None:
    status, _, errors = ran("async def command(reactor): return 1 / 0")
    assert status == 1
    assert errors.rstrip().endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_cancels_the_command(number: signal.Signals) -> None:
    with subprocess.Popen(program(SLOW), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(number)
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (128 + number, "cleaned up\n", "")


class Client:
    problem = "Connection refused"

    def __init__(self, connecting: Deferred[Any]) -> None:
        self.connect = lambda: connecting


def outcome_of(client: Client, clock: Clock) -> list[Any]:
    outcome: list[Any] = []
    connecting = Deferred.fromCoroutine(running.connected(clock, client, 5, FinalFailures("figg at h:1")))
    connecting.addCallbacks(outcome.append, lambda failure: outcome.append(str(failure.value)))
    return outcome


def test_connect_returns_or_raises_the_clients_error() -> None:
    assert outcome_of(Client(succeed("whatever")), Clock()) == [None]
    assert outcome_of(Client(fail(FyrehoseError("not allowed"))), Clock()) == ["not allowed"]
    refused = fail(ConnectionRefusedError("Connection refused"))
    assert outcome_of(Client(refused), Clock()) == ["cannot connect to figg at h:1: Connection refused"]


def test_connect_times_out() -> None:
    clock = Clock()
    outcome = outcome_of(Client(Deferred()), clock)
    clock.advance(4.9)
    assert not outcome
    clock.advance(0.1)
    assert outcome == [
        (
            "figg at h:1 did not answer within 5 s; Connection refused; is the server running and reachable, "
            "and does its access policy allow this client?"
        )
    ]


def test_only_warnings_of_clients_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    log = Logger(namespace="x", observer=running._warn)
    log.info("connected")
    log.warn("{what} was lost", what="the connection")
    log.emit(LogLevel.critical, "it failed", log_failure=Failure(ValueError("why")))
    assert capsys.readouterr().err == "fyrehose: the connection was lost\nfyrehose: it failed: why\n"
