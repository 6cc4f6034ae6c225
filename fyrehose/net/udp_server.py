"""The server's side of a UDP port: it publishes what arrives, and stops once that is durable.

    datagrams -> publish -> durable -> settle
                 the journal is behind: subclasses drop and count what arrives

A UDP sender cannot be paused, so its datagrams are dropped where a connection would not be read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import CannotListenError
from zope.interface import implementer

from fyrehose.broker.peer import CheckedPublisher, publisher_for
from fyrehose.broker.publisher import DeferredPublisher, Publisher
from fyrehose.file_content import FileContent
from fyrehose.identity import Identity
from fyrehose.interfaces import IBroker, IReloading, Prepared
from fyrehose.net.inflight import Account
from fyrehose.net.lifecycle import Timers
from fyrehose.net.udp import TrainProtocol, UDPPort
from fyrehose.records import Publish, Run

#: How long :meth:`UDPServerProtocol.drain` waits until accepted messages are settled, in seconds.
DRAIN_TIMEOUT = 10.0
#: Number of hosts whose permissions are cached.
HOSTS = 4_096


class UDPServerProtocol(TrainProtocol):
    """The protocol of a server's UDP port.

    :meth:`drain` ends when nothing is unsettled any more, or after :data:`DRAIN_TIMEOUT`.

    :param events: the names of the protocol's own counters
    :param refusals: the causes for which it drops datagrams
    :ivar settings: the settings, which :meth:`change` replaces
    :ivar identified: returns the broker with the permissions of a host; those of the latest hosts are cached
    :ivar journal_behind: whether datagrams are to be dropped, because the journal is behind
    :ivar unsettled: publishes that are neither durable nor refused
    :ivar drained: fires at the end of :meth:`drain`; None: the port serves
    """

    publisher: Publisher | CheckedPublisher | DeferredPublisher
    account: Account

    def __init__(
        self, broker: IBroker, settings: Any, reactor: Any, events: Sequence[str], refusals: Sequence[str]
    ) -> None:
        self.broker = broker
        self.settings = settings
        self.reactor = reactor
        self.timers = Timers(reactor)
        self.counters = broker.counters
        self.counters.declare(self.name, events, refusals)
        self.identified: Callable[[str], Any] = lru_cache(HOSTS)(lambda host: broker.identified(Identity(host=host)))
        self.journal_behind = False
        self.unsettled = 0
        self.drained: Deferred[None] | None = None

    # Called by the port.

    def startProtocol(self) -> None:
        """Serve, with an account and a publisher that end with the port."""
        self.drained = None
        self.account = self.broker.budget.account(self)
        self.publisher = publisher_for(self.broker, self.account, self.settle)

    def stopProtocol(self) -> None:
        super().stopProtocol()
        self.account.close()
        self.end_drain()

    # Called by the service.

    def change(self, settings: Any) -> None:
        """Use other settings from now on."""
        self.settings = settings

    def drain(self) -> Deferred[None]:
        """Ignore datagrams from now on; call this before the port stops listening, so that no accepted message is lost.

        :return: a Deferred that fires when everything is settled, or after DRAIN_TIMEOUT
        """
        self.turn_over()
        self.drained = Deferred()
        self.timers.start(DRAIN_TIMEOUT, self.end_drain)
        self.check_drained()
        return self.drained

    # Called by the budget.

    def pauseProducing(self) -> None:
        self.journal_behind = True

    def resumeProducing(self) -> None:
        self.journal_behind = False

    # For subclasses.

    def publish(self, runs: list[Run], note: Any = None, own: Sequence[Run] = ()) -> None:
        """Publish *runs* and *own*; see :meth:`.Publisher.publish`."""
        self.unsettled += 1
        try:
            self.publisher.publish(runs, note, own)
        except BaseException:
            self.unsettled -= 1
            raise

    def settle(self, items: Sequence[Publish]) -> None:
        """Note *items*, publishes that became durable in one commit; a hook for subclasses."""
        self.unsettled -= len(items)
        if self.drained is not None:
            self.check_drained()

    def is_settled(self) -> bool:
        """Return whether nothing that was accepted waits any more; a hook for subclasses."""
        return not self.unsettled

    def check_drained(self) -> None:
        """End :meth:`drain` if everything is settled."""
        if self.drained is not None and self.is_settled():
            self.end_drain()

    def end_drain(self) -> None:
        """End :meth:`drain`, if it has begun, whatever is unsettled."""
        if self.drained is not None and not self.drained.called:
            self.drained.callback(None)


@implementer(IReloading)
class UDPService(Service):
    """A service that serves a protocol at one UDP port while it runs."""

    def __init__(self, endpoint: str, port: UDPPort, protocol: UDPServerProtocol) -> None:
        self.name = f"{protocol.name} ({endpoint})"
        self._port = port
        self._protocol = protocol
        self.contents: dict[str, FileContent] = {}

    def startService(self) -> Deferred[UDPPort]:
        """Bind the port and serve.

        :return: a Deferred that fires with the port, or fails with CannotListenError
        """
        Service.startService(self)
        try:
            self._port.startListening()
        except CannotListenError as error:
            return fail(error)
        return succeed(self._port)

    def fixed(self, settings: Any) -> Collection[str]:
        """Return the options that a running server cannot change; a hook for subclasses."""
        return ()

    def prepare(self, settings: Any) -> Prepared:
        """Return what applies *settings*; there are no files to read first."""
        return Prepared(partial(self._protocol.change, settings))

    def stopService(self) -> Deferred[None]:
        """Stop serving.

        :return: a Deferred that fires when accepted messages are durable and delivered, and the port is closed
        """
        Service.stopService(self)
        if not self._port.connected:
            return succeed(None)
        return self._protocol.drain().addCallback(lambda _: self._port.stopListening())
