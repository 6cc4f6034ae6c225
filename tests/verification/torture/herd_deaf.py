#!/usr/bin/env python3
"""Measure the server's memory with subscribers of every protocol that never read, and how long honest clients wait.

    herd_deaf.py [--way WAY]... [--size SIZE]... [--readers N] [--seconds S]

A stream has records of one size, of bytes that JSON escapes to six each.  N subscribers at 127.0.0.2 ask for the stream
from its beginning and read nothing, while honest clients at 127.0.0.1, of Figg and HTTP, publish 100 bytes every 20 ms
and wait for the acknowledgement.  Each line says how long these waited (median, 99 %, longest), and how much the memory
of the server grew.  The exit status is 1 if it grew by more than --memory.  --readers 0 shows the waits without
subscribers; the ways http-pattern and eventbus publish meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import resource
import socket
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import servers
import wire
from abuse import Usage
from herd_attacks import connect, event, question, zmtp, zmtp_message

HONEST, ATTACKER = "127.0.0.1", "127.0.0.2"
#: The records of each size: their bytes, and how many there are.
SIZES = {"large": (16 << 20, 4), "mib": (1_000_000, 40), "small": (100, 200_000)}
WAYS = ("http-read", "http-live", "http-pattern", "admin-tail", "figg", "relink", "eventbus")


def fill(port: int, size: int, count: int, topic: bytes = b"deaf") -> None:
    """Publish the records with Figg."""
    with contextlib.closing(socket.create_connection((HONEST, port), timeout=120)) as peer:
        frames, acked = wire.Frames(), 0
        step = max(1, min(count, (16 << 20) // size))
        for first in range(1, count + 1, step):
            last = min(first + step, count + 1) - 1
            peer.sendall(b"".join(wire.publish(topic, n, b"\1" * size) for n in range(first, last + 1)))
            while acked < last:
                acked = max(
                    [acked, *(number for kind, _, number, _ in frames.feed(peer.recv(1 << 16)) if kind == wire.ACK)]
                )


class Honest:
    """A client that publishes small messages, and measures how long each acknowledgement takes.

    It has a process of its own: a thread would also wait while the attackers compute.
    """

    def __init__(self, name: str, port: int) -> None:
        context = multiprocessing.get_context("fork")
        self.name, self.port, self.over = name, port, context.Event()
        self._result, result = context.Pipe(duplex=False)
        self._process = context.Process(target=self._run, args=(result,), daemon=True)
        self._process.start()
        result.close()

    def stop(self) -> None:
        """End the client, and keep what it has measured."""
        self.over.set()
        self.waits: list[float] = self._result.recv()
        self._process.join()

    def _run(self, result: Connection) -> None:
        waits = [0.0]
        with contextlib.closing(socket.create_connection((HONEST, self.port), timeout=120)) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = 0
            while not self.over.wait(0.02):
                number += 1
                began = time.monotonic()
                if self.name == "figg":
                    peer.sendall(wire.publish(b"honest", number, bytes(100)))
                else:
                    peer.sendall(
                        b"POST /streams/honest HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n" + b"x" * 100
                    )
                peer.recv(1 << 16)
                waits.append(time.monotonic() - began)
        result.send(waits)

    def said(self) -> str:
        ordered = sorted(self.waits)
        longest, most = ordered[-1], ordered[int(len(ordered) * 0.99)]
        return f"{self.name} {1000 * statistics.median(ordered):.1f} / {1000 * most:.1f} / {1000 * longest:.1f} ms"


def deaf_bus(base: int, readers: int, size: int, count: int) -> list[socket.socket]:
    """Subscribe to everything without reading, and publish *count* events of *size* bytes; return the sockets."""
    peers = [peer for _ in range(readers) if (peer := zmtp(base + 1, ATTACKER, b"SUB"))]
    for peer in peers:
        peer.sendall(zmtp_message([b"\1"]))
    writer = zmtp(base + 2, ATTACKER, b"DEALER")
    if writer is not None:
        with contextlib.suppress(OSError):
            for number in range(min(count, 50_000)):
                writer.sendall(event(number, size - 200 if size > 1_000 else size))
        peers.append(writer)
    return peers


def trial(way: str, size: str, arguments: argparse.Namespace, root: Path) -> list[str]:
    ports = servers.free_ports(("figg", "http", "relink", "admin", "eventbus"))
    server = servers.Server(root / f"{way}-{size}", "--option", "journal.min-free=0", ports=ports)
    peers: list[socket.socket] = []
    try:
        server.wait_until_serving()
        live = way in ("http-pattern", "eventbus")
        fill(ports["figg"], *SIZES[size], b"before" if live else b"deaf")
        with contextlib.closing(socket.create_connection((HONEST, ports["figg"]))) as reader:
            reader.sendall(wire.attach(b"before" if live else b"deaf", 0))  # so that the caches are full
            reader.recv(1 << 20)
        base = Usage(server.process.pid).resident
        clients = [Honest(name, ports[name]) for name in ("figg", "http")]
        if way == "eventbus":
            peers = deaf_bus(ports["eventbus"], arguments.readers, *SIZES[size])
        else:
            listener, asked = question(way)
            for _ in range(arguments.readers):
                peer = connect(ports[listener], ATTACKER, 4096)
                if peer is not None:
                    peer.sendall(asked)
                    peers.append(peer)
            if live:
                fill(ports["figg"], *SIZES[size])
        most = 0
        end = time.monotonic() + arguments.seconds
        while time.monotonic() < end:
            time.sleep(0.05)
            most = max(most, Usage(server.process.pid).resident)
        for client in clients:
            client.stop()
        grown = max(most, Usage(server.process.pid).resident) - base
        print(
            f"{way:12} {size:6} {len(peers):4} readers: {grown >> 10:5} MiB; " + "; ".join(c.said() for c in clients),
            flush=True,
        )
        return [f"{way} {size}: the server took {grown >> 10} MiB"] * (grown >> 10 > arguments.memory)
    finally:
        for peer in peers:
            peer.close()
        server.process.kill()
        server.process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=WAYS, action="append", help="all by default")
    parser.add_argument("--size", choices=SIZES, action="append", help="all by default")
    parser.add_argument("--readers", type=int, default=250)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each trial lasts")
    parser.add_argument("--memory", type=int, default=64, help="how much the server's memory may grow, in MiB")
    parser.add_argument("--directory", type=servers.directory, help="for the journal; a temporary one by default")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    root = Path(tempfile.mkdtemp(prefix="fyrehose-deaf-", dir=arguments.directory))
    problems: list[str] = []
    print(f"load {os.getloadavg()[0]:.1f}; honest clients: median / 99 % / longest", flush=True)
    for way in arguments.way or WAYS:
        for size in arguments.size or SIZES:
            problems += trial(way, size, arguments, root)
    for problem in problems:
        print(f"VIOLATION: {problem}")
    print(f"{len(problems)} violations")
    return servers.verdict(bool(problems), root)


if __name__ == "__main__":
    sys.exit(main())
