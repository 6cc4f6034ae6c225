"""One connection of a client: connects a Twisted transport to a session, and runs its timers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import Broken
from fyrehose.protocols.relink.client_session import ConnectorSession
from fyrehose.protocols.relink.events import Linked
from fyrehose.protocols.relink.keepalive import KeepAlive

if TYPE_CHECKING:
    from fyrehose.protocols.relink.client import RelinkClient

log = Logger()

#: A handshake that takes longer ends the connection; in seconds.
HANDSHAKE_TIMEOUT = 10.0
#: A ping is sent after this much silence of the peer, in seconds.
PING_AFTER = 15.0
#: The connection is aborted after this much silence of the peer, in seconds.
DROP_AFTER = 45.0
#: How long the last bytes of an ended link may take to be sent before the connection is aborted, in seconds.
LINGER = 5.0


class Connection(Protocol):
    """The Twisted protocol of a connector: decodes packets, passes events to the client, and sends pings."""

    transport: Any
    session: ConnectorSession

    def __init__(self, client: RelinkClient) -> None:
        self.client = client
        self._over = False
        self._reading = True
        self._timeout: IDelayedCall | None = None
        self._flush_due: IDelayedCall | None = None
        clock = client.clock
        self._keepalive = KeepAlive(clock, PING_AFTER, DROP_AFTER, self._ping, self._give_up, lambda: not self._reading)

    # Called by the reactor.

    def connectionMade(self) -> None:
        self.session = self.client.connection_made(self)
        self._timeout = self.client.clock.callLater(HANDSHAKE_TIMEOUT, self._give_up, HANDSHAKE_TIMEOUT)
        self.flush()

    def dataReceived(self, data: bytes) -> None:
        self._keepalive.heard()
        if not self._over:
            self._dispatch(self.session.receive_data(data))

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        self._over = True
        self._keepalive.stop()
        for timer in (self._timeout, self._flush_due):
            if timer is not None and timer.active():
                timer.cancel()
        self.session.receive_eof()
        self.client.connection_gone(self)

    # Called by the client.

    def flush_soon(self) -> None:
        """Write pending packets at the end of this turn of the reactor."""
        if self._flush_due is None and not self._over:
            self._flush_due = self.client.clock.callLater(0, self._flush_now)

    def flush(self) -> None:
        """Write pending packets now."""
        self.transport.writeSequence(self.session.data_to_send())

    def finish(self) -> None:
        """Close the connection of an ended link, after its last packets were sent."""
        self.flush()
        self._over = True
        self._keepalive.stop()
        self.transport.loseConnection()
        if self._timeout is None or not self._timeout.active():
            self._timeout = self.client.clock.callLater(LINGER, self.transport.abortConnection)

    def abort(self) -> None:
        """Abort the connection; nothing that it still receives has an effect."""
        self._over = True
        self.session.fenced()
        self.transport.abortConnection()

    # Private.

    def _dispatch(self, found: Sequence[Any]) -> None:
        """Pass events on to the client; an event Broken aborts the connection after those before it."""
        if found and isinstance(found[0], Linked):
            assert self._timeout is not None
            self._timeout.cancel()
            self._keepalive.start()
        broken = found[-1] if found and isinstance(found[-1], Broken) else None
        self.client.handle(found if broken is None else found[:-1])
        if broken is not None:
            log.warn("the listener violates the protocol, so the link is lost: {error}", error=broken.error)
            self.client.protocol_broken()
            self._over = True
            self.transport.abortConnection()
        elif not self._over:
            self.flush()
            reading = not self.session.waiting  # False while too many messages wait for the client
            if reading != self._reading:
                self._reading = reading
                (self.transport.resumeProducing if reading else self.transport.pauseProducing)()

    def _flush_now(self) -> None:
        self._flush_due = None
        if not self._over:
            self._dispatch(self.session.receive_data(b""))

    def _ping(self) -> None:
        if self.session.linked and self.session.link is not None:
            self.session.link.ping()
            self.flush()

    def _give_up(self, silence: float) -> None:
        if not self._over:
            log.info("the listener does not respond (no data for {silence:.0f} s): reconnecting", silence=silence)
            self.transport.abortConnection()
