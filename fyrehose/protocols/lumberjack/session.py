"""The reader's side of one connection, from bytes to events and acknowledgements: no sockets, no clock.

    in:  bytes that the transport read, how much has become durable, and that time has passed
    out: EventRun (columns) and Broken; and A frames for the writer

Work comes in turns, so that nobody holds the reactor up: a turn takes so many bytes or events, and ``more_work`` says
that there is more, which :meth:`LumberjackServerSession.go_on` does.  Only that inflates, and ``needs`` says beforehand
how much it may have to hold, so that its caller can see to the memory first.  While there is more work, read nothing
more.

    data -> buffer -> frames -> columns -> EventRun
               |         ^
               C -> inflated, a slice at a time

A writer's offence ends the session with one last event, Broken.  What came before it counts, but a window of which a
part came in the compressed frame that was wrong is never acknowledged.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from fyrehose.errors import Broken, RemoteProtocolError
from fyrehose.kernels import lumberjack as kernel
from fyrehose.protocols.lumberjack.columns import Columns
from fyrehose.protocols.lumberjack.frames import (
    DIGITS,
    LONG,
    MAX_EVENT,
    MAX_FRAME,
    SHORT,
    WRITER_FRAMES,
    Ack,
    EventRun,
    Fields,
    FrameType,
    digit,
    pairs_of,
    too_large,
)
from fyrehose.protocols.lumberjack.inflate import PIECE, Inflation
from fyrehose.protocols.lumberjack.windows import Windows

Event = EventRun | Broken

#: What one compressed frame may come to, in bytes: 2,048 events of 512 KiB.
MAX_INFLATED = 1 << 30
#: A D frame, which becomes JSON, is as much work as so many documents; so is every run, on its way to the disk.
PAIRS_WORK = 4
RUN_WORK = 16


@attrs.frozen(kw_only=True)
class Limits:
    """What a session takes.

    :ivar max_frame: the largest document and the largest compressed frame, in bytes; a D frame has at most MAX_EVENT
        whatever this says
    :ivar max_inflated: what one compressed frame may come to, in bytes
    :ivar turn_bytes: what a turn takes, in bytes: more than is read at once
    :ivar turn_events: and in events of JSON, or what is as much work
    :ivar turn_inflated: and what it inflates, in bytes
    :ivar max_windows: how many windows may be unacknowledged before the session waits
    :ivar topic: where the topic of an event is: the keys that lead to it; none: events have no topic
    :ivar topic_bytes: in how much of an event it is looked for
    """

    max_frame: int = MAX_FRAME
    max_inflated: int = MAX_INFLATED
    turn_bytes: int = 1_280 << 10
    turn_events: int = 4_096
    turn_inflated: int = 256 << 10
    max_windows: int = 1_000
    topic: tuple[bytes, ...] = (b"@metadata", b"beat")
    topic_bytes: int = 4 << 10

    @property
    def max_event(self) -> int:
        """The largest document that becomes one record, and the largest D frame, in bytes."""
        return min(self.max_frame, MAX_EVENT)


@attrs.define(eq=False)
class Document:
    """A document that is larger than a record may be, on its way.

    :ivar left: how many bytes of it were not taken yet
    """

    sequence: int
    size: int
    left: int


@attrs.define(eq=False)
class LumberjackServerSession:
    """What a reader knows of one writer.

    :ivar expected: how much has to be held until the frame that is coming in can be used, in bytes, as far as it is
        known: its size, or for a compressed one the next piece and what was inflated before it; 0 between frames
    :ivar frames: how many whole frames came in
    """

    #: what takes a frame that begins at a position: where the next one begins, or the same position if it is not whole
    takers: ClassVar[dict[int, str]] = {
        FrameType.JSON: "_take_json",
        FrameType.DATA: "_take_data",
        FrameType.WINDOW: "_take_window",
        FrameType.COMPRESSED: "_take_compressed",
    }

    limits: Limits = Limits()
    expected: int = attrs.field(default=0, init=False)
    frames: int = attrs.field(default=0, init=False)
    _buffer: bytearray = attrs.field(factory=bytearray, init=False)
    _inflation: Inflation | None = attrs.field(default=None, init=False)
    _fields: Fields | None = attrs.field(default=None, init=False)
    _document: Document | None = attrs.field(default=None, init=False)
    _windows: Windows = attrs.field(factory=Windows, init=False)
    _columns: Columns = attrs.field(init=False)
    _out: list[bytes] = attrs.field(factory=list, init=False)
    #: what is left of this turn, see Limits
    _bytes: int = attrs.field(init=False)
    _events: int = attrs.field(init=False)
    _inflated: int = attrs.field(init=False)
    #: how much work a document was lately, with its share of a run
    _work_each: int = attrs.field(default=4, init=False)
    _runs_free: int = attrs.field(init=False)
    _more: bool = attrs.field(default=False, init=False)
    _broken: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._columns = Columns(self.limits.topic, self.limits.topic_bytes)

    # What comes in.

    def receive_data(self, data: bytes) -> list[Event]:
        """The events that ``data`` completes, as far as a turn goes; nothing after Broken.

        While there is work left, ``data`` is only kept.
        """
        if self._broken:
            return []
        self._buffer += data
        return [] if self.more_work else self._turn(0)

    def postpone(self) -> None:
        """Only keep what comes in from now on, until :meth:`go_on`."""
        if not self._broken:
            self._more = True
            self.expected = 0

    def go_on(self, granted: int) -> list[Event]:
        """The events of another turn, which inflates only while :attr:`needs` is ``granted`` bytes at the most."""
        return [] if self._broken else self._turn(granted)

    def receive_eof(self) -> list[Event]:
        """The writer has finished sending; what is left of what it sent is forgotten."""
        self._buffer.clear()
        self._inflation = self._fields = self._document = None
        self._more = False
        self.expected = 0
        return []

    @property
    def more_work(self) -> bool:
        """Whether something that came in waits for :meth:`go_on`."""
        return self._more and not self._broken

    @property
    def crowded(self) -> bool:
        """Whether so many windows are unacknowledged that :meth:`go_on` does nothing."""
        return len(self._windows) >= self.limits.max_windows

    @property
    def buffered(self) -> int:
        """How much of :attr:`expected` is in memory, in bytes."""
        return len(self._buffer) + (0 if self._inflation is None else self._inflation.held)

    @property
    def needs(self) -> int:
        """Inflated bytes that :meth:`go_on` may have to hold before it can publish any of them."""
        return 0 if self._inflation is None or not self._more else self._inflation.needs

    @property
    def held(self) -> int:
        """Bytes that wait for :meth:`go_on`."""
        return self.buffered if self._more else 0

    @property
    def version(self) -> int:
        """The writer's, by its last frame; 0 before the first."""
        return self._windows.version

    # What goes out.

    def durable(self, count: int) -> None:
        """The ``count`` oldest events are durable: what may be acknowledged now, is."""
        self._windows.durable(count)
        self._send(self._windows.acks())

    def keep_alive(self) -> None:
        """A writer of version 2 has waited for long: say how far we are, or that we live."""
        self._send(self._windows.alive())

    def acknowledge_part(self) -> None:
        """Acknowledge to a writer of version 2 what is durable of a window that is not."""
        self._send(self._windows.partial())

    def acknowledge_idle(self) -> None:
        """Acknowledge to a writer of version 1, which has fallen silent in mid-window, what it has sent."""
        self._send(self._windows.idle())

    @property
    def idle_due(self) -> bool:
        """Whether :meth:`acknowledge_idle` would say something."""
        return self._windows.idle_due and not self.expected and not self._more

    @property
    def waits(self) -> bool:
        """Whether the writer waits for an acknowledgement of something that it has sent."""
        return self._windows.waits

    @property
    def speaks(self) -> bool:
        """Whether there is something to be written."""
        return bool(self._out)

    def data_to_send(self) -> list[bytes]:
        """What is to be written, once."""
        out, self._out = self._out, []
        return out

    # Inside.

    def _send(self, acks: list[Ack]) -> None:
        if acks:
            self._out.append(b"".join(ack.serialize() for ack in acks))

    def _turn(self, granted: int) -> list[Event]:
        self._bytes, self._events = self.limits.turn_bytes, self.limits.turn_events
        self._inflated = self.limits.turn_inflated
        self._runs_free = 1  # every turn makes one
        self._more = False
        self.expected = 0
        broken: list[Event] = []
        try:
            self._work(granted)
        except RemoteProtocolError as error:
            self._broken = True
            self._buffer.clear()
            self._inflation = self._fields = self._document = None
            self.expected = 0
            broken.append(Broken(error=error))
        self._send(self._windows.acks())
        return [*self._columns.take(), *broken]

    @property
    def _spent(self) -> bool:
        return self._bytes <= 0 or self._events <= 0 or self.crowded

    def _work(self, granted: int) -> None:
        at, stop = 0, False
        while not stop:
            inflation = self._inflation
            if inflation is None:
                at = self._take(self._buffer, at, None)
                stop = self._inflation is None
            else:
                at, stop = self._inflate(inflation, at, granted)
        del self._buffer[:at]

    def _inflate(self, inflation: Inflation, at: int, granted: int) -> tuple[int, bool]:
        """Take the frames that were inflated, then inflate more.

        :return: where the payload begins that was not consumed, and whether the turn ends here
        """
        if inflation.full or len(self._buffer) - at < inflation.wanted:
            self._take_inner(inflation)
        if self._spent:
            self._more = True
        elif inflation.done:
            return self._finish(inflation, at)
        elif len(self._buffer) - at < inflation.wanted:
            self.expected = inflation.held + inflation.wanted
        elif self._inflated <= 0 or inflation.needs > granted:
            self._more = True
        else:
            before = inflation.made
            at = inflation.inflate(self._buffer, at, self._inflated)
            self._inflated -= inflation.made - before
            return at, False
        return at, True

    def _take_inner(self, inflation: Inflation) -> None:
        used = self._take(inflation.data, 0, inflation)
        inflation.inner, self.expected = self.expected, 0
        del inflation.data[:used]
        if len(self._windows.unsealed) >= self.limits.max_windows:  # they cannot be acknowledged before it ends
            raise RemoteProtocolError("too-many-windows", f"{self.limits.max_windows} in one compressed frame")

    def _finish(self, inflation: Inflation, at: int) -> tuple[int, bool]:
        """All of it was inflated and taken: what is left of the compressed frame is ignored."""
        if inflation.data or self._document is not None:
            raise RemoteProtocolError("partial-frame", "a compressed frame ends within a frame")
        at += inflation.skip(len(self._buffer) - at)
        if inflation.left:
            self.expected = min(inflation.left, PIECE)
            return at, True
        self._inflation = None
        self._windows.seal()
        self._spend(0, 1, 1)
        return at, False

    def _take(self, source: bytearray, at: int, inside: Inflation | None) -> int:
        """Take frames until the turn is over, a compressed one begins, or one is not whole; where that one begins."""
        end = len(source)
        while (at < end or self._document is not None) and self._inflation is inside:
            if self._spent:
                self._more = True
                break
            before = at
            if self._document is not None:
                at = self._take_part(self._document, source, at)
                if at == before:
                    break
                continue
            version = DIGITS.get(source[at])
            if version is None:
                raise RemoteProtocolError("bad-version", f"{source[at]:#04x}")
            if end - at == 1:
                self.expected = SHORT.size
                break
            kind = source[at + 1]
            if kind not in WRITER_FRAMES:
                raise RemoteProtocolError("bad-type", f"{kind:#04x}")
            if kind != FrameType.WINDOW or inside is not None:
                self._check_version(version)
            at = getattr(self, self.takers[kind])(source, at, version)
            if at == before:
                break
            self.expected = 0
        return at

    def _check_version(self, version: int) -> None:
        """A window has one version; the next may have another."""
        if self._windows.version not in (0, version):
            raise RemoteProtocolError("mixed-versions")
        self._windows.version = version

    def _take_json(self, source: bytearray, at: int, version: int) -> int:
        most = min(self._windows.room, max(1, self._events // self._work_each))
        end, count, sequences, last, lengths, payload = kernel.scan(
            source, at, digit(version), self.limits.max_event, self._bytes, most
        )
        if not count:
            return self._end_of_json(source, at)
        runs = self._columns.add_json(count, sequences, lengths, payload)
        self._windows.receive(count, last, self._inflation is None)
        work = count + RUN_WORK * max(0, runs - self._runs_free)
        self._runs_free = 0
        self._work_each = work // count
        self._spend(end - at, count, work)
        return end

    def _take_data(self, source: bytearray, at: int, version: int) -> int:
        fields = self._fields or Fields(self.limits.max_event)
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

    def _take_window(self, source: bytearray, at: int, version: int) -> int:
        if len(source) - at < SHORT.size:
            self.expected = SHORT.size
            return at
        self._windows.announce(version, SHORT.unpack_from(source, at)[2], self._inflation is None)
        self._spend(SHORT.size, 1, 1)
        return at + SHORT.size

    def _take_compressed(self, source: bytearray, at: int, version: int) -> int:
        if self._inflation is not None:
            raise RemoteProtocolError("nested-compression")
        if len(source) - at < SHORT.size:
            self.expected = SHORT.size
            return at
        length: int = SHORT.unpack_from(source, at)[2]
        if length > self.limits.max_frame:
            raise RemoteProtocolError(
                "frame-too-large",
                f"a compressed frame of {length} bytes, {self.limits.max_frame} are the most; the writer will send it "
                "again and again: lower its bulk_max_size, or raise the option lumberjack.max-frame",
            )
        if length:
            self._inflation = Inflation(length, self.limits.max_inflated)
        else:
            self._spend(0, 1, 1)
        return at + SHORT.size

    def _end_of_json(self, source: bytearray, at: int) -> int:
        """Judge the length of a J frame that is not whole; return ``at``, or the begin of a document in parts."""
        available = len(source) - at
        self.expected = LONG.size
        if available < LONG.size:
            return at
        _, _, sequence, length = LONG.unpack_from(source, at)
        if length > self.limits.max_frame:
            raise too_large(length, self.limits.max_frame)
        if length > MAX_EVENT:
            self._document = Document(sequence, length, length)
            return at + LONG.size
        self.expected += length
        return at

    def _take_part(self, document: Document, source: bytearray, at: int) -> int:
        """Take the next part of a document; return ``at`` if it is not whole."""
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

    def _spend(self, size: int, frames: int, work: int) -> None:
        self._bytes -= size
        self._events -= work
        self.frames += frames
