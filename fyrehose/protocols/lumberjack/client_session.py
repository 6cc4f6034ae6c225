"""The writer's side of one connection without I/O: sends windows, receives acknowledgements.

    in:  columns of documents, and the bytes that the transport read
    out: W, then C (or plain J frames); the events Acknowledged, KeptAlive and Broken

Sequences start at 1 in every window, as those of Beats do, so an A frame tells how many events of the oldest window are
acknowledged.  A 0 only shows that the reader is alive.
"""

from __future__ import annotations

import zlib
from collections import deque

import attrs

from fyrehose.errors import Broken, LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.lumberjack.frames import (
    DIGITS,
    MAX_EVENT,
    SHORT,
    Compressed,
    FrameType,
    Window,
    check_version,
    json_frames,
)
from fyrehose.records import Buffer
from fyrehose.sessions import ByteSession


@attrs.frozen(kw_only=True, slots=True)
class Acknowledged:
    """The reader acknowledged the ``count`` oldest unacknowledged events."""

    count: int


@attrs.frozen(kw_only=True, slots=True)
class KeptAlive:
    """The reader sent an A frame that acknowledges no further events, to show that it is alive."""


Event = Acknowledged | KeptAlive | Broken


def _level(instance: object, attribute: object, value: int) -> None:
    if not 0 <= value <= 9:
        raise LocalProtocolError(f"compression level must be 0 to 9, not {value}")


@attrs.define
class _Sent:
    count: int
    acknowledged: int = 0


@attrs.define(eq=False)
class LumberjackWriterSession(ByteSession):
    """The writer's state of one connection.

    :ivar version: protocol version, 1 or 2
    :ivar level: zlib level, 0 (none) to 9
    """

    version: int = attrs.field(default=2, validator=check_version)
    level: int = attrs.field(default=3, validator=_level)
    _buffer: bytearray = attrs.field(factory=bytearray, init=False)
    _windows: deque[_Sent] = attrs.field(factory=deque, init=False)
    out: list[bytes] = attrs.field(factory=list, init=False)
    _broken: bool = attrs.field(default=False, init=False)

    @property
    def windows(self) -> int:
        """Return the number of windows that are not completely acknowledged."""
        return len(self._windows)

    @property
    def expected(self) -> int:
        """Return the size of the incomplete A frame in bytes; 0 between frames."""
        return SHORT.size if self._buffer else 0

    def send_window(self, lengths: Buffer, payload: Buffer) -> None:
        """Send documents as one window, compressed if the compressed frames are at most MAX_EVENT bytes.

        :param lengths: the length of each document, as a column of u32, little-endian
        :raises LocalProtocolError: there are no documents, or one is too large
        :raises ValueError: the lengths do not add up to the payload
        """
        count = len(lengths) // 4
        if not count:
            raise LocalProtocolError("a window needs at least one event")
        frames = json_frames(self.version, 1, lengths, payload)
        if max(memoryview(lengths).cast("B").cast("I")) > MAX_EVENT:
            raise LocalProtocolError(f"an event exceeds the limit of {MAX_EVENT} bytes")
        packed = zlib.compress(frames, self.level) if self.level else frames
        if self.level and len(packed) <= MAX_EVENT:
            frames = Compressed(version=self.version, payload=packed).serialize()
        self.out += (Window(version=self.version, number=count).serialize(), frames)
        self._windows.append(_Sent(count))

    def receive_data(self, data: bytes) -> list[Event]:
        """Return the events that *data* completes; after Broken always an empty list."""
        if self._broken:
            return []
        self._buffer += data
        events: list[Event] = []
        at = 0
        try:
            while at < len(self._buffer):
                self._check(at)
                if len(self._buffer) - at < SHORT.size:
                    break
                events.append(self._acknowledged(SHORT.unpack_from(self._buffer, at)[2]))
                at += SHORT.size
        except RemoteProtocolError as error:
            self._broken = True
            events.append(Broken(error=error))
        del self._buffer[:at]
        return events

    def receive_eof(self) -> list[Event]:
        """Handle the end of the reader's data: drop an incomplete frame."""
        self._buffer.clear()
        return []

    def _check(self, at: int) -> None:
        if DIGITS.get(self._buffer[at]) is None:
            raise RemoteProtocolError("bad-version", f"version byte {self._buffer[at]:#04x}")
        if len(self._buffer) - at > 1 and self._buffer[at + 1] != FrameType.ACK:
            raise RemoteProtocolError("bad-type", f"frame type {self._buffer[at + 1]:#04x}; expected A")

    def _acknowledged(self, number: int) -> Event:
        if not number:
            return KeptAlive()
        if not self._windows:
            raise RemoteProtocolError("acknowledges-nothing", f"A {number}, but all windows are acknowledged")
        window = self._windows[0]
        if number > window.count:
            raise RemoteProtocolError("acknowledges-too-much", f"A {number}, but the window has {window.count} events")
        count = number - window.acknowledged
        if count <= 0:
            return KeptAlive()
        window.acknowledged = number
        if number == window.count:
            self._windows.popleft()
        return Acknowledged(count=count)
