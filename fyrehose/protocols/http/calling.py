"""Send requests with JSON bodies to a server by HTTP, one after another over one connection, which is made again.

    call("POST", path, body) -> connect, if there is no connection -> status and object

A request whose answer was lost is sent again, so it must be one that may be repeated.
"""

from __future__ import annotations

import json
from typing import Any

import attrs
import h11
from twisted.internet import defer
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.endpoints import connectProtocol
from twisted.internet.error import ConnectError, ConnectionClosed, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Protocol
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

log = Logger()

#: Refusals that may pass by themselves.
TEMPORARY = (429, 503)
#: The longest wait between two attempts, and the longest for an answer, in seconds.
LONGEST_RETRY, ANSWER_TIMEOUT = 10.0, 30.0
#: The largest answer, in bytes.
LARGEST = 64 << 20
#: What is raised when a connection cannot be made, or is lost.
LOST = (ConnectError, ConnectionClosed, ConnectionDone, ConnectionLost, defer.TimeoutError, OSError)


@attrs.define(eq=False)
class Caller:
    """Sends requests to the server at *endpoint*.

    :ivar authority: the value of the ``Host`` header
    :ivar token: the bearer token that is sent, if any
    :ivar repeats: how many requests were sent again, because the answer was lost
    """

    clock: IReactorTime
    endpoint: IStreamClientEndpoint
    authority: str
    token: str | None = attrs.field(default=None, repr=False)
    repeats: int = attrs.field(default=0, init=False)
    _connection: CallingConnection | None = attrs.field(default=None, init=False)
    _one: DeferredLock = attrs.field(factory=DeferredLock, init=False)

    async def call(self, method: str, path: str, body: object = None, wait: float = 0.0) -> tuple[int, Any]:
        """Send a request, again and again until it is answered with something else than "not now".

        :param wait: how long the server may wait before it answers, in seconds
        :return: status and JSON object of the answer; {} for an answer without one
        """
        await self._one.acquire()
        try:
            delay, said = 0.5, ""
            while True:
                try:
                    status, answer = await self._try(method, path, body, wait)
                    problem = f"status {status}: {answer.get('error', 'no reason')}" if status in TEMPORARY else ""
                except LOST as error:
                    self.close()
                    self.repeats += 1
                    status, answer, problem = 0, {}, f"no answer ({type(error).__name__}: {error})"
                if not problem:
                    return status, answer
                if problem != said:
                    log.warn("{name}: {problem}; retrying", name=self.authority, problem=problem)
                    said = problem
                await deferLater(self.clock, delay)
                delay = min(LONGEST_RETRY, 2 * delay)
        finally:
            self._one.release()

    async def _try(self, method: str, path: str, body: object, wait: float) -> tuple[int, Any]:
        connection = self._connection
        if connection is None or not connection.usable:
            connecting: Any = connectProtocol(self.endpoint, CallingConnection(self.authority, self.token))
            connection = await connecting.addTimeout(ANSWER_TIMEOUT, self.clock)
            self._connection = connection
        assert connection is not None, "it was just made"
        data = None if body is None else json.dumps(body).encode()
        answered: Any = connection.ask(method, path, data).addTimeout(wait + ANSWER_TIMEOUT, self.clock)
        status, answer = await answered
        return status, _parsed(answer)

    def close(self) -> None:
        """Close the connection; a request that has no answer is sent again over another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.transport.abortConnection()


class CallingConnection(Protocol):
    """One connection, with one request at a time.

    :ivar usable: whether another request can be sent
    """

    transport: Any

    def __init__(self, authority: str, token: str | None = None) -> None:
        self.usable = True
        self._headers = [("Host", authority), *([("Authorization", f"Bearer {token}")] if token else [])]
        self._http = h11.Connection(h11.CLIENT)
        self._waiting: Deferred[tuple[int, bytes]] | None = None
        self._status, self._body = 0, bytearray()

    def ask(self, method: str, path: str, body: bytes | None) -> Deferred[tuple[int, bytes]]:
        """Send a request; fires with the status and the body of its answer."""
        headers = [*self._headers, *([] if body is None else [("Content-Length", str(len(body)))])]
        events: list[h11.Event] = [h11.Request(method=method, target=path, headers=headers)]
        events += [] if body is None else [h11.Data(data=body)]
        waiting = self._waiting = Deferred(lambda _: self.transport.abortConnection())
        self.transport.write(b"".join(self._http.send(event) or b"" for event in (*events, h11.EndOfMessage())))
        return waiting

    def dataReceived(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response):
                    self._status = event.status_code
                elif isinstance(event, h11.Data):
                    self._body += event.data
                    if len(self._body) > LARGEST:
                        raise h11.RemoteProtocolError("the answer is too large")
                elif isinstance(event, h11.EndOfMessage):
                    self._answered()
                elif isinstance(event, h11.ConnectionClosed):
                    break
        except h11.ProtocolError as error:
            log.warn("the server does not answer as HTTP: {error}", error=str(error))
            self.transport.abortConnection()

    def connectionLost(self, reason: Failure = Failure(ConnectionLost())) -> None:  # noqa: B008 - Twisted's signature
        self.usable = False
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.called:
            waiting.errback(reason)

    def _answered(self) -> None:
        body = bytes(self._body)
        self._body.clear()
        self.usable = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if self.usable:
            self._http.start_next_cycle()
        else:
            self.transport.loseConnection()
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.called:
            waiting.callback((self._status, body))


def _parsed(answer: bytes) -> dict[str, Any]:
    """Return the JSON object *answer*, or one whose error says that it is none."""
    try:
        found = json.loads(answer or b"{}")
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"error": "the answer is not that of a Fyrehose http listener"}
