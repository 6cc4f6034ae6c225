#!/usr/bin/env python3
"""Let every system call that the journal of a real server makes fail once, and once permanently.

    sweep.py [--count N] [--seed S] [--kind KIND ...] [--error NAME ...]

A server starts, messages are published by Figg one after the other, segments are rolled and deleted, and it stops.  In
each run the Nth call of one kind (write, fdatasync, fsync, allocate, truncate, rename, unlink, open; N from 1 to the
last call) fails with EIO, ENOSPC, EROFS or EINTR, or writes only half (short); in another run the Nth and all later
calls fail.  A small preloaded library does this (sweep.c; needs a C compiler).  If N is odd, commits run in the
reactor's thread, as on a fast disk.  Then a server starts without faults, and the program checks:

  - acknowledged messages are stored, in order, and nothing that was not sent; a message that was sent once is stored
    once;
  - the first server served on, or accepted nothing until there was room, or ended with status 4, as it must if a sync
    has failed, or did not start and said why in one line; it never ended in another way, and it logged no unexpected
    failure;
  - a new message is acknowledged, and `verify` finds nothing.

--count takes so many of all runs at random; 0 takes all.  Servers are forked from this process, which has imported
everything, so that thousands of starts are possible.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ctypes
import errno
import itertools
import math
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import load
import twisted.application.app
import twisted.internet.endpoints
import twisted.internet.tcp
import twisted.internet.udp
import twisted.scripts.twistd
import wire

import fyrehose.server.service  # noqa: F401 - what servers need is here when they are forked
from fyrehose.journal import commit
from fyrehose.offline.verify import verify
from fyrehose.protocols.figg import plugin  # noqa: F401

KINDS = ("write", "fdatasync", "fsync", "allocate", "truncate", "rename", "unlink", "open")
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EROFS": errno.EROFS, "EINTR": errno.EINTR, "short": -1}
#: How many messages are published, the size of segments, and the option keep-bytes; small, so that segments are
#: deleted.
MESSAGES, SEGMENT, KEEP = 24, 2048, 4096
LARGEST = 700
PATIENCE = 60.0
#: The exit statuses that are documented: in order; the journal cannot be opened; the disk failed; no room to start.
STATUSES = {0, 1, 4, 6}
FOREVER = 1 << 30
#: The kinds of calls after whose failure the server must not go on, except with an index, which is only a cache.
SYNCS, REBUILT = ("fdatasync", "fsync"), "which will be rebuilt later"


def patiently() -> Iterator[None]:
    """Yield until PATIENCE is over, in short waits, so that time for which this process is stopped does not count."""
    for _ in range(int(PATIENCE / 0.003)):
        yield
        time.sleep(0.003)


class Server:
    """A server in a process that is forked from this one."""

    def __init__(self, directory: Path, fault: tuple[int, int, int, int] | None) -> None:
        self.directory = directory
        self.log_path = directory / "log"
        self.log_path.write_bytes(b"")
        self.pid = os.fork()
        if not self.pid:
            self._serve(fault)

    def _serve(self, fault: tuple[int, int, int, int] | None) -> None:
        try:
            log = os.open(self.log_path, os.O_WRONLY | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(self.directory)
            options = {"min-free": 0, "segment-size": SEGMENT, "keep-bytes": KEEP}
            words = [word for name, value in options.items() for word in ("--option", f"journal.{name}={value}")]
            data = self.directory / "data"
            where = ("--data-dir", str(data), "--listen", "figg=tcp:0:interface=127.0.0.1")
            sys.argv = ["twistd", "--pidfile=", "-n", "fyrehose", *where, *words]
            kind, nth, error, times = fault or (-1, 0, 0, 0)
            if nth % 2:  # as on a fast disk, the commits run in the reactor's thread
                commit.FAST = commit.SLOW = commit.STALL = math.inf
            ctypes.CDLL(None).sweep_arm(kind, ctypes.c_long(nth), error, ctypes.c_long(times), os.fsencode(data))
            status = 0
            try:
                twisted.scripts.twistd.run()
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else 1
            self._count()
            atexit._run_exitfuncs()  # the server sets its exit status here
            os._exit(status)
        finally:
            os._exit(9)

    def _count(self) -> None:
        counts = [ctypes.CDLL(None).sweep_count(kind) for kind in range(len(KINDS))]
        self.directory.joinpath("counts").write_text(" ".join(map(str, counts)))

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def port(self) -> int | None:
        """Return the port on which the server listens, or None if it has ended."""
        for _ in patiently():
            if "#info] serving\n" in (log := self.log):
                return int(re.findall(r"listens on \S+:(\d+)\n", log)[-1])
            if self.status() is not None:
                return None
        raise TimeoutError(f"the server does not start:\n{self.log}")

    ended: int | None = None

    def status(self) -> int | None:
        """Return the exit status, or None while the server runs."""
        if self.ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.ended = os.waitstatus_to_exitcode(status)
        return self.ended

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.status() is None:
            os.kill(self.pid, number)
        for _ in patiently():
            if (status := self.status()) is not None:
                return status
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise TimeoutError(f"the server does not stop:\n{self.log}")


class Client:
    """A publisher of one message after the other, which resends unacknowledged messages on its next connection."""

    def __init__(self) -> None:
        self.acked = self.sent = 0
        self.resent: list[tuple[int, int]] = []

    def publish(self, port: int, upto: int, patience: float) -> None:
        """Publish until ``upto`` is acknowledged, the server closes, or it is silent for *patience* seconds."""
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=patience) as peer:
                frames = wire.Frames()
                while self.acked < upto:
                    number = self.acked + 1
                    if number <= self.sent:
                        self.resent.append((number, number))
                    self.sent = max(self.sent, number)
                    peer.sendall(wire.publish(b"s", number, wire.payload(1, number, LARGEST)))
                    while self.acked < number:
                        chunk = peer.recv(1 << 16)
                        if not chunk:
                            return
                        for _, _, acked, _ in frames.feed(chunk):
                            self.acked = max(self.acked, acked)
        except OSError:
            return


def life(directory: Path, fault: tuple[int, int, int, int] | None) -> tuple[str, list[str]]:
    """Run a server with the fault, and one without; return how the first ended, and the problems."""
    client = Client()
    server = Server(directory, fault)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: server.status() is None and server.stop(signal.SIGKILL))
        port = server.port()
        if port is not None:
            client.publish(port, MESSAGES, 0.3 if fault else PATIENCE)
            if client.acked < MESSAGES and server.status() is None:
                client.publish(port, MESSAGES, 1.5)  # the server may have found room again
        status = server.stop()
    problems = [] if status in STATUSES else [f"status {status}"]
    if fault and KINDS[fault[0]] in SYNCS and status in (0, 6) and REBUILT not in server.log:
        calls = int(directory.joinpath("counts").read_text().split()[fault[0]])
        if fault[2] == errno.EIO and calls >= fault[1]:
            problems.append("a sync has failed, and the server went on")
    said = "did not start" if port is None else "went on" if client.acked == MESSAGES else f"ended with {status}"
    if port is None and "Traceback" in server.log:
        problems.append("the server did not start, and did not say why in one line")
    if "Unhandled" in server.log or (status in (0, 1) and "Traceback" in server.log):
        problems.append(f"the server logged an unexpected failure:\n{server.log[-3000:]}")
    return said, problems + look(directory, client)


def look(directory: Path, client: Client) -> list[str]:
    """Start a server without faults, and check that everything is stored and new messages are accepted."""
    server = Server(directory, None)
    try:
        port = server.port()
        if port is None:
            return [f"it does not start any more, with {server.status()}:\n{server.log[-2000:]}"]
        found = [wire.whose(data, {1: LARGEST}) for _, data in wire.read_all(port, [b"s"]).get(b"s", [])]
        problems = check(client, [n for _, n in filter(None, found)]) if None not in found else ["not what was sent"]
        before = client.acked
        client.publish(port, client.sent + 3, PATIENCE)
        if client.acked <= before:
            problems.append("the server acknowledges no new message")
        if status := server.stop():
            problems.append(f"status {status} at the end:\n{server.log[-2000:]}")
    finally:
        if server.status() is None:
            server.stop(signal.SIGKILL)
    report = verify(directory / "data")
    return problems + [f"verify: {problem}" for problem in report.problems]


def check(client: Client, numbers: list[int]) -> list[str]:
    """Check the messages ``numbers`` that are stored; retention may have deleted the oldest, but not all."""
    if client.acked and not numbers:
        return [f"all {client.acked} acknowledged messages are LOST"]
    return list(load.judge(numbers, (client.acked, client.sent), client.resent, trimmed=True))


def runs(directory: Path, kinds: list[str], errors: list[str]) -> list[tuple[str, str, int, int]]:
    """Return every run (kind, error, nth, times), after counting the calls of a server without faults."""
    _, problems = life(directory, None)
    assert not problems, problems
    shutil.rmtree(directory / "data")
    server = Server(directory, None)
    client = Client()
    port = server.port()
    assert port is not None
    client.publish(port, MESSAGES, PATIENCE)
    server.stop()
    counts = dict(zip(KINDS, map(int, directory.joinpath("counts").read_text().split()), strict=True))
    print("calls: " + ", ".join(f"{kind} {count}" for kind, count in counts.items()), flush=True)
    return [
        (kind, error, nth, times)
        for kind, error, times in itertools.product(kinds, errors, (1, FOREVER))
        if not (error == "short" and kind != "write") and not (error == "EINTR" and times > 1)
        for nth in range(1, counts[kind] + 1)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50, help="runs; 0: all of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--error", choices=ERRORS, action="append")
    parser.add_argument("--preloaded", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.preloaded is None:
        return preload()
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    root = Path(tempfile.mkdtemp(prefix="fyrehose-sweep-", dir=base))
    (root / "first").mkdir()
    chosen = runs(root / "first", arguments.kind or list(KINDS), arguments.error or list(ERRORS))
    total = len(chosen)
    if arguments.count and arguments.count < total:
        chosen = random.Random(arguments.seed).sample(chosen, arguments.count)
    outcomes: Counter[str] = Counter()
    violations, began = 0, time.monotonic()
    for number, (kind, error, nth, times) in enumerate(chosen):
        directory = root / str(number)
        directory.mkdir()
        try:
            said, problems = life(directory, (KINDS.index(kind), nth, ERRORS[error], times))
        except (OSError, ValueError) as trouble:
            said, problems = "broke off", [f"{type(trouble).__name__}: {trouble}"]
        outcomes[said] += 1
        for problem in problems:
            print(f"VIOLATION: {error} at {kind} {nth}{' and after' * (times > 1)}: {problem}", flush=True)
        violations += len(problems)
        if not problems:
            shutil.rmtree(directory)
        if violations >= 20:
            break
    ends = ", ".join(f"{said} {count}" for said, count in sorted(outcomes.items()))
    print(
        f"{sum(outcomes.values())} of {total} runs with a fault (seed {arguments.seed}): {ends}; {violations} "
        f"violations, {time.monotonic() - began:.0f} s"
    )
    if violations:
        print(f"the directory is kept: {root}")
        return 1
    shutil.rmtree(root)
    return 0


def preload() -> int:
    """Run this program again with the library that makes calls fail; return its exit status."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        print("skipped: there is no C compiler")
        return 0
    with tempfile.TemporaryDirectory(prefix="fyrehose-sweep-") as directory:
        library = Path(directory) / "sweep.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
        command = [sys.executable, *sys.argv, "--preloaded", str(library)]
        return subprocess.run(command, env={**os.environ, "LD_PRELOAD": str(library)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
