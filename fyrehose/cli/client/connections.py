"""Record how the connections of a command end, so that the command can explain a failure instead of retrying forever.

    command -> client -> WatchedEndpoint, an endpoint -> the endpoint of the server
                            \\-> ConnectionHistory: how the connections ended, and the likely cause

Most protocols have no message for a refusal: the server just closes the connection.  If the first connections are all
closed at once, the server refuses the client, and the command ends with the likely causes.  Once a connection has
lasted, clients keep retrying, because a server may be restarted behind a port that another process keeps open.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectError, ConnectionDone, ConnectionLost, DNSLookupError
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import FyrehoseError
from fyrehose.net.peers import host_of
from fyrehose.options import counted

log = Logger()

#: The first bytes that servers of other protocols send, and the names of these protocols.
_FOREIGN = (
    (b"HTTP/", "http", "an HTTP server, such as the http or the admin listener"),
    (b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f", "eventbus", "a ZeroMQ socket, such as the eventbus listener"),
    (bytes(8), "relink", "a relink listener"),
    (b"\x15\x03", "", "a server that requires TLS; pass --tls"),
)
#: A connection that ends within SHORT seconds counts as closed at once; TIMES such connections in a row count as a
#: refusal.
SHORT, TIMES = 2.0, 3
#: Why a server refuses streams whose names begin with a dot.
_OWN = "streams whose names begin with a dot belong to the server; use another name"


@attrs.define(eq=False)
class ConnectionHistory:
    """History of the connections to one server.

    :ivar name: the server's name in messages, such as ``figg at 127.0.0.1:8119``
    :ivar wanted: the action of this command, such as ``read 'notes'``
    :ivar servers_own: whether the stream's name begins with a dot: the server keeps such streams to itself
    :ivar encrypted: whether the connections use TLS
    :ivar answers: whether the server answers each request, also to refuse it; only a connection on which it has sent
        nothing can be a refusal then
    :ivar times: how many connections in a row, each closed at once, count as a refusal
    :ivar refused: the error to report once the server has refused the connections
    """

    name: str
    wanted: str = "do this"
    servers_own: bool = False
    encrypted: bool = False
    answers: bool = False
    times: int = TIMES
    refused: FyrehoseError | None = attrs.field(default=None, init=False)
    _on_refused: Callable[[], object] = attrs.field(default=lambda: None, init=False)
    _short: int = attrs.field(default=0, init=False)
    _lasted: bool = attrs.field(default=False, init=False)
    _failure: str = attrs.field(default="", init=False)
    _open: int = attrs.field(default=0, init=False)
    _made: bool = attrs.field(default=False, init=False)
    _unknown: bool = attrs.field(default=False, init=False)
    _heard: bool = attrs.field(default=False, init=False)

    def __str__(self) -> str:
        return self.name

    def watch(self, on_refused: Callable[[], object]) -> None:
        """Call ``on_refused``, in place of an earlier callback, as soon as the server has refused the connections."""
        self._on_refused = on_refused
        if self.refused is not None:
            on_refused()

    @property
    def hint(self) -> str:
        """Return as text why the server probably does not answer, and what to check."""
        if self._made and self.servers_own:
            return _OWN
        if self._open and not self._heard:
            protocol = self.name.partition(" at ")[0]
            return (
                "the connection is open, and nothing has arrived on it: the disk of the server may be full (see its "
                f"log, or `fyrehose doctor` there), or that is no port of protocol {protocol}"
            )
        if self._open:
            return "the connection is open; see the server's log, and check its disk and the network"
        if self._failure:
            return f"the last attempt failed: {self._failure}; is the server running, and listening there?"
        if self._short:
            return f"the server closed {counted(self._short, 'connection')} at once; check the port, and see its log"
        if self._unknown:
            return "the host name has no address"
        return "is the server running and reachable, and does its access policy allow this client?"

    @property
    def broken(self) -> bool:
        """Return True if a connection was made before and none is open now."""
        return self._made and not self._open

    def failed(self, reason: Failure) -> None:
        """Record that a connection could not be made."""
        error = reason.value
        self._unknown = isinstance(error, DNSLookupError)
        number = error.osError if isinstance(error, ConnectError) else None
        self._failure = "" if self._unknown else os.strerror(number) if isinstance(number, int) else str(error)

    def made(self) -> None:
        """Record that a connection was made."""
        self._failure, self._unknown = "", False
        self._made = True
        self._open += 1

    def received(self, data: bytes) -> None:
        """Record the first bytes that the server sent on a connection, which may belong to another protocol."""
        self._heard = True
        for beginning, protocol, kind in _FOREIGN:
            if data.startswith(beginning) and not self.name.startswith(f"{protocol} at ") and not self._lasted:
                self._refuse(f"{self} is {kind}" + ("; check the port and --protocol" if protocol else ""))

    def lost(self, seconds: float, address: str, reason: Failure, answered: bool = False) -> None:
        """Record that a connection from the local ``address`` ended after ``seconds`` seconds.

        :param answered: whether the server has sent anything on it
        """
        self._open -= 1
        if seconds >= SHORT or (answered and self.answers):
            self._short, self._lasted = 0, True
            return
        self._short += 1
        tls_error = "" if reason.check(ConnectionDone, ConnectionLost) else _explained(reason.value)
        if self._lasted:
            if self._short == self.times:
                log.warn("{name} closes each connection at once; see its log; retrying", name=self)
        elif tls_error:
            self._refuse(f"TLS handshake with {self} failed: {tls_error}; see --tls")
        elif self._short == self.times and self.servers_own:
            self._refuse(f"{self} does not let this client {self.wanted}: {_OWN}")
        elif self._short == self.times:
            protocol, tls = self.name.partition(" at ")[0], "speak" if self.encrypted else "require"
            option = "" if self.encrypted else " (--tls)"
            self._refuse(
                f"{self} closes each connection at once: is that a port of protocol {protocol}, and does it {tls} "
                f"TLS{option}? See its log: its access policy may not allow {address} to {self.wanted}, or its "
                "max-connections is reached"
            )

    def _refuse(self, reason: str) -> None:
        if self.refused is None:
            self.refused = FyrehoseError(reason)
            self._on_refused()


@implementer(IStreamClientEndpoint)
@attrs.frozen
class WatchedEndpoint:
    """An endpoint that reports its connections to ``history``."""

    endpoint: IStreamClientEndpoint
    history: ConnectionHistory
    clock: IReactorTime

    def connect(self, factory: Any) -> Deferred[Any]:
        """Connect to the endpoint, and return the protocol that *factory* made."""
        connecting = self.endpoint.connect(_Factory(factory, self.history, self.clock.seconds))
        return connecting.addCallbacks(lambda connection: connection.wrappedProtocol, self._failed)

    def _failed(self, reason: Failure) -> Failure:
        if not reason.check(CancelledError):
            self.history.failed(reason)
        return reason


class _Connection(ProtocolWrapper):
    """A connection that reports its beginning and end to the factory's history."""

    factory: _Factory
    _since = 0.0
    _ours = ""
    _heard = False

    def connectionMade(self) -> None:
        self.factory.history.made()
        self._since = self.factory.seconds()
        self._ours = host_of(self.transport.getHost())  # type: ignore[union-attr]
        super().connectionMade()  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:
        if not self._heard:
            self._heard = True
            self.factory.history.received(data)
        super().dataReceived(data)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        super().connectionLost(reason)  # type: ignore[no-untyped-call]
        self.factory.history.lost(self.factory.seconds() - self._since, self._ours, reason, self._heard)


class _Factory(WrappingFactory):
    """A client factory that reports its connections to ``history`` and leaves all else to the wrapped factory."""

    protocol = _Connection
    noisy = False

    def __init__(self, factory: Any, history: ConnectionHistory, seconds: Callable[[], float]) -> None:
        super().__init__(factory)  # type: ignore[no-untyped-call]
        self.history = history
        self.seconds = seconds


def _explained(error: BaseException | None) -> str:
    """Return a TLS error as text for people: the reasons of OpenSSL, or that the certificate is for another host."""
    if type(error).__name__ == "VerificationError":
        return "its certificate is for another name"
    reasons = error.args[0] if error is not None and error.args else []
    if not isinstance(reasons, list):
        return str(error)
    return "; ".join(str(part[-1]) for part in reasons) or "OpenSSL gives no reason"
