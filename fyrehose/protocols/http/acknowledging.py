"""Acknowledge records of a named subscription by HTTP, over a connection of its own.

    acknowledge(seq) -> POST /subscriptions/NAME/ack {"seq": ..., "generation": ...} -> 200, when it is durable

One request is open at a time.  Acknowledgements that wait meanwhile become one, because the newest acknowledgement of a
stream includes the earlier ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from itertools import islice
from urllib.parse import quote

import attrs
from twisted.application.internet import ClientService, backoffPolicy
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger

from fyrehose.net.clients import reconnecting, stopped
from fyrehose.protocols.http.requests import TEMPORARY, Connection, ServerAnswer, sent_again

log = Logger()

#: The longest time that :meth:`Acknowledger.close` waits for the server's answer, in seconds.
CLOSE_TIMEOUT = 5.0
#: How names that are not UTF-8 are encoded.
ESCAPED = "surrogateescape"
#: How many streams one request acknowledges at most, so that its body stays small even with the longest names.
MOST_STREAMS = 30


@attrs.frozen
class Marks:
    """The numbers that one request acknowledges.

    :ivar numbers: the acknowledged number of each stream; the key is None if the subscription has one stream, not a
        pattern
    """

    generation: int
    numbers: Mapping[str | None, int]

    @property
    def body(self) -> bytes:
        """Return the JSON body of the request that acknowledges these records."""
        place: dict[str, object] = {"positions": self.numbers}
        if None in self.numbers:
            place = {"seq": self.numbers[None]}
        return json.dumps({**place, "generation": self.generation}, ensure_ascii=False).encode(errors=ESCAPED)

    def __str__(self) -> str:
        of = (f"{seq}" if stream is None else f"{seq} of stream {stream!r}" for stream, seq in self.numbers.items())
        return ", ".join(of)


@attrs.define(eq=False)
class Acknowledger:
    """A client that acknowledges records of one named subscription, and repeats requests that were not answered.

    :ivar authority: the value of the ``Host`` header
    :ivar name: the named subscription
    :ivar refused: number of acknowledgements that the server has refused permanently
    """

    clock: IReactorTime
    endpoint: IStreamClientEndpoint
    authority: str
    name: str
    refused: int = attrs.field(default=0, init=False)
    _generation: int = attrs.field(default=0, init=False)
    #: the newest acknowledgement of each stream that the server has not answered
    _waiting: dict[str | None, int] = attrs.field(factory=dict, init=False)
    _service: ClientService | None = attrs.field(default=None, init=False)
    _connection: Connection | None = attrs.field(default=None, init=False)
    _closing: Deferred[None] | None = attrs.field(default=None, init=False)

    def acknowledge(self, seq: int, generation: int, stream: str | None = None) -> None:
        """Acknowledge the records up to number *seq*, which the server delivered with this *generation*.

        :param stream: the stream, if the subscription is to a pattern
        """
        if generation > self._generation:
            self._generation = generation
            self._waiting.clear()
        elif generation < self._generation:
            return  # The server would refuse an acknowledgement of an old generation.
        self._waiting[stream] = max(self._waiting.get(stream, 0), seq)
        if self._service is None:
            retry = backoffPolicy(1.0, 30.0)
            make = partial(Connection, self.endpoint, self.authority, changed=self._changed)
            self._service = reconnecting(self.clock, self.endpoint, make, retry)
        elif self._connection is not None:
            self._send(self._connection)

    def _send(self, connection: Connection) -> None:
        """Send the waiting acknowledgements, but first wait for the answer to an earlier request."""
        if connection.idle:
            marks = Marks(self._generation, dict(islice(self._waiting.items(), MOST_STREAMS)))
            target = f"/subscriptions/{quote(self.name, safe='', errors=ESCAPED)}/ack"
            asked = connection.ask("POST", target, marks.body)
            asked.addCallbacks(self._answered, sent_again, callbackArgs=(connection, marks))

    def close(self) -> Deferred[None]:
        """Disconnect after the answer to the last acknowledgement, or after :data:`CLOSE_TIMEOUT`."""
        if not self._waiting:
            return self._stop()
        closing = self._closing = Deferred()
        timeout = self.clock.callLater(CLOSE_TIMEOUT, self._end)
        closing.addCallback(lambda _: timeout.cancel() if timeout.active() else None)
        return closing.addCallback(lambda _: self._stop())

    # Called by the connection.

    def _changed(self, connection: Connection | None) -> None:
        """Record that *connection* is open, or, if it is None, lost; reconnect only if acknowledgements wait."""
        self._connection = connection
        if connection is None:
            if not self._waiting:
                self._stop()
        elif self._waiting:
            self._send(connection)

    def _answered(self, answer: ServerAnswer, connection: Connection, sent: Marks) -> None:
        """Handle the answer to the request for *sent*: forget these acknowledgements, or send them again."""
        if answer.status in TEMPORARY:
            detail = answer.detail
            log.warn("{name} does not acknowledge at present: {detail}; retrying", name=self.authority, detail=detail)
            connection.leave()
            return
        if answer.status != 200:
            self.refused += 1
            log.warn(
                "{name} refused to acknowledge record {sent} of subscription {subscription!r} with status {status}: "
                "{detail}; it will be delivered again",
                name=self.authority,
                sent=str(sent),
                subscription=self.name,
                status=answer.status,
                detail=answer.detail,
            )
        if sent.generation == self._generation:
            for stream, seq in sent.numbers.items():
                if self._waiting.get(stream) == seq:
                    del self._waiting[stream]
        if not self._waiting:
            self._end()
        elif self._connection is not None:
            self._send(self._connection)

    # Internals.

    def _end(self) -> None:
        closing, self._closing = self._closing, None
        if closing is not None:
            closing.callback(None)

    def _stop(self) -> Deferred[None]:
        service, self._service = self._service, None
        return stopped(service)
