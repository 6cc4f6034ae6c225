"""Publishers for the listeners other than Figg and the backbone, by raw sockets and struct, and by pyzmq.

They are written from the protocols' texts and share no code with the server.

    Lumberjack    version 2: windows of J frames, every third one compressed, two of them unacknowledged at a time;
                  its events have an identity, and come again in other windows, with their members in another order
    Relink        one channel without transactions, on a link that it resumes: its messages are stored once
    EventBus      a DEALER and a SUB in a process of their own; the BROADCAST of an event is its acknowledgement
"""

from __future__ import annotations

import struct
import time
import uuid
import zlib
from multiprocessing.connection import Connection
from typing import Any

import wire
from load import BUFFER, Publisher, Seen, Worker


class Lumberjack(Publisher):
    """A lumberjack writer whose events have the identity of Filebeat's, so that each is stored once."""

    def begin(self) -> None:
        self.heard_of = bytearray()
        #: (first, count) of each unacknowledged window
        self.windows: list[tuple[int, int]] = []
        self.again()

    def fill(self) -> bool:
        while len(self.out) < BUFFER and len(self.windows) < 2:
            first, count = self.next, self.window
            frames = b"".join(self._event(i + 1, first + i) for i in range(count))
            if first % 3 == 0:
                packed = zlib.compress(frames, 1)
                frames = b"2C" + struct.pack(">I", len(packed)) + packed
            self.out += b"2W" + struct.pack(">I", count) + frames
            self.windows.append((first, count))
            self.next += count
            self.sent = max(self.sent, self.next - 1)
        return bool(self.out)

    def _event(self, sequence: int, number: int) -> bytes:
        data = wire.event(self.number, number, self.largest)
        return b"2J" + struct.pack(">II", sequence, len(data)) + data

    def heard(self, chunk: bytes) -> None:
        self.heard_of += chunk
        while len(self.heard_of) >= 6:
            kind, sequence = bytes(self.heard_of[:2]), struct.unpack_from(">I", self.heard_of, 2)[0]
            del self.heard_of[:6]
            if not sequence and kind == b"2A":
                continue  # an acknowledgement of 0 only says that the server is still at work on the window
            first, count = self.windows[0] if self.windows else (0, 0)
            self.acknowledged(first + sequence - 1, kind == b"2A" and sequence <= count)
            if sequence == count:
                del self.windows[0]


class Relink(Publisher):
    """A connector of ``publish:STREAM`` whose channel ids have no bytes, so each packet it gets has eight bytes."""

    PING, PONG, RESUME = bytes((1 << 5, *bytes(7))), bytes((2 << 5, *bytes(7))), bytes((3 << 5, *bytes(7)))
    #: bits of an acknowledgement: channel, format (with or without a number), type
    CONSUMED, CONSUMED_UP_TO, RECEIVED = 0b001_001_01, 0b001_011_01, 0b000_001_01

    link = (0, 0)

    def begin(self) -> None:
        self.heard_of = bytearray()
        self.state = "version"
        self.out += bytes(8)

    def fill(self) -> bool:
        while self.state == "open" and len(self.out) < BUFFER and self.next <= self.acked + self.window:
            self.out += self._message(wire.payload(self.number, self.next, self.largest))
            self.sent = max(self.sent, self.next)
            self.next += 1
        return bool(self.out)

    @staticmethod
    def _message(data: bytes) -> bytes:
        """Return a message of one part, whose size takes two or eight bytes."""
        if len(data) < 1 << 16:
            head = struct.pack("<BBH4x", 0b0_100_01, 1, len(data))
        else:
            head = struct.pack("<BB6xQ", 0b10_100_01 | 1 << 6, 1, len(data))
        return head + data + bytes(-len(data) % 8)

    def heard(self, chunk: bytes) -> None:
        self.heard_of += chunk
        while len(self.heard_of) >= (16 if self.state == "reply" else 8):
            if self.state == "version":
                self.state = "reply"
                name = b"publish:" + self.topic
                hello = bytes((len(name),)) + name + bytes(3)
                self.out += hello + bytes(-len(hello) % 8) + struct.pack("<QQ", *self.link)
                del self.heard_of[:8]
            elif self.state == "reply":
                self._linked(struct.unpack_from("<QQ", self.heard_of))
                del self.heard_of[:16]
            else:
                self._packet(bytes(self.heard_of[:8]))
                del self.heard_of[:8]

    def _linked(self, link: Any) -> None:
        if link == self.link:
            # This side has nothing to report: the listener sends on no channel.
            self.state = "resync"
            self.out += self.RESUME
        else:
            self.link, self.state = link, "open"
            self.again()
            self.first = self.next  #: the message has number 0 on this link

    def _packet(self, packet: bytes) -> None:
        if packet == self.PING:
            self.out += self.PONG
        elif packet == self.RESUME and self.state == "resync":
            self.state = "open"
            self.next = self.acked + 1  # the link resends what was not acknowledged, so no message is sent again
        elif packet[0] == self.CONSUMED:
            self.acknowledged(self.acked + 1)
        elif packet[0] == self.CONSUMED_UP_TO:
            self.acknowledged(self.first + struct.unpack_from("<I", packet, 4)[0])
        elif packet[0] & 0b1_01_11 != self.RECEIVED & 0b1_01_11 or packet[0] >> 5:  # with a number, or without
            self.wrong = f"publisher {self.number} was sent {packet.hex()}"


