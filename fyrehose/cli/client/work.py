"""``fyrehose work``: run a command for each record of a shared subscription.

record -> a process: the payload is its standard input -> exit status -> the record is settled, returned, or has failed
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import attrs
import click
from twisted.internet.defer import Deferred, DeferredList, FirstError
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from fyrehose import plugins
from fyrehose.cli import running
from fyrehose.cli.client.remote import RemoteServer, asks
from fyrehose.cli.client.values import DURATION, WholeNumber
from fyrehose.cli.console import escaped
from fyrehose.errors import ConfigError, LeaseLost
from fyrehose.interfaces import IWorkPlugin
from fyrehose.net.clients import ClientTarget

#: The exit status that returns a record without counting a failure: EX_TEMPFAIL of sysexits.h.
UNTRIED = 75
#: The outcomes that are counted, in the order of the summary.
COUNTS = ("settled", "failed", "returned", "lost")


@click.command(short_help="Run a command for each record of a stream.")
@asks("http")
@click.option("--stream", required=True, metavar="NAME", help="Stream, or pattern.")
@click.option(
    "--subscription",
    required=True,
    metavar="NAME",
    help="Shared subscription; created if there is none.",
)
@click.option("--jobs", type=WholeNumber(1, 100), default=1, show_default=True, help="Processes at once.")
@click.option("--idle", type=DURATION, help="Stop when no record comes for this long.")
@click.argument("program", nargs=-1, required=True, metavar="-- COMMAND")
def work(
    server: RemoteServer,
    stream: str,
    subscription: str,
    jobs: int,
    idle: float | None,
    program: tuple[str, ...],
) -> None:
    """Run COMMAND for each record, with the payload as its standard input.

    Exit status 0 settles the record, 75 returns it without counting a failure, any other is a failure: the record comes
    again later, and is a dead letter after the last failure. The environment has FYREHOSE_STREAM, _SEQ and _FAILURES,
    and _TOPIC and _PRODUCER if the record has them.

    \b
        fyrehose work --stream orders --subscription billing -- ./handle
        fyrehose work --stream images --subscription thumbs --jobs 4 -- ./resize
    """

    async def run(reactor: Any) -> int:
        at = client(reactor, server)
        return await run_work(reactor, [at.share(stream, subscription, idle=idle) for _ in range(jobs)], program)

    sys.exit(running.run(run))


class Handling(ProcessProtocol):
    """One process, which handles one record.

    :ivar ended: fires with the exit status of the process, or with 128 plus the number of the signal that ended it
    """

    transport: Any

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.ended: Deferred[int] = Deferred(lambda _: self.stop())

    def connectionMade(self) -> None:
        self.transport.write(self._payload)
        self.transport.closeStdin()

    def processEnded(self, reason: Failure) -> None:
        if not self.ended.called:
            ended: Any = reason.value
            status, number = ended.exitCode, ended.signal
            self.ended.callback(128 + (number or 0) if status is None else status)

    def stop(self) -> None:
        """Send SIGTERM to the process, because the command was interrupted."""
        try:
            self.transport.signalProcess(signal.SIGTERM)
        except ProcessExitedAlready:
            pass  # The process has ended at the same moment.


@attrs.define
class Working:
    """A worker that runs a process for each record of a shared subscription, and counts the outcomes.

    :ivar command: the program and its arguments
    """

    reactor: Any
    command: Sequence[str]
    counts: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(COUNTS, 0))

    async def run(self, work: Any) -> None:
        """Handle records, one at a time."""
        async with work:
            async for record in work:
                await self._handle(work, record)

    async def _handle(self, work: Any, record: Any) -> None:
        try:
            status = await work.hold(record, self._process(record))
            if status == 0:
                outcome = "settled"
                await work.settle(record)
            elif status == UNTRIED:
                outcome = "returned"
                await work.untried(record)
            else:
                outcome = "failed"
                await work.failed(record)
                where = f"record {record.seq} of {escaped(record.stream)}"
                click.echo(f"fyrehose: {where}: {self.command[0]} ended with status {status}", err=True)
        except LeaseLost as lost:
            outcome = "lost"
            click.echo(f"fyrehose: {lost}", err=True)
        self.counts[outcome] += 1

    def _process(self, record: Any) -> Deferred[int]:
        handling = Handling(record.payload)
        place = {"FYREHOSE_STREAM": record.stream, "FYREHOSE_SEQ": record.seq, "FYREHOSE_FAILURES": record.failures}
        names = {"FYREHOSE_TOPIC": record.record.topic, "FYREHOSE_PRODUCER": record.record.producer}
        own = {
            name: str(value) for name, value in (place | names).items() if value is not None and "\0" not in str(value)
        }
        program = self.command[0]
        self.reactor.spawnProcess(handling, program, self.command, {**os.environ, **own}, childFDs={0: "w", 1: 1, 2: 2})
        return handling.ended

    def summary(self) -> str:
        """Return the counts as one line."""
        return ", ".join(f"{self.counts[name]:,} {name}" for name in COUNTS if self.counts[name] or name == "settled")


async def run_work(reactor: Any, works: Sequence[Any], command: Sequence[str]) -> int:
    """Run *command* for each record, one process at a time for each of *works*.

    :return: the exit status: 0 if no record has failed
    :raises FyrehoseError: the server refuses
    """
    working = Working(reactor, command)
    running = [Deferred.fromCoroutine(working.run(each)) for each in works]
    every: Deferred[Any] = DeferredList(running, fireOnOneErrback=True, consumeErrors=True)
    try:
        await every
    except FirstError as error:
        error.subFailure.raiseException()
    finally:
        for each in running:
            each.cancel()
        await DeferredList(running, consumeErrors=True)
        click.echo(f"fyrehose: {working.summary()}", err=True)
    return 1 if working.counts["failed"] or working.counts["lost"] else 0


def client(reactor: Any, server: RemoteServer) -> Any:
    """Return a client of the server at the URL of *server*.

    :raises ConfigError: the URL has a path
    """
    parts = urlsplit(server.url)
    if parts.path:
        raise ConfigError(f"invalid --url {server.url!r}: expected a host and a port, such as http://127.0.0.1:8117")
    host, port = parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80)
    endpoint: Any = HostnameEndpoint(reactor, host, port)
    if parts.scheme == "https":
        from fyrehose.cli.client.tls import encrypted

        if server.authorities is None:
            raise ConfigError(f"--url {server.url!r} needs --ca FILE, the certificates of its authorities")
        endpoint = encrypted(endpoint, host, (str(server.authorities),))
    plugin: Any = IWorkPlugin(plugins.load("http"))
    return plugin.worker(ClientTarget(reactor, host, port, endpoint=endpoint, token=server.token))
