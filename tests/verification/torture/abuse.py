#!/usr/bin/env python3
"""Abuse a server in several ways, and measure how long honest clients wait meanwhile.

    abuse.py [--part crowd|flood|slow|deaf|heavy|bombs|datagrams ...] [--connections N] [--seconds S]

    crowd      N open connections, of which one in a hundred publishes once a second
    flood      connections are opened and dropped as fast as possible, many more than may be open
    slow       N connections send a byte of a frame every second
    deaf       subscribers that never read, of a stream that grows all the time
    heavy      500 clients send 16 MiB each at once
    bombs      lumberjack windows that inflate to hundreds of times their size, beyond every limit
    datagrams  one address floods the port of the backbone

Meanwhile one honest client pings and another publishes, each in a process of its own, at least ten times a second.
Prints for each part how long they waited, and the server's memory, descriptors and CPU.  The exit status is 1 if the
server ended, logged an unexpected failure, lost an acknowledged message, used more than 1 GiB, or kept an honest client
waiting for more than --patience seconds.  The times mean something only on an idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import re
import resource
import select
import socket
import statistics
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import servers
import wire

#: How many connections are opened from one address, which is below the server's limit.
PER_ADDRESS = 150
#: The largest memory that the server may use, in KiB: 512 MiB of received data, and the rest of the process.
LARGEST = 1 << 20


class Honest:
    """A client in a process of its own that repeats one request, and measures how long each answer takes."""

    def __init__(self, port: int, publishes: bool, pause: float) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(
            target=self._run, args=(theirs, port, publishes, pause), daemon=True
        )
        self._process.start()
        theirs.close()

    @staticmethod
    def _run(pipe: Connection, port: int, publishes: bool, pause: float) -> None:
        waits: list[float] = []
        number = 0
        with socket.create_connection(("127.0.0.1", port), timeout=servers.PATIENCE) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not pipe.poll(pause):
                number += 1
                frame = wire.publish(b"honest", number, b"%d" % number)
                if not publishes:
                    frame = wire.ping(number)
                began = time.monotonic()
                peer.sendall(frame)
                answer = peer.recv(16, socket.MSG_WAITALL)
                waits.append(time.monotonic() - began)
                if answer != wire.HEADER.pack(wire.ACK if publishes else wire.PONG, 1, 8) + wire.U64.pack(number):
                    pipe.send(f"answered {answer!r}")
                    return
        pipe.send(waits)

    def waits(self) -> list[float]:
        """Return how long each answer took, in seconds.

        :raises ValueError: a request was not answered
        """
        self._pipe.send("enough")
        if not self._pipe.poll(servers.PATIENCE):
            raise ValueError("an honest client is not answered")
        try:
            said = self._pipe.recv()
        except EOFError:
            raise ValueError("an honest client lost its connection") from None
        if isinstance(said, str):
            raise ValueError(f"an honest client was {said}")
        return list(said)


def connections(port: int, count: int) -> list[socket.socket]:
    """Return ``count`` connections, from as many addresses as their limit requires."""
    found = []
    for n in range(count):
        host = 2 + n // PER_ADDRESS
        source = f"127.0.{host >> 8}.{host & 255}"
        found.append(socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0)))
    return found


def crowd(ports: dict[str, int], count: int, seconds: float) -> Iterator[str]:
    """Run the part ``crowd``: yield a text when all are connected, and another one with the result."""
    peers = connections(ports["figg"], count)
    yield f"{count} connections"
    active = peers[:: max(1, count // max(1, count // 100))][: max(1, count // 100)]
    acked = sent = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        began = time.monotonic()
        sent += 1
        for peer in active:
            peer.sendall(wire.publish(b"crowd", sent, b"x" * 100))
        for peer in active:
            acked += peer.recv(16, socket.MSG_WAITALL)[8:] == wire.U64.pack(sent)
        time.sleep(max(0.0, began + 1 - time.monotonic()))
    if acked != sent * len(active):
        raise ValueError(f"{acked} of {sent * len(active)} were acknowledged")
    for peer in peers:
        peer.close()
    yield f"{len(active)} of them published, {acked} acknowledged"


def flood(ports: dict[str, int], count: int, seconds: float) -> Iterator[str]:
    yield ""
    made = refused = 0
    held: list[socket.socket] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        host = 2 + made // 100 % 60_000
        try:
            peer = socket.socket()
            peer.settimeout(5)
            peer.bind((f"127.{host >> 16}.{host >> 8 & 255}.{host & 255}", 0))
            peer.connect(("127.0.0.1", ports[("figg", "lumberjack", "relink")[made % 3]]))
            held.append(peer)
        except OSError:
            refused += 1
        made += 1
        if len(held) > count:
            held.pop(random.randrange(len(held))).close()
    for peer in held:
        peer.close()
    yield f"{made} connections made, {count} at most at a time, {refused} failed"


def slow(ports: dict[str, int], count: int, seconds: float) -> Iterator[str]:
    frames = {"figg": wire.publish(b"slow", 1, bytes(9999)), "lumberjack": b"2W\0\0\0\1" + b"2J" + bytes(3)}
    frames["relink"] = bytes(8) + b"\x09publish:x" + bytes(3)
    listeners = {listener: connections(ports[listener], count // 3) for listener in frames}
    yield f"{count // 3 * 3} connections"
    gone = sent = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for listener, peers in listeners.items():
            for peer in list(peers):
                try:
                    peer.send(frames[listener][sent % len(frames[listener]) :][:1])
                except OSError:
                    peers.remove(peer)
                    gone += 1
        sent += 1
        time.sleep(1)
    left = [peer for peers in listeners.values() for peer in peers]
    for peer in left:
        peer.close()
    yield f"each sent {sent} bytes, {gone} were closed"


def deaf(ports: dict[str, int], count: int, seconds: float) -> Iterator[str]:
    peers = []
    for n in range(min(count, 500)):
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.bind((f"127.0.0.{2 + n // PER_ADDRESS}", 0))
        peer.connect(("127.0.0.1", ports["figg"]))
        peer.sendall(wire.attach(b"deaf", 0))
        peers.append(peer)
    yield f"{len(peers)} readers"
    published = 0
    deadline = time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", ports["figg"]), timeout=servers.PATIENCE) as writer:
        while time.monotonic() < deadline:
            published += 1
            writer.sendall(wire.publish(b"deaf", published, bytes(256 << 10)))
            if published % 8 == 0:
                frames = wire.Frames()
                while not any(number == published for _, _, number, _ in frames.feed(writer.recv(1 << 16))):
                    pass
    for peer in peers:
        peer.close()
    yield f"{published >> 2} MiB were published for them"


def heavy(ports: dict[str, int], count: int, seconds: float) -> Iterator[str]:
    peers = connections(ports["figg"], min(count, 500))
    yield f"{len(peers)} clients"
    frame = wire.publish(b"heavy", 1, bytes((16 << 20) - 100))
    left = {peer.fileno(): (peer, memoryview(frame)) for peer in peers}
    deadline = time.monotonic() + seconds
    poll = select.poll()
    for peer in peers:
        peer.setblocking(False)
        poll.register(peer, select.POLLOUT)
    while left and time.monotonic() < deadline:
        for fd, _ in poll.poll(100):
            peer, view = left[fd]
            try:
                view = view[peer.send(view[: 1 << 20]) :]
            except BlockingIOError:
                continue
            except OSError:
                view = view[:0]
            left[fd] = (peer, view)
            if not view:
                poll.unregister(fd)
                del left[fd]
    done = len(peers) - len(left)
    for peer in peers:
        peer.close()
    yield f"{done} of them had sent 16 MiB when it ended"


def bombs(ports: dict[str, int], count: int, seconds: float) -> Iterator[str]:
    event = b"2J" + struct.pack(">II", 1, 1000) + bytes(1000)
    legal = zlib.compress(event * 4000, 9)[:]
    huge = zlib.compress(bytes(128 << 20), 1)
    yield ""
    thrown = 0
    deadline = time.monotonic() + seconds
    held: list[socket.socket] = []
    while time.monotonic() < deadline:
        packed = huge if thrown % 3 else legal
        peer = socket.create_connection(("127.0.0.1", ports["lumberjack"]), timeout=30)
        with contextlib.suppress(OSError):
            peer.sendall(b"2W" + struct.pack(">I", 4000) + b"2C" + struct.pack(">I", len(packed)) + packed)
        held.append(peer)
        if len(held) > 20:
            first = held.pop(0)
            first.settimeout(10)
            with contextlib.suppress(OSError):
                first.recv(6)
            first.close()
        thrown += 1
    for peer in held:
        peer.close()
    yield f"{thrown} bombs, each of {len(huge) >> 10} KiB for 128 MiB, or {len(legal) >> 10} KiB for 4 MiB"


def datagrams(ports: dict[str, int], count: int, seconds: float) -> Iterator[str]:
    yield ""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    kinds = [
        wire.push(b"x" * 100),
        wire.keepalive(9, b"t" * 16),
        b"\xff" * 40,
        struct.pack(">B4sHHIHI", 4, bytes(4), 9, 0, 0, 0xFFFF, 0xFFFFFFFF),
    ]
    sent = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for _ in range(200):
            with contextlib.suppress(OSError):
                sender.sendto(kinds[sent % len(kinds)], ("127.0.0.1", ports["backbone"]))
            sent += 1
        time.sleep(0.002)
    yield f"{sent} datagrams"


PARTS: dict[str, Callable[[dict[str, int], int, float], Iterator[str]]] = {
    "crowd": crowd,
    "flood": flood,
    "slow": slow,
    "deaf": deaf,
    "heavy": heavy,
    "bombs": bombs,
    "datagrams": datagrams,
}


class Usage:
    """The memory, CPU time and descriptors that a process uses."""

    def __init__(self, pid: int) -> None:
        status = Path(f"/proc/{pid}/status").read_text()
        found, most = (re.search(rf"{name}:\s+(\d+) kB", status) for name in ("VmRSS", "VmHWM"))
        self.resident = int(found[1]) if found else 0
        self.largest = int(most[1]) if most else 0
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        self.cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        self.descriptors = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - only how many


def spread(waits: list[float]) -> str:
    """Return the median, 99 %, 99.9 % and the longest of *waits*, in milliseconds, as text."""
    ordered = sorted(waits)
    marks = [
        statistics.median(ordered),
        *(ordered[min(len(ordered) - 1, int(len(ordered) * p))] for p in (0.99, 0.999)),
    ]
    return " / ".join(f"{1000 * mark:.1f}" for mark in (*marks, ordered[-1]))


def abuse(name: str, arguments: argparse.Namespace, root: Path) -> list[str]:
    """Run one part on a server of its own; return the problems."""
    options = ["journal.segment-size=4M", "journal.min-free=0", "journal.keep-bytes=256M"]
    # At most 20,000 descriptors are available, so listeners that are not crowded leave theirs to Figg.
    options += [f"{listener}.max-connections=3000" for listener in ("lumberjack", "relink", "eventbus")]
    options += ["figg.timeout=1h"]  # most connections of the crowd stay silent, and must not time out
    server = servers.Server(root / name, *[word for option in options for word in ("--option", option)])
    problems: list[str] = []
    try:
        server.wait_until_serving()
        ports = {listener: server.port(listener) for listener in servers.LISTENERS}
        idle = Usage(server.process.pid)
        honest = [Honest(ports["figg"], False, 0.005), Honest(ports["figg"], True, 0.05)]
        part = PARTS[name](ports, arguments.connections, arguments.seconds)
        there = next(part)
        full = Usage(server.process.pid)
        began = time.monotonic()
        done = next(part)
        seconds = time.monotonic() - began
        after = Usage(server.process.pid)
        pings, acks = [client.waits() for client in honest]
        problems += look(server, len(acks))
        if after.largest > LARGEST:
            problems.append(f"the server used {after.largest >> 10} MiB")
        if max(*pings, *acks) > arguments.patience:
            problems.append(f"an honest client waited for {max(*pings, *acks):.1f} s")
        print(
            f"{name}: {there}{', ' * bool(there)}{done}; memory {idle.resident >> 10} MiB idle, {full.resident >> 10} "
            f"then, {after.resident >> 10} after, {after.largest >> 10} at most; {full.descriptors} descriptors; "
            f"{(after.cpu - full.cpu) / seconds:.2f} CPU; ms an honest client waited (median / 99 % / 99.9 % / "
            f"longest): ping {spread(pings)} of {len(pings)}, acknowledgement {spread(acks)} of {len(acks)}; "
            f"{len(problems)} problems",
            flush=True,
        )
    except (ValueError, OSError, servers.ServerEnded) as error:
        problems.append(f"{type(error).__name__}: {error}")
    finally:
        server.process.kill()
        server.process.wait()
    return [f"{name}: {problem}" for problem in problems]


def look(server: servers.Server, acked: int) -> list[str]:
    """Check that the server logged no failure, stored what it acknowledged, and stops; return the problems."""
    problems = [line for line in server.log.splitlines() if "Traceback" in line or "#critical]" in line][:3]
    if server.process.poll() is not None:
        return [*problems, f"it ended with {server.process.returncode}"]
    kept = wire.read_all(server.port("figg"), [b"honest"])[b"honest"]
    # Retention may have deleted the oldest of these messages, because the abuse writes so much.
    removed = not server.directory.joinpath("data", f"{0:016x}.segment").exists()
    oldest = int(kept[0][1]) if kept and removed else 1
    if [data for _, data in kept[: acked - oldest + 1]] != [b"%d" % n for n in range(oldest, acked + 1)]:
        problems.append(f"{acked} messages were acknowledged, but {len(kept)} are stored, or out of order")
    if status := server.kill(servers.signal.SIGTERM):
        problems.append(f"status {status} after SIGTERM")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each part lasts")
    parser.add_argument("--patience", type=float, default=30.0, help="the longest that an honest client may wait")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    root = Path(tempfile.mkdtemp(prefix="fyrehose-abuse-"))
    problems = [problem for name in arguments.part or PARTS for problem in abuse(name, arguments, root)]
    for problem in problems:
        print(f"VIOLATION: {problem}")
    return servers.verdict(bool(problems), root)


if __name__ == "__main__":
    sys.exit(main())
