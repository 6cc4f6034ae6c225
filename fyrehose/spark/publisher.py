"""Blocking publisher: send records to streams of a running server by Figg (docs/protocols/figg.md).

A Spark executor has no reactor, so this uses a blocking socket, a window of unacknowledged messages, and a timeout.
It implements only the part of Figg that publishing needs, so that it imports no module of the server.

    in: (stream, payload)      out: PUBLISH frames; returns when the server has acknowledged, which means on its disk

     0        2          4                8
    | type u16 | version 1 | size u32 | payload      all in network byte order
    PUBLISH (5)   topic: u32 and its bytes | seq_num u64 | data: u32 and its bytes
    ACK (6)       seq_num u64: this message and all before it
    PING (8), PONG (9)   a stamp u64 that goes back as it came
"""

from __future__ import annotations

import socket
import time
from collections import deque
from struct import Struct

import attrs

from fyrehose.errors import ConfigError, InvalidName, PayloadTooLarge, PublishError
from fyrehose.records import MAX_NAME, MAX_PAYLOAD, Buffer

_HEADER = Struct(">HHI")
_NUMBER = Struct(">Q")
_SIZE = Struct(">I")
_VERSION, _PUBLISH, _ACK, _PING, _PONG = 1, 5, 6, 8, 9
#: Largest frame that is accepted from the server, in bytes; ACK and PING are much smaller.
_LARGEST = 1024

#: Limits of the unacknowledged messages: their number, and their size in bytes.
WINDOW = 10_000
WINDOW_BYTES = 8 << 20
#: Timeout of an acknowledgement, in seconds, and how many failed connections in a row are an error.
PATIENCE = 30.0
TRIES = 5
#: Size of one send, in bytes.
_SEND = 64 << 10


@attrs.define(eq=False)
class SparkPublisher:
    """A publisher to one server, whose messages are delivered at least once and in order.

    :ivar first: the number of the first message; a caller that runs again must pass the same number, so that duplicates
        can be found (jobs/dedup.py)
    :ivar rate: the limit of messages a second; 0: no limit
    :ivar patience: timeout of an acknowledgement, in seconds
    """

    host: str
    port: int
    first: int = 1
    rate: float = 0.0
    patience: float = PATIENCE
    acknowledged: int = attrs.field(default=0, init=False)
    _next: int = attrs.field(init=False)
    _pending: deque[tuple[int, bytes]] = attrs.field(factory=deque, init=False)
    _pending_bytes: int = attrs.field(default=0, init=False)
    _unsent: list[bytes] = attrs.field(factory=list, init=False)
    _unsent_bytes: int = attrs.field(default=0, init=False)
    _socket: socket.socket | None = attrs.field(default=None, init=False)
    _received: bytearray = attrs.field(factory=bytearray, init=False)
    _began: float = attrs.field(factory=time.monotonic, init=False)
    _failures: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._next = self.first

    def publish(self, stream: str, payload: Buffer) -> None:
        """Publish one message; blocks while the window is full.

        :raises InvalidName: the stream's name is empty or too long
        :raises PayloadTooLarge: the payload exceeds the limit of a message
        :raises PublishError: the server cannot be reached, does not answer, or refuses
        """
        topic = encoded_name(stream)
        if len(payload) > MAX_PAYLOAD:
            raise PayloadTooLarge(f"payload of {len(payload)} bytes exceeds the limit of {MAX_PAYLOAD} bytes")
        size = len(topic) + len(payload) + 2 * _SIZE.size + _NUMBER.size
        frame = b"".join(
            (
                _HEADER.pack(_PUBLISH, _VERSION, size),
                _SIZE.pack(len(topic)),
                topic,
                _NUMBER.pack(self._next),
                _SIZE.pack(len(payload)),
                payload,
            )
        )
        pace(self._began, self._next - self.first, self.rate)
        self._pending.append((self._next, frame))
        self._pending_bytes += len(frame)
        self._next += 1
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)
        if self._unsent_bytes >= _SEND or self.rate:
            self._exchange(wait=False)
        while len(self._pending) >= WINDOW or self._pending_bytes >= WINDOW_BYTES:
            self._exchange(wait=True)

    def flush(self) -> None:
        """Block until every message is acknowledged.

        :raises PublishError: the server stopped acknowledging; the message has the counts
        """
        while self._pending:
            self._exchange(wait=True)

    def close(self) -> None:
        """Close the connection; messages without acknowledgement may or may not be published."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _exchange(self, wait: bool) -> None:
        """Send the unsent frames and process received ones; with ``wait``, block until one acknowledges a message."""
        try:
            if self._socket is None:
                self._connect()
            assert self._socket is not None
            if self._unsent:
                data, self._unsent, self._unsent_bytes = b"".join(self._unsent), [], 0
                self._socket.sendall(data)
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
        self._received.clear()
        self._unsent = [frame for _, frame in self._pending]
        self._unsent_bytes = self._pending_bytes

    def _failed(self, error: OSError) -> None:
        self.close()
        self._failures += 1
        if self._failures >= TRIES:
            reason = f"no answer within {self.patience:g} s" if isinstance(error, TimeoutError) else str(error)
            raise PublishError(
                f"publishing to {self.host}:{self.port} failed: {reason}; {self.acknowledged} messages are "
                f"acknowledged and {len(self._pending)} are not"
            ) from error
        time.sleep(min(5.0, 0.1 * 2**self._failures))

    def _take(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _HEADER.size:
            kind, version, size = _HEADER.unpack_from(self._received)
            if version != _VERSION or size > _LARGEST:
                raise ConnectionError("the server does not speak Figg")
            end = _HEADER.size + size
            if len(self._received) < end:
                break
            body = bytes(self._received[_HEADER.size : end])
            del self._received[:end]
            if kind == _ACK and size == _NUMBER.size:
                self._acked(_NUMBER.unpack(body)[0])
            elif kind == _PING:
                assert self._socket is not None
                self._socket.sendall(_HEADER.pack(_PONG, _VERSION, size) + body)

    def _acked(self, number: int) -> None:
        while self._pending and self._pending[0][0] <= number:
            self._pending_bytes -= len(self._pending.popleft()[1])
            self.acknowledged += 1


def encoded_name(stream: str) -> bytes:
    """Return the name of a stream as bytes.

    :raises InvalidName: it is empty or too long
    """
    name = stream.encode()
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidName(f"invalid stream {stream[:80]!r}: a name has 1 to {MAX_NAME} bytes")
    return name


def pace(began: float, count: int, rate: float) -> None:
    """Sleep until *count* messages may have been published at a rate since *began*; a rate of 0 is no limit."""
    if rate and (early := began + count / rate - time.monotonic()) > 0:
        time.sleep(early)


def parse_place(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT`` of a server's Figg listener.

    :raises ConfigError: the text is not ``HOST:PORT``
    """
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"invalid address {text!r}: expected HOST:PORT of a Figg listener, such as 127.0.0.1:8119")
    return host.strip("[]"), int(port)
