"""The event bus as a service: a ZeroMQ context, three consecutive ports, and a ZAP handler that admits connections.

in: host, port, settings      out: the listening ports; an orderly stop that does not wait for peers
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import attrs
import zmq
from twisted.application.service import Service
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IDelayedCall, IListeningPort
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.identity import Action, Identity
from fyrehose.interfaces import IBroker, IConnected, IReloading, Prepared
from fyrehose.options import FileContent
from fyrehose.protocols.eventbus.columns import PROTOCOL
from fyrehose.protocols.eventbus.connections import BAD, LEFT, TIMEOUT, UNKNOWN, Connections, Handshakes
from fyrehose.protocols.eventbus.server import EventBusServer
from fyrehose.protocols.eventbus.settings import EventBusSettings
from fyrehose.protocols.eventbus.sockets import HANDSHAKE, Context, Keys, Socket, address, load_clients, make_socket
from fyrehose.protocols.eventbus.zap import ADDRESS, DOMAINS, Authenticator, address_of
from fyrehose.protocols.eventbus.zmqport import (
    ACCEPTED,
    ALL,
    CONNECTED,
    DISCONNECTED,
    FAILED_AUTH,
    FAILED_PROTOCOL,
    ZMQPort,
)

log = Logger()

#: Broadcasts that may be queued for one subscriber; ZeroMQ drops further ones, and the subscriber has to request them.
BROADCASTS_WAITING = 10_000
#: SYNCs that may be queued for one client; then its snapshot waits.
SYNCS_WAITING = 1_000
#: PUBs of one publisher that may wait to be read; then the publisher waits.  ZeroMQ limits their number and not their
#: memory, so the number is PUBS_MEMORY / max-payload within these bounds.  With a larger number ZeroMQ's thread and the
#: reactor wake each other less often.  The number cannot be raised later: ZeroMQ would not wake publishers that wait.
PUBS_MEMORY = 256 << 20
PUBS_WAITING_LEAST = 16
PUBS_WAITING_MOST = 1_000
#: Requests of one client that may wait to be read, and the maximum size of a frame, in bytes: more than 64 subtrees of
#: 255 bytes with their separators.
REQUESTS_WAITING = 16
REQUEST_SIZE = 32 << 10
#: Maximum size of a subscription, in bytes.
SUBSCRIPTION_SIZE = 4 << 10
#: How long a closed socket keeps sending what is queued, in milliseconds.
LINGER = 1_000
#: The options that cannot change while the listener is open.  Its sockets were made with the key and the sizes of
#: frames; connected clients rely on the stream and the encoding of its sequences.
FIXED = ("stream", "server_key", "dialect", "max_payload")
#: The names of the three ports in the specification, "Ports and Connections".
NAMES = ("SNAPSHOT", "PUBLISHER", "COLLECTOR")
#: How long a refused connection is kept open, in seconds, because its client reconnects as soon as it is closed.
HOLD = 1.0
#: Delayed ZAP requests are answered this long after the refused connection was closed, in seconds; one may be its own.
MARGIN = 0.01
#: The cause that counts refused connections.
TOO_MANY = "too-many-connections"
#: The texts that the log gives for failed handshakes; the keys are the names of the counters.
FAILURES = {
    TIMEOUT: f"it has not completed the handshake within {HANDSHAKE // 1000} s",
    BAD: "it does not speak ZeroMQ 3 or later, or has the wrong type of socket or the wrong server key",
}
#: How often binding to three consecutive free ports is tried.
ATTEMPTS = 50
#: Counters of the event bus, and the causes for which it refuses connections, requests and events.
EVENTS = (
    LEFT,
    "binary-subscribers",
    "broadcasts",
    "connections",
    "decimal-requests",
    "decimal-subscribers",
    "duplicate",
    "pub-bytes",
    "pubs",
    "skipped",
    "snapshot-left",
    "snapshot-replaced",
    "snapshots",
    "syncs",
)
REFUSALS = (
    TOO_MANY,
    TIMEOUT,
    BAD,
    "bad-sequence",
    "bad-subtree",
    "bad-topic",
    "bad-zap-request",
    "broadcast-memory-full",
    "data-too-large",
    "journal-corrupt",
    "snapshot-failed",
    "label-too-long",
    "no-key",
    "not-published-at-stop",
    "snapshot-stalled",
    "subscriber-too-slow",
    "subtree-too-long",
    "too-many-snapshots",
    "too-many-subscriptions",
    "too-many-subtrees",
    "topic-too-long",
    "unknown-command",
    "unknown-key",
    "wrong-frame-count",
)


@implementer(IListeningPort)
@attrs.frozen
class ListeningPorts:
    """The bound ports, for the log line that reports them."""

    service: EventBusService
    host: str
    port: int

    def startListening(self) -> None:
        """Do nothing, because the ports are bound already."""

    def stopListening(self) -> Deferred[None]:
        """Stop the service."""
        return self.service.stopService()

    def getHost(self) -> IPv4Address | IPv6Address:
        """Return the address of SNAPSHOT; PUBLISHER and COLLECTOR use the next two ports."""
        return (IPv6Address if ":" in self.host else IPv4Address)("TCP", self.host, self.port)


@implementer(IConnected, IReloading)
class EventBusService(Service):
    """A service that serves one stream at three consecutive ports while it runs.

    :param port: the port of SNAPSHOT; 0: any three consecutive free ports
    :raises ConfigError: by the constructor, if the keys cannot be read
    """

    def __init__(self, reactor: Any, broker: IBroker, host: str, port: int, settings: EventBusSettings) -> None:
        self._reactor = reactor
        self._broker = broker
        broker.counters.declare(PROTOCOL, EVENTS, REFUSALS)
        self._host = host
        self._first = port
        self._settings = settings
        self._keys = Keys.load(settings.server_key) if settings.server_key else None
        self._authenticator = self._make_authenticator(settings)
        self._connections = Connections()
        self._context: Context | None = None
        self._port = port
        self._server: EventBusServer | None = None
        self._ports: list[ZMQPort] = []
        #: the delayed answers to ZAP requests
        self._delayed: set[IDelayedCall] = set()

    def startService(self) -> Deferred[ListeningPorts]:
        """Bind the ports and serve.

        :return: a Deferred that fires with the listening ports, or fails with CannotListenError
        """
        Service.startService(self)
        self._context = zmq.Context()
        self._connections = Connections(self._settings.max_connections)
        # Start the ZAP handler first, because without one ZeroMQ would admit every connection.
        # The handler is a ROUTER, which may answer one request while others wait, and need not answer a request whose
        # connection has ended.
        handler = self._context.socket(zmq.ROUTER)
        handler.bind(ADDRESS)
        zap = ZMQPort(self._reactor, handler)
        zap.receive = partial(self._zap_request_received, zap)
        self._ports = [zap]
        sockets = self._make_sockets(self._context)
        try:
            port = self._bind(sockets)
        except zmq.ZMQError as error:
            for socket in sockets:
                socket.close(0)
            wrong = OSError(error.errno, os.strerror(error.errno or 0))
            return self._close().addCallback(lambda _: fail(CannotListenError(self._host, self._first, wrong)))
        self._port = port
        leading = self._broker.when_leading()
        if not leading.called:
            self._close_collector(sockets[2], leading)
        self._serve(*sockets)
        return succeed(ListeningPorts(self, self._host, port))

    def stopService(self) -> Deferred[None]:
        """Stop serving.

        :return: a Deferred that fires when accepted events are durable and broadcast, and the ports are closed
        """
        Service.stopService(self)
        server, self._server = self._server, None
        if server is None:
            return succeed(None)
        return server.stop().addCallback(lambda _: self._close())

    @property
    def connections(self) -> int:
        """Return the number of open connections of all three ports."""
        return len(self._connections)

    def fixed(self, settings: EventBusSettings) -> Collection[str]:
        """Return the options with which ZeroMQ's sockets were made, or on which connected clients rely."""
        return FIXED

    @property
    def contents(self) -> Mapping[str, FileContent]:
        """Return the keys of the clients."""
        return self._authenticator.contents

    def prepare(self, settings: EventBusSettings) -> Prepared:
        """Read the clients' keys again, and return what uses them and the rest of *settings*.

        :raises ConfigError: the keys cannot be read
        """
        authenticator = self._make_authenticator(settings)
        return Prepared(partial(self._use, settings, authenticator), authenticator.contents)

    def _use(self, settings: EventBusSettings, authenticator: Authenticator) -> None:
        self._settings, self._authenticator = settings, authenticator
        self._connections.change(settings.max_connections)
        if self._server is not None:
            self._server.change(settings)
        ended = self._connections.end_forbidden(authenticator.may)
        if ended:
            log.info(
                "{protocol}: closed {count} connections, which have to be admitted again",
                protocol=PROTOCOL,
                count=ended,
            )

    def _make_authenticator(self, settings: EventBusSettings) -> Authenticator:
        clients = None
        if self._keys is not None and settings.client_keys != "any":
            clients = load_clients(settings.client_keys)
        return Authenticator(permits=self._permits, clients=clients, curve=self._keys is not None)

    def _permits(self, identity: Identity, action: Action) -> bool:
        permitted: bool = self._broker.identified(identity).permits(action, self._settings.stream)
        return permitted

    def _make_sockets(self, context: Context) -> tuple[Socket, Socket, Socket]:
        payload = self._settings.max_payload
        make = partial(make_socket, context, host=self._host)
        snapshot = make(zmq.ROUTER, largest=REQUEST_SIZE, received=REQUESTS_WAITING, sent=SYNCS_WAITING)
        publisher = make(zmq.XPUB, largest=SUBSCRIPTION_SIZE, received=REQUESTS_WAITING, sent=BROADCASTS_WAITING)
        waiting = min(max(PUBS_MEMORY // payload, PUBS_WAITING_LEAST), PUBS_WAITING_MOST)
        # ZeroMQ cuts the connection when a frame exceeds its limit, and does not report why.  So its limit is higher
        # than max-payload: the session itself then refuses, counts and logs events that are up to a quarter too large.
        largest = payload + max(payload // 4, REQUEST_SIZE)
        collector = make(zmq.ROUTER, largest=largest, received=waiting, sent=1)
        for socket in (snapshot, publisher, collector):
            action = Action.PUBLISH if socket is collector else Action.SUBSCRIBE
            socket.setsockopt(zmq.ZAP_DOMAIN, DOMAINS[action])
            if self._keys is not None:
                socket.curve_server = True
                socket.curve_publickey, socket.curve_secretkey = self._keys.public, self._keys.secret
        return snapshot, publisher, collector

    def _bind(self, sockets: tuple[Socket, Socket, Socket]) -> int:
        """Bind the sockets to three consecutive ports; return the first."""
        for left in reversed(range(1 if self._first else ATTEMPTS)):
            first, bound = self._first, []
            try:
                for offset, socket in enumerate(sockets):
                    socket.bind(address(self._host, first + offset if first else "*"))
                    first = first or int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
                    bound.append(socket)
                return first
            except zmq.ZMQError:
                for port, socket in enumerate(bound, first):
                    socket.unbind(address(self._host, port))
                if not left:
                    raise
        raise AssertionError("ATTEMPTS is not positive")

    def _close_collector(self, collector: Socket, leading: Deferred[None]) -> None:
        """Close COLLECTOR until this server leads: publishers that know several servers then use another one."""
        where = address(self._host, self._port + 2)
        collector.unbind(where)
        log.info("{protocol}: COLLECTOR stays closed until this server leads", protocol=PROTOCOL)

        def leads(_: None) -> None:
            if not collector.closed:
                collector.bind(where)
                log.info("{protocol}: COLLECTOR is open", protocol=PROTOCOL)

        leading.addCallback(leads).addErrback(self._not_open)

    def _not_open(self, failure: Failure) -> None:
        failure.trap(zmq.ZMQError)
        log.critical(
            "{protocol}: COLLECTOR cannot listen at port {port}, so events cannot be published here; free the port, "
            "and restart the server: {why}",
            protocol=PROTOCOL,
            port=self._port + 2,
            why=failure.getErrorMessage(),
        )

    def _serve(self, snapshot: Socket, publisher: Socket, collector: Socket) -> None:
        reactor = self._reactor
        server = self._server = EventBusServer(reactor, self._broker, self._settings, self._connections)
        names = [f"{name} (port {port})" for port, name in enumerate(NAMES, self._port)]
        requests = ZMQPort(reactor, snapshot, server.request_received, server.serve_snapshots, names[0])
        broadcasts = ZMQPort(reactor, publisher, server.subscription_received, name=names[1])
        pubs = ZMQPort(reactor, collector, server.pub_received, server.publish_turn, names[2])
        self._ports[0].start()
        self._ports += [requests, broadcasts, pubs]
        for number, port in enumerate((requests, broadcasts, pubs), self._port):
            port.watch(ALL, partial(self._monitor_event, number, Handshakes()))
        server.start(requests, broadcasts, pubs, self._port)

    def _monitor_event(self, port: int, handshakes: Handshakes, event: int, value: int) -> None:
        """Process an event of a monitor.

        :param value: the error number of a failed handshake, otherwise a file descriptor
        """
        before = len(self._connections)
        if event == CONNECTED:
            handshakes.succeeded()
        elif event == ACCEPTED:
            if self._admits(port, value):
                handshakes.accepted(value)
        elif event == DISCONNECTED:
            self._disconnected(port, value, handshakes.ended(value))
        else:
            handshakes.failed(value, protocol=event == FAILED_PROTOCOL, refused=event == FAILED_AUTH)
        self._broker.counters.gauge(PROTOCOL, "connections", len(self._connections) - before)

    def _admits(self, port: int, descriptor: int) -> bool:
        """Process a new connection; return False if it is refused, because the server is full."""
        connections = self._connections
        self._broker.counters.add(PROTOCOL, "connections")
        refused = connections.accepted(port, descriptor)
        if refused is None:
            return True
        detail = f"max-connections is {self._settings.max_connections}; the client reconnects until there is room"
        self._broker.counters.refuse(log, PROTOCOL, TOO_MANY, self._where(refused.port, refused.host), detail)
        # A connection that makes room for another one is closed now; a refused new one is kept open for HOLD seconds.
        is_new = (refused.port, refused.descriptor) == (port, descriptor)
        if is_new and not connections.too_many_refused():
            refused.ending = self._reactor.callLater(HOLD, refused.close)
        else:
            refused.close()
        return not is_new

    def _disconnected(self, port: int, descriptor: int, cause: str | None) -> None:
        """Process the end of a connection.

        :param cause: why its handshake failed, or None
        """
        counters, gone = self._broker.counters, self._connections.disconnected(port, descriptor)
        if gone is not None and gone.ending is not None and gone.ending.active():
            gone.ending.cancel()
        if gone is not None and self._server is not None:
            self._server.subscriber_left(gone)
        if cause is None or (gone is not None and gone.refused):
            return
        where = self._where(port, UNKNOWN if gone is None else gone.host)
        if cause == LEFT:  # not logged: it may be a check whether the port is open
            counters.add(PROTOCOL, cause)
        else:
            counters.refuse(log, PROTOCOL, cause, where, FAILURES[cause])

    def _where(self, port: int, host: str) -> str:
        return f"{host} at {NAMES[port - self._port]} (port {port})"

    def _zap_request_received(self, zap: ZMQPort, frames: list[bytes], count: int) -> None:
        """Process a ZAP request, by which ZeroMQ asks whether to admit a connection.

        A request has the address of the peer, and no descriptor.  So while a refused connection from that address is
        kept open, any request may be that of the refused connection.  It is answered only when that connection is
        closed.  Otherwise a refusal could meet another client; and an admission could let the refused client send a
        request, which would be lost when its connection is closed.
        """
        # A connection is reported to its monitor before the ZAP request; read those events first.
        for port in self._ports:
            port.process_events()
        envelope, question = frames[:2], frames[2:]
        until = self._connections.refused_until(address_of(question))
        if not until:
            self._authenticate(zap, envelope, question)
            return

        def answer() -> None:
            self._delayed.discard(call)
            self._authenticate(zap, envelope, question)

        call = self._reactor.callLater(until - self._reactor.seconds() + MARGIN, answer)
        self._delayed.add(call)

    def _authenticate(self, zap: ZMQPort, envelope: list[bytes], question: list[bytes]) -> None:
        answer = self._authenticator.answer(question, self._connections.number())
        if answer.cause is not None:
            detail = "{} may not {}".format(*answer.wanted) if answer.wanted is not None else ""
            number = self._port + 2 if answer.wanted and answer.wanted[1] is Action.PUBLISH else self._port
            self._broker.counters.refuse(log, PROTOCOL, answer.cause, self._where(number, answer.address), detail)
        elif answer.wanted is not None:
            self._connections.admit(*answer.wanted)
        zap.send([*envelope, *answer.frames])

    def _close(self) -> Deferred[None]:
        while self._delayed:
            self._delayed.pop().cancel()
        self._broker.counters.gauge(PROTOCOL, "connections", -len(self._connections))
        self._connections.clear()
        ports, self._ports = self._ports, []
        context, self._context = self._context, None
        for port in ports:
            port.close(LINGER)
        assert context is not None
        # Closing the context takes up to LINGER, so it runs in a thread.
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), context.term)
