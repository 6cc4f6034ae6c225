"""Ask this server's own HTTP address whether it answers: a leader that publishers cannot reach hands over.

    every second: connect to [replication] address -> a request -> any answer within TIMEOUT_S
    TRIES without an answer -> gate.unreachable -> this server should not lead

An address that has never answered says nothing: some machines cannot reach their own public address, and some policies
and listeners do not let them in.  It is asked more and more seldom, because the listener counts what it refuses.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IDelayedCall, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.ssl import CertificateOptions
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.cluster.gate import ReplicatedGate

log = Logger()

#: How often the listener is asked, how long it may take, in seconds, and how often in a row it may not answer.
EVERY_S, TIMEOUT_S, TRIES = 1.0, 1.5, 3
#: The longest pause while the listener has never answered, in seconds.
LONGEST_S = 300.0
FORBIDDEN = b"HTTP/1.1 403"
#: A request that each listener answers, whatever its policy and its names, and that counts as no refusal.
REQUEST = b"OPTIONS * HTTP/1.0\r\n\r\n"


def endpoint_of(reactor: Any, address: str) -> IStreamClientEndpoint:
    """Return the endpoint of *address*, which is HOST:PORT or a URL; its certificate is not checked."""
    parts = urlsplit(address if "//" in address else f"//{address}")
    secure = parts.scheme == "https"
    endpoint = HostnameEndpoint(reactor, parts.hostname or "", parts.port or (443 if secure else 80))
    return wrapClientTLS(CertificateOptions(), endpoint) if secure else endpoint


class _Request(Protocol):
    """A connection with one request.

    :ivar answered: fires with True when an answer begins, with False when the connection ends before that
    """

    def __init__(self) -> None:
        self.answered: Deferred[bool] = Deferred(lambda _: self._hang_up())

    def connectionMade(self) -> None:
        assert self.transport is not None, "it is connected"
        self.transport.write(REQUEST)

    def dataReceived(self, data: bytes) -> None:
        self._hang_up()
        self._end(not data.startswith(FORBIDDEN))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._end(False)

    def _hang_up(self) -> None:
        assert self.transport is not None, "it is connected"
        self.transport.loseConnection()

    def _end(self, answered: bool) -> None:
        if not self.answered.called:
            self.answered.callback(answered)


class _Factory(Factory):
    noisy = False
    protocol = _Request


class ListenerProbe(Service):
    """A service that sets ``gate.unreachable`` while *endpoint* does not answer although it did before.

    :param address: the address of *endpoint*, for people
    """

    def __init__(self, reactor: Any, endpoint: IStreamClientEndpoint, gate: ReplicatedGate, address: str) -> None:
        self._reactor, self._endpoint, self._gate, self._address = reactor, endpoint, gate, address
        self._answered = False
        self._failures = 0  #: since the last answer
        self._asking: Deferred[None] | None = None
        self._next: IDelayedCall | None = None

    def startService(self) -> None:
        Service.startService(self)
        self._next = self._reactor.callLater(EVERY_S, self._ask)

    def stopService(self) -> None:
        Service.stopService(self)
        if self._next is not None and self._next.active():
            self._next.cancel()
        if self._asking is not None:
            self._asking.cancel()

    def _ask(self) -> None:
        connecting: Deferred[Any] = self._endpoint.connect(_Factory())
        asking = connecting.addCallback(lambda made: made.answered)
        asking.addTimeout(TIMEOUT_S, self._reactor)
        self._asking = asking.addErrback(lambda _: False).addCallback(self._note)
        self._asking.addErrback(lambda failure: failure.trap(CancelledError))

    def _note(self, answers: bool) -> None:
        self._asking = None
        if not self.running:
            return
        self._answered = self._answered or answers
        self._failures = 0 if answers else self._failures + 1
        pause = EVERY_S if self._answered else min(LONGEST_S, EVERY_S * 2.0 ** min(self._failures, 16))
        self._next = self._reactor.callLater(pause, self._ask)
        hangs = self._answered and self._failures >= TRIES
        if hangs != bool(self._gate.unreachable):
            self._gate.unreachable = "its listener does not answer" if hangs else ""
            does = "does not answer, so another server should lead" if hangs else "answers again"
            log.warn("replication: this server's HTTP listener at {address} {does}", address=self._address, does=does)
