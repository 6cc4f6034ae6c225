"""Figg's sessions: bytes in, events out, and the other way; no sockets, no clock.

    server    in: ATTACH DETACH PUBLISH PING        out: ATTACHED DETACHED ACK DATA PONG
    client    the other way round

Messages come as runs (PublishRun, DataRun), as long as a read has them; everything else frame by frame.  A peer's
offence ends the session with one last event, Broken; what came before it in the same read counts.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from fyrehose.errors import Broken, RemoteProtocolError
from fyrehose.kernels import figg as kernel
from fyrehose.protocols.figg import frames
from fyrehose.protocols.figg.frames import (
    FRAMES,
    HEADER,
    VERSION,
    DataRun,
    Frame,
    FrameType,
    PublishRun,
    decode_topic,
    encode_topic,
)
from fyrehose.records import MAX_PAYLOAD, Buffer

Event = Frame | PublishRun | DataRun | Broken

#: What one run holds, in bytes of payload: a run is published, budgeted and encoded as a whole.
RUN = 1 << 20


@attrs.define(eq=False)
class _Receiver:
    """The half that both sides share: frames out of bytes.

    :ivar max_payload: the largest message, in bytes
    """

    #: the type of the frames that come in runs
    messages: ClassVar[FrameType]
    run: ClassVar[type[PublishRun] | type[DataRun]]
    allowed: ClassVar[frozenset[FrameType]]

    max_payload: int = MAX_PAYLOAD
    expected: int = attrs.field(default=0, init=False)
    _buffer: bytearray = attrs.field(factory=bytearray, init=False)
    _out: list[bytes] = attrs.field(factory=list, init=False)
    _broken: bool = attrs.field(default=False, init=False)

    def receive_data(self, data: bytes) -> list[Event]:
        """The events that ``data`` completes; nothing more after Broken."""
        if self._broken:
            return []
        source: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            source = self._buffer
        events: list[Event] = []
        try:
            at = self._receive(source, events)
        except RemoteProtocolError as error:
            self._broken = True
            self._buffer.clear()
            self.expected = 0
            return [*events, Broken(error=error)]
        if source is data:
            self._buffer += data[at:]
        else:
            del self._buffer[:at]
        return events

    def receive_eof(self) -> list[Event]:
        """The peer sends nothing more; what it had begun is forgotten."""
        self._buffer.clear()
        self.expected = 0
        return []

    def data_to_send(self) -> list[bytes]:
        """What is to be written, once."""
        out, self._out = self._out, []
        return out

    def _receive(self, source: bytes | bytearray, events: list[Event]) -> int:
        """Append the events of whole frames; where the first frame begins that is not whole."""
        at = 0
        while True:
            end, topic, first, count, lengths, payload = kernel.scan(source, at, self.messages, self.max_payload, RUN)
            if count:
                events.append(self.run(topic=decode_topic(topic), first=first, lengths=lengths, payload=payload))
                at = end
                continue
            frame, end = self._frame(source, at)
            if frame is None:
                return at
            at = end
            event = self._took(frame)
            if event is not None:
                events.append(event)

    def _took(self, frame: Frame) -> Event | None:
        """What a frame is to the program; None if the session has dealt with it."""
        return frame

    def _frame(self, source: bytes | bytearray, at: int) -> tuple[Frame | None, int]:
        """One frame and its end; None if it is not all there."""
        if len(source) - at < HEADER.size:
            self.expected = HEADER.size if len(source) > at else 0
            return None, at
        number, version, size = HEADER.unpack_from(source, at)
        # Everything that can be judged by the header is judged by it: nothing is waited for that cannot be right.
        if version != VERSION:
            raise RemoteProtocolError("bad-version", f"{version} is not {VERSION}")
        if number not in self.allowed:
            raise RemoteProtocolError("bad-type", f"{number} is not a frame that this side takes")
        kind = FRAMES[FrameType(number)]
        least, most = kind.sizes
        if number == self.messages:
            most += self.max_payload
        if not least <= size <= most:
            raise RemoteProtocolError(
                "bad-size", f"a payload of {size} bytes for a {kind.__name__} of {least} to {most}"
            )
        end = at + HEADER.size + size
        if end > len(source):
            self.expected = HEADER.size + size
            return None, at
        frame = kind.parse(bytes(source[at + HEADER.size : end]))
        if isinstance(frame, frames.Publish | frames.Data) and len(frame.data) > self.max_payload:
            raise RemoteProtocolError("bad-size", f"a message of {len(frame.data)} bytes")
        return frame, end


@attrs.define(eq=False)
class FiggServerSession(_Receiver):
    """The server's side of one connection; PINGs are answered by the session itself."""

    messages = FrameType.PUBLISH
    run = PublishRun
    allowed = frames.CLIENT_FRAMES

    _ack: int | None = attrs.field(default=None, init=False)

    def send_attached(self, topic: str, offset: int) -> None:
        self._out.append(frames.Attached(topic=topic, offset=offset).serialize())

    def send_detached(self, topic: str) -> None:
        self._out.append(frames.Detached(topic=topic).serialize())

    def send_ack(self, number: int) -> None:
        """Everything up to ``number`` is processed.  An ACK that has not been written is replaced by the next."""
        self._ack = number

    def send_data(self, encoded: bytes) -> None:
        """DATA frames, as :func:`encode_data` makes them."""
        self._out.append(encoded)

    def data_to_send(self) -> list[bytes]:
        out = super().data_to_send()
        if self._ack is not None:
            out.append(frames.Ack(number=self._ack).serialize())
            self._ack = None
        return out

    def _took(self, frame: Frame) -> Event | None:
        if isinstance(frame, frames.Ping):
            self._out.append(frames.Pong(number=frame.number).serialize())
            return None
        return frame


@attrs.define(eq=False)
class FiggClientSession(_Receiver):
    """The client's side of one connection."""

    messages = FrameType.DATA
    run = DataRun
    allowed = frames.SERVER_FRAMES

    def send_attach(self, topic: str, offset: int | None) -> None:
        """Subscribe behind ``offset``; None: from now on."""
        self._out.append(frames.Attach(topic=topic, offset=offset).serialize())

    def send_detach(self, topic: str) -> None:
        self._out.append(frames.Detach(topic=topic).serialize())

    def send_publish(self, topic: str, first: int, lengths: Buffer, payload: Buffer) -> None:
        """Messages with the numbers ``first``, ``first + 1`` and so on, as columns."""
        self._out.append(kernel.frames(FrameType.PUBLISH, encode_topic(topic), first, lengths, payload))

    def send_ping(self, number: int) -> None:
        self._out.append(frames.Ping(number=number).serialize())
