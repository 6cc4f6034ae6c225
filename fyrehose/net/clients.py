"""Parts that the clients of TCP protocols share: reconnecting, feeding a session, and waiting for a condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.application.internet import ClientService
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import Logger

from fyrehose.errors import Broken

log = Logger()


@attrs.define(eq=False)
class Watchers:
    """Deferreds of callers that wait for a condition, such as "the window has room"."""

    #: the conditions, in the order of the calls of when()
    _waiting: dict[Deferred[None], Callable[[], bool]] = attrs.field(factory=dict, init=False)

    def when(self, condition: Callable[[], bool]) -> Deferred[None]:
        """Return a Deferred that fires as soon as *condition* returns True, which may be at once."""
        if condition():
            return succeed(None)
        watcher: Deferred[None] = Deferred()
        self._waiting[watcher] = condition
        return watcher

    def notify(self) -> None:
        """Fire the Deferreds whose conditions hold now; call this after a change."""
        for watcher, condition in list(self._waiting.items()):
            # A callback may have closed the client, which fails the remaining Deferreds.
            if watcher in self._waiting and condition():
                del self._waiting[watcher]
                watcher.callback(None)

    def fail(self, reason: Exception) -> None:
        """Fail all Deferreds that have not fired with *reason*."""
        waiting, self._waiting = self._waiting, {}
        for watcher in waiting:
            watcher.errback(reason)


class ClientConnection(Protocol):
    """One connection of a client: feeds a session, and aborts if the server violates the protocol.

    :ivar session: the sans-I/O session of this connection
    :ivar handle: called with each event of the session, except ``Broken``
    """

    transport: Any

    def __init__(self, session: Any, handle: Callable[[Any], object]) -> None:
        self.session = session
        self.handle = handle

    def dataReceived(self, data: bytes) -> None:
        for event in self.session.receive_data(data):
            if isinstance(event, Broken):
                log.warn("closing the connection, the server violated the protocol: {error}", error=event.error)
                self.transport.abortConnection()
            else:
                self.handle(event)

    def flush(self) -> None:
        """Write the bytes that the session has to send."""
        self.transport.writeSequence(self.session.data_to_send())


class _Factory(Factory):
    noisy = False

    def __init__(self, make: Callable[[], Protocol]) -> None:
        self.make = make

    def buildProtocol(self, addr: Any) -> Protocol:
        return self.make()


def reconnecting(
    clock: IReactorTime, endpoint: IStreamClientEndpoint, make: Callable[[], Protocol], retry: Callable[[int], float]
) -> ClientService:
    """Start and return a service that connects to *endpoint*, again and again until the service is stopped.

    :param make: returns the protocol of each connection
    :param retry: maps the number of failures in a row to the delay before the next attempt, in seconds
    """
    service = ClientService(endpoint, _Factory(make), retryPolicy=retry, clock=clock)
    service.startService()
    return service


def stopped(service: ClientService | None) -> Deferred[None]:
    """Stop *service*, unless it is None; the Deferred fires when the connection of the service is closed."""
    return succeed(None) if service is None else service.stopService().addCallback(lambda _: None)
