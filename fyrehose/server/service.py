"""The whole server as one Twisted service, which starts and stops its parts in order.

    start:  the journal, then the children one after the other; if one fails, everything is stopped again
    stop:   all children (ports, then connections once they are acknowledged), then the journal

Twisted's MultiService neither waits for its children nor notices that one has failed; this service does.

    fyrehose = Fyrehose(reactor, journal)
    plugin.make_service(reactor, fyrehose.broker, "tcp:8119", settings).setServiceParent(fyrehose)
    fyrehose.setServiceParent(application)
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from twisted.application.service import MultiService, Service
from twisted.internet.address import UNIXAddress
from twisted.internet.defer import Deferred, DeferredList, fail, maybeDeferred, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.broker.broker import Broker
from fyrehose.broker.guard import Guard
from fyrehose.broker.policy import LOOPBACK, Policy
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import Closed, ConfigError, FyrehoseError, JournalFailed, os_reason
from fyrehose.interfaces import IJournal, JournalState
from fyrehose.net.peers import INET
from fyrehose.net.several import place_text

log = Logger()


class Fyrehose(MultiService):
    """A server as a Twisted service: a journal, a broker, and the listeners as child services.

    The Deferred of ``startService`` fires when every child has started.  If one cannot start, everything is stopped
    again, and the Deferred fails with the child's error; a service with a parent logs the error instead.  The
    Deferred of ``stopService`` fires when the journal is closed.  A child that is added later is started at once.
    :meth:`when_open` tells other parts of a program when the server accepts connections.

    :ivar broker: the broker to pass to ``make_service`` of a protocol plugin
    :param policy: the access policy; without one, only clients on this machine have access
    :param on_open: called when the journal is open, before the first child starts
    :param on_failure: called with the reason when the server cannot continue, because the journal has failed or a child
        that was added later could not start.  Without it the server stops, and its process continues.
    :param of_broker: other options of the :class:`Broker`, such as ``max_streams`` or ``rules``; the journal needs the
        ages in ``rules`` as an argument of its own
    """

    def __init__(
        self,
        reactor: Any,
        journal: IJournal,
        *,
        policy: Policy = LOOPBACK,
        on_open: Callable[[], None] = lambda: None,
        on_failure: Callable[[Exception], None] | None = None,
        **of_broker: Any,
    ) -> None:
        MultiService.__init__(self)
        self.broker = Broker(
            reactor,
            journal,
            Sequencer(),
            guard=Guard(policy),
            watch=self._journal_changed,
            **of_broker,
        )
        self._on_failure = self._give_up if on_failure is None else on_failure
        self._on_open = on_open
        self._open = False
        self._started: list[Any] = []
        #: Children that :meth:`open` starts, so that ``addService`` must not start them.
        self._opening: list[Any] = []
        #: Fire when the children that are starting have started, or have failed to.
        self._starting: list[Deferred[None]] = []
        #: Children that are started only when this server leads its cluster.
        self._only_leading: list[Any] = []
        #: Fires when the start in progress has succeeded or failed; None if no start is in progress.
        self._settled: Deferred[None] | None = None
        self._start_error: Exception | None = None
        self._waiting: list[Deferred[None]] = []

    def when_open(self) -> Deferred[None]:
        """Return a Deferred that fires when the journal is open and every listener accepts connections.

        The method may be called at any time, also before the service starts.  The Deferred fails with the reason if the
        start fails.
        """
        if self._settled is None and self._start_error is not None:
            return fail(self._start_error)
        if self._settled is None and self.running:
            return succeed(None)
        self._waiting.append(Deferred())
        return self._waiting[-1]

    def startService(self) -> Deferred[None]:
        """Open the journal, then start the children in the order in which they were added.

        A parent, such as the application of twistd, would drop the Deferred, and a failure with it.  So with a parent,
        a failure is logged, and the Deferred fires with None all the same; see :meth:`when_open`.
        """
        Service.startService(self)
        self._settled, self._start_error = Deferred(), None
        started: Deferred[None] = Deferred.fromCoroutine(self._start())
        return started if self.parent is None else started.addErrback(_failed_to_start)

    def stopService(self) -> Deferred[None]:
        """Stop all children at once, then close the journal.  A start in progress, or its failure, finishes first.

        A copy of another server's journal that is under way is stopped at once, and so is the start.
        """
        if not self.running and self._settled is None:
            return succeed(None)
        Service.stopService(self)
        return Deferred.fromCoroutine(self._stop())

    def addService(self, service: Any) -> None:
        self._adopt(service)
        if self.running and self._settled is None and service in self._unstarted():
            Deferred.fromCoroutine(self._start_child(service)).addErrback(self._report)

    def _adopt(self, service: Any) -> None:
        running, self.running = (
            self.running,
            0,
        )  # MultiService would start the child at once, and ignore the Deferred that startService returns
        try:
            MultiService.addService(self, service)
        finally:
            self.running = running

    async def open(self, service: Any, only_leading: bool) -> None:
        """Add a child while the server runs, and start it.

        :param only_leading: see :meth:`add_for_leader`
        :raises FyrehoseError: the child cannot start, and was removed again
        """
        if not self.running or self._settled is not None:
            raise Closed("the server is starting or stopping; try again when it is running")
        if only_leading:
            self._only_leading.append(service)
        self._opening.append(service)  # tells addService not to start it
        service.setServiceParent(self)
        try:
            if not (only_leading and self.broker.follows):
                await self._start_child(service)
        except Exception:
            self.removeService(service)
            raise
        finally:
            self._opening.remove(service)

    async def close(self, service: Any) -> None:
        """Stop a child while the server runs, and remove it; return when its last connection has ended."""
        await maybeDeferred(self.removeService, service)
        log.info("{name} is closed", name=_name(service))

    def add_for_leader(self, service: Any) -> None:
        """Add a child that is started only when this server leads its cluster, because followers accept no messages.

        A follower of a cluster keeps this listener closed, so that clients connect to another server.
        """
        self._only_leading.append(service)
        service.setServiceParent(self)

    def removeService(self, service: Any) -> Any:
        for known in (self._started, self._only_leading):
            if service in known:
                known.remove(service)
        return MultiService.removeService(self, service)

    async def _start(self) -> None:
        try:
            await self.broker.open()
            self._open = True
            self._on_open()
            while self.running and (waiting := self._unstarted()):
                await self._start_child(waiting[0])
            if self.broker.follows and self.running:
                self._start_when_leading()
            if not self.running:
                self._start_error = Closed("the server was stopped while it started")
        except Exception as error:
            self._start_error = error
            stopped = (
                isinstance(error, Closed) and not self.running
            )  # stopService has ended the start, and reports the reason
            self.running = 0
            await self._unwind()
            if not stopped:
                raise
        finally:
            self._settle()

    def _settle(self) -> None:
        """Mark the start as finished, and fire the Deferreds that wait for its end."""
        settled, self._settled = self._settled, None
        if settled is not None:
            settled.callback(None)
        waiting, self._waiting = self._waiting, []
        for opened in waiting:
            opened.callback(None) if self._start_error is None else opened.errback(self._start_error)

    def _unstarted(self) -> list[Any]:
        """Return the children that are to be started now."""
        closed = [*self._opening, *(self._only_leading if self.broker.follows else ())]
        return [service for service in self if service not in self._started and service not in closed]

    def _start_when_leading(self) -> None:
        for service in self._only_leading:
            log.info("{name} stays closed until this server leads", name=_name(service))
        leading: Deferred[Any] = self.broker.when_leading()
        leading.addCallback(lambda _: Deferred.fromCoroutine(self._start_rest())).addErrback(self._report)

    async def _start_rest(self) -> None:
        """Start the children that were kept closed while the server was a follower."""
        if not self.running:
            return
        self._settled = Deferred()  # stopService waits until this fires
        try:
            while self.running and (waiting := self._unstarted()):
                await self._start_child(waiting[0])
        finally:
            self._settle()

    async def _start_child(self, service: Any) -> None:
        ended: Deferred[None] = Deferred()
        self._starting.append(ended)
        try:
            await self._listen(service)
        finally:
            self._starting.remove(ended)
            ended.callback(None)

    async def _listen(self, service: Any) -> None:
        try:
            listening = await maybeDeferred(service.startService)
        except (CannotListenError, OSError) as error:
            raise FyrehoseError(f"{_name(service)} cannot listen: {_reason(error)}") from error
        except OverflowError as error:
            raise ConfigError(f"{_name(service)} cannot listen: expected a port from 0 to 65535") from error
        self._started.append(service)
        log.info("{name} {state}", name=_name(service), state=_state(listening))

    async def _stop(self) -> None:
        if self._settled is not None:
            if not self._open:
                self.broker.journal.cancel_open()
            await self._settled
        await DeferredList(self._starting)  # children that were added later
        await self._unwind()

    async def _unwind(self) -> None:
        started, self._started = self._started, []
        if self._open:
            self.broker.journal.expect_close()  # the children wait until their publishes are settled
        stopping = [maybeDeferred(service.stopService).addErrback(_failed_to_stop, service) for service in started]
        await DeferredList(stopping)
        if self._open:
            self._open = False
            await self.broker.close()

    def _journal_changed(self, state: JournalState, reason: str) -> None:
        if state is JournalState.FAILED:
            log.critical("the journal has failed; publishing stops: {reason}", reason=reason)
            self._on_failure(JournalFailed(reason))
        elif state is JournalState.READ_ONLY:
            log.warn("the journal is read-only; publishing is refused, reading continues: {reason}", reason=reason)
        elif state is JournalState.WRITABLE and self._open:
            log.info("the journal is writable again: {reason}", reason=reason)

    def _report(self, failure: Failure) -> None:
        if not isinstance(failure.value, Exception):
            failure.raiseException()
        log.critical("a service that was added later cannot start: {error}", error=str(failure.value))
        self._on_failure(failure.value)

    def _give_up(self, reason: Exception) -> None:
        self.stopService().addErrback(lambda failure: log.failure("the server did not stop in good order", failure))


def _failed_to_start(failure: Failure) -> None:
    if isinstance(failure.value, FyrehoseError):
        log.critical("cannot start: {error}", error=str(failure.value))
    else:
        log.failure("cannot start, because of an unexpected error; please report this bug", failure)


def _failed_to_stop(failure: Failure, service: Any) -> None:
    log.failure("{name} did not stop in good order", failure, name=_name(service))


def _name(service: Any) -> str:
    return str(service.name or type(service).__name__)


def _state(listening: Any) -> str:
    """Return, as text for the log, where a child listens.

    :param listening: the result of its ``startService``: a Twisted port, or any other object
    """
    if IListeningPort.providedBy(listening):
        address = listening.getHost()
        if not isinstance(address, INET):
            return f"listens on {os.fsdecode(address.name or b'') if isinstance(address, UNIXAddress) else address}"
        return f"listens on {place_text(address.host, address.port)}"
    return "has started"


def _reason(error: CannotListenError | OSError) -> str:
    """Return why a service cannot listen, and what to do about it."""
    if isinstance(error, OSError):
        remedy = _UNIX_REMEDIES[errno.ENOENT] if error.errno == errno.ENOENT else ""
        return f"{error.strerror or error}{remedy}"
    if error.port is None:
        return f"its endpoint: {os_reason(error.socketError)}"
    unix = isinstance(error.port, bytes | str)
    where = os.fsdecode(error.port) if unix else f"{error.interface or 'any address'} port {error.port}"
    remedies = _UNIX_REMEDIES if unix else _REMEDIES
    code = error.socketError.errno if isinstance(error.socketError, OSError) else None
    remedy = remedies.get(code, "").format(port=error.port, interface=error.interface)
    return f"{where}: {os_reason(error.socketError)}{remedy}"


#: What to do about an error of listening, by its number.
_REMEDIES: dict[int | None, str] = {
    errno.EADDRINUSE: "; use another port, or stop the program that `ss -lnp 'sport = :{port}'` shows",
    errno.EACCES: "; use a port from 1024 on, or give the server CAP_NET_BIND_SERVICE or a socket of systemd",
    errno.EADDRNOTAVAIL: "; this machine has no address {interface}: `ip address` lists those that it has",
}
_UNIX_REMEDIES: dict[int | None, str] = {
    errno.EADDRINUSE: "; another program listens there, or it is no socket: use another path",
    errno.EACCES: "; change the owner of its directory, or use another path",
    errno.ENOENT: "; make its directory first",
}
