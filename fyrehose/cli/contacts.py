"""What a server does with the connections of a command: a client only tries again, and people want to know why.

    command -> client -> Watching (in the reactor's place) -> connectTCP
                            \\-> Contacts: how they ended, and what that may mean

A server that refuses has no word for it in most protocols: it closes the connection.  Whoever is closed again and again
before anything has worked is turned away, and the command ends with what is known; once a connection has lasted,
clients go on trying, for a server may be started again behind a port that somebody else keeps open.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.logger import Logger
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from zope.interface import directlyProvides, providedBy

from fyrehose.errors import FyrehoseError
from fyrehose.net.peers import host_of

log = Logger()

#: A connection that ends sooner has come to nothing, in seconds; so many in a row say something.
SHORT, TIMES = 2.0, 3


@attrs.define(eq=False)
class Contacts:
    """One server, and how our connections to it went.

    :ivar name: the server, for people
    :ivar wanted: what is wanted of it, such as ``read 'notes'``
    :ivar encrypted: whether TLS is spoken
    :ivar turned_away: what to say when it does not let us in
    """

    name: str
    wanted: str = "do this"
    encrypted: bool = False
    turned_away: FyrehoseError | None = attrs.field(default=None, init=False)
    _told: Callable[[], object] = attrs.field(default=lambda: None, init=False)
    _short: int = attrs.field(default=0, init=False)
    _lasted: bool = attrs.field(default=False, init=False)
    _unmade: str = attrs.field(default="", init=False)
    _open: int = attrs.field(default=0, init=False)
    _made: bool = attrs.field(default=False, init=False)
    _unknown: bool = attrs.field(default=False, init=False)

    def __str__(self) -> str:
        return self.name

    def watch(self, told: Callable[[], object]) -> None:
        """Call ``told``, and nobody else, as soon as we are turned away."""
        self._told = told
        if self.turned_away is not None:
            told()

    @property
    def hint(self) -> str:
        """What may be wrong with a server that does not answer."""
        if self._open:
            return "we are connected, so is its disk full, or the network broken? Its log says why"
        if self._unmade:
            return f"the last try ended with: {self._unmade}; is the server running, and listening there?"
        if self._short:
            return f"it closed {self._short} connection{'s' * (self._short > 1)} at once; its log says why"
        if self._unknown:
            return "no address was found for that name"
        return "is it there and reachable, and does its policy let us in?"

    @property
    def broken(self) -> bool:
        """Whether a connection was made, and none is open now."""
        return self._made and not self._open

    def looked_up(self, found: bool) -> None:
        """The name is looked up, or an address was found for it."""
        self._unknown = not found

    def unmade(self, reason: Failure) -> None:
        """A connection could not be made."""
        number = getattr(reason.value, "osError", None)
        self._unmade = os.strerror(number) if isinstance(number, int) else str(reason.value)

    def made(self) -> None:
        """A connection is there."""
        self._unmade = ""
        self._made = True
        self._open += 1

    def lost(self, seconds: float, ours: str, reason: Failure) -> None:
        """A connection has ended after so many seconds; ``ours`` was our address."""
        self._open -= 1
        if seconds >= SHORT:
            self._short, self._lasted = 0, True
            return
        self._short += 1
        wrong = "" if reason.check(ConnectionDone, ConnectionLost) else _said(reason.value)
        if self._lasted:
            if self._short == TIMES:
                log.warn("{name} closes each connection at once; its log says why, and we go on trying", name=self)
        elif wrong:
            self._turn_away(f"{self} cannot be spoken to by TLS: {wrong}")
        elif self._short == TIMES:
            tls = "Does it speak TLS?" if self.encrypted else "Does it want TLS (--tls)?"
            self._turn_away(
                f"{self} closes each connection at once, and its log says why. Does its policy let {ours} "
                f"{self.wanted}? Has it room for another connection? {tls}"
            )

    def _turn_away(self, why: str) -> None:
        if self.turned_away is None:
            self.turned_away = FyrehoseError(why)
            self._told()


class Watching:
    """A reactor whose connections are told to ``contacts``."""

    def __init__(self, reactor: Any, contacts: Contacts) -> None:
        self._reactor = reactor
        self._contacts = contacts
        directlyProvides(self, providedBy(reactor))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    @property
    def nameResolver(self) -> Any:
        """Twisted's, which is asked for before each connection by name."""
        self._contacts.looked_up(False)
        return self._reactor.nameResolver

    def connectTCP(self, host: str, port: int, factory: Any, *args: Any, **more: Any) -> Any:
        self._contacts.looked_up(True)
        around = _Factory(factory, self._contacts, self._reactor.seconds)
        return self._reactor.connectTCP(host, port, around, *args, **more)


class _Connection(ProtocolWrapper):
    """Looks when it begins and ends."""

    factory: _Factory
    _since = 0.0
    _ours = ""

    def connectionMade(self) -> None:
        self.factory.contacts.made()
        self._since = self.factory.seconds()
        self._ours = host_of(self.transport.getHost())  # type: ignore[union-attr]
        super().connectionMade()  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        super().connectionLost(reason)  # type: ignore[no-untyped-call]
        self.factory.contacts.lost(self.factory.seconds() - self._since, self._ours, reason)


class _Factory(WrappingFactory):
    """Hands connections on."""

    protocol = _Connection
    noisy = False

    def __init__(self, factory: Any, contacts: Contacts, seconds: Callable[[], float]) -> None:
        super().__init__(factory)  # type: ignore[no-untyped-call]
        self.contacts = contacts
        self.seconds = seconds

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        self.contacts.unmade(reason)
        super().clientConnectionFailed(connector, reason)  # type: ignore[no-untyped-call]


def _said(error: BaseException | None) -> str:
    """An error of TLS: OpenSSL gives a list of what it said to itself, and the check of names its own type."""
    if type(error).__name__ == "VerificationError":
        return "its certificate is for another name"
    reasons = error.args[0] if error is not None and error.args else []
    if not isinstance(reasons, list):
        return str(error)
    return "; ".join(str(part[-1]) for part in reasons) or "OpenSSL does not say why"
