"""``fyrehose tail``: write the records of a tailer to standard output, which may be slow, or closed by its reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import attrs
import click
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from fyrehose.cli.contacts import Contacts
from fyrehose.cli.formats import Format
from fyrehose.cli.running import connected, worker
from fyrehose.errors import FyrehoseError
from fyrehose.records import Run

#: Bytes waiting for standard output at which the tailer is paused, and at which it is resumed.
HIGH, LOW = 4 << 20, 1 << 20

#: Most lost ranges that the final error lists.
MOST_NAMED = 10


@attrs.frozen
class Named:
    """A named subscription, and whether to displace another consumer of it."""

    name: str
    takeover: bool = False


@attrs.define(eq=False)
class Output:
    """Standard output, written by a thread, so that Ctrl-C works even while a write blocks.

    :ivar call: runs a blocking function in that thread
    :ivar tailer: paused while more than :data:`HIGH` bytes wait
    :ivar fd: the descriptor to write to
    :ivar waiting: bytes that are not yet written
    :ivar error: why writing failed; it may be set after ``ended`` fired
    """

    call: Callable[[Callable[[], None]], Deferred[None]]
    tailer: Any
    fd: int = 1
    waiting: int = 0
    error: Exception | None = None
    paused: bool = False
    ended: Deferred[None] = attrs.field(factory=Deferred)
    _drained: Deferred[None] | None = None

    def write(self, data: bytes) -> Deferred[bool]:
        """Queue ``data`` for writing.

        :return: fires with True when it is written, and with False if it cannot be
        """
        self.waiting += len(data)
        if self.waiting > HIGH and not self.paused:
            self.paused = True
            self.tailer.pause()
        return self.call(lambda: _write(self.fd, data)).addCallbacks(self._written, self._failed, (len(data),))

    def drained(self) -> Deferred[None]:
        """Return a Deferred that fires when everything is written, or writing has failed."""
        self._drained = Deferred()
        drained = self._drained
        if not self.waiting:
            drained.callback(None)
        return drained

    def end(self, error: Exception | None = None) -> None:
        """Fire ``ended``, with ``error`` if there is one; later calls do nothing."""
        if not self.ended.called:
            self.ended.callback(None) if error is None else self.ended.errback(error)

    def _written(self, _: None, size: int) -> bool:
        self.waiting -= size
        if self.paused and self.waiting <= LOW and not self.ended.called:
            self.paused = False
            self.tailer.resume()
        if self._drained is not None and not self.waiting and not self._drained.called:
            self._drained.callback(None)
        return True

    def _failed(self, failure: Failure) -> bool:
        if failure.check(BrokenPipeError):  # The reader of the pipe, such as head, needs no more.
            self.end()
        else:
            self.error = FyrehoseError(f"cannot write to standard output: {failure.getErrorMessage()}")
            self.end(self.error)
        if self._drained is not None and not self._drained.called:
            self._drained.callback(None)
        return False


async def tail(
    reactor: Any,
    tailer: Any,
    stream: str | None,
    form: Format,
    count: int | None,
    idle: float | None,
    timeout: float,
    where: Contacts,
    since: int | None = None,
    named: Named | None = None,
) -> int:
    """Write the messages of ``stream`` to standard output, until one of these: ``count`` messages are written, none has
    arrived for ``idle`` seconds, the reader of the output closes it, or Ctrl-C.

    :param timeout: the longest time to connect, in seconds
    :param since: the number before the first record; 0 begins with the oldest record that is kept
    :param named: the named subscription to consume: its position moves when messages are written
    :return: the exit status, 0
    :raises FyrehoseError: the server cannot be reached or refuses the client, records are missing, or standard output
        cannot be written
    """
    left = count
    waiting: IDelayedCall | None = None
    missing: list[str] = []
    why = ""
    short: str | None = None

    def take(run: Run) -> Deferred[Any] | None:
        nonlocal left
        if output.ended.called:
            return None if named is None else Deferred()  # A record that is not written is not consumed.
        if left is not None:
            run = run.slice(0, left)
            left -= len(run)
        written = output.write(form(run))
        if waiting is not None and idle is not None:
            waiting.reset(idle)
        if left == 0:
            output.end()
        # A record that cannot be written is not consumed, nor is what was cut off the run.
        return None if named is None else written.addCallback(lambda ok: run.last_seq if ok else Deferred())

    def lost(first: int, last: int, name: str | None = None) -> None:
        nonlocal why
        # Those of a pattern may have been published while there was no connection.
        why = "are no longer kept" if name is None or named is not None else "were not received"
        numbers = f"{first} to {last}" + ("" if name is None else f" of stream {name!r}")
        click.echo(f"fyrehose: records {numbers} {why}", err=True)
        if len(missing) < MOST_NAMED and not (since == 0 and first == 1):
            missing.append(numbers)

    def quiet() -> None:
        nonlocal short
        short = f"connection to {where} lost: {where.hint}" if where.broken else tailer.shortfall(False)
        output.end()

    tailer.subscribe(stream, take, since, lost, **({} if named is None else attrs.asdict(named)))
    output = Output(worker(reactor).call, tailer)
    try:
        await connected(reactor, tailer, timeout, where)
        where.watch(lambda: output.end(where.refused))
        if idle is not None and not output.ended.called:
            waiting = reactor.callLater(idle, quiet)
        await output.ended
        await output.drained()
        if named is not None:
            await deferLater(reactor, 0)  # The last record is consumed when the callbacks of its write have run.
        if output.error is not None:
            raise output.error
        short = tailer.shortfall(True) if short is None else short
        if missing and not short:
            short = f"{', '.join(missing)} {why}"
        if short:
            raise FyrehoseError(f"records are missing: {short}")
    finally:
        if waiting is not None and waiting.active():
            waiting.cancel()
        closed = tailer.close().addErrback(lambda failure: failure.trap(Exception))
        if named is not None:
            await closed  # The last acknowledgement is sent before.
    return 0


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
