"""The factory of connections, and the service that recovers the links of a listener before it listens."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import Closed, OutcomeUnknown, ReadOnly
from fyrehose.interfaces import IBroker
from fyrehose.net.connections import SessionFactory
from fyrehose.net.endpoints import TCPService
from fyrehose.net.lifecycle import Timers
from fyrehose.protocols.relink.endpoints import Publishing, Subscribing
from fyrehose.protocols.relink.frames import PROTOCOL
from fyrehose.protocols.relink.names import EndpointName
from fyrehose.protocols.relink.registry import LinkEntry, Registry
from fyrehose.protocols.relink.server import Endpoint, RelinkProtocol
from fyrehose.protocols.relink.settings import RelinkSettings

log = Logger()

#: The protocol's own counters, and the causes for which it refuses messages and closes connections.
EVENTS = (
    "connections-fenced",
    "links-ended",
    "links-expired",
    "links-made",
    "links-resumed",
    "links-unknown",
    "skipped",
)
REFUSALS = (
    "links-displaced",
    "links-too-large",
    "acknowledged-unsent",
    "backlog-too-large",
    "bad-id-size",
    "bad-link-id",
    "channel-after-shutdown",
    "consumed-before-result",
    "consumed-undecided",
    "endpoint-not-utf-8",
    "endpoint-unknown",
    "format-unknown",
    "gap-not-written",
    "general-unknown",
    "handshake-timeout",
    "message-after-close",
    "message-to-subscription",
    "message-too-large",
    "operation-not-transactional",
    "operation-on-unreceived",
    "report-behind",
    "result-not-transactional",
    "result-unasked",
    "results-unconfirmed",
    "resume-unexpected",
    "resumes-mismatched",
    "silent-peer",
    "subscription-displaced",
    "subscription-refused",
    "too-early",
    "too-many-channels",
    "too-many-gaps",
    "too-many-links",
    "too-many-parts",
    "too-many-targets",
    "transactions-forgotten",
    "transactions-too-large",
    "transactions-unsupported",
)
#: Delay before a listener tries again to write its links, for example after the disk was full, in seconds.
DISK_FULL_RETRY = 2.0


class RelinkFactory(SessionFactory):
    """The factory that builds the protocol of each connection: ``endpoint.listen(RelinkFactory(broker))``.

    :param registry: the listener's links; None: they are in the stream ``.relink/links``, which is read when listening
        begins
    """

    protocol = RelinkProtocol
    defaults = RelinkSettings()
    events = EVENTS
    refusals = REFUSALS
    settings: RelinkSettings

    def __init__(
        self,
        broker: IBroker,
        settings: RelinkSettings | None = None,
        reactor: Any = None,
        registry: Registry | None = None,
    ) -> None:
        super().__init__(broker, settings, reactor)
        self.registry = Registry(broker, self.clock, self.settings) if registry is None else registry

    @staticmethod
    def endpoint(protocol: RelinkProtocol, entry: LinkEntry, place: EndpointName) -> Endpoint:
        """Return the endpoint of a connection whose connector has asked for *place*."""
        kind = Subscribing if place.subscribe else Publishing
        return kind(protocol, entry, place)

    def configure(self, settings: RelinkSettings) -> None:
        super().configure(settings)
        self.registry.settings = settings

    def startFactory(self) -> None:
        if self.registry.closed:
            self.registry.open().addErrback(lambda failure: self.log.failure("relink: links cannot be read", failure))

    def stopFactory(self) -> None:
        self.registry.close()


class RelinkService(TCPService):
    """A service that recovers the links of a listener, and then opens the listener."""

    def __init__(self, reactor: Any, endpoint: str, factory: RelinkFactory) -> None:
        super().__init__(reactor, PROTOCOL, endpoint, factory)
        self.registry = factory.registry
        self._timers = Timers(self.registry.clock)
        #: The start, until it ends.
        self._started: Deferred[Any] | None = None
        self.registry.broker.when_stuck(self._go_on)

    def fixed(self, settings: Any) -> Collection[str]:
        """Return the options that cannot change while the listener is open, such as the name of its table of links."""
        return {"links", *super().fixed(settings)}

    def startService(self) -> Deferred[Any]:
        """Recover the links, then listen; until the journal accepts writes, the listener stays closed.

        :return: a Deferred that fires when the service listens, or when it has to wait for the journal
        """
        Service.startService(self)
        started = self._started = Deferred()
        self._open().addBoth(self._end_start)
        return started

    def _end_start(self, result: Any) -> None:
        started, self._started = self._started, None
        if started is not None:
            started.callback(result)
        elif isinstance(result, Failure):
            self._open_failed(result)

    def _go_on(self, reason: str) -> None:
        """End the start, because the journal cannot be written for *reason*; the links may still become durable."""
        if self._started is not None and not isinstance(self.registry.broker.standing.refusal, Closed):
            self._end_start(None)  # Otherwise the journal has failed, and so does the start.

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
            "relink: the listener stays closed until its links can be written: {why}",
            why=failure.getErrorMessage(),
        )
        self._timers.start(DISK_FULL_RETRY, self._retry_open)
        return None

    def _retry_open(self) -> None:
        if isinstance(self.registry.broker.standing.refusal, ReadOnly):
            self._timers.start(DISK_FULL_RETRY, self._retry_open)
        else:
            self._open().addErrback(self._open_failed)

    def _open_failed(self, failure: Failure) -> None:
        if self.running:
            log.failure("relink: links cannot be written, so the listener stays closed; restart the server", failure)

    def stopService(self) -> Deferred[None]:
        """Close the listener and its connections; the links stay on disk."""
        self._timers.clear()
        self.registry.close()
        return super().stopService()
