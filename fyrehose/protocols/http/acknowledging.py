"""Acknowledge records of a named subscription by HTTP, over a connection of its own.

    acknowledge(seq) -> POST /subscriptions/NAME/ack {"seq": ..., "generation": ...} -> 200, when it is durable
    report(fields)   -> POST /subscriptions/NAME/report -> the subscription

One request is open at a time.  Acknowledgements that wait meanwhile become one, because the newest acknowledgement of a
stream includes the earlier ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any
from urllib.parse import quote

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger

from fyrehose.errors import Closed, FyrehoseError
from fyrehose.net.clients import ConnectionOptions
from fyrehose.protocols.http.calling import Caller
from fyrehose.protocols.http.requests import HTTP_OPTIONS
from fyrehose.web.client_session import ServerAnswer

log = Logger()

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
    :ivar token: the bearer token that is sent, if any
    :ivar refused: number of acknowledgements that the server has refused permanently
    """

    clock: IReactorTime
    endpoint: IStreamClientEndpoint
    authority: str
    name: str
    options: ConnectionOptions = HTTP_OPTIONS
    token: str | None = attrs.field(default=None, repr=False)
    refused: int = attrs.field(default=0, init=False)
    _generation: int = attrs.field(default=0, init=False)
    #: the newest acknowledgement of each stream that the server has not answered
    _waiting: dict[str | None, int] = attrs.field(factory=dict, init=False)
    _caller: Caller = attrs.field(init=False)
    #: the request that has no answer yet
    _asking: Deferred[ServerAnswer] | None = attrs.field(default=None, init=False)
    _closing: Deferred[None] | None = attrs.field(default=None, init=False)

    @_caller.default
    def _make_caller(self) -> Caller:
        # What ends the client is decided on the connection with the records.
        return Caller(
            self.clock, self.endpoint, self.authority, self.token, options=self.options, retries=lambda error: True
        )

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
        self._send()

    async def report(self, fields: Mapping[str, object] | None) -> dict[str, Any]:
        """Tell the server how this consumer is doing; return the subscription as the server shows it.

        :param fields: texts and numbers; None: tell it nothing
        :raises FyrehoseError: the server refuses, or the client was closed
        """
        if fields is None:
            answer = await self._caller.ask("GET", self._path)
        else:
            answer = await self._caller.ask("POST", f"{self._path}/report", json.dumps(fields).encode())
        if answer.status != 200:
            raise FyrehoseError(f"status {answer.status}: {answer.detail}")
        return answer.json_object or {}

    def close(self) -> Deferred[None]:
        """Disconnect after the answer to the last acknowledgement, or after ``options.close_timeout``."""
        closing = self._closing = Deferred()
        timeout = self.clock.callLater(self.options.close_timeout, self._end)
        closing.addCallback(lambda _: timeout.cancel() if timeout.active() else None)
        if not self._waiting:
            self._end()
        return closing

    # Internals.

    @property
    def _path(self) -> str:
        return f"/subscriptions/{quote(self.name, safe='', errors=ESCAPED)}"

    def _send(self) -> None:
        """Send the waiting acknowledgements, if no request waits for its answer."""
        if self._asking is None and self._waiting:
            marks = Marks(self._generation, dict(islice(self._waiting.items(), MOST_STREAMS)))
            asking = self._asking = Deferred.fromCoroutine(self._caller.ask("POST", f"{self._path}/ack", marks.body))
            asking.addCallback(self._answered, marks).addErrback(lambda failure: failure.trap(CancelledError, Closed))

    def _answered(self, answer: ServerAnswer, sent: Marks) -> None:
        """Handle the answer to the request for *sent*: forget these acknowledgements, and send the next ones."""
        self._asking = None
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
        if self._closing is not None and not self._waiting:
            self._end()
        self._send()

    def _end(self) -> None:
        self._caller.close()
        closing, self._closing = self._closing, None
        if closing is not None:
            closing.callback(None)
