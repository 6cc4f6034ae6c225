"""Publishers for the listeners other than Figg and the backbone, by raw sockets, and by pyzmq.

They are written from the protocols' texts and share no code with the server.

    Lumberjack    version 2: windows of J frames, every third one compressed, two of them unacknowledged at a time;
                  its events have an identity, and come again in other windows, with their members in another order
    Relink        one channel without transactions, on a link that it resumes: its messages are stored once
    EventBus      a DEALER and a SUB in a process of their own; the BROADCAST of an event is its acknowledgement
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

import wire
from load import BUFFER, Publisher, Seen, Worker


class Lumberjack(Publisher):
    """A lumberjack writer whose events have the identity of Filebeat's, so that each is stored once."""

    def begin(self) -> None:
        self.heard_of = wire.Acknowledgements()
        #: (first, count) of each unacknowledged window
        self.windows: list[tuple[int, int]] = []
        self.again()

    def fill(self) -> bool:
        while len(self.out) < BUFFER and len(self.windows) < 2:
            first, count = self.next, self.window
            events = [wire.event(self.number, first + i, self.largest) for i in range(count)]
            self.out += wire.window(events, level=int(first % 3 == 0))
            self.windows.append((first, count))
            self.next += count
            self.sent = max(self.sent, self.next - 1)
        return bool(self.out)

    def heard(self, chunk: bytes) -> None:
        for kind, sequence in self.heard_of.feed(chunk):
            if not sequence and kind == b"2A":
                continue  # an acknowledgement of 0 only says that the server is still at work on the window
            first, count = self.windows[0] if self.windows else (0, 0)
            self.acknowledged(first + sequence - 1, kind == b"2A" and sequence <= count)
            if sequence == count:
                del self.windows[0]


class Relink(Publisher):
    """A connector of ``publish:STREAM``."""

    def __init__(self, number: int, stream: str, window: int, largest: int) -> None:
        super().__init__(number, stream, window, largest)
        self.peer, self.first = wire.RelinkLink(b"publish:" + self.topic), 1

    def begin(self) -> None:
        self.out += self.peer.connect()

    def fill(self) -> bool:
        while self.peer.state == "open" and len(self.out) < BUFFER and self.next <= self.acked + self.window:
            self.out += wire.relink_message(wire.payload(self.number, self.next, self.largest))
            self.sent = max(self.sent, self.next)
            self.next += 1
        return bool(self.out)

    def heard(self, chunk: bytes) -> None:
        for what, value in self.peer.feed(chunk):
            if what == "say":
                self.out += value
            elif what == "begun":
                self.again()
                self.first = self.next  #: the message has number 0 on this link
            elif what == "resumed":
                self.next = self.acked + 1  # the link resends what was not acknowledged, so no message is sent again
            elif what == "consumed":
                self.acknowledged(self.acked + 1 if value is None else self.first + value)
            elif what != "received":
                self.wrong = f"publisher {self.number} was sent a {what} packet: {value[:16].hex()}"


class EventBus(Worker):
    """A publisher of the event bus in its own process; ``plan``: its number, the largest payload of each publisher.

    It opens a new pair of sockets for each connection.  A new subscription misses the first broadcasts; if none comes,
    the window moves on, and a later broadcast acknowledges all events before it.
    """

    WINDOW, STALLED = 300, 0.3

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
                    data = wire.payload(state.number, state.next, state.largest)
                    event = wire.bus_event(b"/torture/", state.number, state.next, data)
                    dealer.send_multipart(event, zmq.NOBLOCK)
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
