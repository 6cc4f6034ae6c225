"""``fyrehose tail``: write a stream's records to standard output, even if their reader is slow or closes the pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import click
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from fyrehose.cli import candidates, running
from fyrehose.cli.client import formats
from fyrehose.cli.client.failures import FinalFailures
from fyrehose.cli.client.formats import Format
from fyrehose.cli.client.remote import TOKEN_FILE
from fyrehose.cli.client.servers import ADDRESS_HELP, TLS, protocol_to_tail, server
from fyrehose.cli.client.values import ADDRESSES, DURATION, SINCE, WholeNumber
from fyrehose.cli.running import connected, worker
from fyrehose.errors import FyrehoseError
from fyrehose.records import Run

#: How many bytes may wait for standard output: above the first value reading pauses, below the second it resumes.
HIGH, LOW = 4 << 20, 1 << 20

#: How long to wait for a message before the command says that the stream does not exist, in seconds.
ABSENT_AFTER = 1.0
#: The largest number of lost ranges that the final error lists.
MOST_NAMED = 10


@click.command(short_help="Follow a stream, or read it from its start.")
@click.option(
    "--protocol",
    metavar="NAME",
    help="[default: http where it listens, else figg]",
    shell_complete=candidates.clients,
)
@click.option("--from", "addresses", type=ADDRESSES, default="127.0.0.1", help=ADDRESS_HELP)
@TLS
@TOKEN_FILE
@click.option(
    "--stream",
    metavar="NAME",
    help="Stream to read (not with backbone), or pattern.",
)
@click.option("--since", type=SINCE, default="latest", show_default=True, help="First record, or time.")
@click.option("--subscription", metavar="NAME", help="Named subscription to continue.")
@click.option("--takeover", is_flag=True, help="Displace another consumer of it.")
@click.option("--count", type=WholeNumber(1), help="Stop after this many messages.")
@click.option("--idle", type=DURATION, help="Stop when no message arrives for this long.")
@click.option("--format", "form", type=click.Choice(["text", "json", "raw"]), default="text", show_default=True)
@click.option("--timeout", type=DURATION, default="10s", show_default=True, help="How long to wait for the server.")
@click.argument("extra", nargs=-1, metavar="")
def tail(
    protocol: str | None,
    addresses: tuple[tuple[str, int | None], ...],
    tls: str | None,
    token_file: Path | None,
    stream: str | None,
    since: int | str | None,
    subscription: str | None,
    takeover: bool,
    count: int | None,
    idle: float | None,
    form: str,
    timeout: float,
    extra: tuple[str, ...],
) -> None:
    """Write the messages of a stream to standard output as they arrive.

    text: one message a line.  json: one object a line with what the protocol carries.  raw: no separators.  Patterns
    need http; named subscriptions http or relink.  Exit status 1: messages are missing.

    \b
        fyrehose tail --stream 'logs.*'
    """
    if extra:
        raise click.UsageError(f"unexpected argument {extra[0]!r}; name the stream with --stream {extra[0]}")
    if takeover and subscription is None:
        raise click.UsageError("--takeover needs --subscription NAME")
    named = None if subscription is None else NamedTail(subscription, takeover)
    at = server(protocol or protocol_to_tail(addresses[0]), addresses[0], tls, addresses[1:], token_file)
    status = running.run(
        lambda reactor: Tailing(
            reactor,
            at.tailer(reactor, stream, subscription is not None, isinstance(since, str)),
            stream,
            formats.chosen(form, os.isatty(1), many=stream is not None and "*" in stream),
            count,
            idle,
            timeout,
            at.failures,
            since,
            named,
        ).run()
    )
    sys.exit(status)


@attrs.frozen
class NamedTail:
    """A named subscription, and whether to displace another consumer of it."""

    name: str
    takeover: bool = False


@attrs.define(eq=False)
class Output:
    """Standard output, written by a thread, so that Ctrl-C works even while a write blocks.

    :ivar call: runs a blocking function in that thread
    :ivar tailer: the client, which is paused while more than :data:`HIGH` bytes wait
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
        if failure.check(BrokenPipeError):  # The reader of the pipe, such as head, has ended.
            self.error = BrokenPipeError()
        else:
            self.error = FyrehoseError(f"cannot write to standard output: {failure.getErrorMessage()}")
        self.end(self.error)
        if self._drained is not None and not self._drained.called:
            self._drained.callback(None)
        return False


