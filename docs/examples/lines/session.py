"""The lines protocol, from bytes to events and back.

    client -> server   "+STREAM PAYLOAD\n"     publish one line
                       "?STREAM AFTER\n"       subscribe, once: send what follows number AFTER
    server -> client   "ok SEQ\n"              the line that was published is on disk, under this number
                       "SEQ SIZE\nPAYLOAD\n"   a record of the stream

    in: bytes that the reactor read      out: events for the server, bytes for the peer

A peer's mistake never raises: the last event is Broken, and what came before it counts.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from fyrehose.errors import Broken, RemoteProtocolError
from fyrehose.records import Run

#: The longest line, in bytes: judged while it comes in, so nobody can make us keep more.
MAX_LINE = 64 << 10


@attrs.frozen(slots=True, kw_only=True)
class Published:
    """A line for a stream."""

    stream: str
    payload: bytes


@attrs.frozen(slots=True, kw_only=True)
class Subscribed:
    """The peer wants what follows number ``after`` in ``stream``."""

    stream: str
    after: int


Event = Published | Subscribed | Broken


@attrs.define
class LineSession:
    """The server's side of one connection."""

    _buffer: bytearray = attrs.field(factory=bytearray, init=False)
    _to_send: list[bytes] = attrs.field(factory=list, init=False)
    _subscriber: bool = attrs.field(default=False, init=False)
    _broken: bool = attrs.field(default=False, init=False)

    commands: ClassVar[dict[int, str]] = {ord("+"): "_published", ord("?"): "_subscribed"}

    @property
    def expected(self) -> int:
        """What the line that is coming in may come to, in bytes; 0 between lines."""
        return MAX_LINE if self._buffer else 0

    @property
    def buffered(self) -> int:
        """How much of that line is in memory, in bytes."""
        return len(self._buffer)

    def receive_data(self, data: bytes) -> list[Event]:
        """The events that ``data`` completes."""
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
        """The peer has finished sending."""
        return [self._break("line-incomplete")] if self._buffer and not self._broken else []

    def send_ok(self, seq: int) -> None:
        """The oldest line that was not answered yet is on disk, under number ``seq``."""
        self._to_send.append(b"ok %d\n" % seq)

    def send_records(self, lines: list[bytes]) -> None:
        """What :func:`encode` made."""
        self._to_send.extend(lines)

    def data_to_send(self) -> list[bytes]:
        """The bytes for the peer; each is handed out once."""
        data, self._to_send = self._to_send, []
        return data

    def _line(self, line: bytes) -> Event:
        if len(line) > MAX_LINE:
            return self._break("line-too-long", f"{len(line)} bytes")
        command = self.commands.get(line[0]) if line else None
        stream, space, rest = line[1:].partition(b" ")
        if command is None or not space:
            return self._break("line-unknown")
        try:
            event: Event = getattr(self, command)(stream.decode(), rest)
        except ValueError:
            return self._break("line-malformed")
        return event

    def _published(self, stream: str, payload: bytes) -> Event:
        return Published(stream=stream, payload=payload)

    def _subscribed(self, stream: str, after: bytes) -> Event:
        if self._subscriber:
            return self._break("subscribed-twice")
        if not after.isdigit():
            raise ValueError(after)
        self._subscriber = True
        return Subscribed(stream=stream, after=int(after))

    def _break(self, cause: str, detail: str = "") -> Broken:
        self._broken = True
        self._buffer.clear()
        return Broken(error=RemoteProtocolError(cause, detail))


def encode(runs: tuple[Run, ...]) -> list[bytes]:
    """Records as the peer gets them.  Done once for all who stand at the same place (see Delivery.encoded)."""
    return [
        b"%d %d\n%b\n" % (seq, len(payload), bytes(payload))
        for run in runs
        for seq, payload in enumerate(run.payloads(), run.first_seq)
    ]
