"""The Twisted protocol around a web session, which adds HTTP to the base class of all TCP listeners' protocols.

    received -> session -> RequestHead and other events -> a handler answers -> proceed -> the next request

The server closes a connection that is idle, a connection whose peer has finished sending, and a connection with an
unread body after a refusal.  In the last case it first reads and discards input for a while: a peer that gets a TCP
reset while it sends may not see the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import ISSLTransport
from twisted.python.failure import Failure

from fyrehose.broker.signed import is_signed
from fyrehose.errors import Forbidden, RemoteProtocolError, TokenEnded, TooManySubscriptions
from fyrehose.identity import Identity, digest
from fyrehose.net.connections import SessionFactory
from fyrehose.net.foreign import HTTP
from fyrehose.net.lifecycle import Phase
from fyrehose.net.tcp import ClosesIdle, SessionProtocol, on
from fyrehose.net.tls import TLSSettings
from fyrehose.options import duration, option
from fyrehose.web.session import RequestHead, RequestRefused, WebSession
from fyrehose.web.tokens import token_in


def host_names(text: str) -> tuple[str, ...]:
    """Split comma-separated host names, and convert them to lower case."""
    return tuple(name.strip().lower() for name in text.split(",") if name.strip())


@attrs.frozen(kw_only=True)
class WebSettings(TLSSettings):
    """The options of every listener that speaks HTTP."""

    hosts: tuple[str, ...] = option(
        (), host_names, "accepted host names, separated by commas; on loopback, in addition to localhost"
    )
    idle_timeout: float = option(75.0, duration, "time without a request after which a connection is closed")


T = TypeVar("T")
#: How often a connection asks its session for further events in one iteration of the reactor, at most.
BATCHES = 4


class WebProtocol(ClosesIdle):
    """The server's side of one HTTP connection; subclasses add a handler for each event of their session."""

    speaks = HTTP
    session: WebSession
    settings: WebSettings

    def __init__(self, factory: SessionFactory, session: WebSession) -> None:
        super().__init__(factory, session)
        self._receiving = False

    # Called by the reactor.

    def take_eof(self) -> None:
        """Handle the end of the peer's input; requests that were received before are still answered."""
        if self.phase is Phase.OPEN:
            self.received(self.session.receive_eof())
        else:
            self.transport.loseConnection()

    # Called by the base class.

    @property
    def has_more(self) -> bool:
        return not self._receiving and self.session.more

    def received(self, events: Sequence[object]) -> None:
        """Handle the events of a request, and those of further requests that arrived with it, up to BATCHES."""
        self._receiving = True
        try:
            super().received(events)
            for _ in range(BATCHES):
                if not self.session.more or self.phase is not Phase.OPEN:
                    break
                events = self.session.next_events()
                if events or self.session.out or self.session.expected or self.account.frame:
                    super().received(events)
        finally:
            self._receiving = False
        self.active_at = self.clock.seconds()
        if self.session.over:
            self.finish()
        full, reading = self.session.read_ahead_full, self.reading
        if self.phase is Phase.OPEN and full != ("requests" in reading.reasons):
            (reading.pause_for if full else reading.resume_after)("requests")
        if self.session.more:
            self.continue_later()

    def proceed(self) -> None:
        """Write pending output; if the answer is complete, process the next request."""
        if not self._receiving and self.writable:
            self.received(self.session.next_events() if self.session.more and self.phase is Phase.OPEN else ())

    def drop(self, error: RemoteProtocolError) -> None:
        if self.session.unanswered:
            status = 408 if error.cause == "frame-timeout" else 400
            self.refuse_request(RequestRefused(status=status, cause=error.cause, detail=str(error)))
        super().drop(error)

    def forbid(self, error: Forbidden) -> None:
        """Answer a forbidden request with 401 or 403, or 429 for too many subscriptions; the connection stays open."""
        if self.session.unanswered:
            status = self.forbidden_status(error)
            self.count_refusal(*self.session.refuse(status, type(error).__name__, str(error)))
        else:
            super().forbid(error)

    def frame(self, data: bytes) -> list[bytes]:
        super().frame(data)
        self.session.send(data)
        return self.session.data_to_send()

    def forbidden_status(self, error: Forbidden) -> int:
        """Return the status for *error*: 429 for too many subscriptions, 401 without a valid token, otherwise 403."""
        if isinstance(error, TooManySubscriptions):
            return 429
        if isinstance(error, TokenEnded):
            return 401
        return 403 if self.identity.token else 401

    def is_idle(self) -> bool:
        return super().is_idle() and not self.session.unanswered

    @property
    def waiting(self) -> bool:
        return self.session.answering or self.session.expected > 0

    def refuse_request(self, refusal: RequestRefused) -> None:
        """Answer the current request with *refusal*."""
        self.session.refuse(refusal.status, refusal.cause, refusal.detail)

    def hang_up(self) -> None:
        """Close the connection; if a body is unread, first only finish writing, so that the client reads the answer."""
        if not self.session.body_unread:
            super().hang_up()
            return
        self.flush()
        self.transport.unregisterProducer()
        if not ISSLTransport.providedBy(self.transport):  # a TLS connection cannot be closed in one direction only
            self.transport.loseWriteConnection()
        self.linger()

    # For handlers.

    def call(self, called: Deferred[T], answer: Callable[[T], object]) -> None:
        """Answer the request with the result of *called*, the Deferred of a call of the broker or of work in steps."""
        self.unsettled += 1
        called.addCallback(answer).addErrback(self.refuse_call).addErrback(self.failed)
        called.addCallback(self._called)

    def _called(self, _: object) -> None:
        self.unsettled -= 1
        if self.phase is not Phase.OPEN:
            self.settled()

    def refuse_call(self, failure: Failure) -> Failure | None:
        """Answer the present request with the error of the broker; return other errors; a hook for subclasses."""
        return failure

    def count_refusal(self, event: RequestRefused) -> None:
        """Count and log a refusal that was sent as an answer."""
        self.broker.counters.refuse(self.log, self.protocol_name, event.cause, self.peer, event.detail)

    handlers = SessionProtocol.handlers | on(RequestRefused, count_refusal)


def with_token(identity: Identity, token: str | None) -> Identity:
    """Return *identity* with *token*, or without one."""
    hashed = None if token is None else digest(token)
    if hashed == identity.token:
        return identity
    return attrs.evolve(identity, token=hashed, signed=token if token is not None and is_signed(token) else None)


def token_of(request: RequestHead) -> str | None:
    """Return the token of *request*, or None if it has none: see :func:`~fyrehose.web.tokens.token_in`."""
    return token_in(request.headers.get("authorization", ""))
