"""``fyrehose publish``: from a source to a publisher, with a window between them, a count, and a bar for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from fyrehose.cli.contacts import Contacts
from fyrehose.cli.running import connected, worker
from fyrehose.cli.sources import Source
from fyrehose.errors import FyrehoseError

#: How long taking leave of the server may take, in seconds.
FAREWELL = 5.0


@attrs.define(eq=False)
class Tally:
    """What became of the messages."""

    published: int = 0
    acknowledged: int = 0
    refused: int = 0
    size: int = 0
    reason: str = ""
    changed: float = 0.0  #: when one was acknowledged or refused, or the first of many was published
    settled: Deferred[None] | None = None

    @property
    def under_way(self) -> int:
        return self.published - self.acknowledged - self.refused

    def add(self, published: Deferred[Any], size: int, now: Any) -> None:
        """A message of ``size`` bytes is under way."""
        if not self.under_way:
            self.changed = now()
        self.published += 1
        self.size += size

        def settle(result: Any) -> None:
            if isinstance(result, Failure):
                self.refused += 1
                self.reason = self.reason or result.getErrorMessage()
            else:
                self.acknowledged += 1
            self.changed = now()
            if self.settled is not None and not self.under_way:
                settled, self.settled = self.settled, None
                settled.callback(None)

        published.addBoth(settle)

    def all_settled(self) -> Deferred[None]:
        """Fires when nothing is under way."""
        self.settled = Deferred()
        settled = self.settled
        if not self.under_way:
            settled.callback(None)
            self.settled = None
        return settled

    def summary(self, seconds: float) -> str:
        """One line for people."""
        messages = f"{self.published} message{'' if self.published == 1 else 's'} ({decimal(self.size)})"
        if self.acknowledged == self.published:
            rate = f", {self.published / seconds:,.0f}/s" if seconds > 0.1 else ""
            return f"{messages} published and acknowledged in {seconds:.1f} s{rate}"
        because = f": {self.reason}" if self.reason else ""
        return (
            f"{messages} published, {self.acknowledged} acknowledged, {self.published - self.acknowledged} not{because}"
        )


async def publish(reactor: Any, publisher: Any, source: Source, timeout: float, where: Contacts) -> int:
    """Publish all of ``source``; 0 if the server has acknowledged all of it, else 1.

    :raises FyrehoseError: the server is not there, the source cannot be read
    """
    tally, began = Tally(), reactor.seconds()
    try:
        await connected(reactor, publisher, timeout, where)
        with _bar(source, tally, reactor) as advance:
            work = Deferred.fromCoroutine(_publish_all(reactor, publisher, source, tally, advance))
            await _unless_stalled(reactor, work, tally, timeout, where)
    except FyrehoseError as error:
        if not tally.published:
            raise
        tally.reason = tally.reason or str(error)
        click.echo(f"fyrehose: {tally.summary(reactor.seconds() - began)}", err=True)
        return 1
    except CancelledError:
        click.echo(f"fyrehose: interrupted; {tally.summary(reactor.seconds() - began)}", err=True)
        raise
    finally:
        closed: Deferred[Any] = publisher.close()
        closed.addErrback(lambda failure: None)  # it has been said what came of it
    click.echo(f"fyrehose: {tally.summary(reactor.seconds() - began)}", err=True)
    # Some protocols take their leave, and the server keeps something for them if they do not.
    await closed.addTimeout(FAREWELL, reactor).addErrback(lambda failure: None)
    return 0 if tally.acknowledged == tally.published else 1


async def _publish_all(reactor: Any, publisher: Any, source: Source, tally: Tally, advance: Any) -> None:
    async for size, messages in source.batches(worker(reactor).call):
        for message in messages:
            await publisher.ready()
            tally.add(maybeDeferred(publisher.publish, message), len(message), reactor.seconds)
        advance(size)
    await tally.all_settled()


async def _unless_stalled(reactor: Any, work: Deferred[None], tally: Tally, timeout: float, where: Contacts) -> None:
    """Wait for ``work``, but not for a server that turns us away, or acknowledges nothing for ``timeout`` seconds."""
    stalled = False

    def look() -> None:
        nonlocal stalled
        if tally.under_way and reactor.seconds() - tally.changed > timeout:
            stalled = True
            work.cancel()

    looking = LoopingCall(look)
    looking.clock = reactor
    looking.start(min(timeout / 4, 1.0), now=False)
    where.watch(work.cancel)
    try:
        await work
    except CancelledError as error:
        if where.turned_away is not None:
            raise where.turned_away from error
        if not stalled:
            raise
        raise FyrehoseError(f"{where} has not acknowledged anything for {timeout:g} s; {where.hint}") from error
    finally:
        looking.stop()


@contextmanager
def _bar(source: Source, tally: Tally, reactor: Any) -> Iterator[Any]:
    """A progress bar where standard error is a terminal; is told how many bytes were read."""
    if not sys.stderr.isatty():
        yield lambda size: None
        return
    columns = [
        TextColumn("{task.fields[acknowledged]:,} acknowledged"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as progress:
        task = progress.add_task("", total=source.total, acknowledged=0)

        def refresh() -> None:
            progress.update(task, acknowledged=tally.acknowledged)
            progress.refresh()

        refreshing = LoopingCall(refresh)
        refreshing.clock = reactor
        refreshing.start(0.1)
        try:
            yield lambda size: progress.advance(task, size)
        finally:
            refreshing.stop()
