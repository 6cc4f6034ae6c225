"""The session of the lines protocol: bytes to events, and calls to bytes.

    client -> server   "+STREAM PAYLOAD\n"     publish one line
                       "?STREAM AFTER\n"       subscribe, once: send what follows number AFTER; new: what comes
    server -> client   "ok SEQ\n"              the published line is on disk, with this number
                       "SEQ SIZE\nPAYLOAD\n"   a record of the stream

    in: bytes that the reactor read      out: events for the server, bytes for the peer

The session never raises for a mistake of the peer: the last event is Broken, and the events before it are valid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import attrs

from fyrehose.errors import Broken, RemoteProtocolError
from fyrehose.records import Run
from fyrehose.sessions import ByteSession

#: The longest line, in bytes; checked while it arrives, so that a peer cannot make the session keep more.
MAX_LINE = 64 << 10
#: What a client asks for that wants no earlier records.
NEW = b"new"


@attrs.frozen(slots=True, kw_only=True)
class Published:
    """The peer publishes a line to a stream."""

    stream: str
    payload: bytes


@attrs.frozen(slots=True, kw_only=True)
class Subscribed:
    """The peer subscribes to the records after number ``after`` of ``stream``; None: to those that come."""

    stream: str
    after: int | None


Event = Published | Subscribed | Broken


@attrs.define
class LineSession(ByteSession):
    """The server's session of one connection."""

    _buffer: bytearray = attrs.field(factory=bytearray, init=False)
    out: list[bytes] = attrs.field(factory=list, init=False)
    _subscriber: bool = attrs.field(default=False, init=False)
    _broken: bool = attrs.field(default=False, init=False)

    @property
    def expected(self) -> int:
        """Return the largest size of the line that is arriving, in bytes; 0 between lines."""
        return MAX_LINE if self._buffer else 0

    @property
    def buffered(self) -> int:
        """Return how much of that line is in memory, in bytes."""
        return len(self._buffer)

    def receive_data(self, data: bytes) -> list[Event]:
        """Return the events that *data* completes."""
        if self._broken:
            return []
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = rest
        events: list[Event] = []
        for line in lines:
            events.append(self._line(bytes(line)))
            if self._broken:
                return events
        if len(rest) > MAX_LINE:
            events.append(self._break("line-too-long", f"more than {MAX_LINE} bytes"))
        return events

    def receive_eof(self) -> list[Event]:
        """Return Broken if the peer finished sending in the middle of a line."""
        return [self._break("line-incomplete")] if self._buffer and not self._broken else []

    def send_ok(self, seq: int) -> None:
        """Acknowledge the oldest line that is not acknowledged yet: it is on disk, with number *seq*."""
        self.out.append(b"ok %d\n" % seq)

    def send_records(self, lines: list[bytes]) -> None:
        """Send records that :func:`encode` has serialized."""
        self.out.extend(lines)

    def _line(self, line: bytes) -> Event:
        if len(line) > MAX_LINE:
            return self._break("line-too-long", f"{len(line)} bytes")
        command = self.commands.get(line[0]) if line else None
        stream, space, rest = line[1:].partition(b" ")
        if command is None or not space:
            return self._break("line-unknown")
        try:
            return command(self, stream.decode(), rest)
        except ValueError:
            return self._break("line-malformed")

    def _published(self, stream: str, payload: bytes) -> Event:
        return Published(stream=stream, payload=payload)

    def _subscribed(self, stream: str, after: bytes) -> Event:
        if self._subscriber:
            return self._break("subscribed-twice")
        if not after.isdigit() and after != NEW:
            raise ValueError(after)
        self._subscriber = True
        return Subscribed(stream=stream, after=None if after == NEW else int(after))

    commands: ClassVar[dict[int, Callable[[LineSession, str, bytes], Event]]] = {
        ord("+"): _published,
        ord("?"): _subscribed,
    }

    def _break(self, cause: str, detail: str = "") -> Broken:
        self._broken = True
        self._buffer.clear()
        return Broken(error=RemoteProtocolError(cause, detail))


def encode(runs: tuple[Run, ...]) -> list[bytes]:
    """Serialize records; called once for all subscribers at the same position (see Delivery.encoded)."""
    return [
        b"%d %d\n%b\n" % (seq, len(payload), bytes(payload))
        for run in runs
        for seq, payload in enumerate(run.payloads(), run.first_seq)
    ]


@attrs.frozen(slots=True, kw_only=True)
class Stored:
    """The oldest line that was not acknowledged yet is on disk, with number ``seq``."""

    seq: int


@attrs.frozen(slots=True, kw_only=True)
class Received:
    """A record of the stream."""

    seq: int
    payload: bytes


@attrs.define
class LineClientSession(ByteSession):
    """The client's session of one connection."""

    _buffer: bytearray = attrs.field(factory=bytearray, init=False)
    out: list[bytes] = attrs.field(factory=list, init=False)
    _broken: bool = attrs.field(default=False, init=False)

    @property
    def expected(self) -> int:
        """Return how much of an incomplete record has arrived, in bytes: its size is that of a stream's records."""
        return len(self._buffer)

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    def receive_data(self, data: bytes) -> list[Stored | Received | Broken]:
        """Return the events that *data* completes."""
        events: list[Stored | Received | Broken] = []
        self._buffer += data
        while not self._broken and (event := self._next()) is not None:
            events.append(event)
        return events

    def _next(self) -> Stored | Received | Broken | None:
        """Return the next event, and remove its bytes; None: it is incomplete."""
        head, newline, _ = self._buffer.partition(b"\n")
        word, _, number = head.partition(b" ")
        if newline and number.isdigit() and (word == b"ok" or word.isdigit()):
            begin = end = len(head) + 1
            if word == b"ok":
                event: Stored | Received = Stored(seq=int(number))
            else:
                end += int(number) + 1
                if len(self._buffer) < end:
                    return None
                event = Received(seq=int(word), payload=bytes(self._buffer[begin : end - 1]))
            del self._buffer[:end]
            return event
        if not newline and len(head) <= 40:
            return None
        self._broken = True
        self._buffer.clear()
        return Broken(error=RemoteProtocolError("line-unknown"))

    def receive_eof(self) -> list[Stored | Received | Broken]:
        """Return Broken if the server finished sending in the middle of a record."""
        incomplete = bool(self._buffer) and not self._broken
        return [Broken(error=RemoteProtocolError("line-incomplete"))] if incomplete else []

    def send_line(self, stream: str, payload: bytes) -> None:
        """Publish *payload*, which has no line feed."""
        self.out.append(b"+%b %b\n" % (stream.encode(), payload))

    def send_subscribe(self, stream: str, after: int | None) -> None:
        """Subscribe to the records after number *after*; None: to those that come."""
        self.out.append(b"?%b %b\n" % (stream.encode(), NEW if after is None else b"%d" % after))
