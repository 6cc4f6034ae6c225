"""The service of a listener: recovers its links, and then opens it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IListeningPort
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import OutcomeUnknown, ReadOnly
from fyrehose.net.endpoints import TCPService
from fyrehose.protocols.relink.endpoints import PROTOCOL
from fyrehose.protocols.relink.server import RelinkFactory

log = Logger()

#: Delay before a listener that could not write its links, because of a full disk for example, tries again, in seconds.
DISK_FULL_RETRY = 2.0


class RelinkService(TCPService):
    """Service that recovers the links of a listener, and then opens it."""

    def __init__(self, reactor: Any, endpoint: str, factory: RelinkFactory) -> None:
        super().__init__(reactor, PROTOCOL, endpoint, factory)
        self.registry = factory.registry
        self._retry_timer: IDelayedCall | None = None

    def fixed(self, settings: Any) -> Collection[str]:
        """Return the options that cannot change while the listener is open: it read its links when it opened."""
        return {"links", *super().fixed(settings)}

    def startService(self) -> Deferred[Any]:
        """Recover the links, then listen; while the journal accepts no writes, only this listener stays closed."""
        Service.startService(self)
        return self._open()

    def _open(self) -> Deferred[Any]:
        return self.registry.open().addCallback(self._links_recovered).addErrback(self._not_written)

    def _links_recovered(self, _: None) -> Deferred[IListeningPort] | None:
        if self.running:
            return TCPService.startService(self)
        self.registry.close()  # The service was stopped in the meantime.
        return None

    def _not_written(self, failure: Failure) -> Deferred[Any] | None:
        failure.trap(ReadOnly, OutcomeUnknown)
        if not self.running:
            return None
        if failure.check(OutcomeUnknown):
            return self._open()  # fails if the journal has failed; retries while it accepts no writes
        log.warn(
            "relink: the listener stays closed until its links can be written; retrying: {why}",
            why=failure.getErrorMessage(),
        )
        self._retry_timer = self.registry.clock.callLater(DISK_FULL_RETRY, self._retry_open)
        return None

    def _retry_open(self) -> None:
        self._retry_timer = None
        self._open().addErrback(self._open_failed)

    def _open_failed(self, failure: Failure) -> None:
        if self.running:
            log.failure("relink: links cannot be written, so the listener stays closed; restart the server", failure)

    def stopService(self) -> Deferred[None]:
        """Close the listener and its connections; the links stay on disk."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        self.registry.close()
        return super().stopService()
