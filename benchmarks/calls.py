"""Count the Python calls that one message costs the server, by protocol.

    python -m benchmarks.calls [--rounds N] [--show] [TRIP...]

The server runs in this process on a real journal and real sockets, and a client in a thread of its own sends one
message after another, each when the one before is acknowledged and delivered.  ``sys.setprofile`` counts what the
reactor's and the writer's threads call in the meantime, in modules of Fyrehose only:

functions   different functions that were entered
files       files that they are in
calls       calls of them
moves       calls of a function in another file than the call before

The first rounds of each trip are not counted.  The figures are medians; if a round has a call more than the others, the
reactor woke up twice in it.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import attrs
import click
from rich.console import Console
from rich.table import Table
from twisted.internet.defer import Deferred

import fyrehose
from fyrehose import plugins
from fyrehose.bench.wires import backbone, figg, lumberjack, zmtp
from fyrehose.bench.wires.base import Job, Wire, Wrong, payload, read_exactly
from fyrehose.journal.journal import FileJournal
from fyrehose.protocols.relink.frames import Hello, Op, Terms
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.session import ConnectorSession
from fyrehose.server.service import Fyrehose
from fyrehose.testing.ports import free_ports

#: Rounds before those that count, in which memory is allocated and caches fill.
WARM_UP = 20
#: The size of each message, in bytes.
SIZE = 128
#: How long the server may take for its work after an answer, in seconds.
REST = 0.02
#: How long a client waits for an answer, in seconds.
PATIENCE = 10.0

_PACKAGE = str(Path(fyrehose.__file__).parent)


@attrs.frozen
class Count:
    """The figures of one round."""

    functions: int
    files: int
    calls: int
    moves: int


@attrs.define(eq=False)
class Tracer:
    """A recorder of each call of a function of Fyrehose, in all threads in which it is installed, while a round runs.

    :ivar entered: the file, the name, and the depth of the stack, of each call
    """

    on: bool = False
    entered: list[tuple[str, str, int]] = attrs.field(factory=list)

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        """Record one event of the interpreter (see ``sys.setprofile``)."""
        if self.on and event == "call" and frame.f_code.co_filename.startswith(_PACKAGE):
            self.entered.append((frame.f_code.co_filename, frame.f_code.co_qualname, _depth(frame)))

    @contextmanager
    def round(self) -> Iterator[None]:
        """Record the calls during the context, and those shortly after it."""
        self.entered.clear()
        self.on = True
        yield
        time.sleep(REST)
        self.on = False

    def count(self) -> Count:
        """Return the figures of the last round."""
        files = [file for file, _, _ in self.entered]
        moves = sum(one != other for one, other in pairwise(files))
        return Count(len({entry[:2] for entry in self.entered}), len(set(files)), len(files), moves)

    def lines(self) -> Iterator[str]:
        """Yield a line for each call of the last round, indented by the depth of the stack."""
        least = min(depth for _, _, depth in self.entered)
        for file, name, depth in self.entered:
            yield f"{'  ' * (depth - least)}{name}  {Path(file).relative_to(_PACKAGE)}"


def _depth(frame: FrameType | None) -> int:
    depth = 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


@attrs.define(eq=False)
class Peer:
    """One connection of the client, which sends messages and counts the answers by the wire of a protocol."""

    wire: Wire
    port: int
    sock: socket.socket = attrs.field(init=False)
    unread: bytearray = attrs.field(factory=bytearray, init=False)

    def __attrs_post_init__(self) -> None:
        self.sock = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        self.wire.hello(self.sock)
        if begin := self.wire.begin():
            self.sock.sendall(begin)
            self.wire.begun(self.sock)

    def send(self, count: int) -> None:
        """Send *count* messages."""
        self.sock.sendall(self.wire.block(count))

    def wait(self, done: int) -> None:
        """Wait until *done* messages in total were acknowledged or received."""
        while self.wire.done < done:
            data = self.sock.recv(1 << 16)
            if not data:
                raise Wrong("the server closed the connection")
            self.unread += data
            del self.unread[: self.wire.scan(self.unread, len(self.unread))]
            if self.wire.answers:
                self.sock.sendall(self.wire.answers)
                self.wire.answers.clear()


Round = Callable[[int], None]


def job(stream: str, messages: int, **extra: Any) -> Job:
    """Return the task of one connection."""
    return Job(stream=stream, size=SIZE, messages=messages, extra=extra)


def figg_trip(port: int, rounds: int) -> Round:
    """Figg: PUBLISH, ACK and a DATA to one subscriber."""
    publisher = Peer(figg.FiggPublisherWire(job("figg", rounds)), port)
    subscriber = Peer(figg.FiggSubscriberWire(job("figg", rounds)), port)

    def one(number: int) -> None:
        publisher.send(1)
        publisher.wait(number)
        subscriber.wait(number)

    return one


def lumberjack_trip(port: int, rounds: int) -> Round:
    """Lumberjack: a compressed window of 10 events, and its A."""
    peer = Peer(lumberjack.LumberjackPublisherWire(job("lumberjack", 10 * rounds, level=3, batch=10)), port)

    def one(number: int) -> None:
        peer.send(10)
        peer.wait(10 * number)

    return one


def backbone_trip(port: int, rounds: int) -> Round:
    """The backbone: PUSH, and the DELIVER to one subscriber."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(PATIENCE)
    sock.bind(("127.0.0.1", 0))
    sock.connect(("127.0.0.1", port))
    sock.send(backbone.keepalive(sock.getsockname()[1], subscribe=True))
    sock.recv(1 << 16)
    datagram = backbone.push(payload(SIZE))

    def one(number: int) -> None:
        sock.send(datagram)
        while backbone.sequence(memoryview(sock.recv(1 << 16)), 0) != number:
            pass

    return one


