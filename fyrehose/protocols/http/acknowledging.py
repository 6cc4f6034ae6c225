"""Acknowledge records of a named subscription by HTTP, over a connection of its own beside the one that follows it.

    acknowledge(seq) -> POST /subscriptions/NAME/ack {"seq": ..., "generation": ...} -> 200, when it is durable

One request is open at a time; acknowledgements that wait meanwhile become one, because the newest includes the others.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import attrs
import h11
from twisted.application.internet import ClientService, backoffPolicy
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.net.clients import reconnecting

log = Logger()

#: The longest time that :meth:`Acknowledger.close` waits for the server's answer, in seconds.
CLOSE_TIMEOUT = 5.0
#: Refusals that may pass by themselves.
TEMPORARY = (429, 503)


@attrs.define(eq=False)
class Acknowledger:
    """Acknowledges records of one named subscription, and sends again what a lost connection left without an answer.

    :ivar authority: the value of the ``Host`` header
    :ivar name: the named subscription
    :ivar refused: how many acknowledgements the server has refused for good
    """

    clock: IReactorTime
    endpoint: IStreamClientEndpoint
    authority: str
    name: str
    refused: int = attrs.field(default=0, init=False)
    #: generation and number of the newest acknowledgement that has no answer; None: all are answered
    _waiting: tuple[int, int] | None = attrs.field(default=None, init=False)
    _service: ClientService | None = attrs.field(default=None, init=False)
    _connection: _Connection | None = attrs.field(default=None, init=False)
    _closing: Deferred[None] | None = attrs.field(default=None, init=False)

    def acknowledge(self, seq: int, generation: int) -> None:
        """Acknowledge the records up to number *seq*, as the consumer that was told *generation*."""
        self._waiting = max(self._waiting or (0, 0), (generation, seq))
        if self._service is None:
            retry = backoffPolicy(1.0, 30.0)
            self._service = reconnecting(self.clock, self.endpoint, lambda: _Connection(self), retry)
        elif self._connection is not None:
            self._connection.send(self._waiting)

    def close(self) -> Deferred[None]:
        """Disconnect after the answer to the last acknowledgement, or after :data:`CLOSE_TIMEOUT`."""
        if self._waiting is None:
            return self._stop()
        closing = self._closing = Deferred()
        timeout = self.clock.callLater(CLOSE_TIMEOUT, self._end)
        closing.addCallback(lambda _: timeout.cancel() if timeout.active() else None)
        return closing.addCallback(lambda _: self._stop())

    # Called by the connection.

    def connection_changed(self, connection: _Connection | None) -> None:
        """Record the connection that is open now, or that there is none; without need of one do not reconnect."""
        self._connection = connection
        if connection is None:
            if self._waiting is None:
                self._stop()
        elif self._waiting is not None:
            connection.send(self._waiting)

    def answered(self, sent: tuple[int, int], status: int, detail: str) -> bool:
        """Record the answer to the acknowledgement *sent*.

        :return: whether the connection can be used again
        """
        if status in TEMPORARY:
            log.warn("{name} does not acknowledge at present: {detail}; retrying", name=self.authority, detail=detail)
            return False
        if status != 200:
            self.refused += 1
            log.warn(
                "{name} refused to acknowledge record {seq} of subscription {subscription!r} with status {status}: "
                "{detail}; it will be delivered again",
                name=self.authority,
                seq=sent[1],
                subscription=self.name,
                status=status,
                detail=detail,
            )
        if self._waiting == sent:
            self._waiting = None
            self._end()
        elif self._connection is not None and self._waiting is not None:
            self._connection.send(self._waiting)
        return True

    # Internals.

    def _end(self) -> None:
        closing, self._closing = self._closing, None
        if closing is not None:
            closing.callback(None)

    def _stop(self) -> Deferred[None]:
        service, self._service = self._service, None
        if service is None:
            return succeed(None)
        stopped: Deferred[Any] = service.stopService()
        return stopped.addCallback(lambda _: None)


class _Connection(Protocol):
    """One connection, with one request at a time."""

    transport: Any

    def __init__(self, owner: Acknowledger) -> None:
        self._owner = owner
        self._http = h11.Connection(h11.CLIENT)
        self._sent: tuple[int, int] | None = None
        self._status = 0
        self._body = bytearray()

    def connectionMade(self) -> None:
        self._owner.connection_changed(self)

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        self._owner.connection_changed(None)

    def send(self, position: tuple[int, int]) -> None:
        """Send an acknowledgement, generation and number, unless one is under way, whose answer sends the next."""
        if self._sent is not None or self._http.our_state is not h11.IDLE:
            return
        self._sent = position
        body = json.dumps({"seq": position[1], "generation": position[0]}).encode()
        target = f"/subscriptions/{quote(self._owner.name, safe='', errors='surrogateescape')}/ack"
        headers = [("Host", self._owner.authority), ("Content-Length", str(len(body)))]
        events = (h11.Request(method="POST", target=target, headers=headers), h11.Data(data=body), h11.EndOfMessage())
        self.transport.write(b"".join(self._http.send(event) or b"" for event in events))

    def dataReceived(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response):
                    self._status = event.status_code
                elif isinstance(event, h11.Data):
                    self._body += event.data[: (4 << 10) - len(self._body)]
                elif isinstance(event, h11.EndOfMessage):
                    self._answered()
                elif isinstance(event, h11.ConnectionClosed):
                    break
        except h11.ProtocolError as error:
            log.warn("{name} does not answer as HTTP: {error}", name=self._owner.authority, error=str(error))
            self.transport.abortConnection()

    def _answered(self) -> None:
        sent, self._sent = self._sent, None
        detail = bytes(self._body).decode(errors="replace")
        try:
            detail = str(json.loads(detail)["error"])
        except (ValueError, KeyError, TypeError):
            pass  # It is reported as it is.
        self._body.clear()
        reusable = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if reusable:
            self._http.start_next_cycle()
        usable = sent is not None and self._owner.answered(sent, self._status, detail)
        if not (usable and reusable):
            self.transport.loseConnection()
