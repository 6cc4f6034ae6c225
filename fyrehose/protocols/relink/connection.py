"""One connection of a client: connects a Twisted transport to a session, and runs its timers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from typing import Protocol as Structural

from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import Broken
from fyrehose.net.lifecycle import Timers
from fyrehose.protocols.relink.client_session import ConnectorSession
from fyrehose.protocols.relink.handshake_events import Linked
from fyrehose.protocols.relink.keepalive import KeepAliveTimer

log = Logger()

#: A handshake that takes longer ends the connection; in seconds.
HANDSHAKE_TIMEOUT = 10.0
#: A ping is sent after this much silence of the peer, in seconds.
PING_AFTER = 15.0
#: The connection is aborted after this much silence of the peer, in seconds.
DROP_AFTER = 45.0
#: How long the last bytes of an ended link may take to be sent before the connection is aborted, in seconds.
CLOSE_TIMEOUT_S = 5.0


class ConnectionOwner(Structural):
    """The client that a connection belongs to."""

    clock: IReactorTime

    def connection_made(self, connection: ConnectorConnection) -> ConnectorSession: ...

    def connection_gone(self, connection: ConnectorConnection) -> None: ...

    def protocol_broken(self) -> None: ...

    def handle(self, found: Sequence[Any]) -> None: ...


class ConnectorConnection(Protocol):
    """The Twisted protocol of a connector: decodes packets, passes events to the client, and sends pings."""

    transport: Any
    session: ConnectorSession

    def __init__(self, client: ConnectionOwner) -> None:
        self.client = client
        self._over = False
        self._reading = True
        self.timers = Timers(client.clock)
        self.heard_at = 0.0
        self._keepalive = KeepAliveTimer(self, PING_AFTER, DROP_AFTER)

    # Called by the reactor.

    def connectionMade(self) -> None:
        self.session = self.client.connection_made(self)
        self.timers.start(HANDSHAKE_TIMEOUT, self._handshake_timed_out)
        self.flush()

    def dataReceived(self, data: bytes) -> None:
        self.heard_at = self.timers.clock.seconds()
        if not self._over:
            self._dispatch(self.session.receive_data(data))

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        self._over = True
        self.timers.end()
        self.session.receive_eof()
        self.client.connection_gone(self)

    # Called by the client.

    def flush_soon(self) -> None:
        """Write pending packets at the end of this turn of the reactor."""
        if not self._over:
            self.timers.start(0, self._flush_now)

    def flush(self) -> None:
        """Write pending packets now."""
        self.transport.writeSequence(self.session.data_to_send())

    def finish(self) -> None:
        """Close the connection of a link that has ended or is lost, after its last packets were sent."""
        self.flush()
        self._over = True
        self.timers.clear()
        self.transport.loseConnection()
        self.timers.start(CLOSE_TIMEOUT_S, self.transport.abortConnection)

    def abort(self) -> None:
        """Abort the connection; nothing that it still receives has an effect."""
        self._over = True
        self.session.fenced()
        self.transport.abortConnection()

    # Private.

    def _dispatch(self, found: Sequence[Any]) -> None:
        """Pass events on to the client; an event Broken closes the connection after those before it."""
        if found and isinstance(found[0], Linked):
            self.timers.stop(self._handshake_timed_out)
            self._keepalive.start()
        broken = found[-1] if found and isinstance(found[-1], Broken) else None
        self.client.handle(found if broken is None else found[:-1])
        if broken is not None:
            log.warn("the listener violates the protocol, so the link is lost: {error}", error=broken.error)
            self.finish()  # Messages before the violation are acknowledged.
            self.session.fenced()
            self.client.protocol_broken()
        elif not self._over:
            self.flush()
            reading = not self.session.waiting  # False while too many messages wait for the client
            if reading != self._reading:
                self._reading = reading
                (self.transport.resumeProducing if reading else self.transport.pauseProducing)()

    def _flush_now(self) -> None:
        if not self._over:
            self._dispatch(self.session.receive_data(b""))

    # Called by the timers.

    @property
    def unheard(self) -> bool:
        return not self._reading

    def ping(self) -> None:
        if self.session.linked and self.session.link is not None:
            self.session.link.ping()
            self.flush()

    def _handshake_timed_out(self) -> None:
        self.give_up(HANDSHAKE_TIMEOUT)

    def give_up(self, silence: float) -> None:
        if not self._over:
            log.info("the listener does not respond (no data for {silence:.0f} s): reconnecting", silence=silence)
            self.transport.abortConnection()