def relink_trip(port: int, rounds: int) -> Round:
    """Relink: a transaction of two messages, and its commit."""
    sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
    terms = Terms(endpoint="publish:relink", connector_transactions=True)
    session = ConnectorSession(hello=Hello(terms=terms), new_link=lambda epoch, id_: Link(terms, True, epoch, id_))

    def exchange(kind: str) -> None:
        while True:
            for data in session.data_to_send():
                sock.sendall(data)
            if kind in [type(event).__name__ for event in session.receive_data(sock.recv(1 << 16))]:
                return

    exchange("Linked")

    def one(number: int) -> None:
        assert session.link is not None
        session.link.send((0,), (payload(SIZE),))
        session.link.send((0,), (payload(SIZE),))
        session.link.decide(0, Op.COMMIT, 2 * number - 1)
        exchange("Consumed")

    return one


@attrs.define(eq=False)
class HttpPeer:
    """One connection of an HTTP client."""

    port: int
    sock: socket.socket = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.sock = socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def request(self, method: str, path: str, body: bytes) -> bytes:
        """Return the bytes of a request, which :meth:`send` takes."""
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def send(self, request: bytes) -> bytes:
        """Send *request*, and return the body of its answer.

        :raises Wrong: the server refused it
        """
        self.sock.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += read_exactly(self.sock, 1)
        fields = dict(line.lower().split(b": ", 1) for line in answer.split(b"\r\n")[1:] if line)
        body = read_exactly(self.sock, int(fields[b"content-length"]))
        if not answer.startswith(b"HTTP/1.1 20"):
            raise Wrong(f"{answer!r} {bytes(body)!r}")
        return bytes(body)


def http_trip(port: int, rounds: int) -> Round:
    """HTTP: a POST of one message, and its answer."""
    peer = HttpPeer(port)
    request = peer.request("POST", "/streams/http", payload(SIZE))

    def one(number: int) -> None:
        peer.send(request)

    return one


def leased_trip(port: int, rounds: int) -> Round:
    """HTTP: a record leased and settled, in two requests."""
    peer = HttpPeer(port)
    publish = peer.request("POST", "/streams/jobs", payload(SIZE))
    peer.send(peer.request("PUT", "/subscriptions/jobs", json.dumps({"stream": "jobs", "shared": True}).encode()))
    for _ in range(rounds):
        peer.send(publish)
    lease = peer.request("POST", "/subscriptions/jobs/lease", b'{"consumer": "one", "most": 1}')

    def one(number: int) -> None:
        (record,) = json.loads(peer.send(lease))["records"]
        done = json.dumps({"done": [[record["seq"], record["token"]]]}).encode()
        peer.send(peer.request("POST", "/subscriptions/jobs/settle", done))

    return one


