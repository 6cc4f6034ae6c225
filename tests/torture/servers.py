"""The real server, started, watched and killed: ``twistd -n fyrehose`` in a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

TWISTD = Path(sys.executable).with_name("twistd")
PATIENCE = 60.0
LOOPBACK = "interface=127.0.0.1"
#: Every door, and what it listens with.
DOORS = {"figg": "tcp", "backbone": "udp", "lumberjack": "tcp", "relink": "tcp", "eventbus": "tcp"}


def directory(name: str) -> Path:
    """An option's value: a directory that is made where it is none yet."""
    made = Path(name)
    made.mkdir(parents=True, exist_ok=True)
    return made


class ServerEnded(Exception):
    """It ended before it served."""


class Server:
    """One run of the server, with its journal in ``directory / "data"``."""

    def __init__(self, directory: Path, *words: str, before: tuple[str, ...] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.log_path = directory / "log"
        self.log_path.write_bytes(b"")
        self.started = time.monotonic()
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *before,
                    str(TWISTD),
                    "--pidfile=",
                    "-n",
                    "fyrehose",
                    "--data-dir",
                    str(directory / "data"),
                    *[word for door, kind in DOORS.items() for word in ("--listen", f"{door}={kind}:0:{LOOPBACK}")],
                    *words,
                ],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_until(self, words: str) -> None:
        """:raises ServerEnded: it ended without saying them"""
        deadline = time.monotonic() + PATIENCE
        while words not in self.log:
            if self.process.poll() is not None and words not in self.log:
                raise ServerEnded(f"status {self.process.returncode}:\n{self.log}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {words!r} in:\n{self.log}")
            time.sleep(0.005)

    def wait_until_serving(self) -> None:
        self.wait_until("#info] serving\n")

    def port(self, name: str) -> int:
        found = re.findall(rf"{name} \(\S+\) listens on \S+:(\d+)\n", self.log)
        return int(found[-1])

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        """End it; its status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)
