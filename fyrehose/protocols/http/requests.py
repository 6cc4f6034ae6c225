"""One connection of a client to an HTTP listener, which sends one request at a time and receives its answer.

ask(method, target, body, headers) -> bytes -> ServerAnswer -> ask(...) ...
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import h11
from twisted.internet import defer
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionClosed, ConnectionDone, ConnectionLost
from twisted.internet.protocol import Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.net.several import follow_leader

log = Logger()

#: Statuses of refusals after which the same request may succeed later.
TEMPORARY = (429, 503)
#: The errors with which a connection cannot be made, or is lost.
LOST = (ConnectError, ConnectionClosed, ConnectionDone, ConnectionLost, defer.TimeoutError, OSError)
#: The largest answer, in bytes.
LARGEST = 64 << 20
#: The longest part of a reason that is shown, in characters.
MOST_DETAIL = 4 << 10


def sent_again(failure: Failure) -> None:
    """Ignore the loss of a connection before the answer: an errback for clients that send the request again."""
    failure.trap(*LOST)


@attrs.frozen
class ServerAnswer:
    """The answer to one request."""

    status: int
    body: bytes

    @property
    def detail(self) -> str:
        """Return the reason that the answer states under ``error``, or the beginning of its body if it states none."""
        try:
            reason = str(json.loads(self.body)["error"])
        except (ValueError, KeyError, TypeError, RecursionError):
            reason = self.body[:MOST_DETAIL].decode(errors="replace")
        return reason[:MOST_DETAIL]


class HttpClient(Protocol):
    """One connection of a client over HTTP, with one request at a time; subclasses handle the parts of the answers.

    :ivar status: the status of the last answer
    """

    transport: Any

    def __init__(self, endpoint: Any, authority: str, token: str | None = None) -> None:
        self.status = 0
        self._endpoint, self._authority = endpoint, authority
        self._headers = [("Host", authority), *([("Authorization", f"Bearer {token}")] if token else [])]
        self._http = h11.Connection(h11.CLIENT)

    def request(
        self, method: str, target: str, body: bytes | None = None, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Send a request; call this only before the first request, or after a complete answer."""
        size = [] if body is None else [("Content-Length", str(len(body)))]
        events: list[h11.Event] = [h11.Request(method=method, target=target, headers=[*self._headers, *size, *headers])]
        events += [] if body is None else [h11.Data(data=body)]
        self.transport.write(b"".join(self._http.send(event) or b"" for event in (*events, h11.EndOfMessage())))

    def dataReceived(self, data: bytes) -> None:
        """Pass on the head, the body and the end of the answer; abort a connection whose answer is invalid."""
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response):
                    self.status = event.status_code
                    headers = {bytes(name): bytes(value) for name, value in event.headers}
                    if self.status == 503:
                        follow_leader(self._endpoint, headers.get(b"location", b"").decode("latin-1"))
                    self.head_received(headers)
                elif isinstance(event, h11.Data):
                    self.body_received(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    self.answer_ended()
                elif isinstance(event, h11.ConnectionClosed):
                    break
        except (h11.ProtocolError, ValueError, KeyError, TypeError) as error:
            self.answer_invalid(error)
            self.transport.abortConnection()

    def next_request(self) -> bool:
        """Return whether the connection can be used for another request, after the end of an answer."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    # Hooks for subclasses.

    def head_received(self, headers: dict[bytes, bytes]) -> None:
        """Handle the headers of an answer, by lower-case name."""

    def body_received(self, data: bytes) -> None:
        """Handle a part of an answer's body; a ValueError, KeyError or TypeError means that it is invalid."""

    def answer_ended(self) -> None:
        """Handle the end of an answer."""

    def answer_invalid(self, error: Exception) -> None:
        """Report that the server does not answer as expected."""


class Connection(HttpClient):
    """One connection to a server, which collects each answer and fires a Deferred with it.

    :param endpoint: the endpoint of the connection; if it names several servers, an answer may name the leader for
        the next connection
    :param authority: the value of the ``Host`` header
    :param token: the bearer token that is sent, if any
    :param changed: called with the connection when it is made, and with None when it is lost
    :ivar usable: whether the connection can send another request once the last one is answered
    """

    def __init__(
        self,
        endpoint: Any,
        authority: str,
        token: str | None = None,
        changed: Callable[[Connection | None], object] = lambda connection: None,
    ) -> None:
        super().__init__(endpoint, authority, token)
        self.usable = True
        self._changed = changed
        self._waiting: Deferred[ServerAnswer] | None = None
        self._body = bytearray()

    def connectionMade(self) -> None:
        self._changed(self)

    def connectionLost(self, reason: Failure = Failure(ConnectionLost())) -> None:  # noqa: B008 - Twisted's signature
        self.usable = False
        waiting, self._waiting = self._waiting, None
        self._changed(None)
        if waiting is not None and not waiting.called:
            waiting.errback(reason)

    @property
    def idle(self) -> bool:
        """Return whether a request can be sent now."""
        return self.usable and self._waiting is None

    def ask(
        self, method: str, target: str, body: bytes | None = None, headers: tuple[tuple[str, str], ...] = ()
    ) -> Deferred[ServerAnswer]:
        """Send a request, while the connection is idle; the Deferred fails with one of LOST if no answer arrives."""
        waiting = self._waiting = Deferred(lambda _: self.transport.abortConnection())
        self.request(method, target, body, headers)
        return waiting

    def leave(self) -> None:
        """Close the connection, and send no further request."""
        self.usable = False
        self.transport.loseConnection()

    def body_received(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > LARGEST:
            raise ValueError(f"the answer exceeds {LARGEST} bytes")

    def answer_ended(self) -> None:
        """Fire the Deferred of :meth:`ask`."""
        answer = ServerAnswer(self.status, bytes(self._body))
        self._body.clear()
        if not self.next_request():
            self.leave()
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.called:
            waiting.callback(answer)

    def answer_invalid(self, error: Exception) -> None:
        log.warn("{name} does not answer as HTTP: {error}", name=self._authority, error=str(error))
