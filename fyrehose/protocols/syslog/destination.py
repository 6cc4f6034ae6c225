"""Forward to a syslog server: by RELP, which answers each message, or by TCP and TLS, which acknowledge nothing.

    runs -> messages -> RelpClientSession -> answers -> BatchOutcome
    runs -> messages, their octets counted -> the socket's buffer is empty -> BatchOutcome

A record that is a syslog message is sent as it is, and others as messages of RFC 5424 whose application is the stream.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.internet.protocol import Factory

from fyrehose.forward.destination import DONE, Around, BatchOutcome, BatchSender, Destination, ForwardTable, moment
from fyrehose.net.clients import ClientConnection, ConnectionFailed, ConnectionOptions
from fyrehose.net.several import AnyServer
from fyrehose.protocols.syslog.session import RelpAnswered, RelpClientSession
from fyrehose.records import Run, split
from fyrehose.sessions import ByteSession

_MESSAGE = re.compile(rb"<[0-9]{1,3}>")
_NOT_PRINTABLE = re.compile(r"[^!-~]")


def message(run: Run, payload: bytes) -> bytes:
    """Return *payload*, a record of *run*, as a syslog message (RFC 5424, section 6)."""
    if _MESSAGE.match(payload):
        return payload
    application = _NOT_PRINTABLE.sub("_", run.stream)[:48]
    return f"<13>1 {moment(run.time):%Y-%m-%dT%H:%M:%S.%fZ} - {application} - - - ".encode() + payload


class CountedSession(ByteSession):
    """Messages with counted octets (RFC 6587, section 3.4.1), which nobody answers."""

    def __init__(self) -> None:
        self.out: list[bytes] = []

    def send(self, payloads: Sequence[bytes]) -> None:
        """Send messages."""
        self.out += [b"%d %b" % (len(payload), payload) for payload in payloads]

    def receive_data(self, data: bytes) -> list[Any]:
        """Ignore *data*: a syslog server sends nothing."""
        return []


class _Connection(ClientConnection):
    """One connection, which delivers one batch at a time.

    :ivar left: how many messages of the batch are not confirmed
    :ivar refusal: an answer that is no confirmation
    """

    factory: Any

    def __init__(self, session: RelpClientSession | CountedSession) -> None:
        super().__init__(session, self._handle)
        self.left, self.refusal = 0, b""
        self._done: Deferred[None] | None = None

    def connectionMade(self) -> None:
        super().connectionMade()
        if isinstance(self.session, CountedSession):
            self.transport.registerProducer(self, False)
        self.flush()

    def deliver(self, messages: Sequence[bytes]) -> Deferred[None]:
        """Send *messages*; return what fires at its end: all are confirmed, or the connection is lost."""
        self.left = len(messages)
        self._done = Deferred(lambda _: self.transport.abortConnection())
        self.session.send(messages)
        self.flush()
        return self._done

    def receive(self, data: bytes) -> None:
        """Pass *data* to the session, which may send more messages then."""
        super().receive(data)
        self.flush()

    def resumeProducing(self) -> None:
        """Count the messages as sent, because Twisted has handed everything to the kernel."""
        self.left = 0
        self._end()

    def stopProducing(self) -> None:
        """Do nothing: the connection is lost."""

    def connectionLost(self, reason: Any = None) -> None:
        super().connectionLost(reason)
        self._end()

    def _handle(self, event: RelpAnswered) -> None:
        for answer in event.answers:
            if not answer.startswith(b"200"):
                self.refusal = answer
                self.abort(ConnectionFailed(ValueError(f"the server refuses a message: {answer[:80]!r}")))
                return
            self.left -= 1
        if not self.left:
            self._end()

    def _end(self) -> None:
        done, self._done = self._done, None
        if done is not None and not done.called:
            done.callback(None)


@attrs.define(eq=False, slots=False)
class SyslogSender(BatchSender, Factory):
    """Sends batches over one connection, and connects again with the next batch if it is lost."""

    noisy = False
    paused = False

    table: ForwardTable
    clock: Any
    endpoint: Any
    options: ConnectionOptions = attrs.field(factory=ConnectionOptions)
    connection: _Connection | None = None
    _lost: str = ""

    async def send(self, runs: Sequence[Run]) -> BatchOutcome:
        messages = [message(run, bytes(payload)) for run in runs for payload in run.payloads()]
        try:
            if self.connection is None:
                await self.endpoint.connect(self).addTimeout(self.options.connect_timeout, self.clock)
            connection = self.connection
            assert connection is not None, "it was just made"
            await connection.deliver(messages).addTimeout(self.table.timeout, self.clock)
        except CancelledError:
            raise
        except DeferredTimeout:
            return BatchOutcome(runs, f"no answer within {self.table.timeout:g} s")
        except Exception as error:
            return BatchOutcome(runs, str(ConnectionFailed(error)))
        if not connection.left:
            return DONE
        return BatchOutcome(split(runs, len(messages) - connection.left)[1], self._lost)

    def buildProtocol(self, addr: Any) -> _Connection:
        answers = self.table.to[0].scheme == "relp"
        connection = _Connection(RelpClientSession() if answers else CountedSession())
        connection.factory = self
        return connection

    def connection_made(self, connection: _Connection) -> None:
        """Record that *connection* is open."""
        self.connection = connection

    def connection_lost(self, connection: _Connection, reason: Exception) -> None:
        """Record that *connection* has ended."""
        self.connection, self._lost = None, str(ConnectionFailed(reason))

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


def _sender(table: Any, around: Around) -> SyslogSender:
    return SyslogSender(table, around.reactor, AnyServer(around.endpoints))


relp = Destination(ForwardTable, _sender)
syslog = relp
