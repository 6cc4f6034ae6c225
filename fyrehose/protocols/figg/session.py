"""Figg's sessions without I/O (figg.md, "Protocol").

    in: receive_data(bytes), receive_eof()  -> events: frames; PUBLISH by topic and DATA in runs, as columns
    out: send(frame), send_acks()           -> data_to_send()

Receiving never raises.  After a protocol violation the last event is ``Broken``; the events before it are valid.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import ClassVar, NoReturn

from fyrehose.errors import Broken, RemoteProtocolError
from fyrehose.kernels import figg as kernel
from fyrehose.protocols.figg.frames import (
    CLIENT_FRAMES,
    FRAMES,
    HEADER,
    NUMBER,
    NUMBER_FRAME,
    PROTOCOL,
    SERVER_FRAMES,
    SIZE,
    VERSION,
    Data,
    DataRun,
    Frame,
    FrameType,
    MessageRun,
    Publish,
    Published,
    PublishRun,
    decode_topic,
)
from fyrehose.records import MAX_NAME, MAX_PAYLOAD, Run, column_of
from fyrehose.sessions import PIECE, Encoded, FramedSession, fitting

#: Largest data of one run, in bytes, so that a large read does not become one large write to the disk.
MAX_RUN = 1 << 20
#: How many events a server handles in one turn at most; a run of messages counts for each of its topics.
MOST_EVENTS = 32
#: Size of a DATA frame without its topic and its data, in bytes.
DATA_HEAD = HEADER.size + SIZE.size + NUMBER.size + SIZE.size

Event = Frame | Published | DataRun | Broken


class _Session(FramedSession):
    """Base of both sides: framing, limits, and pending output."""

    #: types that the peer may send
    _accepted: ClassVar[frozenset[FrameType]]
    #: the class of the frames that the kernels parse many at a time: PUBLISH or DATA
    _message: ClassVar[type[Frame]]
    #: how many events one turn returns at most
    _most_events: ClassVar[int] = sys.maxsize

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        super().__init__()
        self.max_payload = max_payload

    def send(self, frame: Frame | MessageRun) -> None:
        """Send *frame*, or the frames of a run of messages."""
        self.out.append(frame.serialize())

    def _parse_frames(self, source: bytes | bytearray, events: list[Event]) -> int:
        position, end, left = 0, len(source), self._most_events
        self.expected = self._parse_at = HEADER.size
        while end - position >= HEADER.size:
            if left <= 0:
                self.more, self.expected = True, 0
                return position
            # Nearly all frames are whole messages; the compiled function that parses them checks their headers as well.
            end_of_run, event, cost = self._parse_messages(source, position)
            if event is None:
                end_of_run, event = self._parse_frame(source, position, end)
                if event is None:
                    return position
            events.append(event)
            position = end_of_run
            left -= cost
        if position == end:
            self.expected = 0
        return position

    def _parse_frame(self, source: bytes | bytearray, position: int, end: int) -> tuple[int, Event | None]:
        """Parse the frame at *position*, which is not a whole message; return its end, and its event or None."""
        kind = self._check_header(source, position, end)
        if end - position < self.expected:
            return position, None
        if kind is self._message.type:
            self._malformed(source, position)
        begin, position = position + HEADER.size, position + self.expected
        self.expected = self._parse_at = HEADER.size
        return position, FRAMES[kind].parse(bytes(source[begin:position]))

    def _check_header(self, source: bytes | bytearray, position: int, end: int) -> FrameType:
        """Check the header at *position*, set ``expected`` to the size of the frame, and return its type.

        The sizes of the frame and of the topic give the size of the data, so it is checked as soon as both have
        arrived.

        :raises RemoteProtocolError: the header, or the size of the topic or data, is invalid
        """
        number, version, size = HEADER.unpack_from(source, position)
        if version != VERSION:
            raise RemoteProtocolError("wrong-version", f"protocol version {version}; expected {VERSION}")
        if number not in FRAMES:
            raise RemoteProtocolError("unknown-type", f"message type {number}")
        kind = FrameType(number)
        if kind not in self._accepted:
            raise RemoteProtocolError("wrong-direction", f"this side does not accept {kind.name}")
        smallest, largest = FRAMES[kind].sizes
        if kind is self._message.type:
            largest += self.max_payload
        if size > largest:
            raise RemoteProtocolError("frame-too-large", f"{kind.name} of {size} bytes; the limit is {largest}")
        if size < smallest:
            raise RemoteProtocolError("bad-length", f"{kind.name} of {size} bytes; expected at least {smallest}")
        self.expected = self._parse_at = HEADER.size + size
        if end - position < self.expected and kind is self._message.type:  # the kernel checks complete frames
            if end - position >= HEADER.size + SIZE.size:
                self._check_data_size(kind, source, position)
            else:
                self._parse_at = HEADER.size + SIZE.size
        return kind

    def _check_data_size(self, kind: FrameType, source: bytes | bytearray, position: int) -> None:
        """Check the size of the data of a PUBLISH or DATA, which follows from its header and the size of its topic."""
        size = self.expected - HEADER.size
        topic = SIZE.unpack_from(source, position + HEADER.size)[0]
        if not 1 <= topic <= MAX_NAME:
            raise RemoteProtocolError("bad-topic", f"a topic of {topic} bytes; expected 1 to {MAX_NAME}")
        data = size - SIZE.size - topic - NUMBER.size - SIZE.size
        if data > self.max_payload:
            raise RemoteProtocolError("frame-too-large", f"data of {data} bytes; the limit is {self.max_payload}")
        if data < 0:
            raise RemoteProtocolError("bad-length", f"{kind.name} of {size} bytes cannot hold a topic of {topic} bytes")

    def _parse_messages(self, source: bytes | bytearray, position: int) -> tuple[int, Event | None, int]:
        """Parse the run of messages at *position*.

        :return: the end of the run; its event, None if no whole, well-formed message is at *position*; and how many
            events it counts for
        """
        raise NotImplementedError

    def _malformed(self, source: bytes | bytearray, position: int) -> NoReturn:
        """Raise the reason why the message at *position* is malformed."""
        self._check_data_size(self._message.type, source, position)
        self._message.parse(bytes(source[position + HEADER.size : position + self.expected]))
        raise RemoteProtocolError("bad-length", f"the fields of {self._message.type.name} do not fill the frame")


class FiggServerSession(_Session):
    """The server's side of one connection.

    Events: Attach, Detach, Ping, Published, Broken.

    :param max_payload: limit of the data of one PUBLISH, in bytes
    :ivar producer: the producer's name in the runs that are published; the owner sets it
    """

    _accepted = CLIENT_FRAMES
    _message = Publish
    _most_events = MOST_EVENTS

    producer: str | None = None

    def _parse_messages(self, source: bytes | bytearray, position: int) -> tuple[int, Event | None, int]:
        end, last, found = kernel.gather(source, position, Publish.type, self.max_payload, MAX_RUN)
        if not found:
            return end, None, 1
        runs, producer = [], self.producer
        for topic, numbers, lengths, payload in found:
            run = Run(
                stream=topic,
                source=PROTOCOL,
                producer=producer,
                producer_seq=numbers,
                lengths=lengths,
                payload=payload,
            )
            runs.append(run)
        return end, Published(last, runs), len(runs)

    def send_acks(self, numbers: Sequence[int]) -> None:
        """Acknowledge every PUBLISH up to each of *numbers*, of which there is at least one.

        All are sent as one ACK, unless a number is lower than the one before it: an ACK does not cover higher numbers.
        """
        last = numbers[0]
        for number in numbers:
            if number < last:
                self.out.append(NUMBER_FRAME.pack(FrameType.ACK, VERSION, NUMBER.size, last))
            last = number
        self.out.append(NUMBER_FRAME.pack(FrameType.ACK, VERSION, NUMBER.size, last))


def encode_data(runs: Sequence[Run]) -> Encoded:
    """Encode as many of the first records as fit into a piece, as DATA frames; the topic is the stream.

    The records' numbers are the offsets.
    """
    frames, room, last, count = [], PIECE, runs[0].first_seq - 1, 0
    for run in runs:
        topic = run.stream.encode()
        extra = DATA_HEAD + len(topic)
        size = len(run.lengths) // 4
        whole = len(run.payload) + size * extra <= room  # as nearly always
        part = run if whole else run.slice(0, fitting(run, extra, room))
        if part.lengths:
            frames.append(kernel.frames(FrameType.DATA, topic, run.first_seq, part.lengths, part.payload))
            room -= len(frames[-1])
            last = part.last_seq
            count += size if whole else len(part)
        if not whole:
            break
    return Encoded(frames[0] if len(frames) == 1 else b"".join(frames), last, count)


def head_of_data(run: Run) -> bytes:
    """Return the part of a DATA frame before its data, for the first record of *run*."""
    topic, size = run.stream.encode(), run.sizes[0]
    head = HEADER.pack(FrameType.DATA, VERSION, DATA_HEAD - HEADER.size + len(topic) + size)
    return head + SIZE.pack(len(topic)) + topic + NUMBER.pack(run.first_seq) + SIZE.pack(size)


class FiggClientSession(_Session):
    """The client's side of one connection.

    Events: Attached, Detached, Ack, Pong, DataRun, Broken.

    :param max_payload: limit of the data of one DATA, in bytes
    """

    _accepted = SERVER_FRAMES
    _message = Data

    def _parse_messages(self, source: bytes | bytearray, position: int) -> tuple[int, Event | None, int]:
        end, topic, first, count, lengths, payload = kernel.scan(source, position, Data.type, self.max_payload, MAX_RUN)
        if not count:
            return end, None, 1
        return end, DataRun(topic=decode_topic(topic), first=first, lengths=lengths, payload=payload), 1

    def send_publish(self, topic: str, first: int, messages: Iterable[bytes]) -> None:
        """Publish *messages* to *topic*.

        :param first: the number of the first message; those of the others follow it, and ACKs name these numbers
        """
        column = column_of(messages)
        self.send(PublishRun(topic=topic, first=first, lengths=column.lengths, payload=column.payload))
