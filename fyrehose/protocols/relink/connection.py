"""One connection of a client: connects a Twisted transport to a session, and runs its timers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import Broken
from fyrehose.protocols.relink.client_session import ConnectorSession

log = Logger()

#: A handshake that takes longer ends the connection; in seconds.
HANDSHAKE_TIMEOUT = 10.0
#: A ping is sent after this much silence of the peer, in seconds.
PING_AFTER = 15.0
#: The connection is aborted after this much silence of the peer, in seconds.
DROP_AFTER = 45.0
#: How long the last bytes of an ended link may take to be sent before the connection is aborted, in seconds.
LINGER = 5.0


class Owner(Protocol):
    """The client as its connection sees it."""

    def connection_made(self, connection: Connection) -> ConnectorSession:
        """Return the session for a new transport; the old connection, if any, is aborted."""

    def connection_gone(self, connection: Connection) -> None:
        """Record that the transport was lost."""

    def protocol_broken(self) -> None:
        """Drop the link, because the listener violated the protocol."""

    def handle(self, found: Sequence[Any]) -> None:
        """Handle events of the session, in order."""


class Connection(TwistedProtocol):
    """The Twisted protocol of a connector: decodes packets, passes events to the owner, and sends pings."""

    transport: Any
    session: ConnectorSession

    def __init__(self, owner: Owner, clock: IReactorTime) -> None:
        self.owner = owner
        self.clock = clock
        self._last_received = 0.0
        self._over = False
        self._reading = True
        self._silence_timer: IDelayedCall | None = None
        self._flush_due: IDelayedCall | None = None
        self._linger: IDelayedCall | None = None

    # Called by the reactor.

    def connectionMade(self) -> None:
        self.session = self.owner.connection_made(self)
        self._last_received = self.clock.seconds()
        self._silence_timer = self.clock.callLater(HANDSHAKE_TIMEOUT, self._check_silence)
        self.flush()

    def dataReceived(self, data: bytes) -> None:
        self._last_received = self.clock.seconds()
        if not self._over:
            self._dispatch(self.session.receive_data(data))

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        self._over = True
        for timer in (self._silence_timer, self._flush_due, self._linger):
            if timer is not None and timer.active():
                timer.cancel()
        self.session.receive_eof()
        self.owner.connection_gone(self)

    # Called by the owner.

    def flush_soon(self) -> None:
        """Write pending packets at the end of this turn of the reactor."""
        if self._flush_due is None and not self._over:
            self._flush_due = self.clock.callLater(0, self._flush_now)

    def flush(self) -> None:
        """Write pending packets now."""
        self.transport.writeSequence(self.session.data_to_send())

    def finish(self) -> None:
        """Close the connection of an ended link, after its last packets were sent."""
        self.flush()
        self._over = True
        self.transport.loseConnection()
        if self._linger is None:
            self._linger = self.clock.callLater(LINGER, self.transport.abortConnection)

    def abort(self) -> None:
        """Abort the connection; nothing that it still receives has an effect."""
        self._over = True
        self.session.fenced()
        self.transport.abortConnection()

    # Internals.

    def _dispatch(self, found: Sequence[Any]) -> None:
        """Pass events on to the owner; an event Broken aborts the connection after those before it."""
        for at, event in enumerate(found):
            if isinstance(event, Broken):
                log.warn("the listener violates the protocol, so the link is lost: {error}", error=event.error)
                self.owner.handle(found[:at])
                self.owner.protocol_broken()
                self._over = True
                self.transport.abortConnection()
                return
        self.owner.handle(found)
        if self._over:
            return
        self.flush()
        self._update_reading()

    def _update_reading(self) -> None:
        """Pause the transport while too many messages wait for the owner, and resume it afterwards."""
        reading = not self.session.waiting
        if reading != self._reading:
            self._reading = reading
            (self.transport.resumeProducing if reading else self.transport.pauseProducing)()

    def _flush_now(self) -> None:
        self._flush_due = None
        if self._over:
            return
        if self.session.link is not None:
            self._dispatch(self.session.receive_data(b""))
        else:
            self.flush()

    def _check_silence(self) -> None:
        silence = self.clock.seconds() - self._last_received
        self._silence_timer = None
        if self._over:
            return
        if not self.session.linked or (silence >= DROP_AFTER and self._reading):
            log.info("the listener does not respond (no data for {silence:.0f} s): reconnecting", silence=silence)
            self.transport.abortConnection()
            return
        if silence >= PING_AFTER and self.session.link is not None:
            self.session.link.ping()
            self.flush()
        left = PING_AFTER - silence
        self._silence_timer = self.clock.callLater(left if left > 0 else PING_AFTER, self._check_silence)
