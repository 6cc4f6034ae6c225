"""One connection of a client to an HTTP listener, which sends one request at a time and receives its answer.

ask(method, target, body, headers) -> bytes -> ServerAnswer -> ask(...) ...
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from fyrehose.errors import RemoteProtocolError
from fyrehose.net.clients import ClientConnection, ConnectionFailed, ConnectionOptions, WrongProtocol, wrong_protocol
from fyrehose.net.several import follow_leader
from fyrehose.records import Buffer
from fyrehose.web.client_session import LARGEST, ClientSession, CollectedAnswer, FieldLines, ServerAnswer

#: A server may take its time to answer, because it answers a publish when that is on disk.
HTTP_OPTIONS = ConnectionOptions(answer_timeout=30.0)


def foreign(authority: str, problem: object) -> WrongProtocol:
    """Return the error for a program at *authority* that is no server of Fyrehose, which *problem* shows."""
    return WrongProtocol(f"{authority} is not a Fyrehose http listener: {problem}; check the port")


class Connection(ClientConnection):
    """One connection to a server, which collects each answer and fires a Deferred with it.

    :param authority: the value of the ``Host`` header
    :param token: the bearer token that is sent, if any
    :param largest: limit of an answer, in bytes
    :ivar confirmed: whether the server itself, and not a proxy or another program, has answered
    :ivar usable: whether the connection can send another request once the last one is answered
    """

    factory: Any
    session: ClientSession

    def __init__(self, authority: str, token: str | None = None, largest: int = LARGEST) -> None:
        super().__init__(ClientSession(authority, token), self.received)
        self.authority, self.usable = authority, True
        self._collected = CollectedAnswer(largest)
        self._waiting: Deferred[ServerAnswer] | None = None

    def ask(
        self, method: str, target: str, body: bytes | None = None, headers: FieldLines = ()
    ) -> Deferred[ServerAnswer]:
        """Send a request, after the previous one was answered.

        :return: fires with the answer; fails with ConnectionFailed if the connection is lost before its end
        """
        waiting = self._waiting = Deferred(lambda _: self.transport.abortConnection())
        self.transport.write(self.session.request(method, target, body, headers))
        return waiting

    def leave(self) -> None:
        """Close the connection, and send no further request."""
        self.usable = False
        self.close()

    def receive(self, data: bytes) -> None:
        """Handle what has arrived of the answer; abort a connection whose answer is invalid."""
        try:
            for event in self.session.events(data):
                if isinstance(event, ServerAnswer) and event.status == 503:
                    follow_leader(self.factory.endpoint, event.headers.get(b"location", b"").decode("latin-1"))
                self.received(event)
        except (RemoteProtocolError, ValueError, KeyError, TypeError) as error:
            self.abort(self.violation(error))

    def violation(self, error: Exception) -> Exception:
        if self.confirmed:
            return error
        http = self._beginning.startswith(b"HTTP/")
        return foreign(self.authority, error if http else wrong_protocol(self._beginning, error))

    def connectionLost(self, reason: Failure = Failure(ConnectionDone())) -> None:  # noqa: B008 - Twisted's signature
        self.usable = False
        if self._waiting is not None and reason.check(ConnectionDone):
            try:
                for event in self.session.events(b""):  # The end of the connection may be that of the answer.
                    self.received(event)
            except RemoteProtocolError:
                pass  # The answer has ended early: the connection was lost.
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.called:
            error = reason.value if isinstance(reason.value, Exception) else ConnectionDone()
            waiting.errback(ConnectionFailed(self.reason or error, confirmed=self.confirmed))
        super().connectionLost(reason)

    def received(self, event: ServerAnswer | Buffer) -> None:
        """Handle an event of the session; a ValueError, KeyError or TypeError means that the answer is invalid."""
        answer = self._collected.add(event)
        if answer is None:
            return
        if not self.session.next_request():
            self.leave()
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.called:
            waiting.callback(answer)
