"""The whole server as one service: what starts after what, and what stops before what.

    start:  journal and numbers, then the children one after the other       (the first that fails stops the rest again)
    stop:   all children - ports, then peers, each acknowledged - then the journal

Twisted's MultiService neither waits for its children nor hears that one has failed, so this one does.

    fyrehose = Fyrehose(reactor, journal)
    plugin.make_service(reactor, fyrehose.broker, "tcp:8119", settings).setServiceParent(fyrehose)
    fyrehose.setServiceParent(application)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from twisted.application.service import MultiService, Service
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.core.broker import Broker
from fyrehose.core.budget import Budget
from fyrehose.core.guard import Guard
from fyrehose.core.policy import LOOPBACK, Policy
from fyrehose.core.quotas import PeerLimits
from fyrehose.core.sequencer import Sequencer
from fyrehose.core.streams import UNLIMITED, StreamRules
from fyrehose.errors import ConfigError, JournalFailed
from fyrehose.interfaces import IJournal, ISequencer, JournalState

log = Logger()


class Fyrehose(MultiService):
    """A journal, a broker, and the services that are the listeners to them.

    ``startService`` returns a Deferred that fires when every child has started, and fails with what kept the first one
    from it; by then everything is stopped again.  ``stopService`` returns one that fires when the journal is closed.
    A child that is added later is started at once.

    :ivar broker: what a plugin's ``make_service`` is given
    :param limits: what one peer may make the server remember
    :param rules: limits of streams by their names; their ages are the journal's to keep, which is given them itself
    :param policy: who may do what; without one, this machine may do everything, and nobody else anything
    :param on_open: told when the journal is open, before the first child starts
    :param on_failure: told why, when the server cannot go on: the journal has failed, or a child that was added later
        could not start.  Without it the server stops and its process goes on.
    """

    def __init__(
        self,
        reactor: Any,
        journal: IJournal,
        sequencer: ISequencer | None = None,
        *,
        max_streams: int = 100_000,
        budget: Budget | None = None,
        limits: PeerLimits | None = None,
        rules: StreamRules = UNLIMITED,
        policy: Policy = LOOPBACK,
        on_open: Callable[[], None] = lambda: None,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        MultiService.__init__(self)
        self.broker = Broker(
            reactor,
            journal,
            Sequencer() if sequencer is None else sequencer,
            max_streams=max_streams,
            budget=Budget() if budget is None else budget,
            limits=PeerLimits() if limits is None else limits,
            rules=rules,
            guard=Guard(policy),
            watch=self._journal_changed,
        )
        self._on_failure = self._give_up if on_failure is None else on_failure
        self._on_open = on_open
        self._open = False
        self._started: list[Any] = []
        #: fires when the start under way has come to an end, good or bad; None when none is
        self._settled: Deferred[None] | None = None

    def startService(self) -> Deferred[None]:
        """Open the journal, then start the children in the order in which they were added."""
        Service.startService(self)
        self._settled = Deferred()
        return Deferred.fromCoroutine(self._start())

    def stopService(self) -> Deferred[None]:
        """Stop the children, all at once, then close the journal.  A start under way ends first."""
        if not self.running:
            return succeed(None)
        Service.stopService(self)
        return Deferred.fromCoroutine(self._stop())

    def addService(self, service: Any) -> None:
        running, self.running = self.running, 0  # MultiService would start it, and drop the Deferred
        try:
            MultiService.addService(self, service)
        finally:
            self.running = running
        if running and self._settled is None:
            Deferred.fromCoroutine(self._start_child(service)).addErrback(self._report)

    def removeService(self, service: Any) -> Any:
        if service in self._started:
            self._started.remove(service)
        return MultiService.removeService(self, service)

    async def _start(self) -> None:
        try:
            await self.broker.open()
            self._open = True
            self._on_open()
            waiting = list(self)
            while waiting and self.running:
                await self._start_child(waiting[0])
                waiting = [service for service in self if service not in self._started]
        except Exception:
            self.running = 0
            await self._unwind()
            raise
        finally:
            settled, self._settled = self._settled, None
            if settled is not None:
                settled.callback(None)

    async def _start_child(self, service: Any) -> None:
        try:
            listening = await maybeDeferred(service.startService)
        except (CannotListenError, OSError, OverflowError) as error:  # a number that no port has
            raise ConfigError(f"{_name(service)} cannot listen: {_said(error)}") from error
        self._started.append(service)
        log.info("{name} {listens}", name=_name(service), listens=_listens(listening))

    async def _stop(self) -> None:
        if self._settled is not None:
            await self._settled
        await self._unwind()

    async def _unwind(self) -> None:
        started, self._started = self._started, []
        stopping = [maybeDeferred(service.stopService).addErrback(_failed_to_stop, service) for service in started]
        await DeferredList(stopping)
        if self._open:
            self._open = False
            await self.broker.close()

    def _journal_changed(self, state: JournalState, reason: str) -> None:
        if state is JournalState.FAILED:
            log.critical("the journal has failed, and nothing more is accepted: {reason}", reason=reason)
            self._on_failure(JournalFailed(reason))
        elif state is JournalState.READ_ONLY:
            log.warn("the journal takes nothing more in, reading goes on: {reason}", reason=reason)
        elif state is JournalState.WRITABLE and self._open:
            log.info("the journal takes messages again: {reason}", reason=reason)

    def _report(self, failure: Failure) -> None:
        if not isinstance(failure.value, Exception):
            failure.raiseException()
        log.critical("a service that was added could not start: {error}", error=str(failure.value))
        self._on_failure(failure.value)

    def _give_up(self, reason: Exception) -> None:
        self.stopService().addErrback(lambda failure: log.failure("the server did not stop in good order", failure))


def _failed_to_stop(failure: Failure, service: Any) -> None:
    log.failure("{name} did not stop in good order", failure, name=_name(service))


def _name(service: Any) -> str:
    return str(service.name or type(service).__name__)


def _listens(listening: Any) -> str:
    """What a child's start fired with, for people: a port of Twisted's, one with an ``address``, or something else."""
    if IListeningPort.providedBy(listening):
        address = listening.getHost()
        host, port = getattr(address, "host", None), getattr(address, "port", None)
        if host is None:
            return f"listens on {os.fsdecode(getattr(address, 'name', None) or str(address))}"
    elif hasattr(listening, "address"):
        host, port = listening.address
    else:
        return "has started"
    return f"listens on [{host}]:{port}" if ":" in host else f"listens on {host}:{port}"


def _said(error: CannotListenError | OSError | OverflowError) -> str:
    if isinstance(error, OverflowError):
        return str(error)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    reason = getattr(error.socketError, "strerror", None) or error.socketError
    where = f"{error.interface or 'any address'} port {error.port}" if error.port is not None else "its endpoint"
    return f"{where}: {reason}"
