"""Load from outside: publishers and subscribers of every listener, in processes of their own, which outlive the server.

Each records in its own memory the acknowledgements and the messages that it received.

    Publishers    connect(ports), then publish as fast as their windows allow until the server ends; when they are
                  connected again, they resend what was not acknowledged, as the protocol says (listeners.py has those
                  that do not speak Figg)
    Subscribers   connect(ports), then read every stream; they resume where they left off
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import wire

#: How many bytes of unsent data a publisher keeps in its own buffer at most.
BUFFER = 256 << 10
#: How many datagrams are pushed at once; seconds between two such pushes.
BURST, PAUSE = 20, 0.005
#: The number of the publisher that pushes datagrams.
PUSHER = 1000
#: The description of a payload that was not made by these publishers.
NOBODYS = "was never sent by a publisher"
#: The description of a subscriber that begins later than it asked: retention has overtaken it, or it is an error.
OVERTAKEN = "beyond the requested"
#: The largest payload that fits into a datagram of the backbone.
LARGEST_DATAGRAM = 60_000


class Publisher:
    """A publisher of one stream by Figg, with a window, and the number that was last acknowledged."""

    def __init__(self, number: int, stream: str, window: int, largest: int) -> None:
        self.number, self.topic, self.window, self.largest = number, stream.encode(), window, largest
        self.acked = self.sent = 0
        #: (first, last) of the messages that were sent again, for each connection
        self.resent: list[tuple[int, int]] = []
        self.sock: socket.socket | None = None
        self.out = bytearray()
        self.frames = wire.Frames()
        self.next = 1
        self.wrong = ""

    def connect(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.out.clear()
        self.begin()

    def begin(self) -> None:
        """Reset the state for a new connection, and send what was not acknowledged again."""
        self.frames = wire.Frames()
        self.again()

    def again(self) -> None:
        """Continue behind the last acknowledged message, and record which messages are sent again."""
        self.next = self.acked + 1
        if self.sent > self.acked:
            self.resent.append((self.next, self.sent))

    def fill(self) -> bool:
        """Fill the buffer as far as the window allows; return whether there is something to write."""
        while len(self.out) < BUFFER and self.next <= self.acked + self.window:
            data = wire.payload(self.number, self.next, self.largest)
            self.out += wire.publish(self.topic, self.next, data)
            self.sent = max(self.sent, self.next)
            self.next += 1
        return bool(self.out)

    def write(self) -> None:
        assert self.sock is not None
        with contextlib.suppress(BlockingIOError):
            del self.out[: self.sock.send(self.out)]

    def read(self) -> None:
        assert self.sock is not None
        chunk = self.sock.recv(1 << 16)
        if not chunk:
            raise ConnectionError
        self.heard(chunk)

    def heard(self, chunk: bytes) -> None:
        """Handle data from the server."""
        for kind, _, number, _ in self.frames.feed(chunk):
            self.acknowledged(number, kind == wire.ACK)

    def acknowledged(self, number: int, sense: bool = True) -> None:
        """Record that everything up to ``number`` is acknowledged; ``sense`` is False for an invalid frame."""
        if not sense or not self.acked <= number <= self.sent:
            self.wrong = f"publisher {self.number} of {self.acked}..{self.sent} was told {number}"
        self.acked = max(self.acked, number)

    def gone(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None


def judge(
    stored: Sequence[int],
    told: tuple[int, int],
    resent: Sequence[tuple[int, int]] = (),
    *,
    trimmed: bool = False,
    late: bool = False,
    may_lose: bool = False,
) -> Iterator[str]:
    """Yield what is wrong with the messages of one publisher, by their numbers in the order of the stream.

    :param told: the last number that was acknowledged, and the last that was sent
    :param resent: the first and the last number that were sent again, for each connection
    :param trimmed: whether retention may have deleted the oldest messages
    :param late: whether messages of a closed connection may arrive together with those of the next one
    :param may_lose: whether acknowledged messages may be lost
    """
    acked, sent = told
    oldest = min(stored, default=acked + 1) if trimmed else 1
    last = highest = stored[0] - 1 if trimmed and stored else 0
    for n in stored:
        before = highest if late else last
        highest, again = max(highest, n), n <= last
        if n > before + 1 and not may_lose:
            yield f"{n} comes after {before}"
        if n > sent:
            yield f"{n} was never sent, {sent} is the last"
        if again and not any(first <= n <= end for first, end in resent):
            yield f"{n} is stored again, but was sent once"
        last = n
    seen = Counter(stored)
    missing = [n for n in range(oldest, acked + 1) if not seen[n]]
    if missing and not may_lose:
        yield f"{len(missing)} acknowledged messages are LOST: {missing[0]} to {missing[-1]} of {acked}"
    for n, times in seen.items():
        allowed = 1 + sum(first <= n <= end for first, end in resent)
        if times > allowed:
            yield f"{n} is stored {times} times, but was sent {allowed} times"


class Worker:
    """A process that gets orders through a pipe, and answers when it is asked for a report."""

    def __init__(self, *plan: Any) -> None:
        ours, theirs = multiprocessing.Pipe()
        self._pipe = ours
        self._process = multiprocessing.get_context("fork").Process(target=self._run, args=(theirs, *plan), daemon=True)
        self._process.start()
        theirs.close()

    def connect(self, ports: dict[str, int]) -> None:
        """Let the clients of the process connect to ``ports``, by listener."""
        self._pipe.send(("connect", ports))

    def report(self) -> Any:
        """Disconnect the clients, and return what they have recorded."""
        return self.ask("report")

    def ask(self, *order: Any) -> Any:
        """Send an order, and return the answer.

        :raises EOFError: the process has failed
        """
        self._pipe.send(order)
        if not self._pipe.poll(60):
            raise TimeoutError(f"the process of {type(self).__name__} does not answer")
        return self._pipe.recv()

    def close(self) -> None:
        self._process.kill()
        self._process.join()

    def _run(self, pipe: Connection, *plan: Any) -> None:
        raise NotImplementedError


class Publishers(Worker):
    """Publishers in a process of their own; ``plan``: (listener, number, stream, window, largest) of each."""

    def _run(self, pipe: Connection, *plan: Any) -> None:
        import listeners

        (specs,) = plan
        kinds = {"figg": Publisher, "lumberjack": listeners.Lumberjack, "relink": listeners.Relink}
        publishers = [kinds[listener](*spec) for listener, *spec in specs]
        places = {publisher: listener for publisher, (listener, *_) in zip(publishers, specs, strict=True)}
        pusher = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        pushed = 0
        while True:
            order = pipe.recv()
            if order[0] == "report":
                pipe.send(([(p.number, p.acked, p.sent, p.resent, p.wrong) for p in publishers], pushed))
                continue
            ports = {publisher: order[1][listener] for publisher, listener in places.items()}
            pushed = self._publish(pipe, ports, (pusher, order[1]["backbone"], pushed))

    def _publish(self, pipe: Connection, publishers: dict[Publisher, int], push: tuple[Any, int, int]) -> int:
        pusher, udp_port, pushed = push
        selector = selectors.DefaultSelector()
        selector.register(pipe, selectors.EVENT_READ)
        for publisher, port in publishers.items():
            self._connect(selector, publisher, port)
        next_push = time.monotonic()
        ended = False
        while not ended:
            for publisher in publishers:
                if publisher.sock is not None:
                    events = selectors.EVENT_READ | (selectors.EVENT_WRITE if publisher.fill() else 0)
                    selector.modify(publisher.sock, events, publisher)
            for key, events in selector.select(max(0.0, next_push - time.monotonic())):
                if key.data is None:
                    ended = True
                    continue
                self._serve(selector, key.data, events)
            if time.monotonic() >= next_push:
                next_push = time.monotonic() + PAUSE
                for _ in range(BURST):
                    pushed += 1
                    with contextlib.suppress(OSError):
                        datagram = wire.push(wire.payload(PUSHER, pushed, LARGEST_DATAGRAM))
                        pusher.sendto(datagram, ("127.0.0.1", udp_port))
        for publisher in publishers:
            self._drain(publisher)
            self._gone(selector, publisher)
        selector.close()
        return pushed

    def _connect(self, selector: selectors.BaseSelector, publisher: Publisher, port: int) -> None:
        try:
            publisher.connect(port)
        except OSError:
            publisher.gone()
            return
        selector.register(publisher.sock, selectors.EVENT_READ, publisher)  # type: ignore[arg-type]

    def _serve(self, selector: selectors.BaseSelector, publisher: Publisher, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                publisher.read()
            if events & selectors.EVENT_WRITE:
                publisher.write()
        except OSError:
            self._gone(selector, publisher)

    @staticmethod
    def _drain(publisher: Publisher) -> None:
        """Read the acknowledgements that the server sent before it was killed."""
        try:
            while publisher.sock is not None:
                publisher.read()
        except OSError:
            return

    @staticmethod
    def _gone(selector: selectors.BaseSelector, publisher: Publisher) -> None:
        if publisher.sock is not None:
            selector.unregister(publisher.sock)
            publisher.gone()


class Subscribers(Worker):
    """Subscribers in a process; ``plan``: streams, number of Figg subscribers, largest payload of each publisher."""

    def _run(self, pipe: Connection, *plan: Any) -> None:
        streams, count, largest = plan
        topics = [stream.encode() for stream in streams]
        positions: list[dict[bytes, int]] = [dict.fromkeys(topics, 0) for _ in range(count)]
        state = Seen(largest)
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        datagrams.bind(("127.0.0.1", 0))
        datagrams.setblocking(False)
        while True:
            order = pipe.recv()
            if order[0] == "report":
                pipe.send(state.take())
                continue
            self._subscribe(pipe, positions, order[1]["figg"], (datagrams, order[1]["backbone"]), state)

    def _subscribe(
        self,
        pipe: Connection,
        positions: list[dict[bytes, int]],
        port: int,
        udp: tuple[socket.socket, int],
        seen: Seen,
    ) -> None:
        datagrams, udp_port = udp
        selector = selectors.DefaultSelector()
        selector.register(pipe, selectors.EVENT_READ)
        selector.register(datagrams, selectors.EVENT_READ, "udp")
        for position in positions:
            try:
                peer = socket.create_connection(("127.0.0.1", port), timeout=10)
                peer.sendall(b"".join(wire.attach(topic, offset) for topic, offset in position.items()))
            except OSError:
                continue
            peer.setblocking(False)
            selector.register(peer, selectors.EVENT_READ, (peer, wire.Frames(), position))
        keepalive = 0.0
        ended = False
        while not ended:
            if time.monotonic() > keepalive:
                keepalive = time.monotonic() + 0.5
                with contextlib.suppress(OSError):
                    own = datagrams.getsockname()[1]
                    datagrams.sendto(wire.keepalive(own, os.urandom(16)), ("127.0.0.1", udp_port))
            for key, _ in selector.select(0.1):
                if key.data is None:
                    ended = True
                elif key.data == "udp":
                    self._datagrams(datagrams, seen)
                elif self._read(key.data, seen) is False:
                    selector.unregister(key.data[0])
                    key.data[0].close()
        for key in list(selector.get_map().values()):
            if isinstance(key.data, tuple):
                while self._read(key.data, seen):
                    pass
                key.data[0].close()
        self._datagrams(datagrams, seen)
        selector.close()

    @staticmethod
    def _read(reader: tuple[socket.socket, wire.Frames, dict[bytes, int]], seen: Seen) -> bool | None:
        """Read once; return True if data came, None if none is there yet, and False if the connection has ended."""
        peer, frames, position = reader
        try:
            chunk = peer.recv(1 << 18)
        except BlockingIOError:
            return None
        except OSError:
            return False
        for kind, topic, offset, data in frames.feed(chunk):
            if kind == wire.ATTACHED and offset != position[topic]:
                how = OVERTAKEN if offset > position[topic] else "behind"
                seen.wrong(f"attached to {topic!r} at {offset}, {how} {position[topic]}")
                position[topic] = max(offset, position[topic])
            if kind == wire.DATA:
                if offset <= position[topic]:
                    seen.wrong(f"{topic!r} {offset} came after {position[topic]}")
                seen.message(topic, position[topic], offset, data)
                position[topic] = offset
        return bool(chunk)

    @staticmethod
    def _datagrams(datagrams: socket.socket, seen: Seen) -> None:
        try:
            while True:
                found = wire.delivered(datagrams.recv(1 << 16))
                if found is not None:
                    seen.message(b"backbone", None, *found)
        except OSError:
            return


class Seen:
    """What the subscribers have received since the last report."""

    def __init__(self, largest: dict[int, int]) -> None:
        self.largest = largest
        self.messages: dict[bytes, dict[int, tuple[int, int]]] = {}
        self.skips: list[tuple[bytes, int, int]] = []
        self.problems: list[str] = []
        self.datagrams = 0

    def wrong(self, what: str) -> None:
        self.problems.append(what)

    def message(self, topic: bytes, before: int | None, offset: int, data: bytes) -> None:
        author = wire.whose(data, self.largest)
        if author is None:
            self.wrong(f"{topic!r} {offset} {NOBODYS}: {data[:40]!r} ({len(data)} bytes)")
            return
        if before is None:
            self.datagrams += 1
        elif offset != before + 1:
            self.skips.append((topic, before, offset))
        known = self.messages.setdefault(topic, {}).setdefault(offset, author)
        if known != author:
            self.wrong(f"{topic!r} {offset} was {known} for one subscriber and {author} for another")

    def take(self) -> Any:
        taken = self.messages, self.skips, self.problems, self.datagrams
        self.messages, self.skips, self.problems, self.datagrams = {}, [], [], 0
        return taken
