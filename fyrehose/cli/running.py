"""A reactor for as long as one command takes, a thread for what blocks, and a way out by Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

import click
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogBeginner
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.cli.contacts import Contacts
from fyrehose.errors import FyrehoseError
from fyrehose.journal.worker import ThreadWorker

Command = Callable[[Any], Coroutine[Deferred[Any], Any, int]]


def run(command: Command) -> int:
    """Run ``command(reactor)`` to its end; the status that it returned, or 128 and the signal that ended it.

    :raises FyrehoseError: what it raised
    """
    from twisted.internet import reactor

    reactor.seconds = time.monotonic  # type: ignore[method-assign]  # timers must not notice that the clock is set
    globalLogBeginner.beginLoggingTo([_warn], redirectStandardIO=False)
    ended: list[Any] = []
    reactor.callWhenRunning(_start, reactor, command, ended)
    reactor.run()
    result = ended[0] if ended else 1
    if isinstance(result, Failure):
        result.raiseException()
    return int(result)


def worker(reactor: Any) -> ThreadWorker:
    """A thread for reading and writing what may block; the program does not wait for it in the end."""
    return ThreadWorker(reactor.callFromThread, "fyrehose input and output")


async def connected(reactor: Any, client: Any, timeout: float, where: Contacts) -> None:
    """Connect ``client``.

    :raises FyrehoseError: it could not, in ``timeout`` seconds, or is turned away
    """
    connecting: Deferred[Any] = client.connect()
    if not connecting.called:
        # Not from within the client's own call: what comes next may be to close it.
        connecting.addCallback(lambda result: deferLater(reactor, 0, lambda: result))
    where.watch(connecting.cancel)
    patience = reactor.callLater(timeout, connecting.cancel)
    try:
        await connecting
    except OSError as error:
        raise FyrehoseError(f"{where} cannot be reached: {error}") from error
    except Exception as error:
        if where.turned_away is not None:
            raise where.turned_away from error
        if patience.active():
            raise
        raise FyrehoseError(f"{where} did not answer in {timeout:g} s; {where.hint}") from error
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
            os._exit(128 + number)  # asked twice: whatever it is that takes so long
        interrupted.append(number)
        reactor.callFromThread(task.cancel)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    task.addBoth(end)


@implementer(ILogObserver)
def _warn(event: LogEvent) -> None:
    """What clients log, if it is for people, in one line on standard error."""
    if event.get("log_level", LogLevel.info) >= LogLevel.warn:
        failure = event.get("log_failure")
        said = formatEvent(event) + (f": {failure.getErrorMessage()}" if failure is not None else "")
        click.echo(f"fyrehose: {said}", err=True, file=sys.stderr)


async def _awaited(command: Command, reactor: Any) -> int:
    """``command``, whose very call may raise, too: that would only be logged, and the reactor would go on."""
    return await command(reactor)
