"""Send requests to a server by HTTP, one after another over one connection; reconnect if it is lost.

    call("POST", path, body) -> connect, if there is no connection -> status and object

A request whose answer was lost, or came from a proxy in its place, is sent again, so only requests that may be repeated
can be sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
from twisted.application.internet import backoffPolicy
from twisted.internet.defer import DeferredLock
from twisted.internet.endpoints import connectProtocol
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.task import deferLater
from twisted.logger import Logger

from fyrehose.protocols.http.requests import LOST, Connection
from fyrehose.web.client_session import FieldLines, ServerAnswer

log = Logger()

#: The longest wait for an answer, in seconds, and the fewest bytes that a network sends in a second.
ANSWER_TIMEOUT, SLOWEST = 30.0, 64 << 10


@attrs.define(eq=False)
class Caller:
    """A client that sends requests to the server at *endpoint*.

    :ivar authority: the value of the ``Host`` header
    :ivar token: the bearer token that is sent, if any
    :ivar repeats: number of requests that were sent again, because their answer was lost
    """

    clock: IReactorTime
    endpoint: IStreamClientEndpoint
    authority: str
    token: str | None = attrs.field(default=None, repr=False)
    retry: Callable[[int], float] = attrs.field(factory=lambda: backoffPolicy(0.5, 10.0))
    repeats: int = attrs.field(default=0, init=False)
    #: whether the server itself, and not a proxy, has answered before
    _met: bool = attrs.field(default=False, init=False)
    _connection: Connection | None = attrs.field(default=None, init=False)
    _one: DeferredLock = attrs.field(factory=DeferredLock, init=False)

    async def call(self, method: str, path: str, body: object = None, wait: float = 0.0) -> tuple[int, dict[str, Any]]:
        """Send a request with a JSON body as :meth:`ask` does.

        :return: status and JSON object of the answer; {} for an answer without a body
        """
        answer = await self.ask(method, path, None if body is None else json.dumps(body).encode(), wait=wait)
        found = answer.json_object
        return answer.status, {"error": answer.detail} if found is None else found

    async def ask(
        self, method: str, target: str, body: bytes | None = None, headers: FieldLines = (), wait: float = 0.0
    ) -> ServerAnswer:
        """Send a request; repeat it while no answer comes, or one that :meth:`ServerAnswer.passes`.

        :param wait: how long the server may wait before it answers, in seconds
        :return: an answer of the server, or of another program if the server has never answered
        """
        await self._one.acquire()
        try:
            failures, said = 0, ""
            while True:
                try:
                    answer = await self._try(method, target, body, headers, wait)
                    own = answer.json_object is not None
                    self._met = self._met or own
                    if not answer.passes(own, self._met):
                        return answer
                    self.repeats += not own
                    problem, pause = f"status {answer.status}: {answer.detail}", answer.retry_after
                except LOST as error:
                    self.repeats += 1
                    problem, pause = f"no answer ({type(error).__name__}: {error})", 0.0
                self._leave()
                if problem != said:
                    log.warn("{name}: {problem}; retrying", name=self.authority, problem=problem)
                    said = problem
                await deferLater(self.clock, max(pause, self.retry(failures)))
                failures += 1
        finally:
            self._one.release()

    async def _try(
        self, method: str, target: str, body: bytes | None, headers: FieldLines, wait: float
    ) -> ServerAnswer:
        connection = self._connection
        if connection is None or not connection.usable:
            made = Connection(self.endpoint, self.authority, self.token)
            connecting: Any = connectProtocol(self.endpoint, made)
            connection = self._connection = await connecting.addTimeout(ANSWER_TIMEOUT, self.clock)
        assert connection is not None, "it was just made"
        timeout = wait + ANSWER_TIMEOUT + len(body or b"") / SLOWEST
        return await connection.ask(method, target, body, headers).addTimeout(timeout, self.clock)

    def _leave(self) -> None:
        """Close the connection gracefully: the next one goes to the leader of the cluster."""
        if self._connection is not None and self._connection.usable:
            self._connection.leave()
        self._connection = None

    def close(self) -> None:
        """Close the connection; an unanswered request is sent again over the next one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.transport.abortConnection()
