"""One connection of a client: a transport outside, a session inside, and its timers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import Broken
from fyrehose.protocols.relink.session import ConnectorSession
from fyrehose.protocols.relink.tables import PACKETS

log = Logger()

#: How long a handshake may take, in seconds.
HANDSHAKE = 10.0
#: After so much silence a ping is sent, in seconds.
PING_AFTER = 15.0
#: After so much silence the connection is given up, in seconds.
DROP_AFTER = 45.0
#: How long the end of a link may take to arrive, in seconds.
LINGER = 5.0


class Owner(Protocol):
    """Who has the link: a client."""

    def made(self, connection: Connection) -> ConnectorSession: ...

    def gone(self, connection: Connection) -> None: ...

    def broken(self) -> None: ...

    def handle(self, found: Sequence[Any]) -> None: ...


class Connection(TwistedProtocol):
    """One connection."""

    transport: Any
    session: ConnectorSession

    def __init__(self, owner: Owner, clock: IReactorTime) -> None:
        self.owner = owner
        self.clock = clock
        self._heard = 0.0
        self._over = False
        self._reading = True
        self._watch: IDelayedCall | None = None
        self._flush_due: IDelayedCall | None = None
        self._linger: IDelayedCall | None = None

    # What the reactor calls.

    def connectionMade(self) -> None:
        self.session = self.owner.made(self)
        self._heard = self.clock.seconds()
        self._watch = self.clock.callLater(HANDSHAKE, self._check)
        self.flush()

    def dataReceived(self, data: bytes) -> None:
        self._heard = self.clock.seconds()
        if not self._over:
            self._take(self.session.receive_data(data))

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        self._over = True
        for timer in (self._watch, self._flush_due, self._linger):
            if timer is not None and timer.active():
                timer.cancel()
        self.session.receive_eof()
        self.owner.gone(self)

    # What the owner calls.

    def flush_soon(self) -> None:
        """Write what there is when this turn of the reactor is over."""
        if self._flush_due is None and not self._over:
            self._flush_due = self.clock.callLater(0, self._flush_now)

    def flush(self) -> None:
        """Write what the session has to send."""
        self.transport.writeSequence(self.session.data_to_send())

    def finish(self) -> None:
        """The link has come to its end: what says so is to arrive."""
        self.flush()
        self._over = True
        self.transport.loseConnection()
        if self._linger is None:
            self._linger = self.clock.callLater(LINGER, self.transport.abortConnection)

    def give_up(self) -> None:
        """Nothing of this connection counts any more."""
        self._over = True
        self.session.fenced()
        self.transport.abortConnection()

    # Inside.

    def _take(self, found: Sequence[Any]) -> None:
        for at, event in enumerate(found):
            if isinstance(event, Broken):
                log.warn("the listener breaks the protocol: {error}", error=event.error)
                self.owner.handle(found[:at])
                self.owner.broken()
                self._over = True
                self.transport.abortConnection()
                return
        self.owner.handle(found)
        if self._over:
            return
        self.flush()
        self._switch()

    def _switch(self) -> None:
        """Read no further while too much waits for our owner."""
        reading = not self.session.waiting
        if reading != self._reading:
            self._reading = reading
            (self.transport.resumeProducing if reading else self.transport.pauseProducing)()

    def _flush_now(self) -> None:
        self._flush_due = None
        if self._over:
            return
        if self.session.link is not None:
            self._take(self.session.receive_data(b""))
        else:
            self.flush()

    def _check(self) -> None:
        silence = self.clock.seconds() - self._heard
        self._watch = None
        if self._over:
            return
        if self.session.phase not in PACKETS or (silence >= DROP_AFTER and self._reading):
            log.info("the listener is silent: connecting again")
            self.transport.abortConnection()
            return
        if silence >= PING_AFTER and self.session.link is not None:
            self.session.link.ping()
            self.flush()
        left = PING_AFTER - silence
        self._watch = self.clock.callLater(left if left > 0 else PING_AFTER, self._check)
