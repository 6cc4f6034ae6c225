"""One connection of a client to an HTTP listener, which sends one request at a time and receives its answer.

ask(method, target, body, headers) -> bytes -> ServerAnswer -> ask(...) ...
"""

from __future__ import annotations

from typing import Any

from twisted.internet import defer
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionClosed, ConnectionDone, ConnectionLost
from twisted.internet.protocol import Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import RemoteProtocolError
from fyrehose.net.several import follow_leader
from fyrehose.web.client_session import LARGEST, ClientSession, CollectedAnswer, FieldLines, ServerAnswer

log = Logger()

#: The errors with which a connection cannot be made, or is lost.
LOST = (ConnectError, ConnectionClosed, ConnectionDone, ConnectionLost, defer.TimeoutError, OSError)


def sent_again(failure: Failure) -> None:
    """Ignore the loss of a connection before the answer: an errback for clients that send the request again."""
    failure.trap(*LOST)


class Connection(Protocol):
    """One connection to a server, which collects each answer and fires a Deferred with it.

    :param endpoint: the endpoint of the connection; if it names several servers, an answer may name the leader for
        the next connection
    :param authority: the value of the ``Host`` header
    :param token: the bearer token that is sent, if any
    :param largest: limit of an answer, in bytes
    :ivar usable: whether the connection can send another request once the last one is answered
    """

    transport: Any

    def __init__(self, endpoint: Any, authority: str, token: str | None = None, largest: int = LARGEST) -> None:
        self.usable = True
        self._endpoint, self._authority = endpoint, authority
        self._session = ClientSession(authority, token)
        self._collected = CollectedAnswer(largest)
        self._waiting: Deferred[ServerAnswer] | None = None

    def ask(
        self, method: str, target: str, body: bytes | None = None, headers: FieldLines = ()
    ) -> Deferred[ServerAnswer]:
        """Send a request, after the previous one was answered.

        :return: fires with the answer; fails with one of LOST if the connection is lost before its end
        """
        waiting = self._waiting = Deferred(lambda _: self.transport.abortConnection())
        self.transport.write(self._session.request(method, target, body, headers))
        return waiting

    def leave(self) -> None:
        """Close the connection, and send no further request."""
        self.usable = False
        self.transport.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        """Handle what has arrived of the answer; abort a connection whose answer is invalid."""
        try:
            for event in self._session.events(data):
                if isinstance(event, ServerAnswer) and event.status == 503:
                    follow_leader(self._endpoint, event.headers.get(b"location", b"").decode("latin-1"))
                self.received(event)
        except (RemoteProtocolError, ValueError, KeyError, TypeError) as error:
            self.answer_invalid(error)
            self.transport.abortConnection()

    def connectionLost(self, reason: Failure = Failure(ConnectionLost())) -> None:  # noqa: B008 - Twisted's signature
        self.usable = False
        if self._waiting is not None and reason.check(ConnectionDone):
            try:
                for event in self._session.events(b""):  # The end of the connection may be that of the answer.
                    self.received(event)
            except RemoteProtocolError:
                pass  # The answer has ended early: the connection was lost.
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.called:
            # A TLS error has a type of its own.
            waiting.errback(reason if reason.check(*LOST) else Failure(ConnectionLost(str(reason.value))))

    # Hooks for subclasses.

    def received(self, event: ServerAnswer | bytes) -> None:
        """Handle an event of the session; a ValueError, KeyError or TypeError means that the answer is invalid."""
        answer = self._collected.add(event)
        if answer is None:
            return
        if not self._session.next_request():
            self.leave()
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.called:
            waiting.callback(answer)

    def answer_invalid(self, error: Exception) -> None:
        """Report that the server does not answer as expected."""
        log.warn("{name} does not answer as HTTP: {error}", name=self._authority, error=str(error))
