"""The shell around a web session: what HTTP adds to what every TCP listener has.

    received -> session -> Asked and what follows -> a handler answers, now or later -> go_on -> the next request

A connection is closed when it has been idle, when the peer has finished sending, and when a refusal has left a body
unread: then what still comes is thrown away for a while, because a peer that is cut off at once would not see why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime, ISSLTransport
from twisted.python.failure import Failure

from fyrehose.errors import Forbidden, RemoteProtocolError, TooManySubscriptions
from fyrehose.interfaces import IBroker
from fyrehose.net.tcp import LINGER, SessionProtocol
from fyrehose.net.tls import TLSSettings
from fyrehose.options import duration, option
from fyrehose.web.session import Asked, Refused, WebSession
from fyrehose.web.tokens import token_in


def host_names(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name.strip().lower() for name in text.split(",") if name.strip())


@attrs.frozen(kw_only=True)
class WebSettings(TLSSettings):
    """Options of everything that speaks HTTP."""

    hosts: tuple[str, ...] = option((), host_names, "names that it may be asked for by; on loopback, besides localhost")
    idle_timeout: float = option(75.0, duration, "time without a request after which a connection is closed")


#: How long a peer that is refused for now should wait, in seconds.
RETRY = "5"
#: How much is made of what one connection has sent before others have their turn.
BATCHES = 4


class WebProtocol(SessionProtocol):
    """One connection.  Subclasses have a handler for what their session makes of requests."""

    handlers: ClassVar[dict[type, str]] = {Refused: "refused"}

    session: WebSession
    settings: WebSettings

    def __init__(self, session: WebSession, broker: IBroker, clock: IReactorTime, settings: WebSettings) -> None:
        super().__init__(session, broker, clock, settings)
        self._receiving = False
        self._held_back = False
        self._turn: IDelayedCall | None = None
        self._active = 0.0
        self._idle_timer: IDelayedCall | None = None

    # What the reactor calls.

    def connectionMade(self) -> None:
        super().connectionMade()
        self._active = self.clock.seconds()
        self._idle_timer = self.clock.callLater(self.settings.idle_timeout, self._check_idle)

    def readConnectionLost(self) -> None:
        """The peer has finished sending: what it asked for is still answered."""
        if self._closing:
            self.transport.loseConnection()
            return
        self.received(self.session.receive_eof())

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        for timer in (self._idle_timer, self._turn):
            if timer is not None:
                timer.cancel()
        self._idle_timer = self._turn = None
        super().connectionLost(reason)

    # What the shell calls.

    def received(self, events: Sequence[object]) -> None:
        self._receiving = True
        try:
            super().received(events)
            for _ in range(BATCHES):
                if not self.session.more or self._closing:
                    break
                super().received(self.session.next_events())
        finally:
            self._receiving = False
        self._active = self.clock.seconds()
        if self.session.over:
            self.finish()
        if not self._closing:
            self._hold_back(self.session.more)

    def go_on(self) -> None:
        """An answer is over, or a part of it is to be written."""
        if not self._receiving and not self._disconnected():
            self.received(())

    def drop(self, error: RemoteProtocolError) -> None:
        if self.session.answering and not self.session.streaming:
            status = 408 if error.cause == "frame-timeout" else 400
            self.break_off(Refused(status=status, cause=error.cause, detail=str(error)))
        super().drop(error)

    def forbid(self, error: Forbidden) -> None:
        """Answer so; the connection goes on."""
        if self.session.answering and not self.session.streaming:
            status, headers = (403, {}) if self.identity.token else (401, {"WWW-Authenticate": "Bearer"})
            if isinstance(error, TooManySubscriptions):
                status, headers = 429, {"Retry-After": RETRY}
            self.refused(*self.session.refuse(status, type(error).__name__, str(error), headers))
        else:
            super().forbid(error)

    def is_idle(self) -> bool:
        waiting = self.session.answering and not self.session.streaming
        return super().is_idle() and not waiting

    def break_off(self, why: Refused) -> None:
        """Answer a request that comes to nothing."""
        self.session.refuse(why.status, why.cause, why.detail)

    # What a handler needs.

    def refused(self, event: object) -> None:
        """A refusal was answered: count it, and say so once."""
        assert isinstance(event, Refused)
        self.broker.counters.refuse(self.log, self.protocol_name, event.cause, self.peer, event.detail)

    # Inside.

    def _hold_back(self, more: bool) -> None:
        """Read nothing more while there is ``more`` to do of what was read, or too much came before its turn."""
        if more and self._turn is None:
            self._turn = self.clock.callLater(0, self._next_turn)
        if self._held_back != (more or self.session.crowded):
            self._held_back = not self._held_back
            (self.reading.pauseProducing if self._held_back else self.reading.resumeProducing)()

    def _next_turn(self) -> None:
        self._turn = None
        self.go_on()

    def _hang_up(self) -> None:
        if not self.session.unread or self._linger_timer is not None:
            super()._hang_up()
            return
        self.flush()
        self.transport.unregisterProducer()
        if not ISSLTransport.providedBy(self.transport):  # TLS knows no half of a connection
            self.transport.loseWriteConnection()
        self._linger_timer = self.clock.callLater(LINGER, self.transport.abortConnection)

    def _check_idle(self) -> None:
        self._idle_timer = None
        if self._closing:
            return
        if self.session.answering or self.session.expected:  # these have deadlines of their own
            self._active = self.clock.seconds()
        left = self._active + self.settings.idle_timeout - self.clock.seconds()
        if left > 0:
            self._idle_timer = self.clock.callLater(left, self._check_idle)
        else:
            self.broker.counters.add(self.protocol_name, "idle")
            self.finish()


def token_of(asked: Asked) -> str | None:
    """Return the token that a request carries, if it carries one: see :func:`~fyrehose.web.tokens.token_in`."""
    return token_in(asked.headers.get("authorization", ""))
