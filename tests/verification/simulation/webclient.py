"""HTTP clients of simulations, written from docs/protocols/http.md alone, and a tap on their bytes at the server."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from book import Book, Place, Verdict
from links import Endpoint
from truth import numbers
from twisted.internet.protocol import Factory, Protocol

PORT = 8117
#: Status codes of temporary refusals, after which a client tries again.
TEMPORARY = (429, 503)
#: How long a client waits for an answer, in seconds, in addition to the time that it lets the server wait.
PATIENCE = 5.0
#: How often the connection of a request breaks before its answer comes.
LOSSES = 0.1
#: The end of the head of an HTTP message.
END = b"\r\n\r\n"
#: The verdicts that a worker may send about a job.
KINDS = ("done", "failed", "untried", "reject", "extend")


def messages(buffer: bytearray) -> Iterator[tuple[str, bytes]]:
    """Remove the complete HTTP messages from *buffer*; yield the first line and the body of each."""
    while (end := buffer.find(END)) >= 0:
        first, *headers = bytes(buffer[:end]).decode().split("\r\n")
        sizes = [int(line.split(":")[1]) for line in headers if line.lower().startswith("content-length:")]
        end += len(END) + sum(sizes)
        if len(buffer) < end:
            return
        body = bytes(buffer[end - sum(sizes) : end])
        del buffer[:end]
        yield first, body


def place_of(listed: Any, stream: str) -> Place:
    """Return the job that *listed* describes by its number and, if the subscription has several streams, its stream."""
    return listed.get("stream", stream), listed["seq"]


def settled_by(answer: dict[str, Any], stream: str) -> Iterator[Place]:
    """Yield the jobs that are settled according to *answer*."""
    for each in answer.get("settled", ()):
        if isinstance(each, dict):
            yield place_of(each, stream)
        else:
            yield from ((stream, seq) for seq in numbers([each]))


def verdicts_of(body: dict[str, Any], stream: str) -> Iterator[Verdict]:
    """Yield the verdict on each job in the *body* of a request to settle."""
    for kind in KINDS:
        for item in body.get(kind, ()):
            of, seq, token = (item if isinstance(item[0], str) else [stream, *item])[:3]
            yield Verdict(kind, (of, seq), token)


class Tap:
    """A connection as the server sees it; it reports what a worker asks and what the server answers."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.stream = book.streams[0]
        self.heard, self.said = bytearray(), bytearray()
        self.asked: deque[tuple[str, Any, Any]] = deque()

    def read(self, data: bytes) -> None:
        self.heard += data
        for line, body in messages(self.heard):
            path = line.split()[1]
            fields = json.loads(body or b"{}") if path.startswith("/subscriptions") else {}
            settles = path.endswith("/settle")
            about = self.book.asked(verdicts_of(fields, self.stream)) if settles else None
            self.asked.append((path, fields, about))

    def wrote(self, data: bytes) -> None:
        self.said += data
        for line, body in messages(self.said):
            status, answer = int(line.split()[1]), json.loads(body or b"{}")
            # A server that closes may refuse a request of which it has read only a part.
            path, fields, about = self.asked.popleft() if self.asked else ("", {}, {})
            self.book.check(bool(path) or status >= 400, f"an answer with {status} to no request: {answer}")
            if path.endswith("/lease") and status == 200:
                self.leased(fields, answer["records"])
            elif path.endswith("/settle") and (status == 200 or (status == 409 and "refused" in answer)):
                refused = [(place_of(each, self.stream), each["why"]) for each in answer["refused"]]
                extended = [(place_of(each, self.stream), each["token"]) for each in answer.get("extended", ())]
                self.book.acted(about, settled_by(answer, self.stream), refused, extended)

    def leased(self, fields: dict[str, Any], records: list[dict[str, Any]]) -> None:
        found = [
            ((each["stream"], each["seq"]), each["token"], each["failures"], each["payload"].encode())
            for each in records
        ]
        self.book.leased(fields["consumer"], fields["request"], found)


class Connection(Protocol):
    """A connection of a client."""

    transport: Any

    def __init__(self, client: Client) -> None:
        self.client, self.heard = client, bytearray()

    def connectionMade(self) -> None:
        self.client.connected(self)

    def dataReceived(self, data: bytes) -> None:
        self.heard += data
        for line, body in messages(self.heard):
            self.client.answered(int(line.split()[1]), json.loads(body or b"{}"))

    def connectionLost(self, reason: Any = None) -> None:
        self.client.lost(self)


class Client:
    """A client that sends one request after another, and repeats each until it is answered.

    :ivar paused: whether its process is frozen
    :ivar sent: when the last request was sent, including repetitions
    """

    def __init__(self, side: Any, name: str) -> None:
        self.side, self.name, self.world = side, name, side.world
        self.closed = self.paused = False
        self.request: tuple[bytes, Callable[[int, Any], None]] | None = None
        self.connection: Connection | None = None
        self.turn, self.sent, self.wait = 0, 0.0, 0.0
        self.endpoint = Endpoint(self.world, name, PORT, partial(Tap, side.book), servers=side.server.names)
        self._connect()

    def later(self, seconds: float, what: Callable[..., None], *args: Any) -> None:
        """Call *what* after *seconds*, unless the client is closed then; a frozen client calls it when it continues."""
        self.world.clock.callLater(seconds, self._run, what, *args)

    def _run(self, what: Callable[..., None], *args: Any) -> None:
        if self.paused:
            self.later(0.1, what, *args)
        elif not self.closed:
            what(*args)

    def ask(self, method: str, path: str, body: bytes, then: Callable[[int, Any], None], headers: str = "") -> None:
        """Send a request; call *then* with the status and the object of the answer."""
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        self.request = head.encode() + body, then
        self._send()

    def _send(self) -> None:
        if self.request is not None and self.connection is not None:
            self.turn += 1
            self.sent = self.world.clock.seconds()
            self.connection.transport.write(self.request[0])
            dice = self.world.random
            soon = not self.side.patient and dice.random() < LOSSES
            self.later(dice.random() * 0.05 if soon else PATIENCE + self.wait, self._give_up, self.turn)

    def _give_up(self, turn: int) -> None:
        if self.request is not None and turn == self.turn and self.connection is not None:
            self.connection.transport.abortConnection()

    def answered(self, status: int, answer: Any) -> None:
        self.turn += 1
        if status in TEMPORARY and self.connection is not None:
            self.connection.transport.abortConnection()  # the request is sent again, to the next server
        elif self.request is not None:
            then, self.request = self.request[1], None
            then(status, answer)

    def connected(self, connection: Connection) -> None:
        if self.closed:
            connection.transport.abortConnection()
        else:
            self.connection = connection
            self._send()

    def lost(self, connection: Connection) -> None:
        if self.connection is connection:
            self.connection = None
            self.turn += 1
            dice = self.world.random
            self.later(dice.random() * dice.choice((0.01, 1)), self._connect)

    def _connect(self) -> None:
        factory = Factory.forProtocol(lambda: Connection(self))
        self.endpoint.connect(factory).addErrback(lambda _: self.later(0.3, self._connect))

    def pause(self, paused: bool) -> None:
        """Freeze the process of the client, or let it continue."""
        if self.paused is not paused:
            self.paused = paused
            if self.connection is not None:
                transport = self.connection.transport
                (transport.pauseProducing if paused else transport.resumeProducing)()

    def close(self) -> None:
        self.closed = True
        if self.connection is not None:
            self.connection.transport.abortConnection()
