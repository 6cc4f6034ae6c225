#!/usr/bin/env python3
"""Let many Lumberjack writers send at once, like Filebeats after a restart, and measure how long a light writer waits.

    lumberjack_writers.py [--writers 500] [--pipelining 5] [--windows 5] [--events 2048] [--size 150] [--level 0|3]
                          [--version 1|2] [--processes N] [--memory SIZE] [--light-windows N] [--patience S]

Every writer has a socket of its own and sends --windows windows of --events events, of which --pipelining may be
unacknowledged at a time.  All of them have connected before the first one sends.  A light writer sends one event, waits
for its acknowledgement, pauses for 20 ms and sends the next, in a process of its own.

Prints the total time, the largest memory of the server (VmHWM), its CPU time, and how long the light writer waited: in
seconds, and in windows of the other writers that were acknowledged meanwhile.  The exit status is 1 if

    - a writer lost its connection, or a window was not acknowledged,
    - the stream has another number of events than were sent,
    - the server used more memory than its budget, --slack and its memory when idle,
    - the light writer waited for more than --patience seconds, or while more than --light-windows windows of the others
      were acknowledged.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import selectors
import socket
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import servers
import wire
from servers import Usage

#: After how many seconds without any acknowledgement the writers give up.
SILENCE = 60.0
#: How long the light writer pauses between two events, in seconds.
PAUSE = 0.02
STREAM = b"lumberjack"


def window(events: int, size: int, level: int, version: int) -> bytes:
    """Return the bytes of a window of *events* log lines, as Filebeat sends them, of about *size* bytes each."""
    documents = []
    for number in range(1, events + 1):
        head = b'{"@timestamp":"2026-11-22T10:%02d:%02d.%03dZ","@metadata":{"beat":"filebeat"},"message":"' % (
            number // 60 % 60,
            number % 60,
            number * 7919 % 1000,
        )
        text = b"GET /static/%d/%d HTTP/1.1 %d " % (number * 48271 % 997, number * 16807 % 9973, 200 + number % 4)
        documents.append(head + (text * (1 + size // len(text)))[: max(0, size - len(head) - 2)] + b'"}')
    return wire.window(documents, level, version)


class Writer:
    """A writer that sends the same window again and again, and counts the acknowledged windows."""

    def __init__(self, port: int, wanted: int, pipelining: int, events: int, data: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SILENCE)
        self.socket.setblocking(False)
        self.wanted, self.pipelining, self.events, self.data = wanted, pipelining, events, memoryview(data)
        self.begun = self.acked = self.kept_alive = 0
        self._at = len(data)
        self._answers = wire.Acknowledgements()

    def write(self) -> bool:
        """Send as much as socket and pipelining allow; return False if only an acknowledgement allows more."""
        while True:
            if self._at == len(self.data):
                if self.begun == self.wanted or self.begun - self.acked == self.pipelining:
                    return False
                self.begun += 1
                self._at = 0
            try:
                self._at += self.socket.send(self.data[self._at :])
            except BlockingIOError:
                return True

    def read(self) -> int:
        """Read from the socket; return how many windows were acknowledged."""
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("the server closed the connection of a writer")
        before = self.acked
        for _, number in self._answers.feed(data):
            self.acked += number == self.events
            self.kept_alive += number == 0
        return self.acked - before


def crowd(pipe: Connection, port: int, count: int, arguments: argparse.Namespace, acked: Any, index: int) -> None:
    """Connect *count* writers, wait for the order to begin, and report when everything is acknowledged."""
    data = window(arguments.events, arguments.size, arguments.level, arguments.version)
    try:
        writers = [Writer(port, arguments.windows, arguments.pipelining, arguments.events, data) for _ in range(count)]
        pipe.send("connected")
        pipe.recv()
        selector = selectors.DefaultSelector()
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        for writer in writers:
            selector.register(writer.socket, both, writer)
        left = count * arguments.windows
        while left:
            ready = selector.select(SILENCE)
            if not ready:
                raise TimeoutError(f"{left} windows are not acknowledged, and nothing came for {SILENCE:g} s")
            for key, events in ready:
                writer = key.data
                if events & selectors.EVENT_READ:
                    got = writer.read()
                    left -= got
                    acked[index] += got
                wants = writer.write()
                if wants != bool(key.events & selectors.EVENT_WRITE):
                    selector.modify(writer.socket, both if wants else selectors.EVENT_READ, writer)
        pipe.send({"kept alive": sum(writer.kept_alive for writer in writers)})
    except (OSError, EOFError) as error:
        pipe.send(f"{type(error).__name__}: {error}")
    with suppress(EOFError):
        pipe.recv()  # keep the connections open until all processes are ready


def light(pipe: Connection, port: int, acked: Any) -> None:
    """Send one event after the other; report the wait of each in seconds and in acknowledged windows of others."""
    waits: list[tuple[float, int]] = []
    data = wire.window([b'{"light":1}'])
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=SILENCE) as peer:
            pipe.send("connected")
            while not pipe.poll(PAUSE):
                before, began = sum(acked), time.monotonic()
                peer.sendall(data)
                while peer.recv(6, socket.MSG_WAITALL) != b"2A\0\0\0\1":
                    pass
                waits.append((time.monotonic() - began, sum(acked) - before))
        pipe.send(waits)
    except OSError as error:
        pipe.send(f"the light writer: {type(error).__name__}: {error}")


def told(pipe: Connection) -> Any:
    """Return the report of a client process.

    :raises ValueError: the process failed
    """
    if not pipe.poll(20 * SILENCE):
        raise ValueError("a client process does not end")
    said = pipe.recv()
    if isinstance(said, str) and said != "connected":
        raise ValueError(said)
    return said


def stored(port: int) -> int:
    """Return the number of the last event in the stream."""
    with socket.create_connection(("127.0.0.1", port), timeout=SILENCE) as peer:
        peer.sendall(wire.attach(STREAM, None))
        frames = wire.Frames()
        while True:
            for kind, _, number, _ in frames.feed(peer.recv(65536)):
                if kind == wire.ATTACHED:
                    return number


def run(server: servers.Server, arguments: argparse.Namespace) -> list[str]:
    """Run the writers; return the problems."""
    port, pid = server.port("lumberjack"), server.process.pid
    context = multiprocessing.get_context("fork")
    acked = context.Array("Q", arguments.processes, lock=False)
    shares = [
        arguments.writers // arguments.processes + (n < arguments.writers % arguments.processes)
        for n in range(arguments.processes)
    ]
    targets: list[tuple[Any, tuple[Any, ...]]] = [
        (crowd, (port, share, arguments, acked, n)) for n, share in enumerate(shares)
    ]
    targets.append((light, (port, acked)))
    pipes = []
    for target, words in targets:
        ours, theirs = context.Pipe()
        context.Process(target=target, args=(theirs, *words), daemon=True).start()
        pipes.append(ours)
    for pipe in pipes:
        told(pipe)
    before = Usage(pid)
    began = time.monotonic()
    for pipe in pipes[:-1]:
        pipe.send("begin")
    reports = [told(pipe) for pipe in pipes[:-1]]
    seconds = time.monotonic() - began
    pipes[-1].send("enough")
    waits = told(pipes[-1])
    after = Usage(pid)
    for pipe in pipes[:-1]:
        pipe.send("end")
    count = arguments.writers * arguments.windows * arguments.events
    found = stored(server.port("figg")) - len(waits)
    longest, overtaken = (max(column) for column in zip(*waits, strict=True))
    limit = (arguments.memory + arguments.slack << 10) + before.resident
    problems = []
    if found != count:
        problems.append(f"{count} events were acknowledged, and {found} are in the stream")
    if after.largest > limit:
        problems.append(f"the server used {after.largest >> 10} MiB, the limit is {limit >> 10} MiB")
    if longest > arguments.patience:
        problems.append(f"the light writer waited for {longest:.2f} s")
    if overtaken > arguments.light_windows:
        problems.append(f"{overtaken} windows of the others were acknowledged while the light writer waited")
    figures = {
        "writers": arguments.writers,
        "pipelining": arguments.pipelining,
        "level": arguments.level,
        "events": count,
        "acknowledged": sum(acked),
        "seconds": round(seconds, 2),
        "cpu": round(after.cpu - before.cpu, 2),
        "idle_mib": before.resident >> 10,
        "most_mib": after.largest >> 10,
        "budget_mib": arguments.memory,
        "kept_alive": sum(report["kept alive"] for report in reports),
        "light": len(waits),
        "light_median_ms": round(1000 * statistics.median(wait for wait, _ in waits), 1),
        "light_longest_ms": round(1000 * longest, 1),
        "light_windows": overtaken,
        "problems": len(problems),
    }
    print(json.dumps(figures), flush=True)
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=500)
    parser.add_argument("--pipelining", type=int, default=5, help="how many windows of a writer may be unacknowledged")
    parser.add_argument("--windows", type=int, default=5, help="how many windows each writer sends")
    parser.add_argument("--events", type=int, default=2048, help="events in a window")
    parser.add_argument("--size", type=int, default=150, help="size of an event, in bytes")
    parser.add_argument("--level", type=int, default=3, help="level of compression; 0: none")
    parser.add_argument("--version", type=int, default=2, choices=(1, 2))
    parser.add_argument("--processes", type=int, default=2, help="processes that the writers are divided among")
    parser.add_argument("--memory", type=int, default=512, help="the server's budget, in MiB")
    parser.add_argument("--slack", type=int, default=0, help="memory that the server may use above its budget, in MiB")
    parser.add_argument(
        "--light-windows",
        type=int,
        default=1 << 40,
        help="windows of others that may be acknowledged before a light event",
    )
    parser.add_argument("--patience", type=float, default=1e9, help="the longest that the light writer may wait")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    root = Path(tempfile.mkdtemp(prefix="fyrehose-writers-"))
    options = [f"server.memory={arguments.memory}MiB", f"lumberjack.max-per-host={arguments.writers + 10}"]
    words = [word for option in options for word in ("--option", option)]
    server = servers.Server(root, *words)
    try:
        server.wait_until_serving()
        problems = run(server, arguments)
        problems += [line for line in server.log.splitlines() if "Traceback" in line or "#critical]" in line][:3]
    except (ValueError, OSError, servers.ServerEnded) as error:
        problems = [f"{type(error).__name__}: {error}"]
    finally:
        server.process.kill()
        server.process.wait()
    for problem in problems:
        print(f"VIOLATION: {problem}")
    return servers.verdict(bool(problems), root)


if __name__ == "__main__":
    sys.exit(main())
