"""Blocking publisher: send records to streams of a running server by Figg (docs/protocols/figg.md).

A Spark executor has no reactor, so this drives Figg's session without I/O by a blocking socket, with a window of
unacknowledged messages, and a timeout.  The session imports no module of the server.

    publish(stream, payload) -> session -> socket; flush() returns when the server has acknowledged all messages, which
    means that they are on its disk
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable

import attrs

from fyrehose.errors import Broken, ConfigError, InvalidName, PayloadTooLarge, PublishError
from fyrehose.protocols.figg.frames import Ack, PublishRun
from fyrehose.protocols.figg.session import FiggClientSession
from fyrehose.records import MAX_NAME, MAX_PAYLOAD, Buffer, column_of

#: Limits of the unacknowledged messages: their number, and their size in bytes.
WINDOW = 10_000
WINDOW_BYTES = 8 << 20
#: Timeout of an acknowledgement, in seconds, and how many failed connections in a row are an error.
PATIENCE = 30.0
TRIES = 5
#: Size of one send, in bytes.
_SEND = 64 << 10
#: Size of a PUBLISH frame without its topic and data, in bytes.
_HEAD = 24


@attrs.define(eq=False)
class SparkPublisher:
    """A publisher to one server, whose messages are delivered at least once and in order.

    :ivar first: the number of the first message; a caller that runs again must pass the same number, so that duplicates
        can be found (jobs/dedup.py)
    :ivar rate: the limit of messages a second; 0: no limit
    :ivar patience: timeout of an acknowledgement, in seconds
    :ivar window_bytes: limit of the unacknowledged messages, in bytes
    :ivar seconds: the monotonic clock
    :ivar sleep: waits for so many seconds
    """

    host: str
    port: int
    first: int = 1
    rate: float = 0.0
    patience: float = PATIENCE
    window_bytes: int = WINDOW_BYTES
    seconds: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    acknowledged: int = attrs.field(default=0, init=False)
    _next: int = attrs.field(init=False)
    #: the messages that are not part of a run yet, all of one stream
    _stream: str | None = attrs.field(default=None, init=False)
    _payloads: list[Buffer] = attrs.field(factory=list, init=False)
    #: the unacknowledged runs, and the bytes of all unacknowledged messages
    _pending: deque[PublishRun] = attrs.field(factory=deque, init=False)
    _pending_bytes: int = attrs.field(default=0, init=False)
    _unsent_bytes: int = attrs.field(default=0, init=False)
    _socket: socket.socket | None = attrs.field(default=None, init=False)
    _session: FiggClientSession = attrs.field(factory=FiggClientSession, init=False)
    _began: float = attrs.field(init=False)
    _failures: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._next, self._began = self.first, self.seconds()

    def publish(self, stream: str, payload: Buffer) -> None:
        """Publish one message; blocks while the window is full.

        :raises InvalidName: the stream's name is empty or too long
        :raises PayloadTooLarge: the payload exceeds the limit of a message
        :raises PublishError: the server cannot be reached, does not answer, or refuses
        """
        if stream != self._stream:
            encoded_name(stream)
            self._send_run()
            self._stream = stream
        size = len(payload)
        if size > MAX_PAYLOAD:
            raise PayloadTooLarge(f"payload of {size} bytes exceeds the limit of {MAX_PAYLOAD} bytes")
        pace(self._began, self._next - self.first, self.rate, self.seconds, self.sleep)
        self._payloads.append(payload)
        self._next += 1
        self._pending_bytes += size
        self._unsent_bytes += size + _HEAD
        if self._unsent_bytes >= _SEND or self.rate:
            self._exchange(wait=False)
        while self._unacknowledged >= WINDOW or self._pending_bytes >= self.window_bytes:
            self._exchange(wait=True)

    def flush(self) -> None:
        """Block until every message is acknowledged.

        :raises PublishError: the server stopped acknowledging; the message has the counts
        """
        while self._unacknowledged:
            self._exchange(wait=True)

    def close(self) -> None:
        """Close the connection; messages without acknowledgement may or may not be published."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def _unacknowledged(self) -> int:
        return self._next - self.first - self.acknowledged

    def _send_run(self) -> None:
        """Pass the messages that are not part of a run yet to the session, as one run."""
        if self._stream is not None and self._payloads:
            first, column = self._next - len(self._payloads), column_of(self._payloads)
            self._payloads = []
            run = PublishRun(topic=self._stream, first=first, lengths=column.lengths, payload=column.payload)
            self._pending.append(run)
            self._session.send(run)

    def _exchange(self, wait: bool) -> None:
        """Send the unsent frames and process received ones; with ``wait``, block until one acknowledges a message."""
        try:
            if self._socket is None:
                self._connect()
            assert self._socket is not None
            self._send_run()
            self._unsent_bytes = 0
            self._socket.sendall(b"".join(self._session.data_to_send()))
            before = self.acknowledged
            while True:
                self._socket.settimeout(self.patience if wait else 0.0)
                try:
                    data = self._socket.recv(1 << 16)
                except BlockingIOError:
                    return
                finally:
                    self._socket.settimeout(self.patience)
                if not data:
                    raise ConnectionError("the server closed the connection")
                self._take(data)
                wait = wait and self.acknowledged == before
                if self.acknowledged > before:
                    self._failures = 0
        except OSError as error:
            self._failed(error)

    def _connect(self) -> None:
        self._socket = socket.create_connection((self.host, self.port), timeout=self.patience)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._session = FiggClientSession()
        for message in self._pending:
            self._session.send(message)

    def _failed(self, error: OSError) -> None:
        self.close()
        self._failures += 1
        if self._failures >= TRIES:
            reason = f"no answer within {self.patience:g} s" if isinstance(error, TimeoutError) else str(error)
            raise PublishError(
                f"publishing to {self.host}:{self.port} failed: {reason}; {self.acknowledged} messages are "
                f"acknowledged and {self._unacknowledged} are not"
            ) from error
        self.sleep(min(5.0, 0.1 * 2**self._failures))

    def _take(self, data: bytes) -> None:
        for event in self._session.receive_data(data):
            if isinstance(event, Broken):
                raise ConnectionError(f"the server does not speak Figg ({event.error})")
            if isinstance(event, Ack):
                self._acknowledged(event.number)

    def _acknowledged(self, number: int) -> None:
        while self._pending and self._pending[0].first <= number:
            run = self._pending.popleft()
            count = min(number - run.first + 1, len(run))
            left = run.part(count, len(run))
            self._pending_bytes -= len(run.payload) - len(left.payload)
            self.acknowledged += count
            if count < len(run):
                self._pending.appendleft(
                    attrs.evolve(run, first=number + 1, lengths=left.lengths, payload=left.payload)
                )


def encoded_name(stream: str) -> bytes:
    """Return the name of a stream as bytes.

    :raises InvalidName: it is empty or too long
    """
    name = stream.encode()
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidName(f"invalid stream {stream[:80]!r}: a name has 1 to {MAX_NAME} bytes")
    return name


def pace(
    began: float,
    count: int,
    rate: float,
    seconds: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Sleep until *count* messages may have been published at a rate since *began*; a rate of 0 is no limit."""
    if rate and (early := began + count / rate - seconds()) > 0:
        sleep(early)


def parse_place(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT`` of a server's Figg listener.

    :raises ConfigError: the text is not ``HOST:PORT``
    """
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"invalid address {text!r}: expected HOST:PORT of a Figg listener, such as 127.0.0.1:8119")
    return host.strip("[]"), int(port)
