"""Send requests with JSON bodies to a server by HTTP, one after another over one connection; reconnect if it is lost.

    call("POST", path, body) -> connect, if there is no connection -> status and object

A request whose answer was lost is sent again, so only requests that may be repeated can be sent.
"""

from __future__ import annotations

import json
from typing import Any

import attrs
from twisted.internet.defer import DeferredLock
from twisted.internet.endpoints import connectProtocol
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.task import deferLater
from twisted.logger import Logger

from fyrehose.protocols.http.requests import LOST, TEMPORARY, Connection

log = Logger()

#: The longest pause between two attempts, and the longest wait for an answer, in seconds.
LONGEST_RETRY, ANSWER_TIMEOUT = 10.0, 30.0


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
    repeats: int = attrs.field(default=0, init=False)
    _connection: Connection | None = attrs.field(default=None, init=False)
    _one: DeferredLock = attrs.field(factory=DeferredLock, init=False)

    async def call(self, method: str, path: str, body: object = None, wait: float = 0.0) -> tuple[int, Any]:
        """Send a request; repeat it while no answer comes, or the answer asks to try later (status 429 or 503).

        :param wait: how long the server may wait before it answers, in seconds
        :return: status and JSON object of the answer; {} for an answer without a body
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
            made = Connection(self.endpoint, self.authority, self.token)
            connecting: Any = connectProtocol(self.endpoint, made)
            connection = await connecting.addTimeout(ANSWER_TIMEOUT, self.clock)
            self._connection = connection
        assert connection is not None, "it was just made"
        data = None if body is None else json.dumps(body).encode()
        answered: Any = connection.ask(method, path, data).addTimeout(wait + ANSWER_TIMEOUT, self.clock)
        answer = await answered
        if answer.status in TEMPORARY:
            connection.leave()  # The next connection goes to the leader of the cluster.
        return answer.status, _parsed(answer.body)

    def close(self) -> None:
        """Close the connection; an unanswered request is sent again over the next one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.transport.abortConnection()


def _parsed(answer: bytes) -> dict[str, Any]:
    """Return the JSON object in *answer*, or an object with an ``error`` that says that there is none."""
    try:
        found = json.loads(answer or b"{}")
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"error": "the answer is not that of a Fyrehose http listener"}
