"""The writer's side of one connection: windows out, acknowledgements in; no sockets, no clock.

    in:  columns of documents, and bytes that the transport read
    out: W, then C (or plain J frames); Acknowledged, KeptAlive, Broken

Sequences begin at 1 in every window, as Beats have it, so an acknowledgement says how many events of the oldest window
are stored.  0 asks for patience.
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
    VERSIONS,
    Compressed,
    FrameType,
    Window,
    json_frames,
)
from fyrehose.records import Buffer


@attrs.frozen(kw_only=True, slots=True)
class Acknowledged:
    """The ``count`` oldest events that were not acknowledged are."""

    count: int


@attrs.frozen(kw_only=True, slots=True)
class KeptAlive:
    """The reader lives, and asks for patience."""


Event = Acknowledged | KeptAlive | Broken


def _level(instance: object, attribute: object, value: int) -> None:
    if not 0 <= value <= 9:
        raise LocalProtocolError(f"a level of compression is 0 to 9, not {value}")


def _version(instance: object, attribute: object, value: int) -> None:
    if value not in VERSIONS:
        raise LocalProtocolError(f"there is no version {value}")


@attrs.define
class _Sent:
    count: int
    acknowledged: int = 0


@attrs.define(eq=False)
class LumberjackWriterSession:
    """What a writer knows of one reader.

    :ivar version: 1 or 2
    :ivar level: of compression; 0: none
    """

    version: int = attrs.field(default=2, validator=_version)
    level: int = attrs.field(default=3, validator=_level)
    _buffer: bytearray = attrs.field(factory=bytearray, init=False)
    _windows: deque[_Sent] = attrs.field(factory=deque, init=False)
    _out: list[bytes] = attrs.field(factory=list, init=False)
    _broken: bool = attrs.field(default=False, init=False)

    @property
    def windows(self) -> int:
        """How many windows are not wholly acknowledged."""
        return len(self._windows)

    @property
    def expected(self) -> int:
        """The size of the acknowledgement that is coming in; 0 between two."""
        return SHORT.size if self._buffer else 0

    def send_window(self, lengths: Buffer, payload: Buffer) -> None:
        """Send documents as one window: compressed, if that fits into a frame.

        :raises LocalProtocolError: there are none, or one of them is too large
        :raises ValueError: the lengths do not add up to the payload
        """
        count = len(lengths) // 4
        if not count:
            raise LocalProtocolError("a window without events")
        frames = json_frames(self.version, 1, lengths, payload)
        if max(memoryview(lengths).cast("B").cast("I")) > MAX_EVENT:
            raise LocalProtocolError(f"an event has {MAX_EVENT} bytes at the most")
        packed = zlib.compress(frames, self.level) if self.level else frames
        if self.level and len(packed) <= MAX_EVENT:
            frames = Compressed(version=self.version, payload=packed).serialize()
        self._out += (Window(version=self.version, number=count).serialize(), frames)
        self._windows.append(_Sent(count))

    def receive_data(self, data: bytes) -> list[Event]:
        """The events that ``data`` completes; nothing more after Broken."""
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
        """The reader sends nothing more."""
        self._buffer.clear()
        return []

    def data_to_send(self) -> list[bytes]:
        """What is to be written, once."""
        out, self._out = self._out, []
        return out

    def _check(self, at: int) -> None:
        if DIGITS.get(self._buffer[at]) is None:
            raise RemoteProtocolError("bad-version", f"{self._buffer[at]:#04x}")
        if len(self._buffer) - at > 1 and self._buffer[at + 1] != FrameType.ACK:
            raise RemoteProtocolError("bad-type", f"{self._buffer[at + 1]:#04x}")

    def _acknowledged(self, number: int) -> Event:
        if not number:
            return KeptAlive()
        if not self._windows:
            raise RemoteProtocolError("acknowledges-nothing", f"{number}, and nothing was sent")
        window = self._windows[0]
        if number > window.count:
            raise RemoteProtocolError("acknowledges-too-much", f"{number} of {window.count}")
        count = number - window.acknowledged
        if count <= 0:
            return KeptAlive()
        window.acknowledged = number
        if number == window.count:
            self._windows.popleft()
        return Acknowledged(count=count)
