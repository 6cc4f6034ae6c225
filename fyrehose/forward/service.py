"""All subscriptions of a file: starts, restarts, reloads and ends them, and shows how they are doing.

file -> tables -> Forwarding of each -> its tailer and its sender
SIGHUP -> the file again -> those whose tables have changed end, and begin with the new tables
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.task import deferLater
from twisted.logger import Logger

from fyrehose import plugins
from fyrehose.cli.client.tls import encrypted
from fyrehose.cli.client.values import addresses, since
from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.forward.config import ForwardConfig, read_config
from fyrehose.forward.destination import Around, ForwardTable, PemFiles, RecordTemplate, place
from fyrehose.forward.engine import ForwardCounts, Forwarding
from fyrehose.net.clients import Backoff, ClientTarget
from fyrehose.net.several import CONNECT_TIMEOUT, AnyServer, place_text

log = Logger()

#: How often the server is told how this process is doing, and asked for the lag, in seconds; and how often with
#: ``--once``.
EVERY, EVERY_ONCE = 5.0, 0.2
#: How long its answer may take, and how long ``--once`` waits for a server, in seconds.
ANSWER = 10.0
#: The longest text of a report, in characters.
REPORTED = 300
#: The port of a server's http listener.
HTTP_PORT = 8117


def endpoint(reactor: Any, host: str, port: int, files: PemFiles, tls: bool) -> Any:
    """Return how to connect to one place.

    :param files: for TLS; without any, the authorities of the system count
    """
    plain = HostnameEndpoint(reactor, host, port, timeout=CONNECT_TIMEOUT)
    return encrypted(plain, host, files.paths, "tls") if tls else plain


@attrs.define(eq=False)
class RunningForward:
    """One subscription, which is forwarded until it is stopped.

    :ivar lag: how many records are not delivered; None: not known
    :ivar age: how old the oldest of them is, in seconds
    """

    reactor: Any
    table: ForwardTable
    counts: ForwardCounts = attrs.field(factory=ForwardCounts)
    lag: int | None = attrs.field(default=None, init=False)
    age: float = attrs.field(default=0.0, init=False)
    error: str = attrs.field(default="", init=False)
    stopping: bool = attrs.field(default=False, init=False)
    _before: tuple[float, int] = attrs.field(init=False)  #: when the server was told last, and what was delivered then
    _forwarding: Forwarding | None = attrs.field(default=None, init=False)
    _task: Deferred[None] | None = attrs.field(default=None, init=False)

    @_before.default
    def _now(self) -> tuple[float, int]:
        return self.reactor.seconds(), self.counts.delivered

    @property
    def problem(self) -> str:
        """Return why records are not forwarded at present; "" if they are."""
        now = self._forwarding
        if now is None:
            return self.error
        return now.error or now.sender.problem or (f"reading: {now.tailer.problem}" if now.tailer.problem else "")

    def start(self) -> None:
        """Begin."""
        self._task = Deferred.fromCoroutine(self._run())
        self._task.addErrback(lambda failure: failure.trap(CancelledError))

    def stop(self) -> Deferred[Any]:
        """End; the Deferred fires when the last acknowledgement is answered."""
        assert self._task is not None, "start() was called"
        if not self.stopping:
            self.stopping = True
            self._task.cancel()
        return self._task

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._forward()
            except CancelledError:
                raise
            except Exception as error:
                failures = failures + 1 if self.error else 1  # connected in between: the pauses begin again
                if isinstance(error, FyrehoseError):
                    self.error = str(error)
                    log.warn("{name}: {error}; retrying", name=self.table.name, error=error)
                else:
                    self.error = repr(error)
                    log.failure("{name}: forwarding failed; please report this bug", name=self.table.name)
            await deferLater(self.reactor, Backoff(longest=self.table.longest_pause)(failures))

    async def _forward(self) -> None:
        """Forward until a server refuses for good, or this is cancelled.

        :raises FyrehoseError: why
        """
        table = self.table
        hosts = [(host, port or HTTP_PORT) for host, port in addresses(",".join(table.source))]
        names = [place_text(*host) for host in hosts]
        endpoints = [endpoint(self.reactor, *host, table.from_tls, bool(table.from_tls.paths)) for host in hosts]
        # No failure of a connection is final: what the server lacks may be mended while this process runs.
        target = ClientTarget(
            self.reactor,
            *hosts[0],
            endpoint=AnyServer(endpoints, names),
            token=None if table.from_token is None else table.from_token.value,
            process_exception=lambda error: None,
        )
        tailer = plugins.load("http").tailer(target)  # type: ignore[attr-defined]
        there = [endpoint(self.reactor, each.host, each.port, table.tls, each.encrypted) for each in table.to]
        sender = plugins.destination(table.to[0].scheme).sender(
            table, Around(self.reactor, there, lambda: tailer.epoch)
        )
        kept = plugins.destination("fyrehose")
        here = kept.table(
            name=table.name,
            streams=table.streams,
            to=tuple(place(f"fyrehose://{name}") for name in names),
            stream=RecordTemplate((table.letters,)),
            token=table.from_token,
        )
        letters = kept.sender(here, Around(self.reactor, endpoints, lambda: tailer.epoch))
        now = self._forwarding = Forwarding(self.reactor, table, tailer, sender, letters, self.counts)
        tailer.subscribe(table.streams, now.take, since(table.since), now.lost, now.restarted, name=table.name)
        try:
            await tailer.connect()
            self.error = ""
            await now.run()
        finally:
            self._forwarding = None
            for each in (tailer, sender, letters):
                await maybeDeferred(each.close)

    async def measure(self) -> None:
        """Tell the server how this process is doing, for its page, and ask how far the subscription is behind."""
        self.lag, now = None, self._forwarding
        if now is not None:
            report = None if now.tailer.problem else self.report()  # else another process may be the consumer
            with suppress(FyrehoseError, DeferredTimeout):  # the tailer says what is wrong
                found = await now.tailer.report(report).addTimeout(ANSWER, self.reactor)
                self.lag, self.age = int(found["lag"]), float(found.get("lag_seconds") or 0.0)

    def report(self) -> dict[str, object]:
        """Return what the server is to show of this process; its rate is that since the last call."""
        (before, delivered), counts = self._before, self.counts
        seconds, _ = self._before = self._now()
        found = attrs.asdict(counts) | {
            "to": ", ".join(f"{each.scheme} {each.authority}" for each in self.table.to)[:REPORTED],
            "rate": round((counts.delivered - delivered) / max(seconds - before, 0.1), 1),
            "problem": self.problem[:REPORTED],
            "error": counts.error[:REPORTED],
            "error_ago": round(seconds - counts.error_at, 1),
        }
        return {name: value for name, value in found.items() if name != "error_at"}


@attrs.define(eq=False)
class ForwardService:
    """Forwards all subscriptions of the file at *path*.

    :ivar config: the tables that are to run
    :ivar make: makes what runs one of them
    :ivar running: by name, also those that are stopping
    """

    reactor: Any
    path: Path
    config: ForwardConfig
    make: Callable[[Any, ForwardTable], RunningForward] = RunningForward
    running: dict[str, RunningForward] = attrs.field(factory=dict, init=False)

    async def run(self, once: bool = False) -> int:
        """Forward until this is cancelled or, with *once*, everything is delivered that is there.

        :return: the exit status
        """
        metrics, began = self._metrics(), self.reactor.seconds()
        self.follow()
        try:
            while True:
                await deferLater(self.reactor, EVERY_ONCE if once else EVERY)
                for each in list(self.running.values()):
                    await each.measure()
                if metrics is not None:
                    metrics.write(False)
                if once and all(each.lag == 0 for each in self.running.values()):
                    return 0
                unknown = [each for each in self.running.values() if each.lag is None]
                if once and unknown and self.reactor.seconds() > began + ANSWER:
                    raise FyrehoseError(
                        f"{unknown[0].table.name}: {unknown[0].problem or 'the server does not answer'}"
                    )
        finally:
            self.config = attrs.evolve(self.config, forward=[])
            self.follow()
            for each in list(self.running.values()):
                await each.stop()
            if metrics is not None:
                metrics.stop()

    def reload(self) -> None:
        """Read the file again; if it is invalid, log why, and go on as before."""
        try:
            config = read_config(self.path)
        except ConfigError as error:
            log.warn("nothing was changed: {error}", error=error)
            return
        self.config = config
        self.follow()
        log.warn("read {path} again", path=self.path)

    def follow(self) -> None:
        """Start the tables that do not run, and stop what is not to run; its table follows when it has ended."""
        tables = {table.name: table for table in self.config.forward}
        for name, each in list(self.running.items()):
            if tables.get(name) != each.table and not each.stopping:
                each.stop().addCallback(partial(self._stopped, name))
        for name in [name for name in tables if name not in self.running]:
            self.running[name] = self.make(self.reactor, tables[name])
            self.running[name].start()

    def _stopped(self, name: str, result: object) -> None:
        del self.running[name]
        self.follow()

    def _metrics(self) -> Any:
        """Return what exports the metrics, after its start; None if nobody wants them."""
        if not self.config.metrics:
            return None
        from fyrehose.forward.metrics import ForwardMetrics

        made = ForwardMetrics(self.config.metrics, self.running)
        made.start()
        return made