def eventbus_trip(port: int, rounds: int) -> Round:
    """The event bus: PUB, and the BROADCAST to one subscriber."""
    subscriber = Peer(zmtp.ZmtpSubscriberWire(job("eventbus", rounds)), port + 1)
    publisher = Peer(zmtp.ZmtpPublisherWire(job("eventbus", rounds)), port + 2)

    def one(number: int) -> None:
        publisher.send(1)
        subscriber.wait(number)

    return one


TRIPS: dict[str, Callable[[int, int], Round]] = {
    "figg": figg_trip,
    "lumberjack": lumberjack_trip,
    "backbone": backbone_trip,
    "relink": relink_trip,
    "http": http_trip,
    "eventbus": eventbus_trip,
    "leased": leased_trip,
}
#: The protocols of trips that are not named after theirs.
PROTOCOLS = {"leased": "http"}


def measured(
    names: list[str], ports: dict[str, int], rounds: int, tracer: Tracer, show: bool
) -> dict[str, list[Count]]:
    """Run the trips, one after the other, in the client's thread; print the calls of the last round if *show*."""
    found: dict[str, list[Count]] = {}
    for name in names:
        one = TRIPS[name](ports[name], WARM_UP + rounds)
        for number in range(1, WARM_UP + rounds + 1):
            with tracer.round():
                one(number)
            if number > WARM_UP:
                found.setdefault(name, []).append(tracer.count())
        if show:
            print(name, *tracer.lines(), "", sep="\n")
    return found


def trace(names: list[str], rounds: int, show: bool = False) -> dict[str, list[Count]]:
    """Start the server, run the trips *names*, stop it, and return the figures of each round."""
    from twisted.internet import reactor as installed
    from twisted.internet.threads import deferToThreadPool
    from twisted.python.threadpool import ThreadPool

    reactor: Any = installed
    tracer = Tracer()
    result: list[Any] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fyrehose-calls-")))
        server = Fyrehose(reactor, FileJournal(reactor, directory))
        ports = {}
        for name in names:
            word = "udp" if name == "backbone" else "tcp"
            ports[name] = free_ports(1, 3)[0]  # the event bus takes three
            plugin = plugins.load(PROTOCOLS.get(name, name))
            place = f"{word}:{ports[name]}:interface=127.0.0.1"
            plugin.make_service(reactor, server.broker, place, plugin.settings()).setServiceParent(server)
        clients = ThreadPool(1, 1, "client")

        def finish(value: Any) -> Deferred[Any]:
            result.append(value)
            clients.stop()
            stopped: Deferred[Any] = server.stopService()
            return stopped.addBoth(lambda _: reactor.stop())

        def start() -> None:
            clients.start()  # its thread is not traced
            threading.setprofile(tracer.profile)  # those that start from now on are: the journal's
            sys.setprofile(tracer.profile)
            started: Deferred[Any] = server.startService()
            started.addCallback(
                lambda _: deferToThreadPool(reactor, clients, measured, names, ports, rounds, tracer, show)
            )
            started.addBoth(finish)

        reactor.callWhenRunning(start)
        reactor.run()
        sys.setprofile(None)
    if not isinstance(result[0], dict):
        result[0].raiseException()
    return dict(result[0])


@click.command("calls")
@click.argument("trips", nargs=-1, type=click.Choice(sorted(TRIPS)))
@click.option("--rounds", type=click.IntRange(1), default=50, show_default=True, help="Messages that count.")
@click.option("--show", is_flag=True, help="Print each call of the last message first.")
def main(trips: tuple[str, ...], rounds: int, show: bool) -> None:
    """Print how many calls one message costs the server, for each of TRIPS, or for all."""
    names = list(trips) or list(TRIPS)
    table = Table("one message", box=None, pad_edge=False)
    for field in attrs.fields(Count):
        table.add_column(field.name, justify="right")
    for name, counts in trace(names, rounds, show).items():
        medians = [median(getattr(each, field.name) for each in counts) for field in attrs.fields(Count)]
        table.add_row((TRIPS[name].__doc__ or name).partition("\n")[0].rstrip("."), *(f"{each:g}" for each in medians))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
