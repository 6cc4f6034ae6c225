"""HTTP client that follows one stream, or all streams that match a pattern, with all columns, and reconnects.

    HEAD /streams/NAME -> number of the last record -> GET /streams/NAME/live?from=N -> runs -> take
    GET /streams/NAME/live?subscription=S           -> runs -> take -> acknowledge
    GET /streams?match=P -> numbers of last records -> GET /streams/*/live?match=P   -> runs -> take
    GET /streams/*/live?match=P&subscription=S      -> runs -> take -> acknowledge, stream by stream

A new connection begins behind the last record number that the client received; of a named subscription the server keeps
the position.  With a pattern the client reports which records it missed while it was not connected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.interfaces import ITailer
from fyrehose.net.clients import ConnectionFailed, ConnectionOptions, ServerUnavailable, TCPClient, tell_restarted
from fyrehose.protocols.http.acknowledging import ESCAPED, Acknowledger
from fyrehose.protocols.http.requests import HTTP_OPTIONS, Connection, foreign
from fyrehose.protocols.http.runs import run_of
from fyrehose.protocols.http.session import MOST_LISTED
from fyrehose.records import MAX_PAYLOAD, Buffer, Run
from fyrehose.web.client_session import ServerAnswer
from fyrehose.web.session import RUNS

log = Logger()

#: The forms of answers that the client reads.
_ACCEPTED = (("Accept", f"{RUNS}, application/json, application/x-ndjson"),)
#: The largest event or run accepted, in bytes: a run of several records is not larger than a piece.
MOST_EVENT = MAX_PAYLOAD + (64 << 10)


@implementer(ITailer)
@attrs.define(eq=False)
class HttpTailer(TCPClient):
    """A client that reads one stream, or all streams that match a pattern.

    :ivar authority: the value of the ``Host`` header
    :ivar token: the bearer token that is sent, if any
    :ivar absent: whether the stream did not exist when the server began to send records
    :ivar positions: by stream, the number of the last record that was passed to ``take``, or the number behind which
        the client begins
    """

    connection_options: ConnectionOptions = attrs.field(default=HTTP_OPTIONS, kw_only=True)
    authority: str
    #: the epoch of the numbers, as the server said it; a program that has kept it with a number may set it
    epoch: str = attrs.field(default="", kw_only=True)
    token: str | None = attrs.field(default=None, kw_only=True, repr=False)
    absent: bool = attrs.field(default=False, init=False)
    positions: dict[str, int] = attrs.field(factory=dict, init=False)
    path: str = attrs.field(default="", init=False)
    _pattern: str | None = attrs.field(default=None, init=False)
    _after: int | str | None = attrs.field(default=None, init=False)
    _acknowledger: Acknowledger | None = attrs.field(default=None, init=False)
    _takeover: bool = attrs.field(default=False, init=False)
    #: the generation of the named subscription when the server began to send records; 0 before that
    _generation: int = attrs.field(default=0, init=False)
    #: number of failed records; a record that was passed on before the last failure is not acknowledged
    _failures: int = attrs.field(default=0, init=False)
    _reconnected: bool = attrs.field(default=False, init=False)
    #: which matching streams the server does not send, and why; empty if it sends all
    _partial: str = attrs.field(default="", init=False)
    _stream: str = attrs.field(default="", init=False)
    _take: Callable[[Run], Any] = attrs.field(default=lambda run: None, init=False)
    _lost: Callable[..., object] | None = attrs.field(default=None, init=False)
    _restarted: Callable[..., object] | None = attrs.field(default=None, init=False)

    def subscribe(
        self,
        stream: str | None,
        take: Callable[[Run], Any],
        after: int | str | None = None,
        lost: Callable[..., object] | None = None,
        restarted: Callable[..., object] | None = None,
        name: str | None = None,
        takeover: bool = False,
    ) -> None:
        """Select the stream, before :meth:`connect`; see :meth:`fyrehose.interfaces.ITailer.subscribe`.

        :param stream: a name, or a pattern, in which ``*`` stands for any text
        :param take: if it returns a Deferred, records of a named subscription are acknowledged when that fires: all of
            the run, or those up to the number that is the Deferred's result
        :param after: a number; or a time such as ``2026-11-28T12:00`` or ``-1h``, at which to begin
        :param lost: called with the first and the last number and, with a pattern, the stream
        :param restarted: called if the server has another journal, with the last number of the stream there and, with a
            pattern, the stream; a pattern then continues with new records, and earlier ones are reported to *lost*
        :param name: a named subscription, whose position the server keeps; *after* says where a new one begins
        :param takeover: whether to displace the subscription's consumer when connecting for the first time
        :raises ConfigError: no stream was given, or the pattern cannot be used with *after*
        """
        if stream is None:
            raise ConfigError("no stream was given; use --stream NAME")
        self._stream, self._take, self._after = stream, take, after
        self._lost, self._restarted = lost, restarted
        self.path = "/streams/" + quote(stream, safe="", errors=ESCAPED)
        if "*" in stream:
            if after and name is not None:
                raise ConfigError("no number suits all streams of a pattern; use --since start or --since latest")
            if after is not None and name is None:
                raise ConfigError(
                    f"a subscription to the pattern {stream!r} begins with new records; leave --since out, or name one "
                    "stream"
                )
            self._pattern = stream
        if name is not None:
            self._takeover = takeover
            options = self.connection_options
            self._acknowledger = Acknowledger(self.clock, self.endpoint, self.authority, name, options, self.token)
        elif self._pattern is None and isinstance(after, int):
            self.positions[stream] = after

    def shortfall(self, complete: bool) -> str:
        """Return why records do not arrive at present; "" if they do, or if all that were requested have arrived."""
        return "" if complete else self.problem or self._partial

    def report(self, fields: Mapping[str, object] | None) -> Deferred[dict[str, Any]]:
        """Tell the server how the consumer of the named subscription is doing; fires with the subscription.

        :param fields: texts and numbers, which the server shows; None: tell it nothing
        """
        assert self._acknowledger is not None, "a named subscription is read"
        return Deferred.fromCoroutine(self._acknowledger.report(fields))

    def close(self) -> Deferred[None]:
        """Disconnect from the server, after it has answered the last acknowledgement of a named subscription."""
        if self._acknowledger is None:
            return TCPClient.close(self)
        return self._acknowledger.close().addCallback(lambda _: TCPClient.close(self))

    # Called by the shell.

    def new_connection(self) -> _Connection:
        return _Connection(self)

    def connection_made(self, connection: _Connection) -> None:
        """Ask where to begin, or for records."""
        connection.begin()

    def retries(self, error: Exception) -> bool:
        """Log the answer of a proxy, or a temporary refusal; see :meth:`Client.retries`."""
        before, again = str(self.error), TCPClient.retries(self, error)
        unavailable = isinstance(error, ConnectionFailed) and isinstance(error.reason, ServerUnavailable)
        if again and unavailable and str(error) != before:
            log.warn("{name}: {problem}; retrying", name=self.authority, problem=error)
        return again

    # Called by the connection.

    @property
    def begun_before(self) -> bool:
        """Return whether the server has ever sent records to this client, or was ready to."""
        return self._connected is not None and self._connected.called

    @property
    def question(self) -> tuple[str, str] | None:
        """Return the method and target of the request that finds the end of the stream; None: none is needed."""
        if self._acknowledger is not None:
            return None
        if self._pattern is not None:
            return "GET", "/streams?" + urlencode({"match": self._pattern, "limit": MOST_LISTED}, errors=ESCAPED)
        if self._stream not in self.positions:
            since = "" if self._after is None else "?" + urlencode({"from": self._after})
            return "HEAD", self.path + since
        return None

    @property
    def target(self) -> str:
        """Return the path and the query of the request for records."""
        path = self.path if self._pattern is None else "/streams/*"
        fields: dict[str, object] = {} if self._pattern is None else {"match": self._pattern}
        if self._acknowledger is not None:
            fields |= {"subscription": self._acknowledger.name}
            after = self._after
            fields |= {} if after is None else {"from": after if isinstance(after, str) else after + 1}
            fields |= {"takeover": 1} if self._takeover else {}
        elif self._pattern is None:
            fields |= {"from": self.positions.get(self._stream, 0) + 1}
            fields |= {"epoch": self.epoch} if self.epoch else {}
        return f"{path}/live?{urlencode(fields, errors=ESCAPED)}"

    def found(self, answer: ServerAnswer) -> bool:
        """Begin behind the records that *answer*, that to :attr:`question`, reports; return False if it is refused."""
        if answer.status == 200 and b"fyrehose-last" in answer.headers:
            begin = answer.headers.get(b"fyrehose-from")
            self.positions[self._stream] = int(answer.headers[b"fyrehose-last"]) if begin is None else int(begin) - 1
            self.epoch = epoch_of(answer)
        elif self._pattern is None and answer.status == 404 and answer.media_type == "application/json":
            self.positions[self._stream] = 0  # The stream does not exist yet.
        elif answer.status == 200 and "streams" in (answer.json_object or {}):
            self.listed((answer.json_object or {})["streams"], epoch_of(answer), b"fyrehose-age" in answer.headers)
        else:
            self.refused(answer)
            return False
        return True

    def listed(self, streams: list[dict[str, Any]], epoch: str = "", lagging: bool = False) -> None:
        """Record the last number of each matching stream; report the records that were missed without a connection.

        :param epoch: the epoch of these numbers
        :param lagging: whether another server may have newer records
        """
        self._reconnected = self.begun_before
        other = self.epoch not in ("", epoch)
        self.epoch = epoch
        for each in streams:
            stream, last, start = str(each["name"]), int(each["last"]), max(0, int(each["first"]) - 1)
            before = self.positions.get(stream, start)
            if stream in self.positions and (other or (before > last and not lagging)):
                self.restarted(last, epoch, stream)
                before = start
            self.positions[stream] = max(before, last)
            if last > before and self._reconnected:
                self.missing(before + 1, last, stream)

    def begun(self, answer: ServerAnswer) -> None:
        """Record that the server sends records from now on.

        If the generation of the named subscription has changed, the client continues at the position that the server
        keeps.
        """
        epoch, generation = epoch_of(answer), int(answer.headers.get(b"fyrehose-generation", b"0"))
        end = int(answer.headers.get(b"fyrehose-last", b"-1"))
        self.absent = end == 0
        self._partial = ""
        self._takeover = False  # Two consumers that both take over would displace each other for ever.
        if generation != self._generation:
            self._generation = generation
            self.positions.clear()
        if self.epoch == "":
            self.epoch = epoch
        elif self._acknowledger is not None and self.epoch != epoch:
            self.restarted(max(0, end), epoch)
            self.positions.clear()
        self.established()

    def restarted(self, end: int, epoch: str, stream: str | None = None) -> None:
        """Begin at the start of a stream, because the server has another journal.

        :param end: the last number of the stream
        :param stream: the stream, if the client follows a pattern
        """
        before = self.positions.get(stream or self._stream, 0)
        self.epoch, self.positions[stream or self._stream] = epoch, 0
        names = () if stream is None else (stream,)
        tell_restarted(stream or self._stream, before, end, self._restarted, *names)

    def refused(self, answer: ServerAnswer) -> None:
        """Handle an answer without records: end if it is the first one and final; otherwise try again later."""
        # A refusal of a HEAD has no body.
        own = answer.json_object is not None or (not answer.body and answer.media_type == "application/json")
        said = f"status {answer.status}" + (f": {answer.detail}" if answer.body else "")
        if self.begun_before or answer.passes(own, met=False):
            self.connection.abort(ServerUnavailable(said, answer.retry_after))
        elif own:
            self.end(FyrehoseError(f"{self.authority} refused the request with {said}"))
        else:
            self.connection.abort(foreign(self.authority, said))

    def ended(self, reason: str) -> None:
        """Record that the server ended the answer because of *reason*; the client reconnects."""
        self.error = ServerUnavailable(reason)
        self.connection.abort(self.error)

    def not_followed(self, reason: str) -> None:
        """Record that the server does not send a stream that matches the pattern."""
        log.warn("{name}: {reason}", name=self.authority, reason=reason)
        self._partial = reason

    def received(self, run: Run) -> None:
        """Pass the records of *run* that were not received before on to ``take``."""
        known = self.positions.get(run.stream, 0)
        run = run.slice(max(0, known + 1 - run.first_seq), len(run))
        if not len(run):
            return
        if known and run.first_seq > known + 1 and self._reconnected:
            self.missing(known + 1, run.first_seq - 1, run.stream)  # published between the list and the events
        self.positions[run.stream] = run.last_seq
        taken = self._take(run)
        if self._acknowledger is not None:
            self._acknowledge(run, taken)

    def missing(self, first: int, last: int, stream: str | None = None) -> None:
        """Report records that the stream no longer has, or that were published while there was no connection.

        :param stream: the stream of the records, if the client follows a pattern
        """
        self.positions[stream or self._stream] = last
        if self._lost is not None:
            self._lost(first, last, *(() if stream is None else (stream,)))

    # Internals.

    def _acknowledge(self, run: Run, taken: Any) -> None:
        """Acknowledge *run* when *taken*, the result of ``take``, has fired."""
        acknowledger, generation, failures = self._acknowledger, self._generation, self._failures
        assert acknowledger is not None

        def consumed(result: Any) -> None:
            if failures == self._failures:
                seq = result if isinstance(result, int) else run.last_seq
                acknowledger.acknowledge(seq, generation, None if self._pattern is None else run.stream)

        if isinstance(taken, Deferred):
            taken.addCallback(consumed)
            taken.addErrback(self._not_consumed)
        else:
            consumed(None)

    def _not_consumed(self, failure: Failure) -> None:
        """Read again from the position that the server keeps, because a record could not be processed."""
        log.warn("a record was not processed, and is read again: {error}", error=failure.getErrorMessage())
        self._generation = 0
        self._failures += 1
        if self.connection is not None:
            self.connection.abort(FyrehoseError("a record was not processed"))


def epoch_of(answer: ServerAnswer) -> str:
    """Return the epoch of the numbers in *answer*; "" if it does not say one."""
    return answer.headers.get(b"fyrehose-epoch", b"").decode("ascii", "replace")


class _Connection(Connection):
    """One connection, which asks for the end of the stream, if the client begins there, and then follows the stream."""

    #: The server sends a comment every 15 s.
    expecting = True

    def __init__(self, tailer: HttpTailer) -> None:
        super().__init__(tailer.authority, tailer.token)
        self._tailer = tailer
        self._following = False  #: whether the request for records was sent
        self._live = False  #: whether the answer under way is the one with records
        self._input = bytearray()
        self._searched = 0  #: how many bytes of the incomplete event were searched for its end
        self._head: dict[str, Any] | None = None  #: that of the run whose columns are incomplete

    def begin(self) -> None:
        """Send the first request."""
        self.confirmed = self._tailer.begun_before
        question = self._tailer.question
        if question is None:
            self._follow()
        else:
            self._ask(*question, self._found)

    def _found(self, answer: ServerAnswer) -> None:
        if self._tailer.found(answer):
            self._follow() if self.usable else self.leave()

    def _follow(self) -> None:
        self._following = True
        self._ask("GET", self._tailer.target, self._tailer.refused)

    def _ask(self, method: str, target: str, answered: Callable[[ServerAnswer], object]) -> None:
        asking = self.ask(method, target, headers=_ACCEPTED).addCallback(answered)
        asking.addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        """Abort the connection if the answer was invalid; do nothing if the connection was lost."""
        if failure.check(ValueError, KeyError, TypeError) and isinstance(failure.value, Exception):
            self.abort(self.violation(failure.value))
        else:
            failure.trap(ConnectionFailed, CancelledError)

    def received(self, event: ServerAnswer | Buffer) -> None:
        """Handle a part of the answer with records; other answers are collected, and then handled as a whole.

        :raises ValueError: an event is larger than any record
        """
        if isinstance(event, ServerAnswer):
            self._live = self._following and event.media_type == RUNS
        if not self._live:
            super().received(event)
        elif isinstance(event, ServerAnswer):
            self.confirmed = True
            self._tailer.begun(event)
        elif event:
            self._events_received(event)
        else:
            self.leave()

    def _events_received(self, data: Buffer) -> None:
        """Handle the events and runs that *data* completes."""
        self._input += data
        while True:
            if self._head is None:
                end = self._input.find(b"\n\n", max(0, self._searched - 1))
                size = len(self._input) if end < 0 else end
            else:
                size = int(self._head["size"])
                end = size if len(self._input) >= size else -1
            if size > MOST_EVENT:
                raise ValueError("the server sends an event that is larger than any record")
            if end < 0:
                self._searched = len(self._input)
                return
            event, self._searched = bytes(self._input[:end]), 0
            if self._head is None:
                del self._input[: end + 2]
                self._handle(event)
            else:
                head, self._head = self._head, None
                del self._input[:end]
                self._tailer.received(run_of(head, event))

    def _handle(self, event: bytes) -> None:
        fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if not line.startswith(b":"))
        if b"data" not in fields:
            return  # a comment that keeps the connection alive
        kind, data = fields.get(b"event", b""), json.loads(fields[b"data"])
        if kind == b"run":
            self._head = data
        elif kind == b"gap":
            self._tailer.missing(data["first"], data["last"], data.get("stream"))
        elif kind == b"restarted":
            self._tailer.restarted(data["end"], str(data["epoch"]))
        elif kind == b"error":
            self._tailer.not_followed(str(data["error"]))
        elif kind == b"ended":
            self._tailer.ended(data["error"])
