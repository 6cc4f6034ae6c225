"""The two sides of one connection without I/O: the reader parses frames into events, the writer sends windows.

The reader decides which acknowledgements to send:

    in:  the bytes that the transport read, the number of events that became durable, and timer calls
    out: the events EventRun (columns) and Broken; A frames for the writer

The session works in turns, so that one connection cannot block the reactor.  A turn processes a limited number of bytes
and events.  If ``more_work`` is true after a turn, stop reading, and call :meth:`LumberjackServerSession.next_events`
for the next turn; ``expected`` is the memory in which it inflates.

    data -> buffer -> frames -> columns -> EventRun
               |         ^
               C -> inflated, a slice at a time

After a protocol violation the last event is Broken.  The events before it are valid; the writer sends the rest of its
window again, and them as well.

The writer receives acknowledgements:

    in:  columns of documents, and the bytes that the transport read
    out: W, then C (or plain J frames); the events Acknowledged, KeptAlive and Broken

Sequences start at 1 in every window, as those of Beats do, so an A frame tells how many events of the oldest window are
acknowledged.  A 0 only shows that the reader is alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import ClassVar

import attrs

from fyrehose.errors import Broken, LocalProtocolError, RemoteProtocolError
from fyrehose.inflate import PIECE, SLICE, WHOLE, Inflation, deflated
from fyrehose.kernels import lumberjack as kernel
from fyrehose.protocols.lumberjack.columns import Columns, Route
from fyrehose.protocols.lumberjack.frames import (
    DIGITS,
    LONG,
    MAX_EVENT,
    MAX_FRAME,
    SHORT,
    WRITER_FRAMES,
    Compressed,
    EventRun,
    FrameType,
    PairScanner,
    Window,
    check_version,
    digit,
    json_frames,
    pairs_of,
    too_large,
)
from fyrehose.protocols.lumberjack.windows import Acks, Windows
from fyrehose.records import Buffer
from fyrehose.sessions import ByteSession


@attrs.frozen(kw_only=True)
class LumberjackLimits:
    """Limits of a session.

    :ivar max_frame: largest document in bytes; D frames are also limited to MAX_EVENT
    :ivar kept: how many bytes of a larger document become an event, to be refused alone; 0: it ends the session
    :ivar turn_bytes: limit of a turn in bytes, which is more than one read
    :ivar turn_events: limit of a turn in units of the work for one J frame
    :ivar turn_inflated: limit of a turn in inflated bytes
    :ivar max_windows: number of unacknowledged windows at which the session stops processing
    :ivar topic: the keys that lead to an event's topic; empty: events have no topic
    :ivar fields: the keys that lead to each further string that is found in events, for routes
    """

    max_frame: int = MAX_FRAME
    kept: int = 0
    turn_bytes: int = 1_280 << 10
    turn_events: int = 4_096
    turn_inflated: int = WHOLE + PIECE
    max_windows: int = 1_000
    topic: tuple[bytes, ...] = (b"@metadata", b"beat")
    fields: tuple[tuple[bytes, ...], ...] = ()

    @property
    def max_event(self) -> int:
        """Return the size of the largest document that becomes one record, and of the largest D frame, in bytes."""
        return min(self.max_frame, MAX_EVENT)


ReaderEvent = EventRun | Broken

#: Work of a D frame, which is converted to JSON, and of another run, in units of the work for one J frame (see
#: ``LumberjackLimits.turn_events``).
PAIRS_WORK = 4
RUN_WORK = 16


@attrs.define(eq=False)
class Document:
    """A document that is too large for one record, while its parts arrive.

    :ivar left: number of bytes that are not parsed yet
    :ivar refused: whether it exceeds the limit, so that all of it but the beginning is skipped
    """

    sequence: int
    size: int
    left: int
    refused: bool = False


@attrs.define(eq=False)
class LumberjackServerSession(ByteSession):
    """The reader's state of one connection.

    :ivar expected: memory in bytes until the incomplete frame can be processed, as far as it is known: its size, or for
        a compressed frame the next piece and the inflated data before it; 0 between frames; with ``more_work``, the
        memory of the next turn
    :ivar frames: number of complete frames received
    :ivar more_work: whether received data waits for :meth:`next_events`
    :ivar ending: whether the session reads no further than the end of the open window, because the server stops
    """

    limits: LumberjackLimits = LumberjackLimits()
    ending: bool = attrs.field(default=False, init=False)
    expected: int = attrs.field(default=0, init=False)
    frames: int = attrs.field(default=0, init=False)
    more_work: bool = attrs.field(default=False, init=False)
    _buffer: bytearray = attrs.field(factory=bytearray, init=False)
    _inflation: Inflation | None = attrs.field(default=None, init=False)
    _fields: PairScanner | None = attrs.field(default=None, init=False)
    _document: Document | None = attrs.field(default=None, init=False)
    _windows: Windows = attrs.field(factory=Windows, init=False)
    _columns: Columns = attrs.field(init=False)
    out: list[bytes] = attrs.field(factory=list, init=False)
    _max_event: int = attrs.field(init=False)
    #: the bytes, events and inflated bytes that are left of the limits of the turn, see LumberjackLimits
    _bytes: int = attrs.field(init=False)
    _events: int = attrs.field(init=False)
    _inflated: int = attrs.field(init=False)
    #: the work that one J frame caused in the last scan, including its share of the work for the runs
    _work_each: int = attrs.field(default=4, init=False)
    _free_runs: int = attrs.field(init=False)
    _broken: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._max_event = self.limits.max_event
        self._columns = Columns((self.limits.topic, *self.limits.fields))

    def use(self, route: Route) -> None:
        """Let *route* choose the streams of events, by their topics and the strings at ``LumberjackLimits.fields``."""
        self._columns.route = route

    # Input.

    def receive_data(self, data: bytes) -> list[ReaderEvent]:
        """Return the events that *data* completes within one turn; after Broken always an empty list.

        While :attr:`more_work` is true, *data* is only buffered.
        """
        if self._broken:
            return []
        self._buffer += data
        return [] if self.more_work else self._turn()

    @property
    def more(self) -> bool:
        """Return whether :meth:`next_events` can return events; False while too many windows are unacknowledged."""
        return self.more_work and not self.windows_full

    def next_events(self) -> list[ReaderEvent]:
        """Run another turn, and return its events."""
        return self._turn() if self.more else []

    def receive_eof(self) -> list[ReaderEvent]:
        """Handle the end of the writer's data: drop all buffers."""
        self._buffer.clear()
        self._inflation = self._fields = self._document = None
        self.more_work, self.expected = False, 0
        return []

    @property
    def unfinished(self) -> bool:
        """Return whether the writer has announced a window, and not all of it has arrived, or was handled."""
        window = self._windows.open
        announced = window is not None and window.size is not None
        return announced or self.more_work or self.expected > 0

    @property
    def windows_full(self) -> bool:
        """Return whether so many windows are unacknowledged that :meth:`next_events` does nothing."""
        return len(self._windows.unacknowledged) >= self.limits.max_windows

    @property
    def windows(self) -> tuple[int, int]:
        """Return how many windows have begun, and how many of them are acknowledged."""
        return self._windows.begun, self._windows.begun - len(self._windows.unacknowledged)

    @property
    def buffered(self) -> int:
        """Return how many of the :attr:`expected` bytes are in memory."""
        return len(self._buffer) + (0 if self._inflation is None else self._inflation.held)

    @property
    def version(self) -> int:
        """Return the version of the writer's last frame; 0 before the first one."""
        return self._windows.version

    # Output.

    def durable(self, count: int) -> None:
        """Record that the *count* oldest events are durable, and acknowledge the windows that this completes."""
        self._windows.durable(count)
        self._send(self._windows.acks())

    def keep_alive(self, version: int = 0) -> None:
        """Send an A frame with 0 to a waiting writer of version 2.

        :param version: the version of the writer if no frame of it was parsed yet
        """
        self._send(self._windows.keep_alive_acks(version))

    def acknowledge_silence(self) -> None:
        """Acknowledge the received events to a writer that fell silent within its window."""
        self._send(self._windows.silence_acks())

    @property
    def silence_ack_due(self) -> bool:
        """Return whether :meth:`acknowledge_silence` would send an acknowledgement."""
        return self._windows.silence_ack_due and not self.expected and not self.more_work

    @property
    def ack_pending(self) -> bool:
        """Return whether the writer waits for the acknowledgement of received events."""
        return self._windows.ack_pending

    # Helpers.

    def _send(self, acks: Acks) -> None:
        for version, number in acks:
            self.out.append(SHORT.pack(digit(version), FrameType.ACK, number))

    def _turn(self) -> list[ReaderEvent]:
        self._bytes, self._events = self.limits.turn_bytes, self.limits.turn_events
        self._inflated = self.limits.turn_inflated
        self._free_runs = 1  # every turn makes at least one run, which costs nothing extra
        self.more_work, self.expected = False, 0
        broken: list[ReaderEvent] = []
        try:
            self._work()
        except RemoteProtocolError as error:
            self._broken = True
            self.receive_eof()
            broken = [Broken(error=error)]
        if self.more_work:
            self.expected = max(1, self.buffered, 0 if self._inflation is None else self._inflation.needs)
        unacknowledged = self._windows.unacknowledged
        if unacknowledged and not unacknowledged[0].pending:
            self._send(self._windows.acks())
        return [*self._columns.take(), *broken]

    def _work(self) -> None:
        at, stop = 0, False
        while not stop:
            inflation = self._inflation
            if inflation is None:
                at = self._parse(self._buffer, at, None)
                stop = self._inflation is None
            else:
                at, stop = self._inflate(inflation, at)
        del self._buffer[:at]

    def _inflate(self, inflation: Inflation, at: int) -> tuple[int, bool]:
        """Parse the inflated frames, then inflate more.

        :return: the position of the payload that was not consumed, and whether the turn ends here
        """
        available = len(self._buffer) - at
        if inflation.full or available < inflation.input_needed:
            self._parse_inflated(inflation)
        full = len(self._windows.unacknowledged) >= self.limits.max_windows
        if self._bytes <= 0 or self._events <= 0 or full:
            self.more_work = True
        elif inflation.done:
            return self._finish(inflation, at)
        elif available < inflation.input_needed:
            self.expected = inflation.held + inflation.input_needed
        elif self._inflated <= 0:
            self.more_work = True
        else:
            before = inflation.inflated
            at = inflation.inflate(self._buffer, at, min(self._inflated, SLICE))
            self._inflated -= inflation.inflated - before
            return at, False
        return at, True

    def _parse_inflated(self, inflation: Inflation) -> None:
        data = inflation.data
        used = self._parse(data, 0, inflation)
        inflation.frame_size, self.expected = self.expected, 0
        del data[:used]
        if (
            len(self._windows.unsealed) >= self.limits.max_windows
        ):  # no window can be acknowledged before its compressed frame ends
            raise RemoteProtocolError("too-many-windows", f"{self.limits.max_windows} windows in one compressed frame")

    def _finish(self, inflation: Inflation, at: int) -> tuple[int, bool]:
        """Skip the bytes after the zlib stream; when all have arrived, the windows of the frame are verified."""
        if inflation.unparsed or self._document is not None:
            raise RemoteProtocolError("partial-frame", "a compressed frame ends within a frame")
        at += inflation.skip(len(self._buffer) - at)
        if inflation.left:
            self.expected = min(inflation.left, PIECE)
            return at, True
        self._inflation = None
        self._windows.seal()
        self._spend(0, 1, 1)
        return at, False

    def _parse(self, source: bytearray, at: int, inside: Inflation | None) -> int:
        """Parse frames until the turn ends, a compressed frame begins, or a frame is incomplete.

        :return: the position after the last frame parsed
        """
        end, unacknowledged, most = len(source), self._windows.unacknowledged, self.limits.max_windows
        while (at < end or self._document is not None) and self._inflation is inside:
            if self._bytes <= 0 or self._events <= 0 or len(unacknowledged) >= most:
                self.more_work = True
                break
            before = at
            if self._document is not None:
                at = self._parse_part(self._document, source, at)
                if at == before:
                    break
                continue
            version = DIGITS.get(source[at])
            if version is None:
                raise RemoteProtocolError("bad-version", f"version byte {source[at]:#04x}; expected '1' or '2'")
            if end - at == 1:
                self.expected = SHORT.size
                break
            kind = source[at + 1]
            if kind not in WRITER_FRAMES:
                raise RemoteProtocolError("bad-type", f"frame type {kind:#04x}; expected C, D, J or W")
            if version != self._windows.version and (kind != FrameType.WINDOW or inside is not None):
                self._check_version(version)
            at = self.parsers[kind](self, source, at, version)
            if at == before:
                break
        return at

    def _check_version(self, version: int) -> None:
        """Check that the frame has the version of its window; only the next window may have another one."""
        current = self._windows.version
        if current not in (0, version):
            raise RemoteProtocolError(
                "mixed-versions", f"a frame of version {version} in a window of version {current}"
            )
        self._windows.version = version

    def _parse_json(self, source: bytearray, at: int, version: int) -> int:
        most = min(self._windows.room, max(1, self._events // self._work_each))
        end, count, sequences, last, lengths, payload = kernel.scan(
            source, at, source[at], self._max_event, self._bytes, most
        )
        if not count:
            return self._check_json_length(source, at)
        runs = self._columns.add_json(count, sequences, lengths, payload)
        self._windows.receive(count, last, self._inflation is None)
        work = count + RUN_WORK * max(0, runs - self._free_runs)
        self._free_runs = 0
        self._work_each = work // count
        self._bytes -= end - at
        self._events -= work
        self.frames += count
        return end

    def _parse_data(self, source: bytearray, at: int, version: int) -> int:
        fields = self._fields or PairScanner(self.limits.max_event)
        final = self._inflation is not None and self._inflation.done
        end = fields.advance(source, at, len(source), final=final)
        if not fields.whole:
            self._fields = fields
            self.expected = end - at
            return at
        self._fields = None
        sequence = SHORT.unpack_from(source, at)[2]
        body = bytes(memoryview(source)[at + SHORT.size : end])
        self._columns.add_pairs(sequence, body, pairs_of(body))
        self._windows.receive(1, sequence, self._inflation is None)
        self._spend(end - at, 1, PAIRS_WORK)
        return end

    def _parse_window(self, source: bytearray, at: int, version: int) -> int:
        if len(source) - at < SHORT.size:
            self.expected = SHORT.size
            return at
        if self.ending and self._inflation is None:
            self._windows.finish()
            self._broken = True  # the server stops, and reads no further window
            return len(source)
        self._windows.announce(version, SHORT.unpack_from(source, at)[2], self._inflation is None)
        self._spend(SHORT.size, 1, 1)
        return at + SHORT.size

    def _parse_compressed(self, source: bytearray, at: int, version: int) -> int:
        if self._inflation is not None:
            raise RemoteProtocolError("nested-compression", "a compressed frame within a compressed frame")
        if len(source) - at < SHORT.size:
            self.expected = SHORT.size
            return at
        length: int = SHORT.unpack_from(source, at)[2]
        if length:
            self._inflation = Inflation(length)
        else:
            self._spend(0, 1, 1)
        return at + SHORT.size

    #: the functions that parse a frame at a position, by the type of the frame; each returns where the next frame
    #: begins, or the same position if it is incomplete
    parsers: ClassVar[dict[int, Callable[[LumberjackServerSession, bytearray, int, int], int]]] = {
        FrameType.JSON: _parse_json,
        FrameType.DATA: _parse_data,
        FrameType.WINDOW: _parse_window,
        FrameType.COMPRESSED: _parse_compressed,
    }

    def _check_json_length(self, source: bytearray, at: int) -> int:
        """Check the length of an incomplete J frame; return where parsing continues.

        :return: *at*, or the start of the document if the document is so long that it is divided into several records
        """
        available = len(source) - at
        if available < LONG.size:
            self.expected = LONG.size
            return at
        _, _, sequence, length = LONG.unpack_from(source, at)
        refused = length > self.limits.max_frame
        if refused and not self.limits.kept:
            raise too_large(length, self.limits.max_frame)
        if refused or length > MAX_EVENT:
            self._document = Document(sequence, length, length, refused)
            return at + LONG.size
        self.expected = LONG.size + length
        return at

    def _parse_part(self, document: Document, source: bytearray, at: int) -> int:
        """Parse the next part of a document; return its end, or *at* if it is incomplete."""
        if document.refused:
            return self._skip_part(document, source, at)
        size = min(document.left, MAX_EVENT)
        if len(source) - at < size:
            self.expected = size
            return at
        first, last = document.left == document.size, document.left == size
        payload = bytes(memoryview(source)[at : at + size])
        self._columns.add_part(document.sequence, payload, first=first, last=last)
        self._windows.receive(int(last), document.sequence, self._inflation is None, records=1)
        document.left -= size
        self._document = None if last else document
        self._spend(size, int(last), 1)
        return at + size

    def _skip_part(self, document: Document, source: bytearray, at: int) -> int:
        """Skip bytes of a document that exceeds the limit, and keep its beginning; return the end, as _parse_part."""
        begins, available = document.left == document.size, len(source) - at
        size = min(document.size, self.limits.kept) if begins else min(document.left, available)
        if available < size or not available:
            self.expected = size or min(document.left, PIECE)
            return at
        if begins:
            self._columns.add_refused(document.sequence, bytes(memoryview(source)[at : at + size]), document.size)
        document.left -= size
        last = not document.left
        self._windows.receive(int(last), document.sequence, self._inflation is None, records=int(begins))
        self._document = None if last else document
        self._spend(size, int(last), 1)
        return at + size

    def _spend(self, size: int, frames: int, work: int) -> None:
        self._bytes -= size
        self._events -= work
        self.frames += frames


@attrs.frozen(kw_only=True, slots=True)
class Acknowledged:
    """The reader acknowledged the ``count`` oldest unacknowledged events."""

    count: int


@attrs.frozen(kw_only=True, slots=True)
class KeptAlive:
    """The reader sent an A frame that acknowledges no further events, to show that it is alive."""


WriterEvent = Acknowledged | KeptAlive | Broken


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
        packed = deflated(frames, self.level) if self.level else frames
        if self.level and len(packed) <= MAX_EVENT:
            frames = Compressed(version=self.version, payload=packed).serialize()
        self.out += (Window(version=self.version, number=count).serialize(), frames)
        self._windows.append(_Sent(count))

    def receive_data(self, data: bytes) -> list[WriterEvent]:
        """Return the events that *data* completes; after Broken always an empty list."""
        if self._broken:
            return []
        self._buffer += data
        events: list[WriterEvent] = []
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

    def receive_eof(self) -> list[WriterEvent]:
        """Handle the end of the reader's data: drop an incomplete frame."""
        self._buffer.clear()
        return []

    def _check(self, at: int) -> None:
        if DIGITS.get(self._buffer[at]) is None:
            raise RemoteProtocolError("bad-version", f"version byte {self._buffer[at]:#04x}")
        if len(self._buffer) - at > 1 and self._buffer[at + 1] != FrameType.ACK:
            raise RemoteProtocolError("bad-type", f"frame type {self._buffer[at + 1]:#04x}; expected A")

    def _acknowledged(self, number: int) -> WriterEvent:
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
