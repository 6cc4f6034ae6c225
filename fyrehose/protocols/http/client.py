"""HTTP client that follows one stream with all columns of its records, and reconnects without a gap.

    HEAD /streams/NAME -> number of the last record -> GET /streams/NAME/live?from=N -> events -> runs -> take

The numbers tell where to continue, so that a new connection begins behind the last record.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from struct import pack
from typing import Any
from urllib.parse import quote
from uuid import UUID

import attrs
import h11
from twisted.application.internet import ClientService, backoffPolicy
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.interfaces import ITailer
from fyrehose.net.clients import reconnecting
from fyrehose.records import MAX_PAYLOAD, Run

log = Logger()

#: The largest event accepted, in bytes: JSON may need six characters for one byte of a payload.
MOST_EVENT = 6 * MAX_PAYLOAD + (64 << 10)
#: The part of an error's body that is kept, in bytes.
MOST_ERROR = 4 << 10
#: Refusals that may pass by themselves.
TEMPORARY = (429, 503)


@implementer(ITailer)
@attrs.define(eq=False)
class HttpTailer:
    """Reads one stream.

    :ivar authority: the value of the ``Host`` header
    :ivar position: number of the last record that was passed on, or the one before the first; None: not known yet
    """

    clock: IReactorTime
    endpoint: IStreamClientEndpoint
    authority: str
    position: int | None = attrs.field(default=None, init=False)
    path: str = attrs.field(default="", init=False)
    _stream: str = attrs.field(default="", init=False)
    _take: Callable[[Run], Any] = attrs.field(default=lambda run: None, init=False)
    _lost: Callable[[int, int], object] | None = attrs.field(default=None, init=False)
    _service: ClientService | None = attrs.field(default=None, init=False)
    _connection: _Connection | None = attrs.field(default=None, init=False)
    _connected: Deferred[None] | None = attrs.field(default=None, init=False)
    _paused: bool = attrs.field(default=False, init=False)
    #: why records do not arrive at present; empty if they do
    _problem: str = attrs.field(default="the server has not answered", init=False)

    def subscribe(
        self,
        stream: str | None,
        take: Callable[[Run], Any],
        after: int | None = None,
        lost: Callable[[int, int], object] | None = None,
    ) -> None:
        """Select the stream, before :meth:`connect`; see :meth:`fyrehose.interfaces.ITailer.subscribe`.

        :raises ConfigError: no stream was given
        """
        if stream is None:
            raise ConfigError("no stream was given; use --stream NAME")
        self._stream, self._take, self.position, self._lost = stream, take, after, lost
        self.path = "/streams/" + quote(stream, safe="", errors="surrogateescape")

    def connect(self) -> Deferred[None]:
        """Connect, and reconnect until :meth:`close`.

        :return: fires when the server begins to send records; fails with FyrehoseError if it refuses the request
        """
        self._connected = Deferred(lambda _: None)
        self._service = reconnecting(self.clock, self.endpoint, lambda: _Connection(self), backoffPolicy(1.0, 30.0))
        return self._connected

    def pause(self) -> None:
        """Stop reading from the server until :meth:`resume`."""
        self._paused = True
        if self._connection is not None:
            self._connection.transport.pauseProducing()

    def resume(self) -> None:
        """Read from the server again."""
        self._paused = False
        if self._connection is not None:
            self._connection.transport.resumeProducing()

    def shortfall(self, complete: bool) -> str:
        """Return why records do not arrive at present; "" if they do, or if all that were requested have arrived."""
        return "" if complete else self._problem

    def close(self) -> Deferred[None]:
        """Disconnect from the server."""
        service, self._service = self._service, None
        if service is None:
            return succeed(None)
        if self._connection is not None:
            self._connection.transport.resumeProducing()  # a paused transport does not notice that it is closed
        stopped: Deferred[Any] = service.stopService()
        return stopped.addCallback(lambda _: None)

    # Called by the connection.

    def connection_changed(self, connection: _Connection | None) -> None:
        """Record the connection that is open now, or that there is none."""
        self._connection = connection
        if connection is None:
            self._problem = self._problem or "the connection to the server was lost"
        elif self._paused:
            connection.transport.pauseProducing()

    def begun(self) -> None:
        """Record that the server sends records from now on."""
        self._problem = ""
        if self._connected is not None and not self._connected.called:
            self._connected.callback(None)

    def refused(self, status: int, reason: str) -> None:
        """Record a refusal: fail if it is the first answer and final, else report it and try again later."""
        if self._connected is not None and not self._connected.called and status not in TEMPORARY:
            service, self._service = self._service, None
            if service is not None:
                service.stopService()
            self._connected.errback(FyrehoseError(reason))
        elif self._problem != reason:
            log.warn("{reason}; retrying", reason=reason)
        self._problem = reason

    def ended(self, reason: str) -> None:
        """Record that the server ended the answer because of *reason*; the client reconnects."""
        self._problem = reason

    def received(self, records: list[dict[str, Any]]) -> None:
        """Pass on *records*, objects of :mod:`fyrehose.ndjson`."""
        position = self.position or 0
        fresh = [record for record in records if record["seq"] > position]
        for run in runs_of(self._stream, fresh):
            self.position = run.last_seq
            self._take(run)

    def missing(self, first: int, last: int) -> None:
        """Report a range of numbers that the stream no longer has."""
        self.position = last
        if self._lost is not None:
            self._lost(first, last)


def runs_of(stream: str, records: Iterable[dict[str, Any]]) -> Iterator[Run]:
    """Yield objects of :mod:`fyrehose.ndjson` as runs: consecutive ones whose labels are equal are one run."""

    def kind(item: tuple[int, dict[str, Any]]) -> tuple[Any, ...]:
        at, record = item
        numbers = [record[name] - at if name in record else None for name in ("seq", "producer_seq")]
        labels = [record.get(name) for name in ("time", "source", "producer", "topic", "content_type")]
        return (*numbers, *labels, "event_id" in record, "event_time" in record)

    for _, group in groupby(enumerate(records), kind):
        row = [record for _, record in group]
        first = row[0]
        yield Run.of(
            stream,
            [_payload(record) for record in row],
            source=first.get("source", ""),
            first_seq=first["seq"],
            time=first.get("time", 0),
            producer_seq=first.get("producer_seq"),
            event_ids=b"".join(UUID(record["event_id"]).bytes for record in row) if "event_id" in first else None,
            event_times=pack(f"<{len(row)}q", *(record["event_time"] for record in row))
            if "event_time" in first
            else None,
            **{name: first.get(name) for name in ("producer", "topic", "content_type")},
        )


def _payload(record: dict[str, Any]) -> bytes:
    return record["payload"].encode() if "payload" in record else b64decode(record["payload_base64"])


class _Connection(Protocol):
    """One connection: asks where the stream ends, if that is the place to begin, and follows the stream from there."""

    transport: Any

    def __init__(self, tailer: HttpTailer) -> None:
        self._tailer = tailer
        self._http = h11.Connection(h11.CLIENT)
        self._live = False  #: whether the answer is the one with records
        self._status = 0
        self._error = bytearray()
        self._events = bytearray()
        self._searched = 0  #: bytes of it without the end of an event

    def connectionMade(self) -> None:
        self._tailer.connection_changed(self)
        self._request()

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        self._tailer.connection_changed(None)

    def dataReceived(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response):
                    self._answered(event.status_code, {bytes(name): bytes(value) for name, value in event.headers})
                elif isinstance(event, h11.Data):
                    self._body(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    self._ended()
                elif isinstance(event, h11.ConnectionClosed):
                    break
        except (h11.ProtocolError, ValueError, KeyError, TypeError) as error:
            self._tailer.refused(0, f"{self._tailer.authority} is not a Fyrehose http listener: {error}")
            self.transport.abortConnection()

    def _request(self) -> None:
        position, path = self._tailer.position, self._tailer.path
        self._live = position is not None
        target = path if position is None else f"{path}/live?from={position + 1}"
        headers = [("Host", self._tailer.authority), ("Accept", "text/event-stream, application/x-ndjson")]
        request = h11.Request(method="GET" if self._live else "HEAD", target=target, headers=headers)
        self.transport.write((self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b""))

    def _answered(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._status = status
        if self._live and status == 200:
            self._tailer.begun()
        elif not self._live and status == 200:
            self._tailer.position = int(headers[b"fyrehose-last"])
        elif not self._live and status == 404 and b"json" in headers.get(b"content-type", b""):
            self._tailer.position = 0  # The stream does not exist yet.

    def _body(self, data: bytes) -> None:
        if self._status != 200:
            self._error += data[: MOST_ERROR - len(self._error)]
            return
        self._events += data
        if len(self._events) > MOST_EVENT:
            raise ValueError("it sends an event that is larger than any record")
        end = self._events.rfind(b"\n\n", max(0, self._searched - 1))
        if end < 0:
            self._searched = len(self._events)
            return
        complete = bytes(self._events[:end])
        del self._events[: end + 2]
        self._searched = 0
        self._handle(complete.split(b"\n\n"))

    def _handle(self, events: list[bytes]) -> None:
        records: list[dict[str, Any]] = []
        for event in events:
            fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if not line.startswith(b":"))
            if b"data" not in fields:
                continue  # a comment that keeps the connection alive
            data, kind = json.loads(fields[b"data"]), fields.get(b"event", b"")
            if not kind:
                records.append(data)
                continue
            self._tailer.received(records)
            records = []
            if kind == b"gap":
                self._tailer.missing(data["first"], data["last"])
            elif kind == b"ended":
                self._tailer.ended(data["error"])
        self._tailer.received(records)

    def _ended(self) -> None:
        """Handle the end of an answer: follow the stream after the first one, otherwise close the connection."""
        if not self._live and self._tailer.position is not None and self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
            self._request()
            return
        if self._status != 200:
            try:
                detail = str(json.loads(self._error)["error"])
            except (ValueError, KeyError, TypeError):
                detail = "its answer is not that of a Fyrehose http listener; check the port and --protocol"
            self._tailer.refused(
                self._status, f"{self._tailer.authority} refused the request with status {self._status}: {detail}"
            )
        self.transport.loseConnection()
