"""``fyrehose publish``: publish the messages of a source, count the acknowledgements, and show a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from fyrehose.cli import running
from fyrehose.cli.client import sources
from fyrehose.cli.client.failures import FinalFailures
from fyrehose.cli.client.remote import TOKEN_FILE
from fyrehose.cli.client.servers import ADDRESS_HELP, PROTOCOL, TLS, server
from fyrehose.cli.client.sources import Source
from fyrehose.cli.client.values import ADDRESSES, DURATION, WholeNumber
from fyrehose.cli.console import SpeedColumn
from fyrehose.cli.running import connected, worker
from fyrehose.errors import FyrehoseError
from fyrehose.options import counted, shown_size

#: Timeout of closing the publisher, in seconds.
CLOSE_TIMEOUT = 5.0


@click.command(short_help="Publish messages, or the lines of files.")
@PROTOCOL
@click.option("--to", "addresses", type=ADDRESSES, default="127.0.0.1", help=ADDRESS_HELP)
@TLS
@TOKEN_FILE
@click.option("--stream", metavar="NAME", help="Stream to publish to (not with backbone).")
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="PATH",
    help="Publish the lines of PATH; - is standard input.",
    type=click.Path(),
)
@click.option("--whole", is_flag=True, help="Publish each file, or argument, as one message.")
@click.option(
    "--window",
    type=WholeNumber(1, 100_000),
    default=1000,
    show_default=True,
    help="Most unacknowledged messages.",
)
@click.option("--transaction", type=WholeNumber(1), metavar="N", help="Commit every N messages together (relink).")
@click.option("--timeout", type=DURATION, default="10s", show_default=True, help="How long to wait for the server.")
@click.argument("messages", nargs=-1)
def publish(
    protocol: str,
    addresses: tuple[tuple[str, int | None], ...],
    tls: str | None,
    token_file: Path | None,
    stream: str | None,
    files: tuple[str, ...],
    whole: bool,
    window: int,
    transaction: int | None,
    timeout: float,
    messages: tuple[str, ...],
) -> None:
    """Publish MESSAGES, the lines of files, or the lines of standard input.

    Exit status 0: the server has acknowledged every message; it has them on disk.

    \b
        fyrehose publish --stream notes "first message" "second message"
        journalctl -f | fyrehose publish --protocol backbone
        fyrehose publish --protocol relink --stream s --transaction 50 --file f
    """
    if whole:
        source = sources.whole_files([*files, *messages])
    elif messages and files:
        raise click.UsageError("pass either MESSAGES or --file; with --whole, arguments are files")
    elif messages:
        source = sources.arguments(messages)
    else:
        if not files and sys.stdin is not None and sys.stdin.isatty():
            click.echo("fyrehose: reading messages from standard input, one a line; Ctrl-D to finish", err=True)
        source = sources.lines_of(files or ("-",))
    at = server(protocol, addresses[0], tls, addresses[1:], token_file)
    status = running.run(
        lambda reactor: publish_from(
            reactor, at.publisher(reactor, stream, window, transaction), stream, source, timeout, at.failures
        )
    )
    sys.exit(status)


@attrs.define(eq=False)
class PublishCounts:
    """Counts of the messages that were published, acknowledged and refused.

    :ivar size: bytes that were published
    :ivar reason: why the first refused message was refused
    :ivar changed: when a message was last acknowledged or refused, or the first unacknowledged one was published
    :ivar settled: fires when no message awaits acknowledgement
    """

    published: int = 0
    acknowledged: int = 0
    refused: int = 0
    size: int = 0
    reason: str = ""
    changed: float = 0.0
    settled: Deferred[None] | None = None

    @property
    def pending(self) -> int:
        """Return the number of messages that await acknowledgement."""
        return self.published - self.acknowledged - self.refused

    def add(self, published: Deferred[Any], size: int, now: Any) -> None:
        """Count a message of ``size`` bytes, and its outcome when ``published`` fires.

        :param now: the clock, such as ``reactor.seconds``
        """
        if not self.pending:
            self.changed = now()
        self.published += 1
        self.size += size

        def settle(result: Any) -> None:
            """Count one message as acknowledged or refused; fire :attr:`settled` if it was the last one."""
            if isinstance(result, Failure):
                self.refused += 1
                self.reason = self.reason or result.getErrorMessage()
            else:
                self.acknowledged += 1
            self.changed = now()
            if self.settled is not None and not self.pending:
                settled, self.settled = self.settled, None
                settled.callback(None)

        published.addBoth(settle)

    def all_settled(self) -> Deferred[None]:
        """Return a Deferred that fires when no message awaits acknowledgement."""
        self.settled = Deferred()
        settled = self.settled
        if not self.pending:
            settled.callback(None)
            self.settled = None
        return settled

    def summary(self, seconds: float) -> str:
        """Return the counts as one line for people; publishing has taken ``seconds``."""
        messages = f"{counted(self.published, 'message')} ({shown_size(self.size)})"
        if self.acknowledged == self.published:
            if self.reason:
                return f"{messages} published and acknowledged, and no more: {self.reason}"
            rate = f", {self.published / seconds:,.0f}/s" if seconds > 0.1 else ""
            return f"{messages} published and acknowledged in {seconds:.1f} s{rate}"
        because = f": {self.reason}" if self.reason else ""
        missing = self.published - self.acknowledged
        return f"{messages} published, {self.acknowledged:,} acknowledged, {missing:,} not acknowledged{because}"


async def publish_from(
    reactor: Any, publisher: Any, stream: str | None, source: Source, timeout: float, failures: FinalFailures
) -> int:
    """Publish every message of ``source`` to ``stream``, and print a summary to standard error.

    :param timeout: the longest time without an acknowledgement, in seconds
    :return: the exit status: 0 if the server acknowledged every message, else 1
    :raises FyrehoseError: the server cannot be reached, or the source cannot be read, before anything was published
    """
    tally, began = PublishCounts(), reactor.seconds()
    try:
        await connected(reactor, publisher, timeout, failures)
        with _bar(source, tally, reactor) as advance:
            work = Deferred.fromCoroutine(_publish_all(reactor, publisher, stream, source, tally, advance))
            if await _unless_stalled(reactor, work, tally, timeout):
                hint = failures.hint(publisher.problem)
                raise FyrehoseError(f"{failures} has not acknowledged anything for {timeout:g} s; {hint}")
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
        closed.addErrback(lambda failure: None)  # The summary reports the outcome.
    click.echo(f"fyrehose: {tally.summary(reactor.seconds() - began)}", err=True)
    # Some protocols end with a handshake; without it the server would keep state for this client.
    await closed.addTimeout(CLOSE_TIMEOUT, reactor).addErrback(lambda failure: None)
    return 0 if tally.acknowledged == tally.published else 1


async def _publish_all(
    reactor: Any, publisher: Any, stream: str | None, source: Source, tally: PublishCounts, advance: Any
) -> None:
    async for size, messages in source.batches(worker(reactor).call):
        for message in messages:
            await publisher.ready()
            tally.add(maybeDeferred(publisher.publish, stream, message), len(message), reactor.seconds)
        advance(size)
    await tally.all_settled()


async def _unless_stalled(reactor: Any, work: Deferred[None], tally: PublishCounts, timeout: float) -> bool:
    """Wait for ``work``; cancel it, and return True, if the server is silent for ``timeout`` seconds."""
    stalled = False

    def check() -> None:
        nonlocal stalled
        if tally.pending and reactor.seconds() - tally.changed > timeout:
            stalled = True
            work.cancel()

    checking = LoopingCall(check)
    checking.clock = reactor
    checking.start(min(timeout / 4, 1.0), now=False)
    try:
        await work
    except CancelledError:
        if not stalled:
            raise
    finally:
        checking.stop()
    return stalled


@contextmanager
def _bar(source: Source, tally: PublishCounts, reactor: Any) -> Iterator[Any]:
    """Show a progress bar if standard error is a terminal; yields a function to call with the bytes just read."""
    if not sys.stderr.isatty():
        yield lambda size: None
        return
    columns = [
        TextColumn("{task.fields[acknowledged]:,} acknowledged"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        SpeedColumn(),
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
