"""The event bus as a service: a ZeroMQ context, three ports in a row, and a listener that says who may connect.

in: where to listen, settings      out: what listens; stopped in order, and never waiting for a peer
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import zmq
from twisted.application.service import Service
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IDelayedCall, IListeningPort
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from zope.interface import implementer

from fyrehose.identity import Action, Identity
from fyrehose.interfaces import IBroker
from fyrehose.protocols.eventbus.connections import Connections, Key, shut_down
from fyrehose.protocols.eventbus.encoding import PROTOCOL
from fyrehose.protocols.eventbus.handshakes import LEFT, TIMEOUT, Handshakes
from fyrehose.protocols.eventbus.ports import Peers
from fyrehose.protocols.eventbus.server import EventBusServer
from fyrehose.protocols.eventbus.settings import Settings
from fyrehose.protocols.eventbus.sockets import HANDSHAKE, Context, Keys, Socket, address, load_clients, make_socket
from fyrehose.protocols.eventbus.zap import ADDRESS, DOMAINS, TOO_MANY, Listener
from fyrehose.protocols.eventbus.zmqport import (
    ACCEPTED,
    ALL,
    CONNECTED,
    DISCONNECTED,
    FAILED_AUTH,
    FAILED_PROTOCOL,
    Monitor,
    ZMQPort,
)

log = Logger()

#: Broadcasts that may wait for one subscriber; beyond that ZeroMQ drops its events, and it has to ask again.
BROADCASTS_WAITING = 10_000
#: SYNCs that may wait for one client; beyond that its snapshot waits.
SYNCS_WAITING = 1_000
#: PUBs that may wait to be read of one publisher; beyond that it waits.  ZeroMQ counts them and not their bytes, so
#: they are as many of the largest as this memory holds, and within these bounds.  With more of them ZeroMQ's thread and
#: ours wake each other less often.  They cannot be raised later: ZeroMQ then forgets to wake who waits already.
PUBS_MEMORY = 256 << 20
PUBS_WAITING_LEAST = 16
PUBS_WAITING_MOST = 1_000
#: Requests that may wait to be read of one client, and the largest: 64 subtrees of 255 bytes and their separators.
REQUESTS_WAITING = 16
REQUEST_SIZE = 32 << 10
#: The largest subscription.
SUBSCRIPTION_SIZE = 4 << 10
#: How long what was sent has to leave after the end, in milliseconds.
LINGER = 1_000
#: What the text calls the three ports.
NAMES = ("SNAPSHOT", "PUBLISHER", "COLLECTOR")
#: How long a connection that is refused is kept open, in seconds: its client comes back as soon as it ends.
HOLD = 1.0
#: How often three free ports in a row are looked for.
ATTEMPTS = 50


@implementer(IListeningPort)
class Listening:
    """What has been bound, for the line that says so."""

    def __init__(self, service: EventBusService, host: str, port: int) -> None:
        self.service = service
        self.host = host
        self.port = port

    def startListening(self) -> None:
        """It listens already."""

    def stopListening(self) -> Deferred[None]:
        """Stop the service."""
        return self.service.stopService()

    def getHost(self) -> IPv4Address | IPv6Address:
        """The address of SNAPSHOT; PUBLISHER and COLLECTOR are the two ports behind it."""
        return (IPv6Address if ":" in self.host else IPv4Address)("TCP", self.host, self.port)


class EventBusService(Service):
    """Serves one stream at three ports as long as it runs.

    :raises ConfigError: from the constructor: the keys cannot be read
    """

    def __init__(self, reactor: Any, broker: IBroker, host: str, port: int, settings: Settings) -> None:
        self._reactor = reactor
        self._broker = broker
        self._host = host
        self._first = port
        self._settings = settings
        self._keys = Keys.load(settings.server_key) if settings.server_key else None
        self._listener = self._make_listener()
        self._peers = Connections()
        self._context: Context | None = None
        self._port = port
        self._server: EventBusServer | None = None
        self._ports: list[ZMQPort] = []
        self._monitors: list[Monitor] = []
        self._ending: dict[Key, IDelayedCall] = {}

    def startService(self) -> Deferred[Listening]:
        """Bind; fires with what listens, or fails with what keeps it from listening."""
        Service.startService(self)
        self._context = zmq.Context()
        self._peers = Connections(self._settings.max_connections)
        # The listener first: nobody is let in while nobody answers there.
        asked = self._context.socket(zmq.REP)
        asked.bind(ADDRESS)
        listener = ZMQPort(self._reactor, asked)
        listener.receive = partial(self._asked, listener)
        self._ports = [listener]
        sockets = self._make_sockets(self._context)
        try:
            port = self._bind(sockets)
        except zmq.ZMQError as error:
            for socket in sockets:
                socket.close(0)
            wrong = OSError(error.errno, os.strerror(error.errno or 0))
            return self._close().addCallback(lambda _: fail(CannotListenError(self._host, self._first, wrong)))
        self._port = port
        self._serve(*sockets)
        return succeed(Listening(self, self._host, port))

    def stopService(self) -> Deferred[None]:
        """Take nothing more in; fires when what came in is durable and was broadcast, and the ports are closed."""
        Service.stopService(self)
        server, self._server = self._server, None
        if server is None:
            return succeed(None)
        return server.stop().addCallback(lambda _: self._close())

    @property
    def connections(self) -> int:
        """How many there are, at all three ports."""
        return self._peers.count

    def reload(self) -> None:
        """Read the clients' keys again, and part with whoever may not be connected any more.

        :raises ConfigError: they cannot be read; those that were go on
        """
        self._listener = self._make_listener()
        parted = self._peers.part(self._listener.may, range(self._port, self._port + 3))
        if parted:
            log.info("{protocol}: {count} connections are ended, to be judged again", protocol=PROTOCOL, count=parted)

    def _make_listener(self) -> Listener:
        clients = None
        if self._keys is not None and self._settings.client_keys != "any":
            clients = load_clients(self._settings.client_keys)
        return Listener(permits=self._permits, clients=clients, curve=self._keys is not None)

    def _permits(self, identity: Identity, action: Action) -> bool:
        permitted: bool = self._broker.identified(identity).permits(action, self._settings.stream)
        return permitted

    def _make_sockets(self, context: Context) -> tuple[Socket, Socket, Socket]:
        payload = self._settings.max_payload
        snapshot = make_socket(context, zmq.ROUTER, largest=REQUEST_SIZE, received=REQUESTS_WAITING, sent=SYNCS_WAITING)
        publisher = make_socket(
            context, zmq.PUB, largest=SUBSCRIPTION_SIZE, received=REQUESTS_WAITING, sent=BROADCASTS_WAITING
        )
        waiting = min(max(PUBS_MEMORY // payload, PUBS_WAITING_LEAST), PUBS_WAITING_MOST)
        # ZeroMQ says nothing of a frame that is too large for it, so what is a little too large is refused here.
        largest = payload + max(payload // 4, REQUEST_SIZE)
        collector = make_socket(context, zmq.ROUTER, largest=largest, received=waiting, sent=1)
        for socket in (snapshot, publisher, collector):
            action = Action.PUBLISH if socket is collector else Action.SUBSCRIBE
            socket.setsockopt(zmq.ZAP_DOMAIN, DOMAINS[action])
            if ":" in self._host:
                socket.setsockopt(zmq.IPV6, 1)
            if self._keys is not None:
                socket.curve_server = True
                socket.curve_publickey, socket.curve_secretkey = self._keys.public, self._keys.secret
        return snapshot, publisher, collector

    def _bind(self, sockets: tuple[Socket, Socket, Socket]) -> int:
        """Bind three ports in a row; the first."""
        if self._first:
            for port, socket in enumerate(sockets, self._first):
                socket.bind(address(self._host, port))
            return self._first
        for left in reversed(range(ATTEMPTS)):
            sockets[0].bind(address(self._host, "*"))
            first = int(sockets[0].getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
            bound = [first]
            try:
                for port, socket in enumerate(sockets[1:], first + 1):
                    socket.bind(address(self._host, port))
                    bound.append(port)
                return first
            except zmq.ZMQError:
                for port, socket in zip(bound, sockets, strict=False):
                    socket.unbind(address(self._host, port))
                if not left:
                    raise
        raise AssertionError("one attempt at least is made")

    def _serve(self, snapshot: Socket, publisher: Socket, collector: Socket) -> None:
        context, reactor = self._context, self._reactor
        assert context is not None
        peers = Peers(
            partial(self._peers.of, self._port + 1),
            partial(shut_down, port=self._port + 1),
            partial(shut_down, port=self._port),
        )
        server = self._server = EventBusServer(reactor, self._broker, self._settings, peers)
        names = [f"{name} (port {port})" for port, name in enumerate(NAMES, self._port)]
        requests = ZMQPort(reactor, snapshot, server.request_received, server.requests_over, names[0])
        broadcasts = ZMQPort(reactor, publisher, name=names[1])
        pubs = ZMQPort(reactor, collector, server.pub_received, server.pubs_over, names[2])
        self._ports[0].start()
        self._ports += [requests, broadcasts, pubs]
        self._monitors = [
            Monitor(reactor, context, socket, ALL, partial(self._happened, port, Handshakes()))
            for port, socket in enumerate((snapshot, publisher, collector), self._port)
        ]
        server.start(requests, broadcasts, pubs)

    def _happened(self, port: int, handshakes: Handshakes, event: int, value: int) -> None:
        """Handle what a monitor says; for a failed handshake *value* says why, else it is a file descriptor."""
        if event == CONNECTED:
            handshakes.succeeded()
        elif event not in (ACCEPTED, DISCONNECTED):
            handshakes.failed(value, protocol=event == FAILED_PROTOCOL, refused=event == FAILED_AUTH)
        else:
            if event == ACCEPTED:
                handshakes.accepted(value)
            elif (cause := handshakes.ended(value)) is not None and not self._peers.was_refused(port, value):
                self._handshake_failed(cause, self._where(port, self._peers.host(port, value)))
            self._connection(port, event, value)

    def _handshake_failed(self, cause: str, where: str) -> None:
        counters = self._broker.counters
        if cause == LEFT:  # as a check whether the port is open does
            counters.add(PROTOCOL, cause)
        elif cause == TIMEOUT:
            counters.refuse(
                log, PROTOCOL, cause, where, f"it has said nothing for {HANDSHAKE // 1000} s, or not enough"
            )
        else:
            what = "what it sent is no handshake of ZeroMQ 3 or later, or that of a wrong kind of socket or key"
            counters.refuse(log, PROTOCOL, cause, where, what)

    def _connection(self, port: int, event: int, value: int) -> None:
        counters, peers = self._broker.counters, self._peers
        before = peers.count
        if event == ACCEPTED:
            counters.add(PROTOCOL, "connections")
            refused = peers.accepted(port, value)
            if refused is not None:
                # One that was connected has to go now; a new one waits, or its client comes back at once.
                self._refuse(refused, peers.crowded() or refused != (port, value))
        else:
            peers.disconnected(port, value)
            ending = self._ending.pop((port, value), None)
            if ending is not None and ending.active():
                ending.cancel()
        counters.gauge(PROTOCOL, "connections", peers.count - before)

    def _where(self, port: int, host: str) -> str:
        return f"{host} at {NAMES[port - self._port]} (port {port})"

    def _refuse(self, key: Key, at_once: bool) -> None:
        peers = self._peers
        detail = f"max-connections is {self._settings.max_connections}; the client comes back and gets in when one ends"
        self._broker.counters.refuse(log, PROTOCOL, TOO_MANY, self._where(key[0], peers.host(*key)), detail)
        if at_once:
            peers.end(*key)
        else:
            self._ending[key] = self._reactor.callLater(HOLD, peers.end, *key)

    def _asked(self, listener: ZMQPort, question: list[bytes], count: int) -> None:
        """ZeroMQ asks whether a connection may be."""
        # What was accepted is known to the monitors before ZeroMQ asks, and to us when we have read it.
        for monitor in self._monitors:
            monitor.take_in()
        answer = self._listener.answer(question, refused=self._peers.refuse)
        if answer.cause == TOO_MANY:
            pass  # counted when it was accepted
        elif answer.cause is not None:
            detail = "{} may not {}".format(*answer.wanted) if answer.wanted is not None else ""
            port = self._port + 2 if answer.wanted and answer.wanted[1] is Action.PUBLISH else self._port
            self._broker.counters.refuse(log, PROTOCOL, answer.cause, self._where(port, answer.address), detail)
        elif answer.wanted is not None:
            self._peers.admit(*answer.wanted)
        listener.send(answer.frames)

    def _close(self) -> Deferred[None]:
        self._broker.counters.gauge(PROTOCOL, "connections", -self._peers.count)
        for ending in self._ending.values():
            if ending.active():
                ending.cancel()
        self._ending.clear()
        monitors, self._monitors = self._monitors, []
        ports, self._ports = self._ports, []
        context, self._context = self._context, None
        for monitor in monitors:
            monitor.close()
        for port in ports:
            port.close(LINGER)
        assert context is not None
        # It waits for what was sent to leave, LINGER at the most; nothing else has to wait for that.
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), context.term)