@attrs.define(eq=False)
class Tailing:
    """A run of ``fyrehose tail``, which writes the records of a stream, and reports missing records.

    :ivar tailer: the client
    :ivar left: number of messages to write before it ends; None: no limit
    :ivar idle: seconds without a message after which it ends; None: no limit
    :ivar timeout: the longest time to connect, in seconds
    :ivar since: the number before the first requested record, or its time as text; 0 begins with the oldest record
    :ivar named: the named subscription to consume, if there is one: its position moves when messages are written
    """

    reactor: Any
    tailer: Any
    stream: str | None
    form: Format
    left: int | None
    idle: float | None
    timeout: float
    failures: FinalFailures
    since: int | str | None = None
    named: NamedTail | None = None
    output: Output = attrs.field(init=False)
    #: the timer that reports that the stream does not exist, unless a message arrives before
    _announcing: IDelayedCall | None = None
    #: the timer that ends the command when no message has arrived for ``idle`` seconds
    _timer: IDelayedCall | None = None
    #: the first ranges of lost numbers, and the reason why the last range was lost
    _missing: list[str] = attrs.field(factory=list, init=False)
    _why: str = ""
    #: why records are missing when the command ends because no message arrives; None: it has not ended for that reason
    _short: str | None = None

    async def run(self) -> int:
        """Write messages to standard output until the last one is written, none arrives any more, or Ctrl-C is pressed.

        :return: the exit status, 0
        :raises BrokenPipeError: the reader of standard output, such as ``head``, has closed it
        :raises FyrehoseError: the server cannot be reached or refuses the client, records are missing, or standard
            output cannot be written
        """
        tailer = self.tailer
        named = {} if self.named is None else attrs.asdict(self.named)
        tailer.subscribe(self.stream, self.take, self.since, self.lost, self.restarted, **named)
        output = self.output = Output(worker(self.reactor).call, tailer)
        try:
            await connected(self.reactor, tailer, self.timeout, self.failures)
            self.failures.watch(lambda: output.end(self.failures.final))
            self.start_timers()
            await output.ended
            await output.drained()
            if named:
                # Wait for the callbacks of the last write, which acknowledge the last record.
                await deferLater(self.reactor, 0)
            self.check()
        finally:
            _cancel(self._announcing)
            _cancel(self._timer)
            closed = tailer.close().addErrback(lambda failure: failure.trap(Exception))
            if named:
                await closed  # The client sends the last acknowledgement before it closes.
        return 0

    def take(self, run: Run) -> Deferred[Any] | None:
        """Write *run*, but no more messages than are left to write.

        :return: with a named subscription, fires with the number of the last written record; never if writing fails,
            because unwritten records are not consumed
        """
        if self.output.ended.called:
            return None if self.named is None else Deferred()  # A record that is not written is not consumed.
        if self._timer is not None and self.idle is not None:
            self._timer.reset(self.idle)
        _cancel(self._announcing)
        if self.left is not None:
            run = run.slice(0, self.left)
            self.left -= len(run)
        written = self.output.write(self.form(run))
        if self.left == 0:
            self.output.end()
        return None if self.named is None else written.addCallback(lambda ok: run.last_seq if ok else Deferred())

    def lost(self, first: int, last: int, name: str | None = None) -> None:
        """Report that the records *first* to *last* are missing; *name* is their stream, if a pattern is tailed."""
        # A pattern has no position, so the lost records may have been published while there was no connection.
        self._why = "are no longer kept" if name is None or self.named is not None else "were not received"
        numbers = f"{first} to {last}" + ("" if name is None else f" of stream {name!r}")
        click.echo(f"fyrehose: records {numbers} {self._why}", err=True)
        if len(self._missing) < MOST_NAMED and not (self.since == 0 and first == 1):
            self._missing.append(numbers)

    def restarted(self, end: int, name: str | None = None) -> None:
        """Report that the server has another journal; *name* is the stream, if a pattern is tailed."""
        stream = self.stream if name is None else name
        named = "the stream" if stream is None else f"stream {stream!r}"
        click.echo(
            f"fyrehose: the numbers of {named} have begun again: the server has another journal, such as a restored "
            f"backup, which ends at {end}; reading it from its start",
            err=True,
        )

    def start_timers(self) -> None:
        """Start the timers that report a missing stream, and end the command when it was idle for too long."""
        if self.stream is not None and not self.output.ended.called:
            self._announcing = self.reactor.callLater(ABSENT_AFTER, self._announce, self.stream)
        if self.idle is not None and not self.output.ended.called:
            self._timer = self.reactor.callLater(self.idle, self._end_idle)

    def check(self) -> None:
        """Raise an error if the output could not be written, or records are missing.

        :raises BrokenPipeError: the reader of standard output has closed it
        :raises FyrehoseError: writing failed for another reason, or records are missing
        """
        if self.output.error is not None:
            raise self.output.error
        short = self.tailer.shortfall(True) if self._short is None else self._short
        if self._missing and not short:
            short = f"{', '.join(self._missing)} {self._why}"
        if short:
            raise FyrehoseError(f"records are missing: {short}")

    def _announce(self, stream: str) -> None:
        if self.tailer.absent:
            click.echo(f"fyrehose: stream {stream!r} does not exist yet; waiting for its first message", err=True)

    def _end_idle(self) -> None:
        problem = self.tailer.problem
        broken = f"connection to {self.failures} lost: {problem}" if problem else ""
        self._short = self.tailer.shortfall(False) or broken
        self.output.end()


def _cancel(timer: IDelayedCall | None) -> None:
    """Cancel *timer* if it runs."""
    if timer is not None and timer.active():
        timer.cancel()


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
