"""``fyrehose tail``: from a tailer to standard output, which may be slower, or gone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import attrs
import click
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.python.failure import Failure

from fyrehose.cli.contacts import Contacts
from fyrehose.cli.formats import Format
from fyrehose.cli.running import connected, worker
from fyrehose.errors import FyrehoseError
from fyrehose.records import Run

#: What may wait for standard output before the server is asked to pause, in bytes, and when it may go on.
HIGH, LOW = 4 << 20, 1 << 20

#: Lost ranges that the error at the end names.
MOST_NAMED = 10

Take = Callable[[Run], None]
Lost = Callable[[int, int], None]


@attrs.define(eq=False)
class Output:
    """Standard output, written by a thread: it may block for ever, and Ctrl-C still works.

    :ivar call: does what blocks in that thread
    :ivar tailer: is paused while too much waits
    :ivar fd: where to
    """

    call: Callable[[Callable[[], None]], Deferred[None]]
    tailer: Any
    fd: int = 1
    waiting: int = 0
    #: what kept it from being written, be it after the end
    error: Exception | None = None
    paused: bool = False
    ended: Deferred[None] = attrs.field(factory=Deferred)
    _drained: Deferred[None] | None = None

    def write(self, data: bytes) -> None:
        """Write ``data`` as soon as what came before is out."""
        self.waiting += len(data)
        if self.waiting > HIGH and not self.paused:
            self.paused = True
            self.tailer.pause()
        self.call(lambda: _write(self.fd, data)).addCallbacks(self._written, self._failed, (len(data),))

    def drained(self) -> Deferred[None]:
        """Fires when everything is out."""
        self._drained = Deferred()
        drained = self._drained
        if not self.waiting:
            drained.callback(None)
        return drained

    def end(self, error: Exception | None = None) -> None:
        """Nothing more is wanted, or can be had."""
        if not self.ended.called:
            self.ended.callback(None) if error is None else self.ended.errback(error)

    def _written(self, _: None, size: int) -> None:
        self.waiting -= size
        if self.paused and self.waiting <= LOW and not self.ended.called:
            self.paused = False
            self.tailer.resume()
        if self._drained is not None and not self.waiting and not self._drained.called:
            self._drained.callback(None)

    def _failed(self, failure: Failure) -> None:
        if failure.check(BrokenPipeError):  # whoever read it has seen enough
            self.end()
        else:
            self.error = FyrehoseError(f"standard output cannot be written: {failure.getErrorMessage()}")
            self.end(self.error)
        if self._drained is not None and not self._drained.called:
            self._drained.callback(None)


async def tail(
    reactor: Any,
    make_tailer: Callable[[Take, Lost], Any],
    form: Format,
    count: int | None,
    idle: float | None,
    timeout: float,
    where: Contacts,
    since: int | None = None,
) -> int:
    """Write what the tailer hands out until ``count`` messages are written, nothing has come for ``idle`` seconds, the
    reader leaves, or Ctrl-C; 0.

    :param since: the number behind which the tailer begins; 0: with the oldest record that is kept
    :raises FyrehoseError: the server is not there or turns us away, some of what was asked for did not come, or
        standard output cannot be written
    """
    left = count
    waiting: IDelayedCall | None = None
    missing: list[str] = []
    short: str | None = None

    def take(run: Run) -> None:
        nonlocal left
        if output.ended.called:
            return
        if left is not None:
            run = run.slice(0, left)
            left -= len(run)
        output.write(form(run))
        if waiting is not None and idle is not None:
            waiting.reset(idle)
        if left == 0:
            output.end()

    def lost(first: int, last: int) -> None:
        click.echo(f"fyrehose: {first} to {last} are not kept any more", err=True)
        if len(missing) < MOST_NAMED and not (since == 0 and first == 1):
            missing.append(f"{first} to {last}")

    def quiet() -> None:
        nonlocal short
        short = f"the connection to {where} is lost: {where.hint}" if where.broken else tailer.shortfall(False)
        output.end()

    tailer = make_tailer(take, lost)
    output = Output(worker(reactor).call, tailer)
    try:
        await connected(reactor, tailer, timeout, where)
        where.watch(lambda: output.end(where.turned_away))
        if idle is not None and not output.ended.called:
            waiting = reactor.callLater(idle, quiet)
        await output.ended
        await output.drained()
        if output.error is not None:
            raise output.error
        short = tailer.shortfall(True) if short is None else short
        if missing and not short:
            short = f"{', '.join(missing)} were asked for and are not kept any more"
        if short:
            raise FyrehoseError(f"not everything came: {short}")
    finally:
        if waiting is not None and waiting.active():
            waiting.cancel()
        tailer.close().addErrback(lambda failure: failure.trap(Exception))
    return 0


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
