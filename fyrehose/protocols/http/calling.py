"""Send requests to a server by HTTP, one after another over one connection; reconnect if it is lost.

    call("POST", path, body) -> connect, if there is no connection -> status and object

A request whose answer was lost, or came from a proxy in its place, is sent again, so only requests that may be repeated
can be sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import attrs
from twisted.internet.defer import CancelledError, Deferred, DeferredLock, maybeDeferred
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater
from twisted.logger import Logger

from fyrehose.errors import Closed
from fyrehose.net.clients import ConnectionFailed, ConnectionOptions, ServerSilent, ServerUnavailable, process_exception
from fyrehose.net.several import servers_of
from fyrehose.protocols.http.requests import HTTP_OPTIONS, Connection, foreign
from fyrehose.web.client_session import FieldLines, ServerAnswer

log = Logger()

#: The fewest bytes that a network sends in a second: a larger request has more time.
SLOWEST = 64 << 10


class Called(NamedTuple):
    """The answer to a call.

    :ivar content: the JSON object of the answer; {} for an answer without a body
    :ivar asked_at: when the request was sent, at the last attempt, by the client's clock
    :ivar repeats: how often the request was sent before, because its answer was lost
    """

    status: int
    content: dict[str, Any]
    asked_at: float
    repeats: int


@attrs.define(eq=False, slots=False)
class Caller(Factory):
    """A client that sends requests to the server at *endpoint*.

    :ivar authority: the value of the ``Host`` header
    :ivar token: the bearer token that is sent, if any
    :ivar retries: called with each :class:`ConnectionFailed`; returns whether to send the request again
    """

    noisy = False
    paused = False

    clock: IReactorTime
    endpoint: IStreamClientEndpoint
    authority: str
    token: str | None = attrs.field(default=None, repr=False)
    options: ConnectionOptions = HTTP_OPTIONS
    retries: Callable[[Exception], bool] = lambda error: process_exception(error) is None
    #: when the present request was sent, at the last attempt
    _asked_at: float = attrs.field(default=0.0, init=False)
    #: how often the present request was sent before, because its answer was lost
    _repeats: int = attrs.field(default=0, init=False)
    #: whether the server itself, and not a proxy, has answered before
    _met: bool = attrs.field(default=False, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    _connection: Connection | None = attrs.field(default=None, init=False)
    #: the attempt to connect, or the pause before the next one
    _waiting: Deferred[Any] | None = attrs.field(default=None, init=False)
    _one: DeferredLock = attrs.field(factory=DeferredLock, init=False)

    async def call(self, method: str, path: str, body: object = None, wait: float = 0.0) -> Called:
        """Send a request with a JSON body as :meth:`ask` does."""
        data = None if body is None else json.dumps(body).encode()
        answer, asked_at, repeats = await self._ask(method, path, data, (), wait)
        return Called(answer.status, answer.json_object or {}, asked_at, repeats)

    async def ask(
        self, method: str, target: str, body: bytes | None = None, headers: FieldLines = (), wait: float = 0.0
    ) -> ServerAnswer:
        """Send a request; repeat it while the server does not answer, or asks to try again later.

        :param wait: how long the server may wait before it answers, in seconds
        :return: an answer of the server, which is final
        :raises ConnectionFailed: there is no answer, and ``retries`` has returned False
        :raises Closed: the client was closed
        """
        return (await self._ask(method, target, body, headers, wait))[0]

    def close(self) -> None:
        """Close the connection, and send no further request."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()
        if self._connection is not None:
            self._connection.transport.abortConnection()

    # Called by Twisted and by the connection.

    def buildProtocol(self, addr: Any) -> Connection:
        connection = Connection(self.authority, self.token)
        connection.factory = self
        return connection

    def connection_made(self, connection: Connection) -> None:
        """Record that *connection* is open."""
        self._connection, connection.confirmed = connection, self._met

    def connection_lost(self, connection: Connection, reason: Exception) -> None:
        """Record that *connection* has ended."""
        if self._connection is connection:
            self._connection = None

    # Internals.

    async def _ask(
        self, method: str, target: str, body: bytes | None, headers: FieldLines, wait: float
    ) -> tuple[ServerAnswer, float, int]:
        """Send a request as :meth:`ask` does; return the answer, when it was asked for, and how often before."""
        await self._one.acquire()
        try:
            failures, said, self._repeats = 0, "", 0
            while not self._closed:
                try:
                    answer = self._checked(await self._try(method, target, body, headers, wait))
                    # Here, because the next request begins as soon as this one has released the lock.
                    return answer, self._asked_at, self._repeats
                except ConnectionFailed as error:
                    self._leave()
                    if self._closed:
                        break
                    if not self.retries(error):
                        raise
                    failures, pause = failures + 1, error.retry_after
                    if str(error) != said:
                        said = str(error)
                        log.warn("{name}: {problem}; retrying", name=self.authority, problem=said)
                self._waiting = deferLater(self.clock, max(pause, self.options.retry(failures)))
                await self._waiting
            raise Closed("the client was closed before the server had answered")
        finally:
            self._one.release()

    async def _try(
        self, method: str, target: str, body: bytes | None, headers: FieldLines, wait: float
    ) -> ServerAnswer:
        if self._connection is None or not self._connection.usable:
            attempt = self._waiting = maybeDeferred(self.endpoint.connect, self)
            try:
                await attempt.addTimeout(self.options.connect_timeout * servers_of(self.endpoint), self.clock)
            except CancelledError:
                raise
            except Exception as error:
                raise ConnectionFailed(error) from error
        assert self._connection is not None, "it was just made"
        self._asked_at = self.clock.seconds()
        timeout = wait + self.options.answer_timeout + len(body or b"") / SLOWEST
        try:
            return await self._connection.ask(method, target, body, headers).addTimeout(timeout, self.clock)
        except DeferredTimeout as error:
            self._repeats += 1
            raise ConnectionFailed(ServerSilent(f"the server has not answered for {timeout:.0f} s")) from error
        except ConnectionFailed:
            self._repeats += 1
            raise

    def _checked(self, answer: ServerAnswer) -> ServerAnswer:
        """Return *answer* if it is the server's, and final.

        :raises ConnectionFailed: it is not
        """
        own = answer.json_object is not None
        self._met = self._met or own
        said = f"status {answer.status}: {answer.detail}"
        if answer.passes(own, self._met):
            self._repeats += not own
            raise ConnectionFailed(ServerUnavailable(said, answer.retry_after))
        if not own:
            raise ConnectionFailed(foreign(self.authority, said))
        return answer

    def _leave(self) -> None:
        """Close the connection gracefully: the next one goes to the leader of the cluster."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.usable:
            connection.leave()
