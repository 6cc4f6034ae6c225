"""Figg without I/O (figg.md, "Protocol").

    in: receive_data(bytes), receive_eof()  -> events: frames; PUBLISHes by topic, and runs of DATA, as columns
    out: send_*()                           -> data_to_send()

Whatever a peer sends, nothing is raised: the last event is ``Broken``, and the events before it count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fyrehose.errors import Broken, RemoteProtocolError
from fyrehose.kernels import figg as kernel
from fyrehose.protocols.figg.frames import (
    CLIENT_FRAMES,
    FRAMES,
    HEADER,
    NUMBER,
    SERVER_FRAMES,
    SIZE,
    VERSION,
    Ack,
    Attach,
    Attached,
    Data,
    DataRun,
    Detach,
    Detached,
    Frame,
    FrameType,
    Ping,
    Pong,
    Publish,
    Published,
    PublishRun,
    Taken,
    decode_topic,
)
from fyrehose.records import MAX_NAME, MAX_PAYLOAD, Run

#: The most data of one run, in bytes, so that a large read does not become one large write to the disk.
MAX_RUN = 1 << 20

Event = Frame | Published | DataRun | Broken


class _Session:
    """What both sides have: framing, limits, and what waits to be sent."""

    #: the frames that the other side may send
    _accepted: ClassVar[frozenset[FrameType]]
    #: the frame that comes in runs
    _message: ClassVar[type[Frame]]

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self.max_payload = max_payload
        self._buffer = bytearray()
        self._needed = 0  # the size of the frame at the start of the buffer, as far as it is known
        self._enough = 0  # what the buffer has to hold before it is looked at again
        self._broken = False
        self._out: list[bytes] = []

    @property
    def expected(self) -> int:
        """The size of the frame that is coming in, in bytes, as far as it is known; 0 between frames."""
        return self._needed

    @property
    def buffered(self) -> int:
        """How much of that frame is in memory, in bytes."""
        return len(self._buffer)

    def receive_data(self, data: bytes) -> list[Event]:
        """What ``data`` completes, in order; nothing after ``Broken``."""
        if self._broken:
            return []
        source: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            source = self._buffer
            if len(source) < self._enough:
                return []
        events: list[Event] = []
        end = 0
        try:
            end = self._parse(source, events)
        except RemoteProtocolError as error:
            events.append(self._break(error))
        if source is self._buffer:
            del self._buffer[:end]
        elif not self._broken:
            self._buffer += data[end:]
        return events

    def receive_eof(self) -> list[Event]:
        """The peer has finished sending; what is left of what it sent is forgotten."""
        if self._broken or not self._needed:
            return []
        return [self._break(RemoteProtocolError("truncated-frame", "the connection ended within a frame"))]

    def data_to_send(self) -> list[bytes]:
        """What is to be written now; once."""
        out, self._out = self._out, []
        return out

    def _break(self, error: RemoteProtocolError) -> Broken:
        self._broken = True
        self._needed = 0
        self._buffer.clear()
        return Broken(error=error)

    def _parse(self, source: bytes | bytearray, events: list[Event]) -> int:
        """Turn whole frames into events; return where the first that is not whole begins."""
        position, end = 0, len(source)
        self._needed = self._enough = HEADER.size
        while end - position >= HEADER.size:
            kind = self._judge(source, position, end)
            if end - position < self._needed:
                return position
            if kind is self._message.type:
                position = self._take_run(source, position, events)
            else:
                begin, position = position + HEADER.size, position + self._needed
                events.append(FRAMES[kind].parse(bytes(source[begin:position])))
            self._needed = self._enough = HEADER.size
        if position == end:
            self._needed = 0
        return position

    def _judge(self, source: bytes | bytearray, position: int, end: int) -> FrameType:
        """Return the type of the frame at *position*, with its size in ``_needed``.

        Its data is judged as soon as the size of the topic is here: how large it is follows from both sizes.

        :raises RemoteProtocolError: what is here of the header and the size of the topic is not allowed
        """
        number, version, size = HEADER.unpack_from(source, position)
        if version != VERSION:
            raise RemoteProtocolError("wrong-version", f"{version}")
        if number not in FRAMES:
            raise RemoteProtocolError("unknown-type", f"{number}")
        kind = FrameType(number)
        if kind not in self._accepted:
            raise RemoteProtocolError("wrong-direction", f"{kind.name} is not for this side to receive")
        smallest, largest = FRAMES[kind].sizes
        if kind is self._message.type:
            largest += self.max_payload
        if size > largest:
            raise RemoteProtocolError("frame-too-large", f"{kind.name} of {size} bytes, more than {largest}")
        if size < smallest:
            raise RemoteProtocolError("bad-length", f"{kind.name} of {size} bytes, fewer than {smallest}")
        self._needed = self._enough = HEADER.size + size
        if end - position < self._needed and kind is self._message.type:  # else the kernel judges it
            if end - position >= HEADER.size + SIZE.size:
                self._judge_data(kind, source, position)
            else:
                self._enough = HEADER.size + SIZE.size
        return kind

    def _judge_data(self, kind: FrameType, source: bytes | bytearray, position: int) -> None:
        """Judge the data of a PUBLISH or DATA by its header and the size of its topic."""
        size = self._needed - HEADER.size
        topic = SIZE.unpack_from(source, position + HEADER.size)[0]
        if not 1 <= topic <= MAX_NAME:
            raise RemoteProtocolError("bad-topic", f"it has {topic} bytes, not 1 to {MAX_NAME}")
        data = size - SIZE.size - topic - NUMBER.size - SIZE.size
        if data > self.max_payload:
            raise RemoteProtocolError("frame-too-large", f"{kind.name} with {data} bytes, more than {self.max_payload}")
        if data < 0:
            raise RemoteProtocolError("bad-length", f"{kind.name} of {size} bytes with a topic of {topic}")

    def _take(self, source: bytes | bytearray, position: int) -> tuple[int, Event | None]:
        """Where the messages that begin at ``position`` end, and their event; None if the first is not well-formed."""
        raise NotImplementedError

    def _take_run(self, source: bytes | bytearray, position: int, events: list[Event]) -> int:
        end, event = self._take(source, position)
        if event is None:
            # The kernel takes every frame that is well-formed; the parser says what is wrong with this one.
            self._judge_data(self._message.type, source, position)
            self._message.parse(bytes(source[position + HEADER.size : position + self._needed]))
            raise RemoteProtocolError("bad-length", f"a {self._message.type.name} whose sizes do not agree")
        events.append(event)
        return end


class FiggServerSession(_Session):
    """The server's side of one connection.

    Events: Attach, Detach, Ping, Published, Broken.

    :param max_payload: the largest data of a PUBLISH, in bytes
    """

    _accepted = CLIENT_FRAMES
    _message = Publish

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        super().__init__(max_payload)
        self._acks: list[int] = []

    def _take(self, source: bytes | bytearray, position: int) -> tuple[int, Event | None]:
        end, last, found = kernel.gather(source, position, Publish.type, self.max_payload, MAX_RUN)
        runs = tuple(
            Taken(topic=topic, numbers=numbers, lengths=lengths, payload=payload)
            for topic, numbers, lengths, payload in found
        )
        return end, Published(last=last, runs=runs) if runs else None

    def send_attached(self, topic: str, offset: int) -> None:
        """``topic`` is subscribed; what follows ``offset`` comes next."""
        self._out.append(Attached(topic=topic, offset=offset).serialize())

    def send_detached(self, topic: str) -> None:
        """Nothing more of ``topic`` comes."""
        self._out.append(Detached(topic=topic).serialize())

    def send_ack(self, seq_num: int) -> None:
        """Everything up to the PUBLISH of ``seq_num`` is durable.

        One ACK goes out for all that is acknowledged between two calls of :meth:`data_to_send`, except where the
        numbers went back: the ACK of a lower number does not cover a higher one.
        """
        if self._acks and seq_num >= self._acks[-1]:
            self._acks[-1] = seq_num
        else:
            self._acks.append(seq_num)

    def send_data(self, frames: bytes) -> None:
        """Frames that :func:`encode_data` made, the same bytes for every subscriber."""
        self._out.append(frames)

    def send_pong(self, number: int) -> None:
        """Answer the PING of ``number``."""
        self._out.append(Pong(number=number).serialize())

    def data_to_send(self) -> list[bytes]:
        out = super().data_to_send()
        if self._acks:
            out.extend(Ack(number=seq_num).serialize() for seq_num in self._acks)
            self._acks.clear()
        return out


def encode_data(runs: Sequence[Run]) -> bytes:
    """The DATA frames of records: their stream is the topic, their numbers are the offsets."""
    return b"".join(
        DataRun(topic=run.stream, first=run.first_seq, lengths=run.lengths, payload=run.payload).serialize()
        for run in runs
    )


class FiggClientSession(_Session):
    """The client's side of one connection.

    Events: Attached, Detached, Ack, Pong, DataRun, Broken.

    :param max_payload: the largest data of a DATA, in bytes
    """

    _accepted = SERVER_FRAMES
    _message = Data

    def _take(self, source: bytes | bytearray, position: int) -> tuple[int, Event | None]:
        end, topic, first, count, lengths, payload = kernel.scan(source, position, Data.type, self.max_payload, MAX_RUN)
        if not count:
            return end, None
        return end, DataRun(topic=decode_topic(topic), first=first, lengths=lengths, payload=payload)

    def send_attach(self, topic: str, offset: int | None) -> None:
        """Subscribe to what follows ``offset``, or to what is published from now on."""
        self._out.append(Attach(topic=topic, offset=offset).serialize())

    def send_detach(self, topic: str) -> None:
        """Unsubscribe."""
        self._out.append(Detach(topic=topic).serialize())

    def send_publish(self, run: PublishRun) -> None:
        """Publish a run."""
        self._out.append(run.serialize())

    def send_ping(self, number: int) -> None:
        """Ask for a sign of life."""
        self._out.append(Ping(number=number).serialize())