class EventBus(Worker):
    """A publisher of the event bus in its own process; ``plan``: its number, the largest payload of each publisher.

    It opens a new pair of sockets for each connection.  A new subscription misses the first broadcasts; if none comes,
    the window moves on, and a later broadcast acknowledges all events before it.
    """

    WINDOW, STALLED = 300, 0.3
    TIME = b"2024-05-01T10:20:30.123Z"

    def hang_up(self) -> None:
        """Close the sockets: the server has ended, and another process may get its port."""
        self._pipe.send(("hang up",))

    def _run(self, pipe: Connection, *plan: Any) -> None:
        import zmq

        number, largest = plan
        context = zmq.Context()
        state = Publisher(number, "eventbus", self.WINDOW, largest.get(number, 1 << 17))
        seen = Seen(largest)
        while True:
            order = pipe.recv()
            if order[0] == "hang up":
                continue
            if order[0] == "report":
                pipe.send(((number, state.acked, state.sent, state.resent, state.wrong), seen.take()))
                continue
            base = order[1]["eventbus"]
            sockets = []
            for kind, offset in ((zmq.SUB, 1), (zmq.DEALER, 2)):
                socket = context.socket(kind)
                # With LINGER 0 libzmq aborts if a connection breaks in the middle of a message (libzmq issue 3442).
                socket.setsockopt(zmq.LINGER, 200)
                if kind == zmq.SUB:
                    socket.setsockopt(zmq.RCVHWM, 0)
                    socket.setsockopt(zmq.SUBSCRIBE, b"")
                socket.connect(f"tcp://127.0.0.1:{base + offset}")
                sockets.append(socket)
            state.again()
            self._work(pipe, zmq, sockets, state, seen)
            for socket in sockets:
                socket.close()

    def _work(self, pipe: Connection, zmq: Any, sockets: list[Any], state: Publisher, seen: Seen) -> None:
        subscriber, dealer = sockets
        sent_from, moved = state.next, time.monotonic()
        floor = state.acked
        while not pipe.poll():
            if state.next <= max(state.acked, floor) + state.window:
                try:
                    dealer.send_multipart(self._event(state, state.next), zmq.NOBLOCK)
                    state.sent = max(state.sent, state.next)
                    state.next += 1
                except zmq.Again:
                    subscriber.poll(5)
            else:
                subscriber.poll(20)
                if time.monotonic() - moved > self.STALLED:
                    floor, moved = state.next - 1, time.monotonic()
            moved = moved if not self._heard(subscriber, zmq, sent_from, state, seen) else time.monotonic()
        self._heard(subscriber, zmq, sent_from, state, seen)

    def _event(self, state: Publisher, number: int) -> list[bytes]:
        made = str(uuid.UUID(int=state.number << 64 | number, version=4)).encode()
        data = wire.payload(state.number, number, state.largest)
        return [b"/torture/", b"null", b"torture", self.TIME, made, data]

    @staticmethod
    def _heard(subscriber: Any, zmq: Any, sent_from: int, state: Publisher, seen: Seen) -> bool:
        """Read all broadcasts; return whether one was of an event that was sent on this connection."""
        ours = False
        while True:
            try:
                topic, sequence, _, _, _, data = subscriber.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return ours
            seen.message(b"eventbus", None, int.from_bytes(sequence, "big"), data)
            author = wire.whose(data, seen.largest)
            if author is not None and author[1] >= sent_from:
                state.acked = max(state.acked, author[1])
                ours = True
            if topic not in (b"/torture/", b"/a/"):  # attacker.py sends some events that are valid, of /a/
                seen.wrong(f"the event bus said {topic!r}")
