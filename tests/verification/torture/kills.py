"""The common part of the programs that kill processes: options, processes that are started again, and the report."""

from __future__ import annotations

import argparse
import atexit
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import servers

FYREHOSE = Path(sys.executable).with_name("fyrehose")
#: The errors of a request to a server that is killed or starts.
LOST = (OSError, HTTPException)


def parser_of(doc: str | None, **counts: int) -> argparse.ArgumentParser:
    """Return a parser of --seed and --directory, and of an option for each of *counts*, with its default."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in counts.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=servers.directory, help="for all files; a temporary one by default")
    return parser


def root_of(options: argparse.Namespace, name: str) -> Path:
    """Return a new directory for the files of the program *name*."""
    return Path(tempfile.mkdtemp(prefix=f"fyrehose-{name}-", dir=options.directory))


class Program:
    """A process that is killed and started again, and for good when this program ends."""

    process: subprocess.Popen[bytes]

    def __init__(self, name: str, words: Sequence[Any], log: Path) -> None:
        self.name, self.words, self.log = name, [str(word) for word in words], log
        self.start()
        atexit.register(self.kill)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send the process a signal, wait for its end, and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(servers.PATIENCE)


class Serving(Program):
    """A server that is killed and started again; it serves when :meth:`start` returns."""

    def __init__(self, directory: Path, *words: str, ports: dict[str, int], only: bool = False) -> None:
        self._again: Callable[[], servers.Server] = lambda: servers.Server(directory, *words, ports=ports, only=only)
        super().__init__("server", (), directory / "log")

    def start(self) -> None:
        server = self._again()
        self.process = server.process
        server.wait_until_serving()


def wait_for(what: str, happened: Callable[[], bool]) -> None:
    """Wait until something has *happened*, which *what* describes."""
    deadline = time.monotonic() + 2 * servers.PATIENCE
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"this has not happened in {2 * servers.PATIENCE:.0f} s: {what}")
        time.sleep(0.01)


def kill_some(
    programs: Sequence[Program],
    kills: int,
    dice: random.Random,
    pauses: tuple[float, float],
    after: Callable[[], object] = lambda: None,
) -> Counter[str]:
    """Kill one of *programs* after another, at random, and start it again; return how often each was killed.

    :param pauses: the shortest and the longest time before a kill, in seconds
    :param after: called after each start
    """
    killed: Counter[str] = Counter()
    for _ in range(kills):
        time.sleep(dice.uniform(*pauses))
        victim = dice.choice(programs)
        victim.kill()
        killed[victim.name] += 1
        victim.start()
        after()
    return killed


def ask(port: int, method: str, target: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """Send one request to the server at *port*; return the status and the body of its answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=servers.PATIENCE)
    try:
        connection.request(method, target, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def shown(killed: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(killed.items()))


def report(problems: list[str], killed: Counter[str], root: Path) -> int:
    """Print the *problems* and the kills, remove *root* if there are no problems, and return the exit status."""
    for problem in problems[:20]:
        print(f"VIOLATION: {problem}")
    print(f"{killed.total()} kills ({shown(killed)}): {len(problems)} problems")
    return servers.verdict(bool(problems), root)
