"""Run a command in the reactor until it ends or Ctrl-C cancels it, with a thread for blocking calls."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

import click
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogBeginner
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.cli.client.failures import FinalFailures
from fyrehose.errors import FyrehoseError
from fyrehose.journal.commit import ThreadWorker

Command = Callable[[Any], Coroutine[Deferred[Any], Any, int]]


def run(command: Command) -> int:
    """Run ``command(reactor)`` to its end; start the reactor for it, and stop the reactor afterwards.

    :return: the exit status that it returned, or 128 plus the number of the signal that ended it
    :raises FyrehoseError: the command raised it
    """
    from twisted.internet import reactor

    reactor.seconds = time.monotonic  # type: ignore[method-assign]  # Timers must not depend on the wall clock.
    globalLogBeginner.beginLoggingTo([_warn], redirectStandardIO=False)
    ended: list[Any] = []
    reactor.callWhenRunning(_start, reactor, command, ended)
    reactor.run()
    result = ended[0] if ended else 1
    if isinstance(result, Failure):
        result.raiseException()
    return int(result)


def worker(reactor: Any) -> ThreadWorker:
    """Start a thread for reads and writes that may block; the process exits without waiting for the thread."""
    return ThreadWorker(reactor.callFromThread, "fyrehose input and output")


async def connected(reactor: Any, client: Any, timeout: float, failures: FinalFailures) -> None:
    """Connect ``client`` to the server.

    :raises FyrehoseError: it could not connect within ``timeout`` seconds, or a failure is final
    """
    connecting: Deferred[Any] = client.connect()
    if not connecting.called:
        # Resume the caller in a later iteration of the reactor, outside of the client's callbacks, because the caller
        # may close the client.
        connecting.addCallback(lambda result: deferLater(reactor, 0, lambda: result))
    patience = reactor.callLater(timeout, connecting.cancel)
    try:
        await connecting
    except OSError as error:
        raise FyrehoseError(f"cannot connect to {failures}: {error}") from error
    except CancelledError as error:
        if patience.active():
            raise
        hint = failures.hint(client.problem)
        raise FyrehoseError(f"{failures} did not answer within {timeout:g} s; {hint}") from error
    finally:
        if patience.active():
            patience.cancel()


def _start(reactor: Any, command: Command, ended: list[Any]) -> None:
    task = Deferred.fromCoroutine(_awaited(command, reactor))
    interrupted: list[int] = []

    def end(result: Any) -> None:
        by_signal = isinstance(result, Failure) and interrupted
        ended.append(128 + interrupted[0] if by_signal else result)
        reactor.stop()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if interrupted:
            os._exit(128 + number)  # The second signal ends the process even if cancelling takes long.
        interrupted.append(number)
        reactor.callFromThread(task.cancel)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    task.addBoth(end)


@implementer(ILogObserver)
def _warn(event: LogEvent) -> None:
    """Print the warnings and errors that clients log on standard error, one line each."""
    if event.get("log_level", LogLevel.info) >= LogLevel.warn:
        failure = event.get("log_failure")
        message = formatEvent(event) + (f": {failure.getErrorMessage()}" if failure is not None else "")
        click.echo(f"fyrehose: {message}", err=True, file=sys.stderr)


async def _awaited(command: Command, reactor: Any) -> int:
    """Call ``command`` and await its result; an error of the call itself becomes one of the coroutine."""
    return await command(reactor)
