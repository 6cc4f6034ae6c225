"""The event bus as a service: three consecutive ports.

in: host, port, settings      out: the listening ports; an orderly stop, before which accepted events are broadcast
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, fail, maybeDeferred, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.file_content import FileContent
from fyrehose.interfaces import IBroker, IConnected, IReloading, Prepared
from fyrehose.net.peers import port_of
from fyrehose.net.proxied import ProxiedFactory
from fyrehose.net.sockets import WAITING
from fyrehose.protocols.eventbus.columns import PROTOCOL
from fyrehose.protocols.eventbus.keys import Keys, load_clients
from fyrehose.protocols.eventbus.server import (
    BusProtocol,
    CollectorProtocol,
    CurveFactory,
    EventBusFactory,
    PortFactory,
    PublisherProtocol,
    SnapshotProtocol,
    null,
)
from fyrehose.protocols.eventbus.settings import EventBusSettings
from fyrehose.protocols.eventbus.zmtp import Mechanism

log = Logger()

#: The protocols of the three ports, in their order.
PROTOCOLS: tuple[type[BusProtocol], ...] = (SnapshotProtocol, PublisherProtocol, CollectorProtocol)
#: How often binding to three consecutive free ports is tried.
ATTEMPTS = 20
#: How long a stopping server continues to read events that clients have sent: until none came for QUIET_S, in seconds.
READ_TIMEOUT_S, QUIET_S = 1.0, 0.05
#: How long it waits until accepted events are durable, and so are broadcast, in seconds.
STOP_TIMEOUT_S = 10.0


@implementer(IConnected, IReloading)
class EventBusService(Service):
    """A service that serves one stream at three consecutive ports while it runs.

    :param port: the port of SNAPSHOT; 0: any three consecutive free ports
    :raises ConfigError: by the constructor, if the keys cannot be read
    """

    def __init__(self, reactor: Any, broker: IBroker, host: str, port: int, settings: EventBusSettings) -> None:
        self._reactor = reactor
        self._broker = broker
        self._host, self._first = host, port
        self._keys = _load_keys(settings)
        factory = EventBusFactory if self._keys is None else CurveFactory
        self.factory = factory(broker, settings, reactor, self._mechanism)
        self.factory.clients = self._load_clients(settings)
        self._ports: list[IListeningPort] = []

    def startService(self) -> Deferred[IListeningPort]:
        """Listen on the ports.

        :return: a Deferred that fires with the port of SNAPSHOT, or fails with CannotListenError
        """
        Service.startService(self)
        try:
            self._ports = self._bind()
        except CannotListenError as error:
            return fail(error)
        leading = self._broker.when_leading()
        if not leading.called:
            self._close_collector(leading)
        return succeed(self._ports[0])

    def stopService(self) -> Deferred[None]:
        """Stop serving.

        :return: a Deferred that fires when accepted events are durable and broadcast, and the connections are closed
        """
        Service.stopService(self)
        ports, self._ports = self._ports, []
        stopped = DeferredList([maybeDeferred(port.stopListening) for port in ports])
        return stopped.addCallback(lambda _: self._finish_collectors()).addCallback(lambda _: self.factory.drain())

    @property
    def connections(self) -> int:
        """Return the number of open connections of all three ports."""
        return len(self.factory.connections)

    def fixed(self, settings: EventBusSettings) -> Collection[str]:
        """Return the options that *settings* change and connected clients rely on."""
        now, then = (attrs.asdict(each, recurse=False) for each in (self.factory.settings, settings))
        return [name for name in self.factory.fixed_options if then[name] != now[name]]

    @property
    def contents(self) -> Mapping[str, FileContent]:
        """Return the server's keys, and those of the clients."""
        return _contents(self._keys, self.factory.clients)

    def prepare(self, settings: EventBusSettings) -> Prepared:
        """Read all keys again, and return what uses them, for new connections, and the rest of *settings*.

        :raises ConfigError: the keys cannot be read
        """
        keys, clients = _load_keys(settings), self._load_clients(settings)
        return Prepared(partial(self._use, settings, keys, clients), _contents(keys, clients))

    def _use(self, settings: EventBusSettings, keys: Keys | None, clients: frozenset[bytes] | None) -> None:
        self.factory.configure(settings)
        self._keys, self.factory.clients = keys, clients
        ended = self.factory.end_forbidden()
        if ended:
            log.info(
                "{protocol}: closed {count} connections, which have to be admitted again",
                protocol=PROTOCOL,
                count=ended,
            )

    def _mechanism(self) -> Mechanism:
        if self._keys is None:
            return null()
        from fyrehose.protocols.eventbus.curve import CurveServer  # needs a package of its own

        return CurveServer(self._keys.public, self._keys.secret, self.factory.clients)

    def _load_clients(self, settings: EventBusSettings) -> frozenset[bytes] | None:
        return None if settings.client_keys in ("", "any") else load_clients(settings.client_keys)

    def _bind(self) -> list[IListeningPort]:
        """Listen on three consecutive ports."""
        for left in reversed(range(1 if self._first else ATTEMPTS)):
            ports: list[IListeningPort] = []
            try:
                for kind in PROTOCOLS:
                    after = _number(ports[-1]) + 1 if ports else self._first
                    ports.append(self._listen(after, kind))
                return ports
            except (CannotListenError, OverflowError):
                for port in ports:
                    port.stopListening()
                if not left:
                    raise
        raise AssertionError("ATTEMPTS is not positive")

    def _listen(self, port: int, kind: type[BusProtocol]) -> IListeningPort:
        factory = ProxiedFactory(PortFactory(self.factory, kind), self.factory)
        listening = self._reactor.listenTCP(port, factory, WAITING, self._host)
        accepting: IListeningPort = self.factory.newcomers.accept_from(listening)
        return accepting

    def _close_collector(self, leading: Deferred[None]) -> None:
        """Close COLLECTOR until this server leads: publishers that know several servers then use another one."""
        collector = self._ports.pop()
        number = _number(collector)
        closed = maybeDeferred(collector.stopListening)
        log.info("{protocol}: COLLECTOR stays closed until this server leads", protocol=PROTOCOL)

        def leads(_: object) -> None:
            if self.running:
                self._ports.append(self._listen(number, CollectorProtocol))
                log.info("{protocol}: COLLECTOR is open", protocol=PROTOCOL)

        leading.addCallback(lambda _: closed).addCallback(leads).addErrback(self._not_open, number)

    def _not_open(self, failure: Failure, number: int) -> None:
        failure.trap(CannotListenError)
        log.critical(
            "{protocol}: COLLECTOR cannot listen at port {port}, so events cannot be published here; free the port, "
            "and restart the server: {why}",
            protocol=PROTOCOL,
            port=number,
            why=failure.getErrorMessage(),
        )

    def _finish_collectors(self) -> Deferred[None]:
        """Read the events that clients have sent already, which they do not send again, and wait for their commits."""
        done: Deferred[None] = Deferred()
        began = self._reactor.seconds()

        def look() -> None:
            now = self._reactor.seconds()
            collectors = self.factory.of(CollectorProtocol)
            arriving = now < began + READ_TIMEOUT_S and any(each.heard_at > now - QUIET_S for each in collectors)
            for collector in collectors if not arriving else ():
                collector.finish()
            if arriving or (now < began + STOP_TIMEOUT_S and any(each.unsettled for each in collectors)):
                self._reactor.callLater(QUIET_S, look)
            else:
                done.callback(None)

        look()
        return done


def _number(port: IListeningPort) -> int:
    return port_of(port.getHost()) or 0


def _load_keys(settings: EventBusSettings) -> Keys | None:
    return Keys.load(settings.server_key) if settings.server_key else None


def _contents(keys: Keys | None, clients: frozenset[bytes] | None) -> dict[str, FileContent]:
    own = None if keys is None else keys.public + keys.secret
    admitted = None if clients is None else b"".join(sorted(clients))
    found = {"server_key": own, "client_keys": admitted}
    return {name: FileContent.of(data) for name, data in found.items() if data is not None}
